"""What work will take under given limits: the time, what binds, the waits, the use of each quota, the price.

    work = read_workload("papers.toml")
    plan(work, {"quotas": {"arcee": "200 requests/min", "pony": "100 requests/min"}}).seconds

The work runs through a simulation (:mod:`paceline.planner.simulation`) with a limiter of these settings, before a provider that
enforces the same limits, or the limits of the work's ``provider`` settings.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from paceline.core.quota import REQUESTS, Cost, Quota
from paceline.core.results import SettingsError, SourceKind
from paceline.limiter.limiter import Limiter
from paceline.planner.forecast import LATENCY
from paceline.planner.simulation import Process, Sent, Simulation
from paceline.planner.workload import Item, Work
from paceline.providers.base import Usage
from paceline.providers.prices import Prices
from paceline.providers.registry import is_provider
from paceline.testing.clock import START_S

BINS = 60
"""How many values a timeline has."""

STARTS_MAX = 10_000
"""How many starts of items are kept."""

HARDLY = 0.05
"""A wait in less than this part of the time binds nothing."""

END_MAX_S = 400 * 86_400.0
"""A plan of more than so many seconds ends there, as endless."""


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """The use of one quota.

    Attributes:
        quota: The quota.
        used: The amount that the provider charged.
        share: The same as a share of the amount that the quota allows during the plan: its burst, and its rate.
        timeline: The share of the rate in each of ``BINS`` equal parts of that time.
    """

    quota: Quota
    used: float
    share: float
    timeline: Sequence[float]


@dataclass(frozen=True, slots=True)
class PoolUse:
    """The use of one pool.

    Attributes:
        calls: The answered calls.
        quotas: The use of its quotas that have a period.
        binds: The quota for which its requests waited longest, with ``of NAME`` if it is of another pool that they pass;
            ``latency`` if they hardly waited.
        bound_s: For how many seconds requests waited for it.
    """

    calls: int
    quotas: Sequence[QuotaUse]
    binds: str
    bound_s: float


@dataclass(frozen=True, slots=True)
class LaneWaits:
    """The waits of a lane in the queue, in seconds."""

    calls: int
    median_s: float
    p95_s: float
    longest_s: float


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns of conversations, whose prompts the provider caches.

    Attributes:
        an_hour: The turns in an hour.
        cached: The part of all input that was read from the cache.
        again: The follow-ups of whose prompts less than half was read: the rest was written once more.
        carried: How many such conversations fit the limits at the same time without a wait, if each follow-up reads
            all of its earlier prompt from the cache; ``None`` if no limit binds.
    """

    an_hour: float
    cached: float
    again: int
    carried: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """What became of the items of the work.

    Attributes:
        items: The finished ones, of those that were simulated.
        items_per_min: Those that were finished in a minute, of those that were simulated.
        items_s: The median and the 95th percentile of the time that a finished item took, in seconds; ``None`` without any.
        starts_s: When each item started its first call, the first ``STARTS_MAX``.
    """

    items: int
    items_per_min: float
    items_s: tuple[float, float] | None = None
    starts_s: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Items):
    """What the work will take: its items, and its calls.

    Attributes:
        seconds: Until the last answer, or until the end that the work names; infinite for never.
        calls: The answered calls.
        failed: The reasons for calls without an answer, with their numbers.
        refused: The refusals by the provider.
        pools: The use of each pool, by its name.
        lanes: The waits, by lane.
        usd: The price of the answers in US dollars; ``None`` if prices aren't known.
        turns: The turns of conversations; ``None`` without any.
        extended: Whether the time beyond the simulated calls is extended at their speed.
        assumed: The sources of assumed limits, by pool: you named neither limits nor a tier.
    """

    seconds: float
    calls: int
    failed: Mapping[str, int]
    refused: int
    pools: Mapping[str, PoolUse]
    lanes: Mapping[str, LaneWaits]
    usd: float | None
    turns: Turns | None = None
    extended: bool = False
    assumed: Mapping[str, str] = field(default_factory=dict)

    @property
    def binds(self) -> str:
        """The quota that limits the work: requests waited longest for it."""
        name = max(self.pools, key=lambda name: self.pools[name].bound_s, default="")
        bound = [one.binds for one in self.pools.values() if one.binds != LATENCY]
        return f"{name}: {self.pools[name].binds}" if bound else LATENCY


