"""What one process has of shared quotas, between two messages to their store."""

from __future__ import annotations

from paceline.core.capacity import Learns
from paceline.core.changes import Change
from paceline.core.learning.learning import Learning
from paceline.core.ledger import Ledger
from paceline.core.quota import Quota
from paceline.core.unstated.unstated import Unstated
from paceline.shared.leases import Lease, Leases
from paceline.shared.messages import Message, StoreReply
from paceline.shared.outbox import Outbox
from paceline.shared.snapshot import Fallback, Snapshot


class Holdings:
    """What one process knows of shared quotas, what it may spend of them, and what it has to report.

    For the arguments see :class:`~paceline.shared.exchange.StoreSide`.

    Attributes:
        snapshot: The shared ledger at the last reply, and the attempts in flight.
        fallback: What this process spends while the store is lost; ``None`` at other times, and in mode ``fail_closed``.
        leases: The grants that are not spent.
        outbox: The news for the store, and the lessons of answers.
        learning: What answers teach; ``None``: they do not change the quotas.
        unstated: The limits that neither the user nor an answer states. This process measures its share of each.
    """

    def __init__(self, ledger: Ledger, now_ns: int, *, lease_s: float | None, learns: Learns) -> None:
        self.snapshot = Snapshot(ledger, now_ns)
        self.fallback: Fallback | None = None
        self.leases = Leases(now_ns, lease_s)
        self.outbox = Outbox()
        self.learning = Learning(ledger, self._learned, raises=learns == "up") if learns else None
        self.unstated = Unstated(ledger, []) if self.learning is None else self.learning.unstated

    @property
    def decides(self) -> bool:
        """Whether the store has a say in the next grant: it has quotas that bind, or none, or it paused at its last reply."""
        ledger, measured = self.snapshot.ledger, len(self.unstated.meters)
        return ledger.pause.until_ns > self.snapshot.as_of_ns or len(ledger.entries) > measured or not measured

    def _learned(self, change: Change | Quota) -> None:
        # A new quota needs no news, because each message has all quotas.
        if not isinstance(change, Quota):
            self.outbox.add(self.snapshot.as_of_ns, change, at_once=True)

    def give_back(self, now_ns: int, *, everything: bool = False) -> None:
        """Give back the leases that are over, or ``everything``."""
        if self.leases.leases:
            for rest in self.leases.give_back(now_ns, everything=everything):
                self.outbox.add(now_ns, rest)

    def held(self, *, measured: bool = True) -> list[float]:
        """For each quota of slots, what is in flight or leased; for each ``measured`` limit, what other processes are told of it."""
        ledger = self.snapshot.ledger
        holders: list[Ledger | Leases] = [ledger, self.leases]
        if self.fallback is not None:
            # Attempts of the fallback hold slots of the provider, and the store has to know of them.
            holders.append(self.fallback.ledger)
        held = [0.0] * len(ledger.entries)
        for i in ledger.entries.slots:
            held[i] = sum(holder.in_use(i) for holder in holders)
        for meter in self.unstated.meters if measured else ():
            held[meter.index] = meter.told
        return held

    def take(self, now_ns: int, asked: Message, reply: StoreReply) -> bool:
        """Take the state of the quotas and the grants of a reply, and learn; whether quotas have changed."""
        changed_limits = self.snapshot.update(now_ns, reply, self.learning)
        for n, marks in enumerate(reply.grants):
            lease = Lease(asked.wants[n], marks, now_ns, asked.slack_ns, probe=reply.probe and n == 0)
            self.leases.leases.append(lease)
        measured = {meter.index for meter in self.unstated.meters}
        for index, before in changed_limits.items():
            # What stands for a measured limit in the store is a number of slots, and no limit that was stated.
            if self.learning is not None and index not in measured:
                self.learning.guesses.learned_elsewhere(now_ns, index, before)
        return self.outbox.learn(now_ns) or bool(changed_limits)

    def end_fallback(self) -> None:
        """Spend grants of the store again; what is in flight stays so."""
        if self.fallback is not None:
            for reservation in self.fallback.ledger.open_reservations:
                # They still end, and what they have cost is reported to the store.
                self.snapshot.ledger.keep_open(reservation)
        self.fallback = None

    def leave_to_parent(self, now_ns: int) -> None:
        """Drop, in a forked child, the leases, the attempts, the news and the lessons: they belong to the parent.

        What the parent has learned stays true here.
        """
        self.outbox = Outbox()
        self.leases.give_back(now_ns, everything=True)
        self._close_all(now_ns, self.snapshot.ledger)
        if self.fallback is not None:
            self._close_all(now_ns, self.fallback.ledger)
            self.fallback.news(now_ns)

    def _close_all(self, now_ns: int, ledger: Ledger) -> None:
        for reservation in ledger.open_reservations:
            ledger.close(now_ns, reservation)
            self.unstated.unsent(now_ns, reservation)
