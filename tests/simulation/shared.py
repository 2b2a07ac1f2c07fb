"""Several processes that share the ledger of one pool, before one emulated provider, in virtual time.

Each process is a fleet of workers with its own pool; the store is an event that takes a while. It can be away for a
time, for all processes or for one, and forget everything. Processes can start late, be idle for a time, and die.
"""

import heapq
import random
from functools import partial
from itertools import pairwise

from tests.simulation.fleet import START_NS, Fleet, Job

from paceline.core.ledger import Ledger
from paceline.core.pool import Pool
from paceline.core.queue import Queue
from paceline.core.quota import NS, parse_quotas
from paceline.core.results import Reservation, StoreLost
from paceline.emulator import Settings, World
from paceline.pacing.status import report
from paceline.shared.capacity import SharedCapacity, answer, ask
from paceline.shared.ledger import SharedLedger


def shared_pool(name, quotas, now_ns, *, who, headroom_s=1.0, learns=False, sources=(), **options):
    """A shared pool, as one process has it."""
    ledger = Ledger(quotas, now_ns, sources=sources, headroom_s=headroom_s, gentle=bool(learns))
    queue = Queue()
    return Pool(name, SharedCapacity(ledger, queue, now_ns, who=who, learns=learns, **options), queue)


class Host(Fleet):
    """One process."""

    def __init__(self, hub, name, told, *, skew_s=0.0, **options):
        self.hub, self.name, self.skew_ns = hub, name, round(skew_s * NS)
        super().__init__(told, {}, **options)
        self.world = hub.world
        self.dead = False
        self.active = self.cut = ()  # when it has work, and when it does not reach the store: seconds since the start
        self.call_at = None
        self.sent_at_s = []

    def make_pool(self, told):
        quotas = parse_quotas(told)
        options = {"sources": [self.source] * len(quotas), "who": self.name, "learns": True, **self.hub.options}
        return shared_pool("sim", quotas, START_NS + self.skew_ns, **options)

    def at(self, at_ns, event):
        self.hub.at(at_ns - self.skew_ns, lambda: self.dead or event())

    @property
    def now_ns(self):
        return self.hub.now_ns + self.skew_ns  # as this process's clock says

    @now_ns.setter
    def now_ns(self, value): ...

    def set_jobs(self, count, words):
        self.todo = [Job(round(self.random.randint(*words) * 1.28), 10) for _ in range(count)]

    @property
    def world_s(self):
        return self.hub.now_ns / NS

    def next_job(self):
        now_s = self.hub.now_s
        if not self.active or any(a <= now_s < b for a, b in self.active):
            super().next_job()
        elif self.todo and (later := [a for a, _ in self.active if a > now_s]):
            self.hub.after(min(later) - now_s + 1e-6, lambda: self.dead or self.next_job())

    def busy(self):
        return super().busy() and (not self.active or self.hub.now_s < self.active[-1][1])

    def server_after(self, seconds, event):
        self.hub.after(seconds, event)  # it goes on when this process is dead

    def arm(self):
        super().arm()
        self.call()

    def send(self, job, reservation):
        self.sent_at_s.append((self.hub.now_ns - START_NS) / NS)
        super().send(job, reservation)

    def changed(self):
        super().changed()
        self.arm()

    def call(self):
        due = self.pool.capacity.exchange_ns
        if due is None:
            return
        if due > self.now_ns:
            if self.call_at is None or due < self.call_at:
                self.call_at = due
                self.at(due, partial(self.call_due, due))
            return
        message = ask(self.pool, self.now_ns)
        if message is not None:
            self.hub.carry(self, message)

    def call_due(self, due):
        if self.call_at == due:
            self.call_at = None
            self.call()

    def take(self, done):
        for waiter in done:
            if isinstance(waiter.outcome, Reservation):
                self.send(waiter.owner, waiter.outcome)
            elif isinstance(waiter.outcome, StoreLost):  # the first message of this process: its callers try again
                self.server_after(1.0, lambda job=waiter.owner: self.dead or self.submit(job))
            else:
                self.lost += 1
                self.next_job()
        self.arm()

    def replied(self, reply):
        if reply is None:
            self.take(answer(self.pool, self.now_ns, "no answer"))
        else:
            self.take(answer(self.pool, self.now_ns, reply))


class Hub:
    """The provider, the store, and the processes."""

    def __init__(
        self, told, settings, *, hosts=8, workers=100, jobs=1_000, seed=1, trip_s=(0.0002, 0.002), timeout_s=1.0,
        away=(), forget_s=None, capacity=None, skew_s=None, **options,
    ):  # fmt: skip
        self.now_ns, self.events, self.number = START_NS, [], 0
        self.world = World(Settings(**settings), START_NS / NS)
        self.random = random.Random(seed)
        self.options = capacity or {}
        self.ledger, self.trip_s, self.timeout_s, self.away = SharedLedger(), trip_s, timeout_s, away
        self.calls = 0
        if forget_s is not None:
            self.at(START_NS + round(forget_s * NS), self.forget)
        self.hosts = [
            Host(
                self,
                f"h{n}",
                told,
                workers=workers,
                jobs=jobs // hosts,
                seed=seed * 100 + n,
                skew_s=skew_s[n] if skew_s else 0.0,
                **options,
            )
            for n in range(hosts)
        ]

    def kill_at(self, at_s, victim):
        self.at(START_NS + round(at_s * NS), lambda: setattr(self.hosts[victim], "dead", True))

    def forget(self):
        self.ledger = SharedLedger()

    def at(self, at_ns, event):
        self.number += 1
        heapq.heappush(self.events, (max(at_ns, self.now_ns), self.number, event))

    def after(self, seconds, event):
        self.at(self.now_ns + round(seconds * NS), event)

    @property
    def now_s(self):
        return (self.now_ns - START_NS) / NS

    def is_away(self, host):
        return any(a <= self.now_s < b for a, b in (*self.away, *host.cut))

    def carry(self, host, message):
        self.calls += 1
        if self.is_away(host):
            self.after(self.timeout_s, lambda: host.dead or host.replied(None))
        else:
            self.after(self.random.uniform(*self.trip_s), lambda: self.serve(host, message))

    def serve(self, host, message):
        if self.is_away(host):
            self.after(self.timeout_s, lambda: host.dead or host.replied(None))
            return
        reply = self.ledger.apply(self.now_ns, message)
        self.after(self.random.uniform(*self.trip_s), lambda: host.dead or host.replied(reply))

    def run(self, limit_s=3_600):
        for host in self.hosts:
            for _ in range(host.workers):
                host.next_job()
        while self.events and any(not host.dead and host.busy() for host in self.hosts):
            self.now_ns, _, event = heapq.heappop(self.events)
            assert self.now_ns < START_NS + limit_s * NS, [report(host.pool, self.now_ns) for host in self.hosts]
            event()
        return self

    @property
    def refused(self):
        return [at for host in self.hosts for at in host.refused_at_s]

    def silence_s(self, since_s=0.0):
        """The longest time without a request, from ``since_s`` on."""
        sent = sorted(at for host in self.hosts for at in host.sent_at_s)
        return max((b - a for a, b in pairwise(sent) if b > since_s), default=0.0)

    @property
    def speed(self):
        return self.world.tally()["speed_vs_ideal"]
