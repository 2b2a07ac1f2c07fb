"""The meters of unstated limits: the measured rate of a unit, and the bound on the number in flight.

They have no amount. Their quota is what was found last, for those who read it.
"""

from __future__ import annotations

from abc import abstractmethod
from math import ceil, inf, isfinite, log, log2
from typing import Generic, TypeVar

from paceline.core.meters import TINY, Meter
from paceline.core.quota import CONCURRENCY, FAR_NS, NS, Quota, Rule
from paceline.core.results import Refusal, Reservation
from paceline.core.unstated.in_flight import InFlightBound, InFlightNote
from paceline.core.unstated.in_time import InTimeBound
from paceline.core.unstated.rate import MeasuredRate, RateNote, RatePhase

T = TypeVar("T", RateNote, InFlightNote)


class FoundMeter(Meter, Generic[T]):
    """A limit that is found from outcomes. Each attempt has a note, whose number is its mark.

    Attributes:
        index: The index of its entry.
        notes: The note of each attempt in flight, by its mark.
    """

    __slots__ = ("index", "notes")

    def __init__(self, index: int, unit: str, period_s: float) -> None:
        self.index = index
        self.notes: dict[int, T] = {}
        self.quota = Quota(unit, 1.0, period_s, rule=Rule.MEASURED)
        self.headroom_s, self.most = 0.0, inf

    @property
    @abstractmethod
    def found(self) -> float | None:
        """The amount that was found; ``None`` for none, or while another limit holds."""

    @property
    def is_known(self) -> bool:
        return self.found is not None

    @property
    @abstractmethod
    def is_limiting(self) -> bool:
        """Whether it holds attempts back now."""

    @abstractmethod
    def off(self, now_ns: int) -> None:
        """Limit nothing from now on, and forget what was found: a limit is stated.

        Refusals in spite of it are evidence.
        """

    def explained(self, now_ns: int, reservation: Reservation) -> None:
        """The attempt was refused for another reason than this limit."""
        if self.index < len(reservation.marks):
            self.unsent(now_ns, reservation.marks[self.index], 0.0)

    @property
    def told(self) -> float:
        """What other processes are told of it."""
        return self.found or 0.0

    def among(self, now_ns: int, total: float, peers: int) -> None:
        """Note the sum of what so many processes have told, this one among them."""

    def take(self, reservation: Reservation) -> T | None:
        """Remove and return the note of an attempt; ``None``: it has none."""
        return self.notes.pop(reservation.marks[self.index], None) if self.index < len(reservation.marks) else None

    def describe(self, found: float) -> None:
        """Let the quota be what was found."""
        self.quota = self.quota.with_amount(float(f"{found:.3g}"))

    def lost(self, now_ns: int, mark: int) -> None:
        self.answered(now_ns, mark, 0.0)

    def move(self, now_ns: int, mark: int, amount: float) -> int:
        self.unsent(now_ns, mark, amount)
        return self.charge(now_ns, amount)

    def level(self, now_ns: int) -> float:
        """1 if an attempt may go, else 0: there is no amount, so nothing of it can be left."""
        return float(self.earliest(now_ns, 1.0) <= now_ns)

    def full_ns(self, now_ns: int) -> int | None:  # noqa: ARG002
        return None

    def become(self, now_ns: int, quota: Quota, ceiling: float = 1.0) -> None:
        """A stated amount is about another quota."""


class RateMeter(FoundMeter[RateNote]):
    """The measured rate of one unit.

    Attributes:
        rate: The rate.
    """

    __slots__ = ("rate",)

    def __init__(self, index: int, unit: str, now_ns: int) -> None:
        super().__init__(index, unit, 60.0)
        self.rate = MeasuredRate(now_ns)

    @property
    def found(self) -> float | None:
        """What is admitted at the measured rate of attempts, per period: all but the share that chance refuses."""
        return self.rate.cycle.top * (1 - self.rate.chance.share) * self.quota.period_s or None

    @property
    def is_limiting(self) -> bool:
        return self.rate.phase is not RatePhase.OFF

    def off(self, now_ns: int) -> None:
        self.rate, self.notes = MeasuredRate(now_ns, stated=True), {}

    @property
    def told(self) -> float:
        return self.rate.told * self.quota.period_s

    def among(self, now_ns: int, total: float, peers: int) -> None:
        # Where no process has told a rate, the sum of floats may be off zero, on either side.
        self.rate.lean(now_ns, total / peers / self.quota.period_s if peers > 1 and total > TINY else 0.0)

    def earliest(self, now_ns: int, cost: float, ahead: float = 0.0, slack_ns: int = 0) -> int:  # noqa: ARG002
        at_ns = self.rate.earliest_ns(now_ns)
        return max(at_ns, now_ns) + self._takes_ns(ahead) if ahead else at_ns

    def _takes_ns(self, amount: float) -> int:
        """How long ``amount`` takes at least. An opening rate doubles each second."""
        rate = self.rate
        if rate.phase is RatePhase.OPENING:
            # In t seconds it admits the integral of rate x 2^t: this is solved for t.
            return ceil(log2(1 + amount * log(2) / rate.rate) * NS)
        return ceil(amount / rate.cycle.top * NS) if rate.cycle.top else 0

    def refutes(self, now_ns: int, amount: float, period_s: float) -> bool:
        """Whether more was admitted than ``amount`` per period allows, of any rule.

        A counter may restart in between.
        """
        rate, at_ns = self.rate, self.rate.empty.at_ns
        pending = sum(note.amount for note in self.notes.values())
        admitted = rate.tally.admitted - rate.empty.admitted - pending
        # Two amounts beside the time: all of one window at its end, and all of the next one at its start.
        most = amount * (2 + max(now_ns - at_ns, 0) / NS / period_s)
        return max(admitted - most, rate.cycle.top * period_s - 2 * amount) > 0

    def admits_others(self, reservation: Reservation) -> bool:
        """Whether an attempt was admitted, or may be, that is not the one of ``reservation``."""
        mark = reservation.marks[self.index] if self.index < len(reservation.marks) else 0
        own = self.notes[mark].amount if mark in self.notes else 0.0
        return self.rate.tally.admitted > own

    def charge(self, now_ns: int, cost: float) -> int:
        note = self.rate.sent(now_ns, cost)
        self.notes[note.number] = note
        return note.number

    def unsent(self, now_ns: int, mark: int, charged: float) -> None:  # noqa: ARG002
        if (note := self.notes.pop(mark, None)) is not None:
            self.rate.unsent(note)

    def answered(self, now_ns: int, mark: int, cost: float) -> None:  # noqa: ARG002
        if (note := self.notes.pop(mark, None)) is not None:
            self.rate.answered(now_ns, note)

    def explained(self, now_ns: int, reservation: Reservation) -> None:
        if (note := self.take(reservation)) is not None:
            self.rate.explained(now_ns, note)


