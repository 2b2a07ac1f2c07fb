"""The capacity of quotas that processes share through a store.

Between two replies a process reads a *snapshot*: a ledger in the state of the last reply. A message asks for as many requests
from the head of the queue as should fit. The grants arrive as leases (:mod:`~paceline.shared.leases`), and the queue spends
them in its own order. The outcomes of attempts wait for the next message, and what answers teach for its reply.
"""

from __future__ import annotations

from collections.abc import Iterable

from paceline.core.capacity import PENDING, Capacity
from paceline.core.ledger import Ledger
from paceline.core.local import LocalCapacity
from paceline.core.pause import PROBE_NS, Pause, PausePhase
from paceline.core.queue import Waiter
from paceline.core.quota import FAR_NS, NS, Cost
from paceline.core.results import (
    STORE,
    STORE_LOST,
    Decision,
    Reading,
    Refusal,
    RefusalKind,
    Reservation,
    WaitUntil,
)
from paceline.shared.exchange import StoreSide
from paceline.shared.holdings import Lesson
from paceline.shared.leases import LeasedReservation
from paceline.shared.messages import Charged, Refused, Settled

CURRENT_NS = NS // 4
"""An older reply turns no request away: another process may have given something back."""


class SharedCapacity(StoreSide, Capacity):
    """Quotas that processes share."""

    behind = STORE

    @property
    def _own_pause(self) -> Pause[Reservation]:
        return self._pause

    @property
    def ledger(self) -> Ledger:  # type: ignore[override]  # none sets it
        """The snapshot; while the store is lost, the ledger of the fallback."""
        return (self.fallback or self.snapshot).ledger

    def reserve(self, now_ns: int, waiter: Waiter) -> Decision:
        if now_ns < self._pause.until_ns:
            return WaitUntil(self._pause.until_ns, self._pause.reason)
        if self.membership.state.alone:
            return self._reserve_alone(now_ns, waiter)
        amounts, unstated, leases = waiter.amounts, self.unstated, self.leases
        asks, lease = True, None
        if unstated.meters:
            if (held := self._held_back(now_ns, amounts)) is not None:
                return held
            # If only measured limits bind, the store has no say.
            asks = self.decides or not self.membership.state.known
            if asks:
                amounts = unstated.without(amounts)
        if asks and (lease := leases.take(amounts)) is None:
            return self._left_to_store(now_ns, waiter, amounts)
        marks = unstated.sent(now_ns, waiter.amounts)
        reservation = LeasedReservation(waiter.cost, amounts, marks, now_ns, now_ns + self.snapshot.ledger.ttl_ns)
        reservation.lease = lease
        if lease is not None and lease.low and lease is not leases.told and leases.low:
            # Asked for before this lease is spent, so that requests don't wait for the next one.
            leases.told, self.exchange_due = lease, True
        self.snapshot.ledger.keep_open(reservation)
        if self.learning is not None:
            self.learning.granted(now_ns, reservation, by_store=True)
        if self._pause.phase is not PausePhase.OPEN:
            self._pause.granted(now_ns, reservation)
        return reservation

    def _left_to_store(self, now_ns: int, waiter: Waiter, amounts: list[float]) -> Decision:
        """The store decides, unless the request never fits: also in the queue, as another process may have learned a lower limit."""
        ledger = self.snapshot.ledger
        never = ledger.never(amounts) if self.is_current(now_ns) else None
        # The store grants no more at once. The rest becomes debt when the request is settled.
        waiter.amounts = ledger.fitting(waiter.amounts)
        return PENDING if never is None else never

    def _held_back(self, now_ns: int, amounts: list[float]) -> WaitUntil | None:
        """Until when a limit that this process measures holds ``amounts`` back; ``None``: it does not."""
        at_ns, binding = self.unstated.earliest(now_ns, amounts)
        if at_ns <= now_ns:
            self.free_ns = 0
            return None
        # Without other limits the store is not asked: a message would change nothing.
        self.free_ns = at_ns if self.decides else FAR_NS
        return WaitUntil(at_ns, self.ledger.name(binding))

    def _reserve_alone(self, now_ns: int, waiter: Waiter) -> Decision:
        fallback = self.fallback
        if fallback is None:
            # In the future in any case, or the scheduler would try again without an end.
            return WaitUntil(max(self.membership.try_ns, now_ns + 1), STORE_LOST)
        decision = fallback.reserve(now_ns, waiter)
        if self._pause.phase is not PausePhase.OPEN and isinstance(decision, Reservation):
            self._pause.granted(now_ns, decision)
        return decision

    def is_current(self, now_ns: int) -> bool:
        """Whether the last reply is recent, or the store is lost."""
        return self.membership.state.alone or now_ns - self.snapshot.as_of_ns < CURRENT_NS

    def settle(self, now_ns: int, reservation: Reservation, actual: Cost | None) -> list[float]:
        if self.unstated.meters:
            self.unstated.answered(now_ns, reservation)
        if (local := self._close(now_ns, reservation)) is not None:
            return local.settle(now_ns, reservation, actual)
        amounts = reservation.amounts
        true = self.snapshot.ledger.settled_amounts(reservation, actual) if actual else amounts
        if not isinstance(reservation, LeasedReservation):
            # The fallback granted it and has reported its charge, so the store lacks the debt alone.
            # WEAK: a refund is not told, because `Charged` only adds. The store counts the estimate until it is refilled.
            debt = [max(a - b, 0.0) for a, b in zip(true, amounts, strict=True)]
            if any(debt):
                self.outbox.add(now_ns, Charged(debt))
            self.exchange_due = True
        elif (lease := reservation.lease) is not None and lease.answered(amounts, true):
            self.outbox.settled(now_ns, lease)
            self.exchange_due = True
        if actual and self.learning is not None:
            self.learning.served(now_ns, reservation, true)
        return true

    def admitted(self, now_ns: int, reservation: Reservation) -> None:
        """Nothing: the store learns of an answer when it ends."""

    def adjust(self, now_ns: int, reservation: Reservation, known: Cost) -> None:
        """Nothing: the store learns of an attempt when it ends."""

    def cancel(self, now_ns: int, reservation: Reservation) -> None:
        if (local := self._close(now_ns, reservation)) is not None:
            local.cancel(now_ns, reservation)
            return
        self.unstated.unsent(now_ns, reservation)
        self._take_off(now_ns, reservation)

    def refuse(
        self,
        now_ns: int,
        reservation: Reservation,
        refusal: Refusal,
        pause_ns: int,
        opens_ns: int | None = None,
        probe_ns: int = PROBE_NS,
    ) -> bool:
        """What it teaches is learned after the next reply; of full servers this process learns alone, and at once."""
        learning = self.learning if opens_ns is None else None
        another = learning is not None and learning.refusals.is_of_another(now_ns, reservation, refusal)
        local = self._close(now_ns, reservation)
        if another:
            self._take_off(now_ns, reservation, days_keep=True)
        is_full = refusal.kind is RefusalKind.CAPACITY and not self.membership.state.alone
        changed = False
        if learning is not None and (is_full or learning.is_measured(now_ns, reservation, refusal)):
            changed = learning.refusals.refused(now_ns, reservation, refusal, pause_ns)  # also while the store is lost
            if not (pause_ns or self.decides):
                return changed  # the store has nothing to count
        else:
            self.unstated.explained(now_ns, reservation)
        if local is not None:
            return local.refuse(now_ns, reservation, refusal, pause_ns, opens_ns, probe_ns)
        ours = refusal.kind.about_rate
        amounts = reservation.amounts if ours and not another else [0.0] * len(reservation.amounts)
        self.outbox.add(now_ns, Refused(amounts, pause_ns, probe_ns), at_once=True)  # the pause is for all processes
        ledger = self.snapshot.ledger
        ledger.pause.until_ns = max(ledger.pause.until_ns, now_ns + pause_ns)  # for who looks before the reply
        if learning is not None and not is_full:
            refused = learning.refusals.refused
            self._study(now_ns, reservation, lambda at_ns: refused(at_ns, reservation, refusal, pause_ns))
        return changed

    def _take_off(self, now_ns: int, reservation: Reservation, *, days_keep: bool = False) -> None:
        """Take an attempt off the stated quotas: it was not sent, or another limit has refused it, and a day keeps that."""
        amounts, lease = reservation.amounts, getattr(reservation, "lease", None)
        # The fallback has granted it, or measured limits alone: the store has charged nothing.
        if lease is None:
            return
        entries = self.ledger.entries[: len(amounts)]
        actual = [None if days_keep and entry.meter.quota.is_long else 0.0 for entry in entries]
        news = Settled(amounts, lease.marks, actual, answered=False, probe=lease.probe)
        self.outbox.add(now_ns, news)

    def observe(self, now_ns: int, readings: Iterable[Reading], reservation: Reservation) -> bool:
        """What it teaches is learned after the next reply."""
        if self.learning is not None:
            observe = self.learning.readings.observe
            self._study(now_ns, reservation, lambda at_ns: observe(at_ns, readings, reservation))
        return False

    def _study(self, now_ns: int, reservation: Reservation, lesson: Lesson) -> None:
        # One without amounts is of no request of this process.
        ours = isinstance(reservation, LeasedReservation) or not reservation.amounts
        if ours and not self.membership.state.alone:
            self.outbox.teach(now_ns, lesson)

    def _close(self, now_ns: int, reservation: Reservation) -> LocalCapacity | None:
        """End an attempt; returns the capacity of the fallback when it has granted the attempt and closes it."""
        self._pause.answered(now_ns, reservation)
        fallback = self.fallback
        if fallback is not None and fallback.ledger.owns(reservation):
            return fallback
        self.snapshot.ledger.close(now_ns, reservation)
        if fallback is not None:
            fallback.release(reservation)
        return None

    def arrive(self, now_ns: int) -> None:
        """Nothing: the leases of this process are charged already, and all processes share the store's quotas."""

    def wake_ns(self, now_ns: int, head: Waiter) -> int | None:
        """When ``head`` may go by what this process measures, or while the store is lost; else ``None``: a reply decides."""
        unstated = self.unstated
        if now_ns < self._pause.until_ns and (unstated.meters or self.membership.state.alone):
            return self._pause.until_ns
        if self.fallback is not None:
            return self.fallback.wake_ns(now_ns, head)
        at_ns = unstated.earliest(now_ns, head.amounts)[0] if unstated.meters else 0
        return min(at_ns, self.snapshot.ledger.next_loss_ns) if at_ns > now_ns else None
