"""The server under the gateway: bounds on connections and heads, TLS, a graceful stop, several processes."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Final
from uuid import uuid4

import uvicorn
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from paceline.config import Config
from paceline.core.results import SettingsError
from paceline.gateway.admission import Admission
from paceline.gateway.app import Gateway
from paceline.gateway.certificate import Certificate
from paceline.gateway.client import HttpClient
from paceline.gateway.handover import BACKLOG, Succession
from paceline.gateway.keys import KeyFile
from paceline.gateway.protocol import KEEP_S, HttpProtocol
from paceline.gateway.settings import GatewaySettings, nothing
from paceline.gateway.signals import came_early, end_by_signals, end_with_parent, heed, held_back
from paceline.gateway.teams import unheeded
from paceline.gateway.upstreams import Upstreams
from paceline.limiter.limiter import Limiter
from paceline.pacing.events import Event
from paceline.pacing.lack import raise_files
from paceline.providers.registry import base_of, is_loopback
from paceline.providers.tables import ending
from paceline.telemetry.status_app import App

log = logging.getLogger("paceline.gateway")

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
        late: What the log says of the number of requests that go on for longer.
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
    late: str = "requests that were not finished in the time of --finish are ended, and those that wait get a 503: %s"
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
        logging.getLogger("uvicorn.error").addFilter(_in_words(self.late))
        limiter = self._limiter(events)
        if self.otel:
            _otel().watch(limiter)
        keys = KeyFile(self.keys)
        limiter.pacer.accounts.salt = keys.salt
        limiter.pacer.accounts.names_all = limiter.pacer.pools.worker is not None
        client = HttpClient(self.config.timeout_s, ssl.create_default_context())
        admission = Admission(keys, self.host, key_in_path=self.key_in_path)
        return Gateway(limiter, self._upstreams(environ), client, admission, self)

    @property
    def tls(self) -> Certificate | None:
        """The certificate; ``None`` without one."""
        return None if self.certificate is None else Certificate(self.certificate, self.private_key)

    def process(self, succeed: Callable[[], None] = nothing) -> App:
        """A gateway for a process that does nothing else; ``succeed``: starts the next process in its place."""
        self.logs()
        gateway = self.gateway()
        heed(gateway.life, self.drain_s, succeed)
        end_with_parent()
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

    def warn(self) -> None:
        """Log what keeps the gateway not from its start, and is likely an error."""
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


def _otel() -> ModuleType:
    try:
        from paceline.telemetry import otel
    except ImportError as error:
        raise SettingsError(str(error)) from None
    return otel


def _connections_max() -> int:
    """The connections that this process can have: each may need one to a server."""
    wanted = CONNECTIONS_MAX * 2 + FILES_OWN
    soft = raise_files(wanted)
    if soft is None:
        return CONNECTIONS_MAX
    most = max((soft - FILES_OWN) // 2, 1)
    log.log(
        logging.WARNING if soft < FILES_FEW else logging.INFO,
        "the limit of open files is %d, so that a process takes %d connections instead of %d: raise it to %d"
        " (ulimit -n, LimitNOFILE=)", soft, most, CONNECTIONS_MAX, wanted
    )  # fmt: skip
    return most


class _Config(uvicorn.Config):
    """uvicorn's settings, and the certificate.

    Attributes:
        shared: Whether other processes have its listening socket, too.
        connections_max: How many connections a process may have.
        idle: The connections without a request, the longest first.
    """

    tls: Certificate | None = None
    shared = False
    connections_max: int
    idle: dict[HttpProtocol, None]

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
        http=HttpProtocol,
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
        timeout_keep_alive=KEEP_S,
        timeout_graceful_shutdown=round(settings.stop_s),
        timeout_worker_healthcheck=HUNG_S,
    )
    config.tls, config.shared = settings.tls, shared
    config.connections_max = min(_connections_max(), SELECT_MAX if shared or settings.workers > 1 else CONNECTIONS_MAX)
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
        self, settings: ProcessSettings, listener: socket.socket, begun: Callable[[], None], succeed: Callable[[], None]
    ) -> None:
        super().__init__(server_config(settings), [listener])
        self._begun: Callable[[], None] | None = begun
        self._succeed, self._otel = succeed, settings.otel

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

    handle_hup = handle_usr2  # in place of new workers with the old settings

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


def _in_words(late: str) -> Callable[[logging.LogRecord], bool]:
    """Say of requests that outlast the end ``late``, in place of what uvicorn says of them in its own words; of none, nothing."""
    ended = False

    def say(record: logging.LogRecord) -> bool:
        nonlocal ended
        if record.getMessage().startswith("Cancel 0 running task"):
            return False
        if str(record.msg).startswith("Cancel %s running task"):
            record.msg, ended = late, True
        # Said again of each of them.
        return not (ended and record.getMessage().startswith("ASGI callable returned without completing"))

    return say


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
        make = partial(replace(settings, begun=begun).process, succeed)
        config = server_config(settings, make, shared=above is not None)
        server = uvicorn.Server(config)
        end_by_signals(server)
        server.run(sockets=[listener])
        return
    with TemporaryDirectory(prefix="paceline-") as folder:  # only for this user
        settings = replace(settings, folder=Path(folder))
        _Workers(settings, listener, begun, succeed).run()
