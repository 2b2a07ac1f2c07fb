"""The listening socket: opened here, or inherited from systemd or from the process before; and its handing on to the next one.

A socket that two processes have is closed when the last one closes it. Until then the system keeps the connections that come.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Final, NamedTuple

from paceline.core.results import QuotaError

log = logging.getLogger("paceline.gateway")

BACKLOG: Final = 1_024
"""Connections that wait to be accepted. Without files, asyncio tries so many times a second to accept one."""

FIRST_FD: Final = 3
"""The first file that systemd passes (sd_listen_fds(3), systemd 252)."""

BEFORE: Final = "PACELINE_BEFORE"
"""The variable in which a new process finds the listening socket, and the pipe to the process before it."""

READY_S: Final = 120.0
"""How long a new process may take until it serves: as long as systemd lets a service start, and a little more."""


class Inherited(NamedTuple):
    """A listening socket of another process, and the pipe that tells that process of the start; ``None`` for none."""

    listener: socket.socket
    pipe: int | None


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; connections queue from now on, also before the server runs.

    Raises:
        OSError: The address is invalid, or the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def inherit(environ: MutableMapping[str, str]) -> Inherited | None:
    """The listening socket that systemd (``LISTEN_FDS``) or the process before has opened; ``None`` for none.

    Args:
        environ: The environment; the variables are removed, because they are about this process alone.

    Raises:
        QuotaError: It is no listening TCP socket, or there are several.
    """
    before, ours = environ.pop(BEFORE, ""), environ.pop("LISTEN_PID", "") == str(os.getpid())
    count = environ.pop("LISTEN_FDS", "") if ours else ""
    environ.pop("LISTEN_FDNAMES", None)
    if before:
        number, pipe = map(int, before.split())
        os.set_inheritable(pipe, False)
        return Inherited(_listener(number), pipe)
    if not count:
        return None
    if count != "1":
        raise QuotaError(
            f"LISTEN_FDS is {count[:20]}: the gateway takes one socket, so leave one ListenStream= in its socket unit"
        )
    return Inherited(_listener(FIRST_FD), None)


def _listener(number: int) -> socket.socket:
    try:
        listener = socket.socket(fileno=number)
        listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise QuotaError(f"the inherited file {number} is no socket: {error.strerror}") from None
    if not listens or listener.family not in (socket.AF_INET, socket.AF_INET6):
        listener.close()
        raise QuotaError(
            f"the inherited socket {number} does not listen on TCP: write ListenStream=HOST:PORT in its socket unit"
        )
    listener.set_inheritable(False)
    return listener


def tell_ready(inherited: Inherited | None) -> None:
    """Tell the process before, and the service manager, that this process serves."""
    if inherited is not None and inherited.pipe is not None:
        with suppress(OSError):  # it has ended meanwhile
            os.write(inherited.pipe, b"1")
        os.close(inherited.pipe)
    notify("READY=1")


def notify(state: str) -> None:
    """Tell systemd the state of the service (sd_notify(3)), where it asks for it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if sys.platform != "win32" and address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)


class Succession:
    """Starts the next process in the place of this one: the same command, which may be a newer version.

    Args:
        listener: The socket that it inherits.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._running = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start it. When it serves, this process gets the signal SIGTERM; if it ends before, this one goes on."""
        if os.getpid() == 1:
            log.error(
                "this process is the first one of its container, which ends with it: start another container in its place"
            )
        elif not self._running.acquire(blocking=False):
            log.warning("the next process is starting already")
        else:
            threading.Thread(target=self._run, name="succession", daemon=True).start()

    def _run(self) -> None:
        ours, theirs = os.pipe()
        child = None
        try:
            child = self._child = self._start(theirs)
        except OSError as error:
            log.error("the next process cannot be started: %s", error.strerror)  # noqa: TRY400
        finally:
            os.close(theirs)
        serves = child is not None and select.select([ours], [], [], READY_S)[0] and os.read(ours, 1)
        os.close(ours)
        if serves and child is not None:
            log.warning("process %d serves in the place of this one, which ends", child.pid)
            notify(f"MAINPID={child.pid}")
            os.kill(os.getpid(), signal.SIGTERM)
            return
        if child is not None:
            child.kill()
            child.wait()
            log.error("the next process ended or hung before it could serve: this one goes on")
        self._running.release()

    def _start(self, pipe: int) -> subprocess.Popen[bytes]:
        """Start it with the listener and ``pipe``: Python opens no other file that a child inherits."""
        number = self._listener.fileno()
        environ = os.environ | {BEFORE: f"{number} {pipe}"}
        for one in (number, pipe):
            os.set_inheritable(one, True)
        try:
            return subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env=environ, close_fds=False)  # noqa: S603
        finally:
            os.set_inheritable(number, False)
