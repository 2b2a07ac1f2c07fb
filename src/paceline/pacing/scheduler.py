"""A pool that threads and event loops share: one lock, one timer, and one wake-up per grant.

Every method calls the pool under the lock, and after that wakes the waiters that the pool returns. The pool makes all
decisions.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

from paceline.core.capacity import PENDING, Capacity, Learns, LocalCapacity
from paceline.core.ledger import Ledger
from paceline.core.meters import FAR_NS, UNKNOWN_NS, Exact
from paceline.core.pool import Pool
from paceline.core.queue import Queue, Waiter
from paceline.core.quota import CONCURRENCY, NS, REQUESTS, Cost, Rule
from paceline.core.results import Outcome, PacelineWarning, Reading, Refusal, Reservation, StoreLost, WaitUntil
from paceline.core.tracker import HEADROOM_MIN_S
from paceline.pacing import lines
from paceline.pacing.clock import Clock, Timer, tell_of_forks
from paceline.pacing.limits import of_periods
from paceline.pacing.status import QUEUE_SHOWN, report

if TYPE_CHECKING:
    import asyncio

    Futures: TypeAlias = dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]]

T = TypeVar("T")

log = logging.getLogger("paceline")

SAME_PAUSE_NS = NS // 10
"""Pauses that differ by less are the same pause: a store computes the rest of it at every reply."""

LATE_NS = round(HEADROOM_MIN_S * NS)
"""How long after its grant a waiter may continue without consequences for the headroom and the level."""

HOLD_NS = NS // 20
"""The time between two searches for late waiters."""

READ_NS, READ_AHEAD_NS = NS // 20, NS
"""The headers of twenty answers a second are read, which show a change soon enough, and of twenty that come at once."""

PASSED_MIN = 256
"""How many reservations with further ones are kept before lost ones are searched for."""


EXACT_MAX = 300
"""With so many requests ahead, the log line of a wait has a lower bound of it."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a request waits.

    Attributes:
        ahead: The number of requests that go before it.
        quota: What binds now: a quota in its notation, ``cool-down``, ``queue`` (only the requests ahead) or ``store``
            (its answer is awaited).
        expected_wait_s: The wait from now on if all estimates are exact, in seconds; ``None`` when that is unknown,
            because a slot becomes free when another request ends.
    """

    ahead: int
    quota: str
    expected_wait_s: float | None


class Owner(Protocol):
    """The thread or task behind a waiter."""

    def wake(self, others: Futures) -> None:
        """Let it continue; a future of an event loop that does not run in this thread is added to ``others``."""


class ThreadOwner:
    """A thread that waits on an event."""

    __slots__ = ("event",)

    def __init__(self) -> None:
        self.event = threading.Event()

    def wake(self, others: Futures) -> None:  # noqa: ARG002
        """See :meth:`Owner.wake`."""
        self.event.set()


class TaskOwner:
    """A coroutine that waits on a future of its loop."""

    __slots__ = ("future", "loop")

    def __init__(self) -> None:
        import asyncio

        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()

    def wake(self, others: Futures) -> None:
        """See :meth:`Owner.wake`."""
        import asyncio

        if asyncio._get_running_loop() is self.loop:  # noqa: SLF001  (get_running_loop raises off a loop)
            set_all([self.future])
        else:
            others.setdefault(self.loop, []).append(self.future)


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
        further: Schedulers that every request passes after this one (start spacing, the slots of the provider).
        worker: Makes the exchanges, for a capacity with a store.

    Attributes:
        lines: Its log lines.
        events: Called with the fields of every :class:`~paceline.pacing.events.Event` of the pool, or ``None``.
        own_units: The user's own units of the pool's quotas, until the first request; see :meth:`warn_left_out`.
        periods: The periods of the pool's quotas, of each unit that has several.
    """

    def __init__(
        self, pool: Pool, clock: Clock, further: Sequence[Scheduler] = (), worker: Worker | None = None
    ) -> None:
        self.pool = pool
        self.lines = lines.Lines(pool, self.read)
        self.events: Callable[..., None] | None = None
        self.own_units: set[str] = set()
        self.periods: Mapping[str, Sequence[float]] = {}
        self.further = tuple(further)
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
        self._unsaid: deque[tuple[Waiter, WaitUntil]] = deque(maxlen=lines.LINES_MAX)  # whose waits are to be logged
        self._unsent: dict[Reservation, None] = {}  # of granted waiters that have not continued, the oldest first
        self._held_ns = 0  # when the last search for late ones was
        self._read_ns = 0  # until when the headers that were read suffice
        exact = any(type(m) is Exact for m in pool.ledger.meters)
        self._late_ns = 0 if exact else LATE_NS  # how late a granted waiter may continue
        self._at: dict[Waiter, tuple[Scheduler, Waiter]] = {}  # granted here, waiting at a further one
        self._passed: dict[Reservation, list[tuple[Scheduler, Reservation]]] = {}  # further reservations, until closed
        self._look_at = PASSED_MIN  # how many of these lead to the next search for closed ones
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
        return self._pass(waiter, Scheduler._wait) if self.further else self._wait(waiter)

    def wait_async(self, waiter: Waiter) -> Coroutine[Any, Any, Outcome]:
        """Suspend this task until ``waiter`` has its outcome.

        Raises:
            RuntimeError: No event loop of asyncio runs here.
        """
        return self._pass_async(waiter) if self.further else self._wait_async(waiter)

    def try_grant(self, waiter: Waiter) -> Outcome:
        """Grant ``waiter`` now or not at all; where a store decides, block this thread until its reply."""
        return self._pass(waiter, Scheduler._try_grant) if self.further else self._try_grant(waiter)

    def _wait(self, waiter: Waiter) -> Outcome:
        outcome = self._enter(waiter, ThreadOwner)
        if type(outcome) is not WaitUntil:
            return outcome
        if _in_a_loop():
            why = "waiting for a permit blocks this event loop; use `async with`, `await`, or an async client"
            try:
                warnings.warn(f"{self.pool.name}: {why}", PacelineWarning, stacklevel=5 + bool(self.further))
            except BaseException:  # warnings are errors here
                self._leave(waiter)
                raise
        return self._block(waiter)

    async def _wait_async(self, waiter: Waiter) -> Outcome:
        owner = _task_owner()
        if _running_loop()() is None:
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

    def _try_grant(self, waiter: Waiter) -> Outcome:
        outcome = self._enter(waiter, None)
        return self._block(waiter) if outcome is PENDING else outcome

    def _enter(self, waiter: Waiter, owner: Callable[[], Owner] | None) -> Outcome:
        """Submit ``waiter`` with an ``owner`` of this type; without one, it is granted at once or not at all."""
        if self._forked:
            self._hint_at_store()
        with self._lock:
            if self._busy:
                raise RuntimeError("a permit cannot be acquired from a signal handler or a finalizer")
            self._busy = True
            try:
                now_ns = self._clock.now_ns()
                if self._loops and self.pool.queue.length:
                    self._forget_closed(now_ns)
                if self._unsent:
                    self._hold_unsent(now_ns)
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
            done = self._work(now_ns) if self._deferred else []
            self._arm(now_ns)
        self._wake(done)
        self._log_notices()
        if waits and lines.LEVELS.get(logging.INFO) is not False and lines.log.isEnabledFor(logging.INFO):
            self._unsaid.append((waiter, cast("WaitUntil", outcome)))
            self._say_waits()
        return outcome

    def _say_waits(self) -> None:
        """Log the waits that are not logged yet, except those for which the answer of the store is awaited."""
        while self._unsaid:
            waiter, until = self._unsaid.pop()
            why = partial(self._why_about, waiter, until)
            if not self.lines.waits(self.now_ns(), waiter.name, waiter.lane.name, why):
                self._unsaid.append((waiter, until))
                return

    def _why_about(self, waiter: Waiter, until: WaitUntil) -> lines.Why | None:
        """As :meth:`why`; in a long queue, where that takes long, with the lower bound ``until``."""
        ahead = self.pool.queue.length - 1
        if ahead < EXACT_MAX:
            why = self.why(waiter)
            return (why.ahead, why.quota, why.expected_wait_s) if why else None
        wait_s = wait_until_s(until.at_ns, self.now_ns())
        return ahead, until.quota, wait_s if wait_s < math.inf else None

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
            if late_ns > self._late_ns:
                self._change(lambda now_ns: self._late(now_ns, outcome, late_ns))
            self._unsent.pop(outcome, None)

    def _late(self, now_ns: int, outcome: Reservation, late_ns: int) -> None:
        self._hold_unsent(now_ns)
        if self._worker is None:
            cast("LocalCapacity", self.pool.capacity).sent(now_ns, outcome)
        learning = self.pool.capacity.learning
        if learning is not None and late_ns > LATE_NS:
            learning.sent_late(late_ns / NS)

    def _hold_unsent(self, now_ns: int) -> None:
        """Let no quota refill beyond what is granted and not sent, if the oldest of it is late.

        Grants go on while the owners of granted waiters cannot continue, and their requests are then sent all at once.
        """
        if now_ns < self._held_ns + HOLD_NS:
            return
        self._held_ns = now_ns
        unsent = list(self._unsent)  # a copy: other threads remove theirs
        if unsent and now_ns >= unsent[0].granted_ns + LATE_NS:
            for lost in [reservation for reservation in unsent if not reservation.open]:
                self._unsent.pop(lost, None)
            cast("LocalCapacity", self.pool.capacity).hold(now_ns, [each for each in unsent if each.open])

    def _leave(self, waiter: Waiter) -> None:
        if isinstance(waiter.outcome, Reservation):
            self._unsent.pop(waiter.outcome, None)
        self._change(lambda now_ns: self.pool.withdraw(now_ns, waiter))

    # Passing further schedulers. Slots come last: no request holds a slot while it waits for a quota, so a model with
    # little quota does not take the slots of another one, and no deadlock is possible. A request that waits at a
    # further scheduler holds the charge of its own pool, which is given back if it leaves.

    def _pass(self, waiter: Waiter, wait: Callable[[Scheduler, Waiter], Outcome]) -> Outcome:
        with closing(self._steps(waiter)) as steps:
            scheduler, there = next(steps)
            while True:
                try:
                    scheduler, there = steps.send(wait(scheduler, there))
                except StopIteration as end:
                    return cast("Outcome", end.value)

    async def _pass_async(self, waiter: Waiter) -> Outcome:
        with closing(self._steps(waiter)) as steps:
            scheduler, there = next(steps)
            while True:
                outcome = await scheduler._wait_async(there)  # noqa: SLF001  (of this class)
                try:
                    scheduler, there = steps.send(outcome)
                except StopIteration as end:
                    return cast("Outcome", end.value)

    def _steps(self, waiter: Waiter) -> Generator[tuple[Scheduler, Waiter], Outcome, Outcome]:
        """Yield where to wait next and with which waiter; each outcome is sent back. Returns the final outcome.

        A request that leaves, because the generator is closed, gives back its grants.
        """
        while True:
            granted = yield self, waiter
            if not isinstance(granted, Reservation):
                return granted
            paused_until_ns = self.pool.ledger.pause.until_ns
            if self._worker is None:
                self._unsent[granted] = None
            try:
                for scheduler in self.further:
                    there = Waiter({REQUESTS: 1, CONCURRENCY: 1}, waiter.lane, waiter.deadline_ns, waiter.name)
                    self._at[waiter] = scheduler, there
                    step = yield scheduler, there
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
                self._unsent.pop(granted, None)
            if self.pool.ledger.pause.until_ns <= max(paused_until_ns + SAME_PAUSE_NS, self.now_ns()):
                return granted
            self.cancel(granted)  # a pause has begun meanwhile: back to its place in its lane
            waiter.returned = True

    def _remember(self, reservation: Reservation, scheduler: Scheduler, further: Reservation) -> None:
        """Keep ``further`` with ``reservation``; settle those of reservations that were closed as lost."""
        if len(self._passed) > self._look_at:
            for lost in [other for other in list(self._passed) if not other.open]:
                self._release(lost)
            self._look_at = 2 * len(self._passed) + PASSED_MIN
        self._passed.setdefault(reservation, []).append((scheduler, further))

    def _release(self, reservation: Reservation) -> None:
        """Settle the further reservations of ``reservation``, which is closed."""
        for scheduler, further in self._passed.pop(reservation, ()):
            scheduler.settle(further, None)

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
                    pool, now_ns = self.pool, self._clock.now_ns()
                    pool.settle(now_ns, reservation, actual, waiter)
                    quiet = not pool.queue.length and not self._deferred and not pool.capacity.exchange_due
                finally:
                    self._busy = False
                done, waits = [] if quiet else self._work(now_ns), False
        if self._passed:
            self._release(reservation)
        if (done or self._deferred_events or self._due) and not waits:
            self._wake(done)

    def cancel(self, reservation: Reservation) -> None:
        """See :meth:`Pool.cancel`."""
        try:
            self._change(lambda now_ns: self.pool.cancel(now_ns, reservation))
        finally:
            self._release(reservation)

    def refuse(self, reservation: Reservation, refusal: Refusal, pause_s: float, stop_s: float = 0.0) -> None:
        """See :meth:`Pool.refuse`."""
        try:
            self._change(lambda now_ns: self.pool.refuse(now_ns, reservation, refusal, pause_s, stop_s))
            self._log_notices()
        finally:
            self._release(reservation)

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
        self._log_notices()

    def _log_notices(self) -> None:
        learning = self.pool.capacity.learning
        while learning is not None and learning.notices:
            log.warning("%s: %s", self.pool.name, learning.notices.pop())
        notices = self.pool.notices
        while notices:
            log.warning("%s: %s", self.pool.name, notices.popleft())

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
            self._log_notices()

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
        if (further := self._at.get(waiter)) is not None:
            return further[0].why(further[1])

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
            done = self._work(now_ns) if self._deferred and not inside else []
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
        outcome = self._try_grant(Waiter(dict.fromkeys([*self.pool.ledger.units, REQUESTS, CONCURRENCY], 0.0)))
        if isinstance(outcome, Reservation):
            self.cancel(outcome)

            def uncount(_: int) -> None:
                for name in ("granted", "cancelled"):  # it was no request
                    self.pool.counts[name] -= 1

            self.read(uncount)
        return outcome if isinstance(outcome, StoreLost) else None

    # Events and warnings.

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

    def warn_left_out(self, cost: Cost) -> None:
        """Warn of each of :attr:`own_units` that ``cost``, that of the first request, leaves out.

        Such a unit cannot be derived, so it costs 0, and a request that leaves it out never waits for its quota.
        """
        if not cost.get(REQUESTS, 1):  # no request is sent
            return
        units, self.own_units = self.own_units, set()
        for unit in sorted(units.difference(cost)):
            warnings.warn(
                f"{self.pool.name}: the quota on {unit!r} is not charged, because the request names no amount of it: write"
                f" limiter.acquire({self.pool.name!r}, {unit}=1), or {unit}=0 if it uses none",
                PacelineWarning,
                stacklevel=3,
            )

    def _hint_at_store(self) -> None:
        """Log, once in a process, that this one and its parent each spend the whole quotas."""
        global _hinted  # noqa: PLW0603
        self._forked = False
        if _hinted != os.getpid():
            _hinted = os.getpid()
            log.warning(
                "%s: this process was forked from one that uses the same limiter, and each of them spends the whole quota;"
                " to share it, give the limiter a store: Limiter(..., store='sqlite:/path/quotas.db')",
                self.pool.name,
            )

    # The critical section.

    def transact(self, step: Callable[[int], tuple[T, list[Waiter]]]) -> T:
        """Change the pool from the worker's thread: ``step`` returns a result, and the waiters whose outcome it set.

        It has granted what it allows, except to those behind the waiters that it has removed.
        """
        with self._lock:
            self._poked, self._busy = False, True
            try:
                now_ns = self._clock.now_ns()
                found, done = step(now_ns)
            finally:
                self._busy = False
            if done or self._deferred:
                done += self._work(now_ns)
            else:
                self._arm(now_ns)
        self._wake(done)
        if self._unsaid:
            self._say_waits()
        return found

    def _change(self, change: Callable[[int], None]) -> None:
        """Make ``change`` and the grants that it allows; deferred if this thread is in the critical section."""
        with self._lock:
            self._deferred.append(change)
            done = [] if (inside := self._busy) else self._work(self._clock.now_ns())
        if (done or self._deferred_events or self._due) and not inside:
            self._wake(done)

    def _work(self, now_ns: int) -> list[Waiter]:
        """Make the deferred changes and the grants that they allow, until none is left: the next call may come late."""
        done: list[Waiter] = []
        while True:
            self._busy = True
            try:
                done += self._follow_up(now_ns)
            finally:
                self._busy = False
            if not self._deferred:
                return done

    def _follow_up(self, now_ns: int) -> list[Waiter]:
        while self._deferred:
            self._deferred.popleft()(now_ns)
        done = []
        if self.pool.queue.length:
            if self._unsent:
                self._hold_unsent(now_ns)
            done = self.pool.pump(now_ns)
            if self._worker is None:
                for waiter in done:
                    if isinstance(waiter.outcome, Reservation):
                        self._unsent[waiter.outcome] = None
        elif self._worker is None:
            return done
        self._arm(now_ns)
        return done

    def _arm(self, now_ns: int) -> None:
        """Set the timer for the next grant and for the next exchange."""
        if self._worker is not None:
            capacity = self.pool.capacity
            capacity.exchange_due = False
            at_ns = FAR_NS if self._poked and self._worker.running else capacity.exchange_ns
            if at_ns <= now_ns:
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
                done = self._work(self._clock.now_ns())
        except BaseException:  # raised into this thread: the waiters do not wait for a timer that is over
            with self._lock:
                self._arm_at(self._clock.now_ns() + NS)
            raise
        finally:
            self._wake(done)
        if self.pool.notices:
            self._log_notices()

    def _wake(self, done: list[Waiter]) -> None:
        """Wake the waiters of ``done``, inform the worker, and send deferred events; not under the lock.

        The events come last: a listener may raise ``SystemExit``.
        """
        if done:
            self._wake_owners(done)
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
                self._arm(self._clock.now_ns())

    def _wake_owners(self, done: list[Waiter]) -> None:
        others: Futures = {}
        for waiter in done:
            waiter.owner.wake(others)
        for loop, futures in others.items():
            try:
                loop.call_soon_threadsafe(set_all, futures)
            except RuntimeError:  # the loop was closed with tasks still waiting
                self._change(lambda now_ns, loop=loop: self._forget(now_ns, {loop}, done))  # type: ignore[misc]

    def _forget(self, now_ns: int, loops: set[asyncio.AbstractEventLoop], done: Iterable[Waiter] = ()) -> None:
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
        self._unsaid.clear()
        self._due = self._poked = False
        self._at, self._passed, self._loops, self._unsent = {}, {}, set(), {}
        self._forked = self._worker is None and self.pool.counts.get("granted", 0) > 0
        self.pool.drain()


