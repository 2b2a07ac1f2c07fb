"""The threads and tasks that wait, and how they are woken."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import copy_context
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    import asyncio

    Futures: TypeAlias = dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]]


T = TypeVar("T")

LOOK_S = 0.2
"""How often a thread that waits for another one looks for an interrupt, which does not end a wait on Windows."""


class Owner(Protocol):
    """The thread or task behind a waiter."""

    def wake(self, others: Futures) -> None:
        """Let it continue; a future of an event loop that does not run in this thread is added to ``others``."""


class ThreadOwner:
    """A thread that waits on a lock.

    A finalizer in this thread could find the inner lock of an event taken, and wait for itself.
    """

    __slots__ = ("_woken",)

    def __init__(self) -> None:
        self._woken = threading.Lock()
        self._woken.acquire()

    def wake(self, others: Futures) -> None:  # noqa: ARG002
        """See :meth:`Owner.wake`."""
        with suppress(RuntimeError):  # it is awake
            self._woken.release()

    def wait(self) -> None:
        """Wait until it is woken."""
        self._woken.acquire()


class TaskOwner:
    """A coroutine that waits on a future of its loop."""

    __slots__ = ("future", "loop", "thread")

    def __init__(self) -> None:
        import asyncio

        self.loop, self.thread = asyncio.get_running_loop(), threading.get_ident()
        self.future: asyncio.Future[None] = self.loop.create_future()

    def wake(self, others: Futures) -> None:
        """See :meth:`Owner.wake`."""
        import asyncio

        # A future may be set only in the thread of its loop. Elsewhere the loop has to do it. With gevent's patch all
        # threads see the same running loop, because they are greenlets of one thread; only their numbers differ.
        running = asyncio._get_running_loop()  # noqa: SLF001  (get_running_loop raises off a loop)
        if running is self.loop and self.thread == threading.get_ident():
            _set_all([self.future])
        else:
            others.setdefault(self.loop, []).append(self.future)


def wake_all(owners: Iterable[Owner]) -> list[asyncio.AbstractEventLoop]:
    """Wake ``owners``, with one call for each event loop.

    Returns the loops that were closed with tasks still waiting.
    """
    others: Futures = {}
    for owner in owners:
        owner.wake(others)
    closed = []
    for loop, futures in others.items():
        try:
            # One call for all of its futures, because each call writes to the socket that wakes the loop.
            loop.call_soon_threadsafe(_set_all, futures)
        except RuntimeError:
            closed.append(loop)
    return closed


def _set_all(futures: list[asyncio.Future[None]]) -> None:
    """Wake the tasks of one loop; called in its thread."""
    for future in futures:
        if not future.done():  # else its task was cancelled
            future.set_result(None)


def is_async(function: object) -> bool:
    """Whether a call of it is to be awaited: a coroutine function, or an object with such a ``__call__``."""
    return iscoroutinefunction(function) or iscoroutinefunction(getattr(type(function), "__call__", None))  # noqa: B004


def in_a_thread(work: Callable[[], T], interrupt: Callable[[int], object]) -> T:
    """What ``work`` returns, in a thread of its own; this thread waits, and can be interrupted on each system.

    Args:
        work: The work, in a copy of this context.
        interrupt: Ends the work at an interrupt of this thread. It gets the id of the other thread.

    Raises:
        KeyboardInterrupt: It was interrupted, and the work has raised.
    """
    from concurrent.futures import Future, wait

    ended, interrupted = Future[T](), False

    def run() -> None:
        try:
            ended.set_result(work())
        except BaseException as error:  # noqa: BLE001  (it is raised by the caller)
            ended.set_exception(error)

    thread = threading.Thread(target=copy_context().run, args=(run,), name="paceline-work", daemon=True)
    thread.start()
    while not ended.done():
        try:
            wait([ended], LOOK_S)  # join() takes an interrupted wait for the end, before Python 3.13
        except KeyboardInterrupt:
            interrupted = True
            interrupt(thread.ident or 0)
    if interrupted and (error := ended.exception()) is not None:
        raise KeyboardInterrupt from error
    return ended.result()


def in_a_loop() -> bool:
    """Whether this thread runs an event loop; asyncio is not imported for it."""
    running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    return running is not None and running() is not None
