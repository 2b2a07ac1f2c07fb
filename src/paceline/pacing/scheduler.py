"""A pool that threads and event loops share: one lock, one timer, and one wake-up per grant.

Every method calls the pool under the lock, and after that wakes the waiters that the pool returns. The pool makes all
decisions.
"""

from __future__ import annotations

import logging
import math
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from paceline.core.capacity import PENDING, Capacity, Learns
from paceline.core.ledger import Ledger
from paceline.core.meters import FAR_NS, UNKNOWN_NS
from paceline.core.pool import Pool
from paceline.core.queue import Queue, Waiter
from paceline.core.quota import CONCURRENCY, NS, REQUESTS, Cost, Rule
from paceline.core.results import Outcome, PacelineWarning, Reading, Refusal, Reservation, StoreLost, WaitUntil
from paceline.pacing import lines
from paceline.pacing.clock import Clock, Timer, tell_of_forks
from paceline.pacing.lateness import Lateness
from paceline.pacing.limits import of_periods
from paceline.pacing.owners import Owner, TaskOwner, ThreadOwner, in_a_loop, running_loop, task_owner, wake_all
from paceline.pacing.status import QUEUE_SHOWN, Waiting, report, wait_until_s

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

READ_NS, READ_AHEAD_NS = NS // 20, NS
"""The headers of twenty answers a second are read, which show a change soon enough, and of twenty that come at once."""


class Worker(Protocol):
    """The thread that makes the exchanges of the pools of a limiter with their store.

    :class:`paceline.shared.worker.StoreWorker` is the only one; this package does not import it.
    """

    def capacity(self, ledger: Ledger, queue: Queue, now_ns: int, *, learns: Learns) -> Capacity:
        """A capacity of the quotas in ``ledger`` for the requests in ``queue``."""

    @property
    def running(self) -> bool:
        """Whether its thread lives."""

    def add(self, scheduler: Scheduler) -> None:
        """Make the exchanges of ``scheduler`` from now on, too."""

    def poke(self, scheduler: Scheduler) -> bool:
        """Announce that an exchange is due for ``scheduler``; whether it will be made."""

    def close(self) -> None:
        """Send the news that is not sent yet, and end."""


