"""The attempts at one request, by hand and through clients.

What has failed so far, and whether another attempt follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from paceline.core.progress import Row
from paceline.core.queue import Waiter
from paceline.core.quota import NS
from paceline.core.results import AcquireTimeoutError, GaveUpError, PacelineError, Refusal
from paceline.pacing.breaker import Health
from paceline.pacing.permit import Permit
from paceline.pacing.retry import Again, Failures, GiveUp, RetryPolicy
from paceline.pacing.scheduler import Scheduler
from paceline.providers.base import Usage


@dataclass(slots=True, eq=False)
class Tries:
    """The attempts at one request.

    Args:
        policy: When another one follows.
        health: The hosts that fail.

    Attributes:
        made: How many attempts were made.
        behind: Whether the next one goes to the end of its lane.
        refusal: The refusal of the last attempt; ``None`` if it was none. It may be about the request alone, as those
            before show.
        paid: The pool and the usage of each attempt that was paid and gave no answer.
    """

    _policy: RetryPolicy
    _health: Health
    made: int = 0
    behind: bool = False
    refusal: Refusal | None = None
    paid: list[tuple[str, Usage]] = field(default_factory=list)
    _failures: Failures = field(default_factory=Failures)
    _began_ns: int = 0  # when the first attempt was sent
    _due: float = 0.0  # when the budget of retries has earned the next attempt

    def began(self, permit: Permit) -> None:
        """Count an attempt that is sent now."""
        self.made += 1
        self.behind, self.refusal = False, None
        if self.made == 1:
            self._began_ns = permit.reservation.granted_ns

    def unsent(self) -> None:
        """Count the last attempt no more: it was not sent."""
        self.made -= 1

    def failed(self, scheduler: Scheduler, refusal: Refusal | None, row: Row | None) -> Again | GiveUp:
        """Decide after a failed attempt.

        Args:
            scheduler: The scheduler of the pool.
            refusal: The refusal; ``None`` for a server fault or a broken connection.
            row: The refusals of the pool in a row, with this one (:meth:`Scheduler.row`).
        """
        self.refusal = self._failures.count(row, refusal)
        decision = self._policy.after(self._failures, self.refusal, row, self._health.luck())
        if isinstance(decision, GiveUp):
            return decision
        if not decision.pool_wide:  # only this request waits
            retries, progress = scheduler.retries, scheduler.pool.progress
            self._due = scheduler.read(lambda now_ns: retries.spend(now_ns, progress.admitted))
            decision = replace(decision, delay_s=max(decision.delay_s, self._earned_s(scheduler)))
        until_ns = self._until_ns
        if until_ns is not None and scheduler.now_ns() + decision.delay_s * NS > until_ns:
            return GiveUp(self._spent(), pause_s=decision.pause_s)
        self.behind |= decision.behind
        return decision

    def spoiled(self) -> bool:
        """Count the last attempt as failed, as its answer is none; return whether another one may follow."""
        self._failures.count(None)
        return self.left

    @property
    def left(self) -> bool:
        """Whether another attempt may follow by the number of those that failed."""
        return self._failures.own + self._failures.in_vain < self._policy.max_attempts

    def pauses(self, scheduler: Scheduler, delay_s: float) -> Iterator[float]:
        """The seconds to sleep before an attempt, one part after the other.

        They are its delay, and then until the budget of retries has earned it, or until its last instant.
        """
        while delay_s:
            yield delay_s
            delay_s, until_ns = self._earned_s(scheduler), self._until_ns
            if until_ns is not None:
                delay_s = min(delay_s, max(until_ns - scheduler.now_ns(), 0) / NS)

    def _earned_s(self, scheduler: Scheduler) -> float:
        """The seconds until the budget of retries has earned the next attempt, or is to be asked again; 0: it has."""
        retries, progress = scheduler.retries, scheduler.pool.progress
        return scheduler.read(lambda now_ns: retries.wait_s(now_ns, progress.admitted, self._due))

    def announce(self, scheduler: Scheduler, again: Again) -> None:
        """Log that another attempt follows."""
        most = self._policy.max_refused if again.pool_wide else self._policy.max_attempts
        reason = "fault" if self.refusal is None else self.refusal.kind.value
        scheduler.section.lines.retries(scheduler.now_ns(), self.made, most, again.delay_s, reason)

    def place(self, waiter: Waiter) -> None:
        """Give the waiter of a further attempt its place and its deadline."""
        waiter.returned &= not self.behind
        # The time runs from the first attempt, so the wait for that one is not part of it.
        if self.made:
            waiter.wait_until(self._until_ns)

    def error(self, pool: str, waiter: Waiter, error: PacelineError) -> PacelineError:
        """The error for a caller whose next attempt has no permit because of ``error``."""
        # Else it is the timeout of the caller, which was earlier.
        spent = isinstance(error, AcquireTimeoutError) and waiter.deadline_ns == self._until_ns
        if self.refusal is None or not spent:
            return error
        return GaveUpError(pool, self.made, self.refusal, self._spent())

    @property
    def _until_ns(self) -> int | None:
        """The last instant at which an attempt may start."""
        most_s = self._policy.max_elapsed_s
        return None if most_s is None else self._began_ns + round(most_s * NS)

    def _spent(self) -> str:
        return f"no attempt may start more than {self._policy.max_elapsed_s:g} s after the first"
