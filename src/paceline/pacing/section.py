"""The critical section of a pool: one lock, and what follows each change: grants, the timer, wake-ups.

One thread at a time is in the section. A finalizer or a signal handler can run anywhere, also in that thread. What it
wants to change is deferred until the section ends, and then the section is entered again, until no such change is left.

Everything that may wait or run code of others follows outside of the lock: threads and tasks are woken, the store's
worker is informed, events are sent.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from enum import Enum
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple, cast

from paceline.core.capacity import Capacity
from paceline.core.pool import Pool
from paceline.core.queue import Waiter
from paceline.core.quota import FAR_NS, NS
from paceline.core.results import Outcome, Reservation, WaitUntil
from paceline.pacing.clock import Alarm, Clock
from paceline.pacing.forks import Kin
from paceline.pacing.lateness import Lateness
from paceline.pacing.lines import Lines
from paceline.pacing.owners import Owner, TaskOwner, wake_all

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Due(Enum):
    """What is known of the next exchange with the store."""

    LATER = "later"  # none is due, except one that has begun
    NOW = "now"  # one is due, and the worker is not informed yet
    TOLD = "told"  # the worker is informed, and has not begun


class Exchanges:
    """What a section knows of its exchanges with the store.

    Args:
        poke: Informs the worker that one is due, and returns whether it will be made.
        running: Whether the worker's thread lives.

    Attributes:
        due: Whether the next one is due.
    """

    __slots__ = ("_running", "due", "poke")

    def __init__(self, poke: Callable[[], bool], running: Callable[[], bool]) -> None:
        self.poke, self._running = poke, running
        self.due = Due.LATER

    def look(self, capacity: Capacity, now_ns: int) -> int:
        """See whether the next one is due; return when to look again, if nothing makes one before."""
        capacity.exchange_due = False
        # A thread that has ended was told in vain: the worker is told again, and starts another one.
        if self.due is Due.TOLD and self._running():
            return FAR_NS
        if (at_ns := capacity.exchange_ns) > now_ns:
            return at_ns
        self.due = Due.NOW
        return FAR_NS

    def begun(self) -> None:
        """The worker has begun; it is informed again when the next one is due."""
        if self.due is Due.TOLD:
            self.due = Due.LATER


class Section:
    """The critical section of one pool.

    Args:
        pool: The pool.
        clock: The clock.
        exchanges: Those with the store; ``None`` where this process keeps the quotas alone.

    Attributes:
        lines: The log lines of the pool.
        lateness: The granted waiters that have not continued.
        kin: The processes with the same quotas, where no store keeps them.
    """

    def __init__(self, pool: Pool, clock: Clock, exchanges: Exchanges | None) -> None:
        self._pool, self._clock = pool, clock
        self.lines: Lines  # which reads the pool in this section
        self.lateness, self._exchanges = Lateness(pool), exchanges
        self._lock = threading.RLock()  # reentrant, for finalizers and signal handlers
        self._busy = False  # whether the thread that holds the lock is in the section
        self._arming = set[int]()  # the threads, and greenlets of gevent, that set the timer
        self._deferred: deque[Callable[[int], object]] = deque()  # changes
        self._postponed: deque[Callable[[], None]] = deque()  # calls outside of the section
        self._decided: deque[Waiter] = deque()  # those that left the queue with an outcome, and are still to be woken
        self._alarm = Alarm(clock, self._on_timer)
        self._loops: set[asyncio.AbstractEventLoop] = set()  # those with waiters, and some that had
        self.kin: Kin | None = None

    def enter(self, submit: Callable[[int, Waiter], Outcome], waiter: Waiter, owner: Callable[[], Owner]) -> Outcome:
        """Submit ``waiter`` to the pool. If it joins the queue, ``owner`` makes its owner.

        Raises:
            RuntimeError: This thread is in the section.
        """
        # Before the lock, because this may log, and handlers are code of others.
        if self.kin is not None and self.kin.forked:
            self._hint_at_store(self.kin)
        with self._lock:
            # In this thread, which has the lock: the pool is half changed, or the thread would wait with the lock.
            if self._busy or threading.get_ident() in self._arming:
                raise RuntimeError("a permit cannot be acquired from a signal handler or a finalizer")
            self._busy = True
            try:
                now_ns = self._clock.now_ns()
                # Both before the pool is asked: they decide whether it has room, and until when a request waits.
                if self._loops:
                    self._forget_closed(now_ns)
                if self.lateness.unsent:
                    self.lateness.no_refill_for_unsent(now_ns)
                outcome = submit(now_ns, waiter)
                # A ``try_grant`` may say until when it would wait, without a place in the queue.
                waits = type(outcome) is WaitUntil and waiter.queued
                if waits:  # still under the lock: the next grant must find its owner
                    self._give_owner(now_ns, waiter, owner)
            finally:
                self._busy = False
            tells = self._pool.capacity.exchange_due or self._pool.notices
            if not (waits or tells or self._deferred):
                return outcome
            # A finalizer may have given back the very capacity that this waiter waits for.
            if self._deferred:
                self._work(now_ns)
            self._arm(now_ns)
        self._leave()
        if waits:
            self.lines.waits(now_ns, waiter, cast("WaitUntil", outcome))
        return outcome

    def _hint_at_store(self, kin: Kin) -> None:
        if kin.are_to_be_told():
            self.lines.hint_at_store()

    def change(self, change: Callable[[int, *Ts], object], *args: *Ts, looks: bool = True) -> None:
        """Make ``change(now_ns, *args)`` and the grants that it allows; later, if this thread is in the section.

        ``looks``: see whether an exchange with the store is due, also where the capacity does not say so by
        ``exchange_due``.
        """
        pool = self._pool
        with self._lock:
            if self._busy:  # :meth:`_work` makes it, with the time of then
                self._deferred.append(lambda now_ns: change(now_ns, *args))
                return
            now_ns = self._clock.now_ns()
            self._busy = True
            try:
                change(now_ns, *args)
            finally:
                self._busy = False
            tells = pool.capacity.exchange_due or (looks and self._exchanges is not None)
            if not (tells or pool.queue.length or self._deferred or self._postponed or pool.notices):
                return  # no request waits, no store is to be told, and nothing is to be logged
            self._work(now_ns)
        self._leave()

    def transact(self, step: Callable[[int], object]) -> None:
        """Make a step of an exchange.

        It is its begin, or its end, which returns a list of the waiters whose outcome it has set.

        The step makes the grants that it allows. Where it has removed waiters, grants to those behind them follow here.
        """
        with self._lock:
            # Before :meth:`_arm`, which plans no exchange while the worker is told and has not begun.
            if self._exchanges is not None:
                self._exchanges.begun()
            now_ns = self._clock.now_ns()
            result = self._run(now_ns, step)
            if isinstance(result, list):  # a begin returns its message, or nothing
                self._decided += result
            if self._decided or self._deferred:
                self._work(now_ns)
            elif self._pool.capacity.exchange_due:
                self._arm(now_ns)
            elif not (self._postponed or self._pool.notices):
                return
        self._leave()
        self.lines.say_waits(now_ns)

    def read(self, read: Callable[[int, *Ts], T], *args: *Ts) -> T:
        """The result of ``read(now_ns, *args)``; the pool does not change meanwhile."""
        with self._lock:
            # A finalizer that reads inside of the section sees it as it is, and leaves all changes to the section.
            inside = self._busy
            now_ns = self._clock.now_ns()
            if self._loops and not inside:
                self._run(now_ns, self._forget_closed)
            found = self._run(now_ns, read, *args)
            if inside or not (self._deferred or self._postponed):
                return found
            if self._deferred:
                self._work(now_ns)
        self._leave()
        return found

    def finished(self, state: str) -> None:
        """Count an answer by how far the model has come with it."""
        with self._lock:  # and no more: it lets no request go
            self._pool.record.finishes[state] += 1

    def outside(self, call: Callable[[], None]) -> None:
        """Make ``call`` outside of the section: now, or, if this thread is in it, when it has left."""
        with self._lock:
            inside = self._busy
            if inside:
                self._postponed.append(call)
        if not inside:
            call()

    def _run(self, now_ns: int, step: Callable[[int, *Ts], T], *args: *Ts) -> T:
        """The result of ``step(now_ns, *args)``; the lock is held, and changes by finalizers are deferred meanwhile."""
        inside, self._busy = self._busy, True
        try:
            return step(now_ns, *args)
        finally:
            self._busy = inside

    def _work(self, now_ns: int) -> None:
        """Make the deferred changes and the grants that they allow, until none is left: the next call may come late."""
        assert not self._busy, "a change inside of the section is deferred"
        while True:
            self._busy = True
            try:
                while self._deferred:
                    self._deferred.popleft()(now_ns)
                if self._pool.queue.length:
                    if self.lateness.unsent:
                        self.lateness.no_refill_for_unsent(now_ns)
                    granted = self._pool.pump(now_ns)
                    self._decided += granted
                    for waiter in granted:
                        if isinstance(waiter.outcome, Reservation):
                            self.lateness.granted(waiter.outcome)
            finally:
                self._busy = False
            # Only now, because it may start a thread. Meanwhile gevent runs other greenlets, and a lock from before its
            # patch lets them in.
            self._arm(now_ns)
            if not self._deferred:
                return

    # The timer.

    def _arm(self, now_ns: int) -> None:
        """Set the timer for the next grant and for the next exchange."""
        thread = threading.get_ident()
        # A finalizer may change the pool while this thread sets the timer, and comes here, too. The outer call goes on
        # then, and ``enter`` still has to refuse signal handlers.
        is_inner = thread in self._arming
        try:
            self._arming.add(thread)
            wake_ns = self._pool.wake_ns
            if self._exchanges is not None:
                at_ns = self._exchanges.look(self._pool.capacity, now_ns)
                wake_ns = at_ns if wake_ns is None else min(wake_ns, at_ns)
            if wake_ns is not None:
                self._alarm.set(wake_ns)
        finally:
            if not is_inner:
                self._arming.discard(thread)

    def _on_timer(self) -> None:
        try:
            with self._lock:
                self._alarm.rang()  # first: `_work` sets the next one, which may be later
                self._work(self._clock.now_ns())
        except BaseException:  # raised into this thread: the waiters do not wait for a timer that is over
            with self._lock:
                self._alarm.set(self._clock.now_ns() + NS)
            raise
        finally:
            self._leave()

    # Outside of the lock.

    def _leave(self) -> None:
        """Wake the waiters with an outcome, inform the worker, log the notices, and make the postponed calls.

        The calls come last: a listener of events may raise ``SystemExit``.
        """
        done: list[Waiter] = []
        # Read without the lock, because the thread that adds to them comes here afterwards.
        if self._decided:
            # Under the lock: another thread may be in the step that has granted, and no owner continues before its end.
            with self._lock:
                done = list(self._decided)
                self._decided.clear()
        if done and (closed := wake_all([waiter.owner for waiter in done])):
            # They got grants that no task can use. The next waiters get these.
            self.change(self._forget, closed, done)
        # A loop: if the worker is closed, :meth:`_tell` looks again, and another exchange may be due by then.
        while self._exchanges is not None and self._exchanges.due is Due.NOW:
            self._tell(self._exchanges)
        # Outside of the lock: handlers of logging are code of others, and may wait.
        if self._pool.notices:
            self.lines.notices()
        while self._postponed:
            try:
                call = self._postponed.popleft()
            except IndexError:  # another thread has taken it
                break
            call()

    def _tell(self, exchanges: Exchanges) -> None:
        """Inform the worker that an exchange is due; not under the lock, because of the order of the locks."""
        exchanges.due = Due.TOLD  # before the worker is told, which may begin, and say so, at once
        if exchanges.poke():
            return
        with self._lock:  # the worker is closed, and no request waits
            exchanges.begun()
            if self._pool.queue.length:  # a request has arrived since
                self._arm(self._clock.now_ns())

    # The owners of the waiters.

    def _give_owner(self, now_ns: int, waiter: Waiter, owner: Callable[[], Owner]) -> None:
        """Give ``waiter``, which has joined the queue, its owner."""
        try:
            waiter.owner = owner()
        except BaseException:  # no event loop of asyncio runs here
            self._pool.withdraw(now_ns, waiter)
            raise
        if type(waiter.owner) is TaskOwner:
            if self._pool.queue.length == 1:  # no other loop has waiters, and none is kept alive for nothing
                self._loops.clear()
            self._loops.add(waiter.owner.loop)

    def _forget(self, now_ns: int, loops: Collection[asyncio.AbstractEventLoop], done: Iterable[Waiter] = ()) -> None:
        """Withdraw the waiters of closed loops, and give back their grants."""
        for waiter in [*done, *self._pool.queue]:
            if getattr(waiter.owner, "loop", None) in loops:
                self._pool.withdraw(now_ns, waiter)

    def _forget_closed(self, now_ns: int) -> None:
        """Withdraw the waiters of loops that were closed: they would count in every estimate until one is granted."""
        closed = {loop for loop in self._loops if loop.is_closed()}
        if closed:
            self._loops -= closed
            self._forget(now_ns, closed)
            self._deferred.append(lambda _: None)  # the next waiters may be granted now

    def after_fork(self) -> None:
        """In a forked child, drop the state of the parent: its waiters, its requests in flight, its held lock."""
        # Another thread may have held the lock at the fork, and does not exist here, nor does the thread of the timers.
        self._lock, self._busy = threading.RLock(), False
        self._arming.clear()
        self._alarm = Alarm(self._clock, self._on_timer)
        self._deferred.clear()
        self._postponed.clear()
        self._decided.clear()
        self._loops = set()
        if self._exchanges is not None:
            self._exchanges.due = Due.LATER
