"""From settings to the arguments of a limiter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.config.schema import RUN_S
from paceline.core.quota import Quota
from paceline.pacing.limits import overridden as _overridden
from paceline.pacing.limits import overrides
from paceline.pacing.retry import RetryPolicy
from paceline.providers.registry import provider_named

if TYPE_CHECKING:
    from paceline.config import Config

PATIENT = {"max_elapsed_s": RUN_S, "max_retry_after_s": RUN_S, "faults": True}
"""How a batch tries again by default: its attempts are bounded, and it has time."""


def arguments(config: Config, provider: str | None, *, patient: bool) -> dict[str, Any]:
    """See :meth:`paceline.config.Config.arguments`."""
    name = config.provider or provider
    retry = {**(PATIENT if patient else {}), "max_attempts": config.max_attempts, **config.retry}
    return {
        "quotas": config.limits,
        "provider": provider_named(name).name if name else None,
        "tier": config.tier,
        "rpm_override": config.rpm_override,
        "tpm_override": config.tpm_override,
        "learn": config.learn,
        "concurrency": config.concurrency,
        "min_interval_s": config.min_interval_s,
        "timeout_s": None if patient else config.acquire_timeout_s,
        "headroom_s": config.headroom_s,
        "ttl_s": config.ttl_s or (max(900.0, 2 * config.timeout_s) if patient else 900.0),
        "waiting_max": config.waiting_max,
        "estimate_factor": config.estimate_factor,
        "retry": RetryPolicy(**retry),
        "breaker": config.breaker,
        "lanes": config.lanes.values(),
        "store": None if patient else config.store,
        "on_store_failure": f"fail_{config.lost}",
        "lease_s": config.lease_s,
    }


def rates(config: Config) -> dict[str, float]:
    """Amounts a minute by unit that hold for every model."""
    return overrides(config.rpm_override, config.tpm_override)


def overridden(config: Config, quotas: tuple[Quota, ...]) -> tuple[Quota, ...]:
    """A model's ``quotas`` with :func:`rates` in place of its own a minute."""
    return _overridden(quotas, rates(config))
