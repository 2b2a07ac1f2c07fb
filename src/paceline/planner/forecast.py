"""How long work will take: a replay of it through copies of the ledgers in their present state.

    eta(limiter, {"openai/gpt-6-luna": [{"input_tokens": 1_200, "output_tokens": 300}] * 5_000}, latency_s=4.0).total_s

The copies have the same code and state as the pools: levels, partly used days, headroom, opening, learned limits,
pauses and slots in flight. Two things are unknown to a replay: what later answers will correct, and the requests of
other processes.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count

from paceline.core.checked import check
from paceline.core.ledger import Ledger
from paceline.core.pool import Pool
from paceline.core.quota import FAR_NS, NS, REQUESTS, TOKENS, Cost, Rule
from paceline.core.results import NeverFits, NeverFitsError, QuotaError, Reservation, StoreError
from paceline.core.unstated.measured import RateMeter
from paceline.estimation.prefixes import ORDERED_FROM
from paceline.limiter.limiter import Limiter
from paceline.pacing.pacer import Pacer
from paceline.pacing.permit import check_cost, split_tokens
from paceline.pacing.scheduler import Scheduler
from paceline.providers.base import Call, Usage
from paceline.providers.registry import provider_named

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
            the provider's slots; ``latency`` if no quota makes it wait, and ``stopped`` if the account has no money
            left.
    """

    total_s: float
    pools: Mapping[str, float]
    binds: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Conversations:
    """The work of agents, for :func:`eta`: every prompt is the earlier prompt, its answer, and a further message.

    Attributes:
        agents: How many agents there are. All start at once.
        turns: The turns of each.
        prompt_tokens: The first prompt.
        grows: The tokens that every turn adds to the prompt.
        output_tokens: The output of a turn.
        think_s: Seconds from an answer to the next turn.
        cached: The part of the earlier prompt that a follow-up finds in the provider's cache.
    """

    agents: int
    turns: int
    prompt_tokens: int
    grows: int = 0
    output_tokens: int = 0
    think_s: float = 0.0
    cached: float = 1.0

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        counts = ("agents", "turns", "prompt_tokens", "grows", "output_tokens")
        whole = dict.fromkeys(counts, ("a whole number", 0, NEVER_S))
        check(self, **whole, think_s=("seconds", 0, NEVER_S), cached=("a share", 0, 1))

    def costs(self, pool: str) -> Iterator[Mapping[str, float]]:
        """What the provider of ``pool`` charges for each turn of one agent."""
        name, slash, model = pool.partition("/")
        provider = provider_named(name if slash else "generic")
        before, prompt = 0, self.prompt_tokens
        for _ in range(self.turns):
            usage = Usage(prompt, self.output_tokens, round(before * self.cached))
            yield provider.charged(Call(provider.name, "chat", model or name, prompt, self.output_tokens), usage)
            before, prompt = prompt, prompt + self.grows


