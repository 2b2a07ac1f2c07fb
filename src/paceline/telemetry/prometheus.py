"""A status in the text format of Prometheus.

The names of ``metrics`` in the status (``rpm_remaining``, ``rate_limit_429_count``, ...) are exported with the prefix
``paceline_`` and the units of Prometheus; beside them are families with a label for each quota, lane and kind of refusal.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from itertools import accumulate
from typing import Any, Final, cast

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from paceline.core.waits import BOUNDS_S, OTHER
from paceline.pacing.plans import is_shut
from paceline.telemetry.families import FAMILIES, QUOTA, Family, Pools, Rows, of_pool, of_quota
from paceline.telemetry.merged import added, bounded, summed, together, waited

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

LANES_MAX: Final = 100
"""The lanes of a pool that have a label; the others are added up as ``other``."""

KEYS_MAX: Final = 1_000
"""The client keys, and the teams, that have a label, in the order of their first requests; the others are added up as ``other``."""

POOLS_MAX: Final = 1_000
"""The pools that have a label, those first that were exported first; the others are added up as ``other``. Their models are clients' words."""

PLANS_MAX: Final = 1_000
"""The windows of plans that are exported, in the order of their accounts."""

_FURTHER: Final = (
    Family("queue_eta", "s", "Seconds until the last request that waits now is granted.", "pool", of_pool("eta_s")),
    Family("quota.reset", "s", "Seconds until the quota is full without further requests.", QUOTA, of_quota("reset_s")),
    Family("quota.spent", "1", "The amount spent in all; refunds lower it.", QUOTA, of_quota("spent")),
)
"""What OpenTelemetry has no metric of."""

_PLAN: Final = {
    "used_ratio": ("used", "The used share of each window of an account's plan, as its last answer stated it."),
    "own_ratio": (
        "own",
        "The share of the window that went through this gateway or program, as far as it can be told.",
    ),
    "ends_seconds": ("ends_s", "Seconds until the window ends."),
    "shut": ("shut", "Whether the window refuses requests until it ends."),
    "waiting": ("waiting", "Requests that wait until the window is open."),
}
"""The metrics of a plan, by their fields in the status."""

_UP: Final = ("joined", "read")
_KINDS: Final = ("rate", "growth", "capacity", "money", "never_fits")
_NONE_YET: Final = dict.fromkeys(("granted", "settled", "cancelled", *(f"refused_{kind}" for kind in _KINDS)), 0)
"""Counts that are 0 until something happens: an alert on their growth needs a first value."""

_COUNTED: Final = ("rate_limit_429_count", "rate_limit_wait_seconds")
"""The numbers of ``metrics`` that only grow."""


def exposition(status: Mapping[str, Any], labels: dict[str, None] | None = None) -> bytes:
    """The numbers of a status (:meth:`Limiter.status <paceline.Limiter.status>`).

    Args:
        status: The status.
        labels: The pools that have had a label, which is changed: each keeps it, so that no sum goes back.
    """
    pools = _labelled(status["pools"], {} if labels is None else labels)
    return generate_latest(_Collector({**status, "pools": pools}))


def _labelled(pools: Mapping[str, Any], labels: dict[str, None]) -> Mapping[str, Any]:
    """The pools by their labels."""
    for gone in [name for name in labels if name not in pools]:
        del labels[gone]
    for name in pools:
        if len(labels) >= POOLS_MAX:
            break
        labels[name] = None
    rest = [pool for name, pool in pools.items() if name not in labels]
    return {name: pools[name] for name in labels} | ({OTHER: together(rest)} if rest else {})


def _family(kind: type[Any], name: str, about: str, labels: str, rows: Rows) -> Metric:
    """A metric that has a number for each row."""
    metric = kind(f"paceline_{name}", about, labels=labels.split())
    for of, number in rows:
        if number is not None:
            metric.add_metric(of, number)
    return cast("Metric", metric)


_gauge, _counter = partial(_family, GaugeMetricFamily), partial(_family, CounterMetricFamily)


def _families(families: Iterable[Family], pools: Pools) -> Iterator[Metric]:
    for family in families:
        name = family.name.replace(".", "_") + "_seconds" * (family.unit == "s")
        yield (_counter if family.grows else _gauge)(name, family.about, family.labels, family.rows(pools))


