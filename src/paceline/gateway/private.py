"""A gateway for one program: on loopback, with a key of its own, and the variables that lead the program to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import uvicorn

from paceline.config import Config
from paceline.config.schema import parse_base_url
from paceline.config.servers import ENVIRONMENT, FILE, NO_KEY, server
from paceline.core.results import SettingsError, explaining
from paceline.gateway.handover import listen
from paceline.gateway.keys import KeyFile
from paceline.gateway.server import ProcessSettings, server_config
from paceline.gateway.upstreams import Upstreams
from paceline.pacing.events import Event
from paceline.providers.registry import PROVIDERS, base_of, is_loopback, provider_for_host, provider_named
from paceline.providers.roots import host_root
from paceline.responses.values import table_beside

Tables = dict[str, dict[str, Any]]
"""Servers by name, as ``[upstreams]`` has them."""

HOST: Final = "127.0.0.1"

STOP_S: Final = 10.0
"""The longest time that the end of a gateway may take whose program has ended."""

ADDRESS, KEY = "PACELINE_GATEWAY", "PACELINE_KEY"
"""The variables with the gateway's own address and key, for programs that have other names for them."""


@dataclass(frozen=True, slots=True)
class Names:
    """The variables in which programs find a provider.

    Attributes:
        addresses: Its address, and what follows the server's own in it; of several that are set the first one holds.
        keys: Its keys; of several that are set the first one is sent to the provider.
    """

    addresses: Mapping[str, str]
    keys: Sequence[str]


_TABLE: Final = table_beside(__file__, "programs")

NAMES: Final = {provider: Names(**row) for provider, row in _TABLE["names"].items()}
"""By provider."""

DAY_MS: Final = "86400000"

PATIENCE: Final = dict.fromkeys(
    ("API_TIMEOUT_MS", "CLAUDE_STREAM_IDLE_TIMEOUT_MS", "CLAUDE_BYTE_STREAM_IDLE_TIMEOUT_MS"), DAY_MS
)
"""Claude Code gives up a request that waits for some minutes, also while its stream is kept alive, unless these say otherwise
(2.1.332 and 2.1.197: tests/frameworks/patience.py measures it)."""


@dataclass(frozen=True, slots=True)
class Login:
    """A client that has the login to a plan, and sends it if no key is set.

    Attributes:
        provider: The provider of the plan.
        path: Its place below the provider's address.
        terms: The provider's page on who may send such a login.
        keys: The variables of keys, which the client would send in place of the login.
        address: The variable with its address; empty: it takes one by its options alone.
    """

    provider: str
    path: str
    terms: str
    keys: Sequence[str]
    address: str = ""


LOGINS: Final = {program: Login(**row) for program, row in _TABLE["logins"].items()}
"""By the name of the program. Any other one may start Claude Code."""


