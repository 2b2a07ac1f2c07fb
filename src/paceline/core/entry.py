"""One quota of a pool: its meter, and what is known of its limit. All quotas of a pool."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from paceline.core.meters import Bucket, Exact, Meter
from paceline.core.quota import Rule
from paceline.core.results import Source


@dataclass(slots=True, eq=False)
class Entry:
    """One quota of a pool.

    Attributes:
        meter: Its arithmetic and its use. Another one takes its place when the rule of the quota turns out to be
            another.
        name: The quota in its notation.
        source: The source of its limit.
        given: The amount that the user has set, which no answer raises; infinite for a limit that the user has not set.
            Where answers have changed the period of the quota, it is the amount per learned period.
        refused_above: A cost above this is refused at once (``NeverFits``). For a given quota it is what the quota
            holds, with the part that is not ``usable``. For other limits it is infinite, because only the provider can
            refuse such a cost. A cost of up to this may be above what the quota holds (``Meter.most``). Then it goes
            when the quota is unused, reserves what the quota holds, and the rest becomes debt when it is settled.
        share: The share of its limit that it is: 1 for slots and even quotas, else the ``usable`` one.
        stated: The limit that answers have stated above the given one; ``None`` for none.
        spent: The sum of all true costs so far: charges with their refunds and debts.
        refused: The part of ``spent`` that is of refused attempts: the provider has not served it.
        read_ns: When the headers of an answer last stated it; ``None``: never.
        unit: Its unit.
    """

    meter: Meter
    name: str
    source: Source
    given: float = inf
    refused_above: float = inf
    share: float = 1.0
    stated: float | None = None
    spent: float = 0.0
    refused: float = 0.0
    read_ns: int | None = None
    unit: str = field(init=False)

    def __post_init__(self) -> None:
        self.unit = self.meter.quota.unit

    def with_meter(self, meter: Meter) -> Entry:
        """The same limit with another meter: nothing is spent yet."""
        # Without its share, which only the learning asks for. None learns from a fallback or a forecast, made of these.
        return Entry(meter, self.name, self.source, self.given, self.refused_above)


class BucketEntry(Protocol):
    """An entry whose meter is always a bucket, which may be spread or restart: answers teach about no other one."""

    meter: Bucket
    unit: str
    spent: float
    refused: float


class Entries(list[Entry]):
    """The quotas of a pool, which are only ever appended, and what the path of each request asks of them.

    Attributes:
        units: Their units.
        exact: The exact meters, with their indexes.
        slots: The indexes of those with the rule ``slots``.
        holding: The indexes of those that count attempts in flight: slots, held amounts.
    """

    __slots__ = ("exact", "holding", "slots", "units")

    def __init__(self) -> None:
        super().__init__()
        self.units: list[str] = []
        self.exact: list[tuple[int, Exact]] = []
        self.slots: list[int] = []
        self.holding: list[int] = []

    def append(self, entry: Entry) -> None:
        """Add a quota at the end."""
        index, m = len(self), entry.meter
        if m.quota.rule is Rule.SLOTS:
            self.slots.append(index)
        if m.holds:
            self.holding.append(index)
        if isinstance(m, Exact):
            self.exact.append((index, m))
        self.units.append(entry.unit)
        super().append(entry)
