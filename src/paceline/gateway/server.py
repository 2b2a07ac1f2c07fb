"""The server under the gateway: bounds on connections and heads, TLS, a graceful stop, several processes."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Final
from uuid import uuid4

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from paceline.config import Config
from paceline.core.results import SettingsError
from paceline.gateway.admission import Admission
from paceline.gateway.app import Gateway, GatewaySettings, nothing
from paceline.gateway.certificate import Certificate
from paceline.gateway.client import HttpClient
from paceline.gateway.connection import Headers
from paceline.gateway.errors import untold
from paceline.gateway.handover import BACKLOG, Succession
from paceline.gateway.incoming import CONNECTION
from paceline.gateway.keys import KeyFile
from paceline.gateway.signals import came_early, end_by_signals, heed, held_back
from paceline.gateway.teams import unheeded
from paceline.gateway.upstreams import Upstreams
from paceline.limiter.limiter import Limiter
from paceline.limiter.watch import StoreWatch
from paceline.pacing.events import Event
from paceline.pacing.lack import raise_files
from paceline.providers.registry import base_of, is_loopback
from paceline.providers.tables import ending
from paceline.telemetry.status_app import App

log = logging.getLogger("paceline.gateway")

HEAD_MAX: Final = 65_536
"""Bytes in the head of a request: its first line and its headers."""

HEAD_S: Final = 30.0
"""The longest time from a connection, or from the first byte of a request, to the end of the request's head."""

HEADERS_MAX: Final = 256
"""Headers of a request."""

WRITE_S: Final = 60.0
"""The longest time in which a client takes nothing of an answer with more than 64 kB ready."""

KEEP_S: Final = 75
"""How long a connection is kept that has no request."""

CONNECTIONS_MAX: Final = 20_000
"""The connections of one process. For a further one, the one ends that is without a request for longest; where all have one, it gets a
503. The limit of open files may allow fewer."""

SELECT_MAX: Final = 240 if sys.platform == "win32" else CONNECTIONS_MAX
"""The connections of a process whose socket another one has, too: Windows' ``select``, which can share one, takes 512 sockets, and
a connection may need another one to a server."""

FILES_OWN: Final = 64
"""Open files beside connections: listeners, the store, the file of keys, libraries, logs, and connections that are refused."""

FILES_FEW: Final = 4_096
"""A limit of open files that is worth a warning."""

RESOURCE: Final = "OTEL_RESOURCE_ATTRIBUTES"
INSTANCE: Final = "service.instance.id="
"""The variable of what OpenTelemetry tells of a process, and the attribute there that tells it from others of the same service."""

FIRST_S: Final = 1.0
"""How long a connection without any request is kept when the server ends."""

HUNG_S: Final = 60
"""How long one of several processes may not answer the first one before it is replaced, with all that it has in flight: on a busy
machine its start alone takes longer than the 5 s of uvicorn."""