@dataclass(slots=True)
class GatewayWay:
    """How the requests of a program get to its gateway, and from there to the servers.

    Attributes:
        servers: The settings with all servers.
        real: The environment of the gateway, with the keys of the servers.
        paths: By variable, what follows the gateway's address.
        keys: The variables that get the gateway's key.
        stated: Those that get a value of their own, such as ``NO_KEY``.
        with_login: The variables of addresses at which the program sends its own login. The gateway's key is in the path there.
        placed: The path of a program that takes its address by its options, and sends its own login there; empty for no such program.
        told: What the user is told before the program starts.
    """

    servers: Config
    real: dict[str, str]
    paths: dict[str, str] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    stated: dict[str, str] = field(default_factory=dict)
    with_login: frozenset[str] = frozenset()
    placed: str = ""
    told: tuple[str, ...] = ()

    def options(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """What is to stand before the program's own arguments, which come after it and outrank it.

        Args:
            environ: What :meth:`environ` has returned. Who sees the key in the list of processes gets no other one by it: behind such a
                gateway there is none.
        """
        if not self.placed:
            return ()
        settings = {
            "name": '"paced"',
            "base_url": f'"{environ[ADDRESS]}/{environ[KEY]}{self.placed}"',
            "wire_api": '"responses"',
            "requires_openai_auth": "true",
            "stream_idle_timeout_ms": DAY_MS,
        }
        table = ", ".join(f"{name}={value}" for name, value in settings.items())
        return "-c", "model_provider=paced", "-c", f"model_providers.paced={{{table}}}"

    def environ(self, address: str, key: str) -> dict[str, str]:
        """The variables of the program that are not as they were."""
        changed = {ADDRESS: address, KEY: key} | {
            name: f"{address}/{key}{path}" if name in self.with_login else address + path
            for name, path in self.paths.items()
        }
        changed |= dict.fromkeys(self.keys, key) | self.stated
        if "ANTHROPIC_BASE_URL" in self.paths:
            changed |= {name: value for name, value in PATIENCE.items() if name not in self.real}
        names = {name.lower() for name, value in self.real.items() if value}
        if names & {"http_proxy", "https_proxy", "all_proxy"}:  # which knows no address of this machine
            before = self.real.get("no_proxy") or self.real.get("NO_PROXY")
            changed |= dict.fromkeys(("NO_PROXY", "no_proxy"), ",".join(filter(None, (before, HOST))))
        return changed


_PLANS: Final = frozenset(one.provider for one in LOGINS.values() if one.address)
"""The providers whose address a client with the login to a plan reads."""


def find_way(config: Config, environ: Mapping[str, str], program: str = "") -> GatewayWay:
    """The servers of the settings, and those that a program finds by its environment.

    Args:
        config: The settings.
        environ: The environment.
        program: The name of the program.

    Raises:
        SettingsError: A setting or an address is invalid.
    """
    tables: Tables = {name: {} for name in config.upstreams}
    if config.base_url and config.provider and not tables:
        tables[base_of(config.provider)] = {"base_url": config.base_url}
    way = GatewayWay(_with(config, tables), dict(environ))
    _lead(way, config, tables, _declared(way, config, tables), environ)
    for name, entry in PROVIDERS.items():
        if name not in tables and name not in NAMES and environ.get(entry.key_env) and host_root(provider_named(name)):
            tables[name] = {}  # for programs that find it by ADDRESS
    way.servers = _with(config, tables)
    # Claude Code asks whether to use a key that it has not seen, each time.
    if program == "claude" and "ANTHROPIC_API_KEY" in way.keys:
        way.keys[way.keys.index("ANTHROPIC_API_KEY")] = "ANTHROPIC_AUTH_TOKEN"
        way.stated["ANTHROPIC_API_KEY"] = ""
    return way


def _declared(way: GatewayWay, config: Config, tables: Mapping[str, Any]) -> dict[str, str]:
    """The servers of the settings that programs find by variables, by the names of these; the keys of all go to ``way``."""
    environ = dict(way.real)
    for name in tables:
        one = server(way.servers, name, environ)
        if not one.key and is_loopback(urlsplit(one.root).hostname or ""):
            way.real[one.key_env] = NO_KEY
        elif config.upstreams.get(name, {}).get("key_env"):
            way.keys.append(one.key_env)  # which the program does not need
    named = {name: name for name in tables if name in NAMES}
    if tables and (native := Upstreams(way.servers, way.real).native) is not None:
        base = base_of(native.members[0].provider.name)
        named.setdefault(base if base in NAMES else "openai", native.name)
    return named


def _lead(
    way: GatewayWay, config: Config, tables: Tables, named: Mapping[str, str], environ: Mapping[str, str]
) -> None:
    """Lead programs to the servers that are ``named``, and to those that the environment names, which join ``tables``."""
    for name, names in NAMES.items():
        paths = names.addresses
        if name not in named:
            found = _server_of(name, names, config.provider, way.real)
            if found is None:
                continue
            tables[name], paths = found
        way.paths |= {address: f"/{named.get(name, name)}{path}" for address, path in paths.items()}
        if "provider" in tables.get(name, {}) and "key_env" not in tables[name]:
            way.with_login |= paths.keys()
            if name not in _PLANS:  # most SDKs don't start without a key
                way.stated[PROVIDERS[name].key_env] = NO_KEY
                continue
            variable = next(one for one in names.addresses if environ.get(one))
            root = tables[name]["base_url"]
            way.told += (
                f"no key is set, so the program's own login, if it has one, goes to {root}, which {variable} names; `--login` paces a plan",
            )
            continue
        way.keys += {one for one in names.keys if environ.get(one)} or [PROVIDERS[name].key_env]


def find_login(config: Config, environ: Mapping[str, str], program: str = "") -> GatewayWay:
    """The way of a program's own login to its provider, and to no other server.

    Args:
        config: The settings.
        environ: The environment.
        program: The name of the program.

    Raises:
        SettingsError: A key is set, which the program would send instead, or the login would go to a server of others.
    """
    client = program if program in LOGINS else "claude"
    login = LOGINS[client]
    keys = (name for key in login.keys for name in (key, key + FILE))
    if key := next((name for name in keys if environ.get(name, "").strip()), ""):
        raise SettingsError(
            f"--login: {key} is set, and {client} sends that key instead of its login: unset it, or leave out --login"
        )
    url = _home_of(login, config, environ)
    root = f"{url.scheme}://{url.netloc}"
    tables = {login.provider: {"base_url": root, "provider": login.provider}}
    only = replace(config, upstreams=tables, groups={}, models={}, provider=None, base_url=None)
    way = GatewayWay(only, dict(environ))
    place = f"/{login.provider}{url.path.rstrip('/') or ''}"
    if login.address:
        way.paths = {login.address: place}
        way.with_login = frozenset(way.paths)
    else:
        way.placed = place + login.path
    led = (
        f"{client}'s own login goes to {url.hostname} as {client} sends it"
        if program in LOGINS
        else f"programs that read {login.address} are paced, and their own login goes to {url.hostname} as they send it"
    )
    way.told = (f"{led}; whether your plan allows this, its provider says: {login.terms}",)
    return way


def _home_of(login: Login, config: Config, environ: Mapping[str, str]) -> SplitResult:
    """The server that a login goes to: its provider's, or one on this machine."""
    home = host_root(provider_named(login.provider)) or ""
    given = environ.get(login.address, "").strip() if login.address else ""
    where = login.address if given else f"upstreams.{login.provider}.base_url"
    with explaining(f"invalid {where}", of=ValueError):
        url = urlsplit(parse_base_url(given or config.upstreams.get(login.provider, {}).get("base_url") or home))
    if f"{url.scheme}://{url.netloc}" != home and not is_loopback(url.hostname or ""):
        raise SettingsError(
            f"--login: {where} names {url.hostname}, and a login goes only to {home} or to a server on this machine"
        )
    return url


def _with(config: Config, tables: Mapping[str, Any]) -> Config:
    """Settings with the servers in ``tables``, and no other one."""
    return replace(config.having({"upstreams": tables}, ENVIRONMENT), provider=None) if tables else config


def _server_of(
    name: str, names: Names, provider: str | None, real: Mapping[str, str]
) -> tuple[dict[str, str], Mapping[str, str]] | None:
    """The server that an environment names under ``names``, and what follows it in each address; ``None`` for none.

    A server on this machine needs no key: what a program sends by itself goes to it then, be it a login, or a key in its code.
    """
    given = {one for one, value in real.items() if value.strip()}
    variable = next((one for one in names.keys if {one, one + FILE} & given), "")
    address = next((one for one in names.addresses if one in given), "")
    if not address:
        usual = host_root(provider_named(name))
        return ({"key_env": variable}, names.addresses) if variable and usual else None
    with explaining(f"invalid {address}", of=ValueError):
        parse_base_url(real[address])
    url = urlsplit(real[address].strip())
    host = url.hostname or ""
    if not variable and not is_loopback(host):
        return None
    path, usual_path = url.path.rstrip("/"), names.addresses[address]
    paths = {
        other: path if end == usual_path else path.removesuffix(usual_path) + end
        for other, end in names.addresses.items()
    }
    table = {"base_url": f"{url.scheme}://{url.netloc}", "provider": _kind_at(host, name, provider)}
    return table | ({"key_env": variable} if variable else {}), paths


def _kind_at(host: str, name: str, provider: str | None) -> str:
    """The provider whose API the server at ``host`` has that is named as ``name``."""
    if (at_host := provider_for_host(host)) is not None:
        return base_of(at_host.name)
    return provider if provider and name == "openai" else name


@contextmanager
def private_gateway(
    settings: ProcessSettings, way: GatewayWay, events: Callable[[Event], None]
) -> Iterator[dict[str, str]]:
    """Run a gateway in a thread of this process; yields the variables for the program.

    Args:
        settings: Its settings; the file of keys is made.
        way: What :func:`find_way` found.
        events: Called with each event of a permit.

    Raises:
        PacelineError: A setting is invalid, or there is no port.
    """
    # It may do what the program could do with the real one.
    key = KeyFile(settings.keys).add("exec", may_read=True, may_resume=True, endpoints=("/*",))
    settings = replace(
        settings,
        servers=way.servers,
        tallies=False,
        stop_s=1,  # its program has ended
        late="the command has ended, and requests of processes that it left behind are cut off: %s",
        names_account=True,  # OPENAI_ORG_ID
        key_in_path=bool(way.with_login or way.placed),  # a login of the program has the header
        tells_quotas=False,  # promptfoo 0.121 takes an answer after which nothing is left for a refusal, and pays again
    )
    settings.check(way.real)
    with explaining(f"the gateway cannot listen on {HOST}"):
        listener = listen(HOST, 0)  # connections queue from here on
    running = uvicorn.Server(server_config(settings, partial(settings.gateway, way.real, events)))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True, name="paceline-gateway")
    thread.start()
    try:
        yield way.environ(f"http://{HOST}:{listener.getsockname()[1]}", key)
    finally:
        running.should_exit = True
        thread.join(STOP_S)
        listener.close()
