"""Gates behind a scheduler: slots in flight that all models of a provider share, and the least time between two requests."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import Any, cast

from paceline.core.queue import Waiter
from paceline.core.quota import CONCURRENCY, NS, REQUESTS, Cost
from paceline.core.results import Outcome, Refusal, Reservation
from paceline.pacing.scheduler import Scheduler, Waiting
from paceline.shared.worker import SharedScheduler

Walk = Generator[tuple[Scheduler | None, Waiter], Outcome, Outcome]
"""Where to wait next with which waiter (``None``: at the first scheduler), given what came of it; returns how it ended."""

MOMENT_NS = NS // 10
"""Pauses that differ by less are the same: a store says how long is left each time it is asked."""

KEPT = 256
"""How many requests may be in flight before those that nobody closed are looked for."""


def with_schedulers(scheduler: Scheduler, further: list[Scheduler]) -> Scheduler:
    """A scheduler to the same pool, whose requests go through ``further`` schedulers when they are granted here.

    Slots come last: nobody holds one while it waits for a quota, so a slow model keeps none from a fast one, and who
    holds one waits for nothing of ours: there is no deadlock. Who waits further on holds its own pool's charge, which
    comes back if it goes. The pool should have as many slots of its own: then no more than those are ever granted and
    not gone yet, and the pool's own pace is kept but for them.
    """
    if isinstance(scheduler, SharedScheduler):
        return _SharedFirst(scheduler, further)
    return _First(scheduler.pool, scheduler._clock, further=further)  # noqa: SLF001  (the same scheduler, made again)


class _First(Scheduler):
    """The first of several schedulers, to all whom it serves the only one."""

    def __init__(self, *pool_and_clock: Any, further: list[Scheduler]) -> None:
        super().__init__(*pool_and_clock)
        self.further = further
        self._at: dict[Waiter, tuple[Scheduler, Waiter]] = {}  # granted here, and waiting there
        self._passed: dict[Reservation, list[tuple[Scheduler, Reservation]]] = {}
        self._look_at = KEPT

    def attempt(self, waiter: Waiter) -> Outcome:
        """See :meth:`Scheduler.attempt`."""
        with closing(self._walk(waiter)) as walk:
            scheduler, there = next(walk)
            while True:
                try:
                    scheduler, there = walk.send(
                        super().attempt(there) if scheduler is None else scheduler.attempt(there)
                    )
                except StopIteration as end:
                    return cast("Outcome", end.value)

    def wait(self, waiter: Waiter) -> Outcome:
        """See :meth:`Scheduler.wait`."""
        with closing(self._walk(waiter)) as walk:
            scheduler, there = next(walk)
            while True:
                try:
                    scheduler, there = walk.send(super().wait(there) if scheduler is None else scheduler.wait(there))
                except StopIteration as end:
                    return cast("Outcome", end.value)

    async def wait_async(self, waiter: Waiter) -> Outcome:
        """See :meth:`Scheduler.wait_async`."""
        with closing(self._walk(waiter)) as walk:
            scheduler, there = next(walk)
            while True:
                outcome = await (super().wait_async(there) if scheduler is None else scheduler.wait_async(there))
                try:
                    scheduler, there = walk.send(outcome)
                except StopIteration as end:
                    return cast("Outcome", end.value)

    def why(self, waiter: Waiter) -> Waiting | None:
        """See :meth:`Scheduler.why`."""
        further = self._at.get(waiter)
        return super().why(waiter) if further is None else further[0].why(further[1])

    def settle(self, reservation: Reservation, actual: Cost | None, waiter: Waiter | None = None) -> None:
        """See :meth:`Pool.settle`."""
        super().settle(reservation, actual, waiter)
        self._land(reservation)

    def cancel(self, reservation: Reservation) -> None:
        """See :meth:`Pool.cancel`."""
        super().cancel(reservation)
        self._land(reservation)

    def refuse(self, reservation: Reservation, refusal: Refusal, pause_s: float) -> None:
        """See :meth:`Pool.refuse`."""
        super().refuse(reservation, refusal, pause_s)
        self._land(reservation)

    def after_fork(self) -> None:
        """In a forked child: who was in flight stayed with the parent."""
        super().after_fork()
        self._at, self._passed = {}, {}

    def _walk(self, waiter: Waiter) -> Walk:
        """From scheduler to scheduler; whoever leaves on the way gives back what it was granted."""
        while True:
            granted = yield None, waiter
            if not isinstance(granted, Reservation):
                return granted
            until_ns = self.pool.ledger.not_before_ns
            try:
                for scheduler in self.further:
                    there = Waiter({REQUESTS: 1, CONCURRENCY: 1}, waiter.lane, waiter.deadline_ns)
                    self._at[waiter] = scheduler, there
                    step = yield scheduler, there
                    if not isinstance(step, Reservation):
                        self.cancel(granted)
                        return step
                    granted.granted_ns = step.granted_ns  # it has not gone before
                    self._pass(granted, scheduler, step)
            except BaseException:
                self.cancel(granted)
                raise
            finally:
                self._at.pop(waiter, None)
            if self.pool.ledger.not_before_ns <= max(until_ns + MOMENT_NS, self.now_ns()):
                return granted
            self.cancel(granted)  # the provider asked for a pause meanwhile: back to the front of the line
            waiter.returned = True

    def _pass(self, reservation: Reservation, scheduler: Scheduler, further: Reservation) -> None:
        if len(self._passed) > self._look_at:
            for lost in [other for other in list(self._passed) if not other.open]:
                self._land(lost)
            self._look_at = 2 * len(self._passed) + KEPT
        self._passed.setdefault(reservation, []).append((scheduler, further))

    def _land(self, reservation: Reservation) -> None:
        for scheduler, further in self._passed.pop(reservation, ()):
            scheduler.settle(further, None)


class _SharedFirst(_First, SharedScheduler):
    def __init__(self, scheduler: SharedScheduler, further: list[Scheduler]) -> None:
        super().__init__(scheduler.pool, scheduler._clock, scheduler._worker, further=further)  # noqa: SLF001