def plan(work: Work, options: Mapping[str, Any], *, seed: int = 0, start_s: float = START_S) -> Plan:
    """Simulate ``work`` with a limiter of these ``options``, the arguments of :class:`~paceline.Limiter`.

    Args:
        work: The work; its items are taken.
        options: The arguments of the limiter.
        seed: Another seed gives other latencies.
        start_s: When the work starts, in seconds since the Unix epoch: a day's quota restarts at midnight.

    Raises:
        SettingsError: A model has no limits, or an option is invalid.
        SettingsError: A setting of the provider is invalid.
    """
    options = {**options, "lanes": (*options.get("lanes", ()), *work.lanes)}
    limits = Limiter(**options).limits
    known = {model: limits.resolve(model) for model in work.models}
    true = {found.pool: found.quotas for found in known.values()}
    options["quotas"] = {**(options.get("quotas") or {}), **true}  # a plan takes published limits for the true ones
    settings = dict(work.provider)
    stated = {known[name].pool if name in known else name: text for name, text in settings.pop("limits", {}).items()}
    # Headers would confirm the limits: they are left out, which saves a sixth of the time.
    simulation = Simulation({**true, **stated}, seed=seed, start_s=start_s, **{"headers": bool(stated), **settings})
    made = _Planner(simulation, simulation.process(**options), work, options.get("prices") or {}).run()
    kinds = [(found.pool, source) for found in known.values() for source in found.sources]
    return replace(made, assumed={pool: str(source) for pool, source in kinds if source.kind is SourceKind.ASSUMED})


class _Planner:
    """One run of a simulation, and what is counted in it."""

    def __init__(self, simulation: Simulation, process: Process, work: Work, prices: Mapping[str, Any]) -> None:
        self._simulation, self._process, self._work, self._prices = simulation, process, work, prices
        self._used: dict[str, dict[str, dict[int, float]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(float))
        )
        self._binds: dict[str, Counter[str]] = defaultdict(Counter)  # the seconds for which each of them has bound
        self._looked: dict[str, tuple[int, str]] = {}
        self._starts, self._items_s = list[float](), list[float]()
        self._end_s = math.inf

    def run(self) -> Plan:
        """Simulate, and count."""
        self._simulation.network.on_admit = self._admitted
        self._simulation.run(self._main)
        return self._plan()

    async def _main(self) -> None:
        most_s = self._work.duration_s or END_MAX_S
        items, tasks = iter(self._work.items), self._work.workers
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as group:
                # By the clock: with a timer of its own the loop would look after each of the clock's.
                self._simulation.time.after(most_s, partial(limit.reschedule, -math.inf))
                if tasks is None:
                    for item in items:
                        await self._arrive(item)
                        group.create_task(self._item(item))
                else:
                    for _ in range(tasks):
                        group.create_task(self._worker(items))
            self._end_s = self._simulation.now_s
            return
        self._end_s = self._work.duration_s or math.inf

    async def _worker(self, items: Iterator[Item]) -> None:
        for item in items:
            await self._arrive(item)
            await self._item(item)

    async def _arrive(self, item: Item) -> None:
        """Wait for the arrival of an item."""
        if item.arrives_s and (wait_s := item.arrives_s - self._simulation.now_s) > 0:
            await self._simulation.time.sleep(wait_s)

    async def _item(self, item: Item) -> None:
        time = self._simulation.time
        began_s = time.now_s
        for number, stage in enumerate(item.stages):
            if after_s := max([call.after_s for call in stage]):
                await time.sleep(after_s)
            if len(stage) == 1:
                results = [await self._process.send(stage[0])]
            else:
                results = await asyncio.gather(*map(self._process.send, stage))
            if not number and len(self._starts) < STARTS_MAX:
                self._starts.append(round(min([one.arrived_s + one.waited_s for one in results]), 3))
            for one in results:
                if one.error is not None:
                    return
        self._items_s.append(time.now_s - began_s)

    def _admitted(self, pool: str, held: Cost) -> None:
        second = int(self._simulation.time.now_s)
        used = self._used[pool]
        for unit, amount in held.items():
            used[unit][second] += amount
        since, binding = self._looked.get(pool, (-1, LATENCY))
        if since < second:
            if binding != LATENCY:
                self._binds[pool][binding] += second - since
            self._looked[pool] = second, self._binding(pool)

    def _binding(self, pool: str) -> str:
        """What the next request waits for: a quota of its pool, else of one that it passes, too."""
        pacer = self._process.limiter.pacer
        own = pacer.pools.scheduler(pool)
        of_lanes = (one.rates for one in pacer.allowances.by_lane.values() if one.rates is not None)
        for each in (own, *own.further, *of_lanes):
            if (quota := each.pool.binds(each.now_ns())) is not None:
                return quota if each is own else f"{quota} of {each.pool.name}"
        return LATENCY

    def _plan(self) -> Plan:
        sent, end_s = self._simulation.sent, self._end_s
        answered = [one for one in sent if one.error is None]
        calls = Counter(one.pool for one in answered)
        counted_s = min(end_s, self._simulation.now_s)
        if sent and not answered:
            end_s = math.inf
        pools = {name: self._pool(name, number, counted_s) for name, number in calls.items()}
        if extended := self._work.left_out > 0 and math.isfinite(end_s):
            end_s += self._work.left_out / _steady_rate(answered, end_s)
        refused, done = self._simulation.world.total.refused, len(self._items_s)
        return Plan(
            seconds=end_s, extended=extended,
            items=done, items_per_min=done * 60 / counted_s if counted_s else 0.0,
            items_s=_middle(self._items_s) if done else None, starts_s=sorted(self._starts),
            calls=len(answered), failed=Counter(one.error for one in sent if one.error is not None),
            refused=sum(number for kind, number in refused.items() if kind in ("rate", "growth")),
            pools=pools, lanes=_lanes(answered), turns=self._turns(answered, counted_s), usd=_usd(answered, self._prices),
        )  # fmt: skip

    def _turns(self, answered: Sequence[Sent], counted_s: float) -> Turns | None:
        turns = [one for one in answered if one.request.parts and one.usage is not None]
        if not turns:
            return None
        read, asked, again = 0, 0, 0
        for one in turns:
            assert one.usage is not None
            cached, size = one.usage.cached_tokens, one.usage.input_tokens
            read, asked = read + cached, asked + size
            again += cached < size / 2 <= size - one.request.parts[-1].tokens
        return Turns(len(turns) * 3_600 / counted_s, read / asked, again, self._carried(turns))

    def _carried(self, turns: Sequence[Sent]) -> float | None:
        """How many agents the limits let work at the same time, if each turn pays for the last part of its prompt only."""
        costs: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        busy_s: dict[str, float] = defaultdict(float)
        for one in turns:
            request, route = one.request, self._process.route(one.request.model)
            usage = Usage(request.input_tokens, request.output_tokens, request.input_tokens - request.parts[-1].tokens)
            for unit, amount in route.provider.charged(route.sized(request).call, usage).items():
                costs[one.pool][unit] += amount
            busy_s[one.pool] += one.ended_s - one.arrived_s - one.waited_s + request.after_s
        return min(
            (
                meter.quota.rate * busy_s[pool] / cost
                for pool, charged in costs.items()
                for meter in self._process.limiter.pacer.pools.scheduler(pool).pool.ledger.meters
                if meter.quota.period_s and (cost := charged.get(meter.quota.unit, 0.0))
            ),
            default=None,
        )

    def _pool(self, name: str, calls: int, end_s: float) -> PoolUse:
        ledger, used = self._process.limiter.pacer.pools.scheduler(name).pool.ledger, self._used[name]
        # A unit of the user's own is charged once by each request.
        own = [(m.quota, used.get(m.quota.unit) or used[REQUESTS]) for m in ledger.meters if m.quota.period_s]
        quotas = [_use(quota, amounts, end_s) for quota, amounts in own]
        found = max(self._binds[name].items(), key=lambda bound: bound[1], default=(LATENCY, 0))
        return PoolUse(calls, quotas, found[0] if found[1] > HARDLY * end_s else LATENCY, found[1])


