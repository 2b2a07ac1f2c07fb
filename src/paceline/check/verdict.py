"""The configured quotas against the stated ones: one finding per quota, and the configuration to use. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from paceline.config.starter import toml
from paceline.core.quota import Quota
from paceline.core.results import Reading, Refusal

MINUTE_S = 60.0


class QuotaVerdict(StrEnum):
    """How a quota's configured amount compares with the stated one."""

    SAME = "as configured"
    HIGHER = "more is allowed"
    LOWER = "less is allowed"
    NEW = "not configured"
    UNSTATED = "not stated"


@dataclass(frozen=True, slots=True)
class QuotaFinding:
    """One quota.

    Attributes:
        configured: The configured quota; ``None`` when only the provider states it.
        reading: The provider's statement; ``None`` when there is none.
        verdict: The result of the comparison.
        use: The quota to use.
    """

    configured: Quota | None
    reading: Reading | None
    verdict: QuotaVerdict
    use: Quota

    def record(self) -> dict[str, Any]:
        """Plain values; durations in seconds."""
        reading = None if self.reading is None else asdict(self.reading)
        return {
            "unit": self.use.unit,
            "period_s": self.use.period_s,
            "configured": None if self.configured is None else str(self.configured),
            "stated": reading and reading["limit"],
            "remaining": reading and reading["remaining"],
            "full_in_s": reading and reading["reset_s"],
            "verdict": self.verdict.value,
            "use": str(self.use),
        }


def compare(configured: Sequence[Quota], stated: Iterable[Reading]) -> list[QuotaFinding]:
    """Compare every configured quota with the reading for it.

    A reading without a period belongs to the quota of its unit with the shortest one. Any other stated limit is new,
    and is taken for a minute's where no period is stated.
    """
    found: dict[int, Reading] = {}
    new: list[QuotaFinding] = []
    for reading in stated:
        fits = [
            (quota.period_s, index)
            for index, quota in enumerate(configured)
            if quota.unit == reading.unit and quota.period_s and reading.period_s in (None, quota.period_s)
        ]
        if fits:
            found.setdefault(min(fits)[1], reading)
        elif reading.limit:
            quota = Quota(reading.unit, reading.limit, reading.period_s or MINUTE_S)
            new.append(QuotaFinding(None, reading, QuotaVerdict.NEW, quota))
    return [*(_finding(quota, found.get(index)) for index, quota in enumerate(configured)), *new]


def _finding(quota: Quota, reading: Reading | None) -> QuotaFinding:
    if reading is None or not reading.limit:
        return QuotaFinding(quota, reading, QuotaVerdict.UNSTATED, quota)
    if reading.limit == quota.amount:
        return QuotaFinding(quota, reading, QuotaVerdict.SAME, quota)
    verdict = QuotaVerdict.HIGHER if reading.limit > quota.amount else QuotaVerdict.LOWER
    return QuotaFinding(quota, reading, verdict, quota.with_amount(reading.limit))


def stated_by(refusal: Refusal) -> list[Reading]:
    """The quota that a refusal names."""
    if refusal.unit is None or not refusal.limit:
        return []
    remaining = None if refusal.used is None else refusal.limit - refusal.used
    return [Reading(refusal.unit, refusal.limit, remaining, None, refusal.period_s)]


def to_toml(
    provider: str | None,
    base_url: str | None,
    limits: Iterable[tuple[str, Sequence[QuotaFinding]]],
    concurrency: Mapping[str, int] | None = None,
) -> str:
    """The configuration to use, as ``--config`` reads it.

    Args:
        provider: The provider, if all models are of one.
        base_url: The address, if it is not the provider's own.
        limits: Findings by ``provider/model``.
        concurrency: The bounds on requests in flight by provider, over all its models, which stay as they are.
    """
    plain = {name: value for name, value in (("provider", provider), ("base_url", base_url)) if value}
    quotas = {model: [str(finding.use) for finding in findings] for model, findings in limits}
    tables = {"concurrency": concurrency} if concurrency else {}
    return "\n".join(toml({**plain, "limits": quotas, **tables})).lstrip() + "\n"
