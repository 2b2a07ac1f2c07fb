"""When one quota restarts, from the instants that answers state."""

from __future__ import annotations

import math
from enum import Enum

from paceline.core.learning.refill import ROUGH, usual
from paceline.core.meters import Named
from paceline.core.quota import NS

ROUNDED_NS = NS
"""By how much a stated instant differs from the true one at most: instants are rounded to whole seconds, up or down."""

LEAST_NS = ROUGH * ROUNDED_NS
"""If neither a reset nor their distance is as long, restarts are too close together: the rounding is too large a part
of it."""

JUMP = 0.5
"""An instant that moves by this part of the longest reset is about the next restart. The reset of a trailing period
moves by less."""

TRANSIT_NS = NS // 4
"""How long an attempt, or an answer, is on its way at most: those that were sent within this time of each other may
reach the server in the other order."""


class Written(Enum):
    """When a server writes the reset of an answer that takes long."""

    FIRST = "first"  # when it admits the attempt
    LAST = "last"  # when it answers


class Restarts:
    """The instant of the next restart of a counter, as bounds.

    An answer states the time until the restart. It was written between the sending of its attempt and its arrival, so
    each answer bounds the instant from both sides. Where answers take too long for that, both times of writing are
    followed until one of them is refuted. The bounds of answers about one restart have a part in common. The reset of a
    bucket and of a trailing period moves with what is sent, before it is reached.

    Attributes:
        low_ns: The earliest instant of the restart that was named last.
        high_ns: The latest instant of it.
        period_s: The time between two restarts; ``None`` before the second one.
        most_s: What it is at most: the least time between two restarts that were named.
        refuted: Whether the quota does not restart at the stated instants.
    """

    def __init__(self, written: Written | None = None) -> None:
        self._written = written  # when resets are written, if that is known
        self._both: tuple[Restarts, ...] = ()  # both possibilities, while it is not
        self.low_ns = self.high_ns = 0
        self.period_s: float | None = None
        self.most_s = math.inf
        self.refuted = False
        self._longest_ns = 0  # the longest reset so far
        self._since_ns = 0  # when the first attempt was sent whose answer has named this restart
        self._late_ns = 0  # by how much the restarts are later than stated
        self._due_ns = 0  # when the present one should have come, if it is late; else 0
        self._most = 0.0  # the most that the quota has lacked since

    def read(self, sent_ns: int, now_ns: int, reset_s: float, lack: float, *, instant: bool = False) -> Named | None:
        """Take the reset of an answer that came now, and what the quota lacked.

        Args:
            sent_ns: When its attempt was sent.
            now_ns: The present.
            reset_s: Seconds until the restart; negative when it has passed.
            lack: What the quota lacked.
            instant: Whether the answer states the instant, so that ``reset_s`` counts from now; else from when it was
                written.

        Returns:
            ``None``: the answer took so long, or the reset is so short, that it names no restart.
        """
        if self._written is not None:
            sent_ns, now_ns = self._written_between(sent_ns, now_ns)
        reset_ns, written_ns = round(reset_s * NS), now_ns if instant else sent_ns
        self._longest_ns = max(self._longest_ns, reset_ns + written_ns - sent_ns)
        if self._longest_ns <= ROUNDED_NS:
            return None
        if now_ns - written_ns > JUMP * self._longest_ns:
            return self._try_both(sent_ns, now_ns, reset_s, lack)
        low_ns, high_ns = written_ns + reset_ns - ROUNDED_NS, now_ns + reset_ns + ROUNDED_NS + self._late_ns
        is_past = reset_ns <= 0 < self.high_ns <= sent_ns
        if is_past and low_ns - self.high_ns <= (0 if instant else JUMP * self._longest_ns):
            self._due_ns = self._due_ns or self.high_ns
            self.high_ns = now_ns + ROUNDED_NS
            return Named.LATE
        if low_ns <= self.high_ns and high_ns >= self.low_ns and sent_ns < self.high_ns:
            self.low_ns, self.high_ns = max(self.low_ns, low_ns), min(self.high_ns, high_ns)
            self._most = max(self._most, lack)
            return Named.SAME
        if high_ns < self.low_ns and sent_ns < self._since_ns:
            return Named.EARLIER
        if self.high_ns and not self._jumps(sent_ns, low_ns - self.high_ns, lack):
            self.refuted = True
            return Named.NONE
        self._follow(sent_ns, low_ns, now_ns + reset_ns + ROUNDED_NS, lack)
        return Named.NEXT

    def _written_between(self, sent_ns: int, now_ns: int) -> tuple[int, int]:
        """When the reset of an answer was written, at the earliest and at the latest."""
        if self._written is Written.FIRST:
            return sent_ns, min(now_ns, sent_ns + TRANSIT_NS)
        return max(sent_ns, now_ns - TRANSIT_NS), now_ns

    def _jumps(self, sent_ns: int, by_ns: int, lack: float) -> bool:
        """Whether an instant that is ``by_ns`` later is the next restart: it is far, and what was used is back."""
        back = sent_ns >= self.low_ns or lack < JUMP * self._most
        return back and by_ns >= JUMP * self._longest_ns and max(by_ns, self._longest_ns) >= LEAST_NS

    def _follow(self, sent_ns: int, low_ns: int, high_ns: int, lack: float) -> None:
        """Take the bounds of the next restart."""
        if self._due_ns:
            self._late_ns, self._due_ns = self._late_ns + max(sent_ns - self._due_ns, 0), 0
        high_ns += self._late_ns
        self._take_period(sent_ns - self.high_ns, low_ns - self.high_ns, high_ns - self.low_ns)
        self.low_ns, self.high_ns, self._since_ns, self._most = low_ns, high_ns, sent_ns, lack

    def _try_both(self, sent_ns: int, now_ns: int, reset_s: float, lack: float) -> Named | None:
        """Take the reset of an answer that took long: it was written first or last, and one of the two is refuted."""
        if self.period_s:
            return None
        self._both = self._both or tuple(map(Restarts, Written))
        read = {one: one.read(sent_ns, now_ns, reset_s, lack) for one in self._both if not one.refuted}
        left = [one for one in read if not one.refuted]
        if len(left) != 1 or not left[0].period_s:
            return None
        vars(self).update(vars(left[0]))  # this one goes on as the one that is left
        return read[left[0]]

    def _take_period(self, since_ns: int, low_ns: int, high_ns: int) -> None:
        """Take the bounds of the distance of two restarts.

        An attempt of the later one was sent ``since_ns`` after the earlier one.
        """
        distance_s = usual(low_ns / NS, high_ns / NS)
        self.most_s = min(self.most_s, distance_s)
        if since_ns < self._longest_ns - ROUNDED_NS:  # no restart has passed between
            self.period_s = distance_s
