"""The port between a pool and its quotas, and the capacity of quotas that this process keeps alone.

A pool is a queue and a capacity. It does not know whether the quotas are kept here (:class:`LocalCapacity`) or by a
store that processes share (:class:`paceline.shared.capacity.SharedCapacity`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol, Self

from paceline.core.learning import Learning
from paceline.core.ledger import Ledger
from paceline.core.meters import FAR_NS
from paceline.core.queue import Waiter
from paceline.core.quota import Cost, Quota
from paceline.core.results import QUEUE, Decision, Reading, Refusal, RefusalKind, Reservation, StoreLost, WaitUntil

PENDING: Final = WaitUntil(FAR_NS, "")
"""A decision that is not known yet; :meth:`Pool.resolve <paceline.core.pool.Pool.resolve>` brings it."""


class Resolution(NamedTuple):
    """What a capacity makes of an answer of its store, or of a failure.

    Attributes:
        asked: The attempts that the answer is about: those without a permit now get none.
        until: Their outcome. ``StoreLost``: the outcome of everything in the queue. ``None``: the capacity decides
            without its store from now on, and all attempts ask again.
        changed: Whether the quotas are others now.
    """

    asked: Sequence[Waiter]
    until: WaitUntil | StoreLost | None
    changed: bool = False


class Capacity(Protocol):
    """What a pool asks of its quotas. Every method takes the present and does no IO.

    Attributes:
        ledger: The quotas as far as they are known here; a pool reads it and never charges it.
        sources: Where the limit of each quota comes from.
        behind: What a request waits for when neither a quota nor a cool-down binds: ``queue`` or ``store``.
        exchange_ns: When the capacity needs an exchange with its store; ``None``: not before the next event.
        exchange_due: Whether ``exchange_ns`` became earlier since it was last read.
    """

    sources: list[str]
    behind: str
    exchange_due: bool

    @property
    def ledger(self) -> Ledger:
        """See the class."""

    @property
    def exchange_ns(self) -> int | None:
        """See the class."""

    def reserve(self, now_ns: int, waiter: Waiter) -> Decision:
        """Charge every quota for ``waiter``, or none; :data:`PENDING` when the decision is made elsewhere."""

    def earliest(self, now_ns: int, amounts: list[float]) -> tuple[int, int]:
        """The first instant at which ``amounts`` fit, and the index of the quota that binds (-1: a cool-down, or none)."""

    def is_current(self, now_ns: int) -> bool:
        """Whether the ledger is recent enough to turn a request away."""

    def settle(self, now_ns: int, reservation: Reservation, actual: Cost | None) -> list[float]:
        """Close ``reservation`` with its true cost (``None``: as reserved); the true amount for each quota."""

    def cancel(self, now_ns: int, reservation: Reservation) -> None:
        """Close ``reservation``: its request was never sent."""

    def refuse(self, now_ns: int, reservation: Reservation, refusal: Refusal, pause_ns: int) -> bool:
        """Close ``reservation``, keep its charge, pause and learn; whether quotas changed."""

    def observe(self, now_ns: int, readings: Sequence[Reading], reservation: Reservation) -> bool:
        """Learn from the headers of the answer to ``reservation``'s attempt; whether quotas changed."""

    def pause(self, until_ns: int) -> None:
        """Grant nothing before ``until_ns``, then one attempt, and the others when it is answered."""

    def lift(self, now_ns: int, until_ns: int) -> None:
        """End the pause until ``until_ns``, if it is the one in force."""

    def cool_down_ns(self, now_ns: int) -> int:
        """How much longer a pause lasts; 0 or less: none."""

    def wake_ns(self, now_ns: int, head: Waiter) -> int | None:
        """When ``head``, the first in the queue, may go; ``None``: an event tells."""

    def status(self, now_ns: int) -> dict[str, Any]:
        """What this kind of capacity adds to the status of a pool, as plain JSON values."""


