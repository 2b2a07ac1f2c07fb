"""Requests that pass further schedulers beside their own.

These are the account, joint limits, the slots of the provider, and the spacing of starts.

The account comes before the own quotas: it may have nothing left for days, and a charge that was made before says
nothing then. A joint limit comes after the own quotas: a model that waits for its own uses nothing of a quota that
others could use. Its line has the requests of all pools in the order in which they arrived. Slots come after quotas: no
request holds a slot while it waits for a quota, so a model with little quota does not take the slots of another one,
and no deadlock is possible. A request that waits at a further scheduler holds the charge of its own pool, which is
given back if the request leaves.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from paceline.core.plan import PlanCapacity
from paceline.core.pool import Pool
from paceline.core.progress import Row
from paceline.core.queue import Waiter
from paceline.core.quota import CONCURRENCY, FAR_NS, NS, REQUESTS, TOKENS, Cost
from paceline.core.results import Expired, NeverFits, Outcome, Refusal, RefusalScope, Reservation, WaitUntil
from paceline.pacing.clock import Clock
from paceline.pacing.scheduler import Scheduler, Worker
from paceline.pacing.status import Waiting
from paceline.pacing.sync import awaited, run_sync

SAME_PAUSE_NS = NS // 10
"""Pauses that differ by less are the same pause: a store computes the rest of it at every reply."""

_Wait = Callable[[Scheduler, Waiter], Outcome | Awaitable[Outcome]]

_COUNTS = frozenset((REQUESTS, CONCURRENCY))
"""Units: each request costs the same of them."""


class Passed(NamedTuple):
    """What a request holds at a further scheduler."""

    scheduler: Scheduler
    reservation: Reservation
    waiter: Waiter

    def settle(self, actual: Cost | None, waiter: Waiter | None = None) -> None:
        """Charge ``actual``, as far as the quotas there count it; ``None``: as reserved.

        ``waiter``: the one in the own pool.
        """
        if waiter is not None:
            self.waiter.sized, self.waiter.reported = waiter.sized, waiter.reported
        units = self.scheduler.pool.ledger.entries.units
        # A sum of tokens follows from any of its sides. Slots and starts are charged as reserved.
        counted = actual and (TOKENS in units or not actual.keys().isdisjoint(units))
        self.scheduler.settle(self.reservation, actual if counted else None, self.waiter)


class ChainedScheduler(Scheduler):
    """A scheduler whose requests pass ``further`` ones after it, in this order.

    A further scheduler passes none itself. Several pools share one.

    Args:
        pool: The pool.
        clock: The clock.
        worker: As for :class:`Scheduler`.
        further: The further schedulers.
        opens: Makes the scheduler of the account, at the first refusal that is about all of it.
        others: The schedulers of a login: its plan is shut where two models are refused to the same end.

    Attributes:
        holds: Whether requests wait for the end of an allowance.
        account: The scheduler of the account, which requests pass before this one; ``None``: no refusal was about it.
    """

    def __init__(
        self,
        pool: Pool,
        clock: Clock,
        worker: Worker | None,
        further: Sequence[Scheduler],
        opens: Callable[[], Scheduler] | None,
        others: Callable[[], Iterable[Scheduler]] | None,
    ) -> None:
        super().__init__(pool, clock, worker)
        self.further = tuple(further)
        self.account: Scheduler | None = None
        self.holds = True
        self._opens, self._others = opens, others
        self.stated = self.stated.union(*(scheduler.stated for scheduler in further))
        self._at: dict[Waiter, tuple[Scheduler, Waiter]] = {}  # granted here, waiting at a further one

    @property
    def beside(self) -> Sequence[Scheduler]:
        """See :class:`Scheduler`."""
        return self.further if self.account is None else (self.account, *self.further)

    def wait(self, waiter: Waiter) -> Outcome:
        """See :meth:`Scheduler.wait`."""
        # The pool of a model is one of this class before it has anything to pass, and takes the shorter way then.
        if self.further or self.account:
            return run_sync(self._pass(waiter, Scheduler.wait))
        outcome = super().wait(waiter)
        if self.account is None or not isinstance(outcome, Reservation):
            return outcome
        return run_sync(self._pass(waiter, Scheduler.wait, outcome))

    async def wait_async(self, waiter: Waiter) -> Outcome:
        """See :meth:`Scheduler.wait_async`."""
        if self.further or self.account:
            return await self._pass(waiter, Scheduler.wait_async)
        outcome = await super().wait_async(waiter)
        if self.account is None or not isinstance(outcome, Reservation):
            return outcome
        return await self._pass(waiter, Scheduler.wait_async, outcome)

    def try_grant(self, waiter: Waiter) -> Outcome:
        """See :meth:`Scheduler.try_grant`."""
        if self.further or self.account:
            return run_sync(self._pass(waiter, Scheduler.try_grant))
        return super().try_grant(waiter)

    async def _pass(self, waiter: Waiter, wait: _Wait, before: Reservation | None = None) -> Outcome:
        """Wait for the account, in the own pool, and then at each further scheduler.

        A request that leaves gives back its grants. So does one whose pool pauses on the way, and then it waits again.
        One that a further scheduler would not grant does not wait in the own pool.

        ``before``: the grant of the own pool from before there was an account: most of such requests would be refused.
        """
        arrived_ns = self.now_ns()
        if before is not None:
            arrived_ns, waiter.returned = waiter.arrived_ns, True
            self.cancel(before)
        at_once = self._at_once(waiter)
        waiter.arrived_ns = arrived_ns  # each submission sets its own, and the wait counts from the first
        if at_once is not None:
            return at_once
        if (hopeless := self._hopeless(waiter)) is not None:
            return hopeless
        while True:
            granted, first = await self._own(waiter, wait)
            if not isinstance(granted, Reservation):
                return granted
            waiter.arrived_ns = arrived_ns  # as above
            # A pause that has begun before the grant did not stop it: it is the probe.
            paused_until_ns = self._paused_until_ns()
            self.section.lateness.granted(granted)  # again: it is not sent before it has passed all
            granted.begun = True  # until it is sent, no answer is missing
            try:
                for scheduler in self.further:
                    there = _further(waiter)
                    if not _COUNTS.issuperset(scheduler.pool.ledger.entries.units):
                        there.estimate = waiter.estimate  # answers may correct it while it waits there
                    self._at[waiter] = scheduler, there
                    step = await awaited(wait(scheduler, there))
                    if not isinstance(step, Reservation):
                        self.cancel(granted)
                        return _named(scheduler, step)
                    granted.granted_ns = step.granted_ns  # it is sent now, not before
                    step.begun = True  # whether answers come is seen in the own pool
                    scheduler.section.lateness.granted(step)
                    granted.passed += (Passed(scheduler, step, there),)
            except BaseException:  # cancelled while it waited there
                self.cancel(granted)
                raise
            finally:
                self._at.pop(waiter, None)
                self.section.lateness.continued(granted)
                for passed in granted.passed:
                    passed.scheduler.section.lateness.continued(passed.reservation)
            granted.begun = False
            paused = self._paused_until_ns() > max(paused_until_ns + SAME_PAUSE_NS, self.now_ns())
            if first is None:
                paused |= self.account is not None  # since it waited
            else:  # the account may have been refused since
                paused |= first.scheduler.pool.progress.allowance.began_ns > first.reservation.granted_ns
                # It is sent now. What its answer shows of the account is compared with this instant.
                first.reservation.granted_ns = granted.granted_ns
            if granted.open and not paused:
                return granted
            self.cancel(granted)  # a pause has begun, or it counts as lost by now: back to its place in its lane
            waiter.returned = True

    def _at_once(self, waiter: Waiter) -> Reservation | None:
        """The grant of a request that waits nowhere, where nothing of the account is shut.

        Then it needs no turn there.
        """
        account = self.account
        if account is None or self.further or account.pool.queue.length or account.pool.stopped is not None:
            return None
        capacity = account.pool.capacity
        assert isinstance(capacity, PlanCapacity)
        # Read outside of the account's section, whose dicts are replaced as a whole: it was open a moment ago.
        if not capacity.is_free(self.now_ns(), waiter.lane):
            return None
        granted = Scheduler.try_grant(self, waiter)  # the method of this class would come here again
        return granted if isinstance(granted, Reservation) else None

    async def _own(self, waiter: Waiter, wait: _Wait) -> tuple[Outcome, Passed | None]:
        """The outcome in the own pool, after the account's, and what is held there.

        Each may be shut for hours, and asks a waiting request whether it still is: no request has the turn of one while
        it waits for the other.
        """
        while (account := self.account) is not None:
            there = _further(waiter)
            self._at[waiter] = account, there
            try:
                step = await awaited(wait(account, there))
            finally:
                self._at.pop(waiter, None)
            if not isinstance(step, Reservation):
                return _named(account, step), None
            step.begun = True
            if shut := self._is_shut:  # give back the turn, which another pool's request may use as a test meanwhile
                account.cancel(step)
            try:
                granted = await awaited(wait(self, waiter))
            except BaseException:
                account.cancel(step)
                raise
            if not isinstance(granted, Reservation):
                account.cancel(step)
                return granted, None
            if shut:
                there = _further(waiter)
                step = Scheduler.try_grant(account, there)  # without a wait, which would hold the turn here
                if not isinstance(step, Reservation):
                    self.cancel(granted)
                    waiter.returned = True
                    continue
                step.begun = True
            first = Passed(account, step, there)
            granted.passed = (first,)
            return granted, first
        return await awaited(wait(self, waiter)), None

    @property
    def _is_shut(self) -> bool:
        """Whether an allowance of the own pool is used up."""
        return self.pool.progress.allowance.is_shut and self._paused_until_ns() > self.now_ns()

    def _of_account(self, reservation: Reservation, refusal: Refusal) -> tuple[Scheduler, Reservation] | None:
        """The account, and the reservation there, if a refusal is about all that it sends.

        ``None``: it is about the pool.
        """
        if not refusal.of_account or refusal.scope is not RefusalScope.POOL or self._opens is None:
            return None
        account = self.account or self._opens()
        for passed in reservation.passed:
            if passed.scheduler is account:
                return account, passed.reservation
        return account, _before(reservation)

    @property
    def _shares_its_end(self) -> bool:
        """Whether the plan of the login is shut, because another model is refused to the same end."""
        allowance = self.pool.progress.allowance
        if self._others is None or not allowance.is_shut or allowance.window is not None:
            return False
        if self.account is not None and self.account.pool.progress.allowance.is_shut:
            return False
        return any(one is not self and allowance.is_same(one.pool.progress.allowance) for one in self._others())

    def _hopeless(self, waiter: Waiter) -> NeverFits | Expired | None:
        """Why a further scheduler would not grant ``waiter``; ``None``: each may."""
        for scheduler in self.beside:
            if waiter.deadline_ns is None and _COUNTS.issuperset(scheduler.pool.ledger.entries.units):
                continue  # it fits
            if (found := scheduler.read(scheduler.pool.foresee, _further(waiter))) is not None:
                named = _named(scheduler, found)
                assert isinstance(named, NeverFits | Expired)
                return named
        return None

    def _paused_until_ns(self) -> int:
        """When the pause of the own pool ends, of all processes or of this one; past for none."""
        now_ns = self.now_ns()
        return now_ns + self.pool.capacity.cool_down_ns(now_ns)

    def row(self, reservation: Reservation, refusal: Refusal) -> Row | None:
        """See :meth:`Scheduler.row`."""
        if (of_account := self._of_account(reservation, refusal)) is None:
            row = super().row(reservation, refusal)
        else:
            account, there = of_account
            row = account.row(there, refusal)
            row = row and row._replace(admitted=self.pool.progress.admitted)  # as in the other rows of its requests
        return row and row._replace(holds=self.holds)

    def refuse(
        self, reservation: Reservation, refusal: Refusal, pause_s: float, stop_s: float = 0.0, why: str = ""
    ) -> None:
        """See :meth:`Scheduler.refuse`. One about the account says nothing of the pool."""
        if (of_account := self._of_account(reservation, refusal)) is not None:
            account, there = of_account
            account.refuse(there, refusal, pause_s, stop_s, why)
            # In this scope the pool charges the request without its tokens, and learns nothing.
            refusal, pause_s, stop_s = replace(refusal, scope=RefusalScope.MODE), 0.0, 0.0
        elif self.account is not None:  # that tells nothing of the account
            for passed in reservation.passed:
                if passed.scheduler is self.account:
                    passed.scheduler.cancel(passed.reservation)
        try:
            super().refuse(reservation, refusal, pause_s, stop_s, why)
        # As in ``Scheduler.cancel``: a listener of events may end the program in it.
        finally:
            of_pool = refusal.scope is RefusalScope.POOL
            for passed in reservation.passed:
                passed.settle(None if of_pool else dict.fromkeys(reservation.cost, 0.0) | {REQUESTS: 1.0})
        # Only now: this refusal may have shut the allowance of the own pool.
        if of_account is None and refusal.kind.about_rate and self._opens is not None and self._shares_its_end:
            account = self.account or self._opens()
            account.refuse(_before(reservation), refusal, pause_s, stop_s, why)

    def why(self, waiter: Waiter) -> Waiting | None:
        """See :meth:`Scheduler.why`."""
        if (at := self._at.get(waiter)) is None:
            return super().why(waiter)
        scheduler, there = at
        why = scheduler.why(there)
        return why and replace(why, quota=_quota(scheduler, why.quota))

    def resume(self) -> None:
        """See :meth:`Scheduler.resume`."""
        super().resume()
        if self.account is not None:
            self.account.resume()

    def expected_s(self, waiter: Waiter) -> float:
        """See :meth:`Scheduler.expected_s`. The wait for a slot of the provider is unknown, and left out."""
        further = [scheduler.expected_s(_further(waiter)) for scheduler in self.beside]
        # The longest, not the sum: every pool refills while the request waits at another one.
        return max([super().expected_s(waiter), *(wait_s for wait_s in further if wait_s < math.inf)])

    def after_fork(self) -> None:
        """See :meth:`Scheduler.after_fork`."""
        super().after_fork()
        self._at = {}


def _before(reservation: Reservation) -> Reservation:
    """What an attempt holds of an account that it did not pass: it was sent before, or for its own pool."""
    before = Reservation({}, [], [], reservation.granted_ns, reservation.granted_ns)
    # Closed, because the account has charged nothing that a refusal could keep or correct.
    before.open = False
    return before


def _further(waiter: Waiter) -> Waiter:
    """The same request before a further scheduler.

    One that has waited before takes the place of its arrival there, too.
    """
    there = Waiter(waiter.cost, waiter.lane, waiter.deadline_ns, waiter.name)
    there.number, there.returned = waiter.number, waiter.returned or waiter.queued
    return there


def _quota(scheduler: Scheduler, quota: str) -> str:
    """``quota``, which binds at a further scheduler, with the name of that pool if it is one of its quotas."""
    pool = scheduler.pool
    return f"{quota} of {pool.name}" if quota in pool.ledger.names else quota


def _named(scheduler: Scheduler, outcome: Outcome) -> Outcome:
    """``outcome``, of a further scheduler, with the name of its pool beside the quota."""
    match outcome:
        case NeverFits():
            return replace(outcome, quota=_quota(scheduler, outcome.quota))
        case Expired(_, quota):
            return replace(outcome, quota=_quota(scheduler, quota))
        case WaitUntil(at_ns, quota):
            unknown = math.isinf(scheduler.retry_after_s(outcome))
            return WaitUntil(FAR_NS if unknown else at_ns, _quota(scheduler, quota))
        case _:
            return outcome
