"""The listening socket: opened here, or inherited from systemd or from the process before; and its handing on to the next one.

A socket that two processes have is closed when the last one closes it. Until then the system keeps the connections that come.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from paceline.core.results import SettingsError, explaining

log = logging.getLogger("paceline.gateway")

BACKLOG: Final = 1_024
"""Connections that wait to be accepted. Without files, asyncio tries so many times a second to accept one."""

FIRST_FD: Final = 3
"""The first file that systemd passes (sd_listen_fds(3), systemd 252)."""

BEFORE: Final = "PACELINE_BEFORE"
"""The variable in which a new process finds the listening socket, and the channel to the process before it."""

READY_S: Final = 120.0
"""How long a new process may take until it serves: as long as systemd lets a service start, and a little more."""


STARTING: Final = "the next process is starting already: for later changes, send the signal again"
NOT_STARTED: Final = "the next process cannot be started: %s"
NOT_REPLACED: Final = "the next process ended or hung before it could serve: this process continues"


HELLO_S: Final = 5.0
"""How long a connection on loopback may take to say the secret that leads to the socket."""


class Inherited(NamedTuple):
    """A listening socket of another process.

    Attributes:
        listener: The socket.
        tell: Tells that process of the start; ``None`` for systemd.
        supervised: Whether that process stays, and starts the next one.
        first: Whether no other process serves before this one.
    """

    listener: socket.socket
    tell: Callable[[], object] | None = None
    supervised: bool = False
    first: bool = True


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
        SettingsError: It is no listening TCP socket, or there are several.
    """
    before, ours = environ.pop(BEFORE, ""), environ.pop("LISTEN_PID", "") == str(os.getpid())
    count = environ.pop("LISTEN_FDS", "") if ours else ""
    environ.pop("LISTEN_FDNAMES", None)
    if before:
        where, channel, supervised, first = before.split()
        if sys.platform == "win32":
            listener, tell = _shared(int(where), channel)
        else:
            listener, tell = _open(int(where), int(channel), supervised=supervised == "1")
        return Inherited(listener, tell, supervised == "1", first == "1")
    if not count:
        return None
    if count != "1":
        raise SettingsError(
            f"LISTEN_FDS is {count[:20]}: the gateway takes one socket, so leave one ListenStream= in its socket unit"
        )
    return Inherited(_listener(FIRST_FD))


def _open(number: int, channel: int, *, supervised: bool) -> tuple[socket.socket, Callable[[], object]]:
    """The listening socket that a child inherits, and what tells the process before over the channel to it."""
    listener, above = _listener(number), socket.socket(fileno=channel)
    above.set_inheritable(False)
    if supervised:
        _heed(above)
        return listener, partial(above.sendall, b"1")

    def tell() -> None:
        with above:
            above.sendall(b"1")

    return listener, tell


def _heed(above: socket.socket) -> None:
    """End when the process above ends: this one would keep the port. On Windows, the signals that it sends come here, too."""

    def wait() -> None:
        number = b""
        with above, suppress(OSError):
            number = above.recv(1)
        signal.raise_signal(number[0] if number else signal.SIGTERM)

    threading.Thread(target=wait, name="above", daemon=True).start()


if sys.platform == "win32":

    def _shared(port: int, secret: str) -> tuple[socket.socket, Callable[[], object]]:
        """The listening socket that a process shares over loopback."""
        channel = socket.create_connection(("127.0.0.1", port), READY_S)
        channel.sendall(f"{secret} {os.getpid()}\n".encode())
        with channel.makefile("rb") as file:
            listener = socket.fromshare(bytes.fromhex(file.readline().decode("ascii")))
        channel.settimeout(None)
        _heed(channel)
        return listener, partial(channel.sendall, b"1")


def _listener(number: int) -> socket.socket:
    with explaining(f"the inherited file {number} is no socket"):
        listener = socket.socket(fileno=number)
        listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if not listens or listener.family not in (socket.AF_INET, socket.AF_INET6):
        listener.close()
        raise SettingsError(
            f"the inherited socket {number} does not listen on TCP: write ListenStream=HOST:PORT in its socket unit"
        )
    listener.set_inheritable(False)
    return listener


def tell_ready(inherited: Inherited | None) -> None:
    """Tell the process before, and the service manager, that this process serves."""
    if inherited is not None and inherited.tell is not None:
        with suppress(OSError):  # it has ended meanwhile
            inherited.tell()
    notify("READY=1")


