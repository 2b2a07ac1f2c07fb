"""What an answer teaches a ledger. Pure: readings and refusals in, a corrected ledger out."""

from __future__ import annotations

import math
from collections.abc import Iterable

from paceline.core.ledger import Ledger
from paceline.core.outcomes import Reading
from paceline.core.quota import CONCURRENCY


def adopt_limits(ledger: Ledger, now_ns: int, readings: Iterable[Reading]) -> list[int]:
    """Where the provider states another limit than ours, take it, up or down.

    Returns:
        The indexes of the quotas that changed.
    """
    changed = []
    for reading in readings:
        index = _quota_of(ledger, reading)
        limit = reading.limit
        if index is None or limit is None or not (math.isfinite(limit) and limit > 0):
            continue
        if limit != ledger.meters[index].quota.amount:
            ledger.adopt(now_ns, index, limit)
            changed.append(index)
    return changed


def _quota_of(ledger: Ledger, reading: Reading) -> int | None:
    """The one quota that ``reading`` speaks of; ``None`` when that is unknown or ambiguous."""
    same_unit = [i for i, m in enumerate(ledger.meters) if m.quota.unit == reading.unit and m.quota.unit != CONCURRENCY]
    if reading.period_s is not None:
        same_unit = [i for i in same_unit if ledger.meters[i].quota.period_s == reading.period_s]
    return same_unit[0] if len(same_unit) == 1 else None
