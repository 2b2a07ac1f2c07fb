"""How long work will take, before it is done: a replay of it through copies of the books, as they stand now.

    eta(limiter, {"openai/gpt-5": [{"input_tokens": 1_200, "output_tokens": 300}] * 5_000}, latency_s=4.0).total_s

The ledgers that grant the real requests grant these, too, in time that only counts: levels, days half used, headroom,
opening, learned limits, pauses and slots in flight are what they are in the pools. What a replay cannot know is what
answers will teach later, and what other processes will ask for.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count

from paceline.core.ledger import Ledger
from paceline.core.meters import FAR_NS
from paceline.core.pool import Pool
from paceline.core.quota import CONCURRENCY, NS, REQUESTS, Cost, Rule
from paceline.core.results import NeverFits, NeverFitsError, QuotaError, Reservation, StoreError
from paceline.pacing.pacer import Pacer
from paceline.pacing.permit import check_cost
from paceline.pacing.scheduler import Scheduler

REQUESTS_MAX = 1_000_000
"""How many requests are replayed at most: 100,000 take one to three seconds."""

NEVER_S = 10 * 366 * 86_400.0
"""Ten years: what would take longer never ends."""

LATENCY, STOPPED = "latency", "stopped"
"""What binds a pool that no quota made wait, and one whose provider said that money is gone."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """How long the work will take.

    Attributes:
        total_s: Seconds from now until the last answer; infinite when that never comes.
        pools: The same for each pool, by the names that the work gave them.
        binds: For each, the quota that makes it wait longest, in its notation; ``latency`` where none does, and
            ``stopped`` where the provider said that money is gone.
    """

    total_s: float
    pools: Mapping[str, float]
    binds: Mapping[str, str]


def eta(
    limiter: Pacer, work: Mapping[str, Iterable[Mapping[str, float]]], *, latency_s: float | Mapping[str, float] = 0.0
) -> Forecast:
    """When the last answer will be there, if everything is asked for now.

    Args:
        limiter: Whose pools; they stay as they are. Where processes share them, the store is asked how they stand.
        work: For each pool the costs of its requests, in order, each as :meth:`Limiter.acquire <paceline.Limiter.acquire>` takes it: what the
            provider will charge in the end. Who waits in these pools already goes first and is counted, too, so in
            the middle of a run give only what has not been asked for.
        latency_s: Mean seconds from a grant to the end of its answer, for all pools or by pool: it is what slots in
            flight are held for.

    Raises:
        QuotaError: A pool is unknown, a cost or a latency cannot be meant, or there are more than a million requests.
        NeverFitsError: A request costs more than its quota can ever hold.
        StoreError: The pools are shared, and the store has never answered.
    """
    replay, lines = _Replay(limiter), dict[str, _Line]()
    for name, costs in work.items():
        own_s = latency_s.get(name, 0.0) if isinstance(latency_s, Mapping) else latency_s
        if not 0 <= own_s <= NEVER_S:
            raise QuotaError(f"latency_s of {name} is {own_s!r}: it must be 0 s or more, and no more than ten years")
        lines[name] = replay.add(limiter.scheduler(name), round(own_s * NS), costs)
    replay.add_rivals(limiter)
    replay.run()
    pools = {name: line.took_s(replay.start_ns) for name, line in lines.items()}
    return Forecast(max(pools.values(), default=0.0), pools, {name: line.binds for name, line in lines.items()})


@dataclass(slots=True, eq=False)
class _Request:
    """One request on its way through the schedulers of its pool."""

    line: _Line
    cost: Cost
    amounts: list[float]
    held: list[tuple[_Line, Reservation]] = field(default_factory=list)


class _Line:
    """A copy of a scheduler's books, and who waits before them: work, or those whom the scheduler before let through."""

    work: Iterator[Mapping[str, float]]

    def __init__(self, scheduler: Scheduler, now_ns: int, latency_ns: int) -> None:
        self.latency_ns = latency_ns
        self.further: list[_Line] = []
        self.waiting: deque[_Request] = deque()
        self.wake_ns, self.last_ns, self.waits_ns = FAR_NS, now_ns, dict[str, int]()
        self._blocked: tuple[_Line, str, int] | None = None  # whose request, by which quota, since when
        if (lost := scheduler.refresh()) is not None:
            raise StoreError(f"{scheduler.pool.name}: {lost.reason}")
        scheduler.read(partial(self._copy, scheduler.pool))
        self.further_amounts = self.ledger.amounts({REQUESTS: 1, CONCURRENCY: 1})

    def _copy(self, pool: Pool, now_ns: int) -> None:
        live = pool.ledger
        self.name, self.stopped = pool.name, pool.stopped is not None
        self.ledger = Ledger([], now_ns, headroom_s=live.headroom_s, ttl_s=live.ttl_ns / NS, gentle=live.gentle)
        for m, quota in zip(live.meters, live.names, strict=True):
            self.ledger.follow(deepcopy(m), quota)
        self.ledger.not_before_ns = max(live.not_before_ns, now_ns + pool.capacity.cool_down_ns(now_ns))
        self.ahead = [waiter.cost for waiter in pool.queue]
        self.open = [(list(r.amounts), r.granted_ns) for r in live.open]

    def landing(self, now_ns: int) -> Iterator[tuple[int, _Request]]:
        """Who is in flight now, and when each answer should end; slots that other processes hold come back, too."""
        meters = self.ledger.meters
        slots = [m.quota.amount - m.level(now_ns) if m.quota.rule is Rule.SLOTS else 0.0 for m in meters]
        for amounts, granted_ns in self.open:
            own = amounts + [0.0] * (len(meters) - len(amounts))  # there may be new quotas now
            slots = [held - amount for held, amount in zip(slots, own, strict=True)]
            yield max(granted_ns + self.latency_ns, now_ns), self._hold(own, now_ns)
        if any(held > 0 for held in slots):
            yield now_ns + self.latency_ns, self._hold([max(held, 0.0) for held in slots], now_ns)

    def _hold(self, amounts: list[float], now_ns: int) -> _Request:
        reservation = Reservation({}, amounts, [0] * len(amounts), now_ns, FAR_NS)
        self.ledger.hold(reservation)
        return _Request(self, {}, amounts, [(self, reservation)])

    def _head(self) -> _Request | None:
        if not self.waiting and (said := next(self.work, None)) is not None:
            cost = {REQUESTS: 1.0, **said}
            check_cost(cost, self.ledger.units)
            self.waiting.append(_Request(self, cost, self.ledger.amounts(cost)))
        return self.waiting[0] if self.waiting else None

    def pump(self, now_ns: int) -> Iterator[_Request]:
        """Let go whoever may go now, and note what the next one waits for in ``wake_ns``."""
        if self._blocked is not None:
            line, quota, since_ns = self._blocked
            line.waits_ns[quota] = line.waits_ns.get(quota, 0) + now_ns - since_ns
            self._blocked = None
        while not self.stopped and (request := self._head()) is not None:
            amounts = request.amounts if request.line is self else self.further_amounts
            decision = self.ledger.reserve(now_ns, request.cost, amounts)
            if isinstance(decision, NeverFits):
                raise NeverFitsError(self.name, decision.unit, decision.cost, decision.most)
            if not isinstance(decision, Reservation):
                self._blocked = request.line, decision.quota, now_ns
                self.wake_ns = decision.at_ns
                return
            self.waiting.popleft()
            request.held.append((self, decision))
            yield request
        self.wake_ns = FAR_NS

    def took_s(self, start_ns: int) -> float:
        """Seconds until its last answer."""
        never = self.waiting or (self.stopped and next(self.work, None) is not None)
        return math.inf if never else (self.last_ns - start_ns) / NS

    @property
    def binds(self) -> str:
        """What its work waits for longest."""
        return STOPPED if self.stopped else max(self.waits_ns, key=self.waits_ns.__getitem__, default=LATENCY)


