"""The clock of all limiters: the time, and one thread for all timers."""

from __future__ import annotations

import heapq
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from paceline.core.quota import FAR_NS, NS
from paceline.pacing.inbox import Inbox

CANCELLED_MAX = 100
"""How many cancelled timers are kept beyond the number of the others."""

elapsed_ns: Callable[[], int] = time.monotonic_ns
if sys.platform != "win32":
    elapsed_ns = partial(time.clock_gettime_ns, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""A monotonic clock that goes on while the machine is suspended: the providers' quotas refill meanwhile, and their days
end. It counts from the start of the machine, and all its processes read the same."""

_ANCHOR_NS = time.time_ns() - elapsed_ns()  # read once: the system's time may be set back later

DISTURBED_S = 0.1
"""How long a service thread rests after an exception."""

LOOK_S = 60.0
"""How long the timer thread sleeps at most: its sleep does not count the time for which the machine is suspended."""

log = logging.getLogger("paceline")


def go_on(serve: Callable[[], None], disturbed: str) -> None:
    """Call ``serve`` until it returns, again after each exception of any kind, raised at any point.

    One may be raised in this thread by another thread, or for want of memory, also while this one logs or rests: so
    nothing is done where it would not be caught.
    """
    error: BaseException | None = None
    while True:
        try:
            if error is not None:
                caught, error = error, None
                log.error("%s", disturbed, exc_info=caught)
                time.sleep(DISTURBED_S)
            serve()
        except BaseException as raised:  # noqa: BLE001
            error = raised
        else:
            # known by another number since gevent's patch: the end of the thread looks for that
            threading.current_thread()
            return


def is_patched(one: Any) -> bool:
    """Whether gevent has replaced the queues of threads since the queue ``one`` was made.

    Then a thread that waits on it is a real one.

    A greenlet that a real thread is to wake counts for nothing in gevent's loop, which may end before.
    """
    return type(one) is not queue.SimpleQueue


class Timer(Protocol):
    """A call in the future that can be cancelled."""

    def cancel(self) -> None:
        """Do not make the call."""


class Clock(Protocol):
    """The time and the timers of a limiter; tests use their own clock."""

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch; never goes back."""

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> Timer:
        """Call ``callback`` at ``at_ns`` or soon after, on any thread."""


class Alarm:
    """One call at the earliest of several instants."""

    __slots__ = ("_at_ns", "_call", "_clock", "_timer")

    def __init__(self, clock: Clock, call: Callable[[], None]) -> None:
        self._clock, self._call = clock, call
        self._timer: Timer | None = None
        self._at_ns = FAR_NS

    def set(self, at_ns: int) -> None:
        """Make the call at ``at_ns``, unless it will be made earlier."""
        # A later instant needs no timer: the call at the earlier one sets the next.
        if at_ns < self._at_ns:
            if self._timer is not None:
                self._timer.cancel()
            self._at_ns = at_ns
            self._timer = self._clock.call_at(at_ns, self._call)

    def rang(self) -> None:
        """The call is made: the next one has an instant of its own."""
        self._at_ns = FAR_NS


class _Timer:
    __slots__ = ("_pending", "at_ns", "callback")

    def __init__(self, at_ns: int, callback: Callable[[], None], pending: set[_Timer]) -> None:
        self.at_ns = at_ns
        self.callback: Callable[[], None] | None = callback
        self._pending = pending
        pending.add(self)

    def __lt__(self, other: _Timer) -> bool:
        return self.at_ns < other.at_ns

    def cancel(self) -> None:
        self.callback = None
        self._pending.discard(self)


class SystemClock:
    """Monotonic time that started at the wall clock's, suspended time included.

    A daemon thread sleeps until the next timer.

    The thread starts with the first timer, and again in a forked child, after gevent's patch, or when it has ended. It
    belongs to no event loop, so a loop that is closed or blocked delays only its own tasks. After any exception in it,
    at any point, it goes on with all timers that are pending. The clock has no lock: a finalizer can run anywhere, also
    while its thread sets a timer, and may need the clock itself.
    """

    def __init__(self) -> None:
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def now_ns(self) -> int:
        """Nanoseconds since the Unix epoch; never goes back."""
        return elapsed_ns() + _ANCHOR_NS

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> Timer:
        """Call ``callback`` on the timer thread; it must be short and must not raise."""
        timer = _Timer(at_ns, callback, self._pending)
        self._new.put(timer)
        self._look_after_thread()
        return timer

    def _look_after_thread(self) -> None:
        """Start the thread, if none is alive."""
        try:
            thread = self._threads.pop()
        except IndexError:  # another caller looks after it
            return
        try:
            if thread is None or not thread.is_alive() or is_patched(self._new.items):
                thread = None
                self._new.put(None)  # to the thread before the patch
                started = threading.Thread(target=self._run, name="paceline-timer", daemon=True)
                started.start()  # or there are no more threads for now
                thread = started
        finally:
            self._threads.append(thread)

    def _forget(self) -> None:
        self._pending: set[_Timer] = set()
        self._heap: list[_Timer] = []  # used by the thread only
        self._tidy_at = CANCELLED_MAX
        self._new: Inbox[_Timer | None] = Inbox()
        # In place of a lock: it is empty while a caller looks after the thread. A finalizer in that caller goes on.
        self._threads: list[threading.Thread | None] = [None]

    def _run(self) -> None:
        go_on(self._serve, "the timer thread was disturbed; it continues")

    def _serve(self) -> None:
        """Make the calls that are pending, and all later ones, until another thread takes them over."""
        # A new one: gevent may have replaced queues since the other one was made, and Thread, too. A greenlet that
        # waits on that one would stop the whole process.
        new: Inbox[_Timer | None] = Inbox()
        self._new = new  # first: a timer that is in neither queue is pending below
        self._heap = heap = list(self._pending)
        heapq.heapify(heap)
        while True:
            wait_s = max(heap[0].at_ns - self.now_ns(), 0) / NS if heap else None
            try:
                if (timer := new.get(None if wait_s is None else min(wait_s, LOOK_S))) is None:
                    return
                self._push(timer)
                del timer
                continue
            except queue.Empty:
                if not heap or heap[0].at_ns > self.now_ns():
                    continue
            timer = heapq.heappop(heap)
            callback = timer.callback
            try:
                if callback is not None:
                    callback()
            except BaseException:  # also SystemExit of an events listener: the thread serves all limiters
                log.exception("a timer failed; the other timers continue")
            finally:
                # Pending until here: an exception before the call must not lose it, and a second call does no harm.
                timer.cancel()
            del timer, callback  # they would keep their owner alive until the next timer

    def _push(self, timer: _Timer) -> None:
        heap = self._heap
        if len(heap) >= self._tidy_at:
            heap[:] = [timer for timer in heap if timer.callback is not None]
            heapq.heapify(heap)
            # Twice as many as are left: so a sweep costs no timer more than a constant, however many there are.
            self._tidy_at = 2 * len(heap) + CANCELLED_MAX
        heapq.heappush(heap, timer)


SYSTEM_CLOCK = SystemClock()


def tell_of_forks(objects: Iterable[Any], **methods: str) -> None:
    """Call ``after_fork()`` of each of ``objects`` in every forked child.

    Args:
        objects: The objects, as they are at the fork.
        **methods: Further methods to call, by the name of the instant: ``before``, ``after_in_parent``.
    """

    def tell(method: str) -> None:
        for one in list(objects):
            getattr(one, method)()

    if hasattr(os, "register_at_fork"):
        methods["after_in_child"] = "after_fork"
        os.register_at_fork(**{instant: partial(tell, method) for instant, method in methods.items()})
