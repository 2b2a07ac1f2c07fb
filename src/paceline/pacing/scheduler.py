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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from paceline.core.meters import FAR_NS
from paceline.core.pool import Pool
from paceline.core.queue import Waiter
from paceline.core.quota import NS, REQUESTS, Cost, Rule
from paceline.core.results import Outcome, PacelineWarning, Reading, Refusal, Reservation, WaitUntil
from paceline.pacing.clock import Clock, Timer

if TYPE_CHECKING:
    import asyncio

    Others: TypeAlias = dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]]

T = TypeVar("T")

UNKNOWN_NS = FAR_NS // 2
"""From here on an instant is one that nobody knows: no quota reaches so far."""


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


class Scheduler:
    """The thread-safe side of one :class:`~paceline.core.pool.Pool`.

    Attributes:
        events: Who is told what happens to permits, by the fields of a :class:`~paceline.pacing.events.Event`; or nobody.
        own_units: Units of quotas that nobody could derive, and that no cost given by hand has named so far.
    """

    def __init__(self, pool: Pool, clock: Clock) -> None:
        self.pool = pool
        self.events: Callable[..., None] | None = None
        self.own_units: set[str] = set()
        self._clock = clock
        # Garbage may be collected, or a signal handled, while this thread is inside: what they change waits its turn.
        self._lock = threading.RLock()
        self._busy = False
        self._deferred: deque[Callable[[int], None]] = deque()
        self._untold: deque[tuple[Any, ...]] = deque()
        self._due = False  # a store has to be told something
        self._timer: Timer | None = None
        self._timer_ns = FAR_NS
        _schedulers.add(self)

    def enter(self, waiter: Waiter, owner: Callable[[], Owner] | None) -> Outcome:
        """Ask for ``waiter``; if it joins the line, ``owner`` waits. Without one it joins none, but may wait for a store."""
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
                    except BaseException:  # no loop of asyncio's runs here
                        self.pool.withdraw(now_ns, waiter)
                        raise
            finally:
                self._busy = False
            if not waits and not self._deferred and not self.pool.stirred:
                return outcome
            # A finalizer came in between: what it gave back may be what this one waits for.
            done = self._work() if self._deferred else []
            self._arm()
        self._wake(done)
        return outcome

    def now_ns(self) -> int:
        """The present, by this scheduler's clock."""
        return self._clock.now_ns()

    def wait(self, waiter: Waiter) -> Outcome:
        """Block this thread until ``waiter`` has its outcome."""
        outcome = self.enter(waiter, Thread)
        if type(outcome) is WaitUntil and _in_a_loop():
            why = "waiting for a permit blocks this event loop; use `async with`, `await`, or an async client"
            try:
                warnings.warn(f"{self.pool.name}: {why}", PacelineWarning, stacklevel=4)
            except BaseException:  # warnings are errors here
                self._leave(waiter)
                raise
        return self._block(waiter, outcome)

    def attempt(self, waiter: Waiter) -> Outcome:
        """Ask for ``waiter``, now or not at all; where a store decides, this thread waits for its answer."""
        return self._block(waiter, self.enter(waiter, None))

    async def wait_async(self, waiter: Waiter) -> Outcome:
        """Let this task wait until ``waiter`` has its outcome."""
        if type(outcome := self.enter(waiter, _task())) is not WaitUntil:
            return outcome
        try:
            await waiter.owner.future
        except BaseException:  # cancelled, before the grant or just after it
            self._leave(waiter)
            raise
        return decided(waiter)

    def settle(self, reservation: Reservation, actual: Cost | None, waiter: Waiter | None = None) -> None:
        """See :meth:`Pool.settle`."""
        with self._lock:  # as _change does it, without a closure: this is the hot path
            if self._busy:
                self._deferred.append(lambda now_ns: self.pool.settle(now_ns, reservation, actual, waiter))
                return
            self._busy = True
            try:
                now_ns = self._clock.now_ns()
                self.pool.settle(now_ns, reservation, actual, waiter)
                if not self.pool.queue.length and not self._deferred and not self._untold and not self.pool.stirred:
                    return
            finally:
                self._busy = False
            done = self._work()
        if done or self._untold or self._due:
            self._wake(done)

    def cancel(self, reservation: Reservation) -> None:
        """See :meth:`Pool.cancel`."""
        self._change(lambda now_ns: self.pool.cancel(now_ns, reservation))

    def refuse(self, reservation: Reservation, refusal: Refusal, pause_s: float) -> None:
        """See :meth:`Pool.refuse`."""
        self._change(lambda now_ns: self.pool.refuse(now_ns, reservation, refusal, pause_s))

    def observe(self, readings: Iterable[Reading], reservation: Reservation) -> None:
        """See :meth:`Pool.observe`."""
        self._change(lambda now_ns: self.pool.observe(now_ns, readings, reservation))

    def pause(self, until_ns: int) -> None:
        """Grant nothing until then, and one attempt first."""
        self._change(lambda now_ns: self.pool.pause(until_ns))  # noqa: ARG005

    def lift(self, until_ns: int) -> None:
        """End the pause until then, if it is the one in force."""
        self._change(lambda now_ns: self.pool.lift(now_ns, until_ns))

    def resume(self) -> None:
        """See :meth:`Pool.resume`."""
        self._change(lambda now_ns: self.pool.resume())  # noqa: ARG005

    def retry_after_s(self, until: WaitUntil) -> float:
        """Seconds from now until then; infinite where a slot binds, whatever a store says when to ask again."""
        ledger = self.pool.ledger
        if any(
            name == until.quota and m.quota.rule is Rule.SLOTS
            for m, name in zip(ledger.meters, ledger.names, strict=True)
        ):
            return math.inf
        return wait_until_s(until.at_ns, self.now_ns())

    def why(self, waiter: Waiter) -> Waiting | None:
        """Why ``waiter`` waits; ``None`` when it does not."""

        def read(now_ns: int) -> Waiting | None:
            if waiter.owner is None or waiter.outcome is not None:
                return None
            ahead, at_ns, quota = self.pool.place(now_ns, waiter)
            return Waiting(ahead, quota, wait_until_s(at_ns, now_ns) if at_ns < UNKNOWN_NS else None)

        return self._read(read)

    def tell(self, *event: Any) -> None:
        """Tell :attr:`events`, at once; from inside our own critical section (a finalizer, a signal), after it."""
        assert self.events is not None
        with self._lock:
            inside = self._busy
            if inside:
                self._untold.append(event)
        if not inside:
            self.events(*event)

    def status(self) -> dict[str, Any]:
        """See :meth:`Pool.status`."""
        return self._read(self.pool.status)

    def left_out(self, cost: Cost) -> None:
        """Warn, once for each unit, of a quota on a unit of your own that the first cost given by hand leaves out.

        Such a unit can be derived from nothing, so it costs 0: a forgotten one would never make anybody wait.
        """
        if not cost.get(REQUESTS, 1):  # nothing is sent
            return
        units, self.own_units = self.own_units, set()
        for unit in sorted(units.difference(cost)):
            warnings.warn(
                f"{self.pool.name}: there is a quota on {unit!r}, and the request does not say how many it costs, so it costs"
                f" none: write limiter.acquire({self.pool.name!r}, {unit}=1), or {unit}=0 where that is meant",
                PacelineWarning,
                stacklevel=3,
            )

    def _change(self, change: Callable[[int], None]) -> None:
        """Let ``change`` happen, and then whatever it makes possible; at once, or after what this thread is doing here."""
        with self._lock:
            self._deferred.append(change)
            done = [] if (inside := self._busy) else self._work()
        if (done or self._untold or self._due) and not inside:
            self._wake(done)

    def _read(self, read: Callable[[int], T]) -> T:
        """What ``read`` finds now; a finalizer that comes in between changes nothing under its eyes."""
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

    def _work(self) -> list[Waiter]:
        """Follow up, and again while somebody comes in between: nobody else may come for a long time."""
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
        """What waited its turn, and then those in line who may go now."""
        while self._deferred:
            self._deferred.popleft()(now_ns)
        if not self.pool.queue.length:
            return []
        done = self.pool.pump(now_ns)
        self._arm()
        return done

    def _block(self, waiter: Waiter, outcome: Outcome) -> Outcome:
        """Let this thread wait until ``waiter`` has its outcome, if it is to have another than this."""
        if not waiter.queued or type(outcome) is not WaitUntil:
            return outcome
        try:
            waiter.owner.event.wait()
        except BaseException:  # KeyboardInterrupt: whatever the outcome was, nobody will use it
            self._leave(waiter)
            raise
        return decided(waiter)

    def _leave(self, waiter: Waiter) -> None:
        self._change(lambda now_ns: self.pool.withdraw(now_ns, waiter))

    def _on_timer(self) -> None:
        with self._lock:
            self._timer_ns = FAR_NS
            done = self._work()
        self._wake(done)

    def _arm(self) -> None:
        """Set the timer for the pool."""
        if self.pool.wake_ns is not None:
            self._arm_at(self.pool.wake_ns)

    def _arm_at(self, wake_ns: int) -> None:
        """Set the timer, unless one is due before that anyway."""
        if wake_ns < self._timer_ns:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ns = wake_ns
            self._timer = self._clock.call_at(wake_ns, self._on_timer)

    def _wake(self, done: list[Waiter]) -> None:
        """Wake those whose outcome is known, and tell what could not be told under the lock; not under it."""
        self._rouse(done)
        while self._untold and self.events is not None:
            try:
                event = self._untold.popleft()
            except IndexError:  # another thread has told it
                break
            self.events(*event)

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
        """Nobody of a closed loop will come: give back what they were granted, and let the rest go all at once."""
        for waiter in [*done, *self.pool.queue]:
            if getattr(waiter.owner, "loop", None) is loop:
                self.pool.withdraw(now_ns, waiter)

    def after_fork(self) -> None:
        """In a forked child: who waits, and whatever lock was held, stayed with the parent."""
        self._lock, self._busy = threading.RLock(), False
        self._timer, self._timer_ns = None, FAR_NS
        self._deferred.clear()
        self._untold.clear()
        self.pool.queue.drain()


_schedulers: weakref.WeakSet[Scheduler] = weakref.WeakSet()


def _after_fork() -> None:
    for scheduler in list(_schedulers):
        scheduler.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@cache
def _task() -> Callable[[], Owner]:
    """How a coroutine waits. Before the lock: an import may fail, and waits for other threads' imports."""

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
