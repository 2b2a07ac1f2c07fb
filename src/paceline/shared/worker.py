"""The store worker: the thread that exchanges the messages of shared pools with their store.

Only this thread waits for the store; tasks and event loops never do. A scheduler with something to send calls
:meth:`StoreWorker.poke`. A reply wakes the granted requests as the timer does in a local pool.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue as queues
import re
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from paceline.core.capacity import Learns
from paceline.core.ledger import Ledger
from paceline.core.plan import Plan
from paceline.core.queue import Queue
from paceline.core.results import StoreError, StoreFormatError
from paceline.pacing.clock import go_on, is_patched, tell_of_forks
from paceline.pacing.scheduler import Scheduler
from paceline.pacing.settings import PacingSettings
from paceline.shared.capacity import SharedCapacity
from paceline.shared.contact import LOOK_S, Contact
from paceline.shared.exchange import answer, ask, side_of
from paceline.shared.membership import State
from paceline.shared.messages import Known, Message, Noted, Store, StoreReply
from paceline.shared.plan import SharedPlan

log = logging.getLogger("paceline")

if TYPE_CHECKING:
    _Queue = queues.SimpleQueue[Scheduler | None]

HOST_MAX = 40
"""How many characters the name of the machine has in the name of a process."""

FLUSH_S = 2.0
"""How long the end of the program waits for the last exchanges."""


class _Life(Enum):
    """Whether a worker has a thread, or gets one with the next message."""

    OPEN = "open"
    CLOSING = "closing"
    """:meth:`StoreWorker.close` makes the last exchanges, and closes the store."""
    CLOSED = "closed"


class StoreWorker:
    """The pools of a process that share a store, and one thread for their exchanges; it starts with the first message.

    Attributes:
        aside: Called in the thread while the store answers: after the first exchange, each minute of use, and at the end. It
            keeps what is no quota.
        stored_as: By account what it is called in the store.
    """

    def __init__(self, store: Store, settings: PacingSettings) -> None:
        self.store = store
        self._options: dict[str, Any] = {"on_store_failure": settings.on_store_failure, "lease_s": settings.lease_s}
        self.schedulers: weakref.WeakSet[Scheduler] = weakref.WeakSet()
        self._clock = settings.clock
        self.aside: Callable[[], None] = lambda: None
        self.stored_as: Mapping[str, str] = {}
        self._reset()
        _workers.add(self)

    def _reset(self) -> None:
        self._thread: threading.Thread | None = None
        self._queue: _Queue = queues.SimpleQueue()
        # Reentrant: a finalizer in this thread may settle an attempt, and call poke().
        self._lock = threading.RLock()
        self.contact = Contact(self.store, self._clock)
        self._aside_s = 0.0  # when it is due; 0.0: after the next exchange
        self._life = _Life.OPEN

    def capacity(self, ledger: Ledger, queue: Queue, now_ns: int, *, learns: Learns) -> SharedCapacity:
        """A capacity of the quotas in ``ledger`` for the requests in ``queue``."""
        return SharedCapacity(ledger, queue, now_ns, who=_new_name(), learns=learns, **self._options)

    def plan(self, plan: Plan, ledger: Ledger, queue: Queue, now_ns: int) -> SharedPlan:
        """The capacity of the plan of an account."""
        return SharedPlan(plan, ledger, queue, now_ns, who=_new_name(), **self._options)

    def agreed(self, pool: str, text: str) -> str:
        """What the first process has noted under ``pool``; ``text``, if that is this one, or if the store does not answer."""
        nothing = Known(noted=-1)
        try:
            notes = self.store.exchange(pool, Message(who := _new_name(), 1, nothing, leaving=True)).notes
            if not notes:
                first = Message(who, 2, nothing, news=[Noted(who, text)], leaving=True)
                notes = self.store.exchange(pool, first).notes
        except StoreError:
            notes = []
        # The oldest: if two note at once, the reply to the second one has both, and the first one stays agreed.
        return max(notes, key=lambda one: one.age_ns).text if notes else text

    def poke(self, scheduler: Scheduler) -> bool:
        """Plan an exchange for ``scheduler``; a closed worker opens again for waiting requests, else it returns false."""
        with self._lock:
            if self._life is _Life.CLOSING:
                return True  # close() makes the exchanges meanwhile: two of one pool at once would lose a reply
            if not self.running or is_patched(self._queue):
                if self._life is _Life.CLOSED and not scheduler.pool.queue.length:
                    return False
                # For the thread from before a patch of gevent, which waits on the old queue.
                self._queue.put(None)
                self._life, self._queue = _Life.OPEN, queues.SimpleQueue()  # of gevent, if it has patched Thread
                before = self._thread
                serve = partial(_serve, weakref.ref(self), self._queue, before)
                told = serve, "the exchange with the store was disturbed; it continues"
                self._thread = threading.Thread(target=go_on, args=told, name="paceline-store", daemon=True)
                try:
                    self._thread.start()
                # If there are no more threads for now, the next message tries again.
                except BaseException:
                    self._thread = before
                    raise
                weakref.finalize(self, self._queue.put, None).atexit = False  # ends the thread
            self._queue.put(scheduler)
        return True

    def exchange_for(self, scheduler: Scheduler, *, last: bool = False) -> None:
        """Make one exchange for ``scheduler``, if one is due; ``last``: send all there is."""
        pool, capacity, now_s = scheduler.pool, side_of(scheduler.pool), time.monotonic()
        try:
            scheduler.section.transact(partial(ask, pool, at_once=last))
        # A listener may raise anything. The pool awaits a reply to its message all the same.
        except (Exception, SystemExit):
            log.exception("%s: the exchange with the store was disturbed", pool.name)
        if capacity.asked is None:
            return
        try:
            reply = self.contact.exchange(self._stored(pool.name), capacity.asked, now_s)
            self._deliver(scheduler, reply)
        # The requests that wait must get an outcome, or they would wait without an end.
        except Exception:
            log.exception("%s: invalid reply", self.store.url)
            self._deliver(scheduler, f"{self.store.url.rstrip(':')}: invalid reply")
        else:
            if isinstance(reply, StoreReply) and not last:
                self.contact.look(self._stored(pool.name), now_s)
        if now_s >= self._aside_s and not last:
            self._keep_aside()

    def _keep_aside(self) -> None:
        """Bring up to date what is kept beside the quotas, unless the store does not answer."""
        if self.contact.down is not None:
            return
        self._aside_s = time.monotonic() + LOOK_S
        try:
            self.aside()
        # What is kept aside is no quota, so the exchanges go on without it.
        except Exception:
            log.exception("%s", self.store.url)

    def recover(self, queue: _Queue) -> None:
        """Make up for what a thread before this one left: messages without a reply, and exchanges that are due."""
        for scheduler in list(self.schedulers):
            if side_of(scheduler.pool).asked is not None:
                self._deliver(scheduler, f"{self.store.url.rstrip(':')}: the exchange was disturbed")
            queue.put(scheduler)

    def _deliver(self, scheduler: Scheduler, reply: StoreReply | str | StoreFormatError) -> None:
        """Apply the store's reply, or the reason why there is none."""
        pool, membership = scheduler.pool, side_of(scheduler.pool).membership
        if isinstance(reply, StoreFormatError) and membership.state is not State.STOPPED:
            log.error("%s: %s", pool.name, reply)
        try:
            scheduler.section.transact(partial(answer, pool, reply=reply))
        finally:  # a listener may fail
            self.contact.note(pool.name, membership, len(self.schedulers))

    def _stored(self, pool: str) -> str:
        """What a pool is called in the store."""
        account, slash, model = pool.partition("/")
        return self.stored_as.get(account, account) + slash + model

    def can_grant(self) -> bool:
        """Whether requests can be granted; it may take the time that the store has for an answer.

        In the mode ``fail_safe`` the store must have answered once: without the other processes' use no share is known.
        """
        mode, sides = self._options["on_store_failure"], [side_of(each.pool) for each in list(self.schedulers)]
        knows = mode == "fail_safe" and any(side.membership.state.known for side in sides)
        return mode == "fail_open" or knows or self.contact.answers()

    @property
    def running(self) -> bool:
        """Whether the thread is being started, or has started and not ended."""
        # Under gevent other greenlets come here while one starts the thread. To a lock from before the patch they are one thread.
        thread = self._thread
        return self._life is _Life.OPEN and thread is not None and (thread.ident is None or thread.is_alive())

    def close(self, *, for_good: bool = False) -> None:
        """End the thread, send the news that is left, and close the store.

        It opens again for the requests that still wait, unless it is closed ``for_good``, as the program ends.
        """
        with self._lock:
            if self._life is _Life.CLOSING:  # in another thread, or this is a finalizer in the same one
                return
            self._life = _Life.CLOSING
            thread = self._thread
            self._queue.put(None)
        try:
            # A finalizer may call this in the thread itself, which can't wait for its own end.
            if thread is not None and thread is not threading.current_thread():
                thread.join(FLUSH_S)
            if thread is None or not thread.is_alive():
                self._flush()
            self.store.close()  # before it may be asked again
        finally:
            self._life = _Life.CLOSED
        for scheduler in [] if for_good else list(self.schedulers):
            if scheduler.pool.queue.length:
                self.poke(scheduler)

    def _flush(self) -> None:
        """Send the news that is left, in this thread."""
        # Twice: first the news that has no reply yet, then what has come since.
        for scheduler in 2 * list(self.schedulers):
            if self.contact.down is None:
                self.exchange_for(scheduler, last=True)
        # 0.0: it was never kept, because the store has answered no exchange before the end.
        if self._aside_s:
            self._keep_aside()

    def after_fork(self) -> None:
        """Start anew in a forked child: the thread and the connections belong to the parent."""
        self._reset()
        self.store.after_fork()
        for scheduler in list(self.schedulers):
            side_of(scheduler.pool).forked(_new_name(), self._clock.now_ns())


def _new_name() -> str:
    """A unique name of this process in one pool, which begins with its machine and its number there."""
    # A name goes into keys and logs of the store, so a strange hostname is cut to plain characters.
    host = re.sub(r"[^\w.-]", "", socket.gethostname(), flags=re.ASCII)[:HOST_MAX]
    return f"{host}:{os.getpid()}:{os.urandom(8).hex()}"


def _serve(worker: weakref.ref[StoreWorker], queue: _Queue, before: threading.Thread | None) -> None:
    # Two threads must not exchange for one pool, so its last exchange ends first.
    if before is not None:
        before.join()
    alive = worker()
    if alive is not None:
        alive.recover(queue)
    del alive
    while (scheduler := queue.get()) is not None:
        alive = worker()
        if alive is None:
            return
        alive.exchange_for(scheduler)
        # A reference that stays while the thread waits would keep the worker from being deleted.
        del alive, scheduler


_workers: weakref.WeakSet[StoreWorker] = weakref.WeakSet()
tell_of_forks(_workers)


@atexit.register
def _at_exit() -> None:
    for worker in list(_workers):
        worker.close(for_good=True)