class LocalCapacity:
    """Quotas that this process keeps alone: a ledger, and what answers teach about it.

    Args:
        ledger: The quotas and what is left of them.
        learns: Whether answers change the quotas: the provider counts them, too.
        source: Where the limits come from.
    """

    behind = QUEUE
    exchange_ns = None
    exchange_due = False

    def __init__(self, ledger: Ledger, *, learns: bool = False, source: str = "given") -> None:
        self.ledger = ledger
        self.learning = Learning(ledger) if learns else None
        self.sources = [source] * len(ledger.meters)

    @classmethod
    def of(
        cls,
        quotas: Iterable[Quota],
        now_ns: int,
        *,
        headroom_s: float = 1.0,
        ttl_s: float = 900.0,
        learns: bool = False,
        source: str = "given",
    ) -> Self:
        """The capacity of ``quotas``, with nothing used; see :class:`~paceline.core.ledger.Ledger`."""
        ledger = Ledger(quotas, now_ns, headroom_s=headroom_s, ttl_s=ttl_s, gentle=learns)
        return cls(ledger, learns=learns, source=source)

    def reserve(self, now_ns: int, waiter: Waiter) -> Decision:
        """See :meth:`Capacity.reserve`."""
        decision = self.ledger.reserve(now_ns, waiter.cost, waiter.amounts)
        if self.learning is not None and isinstance(decision, Reservation):
            self.learning.granted(now_ns, decision)
        return decision

    def earliest(self, now_ns: int, amounts: list[float]) -> tuple[int, int]:
        """See :meth:`Capacity.earliest`."""
        return self.ledger.earliest(now_ns, amounts)

    def is_current(self, now_ns: int) -> bool:  # noqa: ARG002
        """Always: the ledger is the authority."""
        return True

    def settle(self, now_ns: int, reservation: Reservation, actual: Cost | None) -> list[float]:
        """See :meth:`Capacity.settle`."""
        return self.ledger.settle(now_ns, reservation, actual)

    def cancel(self, now_ns: int, reservation: Reservation) -> None:
        """See :meth:`Capacity.cancel`."""
        self.ledger.cancel(now_ns, reservation)

    def refuse(self, now_ns: int, reservation: Reservation, refusal: Refusal, pause_ns: int) -> bool:
        """See :meth:`Capacity.refuse`."""
        self.ledger.close(reservation)
        if pause_ns:
            self.ledger.pause(now_ns + pause_ns)
        if self.learning is None:
            return False
        if refusal.kind in (RefusalKind.RATE, RefusalKind.GROWTH):
            self.learning.kept(reservation)
        return self._changed(self.learning.refused(now_ns, reservation, refusal, pause_ns))

    def observe(self, now_ns: int, readings: Iterable[Reading], reservation: Reservation) -> bool:
        """See :meth:`Capacity.observe`."""
        return self.learning is not None and self._changed(self.learning.observe(now_ns, readings, reservation))

    def _changed(self, indexes: list[int]) -> bool:
        relabel(self.sources, indexes)
        return bool(indexes)

    def pause(self, until_ns: int) -> None:
        """See :meth:`Capacity.pause`."""
        self.ledger.pause(until_ns)

    def lift(self, now_ns: int, until_ns: int) -> None:
        """See :meth:`Capacity.lift`."""
        self.ledger.lift(now_ns, until_ns)

    def cool_down_ns(self, now_ns: int) -> int:
        """See :meth:`Capacity.cool_down_ns`."""
        return self.ledger.not_before_ns - now_ns

    def wake_ns(self, now_ns: int, head: Waiter) -> int | None:
        """See :meth:`Capacity.wake_ns`."""
        return min(self.ledger.earliest(now_ns, head.amounts)[0], self.ledger.next_expiry_ns)

    def status(self, now_ns: int) -> dict[str, Any]:  # noqa: ARG002
        """Nothing: the ledger says it all."""
        return {}


def relabel(sources: list[str], indexes: list[int]) -> None:
    """The quotas at ``indexes`` are new, or have another limit: an answer is its source."""
    for index in indexes:
        sources[index:] = ["answer", *sources[index + 1 :]]
