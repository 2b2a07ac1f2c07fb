"""Whether the provider admits attempts of a pool, and how long the pool waits while it admits none.

A refusal about the pool tells nothing of its request. While the provider admits others, the request is tried again
without a bound. While it admits none, each refusal shows that the time since the first one was too short: the next wait
is as long as all of them together. A stated wait is a minimum, unless it is so long that a probe tests it first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from paceline.core.allowance import PROBE_S, Allowance, is_believed
from paceline.core.pause import PROBE_NS
from paceline.core.quota import NS
from paceline.core.results import WAIT_MAX_S, Refusal, RefusalKind, RefusalScope, within

FIRST_S: Final = 1.0
MOST_S: Final = 60.0
"""The first wait after a refusal that states none, and the longest one, in seconds."""

REFUSED_IN_NS: Final = NS // 20
"""The shortest time that a refusal is assumed to take. An attempt counts as admitted when it has been in flight for
twice the time of the slowest refusal, or for ``PROBE_NS``."""


ALONE_CHANCE: Final = 0.01
"""With a smaller probability than this, the refusals of a request are about that request alone. The request then waits
by itself, so that an error costs it a second or two."""


class Row(NamedTuple):
    """Refusals of one sort that a pool has met one after the other, with no attempt admitted since the first.

    Attributes:
        number: How many there are. Attempts that were in flight at one of them count once with it, and the tests of a
            long wait with the refusal that has stated it.
        lasted_s: The time since the first one came, in seconds.
        longest_s: The same of the longest row that has ended.
        refused: How many attempts of the pool have been refused so, in all rows. Each counts with the probability that
            it was about the pool.
        admitted: How many attempts the pool has had admitted.
        pending: How many others are in flight and not known to be admitted.
        is_paced: Whether a measured rate decides when the next attempt goes.
        is_allowance: Whether the last one is about an :class:`~paceline.core.allowance.Allowance`.
        is_endless: Whether it is about one whose end is not stated.
        is_test: Whether the last one was a test of the wait that is stated.
        holds: Whether requests wait for the end of an allowance.
        test_s: When the stated wait is tested, in seconds from now.
    """

    number: int
    lasted_s: float = 0.0
    longest_s: float = 0.0
    refused: float = 1.0
    admitted: int = 0
    pending: int = 0
    is_paced: bool = False
    is_allowance: bool = False
    is_endless: bool = False
    holds: bool = True
    is_test: bool = False
    test_s: float = PROBE_S


@dataclass(slots=True, eq=False)
class Alone:
    """Whether the refusals that one request has got, all for the rate of its pool, are about that request alone.

    If they are about the pool, each of them after the first has the probability that the other attempts since the last
    one have shown. Attempts that were on their way at the last one show nothing: they may have used up the pool.

    Attributes:
        chance: The probability of all of them, if they are about the pool.
        count: How many were found to be about the request alone.
    """

    chance: float = 1.0
    count: int = 0
    # How many were refused, and how many were admitted or on their way, at the last one.
    _known: tuple[float, int] | None = None
    _blamed: int = 0  # how many were taken for refusals of the pool

    def judged(self, refusal: Refusal, row: Row) -> Refusal:
        """``refusal``, the last one of ``row``, with the scope and the chance that the earlier ones show."""
        if self._known is not None:
            # At least this one: a row of the account's pool counts other refusals than one of the model's.
            refused, admitted = max(row.refused - self._known[0], 1.0), max(row.admitted - self._known[1], 0)
            self.chance *= refused / (refused + admitted)
        is_alone = self.chance < ALONE_CHANCE
        # The pool counts this refusal by its chance, or not at all if it is about the request alone; `row` has it as 1.
        # Attempts on their way may have used up the pool, so they count as known with this refusal.
        self._known = row.refused - 1 + (0.0 if is_alone else self.chance), row.admitted + row.pending
        if not is_alone:
            self._blamed += 1
            return replace(refusal, chance=self.chance)
        self.count, blamed, self._blamed = self.count + 1, self._blamed, 0
        return replace(refusal, scope=RefusalScope.REQUEST, retracts=blamed)


class Rows:
    """The rows of the refusals of one sort.

    They are for the rate of the pool, or for want of capacity at the provider.

    An attempt is admitted when it has an answer, and also when it has been in flight for longer than refusals take: a
    provider refuses before it works.

    Args:
        by_chance: Whether chance decides which of two attempts is refused that were sent at the same time. Under a rate
            the first ones are admitted, and the row goes on after them.

    Attributes:
        number: How many refusals the present row has.
    """

    def __init__(self, *, by_chance: bool) -> None:
        self._by_chance = by_chance
        self.number = 0  # as in a row
        self._total = 0.0  # as the refused attempts of a row
        self._since_ns = self._last_ns = 0  # when the first and the last refusal of the row came
        self._after_ns = 0  # an attempt that was sent at this instant or later, and is admitted, ends the row
        self._longest_ns = self._slowest_ns = 0  # the longest row, and the longest time from an attempt to its refusal

    def end(self, now_ns: int) -> None:
        """End the row: an attempt was admitted."""
        if self.number:
            self._longest_ns = max(self._longest_ns, now_ns - self._since_ns)
            self.number = 0

    def count(
        self, now_ns: int, sent_ns: int, refusal: Refusal, in_flight_ns: Sequence[int] = (), *, foretold: bool = False
    ) -> None:
        """Count a refusal that comes now, of an attempt that was sent at ``sent_ns``.

        ``foretold``: an earlier one has said so.
        """
        if not self._goes_on(self._presumed(now_ns, sent_ns, in_flight_ns)):
            self.end(now_ns)
            self._since_ns, self._after_ns = now_ns, sent_ns if self._by_chance else now_ns
        if self._is_new(self.number, sent_ns, foretold=foretold):
            self.number, self._last_ns = self.number + 1, now_ns
        self._total += refusal.chance
        # WEAK: it never falls. After one slow refusal, attempts count as admitted only when PROBE_NS have passed.
        self._slowest_ns = max(self._slowest_ns, now_ns - sent_ns)

    def row(
        self, now_ns: int, sent_ns: int, in_flight_ns: Sequence[int] = (), admitted: int = 0, *, foretold: bool = False
    ) -> Row:
        """The row with a refusal that comes now.

        Args:
            now_ns: The present.
            sent_ns: When the refused attempt was sent.
            in_flight_ns: When the other attempts in flight were sent.
            admitted: How many attempts had an answer.
            foretold: Whether an earlier one has said so.
        """
        presumed, number, lasted_ns = self._presumed(now_ns, sent_ns, in_flight_ns), 0, 0
        if self._goes_on(presumed):
            number, lasted_ns = self.number, now_ns - self._since_ns
        number += self._is_new(number, sent_ns, foretold=foretold)
        admitted, pending = admitted + len(presumed), len(in_flight_ns) - len(presumed)
        return Row(number, lasted_ns / NS, self._longest_ns / NS, self._total + 1, admitted, pending)

    def _is_new(self, number: int, sent_ns: int, *, foretold: bool) -> bool:
        """Whether a refusal counts, after ``number`` of its row.

        One of an attempt that was in flight at the last refusal shows no more than that one.
        """
        return not number or (sent_ns >= self._last_ns and not foretold)

    def _presumed(self, now_ns: int, sent_ns: int, in_flight_ns: Sequence[int]) -> list[int]:
        """The attempts in flight that are admitted, when an attempt that was sent at ``sent_ns`` is refused now."""
        before_ns = now_ns - self.admitted_in_ns(now_ns - sent_ns)
        return [at_ns for at_ns in in_flight_ns if at_ns <= before_ns]

    def admitted_in_ns(self, refused_in_ns: int = 0) -> int:
        """After which time an attempt in flight counts as admitted; ``refused_in_ns``: what a refusal took now."""
        # A provider refuses before it works: one that takes twice as long as a refusal was admitted.
        return min(2 * max(self._slowest_ns, refused_in_ns, REFUSED_IN_NS), PROBE_NS)

    def _goes_on(self, admitted_ns: Sequence[int]) -> bool:
        """Whether the row goes on, though the attempts that were sent at ``admitted_ns`` are admitted."""
        return self.number > 0 and max(admitted_ns, default=-1) < self._after_ns


class Progress:
    """What refusals and answers show of a pool as a whole.

    The pause depends on :meth:`row`, so that it is asked before :meth:`refuse` counts the refusal.

    Attributes:
        admitted: How many attempts had an answer that is no refusal.
        rate_rows: Its refusals for its rate, and for the growth of its rate.
        capacity_rows: Its refusals for want of capacity.
        allowance: The long wait that those for its rate state.
    """

    def __init__(self) -> None:
        self.admitted = 0
        self.rate_rows, self.capacity_rows = Rows(by_chance=False), Rows(by_chance=True)
        self.allowance = Allowance()
        self._refused = False  # since the last answer that is no refusal

    def admit(self, now_ns: int, sent_ns: int) -> None:
        """Count an answer that is no refusal, to an attempt that was sent at ``sent_ns``. It ends the rows."""
        self.admitted += 1
        if self.allowance.began_ns:
            self.allowance.admit(sent_ns)
        # Asked first, because this is the path of every answer, and most pools have no row to end.
        if self._refused:
            self._refused = False
            self.rate_rows.end(now_ns)
            self.capacity_rows.end(now_ns)

    def refuse(self, now_ns: int, sent_ns: int, refusal: Refusal, in_flight_ns: Sequence[int] = ()) -> bool:
        """Count the refusal of an attempt that was sent at ``sent_ns``, if it is of one of the sorts.

        ``in_flight_ns``: when the other attempts in flight were sent.

        Returns:
            Whether it is one for rate that shows none: it is about an allowance, or of a test that an earlier refusal
            has foretold.
        """
        foretold = self.allowance.foretold(sent_ns, refusal)
        if (rows := self._rows_of(refusal)) is not None:
            self._refused = True
            rows.count(now_ns, sent_ns, refusal, in_flight_ns, foretold=foretold)
        return rows is self.rate_rows and (self.allowance.refuse(now_ns, sent_ns, refusal) or foretold)

    def row(self, now_ns: int, sent_ns: int, refusal: Refusal, in_flight_ns: Sequence[int] = ()) -> Row | None:
        """The row with a refusal that comes now, as for :meth:`refuse`; ``None`` for another sort."""
        rows, allowance = self._rows_of(refusal), self.allowance
        if rows is None:
            return None
        row = rows.row(now_ns, sent_ns, in_flight_ns, self.admitted, foretold=allowance.foretold(sent_ns, refusal))
        if rows is not self.rate_rows:
            return row
        return row._replace(
            is_allowance=allowance.covers(refusal),
            is_endless=allowance.is_endless(refusal),
            is_test=allowance.is_test(sent_ns),
            test_s=allowance.test_s(now_ns, sent_ns, refusal),
        )

    def probe_ns(self, refusal: Refusal) -> int:
        """How long the others wait for the answer to the probe after a refusal."""
        # Without a stated wait, or at full servers, there may be no room for more than the probe.
        asked_s = within(refusal.retry_after_s, 0.0, WAIT_MAX_S)
        if not asked_s or not refusal.kind.about_rate:
            return PROBE_NS
        # The answer may take minutes, and a refusal comes at once. A wait for one attempt is one for the next, too.
        return min(max(self.rate_rows.admitted_in_ns(), round(asked_s * NS)), PROBE_NS)

    def _rows_of(self, refusal: Refusal) -> Rows | None:
        if refusal.scope is not RefusalScope.POOL:
            return None
        if refusal.kind is RefusalKind.CAPACITY:
            return self.capacity_rows
        return self.rate_rows if refusal.kind.about_rate else None


def pause_s(refusal: Refusal, row: Row, first_s: float = FIRST_S, most_s: float = MOST_S, of_request: int = 1) -> float:
    """How long the pool waits after a refusal, the last one of a row, before it sends a probe.

    Where a measured rate decides when the next attempt goes, it does not wait.
    Of two stated waits the shorter one is kept until a probe after it is refused. A wait that was obeyed in vain was
    too short: then the pool's own estimate counts, too.

    Args:
        refusal: The refusal.
        row: The row.
        first_s: The own estimate for the first refusal of a row; it doubles with each further one.
        most_s: The longest own estimate.
        of_request: How many refusals of the same request count for the own estimate as if they were in the row.
    """
    if row.is_paced:
        return 0.0
    number = max(row.number, of_request)
    # 30 doublings are above any longest wait, and more of them would overflow.
    own_s = min(first_s * 2.0 ** min(number - 1, 30), most_s)
    # A wait of 0 is none: it would be tried again at once, without an end.
    asked_s = refusal.retry_after_s or 0.0
    if row.is_endless or not is_believed(refusal):
        asked_s = min(asked_s or row.test_s, row.test_s)
    # Of two stated waits, the shorter one is kept until a probe after it is refused.
    if row.number == 1:
        asked_s = min(asked_s, refusal.sooner_s or asked_s)
    # Not for refusals of one request: where others were admitted in between, no stated wait was too short.
    return max(asked_s, own_s) if row.number > 1 else asked_s or own_s
