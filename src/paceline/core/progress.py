"""Whether the provider admits attempts of a pool, and how long the pool waits while it admits none.

A refusal about the pool tells nothing of its request. While the provider admits others, the request is tried again without
a bound. While it admits none, each refusal shows that the time since the first one was too short: the next wait is as long
as all of them together. A stated wait is a minimum, unless it is so long that a probe tests it first.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from paceline.core.quota import NS
from paceline.core.results import Refusal

FIRST_S: Final = 1.0
MOST_S: Final = 60.0
"""The first wait after a refusal that states none, and the longest one, in seconds."""

LONG_WAIT_S: Final = 60.0
"""A stated wait that is longer is tested, unless the refusal names a quota of such a period."""

PROBE_S: Final = 15.0
"""The first probe of such a wait goes after this time, and each further one after twice the time before."""

NAMED_PART: Final = 1.1
"""A stated wait of up to so many periods of the named quota is believed: a counter restarts then."""


class Row(NamedTuple):
    """Refusals of a pool, one after the other, with no attempt admitted since the first.

    Attributes:
        number: How many there are. Attempts that were in flight at one of them count once with it.
        long: How many of them have stated a wait of more than :data:`LONG_WAIT_S`.
        lasted_s: The time since the first one came, in seconds.
        longest_s: The same of the longest row that has ended.
        admitted: How many attempts the pool has had admitted so far.
    """

    number: int
    long: int = 0
    lasted_s: float = 0.0
    longest_s: float = 0.0
    admitted: int = 0


class Progress:
    """What refusals and answers show of a pool as a whole.

    Attributes:
        admitted: How many attempts were admitted.
    """

    __slots__ = ("_last_ns", "_long", "_longest_ns", "_number", "_since_ns", "admitted")

    def __init__(self) -> None:
        self.admitted = 0
        self._number = self._long = 0  # as in a row
        self._since_ns = self._last_ns = 0  # when the first and the last refusal of the row came
        self._longest_ns = 0

    @property
    def refused_in_row(self) -> int:
        """The number of refusals in the present row."""
        return self._number

    def admit(self, now_ns: int) -> None:
        """Count an attempt that was not refused. It ends the row."""
        self.admitted += 1
        if self._number:
            self._longest_ns = max(self._longest_ns, now_ns - self._since_ns)
            self._number = self._long = 0

    def refuse(self, now_ns: int, sent_ns: int, refusal: Refusal) -> None:
        """Count the refusal of an attempt that was sent at ``sent_ns``."""
        row = self.row(now_ns, sent_ns, refusal)
        if row.number > self._number:
            self._since_ns = self._since_ns if self._number else now_ns
            self._number, self._long, self._last_ns = row.number, row.long, now_ns

    def row(self, now_ns: int, sent_ns: int, refusal: Refusal) -> Row:
        """The row with a refusal that comes now, of an attempt that was sent at ``sent_ns``."""
        new = int(sent_ns >= self._last_ns or not self._number)
        long = new and not is_believed(refusal)
        lasted_ns = now_ns - self._since_ns if self._number else 0
        return Row(self._number + new, self._long + long, lasted_ns / NS, self._longest_ns / NS, self.admitted)


def is_believed(refusal: Refusal) -> bool:
    """Whether the wait that a refusal states is obeyed without a test: it is short, or that of a named quota."""
    return (refusal.retry_after_s or 0.0) <= max(LONG_WAIT_S, NAMED_PART * (refusal.period_s or 0.0))


def pause_s(refusal: Refusal, row: Row, first_s: float = FIRST_S, most_s: float = MOST_S) -> float:
    """How long the pool waits after a refusal, the last one of a row, before it sends a probe.

    Of two stated waits the shorter one is tried once. A wait that was obeyed in vain was too short: then the pool's own
    estimate counts, too.
    """
    own_s = min(first_s * 2.0 ** min(row.number - 1, 30), most_s)
    asked_s = refusal.retry_after_s or 0.0  # a wait of 0 is none
    if not is_believed(refusal):
        asked_s = min(asked_s, PROBE_S * 2.0 ** min(max(row.long, 1) - 1, 30))
    if row.number == 1:
        return min(asked_s, refusal.sooner_s or asked_s) or own_s
    return max(asked_s, own_s)
