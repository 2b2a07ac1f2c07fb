"""A pool that threads and event loops share: one lock, one timer, one wake-up for each grant.

Every method asks the pool under the lock, and then wakes whom the pool names. All decisions are the pool's.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

from paceline.core.meters import FAR_NS
from paceline.core.pool import Pool
from paceline.core.queue import Waiter
from paceline.core.quota import CONCURRENCY, NS, REQUESTS, Cost, Rule
from paceline.core.results import Outcome, PacelineWarning, Reading, Refusal, Reservation, StoreLost, WaitUntil
from paceline.pacing.clock import Clock, Timer
from paceline.pacing.status import report

if TYPE_CHECKING:
    import asyncio

    Others: TypeAlias = dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]]

T = TypeVar("T")

UNKNOWN_NS = FAR_NS // 2
"""An instant from here on is unknown: no quota reaches so far."""

MOMENT_NS = NS // 10
"""Pauses that differ by less are the same: a store computes what is left each time that it is asked."""

PASSED_MIN = 256
"""How many requests may have passed further schedulers before those that were never closed are looked for."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a request waits.

    Attributes:
        ahead: How many go before it.
        quota: What binds now, in the notation of a quota; ``cool-down``; ``line`` where only those ahead are in the way;
            or ``store`` while its answer is awaited.
        expected_wait_s: When it would go if nobody's estimate were corrected, in seconds; ``None`` when nobody knows:
            a slot comes free when somebody else is done.
    """

    ahead: int
    quota: str
    expected_wait_s: float | None


class Owner(Protocol):
    """Whoever waits for a waiter."""

    def wake(self, others: Others) -> None:
        """Let it go on; futures of other event loops are added to ``others``."""


class Thread:
    """A thread that waits on an event."""

    __slots__ = ("event",)

    def __init__(self) -> None:
        self.event = threading.Event()

    def wake(self, others: Others) -> None:  # noqa: ARG002
        """See :meth:`Owner.wake`."""
        self.event.set()


class Task:
    """A coroutine that waits on a future of its loop."""

    __slots__ = ("future", "loop")

    def __init__(self) -> None:
        import asyncio

        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()

    def wake(self, others: Others) -> None:
        """See :meth:`~paceline.pacing.scheduler.Owner.wake`."""
        import asyncio

        if asyncio._get_running_loop() is self.loop:  # noqa: SLF001  (get_running_loop raises off a loop)
            set_all([self.future])
        else:
            others.setdefault(self.loop, []).append(self.future)


class Worker(Protocol):
    """The thread that a capacity's exchanges with its store run on."""

    def add(self, scheduler: Scheduler) -> None:
        """Make the exchanges of ``scheduler``, too."""

    def poke(self, scheduler: Scheduler) -> bool:
        """An exchange is due for ``scheduler``; whether it will happen."""


