"""Quotas that several pools are charged to together: the quotas of an organisation, or of the keys of a team."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from paceline.core.quota import KNOWN_UNITS, USD, Quota
from paceline.core.results import GIVEN, QuotaError, explaining
from paceline.pacing.limits import Resolved
from paceline.pacing.periods import in_days
from paceline.pacing.settings import QuotaLike, parsed
from paceline.providers.registry import base_of, is_provider, maker, provider_named

UNITS: Final = tuple(unit for unit in KNOWN_UNITS if unit != USD)
"""What a joint limit can count: units that every request has."""


@dataclass(frozen=True, slots=True)
class JointLimit:
    """The quotas that all matching pools are charged to together.

    Attributes:
        patterns: Shell patterns of names of pools. One without a slash also matches a model of any provider.
        resolved: The quotas, in a pool of their own.
    """

    patterns: tuple[str, ...]
    resolved: Resolved

    def holds_for(self, pool: str) -> bool:
        """Whether the requests of ``pool`` are charged to it."""
        model = pool.partition("/")[2]
        return any(
            fnmatchcase(pool, pattern) or ("/" not in pattern and fnmatchcase(model, pattern))
            for pattern in self.patterns
        )


def joint_limits(given: Mapping[str, QuotaLike], *, gentle: bool = True) -> tuple[JointLimit, ...]:
    """The joint limits, by the patterns that :func:`written` accepts.

    Args:
        given: The quotas by pattern.
        gentle: Whether the quotas of providers open gently.

    Raises:
        QuotaError: A pattern or a quota is invalid.
    """
    found = dict[str, JointLimit]()
    for name, quotas in given.items():
        with explaining(f"joint limit of {name!r}", kind=QuotaError, of=QuotaError):
            usual = written(name)
            joint = _joint_limit(usual, check_units(parsed(quotas)), gentle=gentle)
        if usual in found:
            raise QuotaError(f"joint limit of {name!r}: there is another spelling of {usual!r}: keep one")
        found[usual] = joint
    return tuple(found.values())


def check_units(quotas: tuple[Quota, ...]) -> tuple[Quota, ...]:
    """Refuse quotas on units that not every request has.

    Raises:
        QuotaError: A unit is another one, or there is no quota.
    """
    if not quotas:
        raise QuotaError("it has no quota: write e.g. '2500 requests/min'")
    for quota in quotas:
        if quota.unit == USD:
            raise QuotaError(f"{str(quota)!r}: money is limited by a budget: budget = '100 usd/day'")
        if quota.unit not in UNITS:
            raise QuotaError(f"{str(quota)!r}: its unit must be one of {', '.join(UNITS)}")
    return quotas


def written(name: str) -> str:
    """``name``, one pattern or several with commas, in the usual spelling: ``openai/*`` for ``openai``.

    Raises:
        QuotaError: A pattern is empty.
    """
    patterns = [part.strip() for part in name.split(",")] if isinstance(name, str) else []
    if not patterns or not all(patterns):
        raise QuotaError(
            "its name must be a pattern of pools, e.g. 'openai/*', or several with commas, e.g. 'openai/gpt-6-luna,"
            " openai/gpt-6.1-sol'"
        )
    return ", ".join(_usual(pattern) for pattern in patterns)


def _usual(pattern: str) -> str:
    """``pattern`` with the usual name of its provider, and the name of the pool of its model."""
    prefix, slash, model = pattern.partition("/")
    if is_provider(prefix):
        known = provider_named(prefix)
        return f"{known.name}/{_pool(known.name, model) if slash else '*'}"
    made_by = None if slash else maker(pattern)
    return pattern if made_by is None else _pool(made_by, pattern)


def _pool(provider: str, model: str) -> str:

    return model if any(sign in model for sign in "*?[") else provider_named(provider).pool(model)


def _joint_limit(name: str, quotas: tuple[Quota, ...], *, gentle: bool) -> JointLimit:

    patterns = tuple(name.split(", "))
    providers = {base_of(pattern.partition("/")[0]) for pattern in patterns}
    provider = providers.pop() if len(providers) == 1 else ""
    known = provider_named(provider) if is_provider(provider) else None
    days = in_days(quotas, known.name if known else "")  # of several providers, days end at midnight UTC
    charged_after = known.charged_after if known else frozenset[str]()
    gentle &= any("/" not in pattern or is_provider(pattern.partition("/")[0]) for pattern in patterns)
    sources = (GIVEN,) * len(days)
    return JointLimit(patterns, Resolved(f"joint/{name}", days, sources, charged_after=charged_after, gentle=gentle))
