"""Pools that processes share: the scheduler to one, and the worker that carries its messages to the store and back.

The store is asked by one thread, so that neither a task nor an event loop ever waits on a socket. Whoever wants something
leaves it with the pool and pokes the worker; the worker takes one message after the other, and wakes whom the answer
lets go, as the timer does in a pool of our own.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from queue import SimpleQueue

from paceline.core.queue import Waiter
from paceline.core.results import StoreError
from paceline.pacing.clock import Clock
from paceline.pacing.scheduler import Scheduler
from paceline.shared.capacity import RETRY_NS, SharedCapacity
from paceline.shared.messages import Message, Reply
from paceline.shared.store import Store

log = logging.getLogger("paceline")

QUICK_S = 0.1
"""A store that fails sooner keeps no other pool waiting: it may be the books of one pool that cannot be read."""

FLUSH_S = 2.0
"""How long the end of the program waits for what is still to be told."""


class SharedScheduler(Scheduler):
    """The thread-safe side of one :class:`~paceline.shared.capacity.SharedCapacity`."""

    pool: SharedCapacity

    def __init__(self, pool: SharedCapacity, clock: Clock, worker: StoreWorker) -> None:
        super().__init__(pool, clock)
        self._worker = worker
        self._poked = False  # the worker knows what is due
        worker.schedulers.add(self)

    def take_message(self, *, last: bool = False) -> Message | None:
        """What the worker is to carry now; ``last``: even what could wait a little."""
        with self._lock:
            self._poked, self._busy = False, True
            try:
                message = self.pool.message(self._clock.now_ns(), at_once=last)
            finally:
                self._busy = False
            done = self._work() if self._deferred else []
            if message is None:
                self._arm()
        self._wake(done)
        return message

    def deliver(self, answer: Reply | str) -> None:
        """The store's answer, or why there is none."""
        with self._lock:
            before, self._busy = self.pool.lost, True
            try:
                now_ns = self._clock.now_ns()
                done = (
                    self.pool.failed(now_ns, answer) if isinstance(answer, str) else self.pool.receive(now_ns, answer)
                )
            finally:
                self._busy = False
            done += self._work()
            after, mode = self.pool.lost, self.pool.lost_mode
        if after is not None and before is None:
            log.warning("%s: %s; going on in mode %r until it answers again", self.pool.name, after, mode)
        elif before is not None and after is None:
            log.warning("%s: the store answers again", self.pool.name)
        self._wake(done)

    def _follow_up(self, now_ns: int) -> list[Waiter]:
        done = super()._follow_up(now_ns)
        self._arm()
        return done

    def _arm(self) -> None:
        self.pool.stirred = False
        if not self._poked:
            call_ns = self.pool.call_ns
            if call_ns is not None:
                if call_ns <= self._clock.now_ns():
                    self._due = True
                else:
                    self._arm_at(call_ns)
        super()._arm()

    def _wake(self, done: list[Waiter]) -> None:
        super()._wake(done)
        self._poke()

    def _poke(self) -> None:
        """Let the worker come, if something is due; not under the lock, which it takes first thing."""
        while self._due:
            self._due, self._poked = False, True
            if self._worker.poke(self):
                return
            with self._lock:  # it is closed, and nobody waits
                self._poked = False
                if self.pool.queue.length:  # somebody has come since
                    self._arm()

    def after_fork(self) -> None:
        """In a forked child: another process, with nothing granted and nothing to tell."""
        super().after_fork()
        self._due = self._poked = False
        self.pool.forked(os.urandom(16).hex(), self._clock.now_ns())


class StoreWorker:
    """One thread between the pools of a process and their store; it starts with the first message."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.schedulers: weakref.WeakSet[SharedScheduler] = weakref.WeakSet()
        self._clock = clock
        self._reset()
        _workers.add(self)

    def _reset(self) -> None:
        self._thread: threading.Thread | None = None
        self._queue: SimpleQueue[SharedScheduler | None] = SimpleQueue()
        self._lock = threading.RLock()  # a finalizer may settle, and poke, while this thread is inside
        self._down: tuple[int, str] | None = None  # until when others do not try the store, and why
        self._vain: dict[
            str, bool
        ] = {}  # pools that were not answered since the last answer; whether they waited for it
        self._closed = False

    def poke(self, scheduler: SharedScheduler) -> bool:
        """``scheduler`` has something to say; whether it will be asked. Closed, the worker opens again for those who wait."""
        with self._lock:
            if self._thread is None:
                if self._closed and not scheduler.pool.queue.length:
                    return False
                self._closed, self._queue = False, SimpleQueue()
                self._thread = threading.Thread(target=_run, args=(weakref.ref(self), self._queue), daemon=True)
                self._thread.name = "paceline-store"
                self._thread.start()
                # Nobody has the worker any more: the thread ends.
                weakref.finalize(self, self._queue.put, None).atexit = False
            self._queue.put(scheduler)
        return True

    def carry(self, scheduler: SharedScheduler, *, last: bool = False) -> None:
        """Carry one message, and deliver the answer."""
        message = scheduler.take_message(last=last)
        if message is None:
            return
        try:
            scheduler.deliver(self._exchange(scheduler.pool.name, message))
        except Exception:  # nobody must wait for ever
            log.exception("%s: the answer makes no sense", self.store.url)
            scheduler.deliver(f"{self.store.url.rstrip(':')}: its answer makes no sense")

    def _exchange(self, pool: str, message: Message) -> Reply | str:
        down, began_s = self._down, time.monotonic()
        if down is not None and self._clock.now_ns() < down[0] and (pool in self._vain or sum(self._vain.values()) > 1):
            return down[1]  # it has just failed, or two others have waited for nothing
        try:
            reply = self.store.exchange(pool, message)
        except StoreError as error:
            reason = str(error)
        except Exception as error:  # a store of somebody else's, or a bug: the pools must go on all the same
            reason = f"{self.store.url.rstrip(':')}: {type(error).__name__}"
            if down is None or down[1] != reason:
                log.exception("%s", self.store.url)
        else:
            self._down = None
            self._vain.clear()
            return reply
        self._vain[pool] = time.monotonic() - began_s > QUICK_S
        self._down = (self._clock.now_ns() + RETRY_NS // 2, reason)
        return reason

    def close(self) -> None:
        """Tell what is still to be told, and end the thread."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
            self._queue.put(None)
        if thread is not None and thread is not threading.current_thread():  # a finalizer may close it there
            thread.join(FLUSH_S)
        if thread is None or not thread.is_alive():
            for scheduler in 2 * list(self.schedulers):  # once what had to be told again, once what is new
                if self._down is None:
                    self.carry(scheduler, last=True)
        self.store.close()

    def after_fork(self) -> None:
        """In a forked child: the thread and the connections stayed with the parent."""
        self._reset()
        self.store.after_fork()


def _run(worker: weakref.ref[StoreWorker], queue: SimpleQueue[SharedScheduler | None]) -> None:
    """Carry until the worker is closed or nobody has it any more."""
    while (scheduler := queue.get()) is not None:
        carrier = worker()
        if carrier is None:
            return
        try:
            carrier.carry(scheduler)
        except Exception:
            log.exception("%s: a message could not be carried", scheduler.pool.name)
        del carrier, scheduler


_workers: weakref.WeakSet[StoreWorker] = weakref.WeakSet()


def _after_fork() -> None:
    for worker in list(_workers):
        worker.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _at_exit() -> None:
    for worker in list(_workers):
        worker.close()
