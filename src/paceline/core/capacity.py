"""The port between a pool and its quotas, and the capacity of quotas that one process keeps alone.

A pool is a queue and a capacity. It is the same for quotas in this process (:class:`LocalCapacity`) and for quotas in
a store that processes share (:class:`paceline.shared.capacity.SharedCapacity`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, Self

from paceline.core.learning import Learning
from paceline.core.ledger import Ledger
from paceline.core.meters import FAR_NS
from paceline.core.queue import Waiter
from paceline.core.quota import Cost, Quota
from paceline.core.results import COOL_DOWN, QUEUE, Decision, Reading, Refusal, Reservation, StoreLost, WaitUntil

Learns = bool | Literal["up"]
"""Whether answers change the limits; ``up``: they also raise those that the user has given."""

PENDING: Final = WaitUntil(FAR_NS, "")
"""A decision that is made later; see :meth:`Pool.resolve <paceline.core.pool.Pool.resolve>`."""


class Resolution(NamedTuple):
    """The result of an exchange with the store, for a pool.

    Attributes:
        asked: The waiters of :meth:`Pool.try_grant <paceline.core.pool.Pool.try_grant>` whose cost the message carried.
            Those that have no outcome by now were not granted, and get ``until``.
        until: The outcome of these waiters. ``StoreLost``: the store has never answered, and all waiters of the pool get
            this outcome. ``None``: the store has answered before, and does not answer now. This process goes on with its
            share, and all undecided waiters are tried again.
        changed: Whether quotas have changed.
        newly_lost: Whether the store answered until now.
    """

    asked: Sequence[Waiter]
    until: WaitUntil | StoreLost | None
    changed: bool = False
    newly_lost: bool = False


class Capacity(Protocol):
    """The quotas of a pool. No method does IO.

    Attributes:
        ledger: The quotas as known to this process. A pool reads it, and closes in it what is lost; it charges nothing there.
        learning: What answers teach; ``None`` where they change nothing.
        behind: What a request waits for when neither a quota nor a pause binds: ``queue`` or ``store``.
        exchange_ns: When an exchange with the store is due; ``FAR_NS``: not before the next event.
        exchange_due: Whether ``exchange_ns`` became earlier since it was last read.
        pause_reason: Why the pool pauses; of the last pause, if it does not.
        settled: Whether the ledger has the true cost of all attempts that have ended.
    """

    behind: str
    exchange_due: bool
    ledger: Ledger

    @property
    def learning(self) -> Learning | None: ...

    @property
    def exchange_ns(self) -> int: ...

    @property
    def pause_reason(self) -> str: ...

    @property
    def settled(self) -> bool: ...

    def reserve(self, now_ns: int, waiter: Waiter) -> Decision:
        """Charge every quota for ``waiter``, or none; :data:`PENDING` when the store decides."""

    def earliest(self, now_ns: int, amounts: list[float], ahead: list[float] | None = None) -> tuple[int, int]:
        """The first instant at which ``amounts`` fit, after the amounts ``ahead``, and the index of the quota that binds.

        See :meth:`Ledger.earliest <paceline.core.ledger.Ledger.earliest>`.
        """

    def closed(self, now_ns: int, waiter: Waiter) -> WaitUntil | None:
        """Until when a pause or a quota of requests holds ``waiter`` back, however many tokens it takes; ``None``: neither does."""

    def is_current(self, now_ns: int) -> bool:
        """Whether the ledger is recent enough to refuse a request because of it."""

    def settle(self, now_ns: int, reservation: Reservation, actual: Cost | None) -> list[float]:
        """Close ``reservation`` with its true cost; return the true amount per quota.

        ``None``: as reserved, or, for a request larger than a quota that this process keeps alone, its whole cost, up to
        ``DEBT_MAX`` quotas.
        """

    def adjust(self, now_ns: int, reservation: Reservation, known: Cost) -> None:
        """Correct an open reservation by the true amounts that are ``known`` already.

        Where a store keeps the quotas, nothing happens: it would be a message.
        """

    def cancel(self, now_ns: int, reservation: Reservation) -> None:
        """Close ``reservation`` and give back its charge: its request was never sent."""

    def refuse(
        self, now_ns: int, reservation: Reservation, refusal: Refusal, pause_ns: int, *, teaches: bool = True
    ) -> bool:
        """Close ``reservation``, keep its charge, pause, and learn if the refusal ``teaches``; whether quotas have changed."""

    def paces(self, now_ns: int, reservation: Reservation, refusal: Refusal) -> bool:
        """Whether a measured rate decides when the next attempt goes after a refusal, so that no pause is needed."""

    def observe(self, now_ns: int, readings: Sequence[Reading], reservation: Reservation) -> bool:
        """Learn from the headers of the answer to ``reservation``; whether quotas have changed."""

    def pause(self, until_ns: int, reason: str = COOL_DOWN) -> None:
        """Begin a :class:`~paceline.core.pause.Pause` until ``until_ns``, for ``reason``; where there is a store, of this process."""

    def lift(self, now_ns: int, until_ns: int) -> None:
        """End the pause until ``until_ns``, if it is the one in force."""

    def arrive(self, now_ns: int) -> None:
        """Count the attempts in flight as sent now, because the network has held them.

        Where a store keeps the quotas, nothing happens.
        """

    def cool_down_ns(self, now_ns: int) -> int:
        """How much longer the pause lasts; 0 or less for none."""

    def wake_ns(self, now_ns: int, head: Waiter, until: WaitUntil | None = None) -> int | None:
        """When ``head``, the first waiter, may go; ``None``: not before the next event.

        ``until``: what :meth:`reserve` has just decided about it, if it has.
        """

    def status(self, now_ns: int) -> dict[str, Any]:
        """Further fields for the status of the pool, as JSON values."""


class LocalCapacity:
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

    def __init__(self, ledger: Ledger, *, learns: Learns = False, adapts: bool = False) -> None:
        self.ledger = ledger
        self.learning = Learning(ledger, raises=learns == "up", adapts=adapts) if learns else None

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
        self._lower_to(now_ns, unsent)

    def _lower_to(self, now_ns: int, arriving: Iterable[Reservation]) -> None:
        """Lower the levels to what the provider has left when it charges ``arriving`` now, and has refilled all before."""
        amounts = [0.0] * len(self.ledger.accounts)
        for reservation in arriving:
            for index, amount in enumerate(reservation.amounts):
                amounts[index] += amount
        trackers = {} if self.learning is None else self.learning.trackers
        for index, (account, amount) in enumerate(zip(self.ledger.accounts, amounts, strict=True)):
            m, tracker = account.meter, trackers.get(index)
            if amount and (by_ns := m.surplus_ns(now_ns, amount)):
                (tracker.move_level if tracker is not None else m.shift)(now_ns, by_ns)

    def sent(self, now_ns: int, reservation: Reservation) -> None:
        """Count a granted attempt as charged now, where the instant counts: it goes later than it was granted."""
        for index, (account, amount) in enumerate(zip(self.ledger.accounts, reservation.amounts, strict=False)):
            if amount and reservation.open:
                reservation.marks[index] = account.meter.move(now_ns, reservation.marks[index], amount)

    def earliest(self, now_ns: int, amounts: list[float], ahead: list[float] | None = None) -> tuple[int, int]:
        return self.ledger.earliest(now_ns, amounts, ahead)

    def closed(self, now_ns: int, waiter: Waiter) -> WaitUntil | None:
        return self.ledger.closed(now_ns, waiter.amounts)

    def is_current(self, now_ns: int) -> bool:  # noqa: ARG002
        return True

    def settle(self, now_ns: int, reservation: Reservation, actual: Cost | None) -> list[float]:
        true = self.ledger.settle(now_ns, reservation, actual)
        if actual and self.learning is not None and self.learning.guesses.tested and reservation.notes:
            self.learning.served(now_ns, reservation, true)
        return true

    def adjust(self, now_ns: int, reservation: Reservation, known: Cost) -> None:
        self.ledger.adjust(now_ns, reservation, known)

    def cancel(self, now_ns: int, reservation: Reservation) -> None:
        self.ledger.cancel(now_ns, reservation)

    def refuse(
        self, now_ns: int, reservation: Reservation, refusal: Refusal, pause_ns: int, *, teaches: bool = True
    ) -> bool:
        self.ledger.close(now_ns, reservation)  # before the learning, which counts the other attempts in flight
        self.ledger.pause.answered(now_ns, reservation)  # of a refused probe: the others wait as the refusal says
        if refusal.retry_after_s is not None:
            self.ledger.give_back(now_ns, reservation)
        if pause_ns:
            self.ledger.pause.begin(now_ns + pause_ns)
        if self.learning is None:
            return False
        if refusal.kind.about_rate:
            self.learning.charge_kept(reservation)
        if not teaches:
            self.learning.unstated.explained(now_ns, reservation)
            return False
        return self.learning.refused(now_ns, reservation, refusal, pause_ns)

    def paces(self, now_ns: int, reservation: Reservation, refusal: Refusal) -> bool:
        return self.learning is not None and self.learning.is_unstated(now_ns, reservation, refusal)

    def observe(self, now_ns: int, readings: Iterable[Reading], reservation: Reservation) -> bool:
        return self.learning is not None and self.learning.observe(now_ns, readings, reservation)

    @property
    def pause_reason(self) -> str:
        return self.ledger.pause.reason

    def pause(self, until_ns: int, reason: str = COOL_DOWN) -> None:
        self.ledger.pause.begin(until_ns, reason)

    def lift(self, now_ns: int, until_ns: int) -> None:
        self.ledger.pause.lift(now_ns, until_ns)

    def arrive(self, now_ns: int) -> None:
        self._lower_to(now_ns, self.ledger.open_reservations)

    def cool_down_ns(self, now_ns: int) -> int:
        return self.ledger.pause.until_ns - now_ns

    def wake_ns(self, now_ns: int, head: Waiter, until: WaitUntil | None = None) -> int | None:
        at_ns = self.ledger.earliest(now_ns, head.amounts)[0] if until is None else until.at_ns
        return min(at_ns, self.ledger.next_loss_ns)

    def status(self, now_ns: int) -> dict[str, Any]:  # noqa: ARG002
        return {}