GC_THRESHOLD: Final = 10_000, 5, 2_000
"""Of the garbage collector: whole collections as rare as in a run, in smaller steps. Thousands of requests that wait are objects that
stay, and a step over a million of them keeps all clients waiting for a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings(GatewaySettings):
    """What one process of the gateway needs; it can be pickled before it serves.

    Attributes:
        host: The address at which it listens.
        servers: The settings of the servers, where they differ from ``config``.
        drain_s: How long after SIGTERM the listener stays open, while ``/readyz`` answers 503 already.
        stop_s: How long requests may go on after that.
        logs: Begins the log of a process.
    """

    config: Config
    keys: Path
    host: str
    workers: int = 1
    certificate: Path | None = None
    private_key: Path | None = None
    store: str | None = None
    servers: Config | None = None
    drain_s: float = 0.0
    stop_s: float = 30.0
    otel: bool = False
    logs: Callable[[], None] = nothing

    def gateway(
        self, environ: Mapping[str, str] = os.environ, events: Callable[[Event], None] | None = None
    ) -> Gateway:
        """A gateway with these settings.

        Args:
            environ: Has the keys of providers.
            events: Called with each event of a permit, without ``otel``.
        """
        logging.getLogger("uvicorn.error").addFilter(_in_words)
        limiter = self._limiter(events)
        if self.otel:
            _otel().watch(limiter)
        keys = KeyFile(self.keys)
        limiter.pacer.accounts.salt = keys.salt
        limiter.pacer.accounts.names_all = limiter.pacer.pools.worker is not None
        return Gateway(
            limiter,
            self._upstreams(environ),
            HttpClient(self.config.timeout_s, ssl.create_default_context()),
            admission=Admission(keys, self.host, key_in_path=self.key_in_path),
            store=StoreWatch(limiter.pacer.pools.worker, self.config.on_store_failure),
            settings=self,
        )

    @property
    def tls(self) -> Certificate | None:
        """The certificate; ``None`` without one."""
        return None if self.certificate is None else Certificate(self.certificate, self.private_key)

    def process(self, succeed: Callable[[], None] = nothing) -> App:
        """A gateway for a process that does nothing else; ``succeed``: starts the next process in its place."""
        self.logs()
        gateway = self.gateway()
        heed(gateway.life, self.drain_s, succeed)
        gc.freeze()  # what is imported stays
        gc.set_threshold(*GC_THRESHOLD)
        return _otel().Traced(gateway) if self.otel else gateway

    def _upstreams(self, environ: Mapping[str, str]) -> Upstreams:
        return Upstreams(self.config if self.servers is None else self.servers, environ)

    def _limiter(self, events: Callable[[Event], None] | None = None) -> Limiter:
        arguments = self.config.arguments(patient=False) | {"store": self.store}
        limiter = Limiter(**arguments, events=_otel().Listener() if self.otel else events)
        limiter.pacer.pools.maker.made = end_watch()
        return limiter

    def check(self, environ: Mapping[str, str] = os.environ) -> Upstreams:
        """The servers; raises what would keep the gateway from its start.

        Raises:
            PacelineError: A setting is invalid, or clients need keys and there are none.
        """
        keys = KeyFile(self.keys)
        if not is_loopback(self.host) and not keys:
            raise SettingsError(
                f"{self.host} can be reached from other machines, so clients need keys, and {self.keys} has none: make one"
                " with `paceline keys add NAME`, or use --host 127.0.0.1"
            )
        if (certificate := self.tls) is not None:
            certificate.check()
        self._limiter().close()
        return self._upstreams(environ)

    def warn(self, upstreams: Upstreams) -> None:
        """Log what keeps the gateway not from its start, and is likely an error."""
        if upstreams.native is not None and upstreams.native.routes is not None:
            for said in dict.fromkeys(upstreams.native.routes.misspelt(self.config.limits)):
                log.warning("%s If the name is right, write its limits to [limits]", said)
        for said in unheeded(self.config.lanes, KeyFile(self.keys).all()):
            log.warning("%s", said)


def end_watch() -> Callable[[str], None]:
    """Logs once for each model of a pool that it has ended or ends soon. It is sent all the same: only the provider refuses."""
    said: set[str] = set()  # no more than there are pools

    def look(pool: str) -> None:
        provider, _, model = pool.partition("/")
        name = f"{base_of(provider)}/{model}"
        if name not in said and (ended := ending(provider, model)):
            said.add(name)
            log.warning("the model %s %s", name, ended)

    return look


class _Held:
    """In place of the transport of an answer: holds what is written until it is closed, or released by :meth:`_Protocol.hold`.

    Args:
        transport: The transport.
        headers: The headers of the answer, which is written without them: uvicorn would check each of them again.
    """

    def __init__(self, transport: asyncio.Transport, headers: Headers) -> None:
        self._transport, self._parts = transport, list[bytes]()
        self._lines = b"".join([b"%b: %b\r\n" % pair for pair in headers])

    def write(self, data: bytes) -> None:
        """Hold ``data``."""
        if not self._parts:  # the head, which ends with a blank line
            data = b"%b%b\r\n" % (data[:-2], self._lines)
        self._parts.append(data)

    def flush(self) -> None:
        """Send in one step what is held."""
        if self._parts:
            self._transport.write(b"".join(self._parts))
            self._parts.clear()

    def close(self) -> None:
        """See :class:`asyncio.Transport`."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """See :class:`asyncio.Transport`."""
        return self._transport.is_closing()


def _otel() -> ModuleType:
    try:
        from paceline.telemetry import otel
    except ImportError as error:
        raise SettingsError(str(error)) from None
    return otel


class _Protocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, with bounds on sizes and times, and the client's leave-taking for the gateway.

    A connection has a timer whenever it depends on the client: for the head of a request, for the rest of a body that
    the gateway has not waited for, for the next request, and for the taking of an answer.
    """

    task: asyncio.Task[Any] | None = None
    gone = False
    opened_s = 0.0
    _present: Any = None  # the request that is being answered
    _unread = 0  # bytes since the last head, or the last part of a body
    _late: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.most: float = self.limit_concurrency or math.inf
        self.limit_concurrency = None
        self._idle: dict[_Protocol, None] = self.config.idle  # type: ignore[attr-defined]
        if self.config.tls is not None and self.config.ssl is not None:  # type: ignore[attr-defined]
            self.config.tls.look(self.config.ssl)  # type: ignore[attr-defined]  # before its handshake

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.opened_s = time.monotonic()
        self._late = self.loop.call_later(HEAD_S, self.abort)
        if len(self.connections) > self.most:
            if untold("connections") is not None:
                log.warning("all %d connections of this process are in use: idle ones end to make room", self.most)
            if self._idle:
                next(iter(self._idle)).end_idle()
            else:
                self._refuse(503, b"retry-after: 1\r\n")
                return
        self._idle[self] = None

    def end_idle(self) -> None:
        """Close it at once: it is without a request, and another one needs its place."""
        del self._idle[self]
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self._idle.pop(self, None)
        for timer in (self._late, self._stuck):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        if self.task is not None:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        super().data_received(data)
        if self._unread > HEAD_MAX:  # a head, the trailers of a body, an extension of a chunk, or empty lines
            self._refuse(431)
        elif self._late is None and (self.cycle is None or self.cycle.response_complete):
            self._late = self.loop.call_later(HEAD_S, self.abort)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION: self}  # type: ignore[dict-item]

    def on_headers_complete(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
        large = self._unread > HEAD_MAX and len(self.url) + sum(map(len, chain(*self.headers))) > HEAD_MAX
        self._unread = 0
        if large or len(self.headers) > HEADERS_MAX:
            self._refuse(431)
            return
        if not _clear(self.headers, self.parser.get_http_version()):
            self._refuse(400)
            return
        self._idle.pop(self, None)
        super().on_headers_complete()
        self.headers = []  # for the trailers, which are dropped
        # An upgrade to another protocol is declined, and the parser reads no other request then. The next request of this
        # client goes to another process, if this one is leaving.
        if self.parser.should_upgrade() or not self.app_state[CONNECTION].life.state.ready:
            self.cycle.keep_alive = False

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._present = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self.cycle.response_complete:  # before the body had come
            if self._late is not None:
                self._late.cancel()
            self._late = self.loop.call_later(KEEP_S, self.abort)

    def on_response_complete(self) -> None:
        awaited = not self.pipeline and self.cycle.more_body and self.expect_100_continue
        super().on_response_complete()
        if self.timeout_keep_alive_task is not None and not self.transport.is_closing():  # no request came meanwhile
            self._idle[self] = None
        if awaited:  # what comes next may be the body or another request
            self.transport.close()
        if self._late is None and self.transport.is_closing():
            self._late = self.loop.call_later(WRITE_S, self.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(WRITE_S, self.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def timeout_keep_alive_handler(self) -> None:
        self.abort()  # also if the client has not taken the last answer

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        self._refuse(400)

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: the gateway answers."""

    def _refuse(self, status: int, headers: bytes = b"") -> None:
        """End the connection, with ``status`` if no answer is under way."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.abort()
        elif not self.transport.is_closing():
            line = b"HTTP/1.1 %d %s\r\n" % (status, HTTPStatus(status).phrase.encode())
            self.transport.write(line + headers + b"connection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()
            if self._late is None:
                self._late = self.loop.call_later(WRITE_S, self.abort)

    def shutdown(self) -> None:
        self.app_state[CONNECTION].drain()
        present: Any = self.cycle
        if present is None and not self.transport.is_closing():  # its first request may be on its way
            self.loop.call_later(FIRST_S, super().shutdown)
        else:
            super().shutdown()

    @property
    def answering(self) -> bool:
        """See :class:`~paceline.gateway.incoming.Connection`."""
        return self._present is not None and self._present.response_started

    def hold(self, headers: Headers) -> Callable[[], None]:
        """See :class:`~paceline.gateway.incoming.Connection`."""
        answer, held = self._present, _Held(self.transport, headers)
        answer.transport = held
        length = dict(headers).get(b"content-length")
        if length is not None:  # else uvicorn sends the body in chunks
            answer.chunked_encoding, answer.expected_content_length = False, int(length)

        def release() -> None:
            answer.transport = self.transport
            held.flush()

        return release

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def close(self) -> None:
        """Close the connection when all is sent."""
        self.transport.close()


def _clear(headers: list[tuple[bytes, bytes]], version: str) -> bool:
    """Whether a request of HTTP 1.0 or 1.1 names its host as that asks, and its body has no other encoding on the way than ``chunked``."""
    hosts, codings = 0, list[bytes]()
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding":
            codings.append(value.strip().lower())
    return version in ("1.0", "1.1") and int(version == "1.1") <= hosts <= 1 and codings in ([], [b"chunked"])


def _connections_max() -> int:
    """The connections that this process can have: each may need one to a server."""
    wanted = CONNECTIONS_MAX * 2 + FILES_OWN
    soft = raise_files(wanted)
    if soft is None:
        return CONNECTIONS_MAX
    most = max((soft - FILES_OWN) // 2, 1)
    log.log(
        logging.WARNING if soft < FILES_FEW else logging.INFO,
        "the limit of open files is %d, so that a process takes %d connections in place of %d: raise it to %d"
        " (ulimit -n, LimitNOFILE=)", soft, most, CONNECTIONS_MAX, wanted
    )  # fmt: skip
    return most


class _Config(uvicorn.Config):
    """uvicorn's settings, and the certificate.

    Attributes:
        shared: Whether other processes have its listening socket, too.
        idle: The connections without a request, the longest first.
    """

    tls: Certificate | None = None
    shared = False
    idle: dict[_Protocol, None]

    def load(self) -> None:
        """Make what the server needs in this process."""
        super().load()
        self.idle = {}
        if self.tls is not None:
            self.ssl = self.tls.context()

    @property
    def use_subprocess(self) -> bool:
        """Whether, on Windows, the event loop is the one that can share a socket: no two of the other one can."""
        return self.shared or super().use_subprocess


def server_config(settings: ProcessSettings, make: Callable[[], App] | None = None, *, shared: bool = False) -> _Config:
    """The configuration of a server, without its socket.

    Args:
        settings: Its settings.
        make: Makes its gateway, by default for a process of its own.
        shared: Whether another process has the socket, too.
    """
    config = _Config(
        make or settings.process,
        factory=True,
        workers=settings.workers,
        http=_Protocol,
        ws="none",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        log_level="error",  # its warnings are about requests of clients
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        limit_concurrency=min(_connections_max(), SELECT_MAX if shared or settings.workers > 1 else CONNECTIONS_MAX),
        timeout_keep_alive=KEEP_S,
        timeout_graceful_shutdown=round(settings.stop_s),
        timeout_worker_healthcheck=HUNG_S,
    )
    config.tls, config.shared = settings.tls, shared
    return config


def _ask_for_the_next(above: int) -> None:
    if sys.platform != "win32":
        os.kill(above, signal.SIGHUP)


def name_instance(environ: MutableMapping[str, str]) -> None:
    """Give the process that is started next an id for OpenTelemetry: without one, the metrics of each would replace the others'."""
    given = [one for one in environ.get(RESOURCE, "").split(",") if one and not one.startswith(INSTANCE)]
    environ[RESOURCE] = ",".join([*given, f"{INSTANCE}{uuid4()}"])


class _Workers(Multiprocess):
    """uvicorn's supervisor, which also starts its own successor, and says when all processes serve."""

    def __init__(
        self,
        config: uvicorn.Config,
        listener: socket.socket,
        begun: Callable[[], None],
        succeed: Callable[[], None],
        *,
        otel: bool,
    ) -> None:
        super().__init__(config, [listener])
        self._begun: Callable[[], None] | None = begun
        self._succeed, self._otel = succeed, otel

    def init_processes(self) -> None:
        for _ in range(self.processes_num):
            self._tell_apart()
            process = Process(self.config, self.sockets)
            with held_back():
                process.start()
            self.processes.append(process)
        self._hear_of_ends()
        if came_early():
            self._succeed()

    def _tell_apart(self) -> None:
        if self._otel:
            name_instance(os.environ)

    def _hear_of_ends(self) -> None:
        """Close the workers' ends of their pipes here: else this process waits for the answer of one that has ended."""
        for process in self.processes:
            process.child_conn.close()

    def handle_usr2(self) -> None:
        self._succeed()

    def handle_hup(self) -> None:  # in place of new workers with the old settings
        self._succeed()

    def terminate_all(self) -> None:
        super().terminate_all()
        for listener in self.sockets:  # else connections would come that no process accepts
            listener.close()

    def keep_subprocess_alive(self) -> None:
        self._tell_apart()
        with held_back():
            super().keep_subprocess_alive()
        self._hear_of_ends()
        if self._begun is not None and all(process.is_ready(HUNG_S) for process in self.processes):
            self._begun()
            self._begun = None


def _in_words(record: logging.LogRecord) -> bool:
    """Say of requests that outlast the end in words of the gateway what uvicorn says in its own; of none, nothing."""
    if record.getMessage().startswith("Cancel 0 running task"):
        return False
    if str(record.msg).startswith("Cancel %s running task"):
        record.msg = (
            "requests that were not finished in the time of --finish are ended, and those that wait get a 503: %s"
        )
    return True


def serve(
    settings: ProcessSettings, listener: socket.socket, begun: Callable[[], None] = nothing, above: int | None = None
) -> None:
    """Serve until a signal; then finish what is in flight.

    Args:
        settings: The settings.
        listener: The socket.
        begun: Called when all processes serve.
        above: The process that starts the next ones; ``None``: this one does.
    """
    succeed = Succession(listener).begin if above is None else partial(_ask_for_the_next, above)
    if settings.workers == 1:
        config = server_config(
            settings, partial(replace(settings, begun=begun).process, succeed), shared=above is not None
        )
        server = uvicorn.Server(config)
        end_by_signals(server)
        server.run(sockets=[listener])
        return
    with TemporaryDirectory(prefix="paceline-") as folder:  # only for this user
        settings = replace(settings, folder=Path(folder))
        _Workers(server_config(settings), listener, begun, succeed, otel=settings.otel).run()
