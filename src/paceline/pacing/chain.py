"""Requests that pass further schedulers after their own: the slots of the provider, the spacing of starts.

Slots come after quotas: no request holds a slot while it waits for a quota, so a model with little quota does not take the
slots of another one, and no deadlock is possible. A request that waits at a further scheduler holds the charge of its own
pool, which is given back if the request leaves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from paceline.core.pool import Pool
from paceline.core.queue import Waiter
from paceline.core.quota import CONCURRENCY, NS, REQUESTS, Cost
from paceline.core.results import Outcome, Refusal, Reservation
from paceline.pacing.clock import Clock
from paceline.pacing.scheduler import Scheduler, Worker
from paceline.pacing.status import Waiting
from paceline.pacing.sync import run_sync

SAME_PAUSE_NS = NS // 10
"""Pauses that differ by less are the same pause: a store computes the rest of it at every reply."""

PASSED_MIN = 256
"""How many reservations with further ones are kept before lost ones are searched for."""


class ChainedScheduler(Scheduler):
    """A scheduler whose requests pass ``further`` ones after it, in this order.

    A further scheduler passes none itself. Several pools share one.
    """

    def __init__(self, pool: Pool, clock: Clock, further: Sequence[Scheduler], worker: Worker | None = None) -> None:
        super().__init__(pool, clock, worker)
        self.further = tuple(further)
        self._at: dict[Waiter, tuple[Scheduler, Waiter]] = {}  # granted here, waiting at a further one
        self._passed: dict[Reservation, list[tuple[Scheduler, Reservation]]] = {}  # further reservations, until closed
        self._look_at = PASSED_MIN  # how many of these lead to the next search for closed ones

    def wait(self, waiter: Waiter) -> Outcome:
        """See :meth:`Scheduler.wait`."""
        return run_sync(self._pass(waiter, _wait))

    def wait_async(self, waiter: Waiter) -> Coroutine[Any, Any, Outcome]:
        """See :meth:`Scheduler.wait_async`."""
        return self._pass(waiter, Scheduler.wait_async)

    def try_grant(self, waiter: Waiter) -> Outcome:
        """See :meth:`Scheduler.try_grant`."""
        return run_sync(self._pass(waiter, _try_grant))

    async def _pass(self, waiter: Waiter, wait: Callable[[Scheduler, Waiter], Awaitable[Outcome]]) -> Outcome:
        """Wait in the own pool, and then at each further scheduler.

        A request that leaves gives back its grants. So does one whose pool pauses on the way, and then it waits again.
        """
        while True:
            granted = await wait(self, waiter)
            if not isinstance(granted, Reservation):
                return granted
            paused_until_ns = self._paused_until_ns()
            self._lateness.granted(granted)
            try:
                for scheduler in self.further:
                    there = Waiter({REQUESTS: 1, CONCURRENCY: 1}, waiter.lane, waiter.deadline_ns, waiter.name)
                    self._at[waiter] = scheduler, there
                    step = await wait(scheduler, there)
                    if not isinstance(step, Reservation):
                        self.cancel(granted)
                        return step
                    granted.granted_ns = step.granted_ns  # it is sent now, not before
                    self._remember(granted, scheduler, step)
            except BaseException:
                self.cancel(granted)
                raise
            finally:
                self._at.pop(waiter, None)
                self._lateness.continued(granted)
            if self._paused_until_ns() <= max(paused_until_ns + SAME_PAUSE_NS, self.now_ns()):
                return granted
            self.cancel(granted)  # a pause has begun meanwhile: back to its place in its lane
            waiter.returned = True

    def _paused_until_ns(self) -> int:
        """When the pause of the own pool ends, of all processes or of this one; past for none."""
        now_ns = self.now_ns()
        return now_ns + self.pool.capacity.cool_down_ns(now_ns)

    def _remember(self, reservation: Reservation, scheduler: Scheduler, further: Reservation) -> None:
        """Keep ``further`` with ``reservation``, and settle the further ones of reservations that were closed as lost."""
        if len(self._passed) > self._look_at:
            for lost in [other for other in list(self._passed) if not other.open]:
                self._release(lost)
            self._look_at = 2 * len(self._passed) + PASSED_MIN
        self._passed.setdefault(reservation, []).append((scheduler, further))

    def _release(self, reservation: Reservation) -> None:
        """Settle the further reservations of ``reservation``, which ends."""
        for scheduler, further in self._passed.pop(reservation, ()):
            scheduler.settle(further, None)

    def settle(self, reservation: Reservation, actual: Cost | None, waiter: Waiter | None = None) -> None:
        """See :meth:`Scheduler.settle`."""
        self._release(reservation)
        super().settle(reservation, actual, waiter)

    def cancel(self, reservation: Reservation) -> None:
        """See :meth:`Scheduler.cancel`."""
        try:
            super().cancel(reservation)
        finally:
            self._release(reservation)

    def refuse(
        self, reservation: Reservation, refusal: Refusal, pause_s: float, stop_s: float = 0.0, why: str = ""
    ) -> None:
        """See :meth:`Scheduler.refuse`."""
        try:
            super().refuse(reservation, refusal, pause_s, stop_s, why)
        finally:
            self._release(reservation)

    def why(self, waiter: Waiter) -> Waiting | None:
        """See :meth:`Scheduler.why`."""
        if (at := self._at.get(waiter)) is None:
            return super().why(waiter)
        scheduler, there = at
        return scheduler.why(there)

    def after_fork(self) -> None:
        """See :meth:`Scheduler.after_fork`."""
        super().after_fork()
        self._at, self._passed = {}, {}


async def _wait(scheduler: Scheduler, waiter: Waiter) -> Outcome:
    return Scheduler.wait(scheduler, waiter)


async def _try_grant(scheduler: Scheduler, waiter: Waiter) -> Outcome:
    return Scheduler.try_grant(scheduler, waiter)
