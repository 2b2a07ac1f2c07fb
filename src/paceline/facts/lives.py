"""How old facts are: the lives of models, and rows that a newer one contradicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Final, Self

END_DAYS: Final = 60
"""So many days before its end a model is named."""


@dataclass(frozen=True, slots=True)
class Life:
    """When a provider has a model.

    Attributes:
        born: The first day, as ``2026-10-07``; empty if it is not known.
        ends: The day on which the provider ends it; empty if none is announced.
        source: Where they were read, and when.
    """

    born: str
    ends: str
    source: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """What a row says."""
        return cls(str(row.get("from", "")), str(row.get("until", "")), f"{row['source']} ({row['as_of']})")

    def ending(self, today: date) -> str:
        """What to say of its end: that it has come, or comes within :data:`END_DAYS`; else an empty text."""
        days = (date.fromisoformat(self.ends) - today).days if self.ends else END_DAYS + 1
        if days > END_DAYS:
            return ""
        when = (
            f"has ended on {self.ends}" if days <= 0 else f"ends on {self.ends}, in {days} day{'s' if days > 1 else ''}"
        )
        return f"{when}, by {self.source}"


def newer_row(rows: Iterable[Mapping[str, Any]], row: Mapping[str, Any], pattern: str, tier: str) -> str:
    """What to say where ``row``, the user's, holds in place of a newer one of the data set; else an empty text."""
    others = [one for one in rows if pattern in one["match"] and tier in one and not one.get("where")]
    newest = max(others, key=lambda one: str(one["as_of"]), default=row)
    if not row.get("where") or newest["as_of"] <= row["as_of"]:
        return ""
    return (
        f"the limits in {row['where']} for {tier} are of {row['as_of']}, and the data set has newer ones, of {newest['as_of']}:"
        f" {newest[tier]!r}. Yours are used: look at {newest['source']}, then change or remove them"
    )