class InFlightMeter(FoundMeter[InFlightNote]):
    """The bounds on the number in flight.

    Attributes:
        bound: The one that refusals show.
        in_time: The one that time-outs and full queues show.
    """

    __slots__ = ("bound", "in_time")

    def __init__(self, index: int) -> None:
        super().__init__(index, CONCURRENCY, 0.0)
        self.bound = InFlightBound()
        self.in_time = InTimeBound(self.bound.flight)

    @property
    def found(self) -> float | None:
        size = min(self.bound.size, self.in_time.usual)
        return size if isfinite(size) else None

    @property
    def is_limiting(self) -> bool:
        return isfinite(self.bound.size) or isfinite(self.in_time.size)

    def off(self, now_ns: int) -> None:  # noqa: ARG002
        self.bound, self.notes = InFlightBound(), {}
        self.in_time = InTimeBound(self.bound.flight)

    def earliest(self, now_ns: int, cost: float, ahead: float = 0.0, slack_ns: int = 0) -> int:  # noqa: ARG002
        if self.bound.flight.in_flight + ahead >= self.bound.size:
            return FAR_NS
        return self.in_time.earliest_ns(now_ns, ahead)

    def charge(self, now_ns: int, cost: float) -> int:  # noqa: ARG002
        note = self.bound.sent(now_ns)
        note.is_behind = self.in_time.busy_ns > 0
        self.notes[note.number] = note
        return note.number

    def unsent(self, now_ns: int, mark: int, charged: float) -> None:  # noqa: ARG002
        if (note := self.notes.pop(mark, None)) is not None:
            self.bound.flight.lost(note)

    def answered(self, now_ns: int, mark: int, cost: float) -> None:  # noqa: ARG002
        if (note := self.notes.pop(mark, None)) is not None:
            self.bound.ended(now_ns, note, answered=True)
            self.in_time.answered(now_ns, note)

    def timed_out(self, now_ns: int, reservation: Reservation) -> bool:
        """Count an attempt whose caller has given up; whether the number in flight was the reason."""
        if (note := self.take(reservation)) is None:
            return False
        self.bound.ended(now_ns, note, answered=False)  # it was admitted
        return self.in_time.timed_out(now_ns, note)

    def fills_queue(self, reservation: Reservation, refusal: Refusal) -> bool:
        """Whether a full queue has refused an attempt that had others in flight, which fill that queue."""
        note = self._note(reservation)
        return refusal.unit == CONCURRENCY and note is not None and note.most > 0

    def bounds(self, reservation: Reservation) -> bool:
        """Whether the known bound explains the refusal of an attempt by full servers."""
        note = self._note(reservation)
        return note is not None and self.bound.counts_full and self.bound.explains(note)

    def _note(self, reservation: Reservation) -> InFlightNote | None:
        return self.notes.get(reservation.marks[self.index]) if self.index < len(reservation.marks) else None

    def refused_by_full(self, now_ns: int, reservation: Reservation) -> bool:
        """Count a refusal of full servers; whether the number in flight is the reason."""
        note = self.take(reservation)
        return note is not None and self.bound.refused_by_full(now_ns, note)

    def refused_by_queue(self, reservation: Reservation) -> None:
        """Count a refusal because the queue of the server is full; see :meth:`fills_queue`."""
        note = self.notes.pop(reservation.marks[self.index])
        self.in_time.refused(note)
        self.bound.flight.lost(note)
