"""The status of a pool as JSON values, and why a request waits; durations in seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, TypedDict, cast

from paceline.core.budget import ALONE
from paceline.core.meters import UNKNOWN_NS, Bucket, Meter
from paceline.core.pool import Pool
from paceline.core.quota import CONCURRENCY, DAY_S, INPUT_TOKENS, NS, OUTPUT_TOKENS, REQUESTS, TOKENS, USD, Rule
from paceline.core.results import NOT_QUOTAS, public
from paceline.core.unstated.measured import RateMeter
from paceline.estimation.prefixes import PromptCache
from paceline.pacing.answers import AnswerStatus
from paceline.pacing.periods import REFILLED_DAY_S
from paceline.pacing.plans import PlanStatus, utc

_INITIALS = {REQUESTS: "r", TOKENS: "t", INPUT_TOKENS: "it", OUTPUT_TOKENS: "ot"}
_PERIODS = {60.0: "m", DAY_S: "d", REFILLED_DAY_S: "d"}

QUEUE_SHOWN = 50
"""How many waiters are shown; a queue may hold a million."""


@public
@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a request waits.

    Attributes:
        ahead: The number of requests that go before it.
        quota: What binds now: a quota in its notation, ``cool-down``, ``no answer`` (the requests in flight get none),
            ``queue`` (only the requests ahead), ``store`` (its answer is awaited) or ``store lost``.
        expected_wait_s: The wait from now on if all estimates are exact, in seconds; ``None`` when that is unknown,
            because a slot becomes free when another request ends.
    """

    ahead: int
    quota: str
    expected_wait_s: float | None


class QuotaStatus(TypedDict):
    """One quota of a pool: amounts in its unit, durations in seconds."""

    quota: Annotated[str, "Its notation, e.g. `500 requests/min`."]
    unit: str
    limit: float
    usable: Annotated[float, "The used share of the provider's limit."]
    remaining: Annotated[float, "What is left now."]
    reset_s: Annotated[float | None, "Seconds until it is full without further requests."]
    resets_at: Annotated[str | None, "When a window restarts, in UTC."]
    period_s: float
    burst: float
    rule: Annotated[str, {"enum": [rule.value for rule in Rule]}]
    learned: dict[str, Any]
    spent: Annotated[float, "Of dollars, without what the requests in flight reserve."]
    refused: Annotated[float, "The part of `spent` that is of refused attempts."]
    source: Annotated[str, "`given`, `published`, `assumed` or `learned`, with the table."]
    stated_ago_s: Annotated[float | None, "Seconds since the headers of an answer last stated it."]


class WaiterStatus(TypedDict):
    """One request that waits."""

    name: str | None
    lane: str
    waited_s: float
    expected_wait_s: float | None
    cost: dict[str, float]
    cached_tokens: Annotated[int, "The tokens of its prompt that the provider has in its cache."]
    lost_in_s: Annotated[float | None, "When the cache loses them, if they are at least half of the prompt."]


class Waited(TypedDict):
    """The waits of the granted requests of a lane.

    There is the number up to each of ``paceline.core.waits.BOUNDS_S``, the number above, and the sum.
    """

    counts: list[int]
    sum_s: float


class Waits(TypedDict):
    """The waits of all granted requests of a pool."""

    mean: float
    longest: float


class Compared(TypedDict):
    """The estimated amounts of a unit, and those that answers have reported."""

    estimated: float
    actual: float
    ratio: float | None