class Scheduler:
    """The thread-safe side of one :class:`~paceline.core.pool.Pool`.

    Args:
        pool: The pool.
        clock: The clock.
        worker: Makes the exchanges, for a capacity with a store.

    Attributes:
        further: The schedulers that every request passes after this one; see :mod:`paceline.pacing.chain`.
        lines: Its log lines.
        events: Called with the fields of every :class:`~paceline.pacing.events.Event` of the pool, or ``None``.
        periods: The periods of the pool's quotas, of each unit that has several.
    """

    further: Sequence[Scheduler] = ()

    def __init__(self, pool: Pool, clock: Clock, worker: Worker | None = None) -> None:
        self.pool = pool
        self.lines = lines.Lines(pool, self.read, self.why)
        self.events: Callable[..., None] | None = None
        self.periods: Mapping[str, Sequence[float]] = {}
        self._clock = clock
        self._worker = worker
        # A finalizer or a signal handler may run while this thread is in the critical section (`_busy`): its changes
        # and events are deferred.
        self._lock = threading.RLock()
        self._busy = False
        self._deferred: deque[Callable[[int], None]] = deque()
        self._deferred_events: deque[tuple[Any, ...]] = deque()
        self._due = self._poked = False  # an exchange is due; the worker is informed
        self._forked = False  # the quotas are those of the parent process, which spends them, too
        self._timer: Timer | None = None
        self._timer_ns = FAR_NS
        self._lateness = Lateness(pool)
        self._read_ns = 0  # until when the headers that were read suffice
        self._loops: set[asyncio.AbstractEventLoop] = set()  # those with waiters, and some that had
        _schedulers.add(self)
        if worker is not None:
            worker.add(self)

    def now_ns(self) -> int:
        """The present by the scheduler's clock."""
        return self._clock.now_ns()

    # Waiting.

    def wait(self, waiter: Waiter) -> Outcome:
        """Block this thread until ``waiter`` has its outcome."""
        outcome = self._enter(waiter, ThreadOwner)
        if type(outcome) is not WaitUntil:
            return outcome
        if in_a_loop():
            why = "waiting for a permit blocks this event loop; use `async with`, `await`, or an async client"
            try:
                warnings.warn(f"{self.pool.name}: {why}", PacelineWarning, stacklevel=6 if self.further else 4)
            except BaseException:  # warnings are errors here
                self._leave(waiter)
                raise
        return self._block(waiter)

    async def wait_async(self, waiter: Waiter) -> Outcome:
        """Suspend this task until ``waiter`` has its outcome.

        Raises:
            RuntimeError: No event loop of asyncio runs here.
        """
        owner = task_owner()
        if running_loop()() is None:
            raise RuntimeError(
                f"{self.pool.name}: no event loop of asyncio runs here, and paceline supports no other (trio, curio): run"
                " the program with asyncio, or use the sync interface in a thread, e.g. `with limiter.acquire(...)` and a"
                " sync client in trio.to_thread.run_sync(...)"
            )
        if type(outcome := self._enter(waiter, owner)) is not WaitUntil:
            return outcome
        try:
            await waiter.owner.future
        except BaseException:  # cancelled, before the grant or just after it
            self._leave(waiter)
            raise
        assert waiter.outcome is not None
        self._look_if_late(waiter.outcome)
        return waiter.outcome

    def try_grant(self, waiter: Waiter) -> Outcome:
        """Grant ``waiter`` now or not at all; where a store decides, block this thread until its reply."""
        outcome = self._enter(waiter, None)
        return self._block(waiter) if outcome is PENDING else outcome

    def _enter(self, waiter: Waiter, owner: Callable[[], Owner] | None) -> Outcome:
        """Submit ``waiter`` with an ``owner`` of this type; without one, it is granted at once or not at all."""
        if self._forked:
            self._forked = False
            self.lines.hint_at_store()
        with self._lock:
            if self._busy:
                raise RuntimeError("a permit cannot be acquired from a signal handler or a finalizer")
            self._busy = True
            try:
                now_ns = self._clock.now_ns()
                if self._loops and self.pool.queue.length:
                    self._forget_closed(now_ns)
                if self._lateness.unsent:
                    self._lateness.hold(now_ns)
                outcome = self.pool.try_grant(now_ns, waiter) if owner is None else self.pool.submit(now_ns, waiter)
                waits = type(outcome) is WaitUntil and waiter.queued
                if waits:
                    try:
                        waiter.owner = (owner or ThreadOwner)()
                    except BaseException:  # no event loop of asyncio runs here
                        self.pool.withdraw(now_ns, waiter)
                        raise
                    if type(waiter.owner) is TaskOwner:
                        if self.pool.queue.length == 1:  # no other loop has waiters
                            self._loops.clear()
                        self._loops.add(waiter.owner.loop)
            finally:
                self._busy = False
            if not waits and not self._deferred and not self.pool.capacity.exchange_due:
                return outcome
            # A finalizer may have given back the very capacity that this waiter waits for.
            done = self._work() if self._deferred else []
            self._arm()
        self._wake(done)
        self.lines.notices()
        if waits:
            self.lines.waits(now_ns, waiter, cast("WaitUntil", outcome))
        return outcome

    def _block(self, waiter: Waiter) -> Outcome:
        """Block this thread until the outcome of ``waiter``."""
        try:
            waiter.owner.event.wait()
        except BaseException:  # KeyboardInterrupt: a grant is given back
            self._leave(waiter)
            raise
        self._look_if_late(cast("Outcome", waiter.outcome))
        return cast("Outcome", waiter.outcome)

    def _look_if_late(self, outcome: Outcome) -> None:
        """Let headroom and level adapt if the owner of a granted waiter continues late: a busy event loop, a loaded machine."""
        if isinstance(outcome, Reservation):
            late_ns = self._clock.now_ns() - outcome.granted_ns
            if late_ns > self._lateness.bound_ns:
                self._change(lambda now_ns: self._lateness.sent(now_ns, outcome, late_ns))
            self._lateness.ended(outcome)

    def _leave(self, waiter: Waiter) -> None:
        if isinstance(waiter.outcome, Reservation):
            self._lateness.ended(waiter.outcome)
        self._change(lambda now_ns: self.pool.withdraw(now_ns, waiter))

    # Closing a reservation.

    def settle(self, reservation: Reservation, actual: Cost | None, waiter: Waiter | None = None) -> None:
        """See :meth:`Pool.settle`."""
        with self._lock:  # like _change(), without a closure: this is the hot path
            if self._busy:
                self._deferred.append(lambda now_ns: self.pool.settle(now_ns, reservation, actual, waiter))
                done, waits = [], True
            else:
                self._busy = True
                try:
                    pool = self.pool
                    pool.settle(self._clock.now_ns(), reservation, actual, waiter)
                    quiet = not pool.queue.length and not self._deferred and not pool.capacity.exchange_due
                finally:
                    self._busy = False
                done, waits = [] if quiet else self._work(), False
        if (done or self._deferred_events or self._due) and not waits:
            self._wake(done)

    def cancel(self, reservation: Reservation) -> None:
        """See :meth:`Pool.cancel`."""
        self._change(lambda now_ns: self.pool.cancel(now_ns, reservation))

    def refuse(self, reservation: Reservation, refusal: Refusal, pause_s: float, stop_s: float = 0.0) -> None:
        """See :meth:`Pool.refuse`."""
        self._change(lambda now_ns: self.pool.refuse(now_ns, reservation, refusal, pause_s, stop_s))
        self.lines.notices()

    def reads_now(self) -> bool:
        """Whether the headers of an answer that comes now are to be read; those of a refusal always are."""
        return self._read_ns + READ_NS - self._clock.now_ns() <= READ_AHEAD_NS

    def observe(self, readings: Iterable[Reading], reservation: Reservation | None) -> None:
        """See :meth:`Pool.observe`; ``None``: the request of the answer is not known.

        Then the level only falls, because requests may have been charged since the provider counted.
        """
        if self.periods:
            readings = list(of_periods(readings, self.periods))

        def learn(now_ns: int) -> None:
            self._read_ns = max(self._read_ns, now_ns) + READ_NS
            if reservation is not None:
                self.pool.observe(now_ns, readings, reservation)
            elif self.pool.capacity.learning is not None:
                of_now = Reservation({}, [], [], now_ns, now_ns)
                of_now.notes = self.pool.capacity.learning.notes_of_now()
                self.pool.observe(now_ns, [_lower(reading, self.pool.ledger, now_ns) for reading in readings], of_now)

        self._change(learn)
        self.lines.notices()

    def pause(self, until_ns: int) -> None:
        """See :meth:`Capacity.pause <paceline.core.capacity.Capacity.pause>`."""
        self._change(lambda now_ns: self.pool.capacity.pause(until_ns))  # noqa: ARG005

    def lift(self, until_ns: int) -> None:
        """See :meth:`Capacity.lift <paceline.core.capacity.Capacity.lift>`."""
        self._change(lambda now_ns: self.pool.capacity.lift(now_ns, until_ns))

    def begun(self, reservation: Reservation) -> None:
        """The answer to ``reservation`` has begun."""
        reservation.begun = True
        if self.pool.silent_since_ns:
            self._change(self.pool.answered)
            self.lines.notices()

    def resume(self) -> None:
        """See :meth:`Pool.resume`."""
        self._change(lambda now_ns: self.pool.resume())  # noqa: ARG005

    # Reading.

    def retry_after_s(self, until: WaitUntil) -> float:
        """Seconds from now until ``until``; infinite where a slot binds, even if a store is asked again before."""
        accounts = self.pool.ledger.accounts
        if any(one.name == until.quota and one.meter.quota.rule is Rule.SLOTS for one in accounts):
            return math.inf
        return wait_until_s(until.at_ns, self.now_ns())

    def expected_s(self, waiter: Waiter) -> float:
        """How long ``waiter`` would wait if it joined the queue now, in seconds; infinite where it cannot be granted."""

        def read(now_ns: int) -> float:
            at_ns = self.pool.expected(now_ns, waiter)
            return wait_until_s(at_ns, now_ns) if at_ns is not None and at_ns < UNKNOWN_NS else math.inf

        return self.read(read)

    def why(self, waiter: Waiter) -> Waiting | None:
        """Why ``waiter`` waits; ``None`` if it does not."""

        def read(now_ns: int) -> Waiting | None:
            if waiter.owner is None or waiter.outcome is not None:
                return None
            ahead, at_ns, quota = self.pool.place(now_ns, waiter)
            return Waiting(ahead, quota, wait_until_s(at_ns, now_ns) if at_ns < UNKNOWN_NS else None)

        return self.read(read)

    def status(self, shown: int = QUEUE_SHOWN) -> dict[str, Any]:
        """The state of the pool, as JSON values, with ``shown`` waiters at most."""
        return self.read(lambda now_ns: report(self.pool, now_ns, shown))

    def read(self, read: Callable[[int], T]) -> T:
        """The result of ``read(now_ns)`` under the lock; changes by finalizers are deferred meanwhile."""
        with self._lock:
            inside, self._busy = self._busy, True
            try:
                now_ns = self._clock.now_ns()
                if self._loops and not inside:
                    self._forget_closed(now_ns)
                found = read(now_ns)
            finally:
                self._busy = inside
            done = self._work() if self._deferred and not inside else []
        if not inside:
            self._wake(done)
        return found

    @property
    def idle(self) -> bool:
        """Whether no exchange is due, except one that has begun."""
        return not (self._due or self._poked)

    def refresh(self) -> StoreLost | None:
        """Update the snapshot from the store, if one keeps the quotas; ``StoreLost`` if it has never answered."""
        if self._worker is None:
            return None
        outcome = Scheduler.try_grant(
            self, Waiter(dict.fromkeys([*self.pool.ledger.units, REQUESTS, CONCURRENCY], 0.0))
        )
        if isinstance(outcome, Reservation):
            self.cancel(outcome)

            def uncount(_: int) -> None:
                for name in ("granted", "cancelled"):  # it was no request
                    self.pool.counts[name] -= 1

            self.read(uncount)
        return outcome if isinstance(outcome, StoreLost) else None

    # Events.

    def notify(self, *event: Any) -> None:
        """Call :attr:`events`, and log; not before the critical section ends, if this thread is in it (a finalizer, a signal)."""
        with self._lock:
            inside = self._busy
            if inside:
                self._deferred_events.append(event)
        if not inside:
            self._tell(event)

    def _tell(self, event: tuple[Any, ...]) -> None:
        kind, _, *fields, _, _, _, _ = event
        if lines.log.isEnabledFor(logging.WARNING if kind == "refused" else logging.DEBUG):
            self.lines.permit(self.now_ns(), kind, *fields)
        if self.events is not None:
            self.events(*event)

    # The critical section.

    def transact(self, step: Callable[[int], tuple[T, list[Waiter]]]) -> T:
        """Change the pool from the worker's thread: ``step`` returns a result, and the waiters whose outcome it set."""
        with self._lock:
            self._poked, self._busy = False, True
            try:
                found, done = step(self._clock.now_ns())
            finally:
                self._busy = False
            done += self._work()
        self._wake(done)
        self.lines.say_waits(self._clock.now_ns())
        return found

    def _change(self, change: Callable[[int], None]) -> None:
        """Make ``change`` and the grants that it allows; deferred if this thread is in the critical section."""
        with self._lock:
            self._deferred.append(change)
            done = [] if (inside := self._busy) else self._work()
        if (done or self._deferred_events or self._due) and not inside:
            self._wake(done)

    def _work(self) -> list[Waiter]:
        """Make the deferred changes and the grants that they allow, until none is left: the next call may come late."""
        done: list[Waiter] = []
        while True:
            self._busy = True
            try:
                done += self._follow_up(self._clock.now_ns())
            finally:
                self._busy = False
            if not self._deferred:
                return done

    def _follow_up(self, now_ns: int) -> list[Waiter]:
        while self._deferred:
            self._deferred.popleft()(now_ns)
        done = []
        if self.pool.queue.length:
            if self._lateness.unsent:
                self._lateness.hold(now_ns)
            done = self.pool.pump(now_ns)
            for waiter in done:
                if isinstance(waiter.outcome, Reservation):
                    self._lateness.granted(waiter.outcome)
        elif self._worker is None:
            return done
        self._arm()
        return done

    def _arm(self) -> None:
        """Set the timer for the next grant and for the next exchange."""
        if self._worker is not None:
            capacity = self.pool.capacity
            capacity.exchange_due = False
            at_ns = None if self._poked and self._worker.running else capacity.exchange_ns
            if at_ns is not None:
                if at_ns <= self._clock.now_ns():
                    self._due = True
                else:
                    self._arm_at(at_ns)
        if self.pool.wake_ns is not None:
            self._arm_at(self.pool.wake_ns)

    def _arm_at(self, wake_ns: int) -> None:
        """Set the timer to ``wake_ns``, unless it is set to an earlier instant."""
        if wake_ns < self._timer_ns:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ns = wake_ns
            self._timer = self._clock.call_at(wake_ns, self._on_timer)

    def _on_timer(self) -> None:
        done: list[Waiter] = []
        try:
            with self._lock:
                self._timer_ns = FAR_NS
                done = self._work()
        except BaseException:  # raised into this thread: the waiters do not wait for a timer that is over
            with self._lock:
                self._arm_at(self._clock.now_ns() + NS)
            raise
        finally:
            self._wake(done)
        if self.pool.notices:
            self.lines.notices()

    def _wake(self, done: list[Waiter]) -> None:
        """Wake the waiters of ``done``, inform the worker, and send deferred events; not under the lock.

        The events come last: a listener may raise ``SystemExit``.
        """
        if closed := wake_all([waiter.owner for waiter in done]):
            self._change(lambda now_ns: self._forget(now_ns, closed, done))
        while self._due:
            self._poke()
        while self._deferred_events:
            try:
                event = self._deferred_events.popleft()
            except IndexError:  # another thread has taken it
                break
            self._tell(event)

    def _poke(self) -> None:
        """Inform the worker that an exchange is due; not under the lock, because of the order of the locks."""
        assert self._worker is not None
        self._due, self._poked = False, True
        if self._worker.poke(self):
            return
        with self._lock:  # the worker is closed, and no request waits
            self._poked = False
            if self.pool.queue.length:  # a request has arrived since
                self._arm()

    def _forget(self, now_ns: int, loops: Collection[asyncio.AbstractEventLoop], done: Iterable[Waiter] = ()) -> None:
        """Withdraw the waiters of closed loops, and give back their grants."""
        for waiter in [*done, *self.pool.queue]:
            if getattr(waiter.owner, "loop", None) in loops:
                self.pool.withdraw(now_ns, waiter)

    def _forget_closed(self, now_ns: int) -> None:
        """Withdraw the waiters of loops that were closed: they would count in every estimate until one is granted."""
        closed = {loop for loop in self._loops if loop.is_closed()}
        if closed:
            self._loops -= closed
            self._forget(now_ns, closed)
            self._deferred.append(lambda _: None)  # the next waiters may be granted now

    def after_fork(self) -> None:
        """In a forked child, drop the state of the parent: its waiters, its requests in flight, its held lock."""
        self._lock, self._busy = threading.RLock(), False
        self._timer, self._timer_ns = None, FAR_NS
        self._deferred.clear()
        self._deferred_events.clear()
        self.lines.after_fork()
        self._due = self._poked = False
        self._loops, self._lateness = set(), Lateness(self.pool)
        self._forked = self._worker is None and self.pool.counts.get("granted", 0) > 0
        self.pool.drain()


_schedulers: weakref.WeakSet[Scheduler] = weakref.WeakSet()
tell_of_forks(_schedulers)


def _lower(reading: Reading, ledger: Ledger, now_ns: int) -> Reading:
    """``reading``, without its level if that is not below the present one."""
    levels = [m.level(now_ns) for m in ledger.meters if m.quota.unit == reading.unit]
    above = reading.remaining is None or reading.remaining >= min(levels, default=0.0)
    return replace(reading, remaining=None, reset_s=None) if above else reading
