"""``paceline serve``: a reverse proxy that keeps what passes at the pace of the limits."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from socket import gethostname, socket
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from paceline.cli import options
from paceline.cli.guides import Helped
from paceline.core.quota import USD
from paceline.core.results import SettingsError, StoreError, explaining
from paceline.pacing.settings import parsed
from paceline.providers.registry import base_of
from paceline.stores import NO_STORE
from paceline.telemetry.logs import JsonFormatter

if TYPE_CHECKING:
    from paceline.config import Config
    from paceline.gateway.server import ProcessSettings
    from paceline.gateway.supervisor import SettingsFile

OF_PROCESS = "workers", "certificate", "private_key", "access_log", "drain_s", "stop_s", "otel"
"""The options that :class:`~paceline.gateway.server.ProcessSettings` has by the same name."""

ALL_HOSTS = ("0.0.0.0", "[::]")  # noqa: S104  (compared)

EPILOG = """Point a client at the gateway instead of its provider: OPENAI_BASE_URL=http://127.0.0.1:8080/openai/v1,
ANTHROPIC_BASE_URL=http://127.0.0.1:8080/anthropic. The gateway reads the providers' keys from their usual variables (OPENAI_API_KEY, or OPENAI_API_KEY_FILE for
a file). If a variable is not set, the gateway passes on the client's key. After SIGTERM or Ctrl-C it finishes the requests in flight."""


@click.command(cls=Helped, epilog=EPILOG)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen at. If other machines can reach it, clients need keys.",
)
@options.PORT
@click.option("--provider", help="The provider of paths without a name, such as /v1/messages.")
@options.BASE_URL
@options.TIER
@options.limits
@options.CONFIG
@click.option(
    "--timeout",
    "timeout_s",
    type=float,
    help="The longest time between two parts of a response, in seconds. [default: 600]",
)
@options.STORE
@options.ON_STORE_FAILURE
@click.option("--workers", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes that serve.")
@click.option("--watch", is_flag=True, help="When the settings change, start a new process with them.")
@click.option("--keys", type=options.FILE, help="The file of client keys. [default: the file of `paceline keys`]")
@click.option("--tls-cert", "certificate", type=options.FOUND, help="Serve HTTPS with this certificate.")
@click.option("--tls-key", "private_key", type=options.FOUND, help="The private key of the certificate.")
@click.option("--access-log", type=options.FILE, help="Append one JSON line per request to this file.")
@options.number(
    "--drain",
    "drain_s",
    between=(0, 3_600),
    default=1.0,
    about="Seconds after SIGTERM while /readyz answers 503 and the gateway still accepts requests.",
)
@options.number(
    "--finish",
    "stop_s",
    between=(1, 86_400),
    default=30.0,
    about="Seconds after the drain until requests in flight are cut off.",
)
@click.option("--log-level", type=click.Choice(["info", "warning", "error"]), default="warning", show_default=True)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--otel", is_flag=True, help="Send spans and metrics through OpenTelemetry's global providers.")
@click.option("--demo", is_flag=True, help="Use emulated providers instead of real ones, and send them some traffic.")
def command(*, host: str, port: int, watch: bool, keys: Path | None, demo: bool, **given: Any) -> None:
    """Serve the APIs of all providers at one address.

    Every request waits in its queue until the limits allow it.
    """
    from paceline.config import Config, find_file
    from paceline.gateway.handover import inherit, listen, tell_ready
    from paceline.gateway.keys import keys_file
    from paceline.gateway.server import ProcessSettings, serve

    file, process = given.pop("file"), options.taken(given, *OF_PROCESS)
    logs = partial(_log, **options.taken(given, "log_format", "log_level"))
    logs()
    with ExitStack() as stack:
        try:
            inherited = inherit(os.environ)
            if inherited is not None:
                host, port = inherited.listener.getsockname()[:2]
            if demo:
                from paceline.demo.traffic import emulated

                given |= stack.enter_context(emulated())
                keys = Path(stack.enter_context(TemporaryDirectory())) / "keys.json"  # there are none
            found, supervised = find_file(file), inherited is not None and inherited.supervised
            load = partial(Config.load, found, given=given, named=file is not None)
            watched = _watched(found, load, demo=demo) if watch and not supervised else None
            config = load()
            keys = keys or keys_file(os.environ)
            settings = ProcessSettings(
                config=config,
                store=_store(config, keys, process["workers"]),
                keys=keys,
                host=host,
                takes_over=inherited is not None and not inherited.first,
                logs=logs,
                **process,
            )
            upstreams = settings.check()
            _try_to_write(settings.access_log)
            listener = listen(host, port) if inherited is None else inherited.listener
        except OSError as error:
            raise SettingsError(options.cannot_listen(host, port, error)) from None
        if watched is not None:
            from paceline.gateway.supervisor import Supervisor

            sys.exit(Supervisor(listener, watched).run())
        address = _address(settings, listener)
        settings.warn()
        for line in _greeting(address, settings, upstreams):
            click.echo(line)
        if demo:
            from paceline.demo.traffic import start

            start(address)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):  # uvicorn repeats the signal that has ended it
            above = os.getppid() if supervised else None
            serve(settings, listener, partial(tell_ready, inherited), above)


