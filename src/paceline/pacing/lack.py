"""What this machine lacks: files, memory, threads. Such a lack is no fault of the host that a request goes to."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from enum import StrEnum
from typing import Final

FILES_WANTED: Final = 30_000
"""The open files that a command asks for: 20,000 connections of a gateway's clients, and 10,000 to servers."""

CAUSES_MAX: Final = 8
"""How many exceptions that libraries wrap around one another are looked at."""


class Lack(StrEnum):
    """What this machine lacks, in words."""

    FILES = "too many open files"
    SYSTEM_FILES = "too many open files in the whole system"
    BUFFERS = "no buffer space available"
    MEMORY = "out of memory"
    THREADS = "no new thread can be started"

    @property
    def remedy(self) -> str:
        """What raises the limit; empty where no command does."""
        return {Lack.FILES: "; raise it with ulimit -n", Lack.THREADS: "; raise it with ulimit -u"}.get(self, "")

    @property
    def is_unsent(self) -> bool:
        """Whether it arises only before anything is sent."""
        return self in (Lack.FILES, Lack.SYSTEM_FILES, Lack.THREADS)


_BY_NUMBER: Final = {
    errno.EMFILE: Lack.FILES,
    errno.ENFILE: Lack.SYSTEM_FILES,
    errno.ENOBUFS: Lack.BUFFERS,
    errno.ENOMEM: Lack.MEMORY,
}

_OF_RESOLVERS: Final = (errno.EBUSY, errno.EINVAL)
"""What getaddrinfo() may say without a file: with mdns4_minimal in nsswitch.conf it is busy, and once this process has
asked for a host that does not exist, an argument is invalid (glibc 2.36, 2026-11-27)."""


def lack_of(error: BaseException | None) -> Lack | None:
    """What this machine lacked when ``error`` arose; ``None`` for another error.

    Of the exceptions that libraries wrap around one another, the first one with an error number of the system decides.
    """
    import socket  # 5 ms, which a program that sends nothing itself need not wait for

    for _ in range(CAUSES_MAX):
        error = getattr(error, "os_error", None) or error  # of aiohttp, which copies the number of a resolver's error
        match error:
            case ExceptionGroup():
                return next(filter(None, map(lack_of, error.exceptions)), None)
            case MemoryError():
                return Lack.MEMORY
            case RuntimeError() if "can't start new thread" in str(error):
                return Lack.THREADS
            # Before OSError, their base: the numbers of a resolver are others than the system's.
            case socket.gaierror(errno=socket.EAI_MEMORY):
                return Lack.MEMORY
            case socket.gaierror():  # of a resolver without a file: no such host
                return _lack_of_files()
            case OSError() if error.errno in _OF_RESOLVERS:
                return _lack_of_files()
            case OSError() if error.errno is not None:
                return _BY_NUMBER.get(error.errno)
            case Exception():
                reason = getattr(error, "reason", None)  # urllib3 1.26 has no cause for its MaxRetryError
                reason = reason if isinstance(reason, Exception) else error.__context__  # httpcore hides its cause
                error = error.__cause__ or reason
            case _:
                return None
    return None


def _lack_of_files() -> Lack | None:
    """The lack that keeps a file from being opened now; ``None`` if one can be."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return _BY_NUMBER.get(error.errno or 0)
    return None


def raise_files(wanted: int = FILES_WANTED) -> int | None:
    """Raise this process's limit of open files as far as it may, for a command.

    It is never raised for a program that uses the library.

    Returns:
        The limit, if it is below ``wanted``; else ``None``.
    """
    if sys.platform == "win32":  # which has no such limit of sockets
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    step = 0 if soft == resource.RLIM_INFINITY else max(most - soft, 0)
    while step:  # macOS and some containers refuse what the hard limit allows: find about the largest that is accepted
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft + step, hard))
            soft += step
        step = min(step // 2, most - soft)
    return soft if 0 <= soft < wanted else None
