"""How long work will take: a replay of it through copies of the ledgers in their present state.

    eta(limiter, {"openai/gpt-5": [{"input_tokens": 1_200, "output_tokens": 300}] * 5_000}, latency_s=4.0).total_s

The copies have the same code and state as the pools: levels, partly used days, headroom, opening, learned limits,
pauses and slots in flight. Two things are unknown to a replay: what later answers will correct, and the requests of
other processes.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count

from paceline.core.ledger import Ledger
from paceline.core.measured import RateMeter
from paceline.core.meters import FAR_NS
from paceline.core.pool import Pool
from paceline.core.quota import NS, REQUESTS, Cost, Rule
from paceline.core.results import NeverFits, NeverFitsError, QuotaError, Reservation, StoreError
from paceline.limiter.limiter import Limiter
from paceline.pacing.pacer import Pacer
from paceline.pacing.permit import check_cost
from paceline.pacing.scheduler import Scheduler

REQUESTS_MAX = 1_000_000
"""The most requests of one replay; 100,000 take one to three seconds."""

NEVER_S = 10 * 366 * 86_400.0
"""Ten years: longer work counts as endless."""

LATENCY, STOPPED = "latency", "stopped"
"""What binds a pool without a wait for a quota, and a pool that is stopped."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """How long the work will take.

    Attributes:
        total_s: Seconds from now until the last answer; infinite for never.
        pools: The same per pool, by its name in ``work``.
        binds: Per pool, the quota with the longest wait, in its notation, with ``of NAME`` if it is of a joint limit or of
            the provider's slots; ``latency`` where no quota makes it wait, and
            ``stopped`` where the account has no money left.
    """

    total_s: float
    pools: Mapping[str, float]
    binds: Mapping[str, str]


def eta(
    limiter: Limiter,
    work: Mapping[str, Iterable[Mapping[str, float]]],
    *,
    latency_s: float | Mapping[str, float] = 0.0,
) -> Forecast:
    """When the last answer will arrive, if all work is submitted now.

    Args:
        limiter: The limiter; its pools do not change. Where processes share them, their state is read from the store.
        work: Per pool the true costs of its requests, in order, each with the units of
            :meth:`Limiter.acquire <paceline.Limiter.acquire>`. Requests that wait in these pools are counted and go
            first, so during a run give only those that have not been submitted.
        latency_s: Mean seconds from a grant to the end of its answer, in which a slot is held; for all pools, or by pool.

    Raises:
        QuotaError: A pool is unknown, a cost or a latency is invalid, or there are more than a million requests.
        NeverFitsError: A request costs more than its quota can ever hold.
        StoreError: The pools are shared, and the store has never answered.
    """
    replay, stages = _Replay(limiter.pacer), dict[str, _Stage]()
    for name, costs in work.items():
        own_s = latency_s.get(name, 0.0) if isinstance(latency_s, Mapping) else latency_s
        if not 0 <= own_s <= NEVER_S:
            raise QuotaError(f"latency_s of {name} is {own_s!r}: it must be from 0 s to ten years")
        stages[name] = replay.add(limiter.scheduler(name), round(own_s * NS), costs)
    replay.add_rivals(limiter.pacer)
    replay.run()
    pools = {name: stage.took_s(replay.start_ns) for name, stage in stages.items()}
    return Forecast(max(pools.values(), default=0.0), pools, {name: stage.binds for name, stage in stages.items()})


@dataclass(slots=True, eq=False)
class _Request:
    """One request on its way through the schedulers of its pool."""

    stage: _Stage
    cost: Cost
    amounts: list[float]
    held: list[tuple[_Stage, Reservation]] = field(default_factory=list)


class _Stage:
    """A copy of the ledger of a scheduler, and the requests before it: its work, or those that the stage before granted."""

    work: Iterator[Mapping[str, float]]

    def __init__(self, scheduler: Scheduler, now_ns: int, latency_ns: int) -> None:
        self.latency_ns = latency_ns
        self.further: list[_Stage] = []
        self.waiting: deque[_Request] = deque()
        self.wake_ns, self.last_ns, self.waits_ns = FAR_NS, now_ns, dict[str, int]()
        self._blocked: tuple[_Stage, str, int] | None = None  # the stage of the blocked request, the quota, since when
        if (lost := scheduler.refresh()) is not None:
            raise StoreError(f"{scheduler.pool.name}: {lost.reason}")
        scheduler.read(partial(self._copy, scheduler.pool))

    def _copy(self, pool: Pool, now_ns: int) -> None:
        live = pool.ledger
        self.name, self.stopped = pool.name, pool.stopped is not None
        self.ledger = Ledger([], now_ns, headroom_s=live.headroom_s, ttl_s=live.ttl_ns / NS, gentle=live.gentle)
        for account in live.accounts:
            meter = deepcopy(account.meter)
            if isinstance(meter, RateMeter):
                meter.rate.hold()
            self.ledger.add_account(account.with_meter(meter))
        self.ledger.pause.until_ns = max(live.pause.until_ns, now_ns + pool.capacity.cool_down_ns(now_ns))
        self.ahead = [waiter.cost for waiter in pool.queue]
        self.open = [(list(r.amounts), list(r.marks), r.granted_ns) for r in live.open_reservations]

    def landing(self, now_ns: int) -> Iterator[tuple[int, _Request]]:
        """The requests in flight, and when each answer should end; also the slots that other processes hold."""
        meters = self.ledger.meters
        slots = [m.quota.amount - m.level(now_ns) if m.quota.rule is Rule.SLOTS else 0.0 for m in meters]
        for amounts, marks, granted_ns in self.open:
            own = amounts + [0.0] * (len(meters) - len(amounts))  # quotas may have been added since
            slots = [held - amount for held, amount in zip(slots, own, strict=True)]
            yield max(granted_ns + self.latency_ns, now_ns), self._hold(own, now_ns, marks)
        if any(held > 0 for held in slots):
            yield now_ns + self.latency_ns, self._hold([max(held, 0.0) for held in slots], now_ns)

    def _hold(self, amounts: list[float], now_ns: int, marks: Sequence[int] = ()) -> _Request:
        marks = [*marks, *[0] * (len(amounts) - len(marks))]
        reservation = Reservation({}, amounts, marks, now_ns, FAR_NS)
        self.ledger.keep_open(reservation)
        return _Request(self, {}, amounts, [(self, reservation)])

    def _head(self) -> _Request | None:
        if not self.waiting and (given := next(self.work, None)) is not None:
            cost = {REQUESTS: 1.0, **given}
            check_cost(cost, self.ledger.units)
            self.waiting.append(_Request(self, cost, self.ledger.amounts(cost)))
        return self.waiting[0] if self.waiting else None

    def pump(self, now_ns: int) -> Iterator[_Request]:
        """Yield the requests that are granted now; ``wake_ns`` is when the next one may go."""
        if self._blocked is not None:
            stage, quota, since_ns = self._blocked
            stage.waits_ns[quota] = stage.waits_ns.get(quota, 0) + now_ns - since_ns
            self._blocked = None
        while not self.stopped and (request := self._head()) is not None:
            amounts = request.amounts if request.stage is self else self.ledger.amounts(request.cost)
            decision = self.ledger.reserve(now_ns, request.cost, amounts)
            if isinstance(decision, NeverFits):
                raise NeverFitsError(self.name, decision.unit, decision.cost, decision.most)
            if not isinstance(decision, Reservation):
                own = request.stage is self
                self._blocked = request.stage, decision.quota if own else f"{decision.quota} of {self.name}", now_ns
                self.wake_ns = decision.at_ns
                return
            self.waiting.popleft()
            request.held.append((self, decision))
            yield request
        self.wake_ns = FAR_NS

    def took_s(self, start_ns: int) -> float:
        """Seconds from ``start_ns`` until the last answer; infinite for never."""
        never = self.waiting or (self.stopped and next(self.work, None) is not None)
        return math.inf if never else (self.last_ns - start_ns) / NS

    @property
    def binds(self) -> str:
        """What the work waits for longest."""
        return STOPPED if self.stopped else max(self.waits_ns, key=self.waits_ns.__getitem__, default=LATENCY)


class _Replay:
    """All stages, and their events ordered by time."""

    def __init__(self, pacer: Pacer) -> None:
        self.start_ns = pacer.clock.now_ns()
        self.stages: dict[Scheduler, _Stage] = {}
        self._left = REQUESTS_MAX
        self._events: list[tuple[int, int, _Request | _Stage]] = []
        self._number = count().__next__

    def add(self, scheduler: Scheduler, latency_ns: int, costs: Iterable[Mapping[str, float]] = ()) -> _Stage:
        """The stage of ``scheduler``, with ``costs`` as further work."""
        stage = self.stages.get(scheduler)
        if stage is None:
            stage = self.stages[scheduler] = _Stage(scheduler, self.start_ns, latency_ns)
            stage.work = self._counted(stage.ahead)
            stage.further = [self.add(other, latency_ns) for other in scheduler.further]  # joint limits, shared slots
            for at_ns, request in stage.landing(self.start_ns):
                self._push(at_ns, request)
        stage.work = chain(stage.work, self._counted(costs))
        return stage

    def add_rivals(self, pacer: Pacer) -> None:
        """Add the pools whose requests wait for the same slots or joint limits as the work."""
        latency_ns = max((stage.latency_ns for stage in self.stages.values()), default=0)
        for scheduler in pacer.pools.in_use:
            if scheduler not in self.stages and any(further in self.stages for further in scheduler.further):
                self.add(scheduler, latency_ns)

    def _counted(self, costs: Iterable[Mapping[str, float]]) -> Iterator[Mapping[str, float]]:
        for cost in costs:
            self._left -= 1
            if self._left < 0:
                raise QuotaError(f"more than {REQUESTS_MAX:,} requests: forecast a part of them, and scale the result")
            yield cost

    def _push(self, at_ns: int, what: _Request | _Stage) -> None:
        heapq.heappush(self._events, (at_ns, self._number(), what))

    def run(self) -> None:
        """Replay until all requests are answered, or none can be granted any more."""
        for stage in list(self.stages.values()):
            self._pump(self.start_ns, stage)
        while self._events:
            now_ns, _, what = heapq.heappop(self._events)
            if now_ns - self.start_ns > NEVER_S * NS:
                return
            if isinstance(what, _Stage):
                if what.wake_ns <= now_ns:  # otherwise it was pumped meanwhile
                    self._pump(now_ns, what)
                continue
            what.stage.last_ns = now_ns
            for stage, reservation in what.held:
                stage.ledger.settle(now_ns, reservation, None)
                self._pump(now_ns, stage)

    def _pump(self, now_ns: int, stage: _Stage) -> None:
        before_ns = stage.wake_ns
        for request in stage.pump(now_ns):
            passed = len(request.held)
            if passed <= len(request.stage.further):
                following = request.stage.further[passed - 1]
                following.waiting.append(request)
                if len(following.waiting) == 1:
                    self._pump(now_ns, following)
            else:
                self._push(now_ns + request.stage.latency_ns, request)
        if stage.wake_ns < FAR_NS and (stage.wake_ns != before_ns or before_ns <= now_ns):
            self._push(stage.wake_ns, stage)
