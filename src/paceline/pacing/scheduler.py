"""A pool that threads and event loops share: they wait for it, close what was granted to them, and read its state.

The pool makes all decisions. Every method calls it in its critical section (:mod:`paceline.pacing.section`).
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, cast

from paceline.core.capacity import PENDING, Capacity, Learns
from paceline.core.ledger import Ledger
from paceline.core.meters import UNKNOWN_NS
from paceline.core.plan import Plan, PlanCapacity, Weighed, Window
from paceline.core.pool import Pool
from paceline.core.progress import Row
from paceline.core.queue import Queue, Waiter
from paceline.core.quota import CONCURRENCY, NS, REQUESTS, Cost
from paceline.core.results import (
    COOL_DOWN,
    QUEUE,
    Outcome,
    Reading,
    Refusal,
    Reservation,
    StoreLost,
    WaitUntil,
    warn,
)
from paceline.estimation.prefixes import PromptCache
from paceline.pacing.clock import Clock, tell_of_forks
from paceline.pacing.events import Event
from paceline.pacing.lines import Lines, log
from paceline.pacing.owners import TaskOwner, ThreadOwner, in_a_loop
from paceline.pacing.periods import of_periods
from paceline.pacing.retry import RetryBudget
from paceline.pacing.section import Exchanges, Section
from paceline.pacing.status import QUEUE_SHOWN, PoolStatus, Waiting, report, wait_until_s
from paceline.providers.base import Usage
from paceline.providers.verdict import Patience

HearPlan = Callable[[Mapping[str, str], Refusal | None, Usage | None, float], None]
"""Takes the headers of an answer by hand, the refusal that it is, the usage that it reports, and when its request was
sent, in seconds since 1970 (infinite: not known)."""

READ_NS, READ_AHEAD_NS = NS // 20, NS
"""The headers of one answer in ``READ_NS`` are read: twenty a second show a change soon enough. Of answers that come at
once, as many are read as in ``READ_AHEAD_NS``."""


class Worker(Protocol):
    """The thread that makes the exchanges of the pools of a limiter with their store.

    :class:`paceline.shared.worker.StoreWorker` is the only one; this package does not import it.

    Attributes:
        schedulers: Those whose exchanges it makes.
    """

    schedulers: weakref.WeakSet[Scheduler]

    def capacity(self, ledger: Ledger, queue: Queue, now_ns: int, *, learns: Learns) -> Capacity:
        """A capacity of the quotas in ``ledger`` for the requests in ``queue``."""

    def plan(self, plan: Plan, ledger: Ledger, queue: Queue, now_ns: int) -> PlanCapacity:
        """The capacity of the plan of an account, whose requests wait in ``queue``."""

    def agreed(self, pool: str, text: str) -> str:
        """What the first process of the store has noted under ``pool``: ``text``, if that is this one.

        It waits for the store.
        """

    def can_grant(self) -> bool:
        """Whether requests can be granted; it waits for the store."""

    @property
    def running(self) -> bool:
        """Whether its thread lives."""

    def poke(self, scheduler: Scheduler) -> bool:
        """Announce that an exchange is due for ``scheduler``; whether it will be made."""

    def close(self) -> None:
        """Send the news that is not sent yet, and end."""


class ByHand:
    """Takes what calls by hand show of their provider: its health, its plans; in a pool that others pass, nothing.

    Attributes:
        fails: Whether the last call had no answer.
        is_model: Whether it is the pool of a provider's model, and none of the user's own.
        hear_plan: Takes what an answer states of the plan of its account; ``None`` in a pool of the user's own.
    """

    fails = is_model = False
    hear_plan: HearPlan | None = None

    def failed(self, sent_ns: int, reason: str, *, reached: bool, reported: bool) -> None:
        """Count a call without an answer, which the caller has ``reported``, or whose block an error has left."""

    def answered(self) -> None:
        """Count an answer."""


class Scheduler:
    """The thread-safe side of one :class:`~paceline.core.pool.Pool`.

    Args:
        pool: The pool.
        clock: The clock.
        worker: Makes the exchanges, for a capacity with a store.

    Attributes:
        further: The schedulers that every request passes after this one; see :mod:`paceline.pacing.chain`.
        stated: The units that are counted here and there before the first answer.
        now_ns: The present by its clock.
        section: Its critical section, with its log lines.
        read: See :meth:`Section.read`.
        events: Called with every event of a permit of the pool, or ``None``.
        periods: The periods of the pool's quotas, of each unit that has several.
        by_hand: Takes what calls by hand report, beside what the pool learns.
        patience: For how long the beginnings of its streams are held.
        retries: The budget of its retries, which is changed in its section.
        prompt_cache: What its answers have shown of the cache of the provider; ``None``: requests are not ordered by
            it.
    """

    further: Sequence[Scheduler] = ()
    by_hand = ByHand()

    def __init__(self, pool: Pool, clock: Clock, worker: Worker | None = None) -> None:
        self.pool = pool
        self.stated = frozenset(pool.ledger.entries.units)
        self.events: Callable[[Event], None] | None = None
        self.periods: Mapping[str, Sequence[float]] = {}
        self.patience, self.retries = Patience(), RetryBudget(clock.now_ns())
        self.prompt_cache: PromptCache | None = None
        self.now_ns = clock.now_ns
        self._read_ns = 0  # until when the headers that were read suffice
        exchanges = None if worker is None else Exchanges(partial(worker.poke, self), lambda: worker.running)
        self.section = Section(pool, clock, exchanges)
        self.read = self.section.read
        self.section.lines = Lines(pool, self.read, self.why)
        _schedulers.add(self)
        if worker is not None:
            worker.schedulers.add(self)

    @property
    def beside(self) -> Sequence[Scheduler]:
        """All that its requests pass, the account first."""
        return self.further

    # Waiting.

    def wait(self, waiter: Waiter) -> Outcome:
        """Block this thread until ``waiter`` has its outcome."""
        outcome = self.section.enter(self.pool.submit, waiter, ThreadOwner)
        if type(outcome) is not WaitUntil:
            return outcome
        if in_a_loop():  # only now: a permit that is there at once blocks nothing
            why = "waiting for a permit blocks this event loop; use `async with`, `await`, or an async client"
            try:
                warn(f"{self.pool.name}: {why}")
            except BaseException:  # warnings are errors here
                self._withdraw(waiter)
                raise
        return self._block(waiter)

    async def wait_async(self, waiter: Waiter) -> Outcome:
        """Suspend this task until ``waiter`` has its outcome.

        Raises:
            RuntimeError: No event loop of asyncio runs here.
        """
        import asyncio  # before the lock, because an import may wait for another thread

        if asyncio._get_running_loop() is None:  # noqa: SLF001  (get_running_loop raises off a loop)
            raise RuntimeError(
                f"{self.pool.name}: no event loop of asyncio runs here, and paceline supports no other (trio, curio):"
                " run the program with asyncio, or use the sync interface in a thread, e.g."
                " `with limiter.acquire(...)` and a sync client in trio.to_thread.run_sync(...)"
            )
        outcome = self.section.enter(self.pool.submit, waiter, TaskOwner)
        if type(outcome) is not WaitUntil:
            return outcome
        try:
            await waiter.owner.future
        except BaseException:  # cancelled, before the grant or just after it
            self._withdraw(waiter)
            raise
        assert waiter.outcome is not None
        self._look_if_late(waiter.outcome)
        return waiter.outcome

    def try_grant(self, waiter: Waiter) -> Outcome:
        """Grant ``waiter`` now or not at all; where a store decides, block this thread until its reply."""
        outcome = self.section.enter(self.pool.try_grant, waiter, ThreadOwner)
        return self._block(waiter) if outcome is PENDING else outcome

    def _block(self, waiter: Waiter) -> Outcome:
        """Block this thread until the outcome of ``waiter``."""
        try:
            waiter.owner.wait()
        except BaseException:  # KeyboardInterrupt: a grant is given back
            self._withdraw(waiter)
            raise
        self._look_if_late(cast("Outcome", waiter.outcome))
        return cast("Outcome", waiter.outcome)

    def _look_if_late(self, outcome: Outcome) -> None:
        """Let headroom and level adapt if the owner of a granted waiter continues late.

        Its event loop is busy, or the machine is loaded.
        """
        if isinstance(outcome, Reservation):
            late_ns = self.now_ns() - outcome.granted_ns
            # Before ``continued``: the level is lowered by all that is sent now, this one included.
            if late_ns > self.section.lateness.bound_ns:
                self.section.change(self.section.lateness.sent, outcome, late_ns)
            self.section.lateness.continued(outcome)

    def _withdraw(self, waiter: Waiter) -> None:
        """Let the owner of ``waiter`` wait no longer; a grant is given back."""
        if isinstance(waiter.outcome, Reservation):
            self.section.lateness.continued(waiter.outcome)
        self.section.change(self.pool.withdraw, waiter)

    # Closing a reservation.

    def settle(self, reservation: Reservation, actual: Cost | None, waiter: Waiter | None = None) -> None:
        """See :meth:`Pool.settle`."""
        for passed in reservation.passed:
            passed.settle(actual, waiter)
        # This ends nearly every attempt, and the capacity itself says whether an exchange is due by it.
        self.section.change(self.pool.settle, reservation, actual, waiter, looks=False)

    def timed_out(self, reservation: Reservation) -> bool:
        """See :meth:`Pool.timed_out`."""
        # Read, although it is counted: the settlement that follows makes the grants.
        return self.read(self.pool.timed_out, reservation)

    def cancel(self, reservation: Reservation) -> None:
        """See :meth:`Pool.cancel`."""
        try:
            self.section.change(self.pool.cancel, reservation)
        finally:  # a listener of events may end the program in it
            for passed in reservation.passed:
                passed.scheduler.cancel(passed.reservation)

    def row(self, reservation: Reservation, refusal: Refusal) -> Row | None:
        """See :meth:`Pool.row`."""
        return self.read(self.pool.row, reservation, refusal)

    def refuse(
        self, reservation: Reservation, refusal: Refusal, pause_s: float, stop_s: float = 0.0, why: str = ""
    ) -> None:
        """See :meth:`Pool.refuse`."""
        self.section.change(self.pool.refuse, reservation, refusal, pause_s, stop_s, why)

    def reads_at(self, now_ns: int) -> bool:
        """Whether the headers of an answer that comes now are to be read. The headers of a refusal always are."""
        return self._read_ns + READ_NS - now_ns <= READ_AHEAD_NS

    def observe(self, readings: Iterable[Reading], reservation: Reservation | None) -> None:
        """See :meth:`Pool.observe`; ``None``: the request of the answer is not known.

        Then the level only falls, because requests may have been charged since the provider counted.
        """
        if self.periods:
            readings = list(of_periods(readings, self.periods))

        def learn(now_ns: int) -> None:
            self._read_ns = max(self._read_ns, now_ns) + READ_NS  # a leaky bucket, which ``reads_at`` asks
            if reservation is not None:
                self.pool.observe(now_ns, readings, reservation)
            elif self.pool.capacity.learning is not None:
                of_now = Reservation({}, [], [], now_ns, now_ns)
                of_now.notes = self.pool.capacity.learning.notes_of_now()
                self.pool.observe(now_ns, [_lower(reading, self.pool.ledger, now_ns) for reading in readings], of_now)

        self.section.change(learn)

    def pause(self, until_ns: int, reason: str = COOL_DOWN) -> None:
        """See :meth:`Capacity.pause <paceline.core.capacity.Capacity.pause>`."""
        self.section.change(lambda now_ns: self.pool.capacity.pause(until_ns, reason))  # noqa: ARG005

    def begun(self, reservation: Reservation) -> None:
        """The answer to ``reservation`` has begun."""
        reservation.begun = True
        # Both are read without the lock: every answer comes here, and few have something to change.
        ledger = self.pool.capacity.ledger
        if ledger.entries.exact and ledger.gentle:
            self.section.change(ledger.arrived, reservation)
        if self.pool.silence.since_ns:
            self.section.change(self.pool.answered)
        for passed in reservation.passed:
            passed.scheduler.begun(passed.reservation)

    def read_plan(self, windows: Iterable[Window], notes: Mapping[str, str], weighed: Mapping[str, Weighed]) -> None:
        """Take what an answer states of the windows of the account.

        ``notes``: the same for other processes, by window. ``weighed``: what requests use of each.
        """

        def read(now_ns: int) -> None:
            capacity = self.pool.capacity
            assert isinstance(capacity, PlanCapacity)
            capacity.plan.windows = capacity.plan.windows | {one.name: one for one in windows}  # others read it now
            capacity.plan.weighed = weighed
            for window, text in notes.items():
                capacity.note_window(now_ns, window, text)

        self.section.change(read)

    def admitted(self, reservation: Reservation) -> None:
        """See :meth:`Pool.admitted`."""
        if self.pool.opens_at_heads:
            self.section.change(self.pool.admitted, reservation)
        for passed in reservation.passed:
            passed.scheduler.admitted(passed.reservation)

    def resume(self) -> None:
        """See :meth:`Pool.resume`."""
        self.section.change(lambda now_ns: self.pool.resume())  # noqa: ARG005

    # Reading.

    def retry_after_s(self, until: WaitUntil) -> float:
        """Seconds from now until ``until``; infinite where a slot binds, even if a store is asked again before."""
        entries = self.pool.ledger.entries
        if any(one.name == until.quota and not one.meter.quota.period_s for one in entries):
            return math.inf
        return wait_until_s(until.at_ns, self.now_ns())

    def expected_s(self, waiter: Waiter) -> float:
        """How long ``waiter`` would wait if it joined the queue now, in seconds.

        Infinite where it cannot be granted.
        """

        def expected_s(now_ns: int) -> float:
            at_ns = self.pool.expected(now_ns, waiter)
            return wait_until_s(at_ns, now_ns) if at_ns is not None and at_ns < UNKNOWN_NS else math.inf

        return self.read(expected_s)

    def why(self, waiter: Waiter) -> Waiting | None:
        """Why ``waiter`` waits; ``None`` if it does not."""

        def waiting(now_ns: int) -> Waiting | None:
            if waiter.owner is None or waiter.outcome is not None:
                return None
            ahead, at_ns, quota = self.pool.place(now_ns, waiter)
            return Waiting(ahead, quota, wait_until_s(at_ns, now_ns) if at_ns < UNKNOWN_NS else None)

        return self.read(waiting)

    def status(self, shown: int = QUEUE_SHOWN) -> PoolStatus:
        """The state of the pool, as JSON values, with ``shown`` waiters at most."""
        return self.read(lambda now_ns: report(self.pool, now_ns, shown, self.prompt_cache))

    def refresh(self) -> StoreLost | None:
        """Update the snapshot from the store, if one keeps the quotas; ``StoreLost`` if it has never answered.

        The store is asked for a request that costs nothing, and its reply has the state of the quotas.
        """
        if self.pool.capacity.behind == QUEUE:  # no store is behind: what is known here is the present state
            return None
        # The method of this class: a chained scheduler's takes turns at further pools.
        outcome = Scheduler.try_grant(
            self, Waiter(dict.fromkeys([*self.pool.ledger.entries.units, REQUESTS, CONCURRENCY], 0.0))
        )
        if isinstance(outcome, Reservation):
            self.section.change(self._cancel_uncounted, outcome)
        return outcome if isinstance(outcome, StoreLost) else None

    def _cancel_uncounted(self, now_ns: int, reservation: Reservation) -> None:
        self.pool.cancel(now_ns, reservation)
        for name in ("granted", "cancelled"):  # it was no request
            self.pool.record.counts[name] -= 1

    # Events.

    def tell(self, event: Event) -> None:
        """Log an event, and call :attr:`events` with it: outside of the critical section."""
        if log.isEnabledFor(logging.WARNING if event.kind == "refused" else logging.DEBUG):
            self.section.lines.permit(event)
        if self.events is not None:
            self.events(event)

    def after_fork(self) -> None:
        """In a forked child, drop the state of the parent: its waiters, its requests in flight, its held lock."""
        self.section.after_fork()
        self.section.lateness.after_fork()
        self.section.lines.after_fork()
        self.pool.drain()


_schedulers: weakref.WeakSet[Scheduler] = weakref.WeakSet()
tell_of_forks(_schedulers)


def _lower(reading: Reading, ledger: Ledger, now_ns: int) -> Reading:
    """``reading``, without its level if that is not below the present one."""
    levels = [m.level(now_ns) for m in ledger.meters if m.quota.unit == reading.unit]
    above = reading.remaining is None or reading.remaining >= min(levels, default=0.0)
    return replace(reading, remaining=None, reset_s=None) if above else reading
