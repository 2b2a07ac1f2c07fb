"""The attempts at one call, as :meth:`Limiter.attempts <paceline.Limiter.attempts>` returns them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from paceline.core.progress import Row
from paceline.core.results import GaveUpError, PacelineError, Refusal
from paceline.pacing.breaker import Health, is_server_fault
from paceline.pacing.permit import Acquisition, Permit, back_off, is_followed, refuse, waiter_of
from paceline.pacing.retry import Again, RetryPolicy
from paceline.pacing.scheduler import Scheduler
from paceline.pacing.tries import Tries
from paceline.providers.answers import answer_of, refusal_of


class Attempts:
    """The attempts at one call, for one ``for`` loop, which ends after the first block that needs no retry.

    Each attempt is for ``with`` or ``async with``, whose block suppresses a refusal that is retried.
    """

    def __init__(
        self, health: Health, scheduler: Scheduler, acquire: Callable[..., Acquisition], policy: RetryPolicy
    ) -> None:
        self._tries, self._policy = Tries(policy, health), policy
        self._scheduler, self._acquire = scheduler, acquire
        self._refused: Permit | None = None
        self._pause_s = 0.0
        self._begun = 0  # how many blocks have begun
        self._done = False

    @property
    def made(self) -> int:
        """How many attempts were made."""
        return self._tries.made

    def __iter__(self) -> Iterator[Self]:
        while not self._done:
            before = self._begun
            yield self
            if self._begun == before:
                raise RuntimeError(
                    "no attempt was made in the loop: write `with attempt as permit:` in it, or leave it with `break`"
                )

    @contextmanager
    def _start(self) -> Iterator[Acquisition]:
        """Begin the next attempt; an error in this block is the caller's."""
        self._begun += 1
        self._acquisition = self._acquire(again=self._refused)
        waiter = waiter_of(self._acquisition)
        self._tries.place(waiter)
        self._done = True  # unless its block shows that another one follows
        try:
            yield self._acquisition
        except PacelineError as error:
            told = self._tries.error(self._scheduler.pool.name, waiter, error)
            if told is error:
                raise
            raise told from error

    def _sent(self, permit: Permit) -> Permit:
        """Count the attempt that has this permit."""
        self._permit = permit
        back_off(permit, self._policy)
        self._tries.began(permit)
        return permit

    def __enter__(self) -> Permit:
        with self._start() as acquisition:
            for pause_s in self._tries.pauses(self._scheduler, self._pause_s):
                time.sleep(pause_s)
            return self._sent(acquisition.__enter__())

    async def __aenter__(self) -> Permit:
        with self._start() as acquisition:
            for pause_s in self._tries.pauses(self._scheduler, self._pause_s):
                import asyncio

                await asyncio.sleep(pause_s)
            return self._sent(await acquisition.__aenter__())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        try:
            self._done = not self._is_followed(error, self._permit)
            return error is not None and not self._done
        finally:  # also if another attempt is not possible, which is an error of its own
            self._acquisition.__exit__(kind, error, tb)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> bool:
        return self.__exit__(kind, error, tb)

    def _is_followed(self, error: BaseException | None, permit: Permit) -> bool:
        """Whether another attempt follows the one whose block has ended, by ``error`` or without one.

        Raises:
            GaveUpError: The provider refused, and no attempt is left.
        """
        # The block has called permit.refused(): a paced client in it has made further attempts itself.
        if error is None and permit.refusal is not None and not is_followed(permit):
            return self._follows(permit, permit.refusal, self._scheduler.row(permit.reservation, permit.refusal), None)
        return isinstance(error, Exception) and self._retries(permit, error)

    def _retries(self, permit: Permit, error: Exception) -> bool:
        """Whether ``error`` is a refusal that is retried. The refusal, and the health of the provider, are recorded."""
        refusal, answer = refusal_of(error), answer_of(error)
        if refusal is None:
            return False
        row = self._scheduler.row(permit.reservation, refusal)
        if answer is not None and is_server_fault(answer.status, refusal, row):
            self._scheduler.by_hand.failed(
                permit.reservation.granted_ns, f"status {answer.status}", reached=True, reported=False
            )
        return permit.open and self._follows(permit, refusal, row, error)  # else the block has closed the permit itself

    def _follows(self, permit: Permit, refusal: Refusal, row: Row | None, error: Exception | None) -> bool:
        """Decide after a refusal; another attempt follows, or else an error is raised."""
        decision = self._tries.failed(self._scheduler, refusal, row)
        if permit.open:
            refuse(permit, self._tries.refusal or refusal, decision)
        if not isinstance(decision, Again):
            raise GaveUpError(permit.pool, self.made, refusal, decision.reason) from error
        self._tries.announce(self._scheduler, decision)
        self._refused = permit
        self._pause_s = 0.0 if decision.pool_wide else decision.delay_s  # the servers are full: only this request waits
        return True