def eta(
    limiter: Limiter,
    work: Mapping[str, Iterable[Mapping[str, float]] | Conversations],
    *,
    latency_s: float | Mapping[str, float] = 0.0,
) -> Forecast:
    """Return when the last answer will arrive if you submit all work now.

    Args:
        limiter: The limiter; its pools do not change. If processes share them, paceline reads their state from the
            store.
        work: Per pool the true costs of its requests, in order, each with the units of
            :meth:`Limiter.acquire <paceline.Limiter.acquire>`; or the :class:`Conversations` of agents. Requests that
            wait in these pools are included and go first, so during a run pass only requests that you haven't
            submitted.
        latency_s: Mean seconds from a grant to the end of its answer, in which a slot is held; for all pools, or by pool.

    Raises:
        QuotaError: A pool is unknown, a cost or a latency is invalid, or there are more than a million requests.
        NeverFitsError: A request costs more than its quota can ever hold.
        StoreError: The pools are shared, and the store has never answered.

    Example:
        forecast = paceline.eta(limiter, {"openai/gpt-6-luna": [{"input_tokens": 1_200, "output_tokens": 300}] * 100})
        print(f"{forecast.total_s:.0f} s, and {forecast.binds['openai/gpt-6-luna']} binds")
    """
    replay, stages = _Replay(limiter.pacer), dict[str, _Stage]()
    for name, costs in work.items():
        own_s = latency_s.get(name, 0.0) if isinstance(latency_s, Mapping) else latency_s
        if not 0 <= own_s <= NEVER_S:
            raise QuotaError(f"latency_s of {name} is {own_s!r}: it must be from 0 s to ten years")
        scheduler = limiter.pacer.pools.scheduler(name)
        stages[name] = replay.add(scheduler, round(own_s * NS), _rows(scheduler, costs))
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
    talk: _Talk | None = None
    held: list[tuple[_Stage, Reservation]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Talk:
    """A conversation: the costs of its further turns."""

    costs: Iterator[Mapping[str, float]]
    think_ns: int
    first: bool
    """Whether its follow-ups go before new requests."""


_Row = tuple[Mapping[str, float], _Talk | None]
"""The cost of a request, and the conversation that it begins."""


def _rows(scheduler: Scheduler, work: Iterable[Mapping[str, float]] | Conversations) -> Iterator[_Row]:
    if not isinstance(work, Conversations):
        yield from ((cost, None) for cost in work)
        return
    first, units = (
        scheduler.prompt_cache is not None and work.cached >= ORDERED_FROM,
        scheduler.pool.ledger.entries.units,
    )
    for _ in range(work.agents):
        turns = work.costs(scheduler.pool.name)
        costs = ({unit: amount for unit, amount in turn.items() if unit in units} for turn in turns)
        if (cost := next(costs, None)) is not None:
            yield cost, _Talk(costs, round(work.think_s * NS), first)


class _Line:
    """The requests before a stage: its work, or those that the stage before granted.

    Attributes:
        cached: The follow-ups that go first.
        waiting: The requests that go then.
        work: Those that go after them.
        late: The follow-ups that go after all of these, in the order of their arrival.
    """

    def __init__(self) -> None:
        self.cached, self.waiting, self.late = deque[_Request](), deque[_Request](), deque[_Request]()
        self.work: Iterator[_Request] = iter(())

    def next(self) -> deque[_Request]:
        """The requests whose first one is the next to go; empty if there is none."""
        if not (self.cached or self.waiting) and (request := next(self.work, None)) is not None:
            self.waiting.append(request)
        return self.cached or self.waiting or self.late


class _Stage:
    """A copy of the ledger of a scheduler, and the requests before it."""

    def __init__(self, scheduler: Scheduler, now_ns: int, latency_ns: int) -> None:
        self.latency_ns = latency_ns
        self.further: list[_Stage] = []
        self.line = _Line()
        self.wake_ns, self.last_ns, self.waits_ns = FAR_NS, now_ns, dict[str, int]()
        self._blocked: tuple[_Stage, str, int] | None = None  # the stage of the blocked request, the quota, since when
        if (lost := scheduler.refresh()) is not None:
            raise StoreError(f"{scheduler.pool.name}: {lost.reason}")
        scheduler.read(partial(self._copy, scheduler.pool))

    def _copy(self, pool: Pool, now_ns: int) -> None:
        live = pool.ledger
        self.name, self.stopped = pool.name, pool.stopped is not None
        self.ledger = Ledger([], now_ns, headroom_s=live.headroom_s, ttl_s=live.ttl_ns / NS, gentle=live.gentle)
        for entry in live.entries:
            meter = deepcopy(entry.meter)
            if isinstance(meter, RateMeter):
                meter.rate.hold()
            self.ledger.entries.append(entry.with_meter(meter))
        self.ledger.pause.until_ns = max(live.pause.until_ns, now_ns + pool.cool_down_ns(now_ns))
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
        return _Request(self, {}, amounts, held=[(self, reservation)])

    def request(self, given: Mapping[str, float], talk: _Talk | None) -> _Request:
        """A request of this cost."""
        cost = {REQUESTS: 1.0, **given}
        check_cost(cost, self.ledger.entries.units)
        if TOKENS in cost:
            split_tokens(self.name, cost, self.ledger.entries.units, self.ledger.entries.units)
        return _Request(self, cost, self.ledger.amounts(cost), talk)

    def pump(self, now_ns: int) -> Iterator[_Request]:
        """Yield the requests that are granted now; ``wake_ns`` is when the next one may go."""
        if self._blocked is not None:
            stage, quota, since_ns = self._blocked
            stage.waits_ns[quota] = stage.waits_ns.get(quota, 0) + now_ns - since_ns
            self._blocked = None
        while not self.stopped and (line := self.line.next()):
            request = line[0]
            amounts = request.amounts if request.stage is self else self.ledger.amounts(request.cost)
            decision = self.ledger.reserve(now_ns, request.cost, amounts)
            if isinstance(decision, NeverFits):
                raise NeverFitsError(self.name, decision.unit, decision.cost, decision.most)
            if not isinstance(decision, Reservation):
                own = request.stage is self
                self._blocked = request.stage, decision.quota if own else f"{decision.quota} of {self.name}", now_ns
                self.wake_ns = decision.at_ns
                return
            line.popleft()
            request.held.append((self, decision))
            yield request
        self.wake_ns = FAR_NS

    def took_s(self, start_ns: int) -> float:
        """Seconds from ``start_ns`` until the last answer; infinite for never."""
        return math.inf if self.line.next() else (self.last_ns - start_ns) / NS

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
        self._events: list[tuple[int, int, Callable[[int], None]]] = []
        self._number = count().__next__

    def add(self, scheduler: Scheduler, latency_ns: int, rows: Iterable[_Row] = ()) -> _Stage:
        """The stage of ``scheduler``, with ``rows`` as further work."""
        stage = self.stages.get(scheduler)
        if stage is None:
            stage = self.stages[scheduler] = _Stage(scheduler, self.start_ns, latency_ns)
            rows = chain(((cost, None) for cost in stage.ahead), rows)
            stage.further = [self.add(other, latency_ns) for other in scheduler.further]  # joint limits, shared slots
            for at_ns, request in stage.landing(self.start_ns):
                self._at(at_ns, partial(self._end, request))
        stage.line.work = chain(stage.line.work, (self._request(stage, *row) for row in rows))
        return stage

    def add_rivals(self, pacer: Pacer) -> None:
        """Add the pools whose requests wait for the same slots or joint limits as the work."""
        latency_ns = max((stage.latency_ns for stage in self.stages.values()), default=0)
        for scheduler in pacer.pools.in_use:
            if scheduler not in self.stages and any(further in self.stages for further in scheduler.further):
                self.add(scheduler, latency_ns)

    def _request(self, stage: _Stage, cost: Mapping[str, float], talk: _Talk | None) -> _Request:
        """A further request; a replay has no more than :data:`REQUESTS_MAX`."""
        self._left -= 1
        if self._left < 0:
            raise QuotaError(f"more than {REQUESTS_MAX:,} requests: forecast a part of them, and scale the result")
        return stage.request(cost, talk)

    def _at(self, at_ns: int, event: Callable[[int], None]) -> None:
        """Let ``event`` happen then."""
        heapq.heappush(self._events, (at_ns, self._number(), event))

    def run(self) -> None:
        """Replay until all requests are answered, or none can be granted any more."""
        for stage in list(self.stages.values()):
            self._pump(self.start_ns, stage)
        while self._events:
            now_ns, _, event = heapq.heappop(self._events)
            if now_ns - self.start_ns > NEVER_S * NS:
                return
            event(now_ns)

    def _end(self, request: _Request, now_ns: int) -> None:
        """A request is answered."""
        request.stage.last_ns = now_ns
        talk = request.talk
        if talk is not None and (cost := next(talk.costs, None)) is not None:
            line = request.stage.line.cached if talk.first else request.stage.line.late
            self._at(now_ns + talk.think_ns, partial(self._follow, line, self._request(request.stage, cost, talk)))
        for stage, reservation in request.held:
            stage.ledger.settle(now_ns, reservation, None)
            self._pump(now_ns, stage)

    def _follow(self, line: deque[_Request], request: _Request, now_ns: int) -> None:
        """An agent has thought, and makes a follow-up."""
        line.append(request)
        self._pump(now_ns, request.stage)

    def _wake(self, stage: _Stage, now_ns: int) -> None:
        if stage.wake_ns <= now_ns:  # otherwise it was pumped meanwhile
            self._pump(now_ns, stage)

    def _pump(self, now_ns: int, stage: _Stage) -> None:
        before_ns = stage.wake_ns
        for request in stage.pump(now_ns):
            passed = len(request.held)
            if passed <= len(request.stage.further):
                following = request.stage.further[passed - 1]
                following.line.waiting.append(request)
                if len(following.line.waiting) == 1:
                    self._pump(now_ns, following)
            else:
                self._at(now_ns + request.stage.latency_ns, partial(self._end, request))
        if stage.wake_ns < FAR_NS and (stage.wake_ns != before_ns or before_ns <= now_ns):
            self._at(stage.wake_ns, partial(self._wake, stage))