class Scheduler:
    """The thread-safe side of one :class:`~paceline.core.pool.Pool`: one lock, one timer, one wake-up for each grant.

    Args:
        pool: The pool.
        clock: The clock.
        further: Schedulers that every request passes after this one (start spacing, the provider's slots).
        worker: For a capacity with a store.

    Attributes:
        events: Called for everything that happens to a permit, with the fields of a
            :class:`~paceline.pacing.events.Event`; ``None`` for nothing.
        own_units: Units of the caller's own that no cost given by hand has named so far.
    """

    def __init__(
        self, pool: Pool, clock: Clock, further: Sequence[Scheduler] = (), worker: Worker | None = None
    ) -> None:
        self.pool = pool
        self.events: Callable[..., None] | None = None
        self.own_units: set[str] = set()
        self.further = tuple(further)
        self._clock = clock
        self._worker = worker
        # A finalizer or a signal handler may run while this thread is inside: its changes are deferred.
        self._lock = threading.RLock()
        self._busy = False
        self._deferred: deque[Callable[[int], None]] = deque()
        self._untold: deque[tuple[Any, ...]] = deque()
        self._due = self._poked = False  # an exchange is due; the worker knows it
        self._timer: Timer | None = None
        self._timer_ns = FAR_NS
        self._at: dict[Waiter, tuple[Scheduler, Waiter]] = {}  # granted here, and waiting further on
        self._passed: dict[Reservation, list[tuple[Scheduler, Reservation]]] = {}
        self._look_at = PASSED_MIN
        _schedulers.add(self)
        if worker is not None:
            worker.add(self)

    def now_ns(self) -> int:
        """The present, by this scheduler's clock."""
        return self._clock.now_ns()

    # Waiting.

    def wait(self, waiter: Waiter) -> Outcome:
        """Block this thread until ``waiter`` has its outcome."""
        return self._pass(waiter, Scheduler._wait) if self.further else self._wait(waiter)

    def wait_async(self, waiter: Waiter) -> Coroutine[Any, Any, Outcome]:
        """Let this task wait until ``waiter`` has its outcome."""
        return self._pass_async(waiter) if self.further else self._wait_async(waiter)

    def attempt(self, waiter: Waiter) -> Outcome:
        """Ask for ``waiter``, now or not at all; where a store decides, this thread waits for its reply."""
        return self._pass(waiter, Scheduler._attempt) if self.further else self._attempt(waiter)

    def _wait(self, waiter: Waiter) -> Outcome:
        outcome = self._enter(waiter, Thread)
        if type(outcome) is WaitUntil and _in_a_loop():
            why = "waiting for a permit blocks this event loop; use `async with`, `await`, or an async client"
            try:
                warnings.warn(f"{self.pool.name}: {why}", PacelineWarning, stacklevel=5)
            except BaseException:  # warnings are errors here
                self._leave(waiter)
                raise
        return self._block(waiter, outcome)

    async def _wait_async(self, waiter: Waiter) -> Outcome:
        if type(outcome := self._enter(waiter, _task())) is not WaitUntil:
            return outcome
        try:
            await waiter.owner.future
        except BaseException:  # cancelled, before the grant or just after it
            self._leave(waiter)
            raise
        return decided(waiter)

    def _attempt(self, waiter: Waiter) -> Outcome:
        return self._block(waiter, self._enter(waiter, None))

    def _enter(self, waiter: Waiter, owner: Callable[[], Owner] | None) -> Outcome:
        """Ask the pool. A waiter in the queue gets an ``owner``; without one it may only wait for a store's reply."""
        with self._lock:
            if self._busy:
                raise RuntimeError("a permit cannot be acquired from a signal handler or a finalizer")
            self._busy = True
            try:
                now_ns = self._clock.now_ns()
                outcome = self.pool.attempt(now_ns, waiter) if owner is None else self.pool.submit(now_ns, waiter)
                waits = type(outcome) is WaitUntil and waiter.queued
                if waits:
                    try:
                        waiter.owner = (owner or Thread)()
                    except BaseException:  # no event loop of asyncio runs here
                        self.pool.withdraw(now_ns, waiter)
                        raise
            finally:
                self._busy = False
            if not waits and not self._deferred and not self.pool.capacity.exchange_due:
                return outcome
            # A finalizer ran in between: what it gave back may be what this waiter waits for.
            done = self._work() if self._deferred else []
            self._arm()
        self._wake(done)
        return outcome

    def _block(self, waiter: Waiter, outcome: Outcome) -> Outcome:
        """Let this thread wait for the outcome of ``waiter``, unless it is ``outcome`` already."""
        if not waiter.queued or type(outcome) is not WaitUntil:
            return outcome
        try:
            waiter.owner.event.wait()
        except BaseException:  # KeyboardInterrupt: the outcome, if there is one, is of no use any more
            self._leave(waiter)
            raise
        return decided(waiter)

    def _leave(self, waiter: Waiter) -> None:
        self._change(lambda now_ns: self.pool.withdraw(now_ns, waiter))

    # Passing further schedulers. Slots come last: no request holds one while it waits for a quota, so a slow model
    # keeps none from a fast one, and a request that holds one waits for nothing of ours: there is no deadlock. A
    # request that waits further on holds the charge of its own pool, which is given back if it leaves.

    def _pass(self, waiter: Waiter, wait: Callable[[Scheduler, Waiter], Outcome]) -> Outcome:
        with closing(self._walk(waiter)) as walk:
            scheduler, there = next(walk)
            while True:
                try:
                    scheduler, there = walk.send(wait(scheduler, there))
                except StopIteration as end:
                    return cast("Outcome", end.value)

    async def _pass_async(self, waiter: Waiter) -> Outcome:
        with closing(self._walk(waiter)) as walk:
            scheduler, there = next(walk)
            while True:
                outcome = await scheduler._wait_async(there)  # noqa: SLF001  (of this class)
                try:
                    scheduler, there = walk.send(outcome)
                except StopIteration as end:
                    return cast("Outcome", end.value)

    def _walk(self, waiter: Waiter) -> Generator[tuple[Scheduler, Waiter], Outcome, Outcome]:
        """Where to wait next with which waiter, given the outcome; a request that leaves gives back its grants."""
        while True:
            granted = yield self, waiter
            if not isinstance(granted, Reservation):
                return granted
            cool_down_ns = self.pool.ledger.not_before_ns
            try:
                for scheduler in self.further:
                    there = Waiter({REQUESTS: 1, CONCURRENCY: 1}, waiter.lane, waiter.deadline_ns)
                    self._at[waiter] = scheduler, there
                    step = yield scheduler, there
                    if not isinstance(step, Reservation):
                        self.cancel(granted)
                        return step
                    granted.granted_ns = step.granted_ns  # it has not left before
                    self._remember(granted, scheduler, step)
            except BaseException:
                self.cancel(granted)
                raise
            finally:
                self._at.pop(waiter, None)
            if self.pool.ledger.not_before_ns <= max(cool_down_ns + MOMENT_NS, self.now_ns()):
                return granted
            self.cancel(granted)  # the provider asked for a pause meanwhile: back to the front of the queue
            waiter.returned = True

    def _remember(self, reservation: Reservation, scheduler: Scheduler, further: Reservation) -> None:
        if len(self._passed) > self._look_at:
            for lost in [other for other in list(self._passed) if not other.open]:
                self._release(lost)
            self._look_at = 2 * len(self._passed) + PASSED_MIN
        self._passed.setdefault(reservation, []).append((scheduler, further))

    def _release(self, reservation: Reservation) -> None:
        for scheduler, further in self._passed.pop(reservation, ()):
            scheduler.settle(further, None)

    # What becomes of a reservation.

    def settle(self, reservation: Reservation, actual: Cost | None, waiter: Waiter | None = None) -> None:
        """See :meth:`Pool.settle`."""
        with self._lock:  # as _change() does it, without a closure: this is the hot path
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
        if (done or self._untold or self._due) and not waits:
            self._wake(done)
        if self._passed:
            self._release(reservation)

    def cancel(self, reservation: Reservation) -> None:
        """See :meth:`Pool.cancel`."""
        self._change(lambda now_ns: self.pool.cancel(now_ns, reservation))
        self._release(reservation)

    def refuse(self, reservation: Reservation, refusal: Refusal, pause_s: float) -> None:
        """See :meth:`Pool.refuse`."""
        self._change(lambda now_ns: self.pool.refuse(now_ns, reservation, refusal, pause_s))
        self._release(reservation)

    def observe(self, readings: Iterable[Reading], reservation: Reservation) -> None:
        """See :meth:`Pool.observe`."""
        self._change(lambda now_ns: self.pool.observe(now_ns, readings, reservation))

    def pause(self, until_ns: int) -> None:
        """Grant nothing before ``until_ns``, and one attempt first."""
        self._change(lambda now_ns: self.pool.pause(until_ns))  # noqa: ARG005

    def lift(self, until_ns: int) -> None:
        """End the pause until ``until_ns``, if it is the one in force."""
        self._change(lambda now_ns: self.pool.lift(now_ns, until_ns))

    def resume(self) -> None:
        """See :meth:`Pool.resume`."""
        self._change(lambda now_ns: self.pool.resume())  # noqa: ARG005

    # Reading.

    def retry_after_s(self, until: WaitUntil) -> float:
        """Seconds from now until then; infinite where a slot binds, whenever a store is asked again."""
        ledger = self.pool.ledger
        if any(
            name == until.quota and m.quota.rule is Rule.SLOTS
            for m, name in zip(ledger.meters, ledger.names, strict=True)
        ):
            return math.inf
        return wait_until_s(until.at_ns, self.now_ns())

    def why(self, waiter: Waiter) -> Waiting | None:
        """Why ``waiter`` waits; ``None`` when it does not."""
        if (further := self._at.get(waiter)) is not None:
            return further[0].why(further[1])

        def read(now_ns: int) -> Waiting | None:
            if waiter.owner is None or waiter.outcome is not None:
                return None
            ahead, at_ns, quota = self.pool.place(now_ns, waiter)
            return Waiting(ahead, quota, wait_until_s(at_ns, now_ns) if at_ns < UNKNOWN_NS else None)

        return self.read(read)

    def status(self) -> dict[str, Any]:
        """The state of the pool, as plain JSON values."""
        return self.read(lambda now_ns: report(self.pool, now_ns))

    def read(self, read: Callable[[int], T]) -> T:
        """What ``read`` returns now, under the lock; a finalizer that runs in between changes nothing."""
        with self._lock:
            inside, self._busy = self._busy, True
            try:
                found = read(self._clock.now_ns())
            finally:
                self._busy = inside
            done = self._work() if self._deferred and not inside else []
        if not inside:
            self._wake(done)
        return found

    @property
    def idle(self) -> bool:
        """Whether no exchange is due that has not begun."""
        return not (self._due or self._poked)

    def refresh(self) -> StoreLost | None:
        """Where a store keeps the quotas, let its reply bring the snapshot up to date; why it did not, if it never has."""
        if self._worker is None:
            return None
        outcome = self._attempt(Waiter(dict.fromkeys([*self.pool.ledger.units, REQUESTS, CONCURRENCY], 0.0)))
        if isinstance(outcome, Reservation):
            self.cancel(outcome)
        return outcome if isinstance(outcome, StoreLost) else None

    # Telling.

    def tell(self, *event: Any) -> None:
        """Call :attr:`events` at once; from inside the critical section (a finalizer, a signal), after it."""
        assert self.events is not None
        with self._lock:
            inside = self._busy
            if inside:
                self._untold.append(event)
        if not inside:
            self.events(*event)

    def left_out(self, cost: Cost) -> None:
        """Warn, once for each unit, of a quota on a unit of the caller's own that the first cost by hand leaves out.

        Such a unit cannot be derived, so it costs 0: a request that forgets it never waits for it.
        """
        if not cost.get(REQUESTS, 1):  # nothing is sent
            return
        units, self.own_units = self.own_units, set()
        for unit in sorted(units.difference(cost)):
            warnings.warn(
                f"{self.pool.name}: the quota on {unit!r} is not charged, because the request names no amount of it: write"
                f" limiter.acquire({self.pool.name!r}, {unit}=1), or {unit}=0 if it costs none",
                PacelineWarning,
                stacklevel=3,
            )

    # The critical section.

    def transact(self, step: Callable[[int], tuple[T, list[Waiter]]]) -> T:
        """Let the worker's thread change the pool: ``step`` returns its result and the waiters that it decided."""
        with self._lock:
            self._poked, self._busy = False, True
            try:
                found, done = step(self._clock.now_ns())
            finally:
                self._busy = False
            done += self._work()
        self._wake(done)
        return found

    def _change(self, change: Callable[[int], None]) -> None:
        """Make ``change``, and then the grants that it makes possible; deferred when this thread is inside."""
        with self._lock:
            self._deferred.append(change)
            done = [] if (inside := self._busy) else self._work()
        if (done or self._untold or self._due) and not inside:
            self._wake(done)

    def _work(self) -> list[Waiter]:
        """Follow up, and again while deferred changes arrive: no other call may come for a long time."""
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
        """Make the deferred changes, then grant what they allow."""
        while self._deferred:
            self._deferred.popleft()(now_ns)
        done = []
        if self.pool.queue.length:
            done = self.pool.pump(now_ns)
        elif self._worker is None:
            return done
        self._arm()
        return done

    def _arm(self) -> None:
        """Set the timer for the next grant, and for the next exchange of the capacity."""
        if self._worker is not None:
            capacity = self.pool.capacity
            capacity.exchange_due = False
            at_ns = None if self._poked else capacity.exchange_ns
            if at_ns is not None:
                if at_ns <= self._clock.now_ns():
                    self._due = True
                else:
                    self._arm_at(at_ns)
        if self.pool.wake_ns is not None:
            self._arm_at(self.pool.wake_ns)

    def _arm_at(self, wake_ns: int) -> None:
        """Set the timer, unless it is due before that."""
        if wake_ns < self._timer_ns:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ns = wake_ns
            self._timer = self._clock.call_at(wake_ns, self._on_timer)

    def _on_timer(self) -> None:
        with self._lock:
            self._timer_ns = FAR_NS
            done = self._work()
        self._wake(done)

    def _wake(self, done: list[Waiter]) -> None:
        """Wake the waiters with an outcome, call :attr:`events` for what was deferred, and poke the worker; unlocked."""
        self._rouse(done)
        while self._untold and self.events is not None:
            try:
                event = self._untold.popleft()
            except IndexError:  # another thread has taken it
                break
            self.events(*event)
        while self._due:
            self._poke()

    def _poke(self) -> None:
        """Tell the worker that an exchange is due; not under the lock, which the worker takes first."""
        assert self._worker is not None
        self._due, self._poked = False, True
        if self._worker.poke(self):
            return
        with self._lock:  # it is closed, and no request waits
            self._poked = False
            if self.pool.queue.length:  # a request has arrived since
                self._arm()

    def _rouse(self, done: list[Waiter]) -> None:
        others: Others = {}
        for waiter in done:
            waiter.owner.wake(others)
        for loop, futures in others.items():
            try:
                loop.call_soon_threadsafe(set_all, futures)
            except RuntimeError:  # the loop was closed with tasks still waiting
                self._change(lambda now_ns, loop=loop: self._forget(now_ns, loop, done))  # type: ignore[misc]

    def _forget(self, now_ns: int, loop: asyncio.AbstractEventLoop, done: list[Waiter]) -> None:
        """Give back what was granted to waiters of a closed loop, and withdraw the others."""
        for waiter in [*done, *self.pool.queue]:
            if getattr(waiter.owner, "loop", None) is loop:
                self.pool.withdraw(now_ns, waiter)

    def after_fork(self) -> None:
        """In a forked child: waiters, requests in flight, and a lock that was held stayed with the parent."""
        self._lock, self._busy = threading.RLock(), False
        self._timer, self._timer_ns = None, FAR_NS
        self._deferred.clear()
        self._untold.clear()
        self._due = self._poked = False
        self._at, self._passed = {}, {}
        self.pool.drain()


_schedulers: weakref.WeakSet[Scheduler] = weakref.WeakSet()


def _after_fork() -> None:
    for scheduler in list(_schedulers):
        scheduler.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@cache
def _task() -> Callable[[], Owner]:
    """How a coroutine waits. Before the lock: an import may fail, and waits for other threads' imports."""
    import_module("asyncio")
    return Task


def _in_a_loop() -> bool:
    """Whether this thread runs an event loop: not without asyncio."""
    running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    return running is not None and running() is not None


def set_all(futures: list[asyncio.Future[None]]) -> None:
    """Wake those of one loop; in its thread."""
    for future in futures:
        if not future.done():
            future.set_result(None)


def wait_until_s(at_ns: int, now_ns: int) -> float:
    """Seconds from ``now_ns`` until ``at_ns``; infinite for an instant that nobody knows."""
    return math.inf if at_ns >= UNKNOWN_NS else max(at_ns - now_ns, 0) / NS


def decided(waiter: Waiter) -> Outcome:
    """The outcome of a waiter that was woken."""
    assert waiter.outcome is not None
    return waiter.outcome