def notify(state: str) -> None:
    """Tell systemd the state of the service (sd_notify(3)), where it asks for it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if sys.platform != "win32" and address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)


class Successor:
    """A process of the same command, which may be a newer version, with the same listening socket.

    Args:
        listener: The socket.
        supervised: Whether the process that starts it stays, and starts those after it, too.
        first: Whether no other process serves before it.

    Attributes:
        process: The process.

    Raises:
        OSError: It cannot be started.
    """

    process: subprocess.Popen[bytes]
    _channel: socket.socket

    def __init__(self, listener: socket.socket, *, supervised: bool = False, first: bool = False) -> None:
        self._supervised = supervised
        if sys.platform == "win32":
            self._share(listener, first=first)
        else:
            self._start(listener, supervised=supervised, first=first)

    def serves(self) -> bool:
        """Wait until it serves; one that does not within ``READY_S`` is ended."""
        told = self._told()
        if not told:
            self.process.kill()
            self.process.wait()
        if not (told and self._supervised):  # a supervised process ends when its channel closes
            self._channel.close()
        return told

    def signal(self, number: int) -> None:
        """Send it a signal."""
        with suppress(OSError):  # it has ended
            if sys.platform == "win32":
                self._channel.sendall(bytes([number]))
            else:
                self.process.send_signal(number)

    if sys.platform == "win32":

        def _share(self, listener: socket.socket, *, first: bool) -> None:
            self._listener, self._secret = listener, secrets.token_hex()
            self._door = socket.create_server(("127.0.0.1", 0))
            self._channel = socket.socket()
            where = f"{self._door.getsockname()[1]} {self._secret}"
            self.process = subprocess.Popen(  # noqa: S603
                [sys.executable, *sys.orig_argv[1:]],
                env=os.environ | {BEFORE: f"{where} 1 {first:d}"},
                creationflags=subprocess.CREATE_NEW_PROCESS_GROUP,  # Ctrl-C goes to the one above
            )

        def _told(self) -> bool:
            end_s, told = time.monotonic() + READY_S, False
            self._door.settimeout(0.2)
            while not told and self.process.poll() is None and time.monotonic() < end_s:
                with suppress(OSError):
                    channel, _ = self._door.accept()
                    told = self._hand_over(channel)
            self._door.close()
            return told

        def _hand_over(self, channel: socket.socket) -> bool:
            """Hand the socket to who knows the secret; whether that process serves."""
            channel.settimeout(HELLO_S)
            with channel.makefile("rb") as file:
                secret, _, pid = file.readline(200).decode("latin-1").partition(" ")
            if not secrets.compare_digest(secret.encode(), self._secret.encode()):
                channel.close()
                return False
            shared = self._listener.share(int(pid))  # in a venv, this is a child of the process
            channel.sendall(shared.hex().encode() + b"\n")
            self._channel = channel
            channel.settimeout(READY_S)
            return channel.recv(1) == b"1"

    else:

        def _start(self, listener: socket.socket, *, supervised: bool, first: bool) -> None:
            self._channel, theirs = socket.socketpair()
            numbers = listener.fileno(), theirs.fileno()
            environ = os.environ | {BEFORE: f"{numbers[0]} {numbers[1]} {supervised:d} {first:d}"}
            if supervised:
                environ.pop("NOTIFY_SOCKET", None)  # the process that stays tells the manager
            for one in numbers:
                os.set_inheritable(one, True)
            try:
                self.process = subprocess.Popen(  # noqa: S603
                    [sys.executable, *sys.orig_argv[1:]],
                    env=environ,
                    close_fds=False,  # Python opens no other file that a child inherits
                    process_group=0 if supervised else None,  # a terminal sends its signals to the one above
                )
            except OSError:
                self._channel.close()
                raise
            finally:
                # A child that is started later must inherit neither, because it would keep the port.
                theirs.close()
                listener.set_inheritable(False)

        def _told(self) -> bool:
            self._channel.settimeout(READY_S)
            with suppress(OSError):
                return self._channel.recv(1) == b"1"
            return False


class Succession:
    """Starts the next process in the place of this one.

    Args:
        listener: The socket that it inherits.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._running = threading.Lock()
        self._serving: Successor | None = None  # the next process, which outlives this one

    def begin(self) -> None:
        """Start it. When it serves, this process gets the signal SIGTERM; if it ends before, this one goes on."""
        if os.getpid() == 1:
            log.error("this process is the first one of its container, which ends with it: start it with --watch")
        elif self._running.acquire(blocking=False):
            threading.Thread(target=self._run, name="succession", daemon=True).start()
        elif self._serving is not None:
            log.warning("process %d serves already: send the signal to it", self._serving.process.pid)
        else:
            log.warning(STARTING)

    def _run(self) -> None:
        try:
            successor = Successor(self._listener)
        except OSError as error:
            log.error(NOT_STARTED, error.strerror)  # noqa: TRY400
        else:
            if successor.serves():
                self._serving = successor
                log.warning("process %d serves in the place of this one, which ends", successor.process.pid)
                notify(f"MAINPID={successor.process.pid}")
                # The lock stays taken: no second process is to start beside the one that serves.
                os.kill(os.getpid(), signal.SIGTERM)
                return
            log.error(NOT_REPLACED)
        self._running.release()
