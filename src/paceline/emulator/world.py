"""An emulated provider without its HTTP side: models, quotas, faults and the tally. No clock, no IO.

    world = World(Settings(limits={"gpt-6-luna": "500 requests/min,400k tokens/min"}), now=0.0)
    answer = world.admit(now, "gpt-6-luna", input_tokens=1_200, max_output_tokens=300)   # Admitted | Refused
    world.finish(now + answer.duration_s, answer)

Time is an argument (float seconds), so a test can run an hour in milliseconds. Not thread-safe.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from random import Random
from typing import Any, NamedTuple

from paceline.emulator.prompt_cache import Hit, ServerCache, ServerPrompt
from paceline.emulator.rules import BucketRule, CountingRule, SlidingRule, SlotsRule, WindowRule
from paceline.emulator.settings import Limit, LimitsLike, Settings, SettingsError, parse_limits
from paceline.emulator.tally import AnswerCounts, Count, RateTimeline, Supply, slowest

HELD = ("tokens", "project_tokens")
"""Units that are charged at admission with the most output that a request may produce."""

INPUT = ("input_tokens", *HELD)
"""Units that count the input."""

MOST_MODELS = 1_000
"""Models beyond the named ones that ``*`` gives supplies of their own."""

_NOTHING = Hit()


SLOW_FACTOR = 5.0
"""How many times as long a request with the fault ``slow`` takes."""

LONG_TIMES = 20
"""How many times the true wait a refusal states with the setting ``retry_after`` at ``long``."""


@dataclass(slots=True)
class Admitted:
    """An admitted request; pass it to :meth:`World.finish`.

    Attributes:
        model: The requested model.
        input_tokens: The input, as the server counts it.
        output_tokens: The output that the model will produce.
        held_output: The output that a ``tokens`` quota was charged at admission, if its unused part is returned at the end.
        at_s: The time of admission.
        first_s: Seconds from admission to the first piece of the answer.
        duration_s: Seconds from admission to the end of the answer.
        fault: ``500`` or ``drop`` when that is the answer, ``stream`` when the answer breaks off in the middle.
        produced: The output that has been sent.
        prompt: The prompt as the cache sees it; ``None`` where nothing is cached.
        cache: What was read from the cache, and is written to it.
        stage: ``begun`` once the answer has begun, ``finished`` once the request has ended.
    """

    model: str
    input_tokens: int
    output_tokens: int
    held_output: int | None = None
    at_s: float = 0.0
    first_s: float = 0.0
    duration_s: float = 0.0
    fault: str | None = None
    produced: int = 0
    prompt: ServerPrompt | None = None
    cache: Hit = _NOTHING
    stage: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """A refused request.

    Attributes:
        kind: ``rate``, ``growth``, ``capacity`` (429, 503, 529), ``money``, ``too_large``, ``auth``, ``unknown_model``
            or ``invalid``.
        model: The requested model.
        pool: The name of the limits that it would have been charged to.
        unit: The unit of the quota that refused.
        period_s: That quota's period.
        limit: That quota's amount.
        used: Its used part, as the server prints it; may exceed the limit.
        requested: The charge that the request would have caused.
        wait_s: Seconds until it would fit, as the server states it; ``inf`` for never, 0 when the server does not say.
        status: The fault's HTTP status, for ``capacity``.
        detail: What was wrong with the request, for ``invalid``.
    """

    kind: str
    model: str = ""
    pool: str = ""
    unit: str = ""
    period_s: float = 0.0
    limit: float = 0.0
    used: float = 0.0
    requested: float = 0.0
    wait_s: float = 0.0
    status: int = 0
    detail: str = ""


class Level(NamedTuple):
    """The state of one quota, as headers show it."""

    unit: str
    period_s: float
    limit: float
    remaining: float
    reset_s: float


class Counting(NamedTuple):
    """How a provider counts a request.

    Attributes:
        holds_output: Whether a quota of ``tokens`` counts output, and holds the most that a request may produce.
        settles: Whether the provider returns the unused part of the charge.
        counts_cached: Whether the provider's quotas count input that is read from its cache.
        holds_cached: Whether they count it at admission nevertheless, until the answer begins.
    """

    holds_output: bool = True
    settles: bool = False
    counts_cached: bool = True
    holds_cached: bool = False


AS_USUAL = Counting()


@dataclass(slots=True)
class _Pool:
    name: str
    supplies: list[Supply]
    default: bool = False  # made for "*"
    count: Count = field(default_factory=Count)


class World:
    """The supplies of all models, and the tally.

    Args:
        settings: The provider's properties.
        now: The start in seconds; all later times are on the same clock. Windows restart at multiples of their period
            on it.
    """

    def __init__(self, settings: Settings, now: float = 0.0) -> None:
        self.settings = settings
        self.start_s = now
        self.total, self.timeline, self.answers = Count(), RateTimeline(now), AnswerCounts()
        self._random = Random(settings.seed)
        self._pools: dict[str, _Pool] = {}  # by model: several models may share one
        self._cache = ServerCache(settings.cache_life_s, settings.cache_least_tokens) if settings.cache else None
        self.cached: Counter[str] = Counter()
        self._others = 0.0
        self._due = _schedule(settings, now)
        self._limits = parse_limits(settings.limits)
        for name, limits in self._limits.items():
            if name != "*":
                self._add_pool(now, name, limits)
        self._catch_up(now)

    # --- admission ---------------------------------------------------------------------------------------------

    def admit(
        self,
        now: float,
        model: str,
        input_tokens: int,
        max_output_tokens: int | None = None,
        *,
        counting: Counting = AS_USUAL,
        prompt: ServerPrompt | None = None,
    ) -> Admitted | Refused:
        """Admit a request and charge all quotas of its model, or none.

        Args:
            now: The time in seconds.
            model: The requested model.
            input_tokens: The input, as the server counts it.
            max_output_tokens: The most output (times the number of answers), if the request states it. A ``tokens``
                quota is charged input plus this, an ``output_tokens`` quota only the produced output.
            counting: How this provider counts it.
            prompt: The prompt as the cache sees it, if it can be cached.
        """
        self._catch_up(now)
        pool = self._pools.get(model) or self._new_pool(now, model)
        if (closed := self._closed(model, pool)) is not None:
            return self.refuse(now, closed, pool)
        assert pool is not None
        fault = self._fault() if self.settings.faults else None
        if (unserved := self._unserved(pool, model, fault)) is not None:
            return self.refuse(now, unserved, pool)
        held_output = max_output_tokens or 0 if counting.holds_output else 0
        hit = self._found(now, prompt)
        free = 0 if counting.counts_cached else hit.read
        returned = free if counting.holds_cached or self.settings.cache_held else 0
        costs = [_cost(supply.unit, input_tokens - free + returned, held_output) for supply in pool.supplies]
        refused = self._first_refusal(now, pool, model, costs)
        if refused is not None:
            return self.refuse(now, refused, pool)
        settles = counting.settles if self.settings.settle == "provider" else self.settings.settle == "actual"
        admitted = Admitted(model, input_tokens, 0, held_output if settles else None, now)
        admitted.prompt, admitted.cache = prompt, hit._replace(returned=returned)
        self._charge(now, pool, admitted, costs)
        self._plan(admitted, max_output_tokens, fault)
        self._count_fault(pool, fault)
        return admitted

    def _closed(self, model: str, pool: _Pool | None) -> Refused | None:
        """The refusal of all requests to a model."""
        if pool is None:
            return Refused("unknown_model", model)
        if self.settings.money_after is not None and self.total.admitted >= self.settings.money_after:
            return Refused("money", model, pool.name)
        return None

    def _charge(self, now: float, pool: _Pool, admitted: Admitted, costs: list[float]) -> None:
        """Charge all quotas, read what the cache has, and count the request."""
        for i, supply in enumerate(pool.supplies):
            supply.admit(now, costs[i])
        pool.count.admit(now)
        self.total.admit(now)
        self.timeline.add(now, 0)
        if self._cache is not None and admitted.prompt is not None:
            self._cache.refresh(now, admitted.prompt, admitted.cache)
            read, written, *_ = admitted.cache
            self.cached.update(input_tokens=admitted.input_tokens, read_tokens=read, written_tokens=written)

    def _unserved(self, pool: _Pool, model: str, fault: str | None) -> Refused | None:
        """The refusal of a request that meets a ``fault``; ``None`` for one on which its quotas decide."""
        if fault in ("429", "503", "529"):
            self._count_fault(pool, fault)
            return Refused("capacity", model, pool.name, status=int(fault))
        return Refused("growth", model, pool.name, wait_s=1.0) if fault == "growth" else None

    def _found(self, now: float, prompt: ServerPrompt | None) -> Hit:
        """What the cache has of a prompt."""
        if self._cache is None or prompt is None:
            return _NOTHING
        misses = self.settings.cache_misses
        return self._cache.find(now, prompt, miss=misses > 0 and self._random.random() < misses)

    def _first_refusal(self, now: float, pool: _Pool, model: str, costs: list[float]) -> Refused | None:
        refusing: Supply | None = None
        longest, asked = -1.0, 0.0
        for i, supply in enumerate(pool.supplies):
            rule, cost = supply.rule, costs[i]
            fits = rule.remaining(now) > 0 if supply.unit == "output_tokens" else rule.fits(now, cost)
            if not fits and (wait := rule.wait(now, cost or 1.0)) > longest:
                refusing, longest, asked = supply, wait, cost
        if refusing is None:
            return None
        rule = refusing.rule
        used = rule.limit - rule.remaining(now)
        kind = "too_large" if math.isinf(longest) else "rate"
        wait_s = longest if kind == "too_large" else self._stated_s(now, pool, max(longest, 0.0))
        return Refused(kind, model, pool.name, refusing.unit, refusing.period_s, rule.limit, used, asked, wait_s)

    def _stated_s(self, now: float, pool: _Pool, true_s: float) -> float:
        """The wait that a refusal for rate states."""
        stated = self.settings.retry_after
        if stated == "full":
            return max(supply.rule.reset(now) for supply in pool.supplies)
        if stated == "long":
            return LONG_TIMES * true_s
        return true_s if isinstance(stated, str) else stated

    def refuse(self, now: float, refused: Refused, pool: _Pool | None = None) -> Refused:
        """Count a refusal, also one that was decided before admission (a wrong key, an invalid body)."""
        self.total.refused[refused.kind] += 1
        self.timeline.add(now, 1)
        if pool is not None:
            pool.count.refused[refused.kind] += 1
            if self.settings.failed_count and refused.kind != "money":
                for supply in pool.supplies:
                    if supply.unit == "requests":  # at most the remaining amount: refusals make no debt
                        supply.rule.charge(now, min(1.0, max(0.0, supply.rule.remaining(now))))
        return refused

    def _count_fault(self, pool: _Pool, fault: str | None) -> None:
        if fault is not None:
            pool.count.faults[fault] += 1
            self.total.faults[fault] += 1

    def _plan(self, admitted: Admitted, most: int | None, fault: str | None) -> None:
        """Draw the length of the output, the duration and the fault of a request."""
        settings, random = self.settings, self._random
        if fault in ("500", "drop"):
            admitted.fault = fault
        elif most != 0:
            admitted.fault = "stream" if fault == "stream" else None
            spread = settings.output_spread and random.uniform(-settings.output_spread, settings.output_spread)
            admitted.output_tokens = settings.output_of(most, spread)
        factor = settings.drawn(SLOW_FACTOR if fault == "slow" else 1.0, random)
        admitted.first_s = settings.latency_s * factor
        admitted.duration_s = admitted.first_s + settings.latency_per_token_s * factor * admitted.output_tokens

    # --- after admission ---------------------------------------------------------------------------------------

    def begin(self, now: float, admitted: Admitted) -> None:
        """The answer begins: what its request has written to the cache can be read. The second time does nothing."""
        if admitted.stage:
            return
        admitted.stage = "begun"
        self._catch_up(now)
        if self._cache is not None and admitted.prompt is not None:
            self._cache.write(admitted.at_s, admitted.prompt)
        if returned := admitted.cache.returned:
            for supply in self._pools[admitted.model].supplies:
                if supply.unit in INPUT:
                    supply.rule.give_back(now, returned, admitted.at_s)
                    supply.charged -= returned

    def produce(self, now: float, admitted: Admitted, tokens: int) -> None:
        """Charge output as it is sent, to the quotas that count it then."""
        self._catch_up(now)
        tokens = min(tokens, admitted.output_tokens - admitted.produced)
        admitted.produced += tokens
        for supply in self._pools[admitted.model].supplies:
            if supply.unit == "output_tokens" and tokens > 0:
                supply.charge(now, tokens)

    def finish(self, now: float, admitted: Admitted, output_tokens: int | None = None, *, gone: bool = False) -> None:
        """End a request: charge the rest of its output, settle, free its slot. The second time does nothing.

        Args:
            now: The time in seconds.
            admitted: The result of :meth:`admit`.
            output_tokens: The output if it differs from ``admitted.output_tokens``.
            gone: The client disconnected before the end: the rest of the output is not produced, and the request does
                not count as answered.
        """
        if admitted.stage == "finished":
            return
        if admitted.fault not in ("500", "drop"):
            self.begin(now, admitted)
        admitted.stage = "finished"
        if gone:
            admitted.fault, output_tokens = "gone", admitted.produced
        if output_tokens is not None:
            admitted.output_tokens = output_tokens
        self.produce(now, admitted, admitted.output_tokens - admitted.produced)
        pool = self._pools[admitted.model]
        for supply in pool.supplies:
            if supply.unit == "concurrency":
                supply.rule.give_back(now, 1, admitted.at_s)
            elif supply.unit in HELD and admitted.held_output is not None:
                unused = admitted.held_output - admitted.output_tokens
                supply.rule.give_back(now, unused, admitted.at_s)
                supply.charged -= unused
        for count in (pool.count, self.total):
            count.in_flight -= 1
            count.answered += admitted.fault is None
        if gone:
            self._count_fault(pool, "gone")

    # --- levels, limits, tally ------------------------------------------------------------------------------------

    def levels(self, now: float, model: str) -> list[Level]:
        """The quotas of a model as headers show them; empty for an unknown model."""
        self._catch_up(now)
        pool = self._pools.get(model)
        return [
            Level(a.unit, a.period_s, a.rule.limit, a.rule.remaining(now), a.rule.reset(now))
            for a in (pool.supplies if pool else ())
        ]

    def models(self) -> list[str]:
        """The models that have supplies."""
        return list(self._pools)

    def knows(self, model: str) -> bool:
        """Whether there are limits for a model."""
        return model in self._pools or "*" in self._limits

    def set_limits(self, now: float, limits: LimitsLike) -> None:
        """Change limits in mid-run. Quotas that remain keep their used amount; new ones start full.

        Raises:
            SettingsError: A limit is invalid.
        """
        for name, new in parse_limits(limits).items():
            self._limits[name] = new
            models = [model.strip() for model in name.split("|")]
            pools = [p for m, p in self._pools.items() if (p.default if name == "*" else m in models)]
            for pool in pools:
                pool.supplies = self._changed(now, pool.supplies, new)
                pool.default = name == "*"
            if not pools and name != "*":
                self._add_pool(now, name, new)

    def used(self, now: float) -> dict[str, Any]:
        """What is used of every rate, as JSON values: ``at_s``, and by pool the unit, the period and the amount."""
        used = {
            pool.name: [[a.unit, a.period_s, a.rule.limit - a.rule.remaining(now)] for a in pool.supplies if a.period_s]
            for pool in self._pools.values()
        }
        return {"at_s": now, "used": used}

    def resume(self, now: float, state: Mapping[str, Any]) -> None:
        """Continue, after the start, from what :meth:`used` returned in an earlier world; unknown pools are left out.

        Raises:
            SettingsError: ``state`` is not such a result.
        """
        try:
            before, by_pool = min(float(state["at_s"]), now), dict(state["used"])
            for name, limits in self._limits.items():
                first = name.partition("|")[0].strip()
                pool = self._pools.get(first)
                used = {(unit, period_s): float(amount) for unit, period_s, amount in by_pool.get(first, ())}
                for supply, limit in zip(pool.supplies if pool else (), limits, strict=False):
                    if amount := used.get((supply.unit, supply.period_s)):
                        rule = self._rule(before, limit)
                        rule.charge(before, amount)
                        rule.share_with(now, supply.rule.share)
                        supply.rule = rule
        except (KeyError, TypeError, ValueError):
            raise SettingsError("it is not a state that an emulator has written: remove the file") from None

    def tally(self) -> dict[str, Any]:
        """All counts as plain values: totals, ``pools``, ``timeline``, ``answers`` by custom id, and what the ``cache`` was used for.

        ``ideal_s`` is the shortest possible time from first to last admission: for the quota that binds, all charges
        less the amount available at first (one full burst), over the true rate. ``steady_s`` is the same with nothing
        available at first. The speeds are those divided by ``elapsed_s``; ``None`` where no request had to wait. A
        start shortly before a window's end can beat the ideal.
        """
        reports, charges = {}, dict[str, float]()
        ideals, steadies = [], []
        for name, pool in {pool.name: pool for pool in self._pools.values()}.items():
            own = {supply.unit: supply.charged for supply in pool.supplies}
            for unit, amount in own.items():
                charges[unit] = charges.get(unit, 0.0) + amount
            start = pool.count.first_s
            rated = [a for a in pool.supplies if a.period_s and start is not None]
            ideals.append(slowest(supply.ideal_s(start or 0.0) for supply in rated))
            steadies.append(slowest(supply.steady_s(start or 0.0) for supply in rated))
            reports[name] = pool.count.report(own, ideals[-1], steadies[-1])
        total = self.total.report(charges, slowest(ideals), slowest(steadies))
        cached = {"cache": dict(self.cached)} if self._cache is not None else {}
        return total | {"pools": reports, "timeline": self.timeline.rows(), "answers": self.answers.report(), **cached}

    # --- supplies ----------------------------------------------------------------------------------------------

    def _new_pool(self, now: float, model: str) -> _Pool | None:
        if "*" not in self._limits or len(self._pools) >= MOST_MODELS + len(self._limits):
            return None
        pool = self._pools[model] = _Pool(model, self._changed(now, [], self._limits["*"]), default=True)
        return pool

    def _add_pool(self, now: float, names: str, limits: tuple[Limit, ...]) -> None:
        models = [name.strip() for name in names.split("|")]
        pool = _Pool(models[0], self._changed(now, [], limits))
        self._pools.update(dict.fromkeys(models, pool))

    def _changed(self, now: float, old: list[Supply], limits: tuple[Limit, ...]) -> list[Supply]:
        by_quota = {(supply.unit, supply.period_s): supply for supply in old}
        supplies = []
        for limit in limits:
            supply = by_quota.get((limit.unit, limit.period_s))
            if supply is None:
                supply = Supply(limit.unit, limit.period_s, self._rule(now, limit), now)
                supply.rule.share_with(now, self._others)
            supply.rule.set_limit(now, limit.amount)
            supply.note_rate(now)
            supplies.append(supply)
        return supplies

    def _rule(self, now: float, limit: Limit) -> CountingRule:
        settings, name = self.settings, limit.rule or self.settings.rule
        if limit.unit == "concurrency":
            return SlotsRule(limit.amount)
        if name == "window":
            return WindowRule(limit.amount, limit.period_s, now, offset_s=settings.offset_s, full=settings.start_level)
        if name == "sliding":
            return SlidingRule(limit.amount, limit.period_s, now, full=settings.start_level)
        quantum_s = settings.quantum_s if name == "quantised" and limit.period_s <= 60 else 0.0
        return BucketRule(limit.amount, limit.period_s, now, quantum_s=quantum_s, full=settings.start_level)

    def _catch_up(self, now: float) -> None:
        """Apply the events that are due: the arrival of other users, changed limits and faults."""
        while self._due and self._due[0][0] <= now:
            at, change = self._due.popleft()
            if change is not None:
                self.set_limits(at, change.get("limits", {}))
                self.settings = replace(self.settings, faults=change.get("faults", self.settings.faults))
                continue
            self._others = self.settings.other_users
            for supply in {id(a): a for pool in self._pools.values() for a in pool.supplies}.values():
                supply.rule.share_with(at, self._others)
                supply.note_rate(at)

    def _fault(self) -> str | None:
        drawn = self._random.random()
        for kind, probability in self.settings.faults.items():
            drawn -= probability
            if drawn < 0:
                return kind
        return None


def _schedule(settings: Settings, start: float) -> deque[tuple[float, Mapping[str, Any] | None]]:
    """Events by time: changes, or ``None`` for the arrival of other users."""
    events: list[tuple[float, Mapping[str, Any] | None]] = [
        (start + change["at_s"], change) for change in settings.changes
    ]
    if settings.other_users:
        events.append((start + settings.other_users_from_s, None))
    return deque(sorted(events, key=itemgetter(0)))


def _cost(unit: str, input_tokens: int, output_tokens: int) -> float:
    """The charge to a quota at admission; an ``output_tokens`` quota is charged as output is produced."""
    if unit in INPUT:
        return input_tokens + (output_tokens if unit in HELD else 0)
    return 0 if unit == "output_tokens" else 1
