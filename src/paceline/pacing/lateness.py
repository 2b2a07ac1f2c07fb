"""Granted waiters whose owners continue late: the event loop is busy, or the machine is loaded.

Their requests are sent all at once when the owners continue. The provider's bucket is full by then and charges them
together, so the pool's own bucket must not have refilled meanwhile, beyond what it has charged for them.
"""

from __future__ import annotations

from paceline.core.learning.tracker import HEADROOM_MIN_S
from paceline.core.local import LocalCapacity
from paceline.core.meters import Exact
from paceline.core.pool import Pool
from paceline.core.quota import NS
from paceline.core.results import Reservation

LATE_NS = round(HEADROOM_MIN_S * NS)
"""How long after its grant a waiter may continue without consequences; with an exact quota, not at all."""

SEARCH_NS = NS // 20
"""The time between two searches for late waiters."""


class Lateness:
    """The granted waiters of one pool that have not continued, and the corrections for late ones.

    Where a store keeps the quotas, only the headroom adapts, because the levels belong to all processes.

    Attributes:
        bound_ns: How long after its grant a waiter may continue without consequences.
        unsent: The reservations of these waiters, the oldest first; none where a store keeps the quotas.
    """

    __slots__ = ("_capacity", "_learning", "_searched_ns", "bound_ns", "unsent")

    def __init__(self, pool: Pool) -> None:
        self.unsent: dict[Reservation, None] = {}
        self._capacity = pool.capacity if isinstance(pool.capacity, LocalCapacity) else None
        self._learning = pool.capacity.learning
        exact = any(type(m) is Exact for m in pool.ledger.meters)
        self.bound_ns = 0 if exact else LATE_NS
        self._searched_ns = 0  # when the last search was

    def granted(self, reservation: Reservation) -> None:
        """The owner of ``reservation`` has not continued yet."""
        if self._capacity is not None:
            self.unsent[reservation] = None

    def continued(self, reservation: Reservation) -> None:
        """The owner of ``reservation`` has continued, or has given it back."""
        self.unsent.pop(reservation, None)  # without the lock of the pool: one step of a dict

    def sent(self, now_ns: int, reservation: Reservation, late_ns: int) -> None:
        """``reservation`` is sent ``late_ns`` after its grant: the level and the headroom adapt."""
        self.no_refill_for_unsent(now_ns)
        if self._capacity is not None:
            self._capacity.sent(now_ns, reservation)
        if self._learning is not None and late_ns > LATE_NS:
            self._learning.sent_late(late_ns / NS)

    def no_refill_for_unsent(self, now_ns: int) -> None:
        """Let no quota refill beyond what is granted and not sent, if the oldest of it is late."""
        if now_ns < self._searched_ns + SEARCH_NS:
            return
        self._searched_ns = now_ns
        unsent = list(self.unsent)  # a copy: other threads remove theirs
        if self._capacity is not None and unsent and now_ns >= unsent[0].granted_ns + LATE_NS:
            for lost in [reservation for reservation in unsent if not reservation.open]:
                self.unsent.pop(lost, None)
            self._capacity.no_refill_for_unsent(now_ns, [each for each in unsent if each.open])

    def after_fork(self) -> None:
        """Forget the waiters of the parent process."""
        self.unsent.clear()
