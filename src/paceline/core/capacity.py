"""The ports of a pool: to its quotas, and to what learns of them.

A pool is a queue and a capacity. It is the same for quotas in this process (:class:`paceline.core.local.LocalCapacity`)
and for quotas in a store that processes share (:class:`paceline.shared.capacity.SharedCapacity`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

from paceline.core.ledger import Ledger
from paceline.core.pause import PROBE_NS, Pause
from paceline.core.queue import Waiter
from paceline.core.quota import FAR_NS, Cost
from paceline.core.results import COOL_DOWN, Decision, Reading, Refusal, Reservation, StoreLost, WaitUntil

Learns = bool | Literal["up"]
"""Whether answers change the limits; ``up``: they also raise those that the user has given."""

NOTICES_MAX: Final = 8
"""How many log lines of a pool wait for the reader."""

PENDING: Final = WaitUntil(FAR_NS, "")
"""A decision that is made later; see :meth:`Pool.resolve <paceline.core.pool.Pool.resolve>`."""


class Resolution(NamedTuple):
    """The result of an exchange with the store, for a pool.

    Attributes:
        asked: The waiters of :meth:`Pool.try_grant <paceline.core.pool.Pool.try_grant>` whose cost the message carried.
            Those that have no outcome by now were not granted, and get ``until``.
        until: The outcome of these waiters. ``StoreLost``: the store has never answered, and all waiters of the pool
            get this outcome. ``None``: the store has answered before, and does not answer now. This process goes on
            with its share, and all undecided waiters are tried again.
        changed: Whether quotas have changed.
        newly_lost: Whether the store answered until now.
    """

    asked: Sequence[Waiter]
    until: WaitUntil | StoreLost | None
    changed: bool = False
    newly_lost: bool = False


class Learner(Protocol):
    """What answers teach about the quotas of a pool, as far as the pool and its caller tell it and ask it.

    Attributes:
        notices: What the user should know, for the log; the pool has them.
    """

    notices: deque[str]

    def measure(self, now_ns: int) -> None:
        """Find the limits of requests and of the number in flight from outcomes, because none is stated."""

    def timed_out(self, now_ns: int, reservation: Reservation) -> bool:
        """Take a time-out, before the attempt is settled; whether too many were in flight to be answered in time."""

    def notes_of_now(self) -> Mapping[int, Any]:
        """The notes of an attempt without a charge that is sent now."""

    def sent_late(self, late_s: float) -> None:
        """Take into account that an attempt was sent ``late_s`` after its grant."""

    def stalled(self, now_ns: int, until_ns: int, amounts: list[float]) -> None:
        """Take into account that a request with ``amounts`` waits until an instant."""

    def paces(self, now_ns: int, reservation: Reservation, refusal: Refusal) -> bool:
        """Whether a measured rate decides when the next attempt goes after a refusal, so that no pause is needed."""

    def retracted(self, now_ns: int, reservation: Reservation, refusal: Refusal) -> None:
        """Take a refusal that is about its request alone, and take back the earlier ones of that request."""


class Capacity(Protocol):
    """The quotas of a pool. No method does IO. What a method does here is right for both kinds.

    Attributes:
        ledger: The quotas as known to this process. A pool reads it, and closes in it what is lost; it charges nothing
            there.
        learning: What answers teach; ``None`` where they change nothing.
        behind: What a request waits for when neither a quota nor a pause binds: ``queue`` or ``store``.
        exchange_ns: When an exchange with the store is due; ``FAR_NS``: not before the next event.
        exchange_due: Whether ``exchange_ns`` became earlier since it was last read.
        pause_reason: Why the pool pauses, by its longest pause; of the last pause, if it does not.
        settled: Whether the ledger has the true cost of all attempts that have ended.
    """

    ledger: Ledger
    behind: str
    exchange_due: bool

    @property
    def learning(self) -> Learner | None: ...

    @property
    def exchange_ns(self) -> int: ...

    @property
    def settled(self) -> bool: ...

    @property
    def _own_pause(self) -> Pause[Reservation]:
        """The pause of this process: where it keeps the quotas alone, the only one."""
        return self.ledger.pause

    @property
    def pause_reason(self) -> str:
        of_all, own = self.ledger.pause, self._own_pause
        return own.reason if own.until_ns >= of_all.until_ns else of_all.reason

    def reserve(self, now_ns: int, waiter: Waiter) -> Decision:
        """Charge every quota for ``waiter``, or none; :data:`PENDING` when the store decides."""

    def earliest(self, now_ns: int, amounts: list[float], ahead: list[float] | None = None) -> tuple[int, int]:
        """The first instant at which ``amounts`` fit, after the amounts ``ahead``, and the index of what binds.

        As :meth:`Ledger.earliest <paceline.core.ledger.Ledger.earliest>`, but not before the end of this process's own
        pause.
        """
        at_ns, binding = self.ledger.earliest(now_ns, amounts, ahead)
        own_ns = self._own_pause.until_ns
        return (at_ns, binding) if at_ns >= own_ns else (own_ns, -1)

    def is_current(self, now_ns: int) -> bool:
        """Whether the ledger is recent enough to refuse a request because of it."""

    def settle(self, now_ns: int, reservation: Reservation, actual: Cost | None) -> list[float]:
        """Close ``reservation`` with its true cost; return the true amount per quota.

        ``None``: as reserved, or, for a request larger than a quota that this process keeps alone, its whole cost, up
        to ``DEBT_MAX`` quotas.
        """

    def admitted(self, now_ns: int, reservation: Reservation) -> None:
        """The answer to ``reservation`` has begun, and is no refusal: where the pause opens gently, others may go.

        Where a store keeps the quotas, nothing happens.
        """

    def adjust(self, now_ns: int, reservation: Reservation, known: Cost) -> None:
        """Correct an open reservation by the true amounts that are ``known`` already.

        Where a store keeps the quotas, nothing happens: it would be a message.
        """

    def cancel(self, now_ns: int, reservation: Reservation) -> None:
        """Close ``reservation`` and give back its charge: its request was never sent."""

    def refuse(
        self,
        now_ns: int,
        reservation: Reservation,
        refusal: Refusal,
        pause_ns: int,
        opens_ns: int | None = None,
        probe_ns: int = PROBE_NS,
    ) -> bool:
        """Close ``reservation``, keep its charge, pause, and learn; whether quotas have changed.

        Args:
            now_ns: The present.
            reservation: The attempt.
            refusal: Its refusal.
            pause_ns: How long the pool pauses; 0: not at all.
            opens_ns: Of one about an allowance, from which the quotas learn nothing: how long the others wait for an
                answer as the pause opens, where this process keeps the quotas alone; 0: the pause has one probe.
                ``None``: it is about none.
            probe_ns: How long the others wait for the answer to the probe of the pause.
        """

    def observe(self, now_ns: int, readings: Sequence[Reading], reservation: Reservation) -> bool:
        """Learn from the headers of the answer to ``reservation``; whether quotas have changed."""

    def pause(self, until_ns: int, reason: str = COOL_DOWN) -> None:
        """Begin a :class:`~paceline.core.pause.Pause` until ``until_ns``, for ``reason``.

        Where there is a store, it is a pause of this process: the failure may be in its own network.
        """
        self._own_pause.begin(until_ns, reason)

    def lift(self, now_ns: int, until_ns: int) -> None:
        """End the pause until ``until_ns``, if it is the one in force."""
        self._own_pause.lift(now_ns, until_ns)

    def arrive(self, now_ns: int) -> None:
        """Count the attempts in flight as sent now, because the network has held them.

        Where a store keeps the quotas, nothing happens.
        """

    def cool_down_ns(self, now_ns: int) -> int:
        """How much longer the pause lasts, of this process or of all; 0 or less for none."""
        return max(self.ledger.pause.until_ns, self._own_pause.until_ns) - now_ns

    def wake_ns(self, now_ns: int, head: Waiter) -> int | None:
        """When ``head``, the first waiter, may go; ``None``: not before the next event."""

    def status(self, now_ns: int) -> dict[str, Any]:  # noqa: ARG002
        """Further fields for the status of the pool, as JSON values."""
        return {}
