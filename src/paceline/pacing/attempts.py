"""The attempts at one call, as :meth:`Limiter.attempts <paceline.Limiter.attempts>` returns them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from paceline.core.progress import Row
from paceline.core.results import GaveUpError, PacelineError, Refusal
from paceline.pacing.breaker import Health, is_server_fault
from paceline.pacing.permit import Acquisition, Permit, refuse, waiter_of
from paceline.pacing.retry import Again, RetryPolicy
from paceline.pacing.scheduler import Scheduler
from paceline.pacing.tries import Tries
from paceline.providers.answers import answer_of, refusal_of


class Attempts:
    """The attempts at one call, for one ``for`` loop, which ends after the first block that needs no retry."""

    def __init__(
        self, health: Health, scheduler: Scheduler, acquire: Callable[..., Acquisition], policy: RetryPolicy
    ) -> None:
        self._tries = Tries(policy, health, random.random)
        self._scheduler, self._acquire = scheduler, acquire
        self._refused: Permit | None = None
        self._pause_s = 0.0
        self._begun = 0  # how many blocks have begun
        self._done = False

    @property
    def made(self) -> int:
        """The number of attempts so far."""
        return self._tries.made

    def __iter__(self) -> Iterator[Attempt]:
        while not self._done:
            before = self._begun
            yield Attempt(self)
            if self._begun == before:
                raise RuntimeError(
                    "no attempt was made in the loop: write `with attempt as permit:` in it, or leave it with `break`"
                )

    def next_one(self) -> tuple[Acquisition, float]:
        """The acquisition of the next attempt, and the seconds to sleep before it."""
        self._begun += 1
        pause_s, self._pause_s = self._pause_s, 0.0
        acquisition = self._acquire(again=self._refused)
        self._tries.place(waiter_of(acquisition))
        return acquisition, pause_s

    def began(self, permit: Permit) -> Permit:
        """Count the attempt that has this permit."""
        self._tries.began(permit)
        return permit

    def delayed_s(self) -> float:
        """The seconds to sleep further before the next attempt."""
        return self._tries.delayed_s(self._scheduler)

    def error(self, acquisition: Acquisition, error: BaseException) -> BaseException:
        """The error for the caller when an attempt has no permit."""
        if not isinstance(error, PacelineError):
            return error
        return self._tries.error(self._scheduler.pool.name, waiter_of(acquisition), error)

    def over(self, error: BaseException | None, permit: Permit | None) -> bool:
        """End an attempt that raised ``error``; whether another one follows.

        Raises:
            GaveUpError: The provider refused, and no attempt is left.
        """
        self._done = True
        if error is None and permit is not None and permit.refusal is not None:  # the block has called permit.refused()
            row = self._scheduler.row(permit.reservation, permit.refusal)
            self._done = not self._follows(permit, permit.refusal, row, None)
        elif isinstance(error, Exception) and permit is not None:
            self._done = not self._retries(permit, error)
        return not self._done

    def _retries(self, permit: Permit, error: Exception) -> bool:
        """Whether ``error`` is a refusal that is retried. The refusal, and the health of the provider, are recorded."""
        refusal, answer = refusal_of(error), answer_of(error)
        if refusal is None:
            return False
        row = self._scheduler.row(permit.reservation, refusal)
        if answer is not None and is_server_fault(answer.status, refusal, row):
            self._scheduler.failed(
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
        if not decision.pool_wide:  # the servers are full: only this request waits
            self._pause_s = decision.delay_s
        return True


class Attempt:
    """One attempt, for ``with`` or ``async with``; the block suppresses a refusal that is retried."""

    __slots__ = ("_acquisition", "_attempts", "_permit")

    def __init__(self, attempts: Attempts) -> None:
        self._attempts = attempts

    @contextmanager
    def _start(self) -> Iterator[float]:
        """Begin the attempt; yields the seconds to sleep before it. An error in the block ends the attempts."""
        self._acquisition, pause_s = self._attempts.next_one()
        try:
            yield pause_s
        except BaseException as error:
            self._attempts.over(error, None)
            told = self._attempts.error(self._acquisition, error)
            if told is error:
                raise
            raise told from error

    def __enter__(self) -> Permit:
        with self._start() as delay_s:
            left_s = delay_s
            while left_s:
                time.sleep(left_s)
                left_s = self._attempts.delayed_s()
            self._permit = self._attempts.began(self._acquisition.__enter__())
        return self._permit

    async def __aenter__(self) -> Permit:
        with self._start() as delay_s:
            left_s = delay_s
            while left_s:
                import asyncio

                await asyncio.sleep(left_s)
                left_s = self._attempts.delayed_s()
            self._permit = self._attempts.began(await self._acquisition.__aenter__())
        return self._permit

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        try:
            return self._attempts.over(error, self._permit) and error is not None
        finally:
            self._acquisition.__exit__(kind, error, tb)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> bool:
        return self.__exit__(kind, error, tb)
