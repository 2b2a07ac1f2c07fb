"""All that answers teach about the quotas of a ledger, behind one door: :class:`Learning`."""

from __future__ import annotations

from collections.abc import Callable

from paceline.core.changes import Change
from paceline.core.learning.corrections import Corrections
from paceline.core.learning.guesses import STALL_NS
from paceline.core.learning.readings import Readings
from paceline.core.learning.refusals import Refusals
from paceline.core.learning.resets import TRANSIT_NS
from paceline.core.learning.tracker import Note
from paceline.core.ledger import Ledger
from paceline.core.results import Refusal, Reservation


class Learning:
    """The learning about all quotas of a ledger.

    Args:
        ledger: The ledger, whose meters are corrected.
        report: Called with every change, so that other processes can make it, too. They know the quotas that are added.
        raises: Whether an answer may raise a limit that the user has given.
        adapts: Whether the headroom of buckets adapts: to attempts that are sent late, and to refusals of a bucket that
            was nearly empty.

    Attributes:
        readings: Learns from the headers of answers.
        refusals: Learns from refusals.
        corrections: Makes the corrections that follow.
        trackers: What answers have shown about the buckets and the spread quotas, by their index.
        guesses: The limits that may be too low, and are tested upward.
        unstated: The limits that neither the user nor an answer states.
        notices: What the user should know, for the log; the pool has them.
    """

    def __init__(
        self,
        ledger: Ledger,
        report: Callable[[Change], None] | None = None,
        *,
        raises: bool = False,
        adapts: bool = False,
    ) -> None:
        self.corrections = Corrections(ledger, report, raises=raises, adapts=adapts)
        self.readings = Readings(self.corrections)
        self.refusals = Refusals(self.corrections)
        self.trackers, self.guesses = self.corrections.trackers, self.corrections.guesses
        self.unstated, self.notices = self.corrections.unstated, self.corrections.notices

    def paces(self, now_ns: int, reservation: Reservation, refusal: Refusal) -> bool:
        """Whether what was found decides when the next attempt goes after a refusal.

        After a refusal of a lone request it does once another was admitted.
        """
        knows = not reservation.alone or self.unstated.admits_others(reservation)
        return knows and self.refusals.is_unstated(now_ns, reservation, refusal)

    def is_measured(self, now_ns: int, reservation: Reservation, refusal: Refusal) -> bool:
        """Whether a refusal is about an unstated limit that is measured already."""
        return self.unstated.measures(refusal.unit) and self.refusals.is_unstated(now_ns, reservation, refusal)

    def measure(self, now_ns: int, unit: str | None = None) -> None:
        """Find the unstated limit of ``unit`` from outcomes; see :meth:`Unstated.begin`."""
        self.unstated.begin(now_ns, unit)

    def timed_out(self, now_ns: int, reservation: Reservation) -> bool:
        """Take a time-out, before the attempt is settled; see :meth:`Unstated.timed_out`."""
        return self.unstated.timed_out(now_ns, reservation)

    def retracted(self, now_ns: int, reservation: Reservation, refusal: Refusal) -> None:
        """Take a refusal that is about its request alone, and take back the earlier ones of that request."""
        self.unstated.retracted(now_ns, reservation, refusal)

    def stalled(self, now_ns: int, until_ns: int, amounts: list[float]) -> None:
        """Tell the user if a guess is why a request with ``amounts`` waits until an instant, if that is far."""
        if until_ns > now_ns + STALL_NS:
            self.guesses.stalled(now_ns, amounts)

    def sent_late(self, late_s: float) -> None:
        """Raise adaptive headrooms: an attempt was sent ``late_s`` after its grant.

        While it was on its way, a full bucket of the provider did not refill, and the ledger's did.
        """
        for tracker in self.trackers.values():
            tracker.raise_headroom(late_s)

    def sent_within(self, slack_ns: int) -> None:
        """Take into account that attempts are sent up to ``slack_ns`` after their charge.

        Their order at the server shows less.
        """
        for tracker in self.trackers.values():
            tracker.about_ns = TRANSIT_NS + slack_ns

    def granted(self, now_ns: int, reservation: Reservation, *, by_store: bool = False) -> None:
        """Take the notes of an attempt that is sent now. If a store has granted it, that has counted the charge."""
        shedding, admitted = self.unstated.shedding, self.unstated.admitted
        shedding.sent += 1
        reservation.number = shedding.sent
        admitted.log(now_ns, admitted.total + 1)
        amounts = reservation.amounts
        notes: dict[int, Note] = {}
        for index, tracker in self.trackers.items():
            if index < len(amounts) and amounts[index]:  # quotas may have been added since the lease
                notes[index] = tracker.sent(now_ns, amounts[index], logged=by_store)
        reservation.notes = notes

    def notes_of_now(self) -> dict[int, Note]:
        """The notes of an attempt without a charge that is sent now."""
        return {index: tracker.note() for index, tracker in self.trackers.items()}

    def served(self, now_ns: int, reservation: Reservation, true: list[float]) -> None:
        """Raise the guesses that bind, after an attempt that the provider has served at the cost ``true``."""
        if not (self.guesses.tested and reservation.number):
            return
        for index, amount, source, gain in self.guesses.served(now_ns, reservation, true):
            self.corrections.set_limit(now_ns, index, amount, source)
            tracker = self.trackers.get(index)
            if gain and tracker is not None and tracker.entry.meter.bursts:
                tracker.gain(now_ns, gain)