class _Collector:
    def __init__(self, status: Mapping[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        status, pools = self._status, self._status["pools"]
        local = {name: pool for name, pool in pools.items() if "counts" in pool}  # a store does not know these
        counted = {name: {**pool, "counts": {**_NONE_YET, **pool["counts"]}} for name, pool in local.items()}
        yield from _families((*FAMILIES, *_FURTHER), {**pools, **counted})
        about = "Whether the pool refuses its requests: no money is left, or the provider asks to wait for too long."
        stopped = (((name,), pool.get("stopped") is not None) for name, pool in pools.items())
        yield _gauge("stopped", about, "pool", stopped)
        yield from _stores(pools)
        yield _gauge("lane_waiting", "Requests that wait, by lane.", "pool lane", _lanes(local))
        yield from _waits(local)
        about = "The part of the cached tokens that is expected to be read, as answers have shown."
        expected = (((name,), pool["cache"]["expected"]) for name, pool in local.items() if pool.get("cache"))
        yield _gauge("cache_expected_ratio", about, "pool", expected)
        yield from _flat(local)
        yield from _plans(status.get("plans", ())[:PLANS_MAX])
        about = "Results of attempts, by server, pool, status (0: no response) and cause."
        yield _counted("answers", about, "upstream pool status cause", status)
        about = "Requests to providers that no limiter has paced."
        yield _counted("unpaced", about, "provider host kind", status)
        yield from _used("key", "client key", status.get("keys", {}))
        yield from _used("team", "team", status.get("teams", {}))
        if "ready" in status:
            yield GaugeMetricFamily("paceline_ready", "Whether /readyz answers 200.", value=status["ready"])
        versions = version("paceline"), platform.python_version()
        yield _gauge("build_info", "1, with the versions.", "version python", [(versions, 1)])


def _counted(name: str, about: str, labels: str, status: Mapping[str, Any]) -> Metric:
    """The counts of a table of the status, whose columns have the names of the labels."""
    rows = ((tuple(str(row[label]) for label in labels.split()), row["count"]) for row in status.get(name, ()))
    return _counter(name, about, labels, rows)


def _plans(windows: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    """What is known of each window of a plan."""
    shown = [{**row, "shut": is_shut(row)} for row in windows]
    for name, (field, about) in _PLAN.items():
        rows = (((row["account"], row["window"]), row.get(field)) for row in shown)
        yield _gauge(f"plan_{name}", about, "account window", rows)


def _lanes(pools: Mapping[str, Any]) -> Rows:
    for name, pool in pools.items():
        most_first = sorted(pool["lanes"].items(), key=lambda lane: -lane[1])
        yield from (((name, lane), waiting) for lane, waiting in bounded(most_first, LANES_MAX, sum).items())


def _waits(pools: Mapping[str, Any]) -> Iterator[Metric]:
    """Of each pool over all lanes, and of each lane over all pools: together they are no more series than both apart."""
    by_pool = HistogramMetricFamily("paceline_wait_seconds", "Waits of granted requests.", labels=["pool"])
    about = "Waits of granted requests, over all pools."
    by_lane = HistogramMetricFamily("paceline_lane_wait_seconds", about, labels=["lane"])
    for name, pool in pools.items():
        by_pool.add_metric([name], *_buckets(waited(pool["waits"].values())))
    lanes = added(pool["waits"] for pool in pools.values())
    longest_first = sorted(lanes.items(), key=lambda lane: -lane[1]["sum_s"])
    for name, row in bounded(longest_first, LANES_MAX, waited).items():
        by_lane.add_metric([name], *_buckets(row))
    yield from (by_pool, by_lane)


def _buckets(row: Mapping[str, Any]) -> tuple[list[tuple[str, float]], float]:
    """The counts up to each bound, added up as Prometheus has them, and the sum."""
    counts = row["counts"] or [0] * (len(BOUNDS_S) + 1)
    names = [*map(floatToGoString, BOUNDS_S), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True)), row["sum_s"]


def _stores(pools: Mapping[str, Any]) -> Iterator[Metric]:
    """A pool that its store has never answered asks only while requests wait: it has no value, or a 0 would stay."""
    about = "Whether the store of the pool answers, from its first answer on."
    states = [(name, pool.get("store", {"state": "new"})["state"]) for name, pool in pools.items()]
    yield _gauge("store_up", about, "pool", (((name,), state in _UP) for name, state in states if state != "new"))


def _used(label: str, what: str, used: Mapping[str, Mapping[str, float]]) -> Iterator[Metric]:
    """What each client key, or each team, has used. The first ones keep their label, so that no sum goes back."""
    shown = bounded(used.items(), KEYS_MAX, summed).items()
    about = f"Requests that were charged, by {what}."
    yield _counter(f"{label}_requests", about, label, (((name,), sums["requests"]) for name, sums in shown))
    kinds = ("input", "cached", "output")
    tokens = (((name, kind), sums[f"{kind}_tokens"]) for name, sums in shown for kind in kinds)
    yield _counter(
        f"{label}_tokens", "Tokens of these requests. Input includes cached tokens.", f"{label} kind", tokens
    )
    about = "Their price in US dollars, where it is known."
    yield _counter(f"{label}_usd", about, label, (((name,), sums["usd"]) for name, sums in shown))


def _flat(pools: Mapping[str, Any]) -> Iterator[Metric]:
    """The numbers of ``metrics``, under its names."""
    found: dict[str, list[tuple[tuple[str], float]]] = {}
    for pool_name, pool in pools.items():
        for name, value in pool["metrics"].items():
            if name != "in_flight" and isinstance(value, int | float):  # exported above; an instant, or unknown
                found.setdefault(name, []).append(((pool_name,), value))
    for name, rows in found.items():
        family, exported = _counter if name in _COUNTED else _gauge, name.replace("_reset_s", "_reset_seconds")
        yield family(exported, "See `metrics` in the status.", "pool", rows)
