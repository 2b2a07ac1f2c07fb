"""The limits of the two models: the command line overrides the configuration file, which overrides the published tables."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, replace

import paceline

MODELS = {"openai": ("gpt-6.1-sol", "gpt-6-luna"), "anthropic": ("claude-sonnet-5", "claude-haiku-5-5")}
"""For each provider the pivotal model, which reasons, and the routine model, which sums up."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The models of a run, and their limits.

    Attributes:
        provider: ``openai`` or ``anthropic``.
        pivotal: The model of pass 1.
        routine: The model of pass 2; it may be the same.
        pools: For each charged pool its models and its quotas.
        limiter: The limiter of these pools.
    """

    provider: str
    pivotal: str
    routine: str
    pools: dict[str, tuple[list[str], tuple[paceline.Quota, ...]]]
    limiter: paceline.Limiter

    @property
    def emulated(self) -> dict[str, list[str]]:
        """The same limits in the notation of the emulator."""
        return {"|".join(models): [_written(quota) for quota in quotas] for models, quotas in self.pools.values()}


def set_up(options: argparse.Namespace) -> Setup:
    """A limiter by the command line, the environment, the file and the tables, in this order of precedence.

    Raises:
        SettingsError: A setting is invalid.
    """
    provider = options.provider or os.environ.get("PACELINE_PROVIDER") or (None if options.config else "openai")
    limiter = paceline.Limiter.load(options.config, provider=provider, tier=options.rate_tier)
    if limiter.limits.provider is None:  # the file does not name it either
        limiter = paceline.Limiter.load(options.config, provider="openai", tier=options.rate_tier)
    provider = str(limiter.limits.provider)
    if provider not in MODELS:
        raise paceline.SettingsError(f"provider is {provider!r}: this program calls {' or '.join(MODELS)}")
    pivotal, routine = (
        own or usual for own, usual in zip((options.pivotal, options.routine), MODELS[provider], strict=True)
    )
    if options.rpm_override or options.tpm_override:  # of the pivotal model alone
        limiter.override(
            f"{provider}/{pivotal}",
            tier=options.rate_tier,
            rpm_override=options.rpm_override,
            tpm_override=options.tpm_override,
        )
    if options.speed != 1:
        limits = {
            f"{provider}/{model}": tuple(
                _faster(quota, options.speed) for quota in limiter.limits.model(provider, model).quotas
            )
            for model in (pivotal, routine)
        }
        limiter = paceline.Limiter.load(options.config, provider=provider, limits=limits, headroom_s=1 / options.speed)
    pools: dict[str, tuple[list[str], tuple[paceline.Quota, ...]]] = {}
    for model in dict.fromkeys((pivotal, routine)):
        resolved = limiter.limits.model(provider, model)
        pools.setdefault(resolved.pool, ([], resolved.quotas))[0].append(model)
    return Setup(provider, pivotal, routine, pools, limiter)


def _faster(quota: paceline.Quota, speed: float) -> paceline.Quota:
    return replace(quota, amount=quota.amount * speed, burst=quota.burst * speed)


def _written(quota: paceline.Quota) -> str:
    return f"{quota.amount:f} {quota.unit}" + (f"/{quota.period_s:.0f}s" if quota.period_s else "")