class PoolStatus(TypedDict):
    """The state of a pool: docs/status.md has the meaning of each field."""

    quotas: list[QuotaStatus]
    waiting: int
    lanes: Annotated[dict[str, int], "The number of waiting requests by lane."]
    lanes_waited_s: Annotated[dict[str, float], "The wait so far of the first request of each lane."]
    queue: Annotated[list[WaiterStatus], {"maxItems": QUEUE_SHOWN}]
    eta_s: Annotated[float | None, "Seconds until the last request that waits now is granted."]
    in_flight: int
    binds: Annotated[str | None, "What the next request waits for."]
    cool_down_s: float
    paused: Annotated[str | None, "Why it pauses, if it does."]
    stopped: str | None
    by_chance: Annotated[float | None, "The share of the attempts that the provider refuses at any rate."]
    counts: dict[str, int]
    finishes: Annotated[dict[str, int], "Responses by their end: complete, cut_off, declined, ..."]
    wait_s: Waits
    waits: dict[str, Waited]
    estimates: dict[str, Compared]
    cache: Annotated[dict[str, Any] | None, "The provider's prompt cache, as responses report it."]
    metrics: dict[str, float | str | None]
    store: NotRequired[dict[str, Any]]


class _Shared(TypedDict, total=False):
    """What a pool with a store has besides."""

    store: dict[str, Any]


class Status(TypedDict):
    """The state of a limiter.

    Its pools by name, the windows of plans, what came of its attempts, what this process has sent past all limiters,
    the data set.
    """

    pools: dict[str, PoolStatus]
    plans: list[PlanStatus]
    answers: list[AnswerStatus]
    unpaced: list[dict[str, Any]]
    facts: dict[str, Any]


REQUESTS_A_MINUTE_UNLIMITED = 6_000
"""What is taken for the requests a minute of a pool that does not limit them."""


def requests_per_minute(status: PoolStatus) -> int:
    """Requests a minute by the limits in the status of a pool, without quotas of more than a minute; at least 1."""
    quotas = [quota for quota in status["quotas"] if quota["unit"] == REQUESTS]
    rates = [quota["limit"] * 60 / quota["period_s"] for quota in quotas if 0 < quota["period_s"] <= 60]
    return max(1, int(min(rates, default=REQUESTS_A_MINUTE_UNLIMITED)))


def wait_until_s(at_ns: int, now_ns: int) -> float:
    """Seconds from ``now_ns`` until ``at_ns``; infinite for an unknown instant."""
    return math.inf if at_ns >= UNKNOWN_NS else max(at_ns - now_ns, 0) / NS


def report(pool: Pool, now_ns: int, shown: int = QUEUE_SHOWN, prompt_cache: PromptCache | None = None) -> PoolStatus:
    """The state of ``pool`` as JSON values; durations in seconds, waits rounded up.

    Args:
        pool: The pool.
        now_ns: The present.
        shown: The waiters in ``queue``.
        prompt_cache: What is known of the cache of its provider.
    """
    ledger = pool.ledger
    queue, eta_s = _queue(pool, now_ns, shown)
    quotas: list[QuotaStatus] = [
        {
            "quota": entry.name,
            "unit": entry.unit,
            "limit": m.quota.amount,
            "usable": entry.share,
            "remaining": rounded(entry.unit, m.level(now_ns)),
            "reset_s": _reset_s(m, now_ns),
            "resets_at": _resets_at(m, now_ns),
            "period_s": m.quota.period_s,
            "burst": m.quota.burst,
            "rule": m.quota.rule.value,
            "learned": _learned(m, ledger.headroom_s)
            | ({"stated_limit": entry.stated} if entry.stated is not None else {}),
            "spent": rounded(entry.unit, entry.spent - (ledger.in_use(i) if entry.unit == USD else 0.0)),
            "refused": rounded(entry.unit, entry.refused),
            "source": str(entry.source),
            "stated_ago_s": None if entry.read_ns is None else _ago_s(entry.read_ns, now_ns),
        }
        for i, entry in enumerate(ledger.entries)
        for m in [entry.meter]
        if m.is_known and entry.unit != ALONE
    ]
    return {
        "quotas": quotas,
        "waiting": pool.queue.length,
        "lanes": pool.queue.waiting(),
        "lanes_waited_s": {lane: _ago_s(at_ns, now_ns) for lane, at_ns in pool.queue.oldest_ns().items()},
        "queue": queue,
        "eta_s": eta_s,
        "in_flight": ledger.in_flight,
        "binds": pool.binds(now_ns),
        "cool_down_s": _up(pool.cool_down_ns(now_ns)),
        "paused": _paused(pool, now_ns),
        "stopped": pool.stopped.reason if pool.stopped else None,
        "by_chance": _by_chance(ledger.meters),
        "counts": {name: count for name, count in sorted(pool.record.counts.items()) if count},
        "finishes": dict(sorted(pool.record.finishes.items())),
        "wait_s": {
            "mean": round(pool.record.waits.total_ns / NS / max(pool.record.counts.get("granted", 0), 1), 3),
            "longest": round(pool.record.waits.longest_ns / NS, 3),
        },
        "waits": {lane: {"counts": row[:-1], "sum_s": row[-1] / NS} for lane, row in pool.record.waits.lanes.items()},
        "estimates": {
            unit: {
                "estimated": rounded(unit, estimated),
                "actual": rounded(unit, actual),
                "ratio": round(actual / estimated, 4) if estimated else None,
            }
            for unit, (estimated, actual) in sorted(pool.record.estimates.items())
            if unit not in (REQUESTS, CONCURRENCY)
        },
        "cache": None
        if prompt_cache is None or not prompt_cache.reported.is_cached
        else _cache(pool, prompt_cache, now_ns),
        "metrics": metrics(pool, quotas),
        **cast("_Shared", pool.capacity.status(now_ns)),
    }