_schedulers: weakref.WeakSet[Scheduler] = weakref.WeakSet()
tell_of_forks(_schedulers)
_hinted = 0  # the process that has logged the hint at stores


@cache
def _task_owner() -> Callable[[], Owner]:
    """:class:`TaskOwner`, with asyncio imported: not under the lock, because an import may wait for another thread."""
    import_module("asyncio")
    return TaskOwner


@cache
def _running_loop() -> Callable[[], object]:
    """The function that returns the running event loop of asyncio, or ``None``: faster than :func:`_in_a_loop`."""
    return cast("Callable[[], object]", import_module("asyncio")._get_running_loop)  # noqa: SLF001


def _in_a_loop() -> bool:
    """Whether this thread runs an event loop; asyncio is not imported for it."""
    running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    return running is not None and running() is not None


def set_all(futures: list[asyncio.Future[None]]) -> None:
    """Wake the tasks of one loop; called in its thread."""
    for future in futures:
        if not future.done():
            future.set_result(None)


def _lower(reading: Reading, ledger: Ledger, now_ns: int) -> Reading:
    """``reading``, without its level if that is not below the present one."""
    levels = [m.level(now_ns) for m in ledger.meters if m.quota.unit == reading.unit]
    above = reading.remaining is None or reading.remaining >= min(levels, default=0.0)
    return replace(reading, remaining=None, reset_s=None) if above else reading


def wait_until_s(at_ns: int, now_ns: int) -> float:
    """Seconds from ``now_ns`` until ``at_ns``; infinite for an unknown instant."""
    return math.inf if at_ns >= UNKNOWN_NS else max(at_ns - now_ns, 0) / NS
