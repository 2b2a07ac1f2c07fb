"""A client with workers before a provider that states no limit, in virtual time, and the time that a clairvoyant takes.

A client says when the next attempt may go, and is told what was sent, answered and refused. :func:`run` repeats refused requests at once, as often as it takes. The network delays an attempt by 10 to 20 ms, and a
refusal takes 50 to 100 ms to come back.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.core.quota import FAR_NS, NS

T0 = 1_000 * NS
TINY = 1e-9


class Bucket:
    """A token bucket; ``rate`` may be a list of pairs: from so many seconds, so much per second."""

    def __init__(self, rate, burst, *, counts_refused=False):
        self.steps = rate if isinstance(rate, list) else [(0, rate)]
        self.burst, self.counts_refused, self.level, self.at_ns = burst, counts_refused, burst, T0

    def rate(self, at_ns):
        return [rate for from_s, rate in self.steps if from_s * NS <= at_ns - T0][-1]

    def _refill(self, now_ns):
        changes = [T0 + round(from_s * NS) for from_s, _ in self.steps]
        for at_ns in [*(c for c in changes if self.at_ns < c < now_ns), now_ns]:
            gain = self.rate(self.at_ns) * (at_ns - self.at_ns) / NS
            self.level, self.at_ns = min(self.burst, self.level + gain), at_ns

    def wait_ns(self, now_ns):
        self._refill(now_ns)
        lack = 1 - self.level
        return 0 if lack <= TINY else round(lack / self.rate(now_ns) * NS) + 1

    def admit(self, now_ns):
        self.level -= 1

    def refuse(self, now_ns):
        if self.counts_refused:
            self.level = max(self.level - 1, -self.burst)

    def done(self):
        pass


class Counter(Bucket):
    """A window of ``period_s`` that restarts; the first one began ``offset_s`` ago."""

    def __init__(self, limit, period_s, offset_s=0.0):
        self.limit, self.period_ns, self.start_ns = limit, round(period_s * NS), T0 - round(offset_s * NS)
        self.used = 0

    def wait_ns(self, now_ns):
        start_ns = now_ns - (now_ns - self.start_ns) % self.period_ns
        if start_ns > self.start_ns:
            self.start_ns, self.used = start_ns, 0
        return 0 if self.used < self.limit else self.start_ns + self.period_ns - now_ns

    def admit(self, now_ns):
        self.used += 1

    def refuse(self, now_ns):
        pass


class Log(Counter):
    """A limit on any trailing period."""

    def __init__(self, limit, period_s):
        super().__init__(limit, period_s)
        self.log = deque()

    def wait_ns(self, now_ns):
        while self.log and self.log[0] <= now_ns - self.period_ns:
            self.log.popleft()
        return 0 if len(self.log) < self.limit else self.log[0] + self.period_ns - now_ns

    def admit(self, now_ns):
        self.log.append(now_ns)


class Slots(Counter):
    """A bound on the requests in flight; ``sizes``: from so many seconds, so many."""

    def __init__(self, *sizes):
        self.sizes, self.used = sizes, 0

    def wait_ns(self, now_ns):
        size = [n for from_s, n in self.sizes if from_s * NS <= now_ns - T0][-1]
        return 0 if self.used < size else FAR_NS

    def admit(self, now_ns):
        self.used += 1

    def done(self):
        self.used -= 1


class Stall(Counter):
    """Nothing is admitted between two instants."""

    def __init__(self, from_s, to_s):
        self.from_ns, self.to_ns = T0 + round(from_s * NS), T0 + round(to_s * NS)

    def wait_ns(self, now_ns):
        return self.to_ns - now_ns if self.from_ns <= now_ns < self.to_ns else 0

    def admit(self, now_ns):
        pass


class Chance(Counter):
    """A share of the attempts is refused by chance; ``shares``: from so many seconds, so much."""

    def __init__(self, seed, *shares):
        self.shares, self.dice = shares, random.Random(f"chance {seed}")

    def wait_ns(self, now_ns):
        share = [part for from_s, part in self.shares if from_s * NS <= now_ns - T0][-1]
        return int(self.dice.random() < share)

    def admit(self, now_ns):
        pass


@dataclass
class World:
    """What is simulated.

    Attributes:
        rules: Makes the rules of the provider; each of them must admit an attempt.
        requests: How many there are, all at the beginning.
        workers: How many are in flight at most.
        latency_s: The mean time of an answer.
        spread: How much it varies: the sigma of its logarithm.
        stated: A limit per second that the user has stated. A second of it may go at once.
        asks: The wait in seconds that a refusal states, from the true one; ``None``: it states none.
        unsent: The share of the attempts that are not sent after all, as when their callers are cancelled.
    """

    rules: Callable[[], list]
    requests: int = 300
    workers: int = 20
    latency_s: float = 3.0
    spread: float = 0.15
    stated: float | None = None
    asks: Callable[[float], float] | None = None
    unsent: float = 0.0


@dataclass
class Outcome:
    """What has happened; the instants are seconds since the beginning."""

    served: int = 0
    took_s: float = 0.0
    sent_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)

    @property
    def refused(self) -> int:
        return len(self.refused_s)


class Clairvoyant:
    """A client that asks the rules themselves."""

    rules: list

    def earliest_ns(self, now_ns):
        return now_ns + max((rule.wait_ns(now_ns) for rule in self.rules), default=0)

    def sent(self, now_ns):
        pass

    def answered(self, now_ns, notes):
        pass


class Simulation:
    """The events of one run, in virtual time."""

    def __init__(self, world, seed, client):
        self.world, self.client, self.rules = world, client, world.rules()
        self.network, jobs = random.Random(f"network {seed}"), random.Random(f"jobs {seed}")
        self.took_ns = [
            round(world.latency_s * jobs.lognormvariate(0, world.spread) * NS) for _ in range(world.requests)
        ]
        self.queue, self.busy, self.out = deque(range(world.requests)), 0, Outcome()
        self.events, self.order, self.now_ns, self.timer_ns = [], itertools.count(), T0, FAR_NS
        self.knows = isinstance(self.client, Clairvoyant)
        if self.knows:
            self.client.rules = self.rules

    def later(self, after_ns, what, *args):
        heapq.heappush(self.events, (self.now_ns + after_ns, next(self.order), what, args))

    def run(self, until_ns):
        self.send()
        while self.events and self.out.served < self.world.requests and self.now_ns < until_ns:
            self.now_ns, _, what, args = heapq.heappop(self.events)
            what(*args)
            self.send()
        self.out.took_s = (self.now_ns - T0) / NS
        return self.out

    def send(self):
        """Send what may go now, and set a timer for the next one."""
        while self.queue and self.busy < self.world.workers:
            at_ns = self.client.earliest_ns(self.now_ns)
            if at_ns > self.now_ns:
                if at_ns < self.timer_ns:
                    self.timer_ns = at_ns
                    self.later(at_ns - self.now_ns, self.timer)
                return
            self.busy += 1
            self.out.sent_s.append((self.now_ns - T0) / NS)
            notes, job = self.client.sent(self.now_ns), self.queue.popleft()
            if self.knows:
                self.arrival(job, notes)
            elif self.network.random() < self.world.unsent:
                self.later(NS // 100, self.cancelled, job, notes)
            else:
                self.later(self.network.randrange(10, 20) * NS // 1_000, self.arrival, job, notes)

    def timer(self):
        if self.now_ns >= self.timer_ns:
            self.timer_ns = FAR_NS

    def arrival(self, job, notes):
        waits_ns = [rule.wait_ns(self.now_ns) for rule in self.rules]
        if max(waits_ns, default=0) <= 0:
            for rule in self.rules:
                rule.admit(self.now_ns)
            self.later(self.took_ns[job], self.answer, notes)
            return
        for rule, wait_ns in zip(self.rules, waits_ns, strict=True):
            if wait_ns > 0:
                rule.refuse(self.now_ns)
        self.later(self.network.randrange(50, 100) * NS // 1_000, self.refusal, job, notes, max(waits_ns))

    def cancelled(self, job, notes):
        self.busy -= 1
        self.queue.append(job)
        self.client.unsent(self.now_ns, notes)

    def answer(self, notes):
        for rule in self.rules:
            rule.done()
        self.busy -= 1
        self.out.served += 1
        self.client.answered(self.now_ns, notes)

    def refusal(self, job, notes, wait_ns):
        self.busy -= 1
        self.out.refused_s.append((self.now_ns - T0) / NS)
        self.queue.appendleft(job)
        asks = self.world.asks
        self.client.refused(self.now_ns, notes, None if asks is None else round(asks(wait_ns / NS) * NS))


def run(world: World, seed: int, client, *, hours: float = 6.0) -> Outcome:
    """Simulate ``world`` with a ``client``; ``hours``: the end, if not all requests have been served."""
    return Simulation(world, seed, client).run(T0 + round(hours * 3_600 * NS))


def ideal_s(world: World, seed: int) -> float:
    """The time that a client takes which knows what the provider will admit."""
    return run(world, seed, Clairvoyant()).took_s