def metrics(pool: Pool, quotas: Iterable[QuotaStatus]) -> dict[str, Any]:
    """The state of ``pool`` in one level, under the names of metrics: ``rpm_remaining``, ``rate_limit_429_count``.

    Of a quota per minute or day there are ``_limit``, ``_remaining``, ``_reset_s`` and, of a window, ``_resets_at``,
    after the name of the quota in a file of limits (``rpm``, ``tpd``); where two count a day, the lower amounts.
    """
    found: dict[str, Any] = {}
    for row in quotas:
        if row["unit"] in _INITIALS and row["period_s"] in _PERIODS:
            name = f"{_INITIALS[row['unit']]}p{_PERIODS[row['period_s']]}"
            for field, amount in (("limit", row["limit"]), ("remaining", row["remaining"])):
                found[f"{name}_{field}"] = min(amount, found.get(f"{name}_{field}", math.inf))
            found.setdefault(f"{name}_reset_s", row["reset_s"])
            if row["resets_at"] is not None:
                found[f"{name}_resets_at"] = row["resets_at"]
    counts, estimates = pool.record.counts, pool.record.estimates
    estimated, actual = estimates.get(TOKENS) or estimates.get(INPUT_TOKENS) or (0.0, 0.0)
    return found | {
        "in_flight": pool.ledger.in_flight,
        "rate_limit_429_count": counts.get("refused_rate", 0) + counts.get("refused_growth", 0),
        "rate_limit_wait_seconds": round(pool.record.waits.total_ns / NS, 3),
        "estimate_ratio": round(actual / estimated, 4) if estimated else None,
    }


def _paused(pool: Pool, now_ns: int) -> str | None:
    """Why a pool pauses, in words; ``None``: it does not."""
    if pool.cool_down_ns(now_ns) <= 0:
        return None
    words = NOT_QUOTAS.get(reason := pool.capacity.pause_reason)
    return f"for {reason}" if words is None else words.paused  # a window of a plan says itself what it is


def _cache(pool: Pool, prompt_cache: PromptCache, now_ns: int) -> dict[str, Any]:
    """What the answers have shown of the cache of the provider, and what the order by it has done."""
    overtook = pool.record.counts.get("overtook", 0)
    return prompt_cache.status(now_ns) | {"overtook": overtook, "saved_tokens": pool.record.saved_tokens}


def rounded(unit: str, amount: float) -> float:
    """``amount`` with the digits that are of use in ``unit``."""
    return round(amount, 6 if unit == USD else 3) + 0.0  # a little less than nothing is 0, and not -0


