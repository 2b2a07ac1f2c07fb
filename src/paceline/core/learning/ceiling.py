"""What refusals show of the rate of one quota: the share of it that the provider admits, its ceiling.

What was admitted between two refusals of a quota in demand is its refill. Without a refusal the ceiling climbs. The
meter has the ceiling, and its tracker changes it: the methods return what it is to be.
"""

from __future__ import annotations

from paceline.core.meters import Bucket
from paceline.core.quota import NS

APART_S = 4.0
"""Two refusals at least this far apart show the rate between them: the level at the server was about zero at both."""

CEILING_PART = 0.97
"""A ceiling is set to this part of that rate. With the whole of it, refusals were twice as frequent, for 0.3 % of
speed."""

CLIMB = 0.02
"""By how much a learned ceiling climbs within the time between the two refusals, so that it climbs more slowly after a
longer time. It climbs faster the longer there is no refusal."""

CLIMB_NS = NS // 2
"""The shortest time between two steps of a climb."""

SLOW_DOWN_CLIMB_S = 2_200.0
"""After a refusal for growth, the ceiling climbs by one part in this many per second: by half in 15 minutes.
Source: OpenAI's guide to error codes, ``slow_down`` (2026-10)."""

SLOW_DOWN_MIN = 1 / 8
"""How far refusals for growth lower a ceiling: one in ten answers of a minute would otherwise stop a pool for hours."""

CUT_LEAST = 0.4
"""One measurement lowers a ceiling no further than to this share of itself."""


class CeilingTracker:
    """The refusals of one quota, as far as they show its rate.

    Attributes:
        climbed_ns: When the ceiling climbed last.
    """

    __slots__ = ("_busy_s", "_climb_s", "_first", "_steady", "climbed_ns")

    def __init__(self) -> None:
        # The refusal that begins the present measurement: when its attempt was sent, and the amount admitted before.
        self._first: tuple[int, float] | None = None
        self._busy_s = 0.0  # seconds of demand in which the ceiling has climbed since then
        self._climb_s = APART_S  # seconds of demand in which the ceiling climbs by CLIMB
        self._steady = False  # whether it climbs at one speed, and no faster after a time without refusals
        self.climbed_ns = 0

    def forget(self) -> None:
        """End the present measurement: the rate or the rule has changed, or the refill is a counter's."""
        self._first = None

    @property
    def is_measuring(self) -> bool:
        """Whether a measurement goes on, since a refusal."""
        return self._first is not None

    def share(self, sent_ns: int, admitted: float, true: float, rate: float) -> float | None:
        """The share of the ``rate`` that was admitted between two refusals.

        ``None``: they are too close, or this is the first.

        Args:
            sent_ns: When the refused attempt was sent.
            admitted: What was admitted before it, as charged.
            true: The true costs, as a part of the charges.
            rate: The rate of the quota, per second.
        """
        if self._first is None or sent_ns - self._first[0] < APART_S * NS:
            return None
        self._climb_s = (sent_ns - self._first[0]) / NS
        return (admitted - self._first[1]) * true / (sent_ns - self._first[0]) * NS / rate

    def count(self, sent_ns: int, admitted: float) -> None:
        """Begin a measurement at this refusal, unless the present one is shorter than ``APART_S``."""
        if self._first is None or sent_ns - self._first[0] >= APART_S * NS:
            self._first = (sent_ns, admitted)
        self._busy_s = 0.0

    def count_elsewhere(self, now_ns: int, admitted: float) -> None:
        """Measure from a refusal of another process on, unless a measurement goes on."""
        if self._first is None:
            self._first, self._busy_s = (now_ns, admitted), 0.0

    def slow_down(self, now_ns: int, present: float) -> float:
        """Half of the ``present`` ceiling after a refusal for growth, an eighth at least.

        It climbs by half in 15 minutes at most.
        """
        self.climbed_ns = now_ns
        self._climb_s, self._steady = CLIMB * SLOW_DOWN_CLIMB_S, True
        return max(present / 2, min(SLOW_DOWN_MIN, present))

    def climb_from(self, now_ns: int, climb_s: float) -> None:
        """Climb from now on by ``CLIMB`` in ``climb_s`` seconds of demand."""
        self.climbed_ns, self._climb_s = now_ns, climb_s

    def climb(self, now_ns: int, m: Bucket, amount: float) -> float | None:
        """The ceiling of ``m`` after a step, for an attempt of ``amount``; ``None``: no step is due.

        Idle time adds nothing.
        """
        if m.ceiling >= 1 or now_ns - self.climbed_ns < CLIMB_NS:
            return None
        # Idle time does not count: a pool in demand sends such an attempt at least once in twice the time of its
        # refill. At least 1 s counts, because many small attempts come between two steps.
        demand_s = max(2 * amount * m.ns_per_unit / NS, 1.0)
        step_s = min((now_ns - self.climbed_ns) / NS, demand_s)
        self.climbed_ns = now_ns
        self._busy_s += step_s
        gain = CLIMB * step_s / self._climb_s * (1 if self._steady else 1 + self._busy_s / 60)
        return m.ceiling * (1 + gain)
