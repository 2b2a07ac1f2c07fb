"""The program's own names in logs, metrics and state: one filter, one exporter, one listener.

log = logging.getLogger("paceline.rate_limit")
log.setLevel(logging.DEBUG)
log.addFilter(as_planned)                                  # rate_limit.acquire and rate_limit.release at INFO
print(exported(limiter))                                   # for Prometheus, without a prefix
limiter = paceline.Limiter.load(file, events=State())      # last_request_at, last_updated
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import paceline

PROVIDERS = {"gemini": "google"}
"""Providers that the program names in another way than paceline."""

GAUGES = {
    "rate_limit_remaining_rpm": "rpm_remaining",
    "rate_limit_remaining_tpm": "tpm_remaining",
    "token_estimation_ratio": "estimate_ratio",
}
COUNTERS = {"rate_limit_wait_seconds": "rate_limit_wait_seconds", "rate_limit_429_count": "rate_limit_429_count"}
"""The program's metrics, and their names in ``limiter.status()["pools"][name]["metrics"]``."""

PLANNED = ("rate_limit.acquire", "rate_limit.release", "rate_limit.429_error")
"""The events of the plan."""

IN_FLIGHT = "/in flight"
"""The end of the name of the pool that counts what is in flight at a provider, over all of its models."""


def named(pool: str) -> tuple[str, str]:
    """The provider and the model of a pool."""
    provider, _, model = pool.partition("/")
    return PROVIDERS.get(provider, provider), model


def tokens(cost: Mapping[str, float] | None) -> int | None:
    """The tokens of a cost, input and output together."""
    if cost is None:
        return None
    return round(cost.get("tokens", cost.get("input_tokens", 0) + cost.get("output_tokens", 0)))


def as_planned(record: logging.LogRecord) -> bool:
    """The filter: every line has the planned fields beside paceline's, ``None`` where the event has none; permits are at INFO.

    The message of a planned event is its name; waits and retries, of which the plan has no line, keep their text.
    """
    found = vars(record)
    if "event" not in found:
        return True
    provider, model = named(found["pool"])
    found.update(
        provider=provider,
        model=model,
        estimated_tokens=tokens(found.get("reserved")),
        actual_tokens=tokens(found.get("used"))
        if "reserved" in found
        else None,  # of a wait it is the use of the quota
        wait_seconds=found.get("waited_s"),
        estimation_ratio=found.get("ratio"),
        retry_after=found.get("retry_after_s"),
        rpm_remaining=found.get("rpm_remaining"),
        tpm_remaining=found.get("tpm_remaining"),
    )
    if found["event"] in PLANNED:
        record.msg, record.args = found["event"], ()
        if record.levelno == logging.DEBUG:
            record.levelno, record.levelname = logging.INFO, "INFO"
    return True


def exported(limiter: paceline.Limiter) -> str:
    """The exporter: the planned metrics in Prometheus' text format."""
    return "\n".join([*_lines(limiter.status()["pools"]), ""])


def _lines(pools: Mapping[str, Any]) -> Iterator[str]:
    models = {name: pool for name, pool in pools.items() if not name.endswith((IN_FLIGHT, "/spacing"))}
    for kind, metrics in (("gauge", GAUGES), ("counter", COUNTERS)):
        for metric, own in metrics.items():
            yield f"# TYPE {metric} {kind}"
            for name, pool in models.items():
                if pool["metrics"].get(own) is not None:
                    provider, model = named(name)
                    yield f'{metric}{{provider="{provider}",model="{model}"}} {pool["metrics"][own]:g}'
    yield "# TYPE concurrent_requests gauge"
    for name, pool in pools.items():
        if name.endswith(IN_FLIGHT):
            yield f'concurrent_requests{{provider="{named(name)[0]}"}} {pool["metrics"]["in_flight"]}'


class State:
    """The listener: when the last request of each pool was sent, and when its state was last updated, in UTC.

    Args:
        now_s: The clock, in seconds since the Unix epoch.
    """

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self.last_request_at: dict[str, datetime] = {}
        self.last_updated: dict[str, datetime] = {}
        self._now_s = now_s

    def __call__(self, event: paceline.Event) -> None:
        """Keep the times of an event."""
        if event.kind == "acquired":
            self.last_request_at[event.pool] = datetime.fromtimestamp(event.granted_s, UTC)
        self.last_updated[event.pool] = datetime.fromtimestamp(self._now_s(), UTC)


@dataclass(frozen=True, slots=True)
class RateLimitPermit:
    """A permit, as the plan describes it."""

    provider: str
    model: str
    acquired_at: datetime
    estimated_tokens: int
    permit_id: str

    @classmethod
    def of(cls, permit: paceline.Permit) -> RateLimitPermit:
        """Describe a permit, with an id of its own."""
        acquired_at = datetime.fromtimestamp(permit.reservation.granted_ns / 1e9, UTC)
        return cls(*named(permit.pool), acquired_at, tokens(permit.cost) or 0, str(uuid.uuid4()))