def _ago_s(at_ns: int, now_ns: int) -> float:
    """How long ago ``at_ns`` was, in seconds."""
    return round(max(now_ns - at_ns, 0) / NS, 3)


def _up(duration_ns: int) -> float:
    """A duration in seconds, rounded up to milliseconds; 0 for a negative one."""
    return max(math.ceil(duration_ns / NS * 1000) / 1000, 0.0)


def _queue(pool: Pool, now_ns: int, shown: int) -> tuple[list[WaiterStatus], float | None]:
    """The first waiters, in the order in which they go, each with its expected wait; and the wait of the last of all.

    A wait is ``None`` where it is unknown. Beyond the first ``QUEUE_SHOWN``, waiters count as much as these on average.
    """
    rows, ahead = list[WaiterStatus](), [0.0] * len(pool.ledger.meters)
    first = pool.queue.peek(QUEUE_SHOWN)
    for number, waiter in enumerate(first):
        if number < shown:
            at_ns, _ = pool.capacity.earliest(now_ns, waiter.amounts, ahead)
            rows.append(
                {
                    "name": waiter.name,
                    "lane": waiter.lane.name,
                    "waited_s": _ago_s(waiter.arrived_ns, now_ns),
                    "expected_wait_s": _up(at_ns - now_ns) if at_ns < UNKNOWN_NS else None,
                    "cost": dict(waiter.cost),
                    "cached_tokens": waiter.cached_tokens,
                    "lost_in_s": _up(waiter.lost_ns - now_ns) if waiter.lost_ns else None,
                }
            )
        ahead = [before + own for before, own in zip(ahead, waiter.amounts, strict=True)]
    if not first:
        return rows, 0.0
    mean = [amount / len(first) for amount in ahead]
    at_ns, _ = pool.capacity.earliest(now_ns, mean, [amount * (pool.queue.length - 1) for amount in mean])
    return rows, _up(at_ns - now_ns) if at_ns < UNKNOWN_NS else None


def _reset_s(m: Meter, now_ns: int) -> float | None:
    """Seconds until the quota is full without further requests; ``None`` for unknown."""
    # A bucket may hold more than its amount: it is full at its burst.
    if m.level(now_ns) >= m.quota.amount and m.quota.rule is not Rule.BUCKET:
        return 0.0
    full_ns = m.full_ns(now_ns)
    return None if full_ns is None else _up(full_ns - now_ns)


def _resets_at(m: Meter, now_ns: int) -> str | None:
    """When a window restarts, in UTC (``2026-11-22T08:00:00Z``); ``None`` for other rules."""
    restart_ns = m.restart_ns(now_ns)
    # Rounded up: at the told second it has restarted.
    return None if restart_ns is None else utc(-(-restart_ns // NS))


def _by_chance(meters: Iterable[Meter]) -> float | None:
    """The share of the attempts that the provider refuses at any rate; ``None`` if its refusals have other reasons."""
    share = max((m.rate.chance.share for m in meters if isinstance(m, RateMeter)), default=0.0)
    return round(share, 3) or None


def _learned(m: Meter, headroom_s: float) -> dict[str, Any]:
    """What was learned about a quota beyond its limit, as JSON values; ``headroom_s`` is the headroom at the start."""
    learned: dict[str, Any] = {}
    if isinstance(m, Bucket):
        if m.burst_cap < m.quota.burst:
            learned["holds"] = round(m.burst_cap, 3)
        if m.ceiling < 1:
            learned["ceiling"] = round(m.ceiling, 4)
        if m.headroom_s != headroom_s and m.quota.rule is not Rule.EVEN:
            learned["headroom_s"] = m.headroom_s
        if m.restarts_by_answers:
            learned["rule"] = "restarts at stated instants"
        elif m.is_spread_bucket:
            learned["rule"] = "no bucket: spread evenly"
    return learned
