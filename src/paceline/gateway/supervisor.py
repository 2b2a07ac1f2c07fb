"""A process that keeps the listening socket and lets another one serve, which it replaces when the file of the settings changes."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Final

from paceline.config import Config
from paceline.core.results import PacelineError
from paceline.gateway.handover import NOT_REPLACED, NOT_STARTED, STARTING, Successor, notify
from paceline.gateway.signals import SUCCEED
from paceline.gateway.stamps import LOOK_S, stamp
from paceline.pacing.inbox import Inbox

log = logging.getLogger("paceline.gateway")

ENDS: Final = ("SIGTERM", "SIGINT")
"""The signals that end it, with all of its processes."""


class SettingsFile:
    """Looks for changes of the settings.

    Args:
        file: The file.
        load: Reads the settings.

    Raises:
        PacelineError: They are invalid.
    """

    def __init__(self, file: Path, load: Callable[[], Config]) -> None:
        self._file, self._load = file, load
        self._seen = self._last = stamp(file)
        self._config = load()

    def look(self) -> bool:
        """Whether they are others than the last time.

        The file must be the same at two looks: a program may write it in several steps.

        Raises:
            PacelineError: The settings are invalid now; those before hold.
        """
        before, self._last = self._last, stamp(self._file)
        if self._last == self._seen or self._last != before:
            return False
        self._seen = self._last
        earlier, self._config = self._config, self._load()
        return self._config != earlier


class Supervisor:
    """Starts processes that serve, one after the other. It may be the first process of a container, which ends with it.

    Args:
        listener: The socket.
        settings: The file of the settings; ``None`` without one.
        start: Starts a process; other ones are for tests.
    """

    def __init__(
        self, listener: socket.socket, settings: SettingsFile | None, start: Callable[..., Successor] = Successor
    ) -> None:
        self._start = partial(start, listener, supervised=True)
        self._settings = settings
        self._events: Inbox[Callable[[], None]] = Inbox()  # its put() may be called in a signal handler
        self._alive: set[Successor] = set()
        self._serving: Successor | None = None
        self._next: Successor | None = None
        self._ends = False
        self._code = 0

    def run(self) -> int:
        """Run until the process that serves has ended; returns its exit code.

        Raises:
            OSError: The first process cannot be started.
        """
        for name in ENDS:
            self._on(name, partial(self._end, getattr(signal, name)))
        for name in SUCCEED:  # one that came before needs nothing: the first process reads the settings after this
            self._on(name, self._replace)
        self._serving = self._follow(self._start(first=True))
        while self._alive:
            try:
                event = self._events.get(LOOK_S)  # a signal that comes just before a wait ends none
            except Empty:
                event = self._look
            event()
        return self._code

    def _on(self, name: str, event: Callable[[], None]) -> None:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda *_: self._events.put(event))

    def _follow(self, one: Successor) -> Successor:
        """Learn when a process serves, and when it ends."""

        def wait() -> None:
            if one.serves():
                self._events.put(partial(self._began, one))
            self._events.put(partial(self._ended, one, one.process.wait()))

        self._alive.add(one)
        threading.Thread(target=wait, name="supervisor", daemon=True).start()
        return one

    def _look(self) -> None:
        """Replace the process that serves if the settings have changed."""
        if self._settings is None or self._next is not None or self._ends:  # a change meanwhile is seen later
            return
        try:
            changed = self._settings.look()
        except PacelineError as error:
            log.error("the settings cannot be used, and the earlier settings stay in effect: %s", error)  # noqa: TRY400
        else:
            if changed:
                log.warning("the settings have changed, and the next process reads them")
                self._replace()

    def _replace(self) -> None:
        if self._ends:
            return
        if self._next is not None:
            log.warning(STARTING)
            return
        try:
            self._next = self._follow(self._start(first=False))
        except OSError as error:
            log.error(NOT_STARTED, error.strerror)  # noqa: TRY400

    def _began(self, one: Successor) -> None:
        """A process serves: the one before ends."""
        if self._ends:  # it may have lost the signal while it started
            one.signal(signal.SIGTERM)
            return
        if one is not self._next:
            notify("READY=1")
            return
        before, self._serving, self._next = self._serving, one, None
        assert before is not None
        log.warning("process %d serves in the place of process %d, which ends", one.process.pid, before.process.pid)
        before.signal(signal.SIGTERM)

    def _ended(self, one: Successor, code: int) -> None:
        self._alive.discard(one)
        if one is self._next:
            self._next = None
            if not self._ends:
                log.error(NOT_REPLACED)
        elif one is self._serving:
            self._code = code if code >= 0 else 128 - code
            self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        """End all processes."""
        self._ends = True
        for one in self._alive:
            one.signal(number)
