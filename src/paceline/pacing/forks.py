"""What a fork changes: which processes use one limiter without a store, and the locks that a thread of the parent held.

Without a store each of the processes spends the whole quotas.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Callable
from typing import Final

from paceline.pacing.clock import tell_of_forks

USERS_MAX: Final = 256
"""How many processes are noted; of more, two share a place, and one of them may not be told."""

_TOLD, _BORN, _FIRST = 0, 1, 2
"""Where the memory says whether one of the processes has been told, and how many were forked; then the processes."""


class Kin:
    """The processes that use one limiter since a fork, noted in memory that they share.

    Args:
        used: Whether this process has used the limiter so far.

    Attributes:
        forked: Whether the next use is the first one since a fork.
    """

    __slots__ = ("__weakref__", "_next", "_place", "_used", "_users", "forked")

    def __init__(self, used: Callable[[], bool]) -> None:
        self._used = used
        self.forked = False
        self._users: memoryview | None = None
        self._place = self._next = 0  # of this process, and of its next child
        _kin.add(self)

    def before_fork(self) -> None:
        """Make the shared memory, with this process in it if it has used the limiter."""
        if self._users is None:
            try:
                shared = mmap.mmap(-1, 8 * (_FIRST + USERS_MAX))  # by this process and its children
            except OSError:  # no memory is left
                return
            self._users = memoryview(shared).cast("q")
        self._users[_BORN] += 1
        self._next = self._users[_BORN] % USERS_MAX
        if self._used():
            self._note()

    def go_on(self) -> None:
        """In the parent: the next use is the first one since a fork."""
        self.forked = self._users is not None

    def after_fork(self) -> None:
        """In the child: the same, and it has a place of its own."""
        self.go_on()
        self._place = self._next

    def _note(self) -> None:
        if self._users is not None:
            self._users[_FIRST + self._place] = os.getpid()

    def are_to_be_told(self) -> bool:
        """Note that this process uses the limiter.

        Returns whether another one that lives does, too, and none has been told so far.

        WEAK: two that look at the same instant are both told.
        """
        self.forked = False
        self._note()  # before the others are looked at: of two that begin at once, one sees the other
        if self._users is None or self._users[_TOLD]:
            return False
        if not any(map(lives, {*self._users[_FIRST:]} - {0, os.getpid()})):
            return False
        self._users[_TOLD] = 1
        return True


def lives(pid: int) -> bool:
    """Whether there is a process with this number."""
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError) as error:  # one of another user lives, too
        return isinstance(error, PermissionError)
    return True


def reentrant_lock() -> threading.RLock:
    """A lock that is free in every forked child: the thread of the parent that held it does not exist there.

    The data behind the lock may be half changed then. Use it for tables and counts, where each step leaves them valid.
    """
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _free_locks() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001  (as ``logging`` does with its own)


_locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_locks)

_kin: weakref.WeakSet[Kin] = weakref.WeakSet()
tell_of_forks(_kin, before="before_fork", after_in_parent="go_on")
