"""The capacity of quotas that one process keeps alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

from paceline.core.capacity import Capacity, Learns
from paceline.core.learning.learning import Learning
from paceline.core.ledger import Ledger
from paceline.core.pause import PROBE_NS
from paceline.core.queue import Waiter
from paceline.core.quota import FAR_NS, Cost, Quota
from paceline.core.results import QUEUE, Decision, Reading, Refusal, Reservation


class LocalCapacity(Capacity):
    """Quotas that this process keeps alone.

    Args:
        ledger: The quotas.
        learns: Whether answers change the quotas, because a provider counts them, too; ``up``: and raise given ones.
        adapts: Whether the headroom of buckets adapts; only where answers change the quotas.
    """

    behind = QUEUE
    exchange_ns = FAR_NS
    exchange_due = False
    settled = True
    learning: Learning | None = None

    def __init__(self, ledger: Ledger, *, learns: Learns = False, adapts: bool = False) -> None:
        self.ledger = ledger
        if learns:
            self.learning = Learning(ledger, raises=learns == "up", adapts=adapts)

    @classmethod
    def of(
        cls, quotas: Iterable[Quota], now_ns: int, *, learns: Learns = False, adapts: bool = False, **options: Any
    ) -> Self:
        """The capacity of ``quotas``, with nothing used; ``options`` as for :class:`~paceline.core.ledger.Ledger`."""
        return cls(Ledger(quotas, now_ns, gentle=bool(learns), **options), learns=learns, adapts=adapts)

    def reserve(self, now_ns: int, waiter: Waiter) -> Decision:
        decision = self.ledger.reserve(now_ns, waiter.cost, waiter.amounts)
        if self.learning is not None and isinstance(decision, Reservation):
            self.learning.granted(now_ns, decision)
        return decision

    def no_refill_for_unsent(self, now_ns: int, unsent: Sequence[Reservation]) -> None:
        """Let no bucket refill beyond the charges of ``unsent``, attempts that were granted and are sent from now on.

        The provider has not charged them: its bucket stays full meanwhile.
        """
        for reservation in unsent:
            self.sent(now_ns, reservation)
        # Without this rule, three stalls of 20 s at 100 requests per 6 s cost 704 refusals (tests/pacing/test_late.py).
        self._lower_to(now_ns, unsent)

    def _lower_to(self, now_ns: int, arriving: Iterable[Reservation]) -> None:
        """Lower the levels to what the provider has left if it charges ``arriving`` now.

        It has refilled all before.
        """
        amounts = [0.0] * len(self.ledger.entries)
        for reservation in arriving:
            for index, amount in enumerate(reservation.amounts):
                amounts[index] += amount
        trackers = {} if self.learning is None else self.learning.trackers
        for index, (entry, amount) in enumerate(zip(self.ledger.entries, amounts, strict=True)):
            m, tracker = entry.meter, trackers.get(index)
            if amount and (by_ns := m.surplus_ns(now_ns, amount)):
                # A tracker moves the notes of earlier attempts along: their readings are compared with this level.
                (tracker.move_level if tracker is not None else m.shift)(now_ns, by_ns)

    def sent(self, now_ns: int, reservation: Reservation) -> None:
        """Count a granted attempt as charged now, where the instant counts: it goes later than it was granted."""
        for index, (entry, amount) in enumerate(zip(self.ledger.entries, reservation.amounts, strict=False)):
            # One that is closed was sent already, and stays where it is.
            if amount and reservation.open:
                reservation.marks[index] = entry.meter.move(now_ns, reservation.marks[index], amount)

    def is_current(self, now_ns: int) -> bool:  # noqa: ARG002
        return True

    def settle(self, now_ns: int, reservation: Reservation, actual: Cost | None) -> list[float]:
        true = self.ledger.settle(now_ns, reservation, actual)
        if actual and self.learning is not None:
            self.learning.served(now_ns, reservation, true)
        return true

    def admitted(self, now_ns: int, reservation: Reservation) -> None:
        if self.ledger.pause.opens_ns:
            self.ledger.pause.answered(now_ns, reservation, ended=False)

    def adjust(self, now_ns: int, reservation: Reservation, known: Cost) -> None:
        self.ledger.adjust(now_ns, reservation, known)

    def cancel(self, now_ns: int, reservation: Reservation) -> None:
        self.ledger.cancel(now_ns, reservation)

    def refuse(
        self,
        now_ns: int,
        reservation: Reservation,
        refusal: Refusal,
        pause_ns: int,
        opens_ns: int | None = None,
        probe_ns: int = PROBE_NS,
    ) -> bool:
        # Before the learning, which counts the other attempts in flight.
        self.ledger.refuse(now_ns, reservation)
        if pause_ns:
            self.ledger.pause.begin(now_ns + pause_ns, opens_ns=opens_ns or 0, probe_ns=probe_ns)
        changed = False
        if self.learning is not None:
            if opens_ns is None:
                changed = self.learning.refusals.refused(now_ns, reservation, refusal, pause_ns)
            else:
                self.learning.unstated.explained(now_ns, reservation)
        # An exact quota gets its place back, because the provider says when there is room again.
        if refusal.retry_after_s is not None:
            for index, _ in self.ledger.entries.exact:
                self.ledger.give_back(now_ns, reservation, index)
        return changed

    def observe(self, now_ns: int, readings: Iterable[Reading], reservation: Reservation) -> bool:
        return self.learning is not None and self.learning.readings.observe(now_ns, readings, reservation)

    def arrive(self, now_ns: int) -> None:
        self._lower_to(now_ns, self.ledger.open_reservations)

    def wake_ns(self, now_ns: int, head: Waiter) -> int | None:
        # An attempt that is lost frees its slot, and no event tells of it.
        return min(self.ledger.earliest(now_ns, head.amounts)[0], self.ledger.next_loss_ns)