def _use(quota: Quota, used: Mapping[int, float], end_s: float) -> QuotaUse:
    width_s, timeline = max(end_s, 1.0) / BINS, [0.0] * BINS
    for second, amount in used.items():
        timeline[min(int(second / width_s), BINS - 1)] += amount
    total = sum(used.values())
    allowed = quota.burst + quota.rate * end_s
    return QuotaUse(quota, total, total / allowed, [part / (quota.rate * width_s) for part in timeline])


def _steady_rate(answered: Sequence[Sent], end_s: float) -> float:
    """Calls a second in the second half: after the burst of the start."""
    ends = sorted(one.ended_s for one in answered)
    half = len(ends) // 2
    return (len(ends) - half) / max(end_s - ends[half], 1e-9) if ends else math.inf


def _middle(seconds: Sequence[float]) -> tuple[float, float]:
    """The median and the 95th percentile."""
    own = sorted(seconds)
    return own[len(own) // 2], own[len(own) * 95 // 100]


def _lanes(answered: Sequence[Sent]) -> dict[str, LaneWaits]:
    by_lane: dict[str, list[float]] = defaultdict(list)
    for one in answered:
        by_lane[one.request.lane or "default"].append(one.waited_s)
    return {lane: LaneWaits(len(waits), *_middle(waits), max(waits)) for lane, waits in by_lane.items()}


def _usd(answered: Sequence[Sent], given: Mapping[str, Any]) -> float | None:
    """The price of all answers; ``None`` if the price of a model is not known, or genai-prices is not installed."""
    try:
        total, prices = 0.0, Prices(given)
    except SettingsError:
        return None if answered else 0.0
    named = {key: _named(*key) for key in {(one.pool, one.request.model) for one in answered}}
    for one in answered:
        request = one.request
        usage = one.usage or Usage(request.input_tokens, request.output_tokens)
        price = prices.find(*named[one.pool, request.model], input_tokens=usage.input_tokens)
        if price is None:
            return None
        total += price.of(usage)
    return total


def _named(pool: str, model: str) -> tuple[str, str]:
    """The provider and the model that prices are known by."""
    provider = pool.partition("/")[0]
    known = "/" in pool and is_provider(provider)
    return (provider, model.removeprefix(f"{provider}/")) if known else ("", pool)
