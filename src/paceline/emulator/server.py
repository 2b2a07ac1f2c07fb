"""Start and stop the emulator: in a thread for tests, in its own process for load."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from paceline.emulator.app import TRANSPORT, App
from paceline.emulator.scenario import load
from paceline.emulator.settings import LimitsLike, Settings, SettingsError, by_pool

BACKLOG = 4_096
"""The most connections that wait to be accepted (the system may allow fewer: ``net.core.somaxconn``)."""


class _Protocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, with the connection in the scope so that the application can break it."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {TRANSPORT: self.transport}  # type: ignore[dict-item]


def make_server(app: App) -> uvicorn.Server:
    """A uvicorn server without log output, which stops without waiting for answers in progress."""
    config = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=0,
    )
    return uvicorn.Server(config)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; connections queue from now on, also before the server runs.

    Raises:
        OSError: The port is taken.
    """
    return socket.create_server((host, port), backlog=BACKLOG)


class Emulator:
    """A running emulated provider, as a context manager (``with`` or ``async with``).

        with Emulator(limits={"gpt-6-luna": "500 requests/min,400k tokens/min"}) as emulator:
            client = openai.AsyncOpenAI(base_url=f"{emulator.base_url}/v1", api_key="any")

    Args:
        limits: See :class:`Settings`, which documents the other keywords too.
        scenario: A shipped scenario's name, or a TOML file's path; the other arguments override it.
        process: Run it in its own process, so that it does not share this interpreter's lock.
        host: The address to listen on.
        port: The port to listen on; 0 for any free one.
        state: A file for the used amount of every quota: read at the start if it exists, written by :meth:`stop`.
            Limits and requests in flight are not in it.
        **settings: The other :class:`Settings`.

    Raises:
        SettingsError: A setting is wrong.
    """

    def __init__(
        self,
        limits: LimitsLike | None = None,
        *,
        scenario: str | None = None,
        process: bool = False,
        host: str = "127.0.0.1",
        port: int = 0,
        state: str | Path | None = None,
        **settings: Any,
    ) -> None:
        if scenario is not None:
            settings = load(scenario).settings | settings
        if limits is not None:
            settings["limits"] = limits
        self.settings = Settings.of(settings)
        self._process, self._address = process, (host, port)
        self._state = None if state is None else Path(state)
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        """The server's root, e.g. ``http://127.0.0.1:8080``; all dialects' paths work below it."""
        host, port = self._address
        return f"http://{host}:{port}"

    def start(self) -> Self:
        """Listen, and return once requests can be sent.

        Raises:
            OSError: The port is taken.
            RuntimeError: The process did not start.
        """
        if self._process:
            self._start_process()
        else:
            listener = listen(*self._address)
            self._address = listener.getsockname()[:2]
            self._server = make_server(App(self.settings))
            sockets = {"sockets": [listener]}
            self._thread = threading.Thread(target=self._server.run, kwargs=sockets, name="emulator", daemon=True)
            self._thread.start()
        try:
            self.tally()  # queued by the socket until the server runs
            if self._state is not None and self._state.exists():
                self._call("POST", "/emulator/state", _read(self._state))
        except BaseException:
            self.stop()
            raise
        return self

    def _start_process(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "paceline.emulator.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # a terminal's Ctrl-C is the parent's: the child ends when its stdin closes
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with suppress(BrokenPipeError):
            self._child.stdin.write(json.dumps([*self._address, self.settings.values()]).encode() + b"\n")
            self._child.stdin.flush()  # it stays open: the child ends when it closes
        with self._child.stdout as out:
            line = out.readline()
        if not line:
            self._end_child()
            raise RuntimeError("the process of the emulator has not started: its error is above")
        port, number, why = json.loads(line)
        if not port:
            self._end_child()
            raise OSError(number, why)
        self._address = self._address[0], port

    def _end_child(self) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):
            self._child.stdin.close()
        try:
            self._child.wait(5)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child = None

    def stop(self) -> None:
        """Stop at once; a second call does nothing."""
        if self._state is not None and (self._server is not None or self._child is not None):
            with suppress(OSError):  # the server has ended
                state = json.dumps(self._call("GET", "/emulator/state"))
                self._state.write_text(state, encoding="ascii")
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
            self._server = self._thread = None
        if self._child is not None:
            self._end_child()

    def tally(self) -> dict[str, Any]:
        """The counts since the start or the last reset; see :meth:`World.tally`."""
        return self._call("GET", "/emulator/tally")

    def reset(self, **settings: Any) -> None:
        """Start again with full quotas and an empty tally, and with some settings changed.

        Raises:
            SettingsError: A setting is wrong.
        """
        self._call("POST", "/emulator/reset", settings)

    def advance(self, seconds: float) -> None:
        """Move the provider's clock forward: batches proceed and quotas refill as if the time had passed.

        Raises:
            SettingsError: ``seconds`` is negative, or more than three years.
        """
        self._call("POST", "/emulator/advance", {"seconds": seconds})

    def set_limits(self, limits: LimitsLike) -> None:
        """Change limits in mid-run; used amounts remain.

        Raises:
            SettingsError: A limit is invalid.
        """
        self._call("POST", "/emulator/limits", dict(by_pool(limits)))

    def _call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        connection = http.client.HTTPConnection(*self._address, timeout=30)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            value: dict[str, Any] = json.loads(response.read())
        finally:
            connection.close()
        if response.status == 400:
            raise SettingsError(value["error"])
        return value

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(self, *_: object) -> None:
        self.stop()


def _read(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_bytes()))
    except (TypeError, ValueError):
        raise SettingsError(f"{file}: it is not a state that an emulator has written: remove the file") from None


def serve_process() -> None:
    """Serve in this process: the address and the settings come on stdin, and the port or an error goes to stdout. Ends when stdin closes."""
    line = sys.stdin.buffer.readline()
    if not line:  # the parent has ended already
        return
    host, port, values = json.loads(line)
    server = make_server(App(Settings.of(values)))
    try:
        listener = listen(host, port)
    except OSError as error:
        _tell(None, error.errno, error.strerror)
        return
    _tell(listener.getsockname()[1], 0, "")

    def end_with_parent() -> None:
        sys.stdin.buffer.read()  # returns when the parent closes it, or ends
        server.should_exit = True

    threading.Thread(target=end_with_parent, daemon=True).start()
    server.run(sockets=[listener])


def _tell(*values: int | str | None) -> None:
    """Tell the parent ``values``, as a line of JSON; a parent that has ended reads nothing, and this process ends, too."""
    with suppress(OSError):
        os.write(sys.stdout.fileno(), json.dumps(values).encode() + b"\n")


if __name__ == "__main__":
    serve_process()
