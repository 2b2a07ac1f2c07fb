"""A queue between threads whose reader waits no longer than it says."""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """A queue with one reader. ``put`` may be called anywhere, also in a finalizer or a signal handler.

    In CPython 3.11 and 3.12 ``SimpleQueue.get`` may wait without end in spite of its timeout: after an item that was
    read without waiting it tries again with the time that is left, and below 0 that means forever. A busy machine comes
    to this. A lock has no such fault.

    Attributes:
        items: What was put and not read.
    """

    __slots__ = ("_quiet", "items")

    def __init__(self) -> None:
        # By their modules, where gevent may have replaced them since the import.
        self.items: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._quiet = threading.Lock()  # released for each item; the reader takes it again
        self._quiet.acquire()

    def put(self, item: T) -> None:
        """Add ``item``, and wake the reader."""
        # In this order, because a reader that is woken must find the item.
        self.items.put(item)
        with suppress(RuntimeError):  # it was released for an earlier item
            self._quiet.release()

    def get(self, timeout_s: float | None = None) -> T:
        """The next item; ``timeout_s``: how long to wait for one, in seconds, or without end.

        Raises:
            queue.Empty: There was none in time, or the reader was woken by an item that it had read before.
        """
        with suppress(queue.Empty):
            return self.items.get_nowait()
        # Not below 0: of a lock -1 is a wait without end, and any other such time is an error.
        self._quiet.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0.0))
        return self.items.get_nowait()