def _watched(file: Path | None, load: Callable[[], Config], *, demo: bool) -> SettingsFile:
    """The file of the settings that is watched."""
    from paceline.gateway.supervisor import SettingsFile

    if file is None or demo:
        raise SettingsError("--watch needs a file of settings, and none for --demo: name one with --config")
    return SettingsFile(file, load)


def _store(config: Config, keys: Path, workers: int) -> str | None:
    """The store of the settings; by default a file, where processes share quotas or money is limited."""
    if config.store == NO_STORE and workers > 1:
        raise StoreError(f"store memory: is no store, and {workers} workers must share one: leave it out")
    if config.store is None and (workers > 1 or _has_budget(config, keys)):
        from paceline.batch.job import state_file

        return f"sqlite:{state_file(os.environ).expanduser().with_name('gateway.db')}"
    return config.store


def _has_budget(config: Config, keys: Path) -> bool:
    """Whether money is limited: what is spent must not be forgotten when the process ends."""
    from paceline.gateway.keys import KeyFile

    given = [*(lane.limits for lane in config.lanes.values()), *(list(key.limits) for key in KeyFile(keys).all())]
    return bool(config.budget) or any(quota.unit == USD for limits in given if limits for quota in parsed(limits))


def _address(settings: ProcessSettings, listener: socket) -> str:
    """Where the gateway listens."""
    shown = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.certificate else 'http'}://{shown}:{listener.getsockname()[1]}"


def _try_to_write(file: Path | None) -> None:
    """Refuse a file of the access log that cannot be written."""
    from paceline.gateway.access import AccessLog

    if file is not None:
        with explaining(f"--access-log {file}", ": name a file that this user may write"):
            AccessLog(file).close()


def _log(*, log_format: str, log_level: str) -> None:
    """Log to standard error, once in each process."""
    plain = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else plain)
    logging.basicConfig(handlers=[handler], level=log_level.upper())
    log = logging.getLogger("paceline")
    warnings.showwarning = lambda message, *_, **__: log.warning("%s", message)  # without a place in the source


def client_address(address: str) -> str:
    """The address for clients: one that listens at all addresses of a machine has none that a client could ask."""
    scheme, _, rest = address.partition("://")
    host, colon, port = rest.rpartition(":")
    return f"{scheme}://{gethostname()}{colon}{port}" if host in ALL_HOSTS else address


def _greeting(address: str, settings: ProcessSettings, upstreams: Any) -> Iterator[str]:
    """The address, the servers, and the names of those that have a key."""
    from paceline.gateway.keys import KeyFile

    own = [name for name, one in upstreams.servers.items() if one.key]
    listens, address = address, client_address(address)
    yield f"paceline gateway at {listens}  (page: {address}/)"
    native = upstreams.native
    if native is not None and not native.routes and base_of(native.members[0].provider.name) == "anthropic":
        yield f"instead of the provider's address: ANTHROPIC_BASE_URL={address}"
    else:
        base = "/v1" if native is not None else "/openai/v1"
        yield f"instead of the provider's address: OPENAI_BASE_URL={address}{base}"
    none = "none, so that the clients' keys are passed on"
    if KeyFile(settings.keys):
        first = next(iter(upstreams.servers.values()))
        none = f"none, and the keys of clients are not theirs: every request is refused; set {first.provider.key_env}"
    yield f"keys of providers: {', '.join(own) or none}"
    if settings.store not in (None, NO_STORE):
        yield f"quotas in {settings.store}"
