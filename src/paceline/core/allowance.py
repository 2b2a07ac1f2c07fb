"""A wait that is too long for a rate: the account has nothing left until an end, and then goes on as before.

Plans of coding agents, and days without a unit, refuse so. No rate, burst or rule is to be learned from it. The stated
end is believed, and tested by a request that waits anyway: windows are opened early, and some hosts state a long wait
before a short one.

A refusal may name the window of a plan that is used up. Then it is one however little it asks, and opens early by the
provider's will. An end that is not stated is tested ever more rarely.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from paceline.core.quota import LONG_S, NS
from paceline.core.results import WAIT_MAX_S, Refusal

LONG_WAIT_S: Final = 60.0
"""A stated wait that is longer is tested, unless the refusal names a quota of such a period."""

PROBE_S: Final = 15.0
"""In the first minute of such a wait, a test goes each time that so long has passed, until one wait was true. Later
they go after 1, 2, 4 ... minutes."""

TEST_MAX_S: Final = 3_600.0
"""The longest time between two tests: a week of refusals is at most 175. At most an eighth of the wait, or 10 minutes,
of a shorter one: an early opening costs little of what it gives."""

OPENS_NS: Final = round(LONG_WAIT_S * NS)
"""How long the others wait for the answer of one that goes after an allowance has ended: as long as for the first test
of its end."""

SAME_END_NS: Final = 5 * NS
"""Two stated ends are one where they differ by so little, or by a hundredth of the wait: waits are rounded, and take
their way."""

NAMED_PART: Final = 1.1
"""A stated wait of up to so many periods of the named quota is believed: a counter restarts then."""

FALSE_MAX: Final = 3
"""After so many waits in a row that were over before a quarter of them, a host is taken to state such waits before a
rate. One may have been an early opening, and each costs a test."""


class Shut(NamedTuple):
    """An allowance that is used up, or that opens.

    Attributes:
        window: The window of a plan that it is; ``None``: the refusals name none.
        state: ``shut``, ``probing`` (one request asks whether it is) or ``opening`` (two follow each answer).
        began_ns: When the first refusal came.
        ends_ns: When it ends, as stated; 0: not known.
        test_ns: When a request that waits asks whether it is shut still.
        waiting: How many requests wait for it.
    """

    window: str | None
    state: str
    began_ns: int
    ends_ns: int
    test_ns: int
    waiting: int


def is_believed(refusal: Refusal) -> bool:
    """Whether the wait that a refusal states is obeyed without a test: it is short, or about a named quota."""
    return (refusal.retry_after_s or 0.0) <= max(LONG_WAIT_S, NAMED_PART * (refusal.period_s or 0.0))


class Allowance:
    """The long wait that the provider of a pool states.

    It lasts from its first refusal to the first served attempt that was sent after it.

    Attributes:
        window: The window of a plan that the last of its refusals has named; ``None`` for none.
        began_ns: When its first refusal came; 0: nothing is shut.
    """

    def __init__(self) -> None:
        self.began_ns = self._ends_ns = 0  # the end that the last refusal has stated; 0: none
        self.window: str | None = None
        self._asked_s = self._longest_s = 0.0  # the last wait that they have stated, and the longest one
        self._unnamed = False  # it is about no named quota
        self._is_true = False  # one was not over before a quarter of it
        self._false = 0  # how many in a row were

    @property
    def is_shut(self) -> bool:
        """Whether the account has nothing left."""
        return self.began_ns > 0 and (self.window is not None or (self._unnamed and self._false < FALSE_MAX))

    @property
    def ends_ns(self) -> int:
        """When an allowance ends that is shut, as stated; 0 for none, or an unknown end."""
        return self._ends_ns if self.is_shut else 0

    def told(self, now_ns: int) -> list[Any]:
        """All that it knows, for other processes: JSON values, without instants."""
        # Differences of time, because the clocks of processes differ.
        times = (at_ns - now_ns if at_ns else None for at_ns in (self.began_ns, self._ends_ns))
        return [*times, self.window, self._unnamed, self._is_true, self._false, self._asked_s, self._longest_s]

    def adopt(self, at_ns: int, told: list[Any]) -> None:
        """Know what another process has told at ``at_ns``."""
        began_ns, ends_ns, self.window, self._unnamed, self._is_true, self._false, self._asked_s, self._longest_s = told
        self.began_ns = 0 if began_ns is None else at_ns + began_ns
        self._ends_ns = 0 if ends_ns is None else at_ns + ends_ns

    def is_same(self, other: Allowance) -> bool:
        """Whether both are shut without a name, and to the same end: of two models of a plan it is one window then."""
        if not (self.is_shut and other.is_shut and self.window is None and other.window is None):
            return False
        return abs(self._ends_ns - other._ends_ns) <= max(SAME_END_NS, (self._ends_ns - self.began_ns) // 100)

    def covers(self, refusal: Refusal) -> bool:
        """Whether a refusal is about an allowance, and so about no rate.

        While one is shut, an unnamed refusal is about it, however little it asks: near its end a window asks for
        little. For the same reason a shorter wait is enough where one was true.
        """
        return refusal.window is not None or (self._false < FALSE_MAX and self._is_unnamed(refusal))

    def is_endless(self, refusal: Refusal) -> bool:
        """Whether the end is not known of a window that a refusal names."""
        return refusal.window is not None and not (_asked_s(refusal) or self._ends_ns)

    def is_test(self, sent_ns: int) -> bool:
        """Whether an attempt that was sent at ``sent_ns`` tells whether it is shut still."""
        return 0 < self.began_ns <= sent_ns

    def foretold(self, sent_ns: int, refusal: Refusal) -> bool:
        """Whether the refusal of a test that was sent at ``sent_ns`` is no sign that its wait was too short.

        It was sent before the stated end, or states another one, which is tested as well, or comes nearer.
        """
        if not self.is_test(sent_ns):
            return False
        asked_s = _asked_s(refusal)
        is_another = self.covers(refusal) and (asked_s > LONG_WAIT_S or 0 < asked_s < self._asked_s)
        return sent_ns < self._ends_ns or not self._ends_ns or is_another

    def opens_ns(self, until_ns: int) -> int:
        """:data:`OPENS_NS` if many may wait for ``until_ns``, when it opens: a window, or shut for a minute; else 0."""
        return OPENS_NS if self.window is not None or until_ns - self.began_ns >= OPENS_NS else 0

    def test_s(self, now_ns: int, sent_ns: int, refusal: Refusal) -> float:
        """How long after a refusal the stated wait is tested."""
        passed_s = (now_ns - self.began_ns) / NS if self.is_test(sent_ns) else 0.0
        longest_s = max(self._longest_s, _asked_s(refusal))
        # An eighth of the wait at most, so that an early opening costs little of what it gives.
        most_s = TEST_MAX_S if self.is_endless(refusal) else min(TEST_MAX_S, max(LONG_S, longest_s / 8))
        first_s = LONG_WAIT_S if self._is_true or refusal.window is not None else PROBE_S
        # As long again as has passed, and a minute: the time to the next test doubles.
        return min(first_s if passed_s < LONG_WAIT_S else passed_s + LONG_WAIT_S, most_s)

    def refuse(self, now_ns: int, sent_ns: int, refusal: Refusal) -> bool:
        """Take the wait of a refusal for the rate of the pool: a newer one counts, also if it is shorter.

        Returns:
            Whether it is about an allowance; see :meth:`covers`.
        """
        asked_s, unnamed, window = _asked_s(refusal), self._is_unnamed(refusal), refusal.window
        # A short wait is about an allowance only while one is shut: near its end a window asks for little.
        is_short = asked_s <= LONG_WAIT_S and not (unnamed and self.is_test(sent_ns))
        # A refusal about a rate, beside the window, says nothing of its end.
        if window is not None or not (is_short or (self.is_shut and not unnamed)):
            # The first refusal counts. What was sent before it tells nothing of the end.
            self.began_ns = self.began_ns or now_ns
            self._unnamed |= unnamed
            self.window = window
            if asked_s:
                self._ends_ns = now_ns + round(asked_s * NS)
                self._asked_s, self._longest_s = asked_s, max(self._longest_s, asked_s)
        return window is not None or (unnamed and self._false < FALSE_MAX)

    def admit(self, sent_ns: int) -> None:
        """Open it, if an attempt was served that was sent after its first refusal."""
        if not self.is_test(sent_ns):
            return
        if self._unnamed and self.window is None:
            # A quarter is enough: windows are opened early, and such a wait was no lie.
            lasted = 4 * (sent_ns - self.began_ns) >= self._ends_ns - self.began_ns
            self._false = 0 if lasted else self._false + 1
            # Some early openings between true ends don't change what is known of the host.
            self._is_true = lasted or (self._is_true and self._false < FALSE_MAX)
        self.began_ns = self._ends_ns = 0
        self._longest_s, self._unnamed = 0.0, False

    def _is_unnamed(self, refusal: Refusal) -> bool:
        if refusal.unit is not None or refusal.window is not None:
            return False
        # Of two stated waits the shorter one is tried first, and it decides what the refusal is about.
        asked_s = refusal.sooner_s or _asked_s(refusal)
        return self._unnamed or asked_s > (LONG_WAIT_S if self._is_true else LONG_S)


def _asked_s(refusal: Refusal) -> float:
    """The wait that a refusal states; 0 for none, or nonsense."""
    asked_s = refusal.retry_after_s
    return asked_s if asked_s is not None and 0.0 <= asked_s <= WAIT_MAX_S else 0.0
