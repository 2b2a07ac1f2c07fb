"""The metrics of pools, for Prometheus and OpenTelemetry alike: their names, units and labels, and what they read in a status."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

Pools = Mapping[str, Any]
"""The pools of a status, by their names."""

Rows = Iterable[tuple[tuple[str, ...], float | None]]
"""The values of the labels, and the number; ``None`` where it is not known."""


class Family(NamedTuple):
    """A metric of pools.

    Attributes:
        name: Its name, with the dots of OpenTelemetry.
        unit: Its unit, as OpenTelemetry writes it.
        about: What it says.
        labels: The names of its labels.
        rows: Its numbers.
        grows: Whether they only grow.
    """

    name: str
    unit: str
    about: str
    labels: str
    rows: Callable[[Pools], Rows]
    grows: bool = False


def of_pool(field: str) -> Callable[[Pools], Rows]:
    """A number that each pool has."""
    return lambda pools: (((name,), pool.get(field)) for name, pool in pools.items())


def of_quota(field: str) -> Callable[[Pools], Rows]:
    """A number that each quota of a pool has."""
    return lambda pools: (
        ((name, quota["quota"], quota["unit"]), quota.get(field))
        for name, pool in pools.items()
        for quota in pool["quotas"]
    )


def _counts(*, refused: bool) -> Callable[[Pools], Rows]:
    def rows(pools: Pools) -> Rows:
        for name, pool in pools.items():
            for event, count in pool.get("counts", {}).items():
                kind = event.removeprefix("refused_")
                if refused == (kind != event):
                    yield (name, kind), count

    return rows


def _finishes(pools: Pools) -> Rows:
    return (((name, state), count) for name, pool in pools.items() for state, count in pool.get("finishes", {}).items())


def _cached(pools: Pools) -> Rows:
    for name, pool in pools.items():
        for field, tokens in (pool.get("cache") or {}).items():
            if (kind := field.removesuffix("_tokens")) not in (field, "input"):
                yield (name, kind), tokens


QUOTA: Final = "pool quota unit"
"""The labels of a quota."""

FAMILIES: Final = (
    Family("waiting", "{request}", "Requests that wait for a permit.", "pool", of_pool("waiting")),
    Family("in_flight", "{request}", "Permits that are neither settled nor cancelled.", "pool", of_pool("in_flight")),
    Family("cool_down", "s", "Seconds left of a pause after a refusal.", "pool", of_pool("cool_down_s")),
    Family("quota.limit", "1", "The amount of the quota.", QUOTA, of_quota("limit")),
    Family("quota.remaining", "1", "The amount that is left of the quota now.", QUOTA, of_quota("remaining")),
    Family("permits", "{permit}", "Permits by outcome.", "pool event", _counts(refused=False), grows=True),
    Family("refusals", "{refusal}", "Refusals of the provider, by kind.", "pool kind", _counts(refused=True), grows=True),
    Family("finishes", "{answer}", "Responses by how the model finished.", "pool state", _finishes, grows=True),
    Family("cache.tokens", "{token}", "Input tokens by what the provider's prompt cache did: read, written, lost.", "pool kind",
           _cached, grows=True),
)  # fmt: skip