class _Replay:
    """All lines, and what will happen to them by time."""

    def __init__(self, limiter: Pacer) -> None:
        self.start_ns = limiter.clock.now_ns()
        self.lines: dict[Scheduler, _Line] = {}
        self._left = REQUESTS_MAX
        self._events: list[tuple[int, int, _Request | _Line]] = []
        self._number = count().__next__

    def add(self, scheduler: Scheduler, latency_ns: int, costs: Iterable[Mapping[str, float]] = ()) -> _Line:
        """The line of ``scheduler``, with more work for it."""
        line = self.lines.get(scheduler)
        if line is None:
            line = self.lines[scheduler] = _Line(scheduler, self.start_ns, latency_ns)
            line.work = self._counted(line.ahead)
            line.further = [self.add(other, latency_ns) for other in scheduler.further]  # shared slots
            for at_ns, request in line.landing(self.start_ns):
                self._push(at_ns, request)
        line.work = chain(line.work, self._counted(costs))
        return line

    def add_rivals(self, limiter: Pacer) -> None:
        """Who waits in other pools for the slots that the work needs, too: they go in turn."""
        latency_ns = max((line.latency_ns for line in self.lines.values()), default=0)
        for scheduler in limiter.schedulers:
            if scheduler not in self.lines and any(further in self.lines for further in scheduler.further):
                self.add(scheduler, latency_ns)

    def _counted(self, costs: Iterable[Mapping[str, float]]) -> Iterator[Mapping[str, float]]:
        for cost in costs:
            self._left -= 1
            if self._left < 0:
                raise QuotaError(f"more than {REQUESTS_MAX:,} requests: ask about a part of them, and of the time")
            yield cost

    def _push(self, at_ns: int, what: _Request | _Line) -> None:
        heapq.heappush(self._events, (at_ns, self._number(), what))

    def run(self) -> None:
        """Until everything is answered, or nothing will ever be."""
        for line in list(self.lines.values()):
            self._pump(self.start_ns, line)
        while self._events:
            now_ns, _, what = heapq.heappop(self._events)
            if now_ns - self.start_ns > NEVER_S * NS:
                return
            if isinstance(what, _Line):
                if what.wake_ns <= now_ns:  # else it went on before
                    self._pump(now_ns, what)
                continue
            what.line.last_ns = now_ns
            for line, reservation in what.held:
                line.ledger.settle(now_ns, reservation, None)
                self._pump(now_ns, line)

    def _pump(self, now_ns: int, line: _Line) -> None:
        before_ns = line.wake_ns
        for request in line.pump(now_ns):
            passed = len(request.held)
            if passed <= len(request.line.further):
                following = request.line.further[passed - 1]
                following.waiting.append(request)
                if len(following.waiting) == 1:
                    self._pump(now_ns, following)
            else:
                self._push(now_ns + request.line.latency_ns, request)
        if line.wake_ns < FAR_NS and (line.wake_ns != before_ns or before_ns <= now_ns):
            self._push(line.wake_ns, line)
