"""The settings of a limiter: each is named here once, and what paces the requests takes them as one object."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Final

from paceline.core.capacity import Learns
from paceline.core.plan import PlanPolicy
from paceline.core.pool import WAITING_MAX
from paceline.core.queue import LaneSpec
from paceline.core.quota import Quota, parse_quotas
from paceline.core.results import QuotaError
from paceline.pacing.breaker import BreakerPolicy
from paceline.pacing.clock import SYSTEM_CLOCK, Clock
from paceline.pacing.retry import RetryPolicy

if TYPE_CHECKING:
    from paceline.pacing.allowances import Unpriced
    from paceline.pacing.events import Event

TIMEOUT_MAX_S: Final = 10 * 366 * 86_400.0
"""Ten years, the longest timeout."""

QuotaLike = str | Quota | Iterable[str | Quota]


@dataclass(frozen=True, slots=True, kw_only=True)
class PacingSettings:
    """The arguments of :class:`~paceline.limiter.limiter.Limiter`, which explains them, without the arguments of its store.

    Raises:
        QuotaError: A value is out of its range.
    """

    quotas: Mapping[str, QuotaLike] | None = None
    provider: str | None = None
    tier: str | int | None = None
    rpm_override: float | None = None
    tpm_override: float | None = None
    learn: Learns = True
    concurrency: Mapping[str, int] | None = None
    joint_limits: Mapping[str, QuotaLike] | None = None
    min_interval_s: float = 0.0
    acquire_timeout_s: float | None = None
    max_tokens_per_call: float | None = None
    usable: float = 1.0
    headroom_s: float | None = None
    ttl_s: float = 900.0
    waiting_max: int = WAITING_MAX
    estimate_factor: float | None = None
    prompt_cache: bool = True
    retry: RetryPolicy | None = None
    breaker: BreakerPolicy | None = BreakerPolicy()  # noqa: RUF009  (a frozen value)
    lanes: Iterable[LaneSpec] = ()
    priorities: Mapping[str, int] | None = None
    budget: QuotaLike = ()
    prices: Mapping[str, Mapping[str, float]] | None = None
    unpriced: Unpriced = "count"
    plans: PlanPolicy = PlanPolicy()  # noqa: RUF009  (a frozen value)
    events: Callable[[Event], None] | None = None
    shadow: str | PathLike[str] | None = None
    traffic_log: str | PathLike[str] | None = None
    clock: Clock = SYSTEM_CLOCK

    def __post_init__(self) -> None:
        """Refuse values out of their range."""
        usable, headroom_s, most = self.usable, self.headroom_s, self.max_tokens_per_call
        if self.learn not in (True, False, "up"):
            raise QuotaError(f"learn is {self.learn!r}: it must be True, False or 'up'")
        if self.unpriced not in ("count", "refuse"):
            raise QuotaError(f"unpriced is {self.unpriced!r}: it must be 'count' or 'refuse'")
        if not 0 <= self.min_interval_s < math.inf:
            raise QuotaError(f"min_interval_s is {self.min_interval_s!r}: it must be 0 s or more")
        if self.shadow is not None and self.traffic_log is not None:
            raise QuotaError("shadow and traffic_log are both set: shadow writes the same lines, and holds nothing")
        if isinstance(usable, bool) or not isinstance(usable, int | float) or not 0 < usable <= 1:
            raise QuotaError(
                f"usable is {usable!r}: it must be a share of the limits, above 0 and at most 1, e.g. 0.85"
            )
        if headroom_s is not None and not 0 <= headroom_s < math.inf:
            raise QuotaError(f"headroom_s is {headroom_s!r}: it must be 0 s or more, or None for an adaptive one")
        if not 0 < self.ttl_s <= TIMEOUT_MAX_S:
            raise QuotaError(f"ttl_s is {self.ttl_s!r}: it must be above 0 s, and at most ten years")
        if most is not None and not 0 < most < math.inf:
            raise QuotaError(
                f"max_tokens_per_call is {most!r}: it must be a number of tokens above 0, or None for no bound"
            )
        checked_timeout(self.acquire_timeout_s)


def checked_timeout(timeout: float | None) -> float | None:
    """The timeout.

    Raises:
        QuotaError: It is no number of seconds from 0 to ten years.
    """
    if timeout is None or timeout == math.inf:
        return timeout
    if not isinstance(timeout, int | float) or not 0 <= timeout <= TIMEOUT_MAX_S:
        raise QuotaError(f"timeout is {timeout!r}: it must be from 0 s to ten years, or None for none")
    return timeout


def parsed(quotas: QuotaLike) -> tuple[Quota, ...]:
    """Quotas in any notation.

    Raises:
        QuotaError: One of them is invalid.
    """
    if isinstance(quotas, Quota):
        return (quotas,)
    if isinstance(quotas, str):
        return parse_quotas(quotas)
    if isinstance(quotas, Mapping) or not isinstance(quotas, Iterable):
        example = f"{quotas} requests/min" if isinstance(quotas, int) else "500 requests/min"
        raise QuotaError(f"{quotas!r} is no quota: write it as a text, e.g. {example!r}, or as a list of texts")
    return tuple(quota for part in quotas for quota in parsed(part))
