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
from typing import Any

from paceline.core.ledger import Ledger
from paceline.core.queue import Queue
from paceline.core.results import StoreError
from paceline.pacing.clock import Clock
from paceline.pacing.scheduler import Scheduler
from paceline.shared.capacity import RETRY_NS, OnStoreFailure, SharedCapacity, answer, ask, shared_capacity
from paceline.shared.messages import Message, Reply
from paceline.shared.store import Store

log = logging.getLogger("paceline")

QUICK_S = 0.1
"""A store that fails sooner keeps no other pool waiting: it may be the books of one pool that cannot be read."""

FLUSH_S = 2.0
"""How long the end of the program waits for what is still to be told."""


class StoreWorker:
    """One thread between the pools of a process and their store; it starts with the first message."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        on_store_failure: OnStoreFailure = "fail_safe",
        lease_s: float | None = None,
    ) -> None:
        self.store = store
        self._options: dict[str, Any] = {"on_store_failure": on_store_failure, "lease_s": lease_s}
        self.schedulers: weakref.WeakSet[Scheduler] = weakref.WeakSet()
        self._clock = clock
        self._reset()
        _workers.add(self)

    def _reset(self) -> None:
        self._thread: threading.Thread | None = None
        self._queue: SimpleQueue[Scheduler | threading.Event | None] = SimpleQueue()
        self._lock = threading.RLock()  # a finalizer may settle, and poke, while this thread is inside
        self._down: tuple[int, str] | None = None  # until when others do not try the store, and why
        self._vain: dict[
            str, bool
        ] = {}  # pools that were not answered since the last answer; whether they waited for it
        self._closed = False

    def capacity(self, ledger: Ledger, queue: Queue, now_ns: int, *, learns: bool, source: str) -> SharedCapacity:
        """This process's side of the quotas in ``ledger``, for the requests in ``queue``."""
        who = os.urandom(16).hex()
        return SharedCapacity(ledger, queue, now_ns, who=who, learns=learns, source=source, **self._options)

    def poke(self, scheduler: Scheduler) -> bool:
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

    def carry(self, scheduler: Scheduler, *, last: bool = False) -> None:
        """Carry one message to the store, and its reply back; ``last``: even what could wait a little."""
        pool = scheduler.pool
        message = scheduler.transact(lambda now_ns: (ask(pool, now_ns, at_once=last), []))
        if message is None:
            return
        try:
            self._deliver(scheduler, self._exchange(pool.name, message))
        except Exception:  # no request may wait for ever
            log.exception("%s: invalid reply", self.store.url)
            self._deliver(scheduler, f"{self.store.url.rstrip(':')}: invalid reply")

    def _deliver(self, scheduler: Scheduler, reply: Reply | str) -> None:
        """Bring the store's reply, or the reason why there is none."""
        pool, capacity = scheduler.pool, shared_capacity(scheduler.pool)
        before = capacity.lost
        scheduler.transact(lambda now_ns: (None, answer(pool, now_ns, reply)))
        after = capacity.lost
        if after is not None and before is None:
            mode = capacity.on_store_failure
            log.warning("%s: %s; continuing in mode %s until the store answers again", pool.name, after, mode)
        elif before is not None and after is None:
            log.warning("%s: the store answers again", pool.name)

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

    @property
    def running(self) -> bool:
        """Whether the thread has been started, and not been ended."""
        return self._thread is not None

    def flush(self, timeout_s: float) -> bool:
        """Make all exchanges that are due and deliver their replies; whether that was possible within ``timeout_s``."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            passed = threading.Event()
            if self.running:
                self._queue.put(passed)  # behind everything that is due
                if not passed.wait(max(deadline_s - time.monotonic(), 0.0)):
                    return False
            if all(scheduler.idle and shared_capacity(scheduler.pool).idle for scheduler in list(self.schedulers)):
                return True
            time.sleep(0.0005)
        return False

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

    def add(self, scheduler: Scheduler) -> None:
        """Exchange for ``scheduler``, too."""
        self.schedulers.add(scheduler)

    def after_fork(self) -> None:
        """In a forked child: the thread and the connections stayed with the parent."""
        self._reset()
        self.store.after_fork()
        for scheduler in list(self.schedulers):
            shared_capacity(scheduler.pool).forked(os.urandom(16).hex(), self._clock.now_ns())


def _run(worker: weakref.ref[StoreWorker], queue: SimpleQueue[Scheduler | threading.Event | None]) -> None:
    """Carry until the worker is closed or nobody has it any more."""
    while (scheduler := queue.get()) is not None:
        if isinstance(scheduler, threading.Event):
            scheduler.set()
            continue
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
