"""Quotas on one unit with several periods, and which of them a reading is about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from paceline.core.quota import DAY_S, OWN_RULES, Quota, Rule
from paceline.core.results import Reading
from paceline.providers.registry import head_of

REFILLED_DAY_S: Final = DAY_S + 1
"""The period of the bucket beside the window of a day: a second longer, because a pool has one quota per unit and
period."""


def in_days(quotas: tuple[Quota, ...], provider: str = "") -> tuple[Quota, ...]:
    """``quotas``, with the quotas of a day as windows that restart at the midnight of ``provider``.

    UTC where it is unknown.

    Where the provider refills the quota of a day continuously, it refuses the amount that a restart makes available at
    once. There the window restarts at midnight UTC, and a bucket beside it (:data:`REFILLED_DAY_S`) counts as the
    provider does.
    """
    zone, days = head_of(provider).day_zone, list[Quota]()
    for quota in quotas:
        day = quota.restarting(zone or "utc")
        days.append(day)
        if not zone and day is not quota and quota.rule is Rule.BUCKET:
            days.append(replace(quota, period_s=REFILLED_DAY_S))
    return tuple(days)


def periods(quotas: Iterable[Quota]) -> dict[str, list[float]]:
    """The periods of the quotas, ascending, of each unit that has several."""
    found: dict[str, list[float]] = {}
    for quota in quotas:
        if quota.period_s and quota.rule not in OWN_RULES:
            found.setdefault(quota.unit, []).append(quota.period_s)
    return {unit: sorted(own) for unit, own in found.items() if len(own) > 1}


def of_periods(readings: Iterable[Reading], known: Mapping[str, Sequence[float]]) -> Iterator[Reading]:
    """``readings``, each of one quota of a pool whose units have the periods ``known``.

    A reading without a period is of the shortest one that its reset fits in. One of a day tells the window its limit,
    and the bucket beside it everything.
    """
    for reading in readings:
        own = known.get(reading.unit, ())
        if own and reading.period_s is None:
            reset_s = reading.reset_s or 0.0
            reading = replace(reading, period_s=next((p for p in own if p >= reset_s), None))  # noqa: PLW2901
        if reading.period_s == DAY_S and REFILLED_DAY_S in own:
            yield replace(reading, remaining=None, reset_s=None)
            yield replace(reading, period_s=REFILLED_DAY_S)
        else:
            yield reading
