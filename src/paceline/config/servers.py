"""The servers of the settings and of the environment, each with its key, and the groups of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from paceline.config import ENV_PREFIX, Config
from paceline.config.schema import parse_base_url
from paceline.core.hints import did_you_mean
from paceline.core.results import SettingsError, explaining
from paceline.facts import text_in
from paceline.pacing.clock import SYSTEM_CLOCK, Clock
from paceline.pacing.group import Choice
from paceline.providers import registry
from paceline.providers.base import Provider
from paceline.providers.roots import host_root, usual_root, without_version


def root_named(provider: Provider, environ: Mapping[str, str]) -> tuple[str | None, str]:
    """The server that the environment names for ``provider``, as its SDK finds it, and the variable; ``None`` for none.

    Raises:
        SettingsError: The variable is malformed; the message does not quote it, because it may hold a password.
    """
    variable = registry.head_of(provider.name).base_url_env
    named = environ.get(variable, "").strip() if variable else ""
    if not named:
        return None, ""
    with explaining(f"invalid {variable}", of=ValueError):
        return parse_base_url(named), variable


def root_of(provider: Provider, base_url: str | None, environ: Mapping[str, str]) -> tuple[str | None, str]:
    """The server of ``provider``, and the variable that names it; no variable for ``base_url`` and the usual server.

    Raises:
        SettingsError: The variable is malformed.
    """
    named, variable = (None, "") if base_url else root_named(provider, environ)
    return base_url or named or usual_root(provider), variable


@dataclass(frozen=True, slots=True)
class ProviderAddress:
    """Where a provider's requests go, and with which headers and key."""

    root: str
    headers: Mapping[str, str] = field(repr=False)
    key: str = field(repr=False)
    provider: Provider

    def headers_for(self, path: str) -> dict[str, str]:
        """The headers of a request to a URL with this ``path``, with the key."""
        return {**self.headers, **dict([registry.credentials(self.provider, path, self.key)])}

    @property
    def account(self) -> str:
        """The name of the account; see :func:`account`."""
        return account(self.root, self.key)


def address_of(provider: Provider, base_url: str | None, environ: Mapping[str, str]) -> ProviderAddress:
    """Where the requests of ``provider`` go, with its usual headers.

    Raises:
        SettingsError: The server's root or the key is missing, or one of them is malformed.
    """
    return address_at(provider, *registry.locate(provider, root_of(provider, base_url, environ)[0], environ))


def address_at(provider: Provider, root: str, key: str) -> ProviderAddress:
    """Where the requests of ``provider`` go, with its usual headers."""
    headers = {"content-type": "application/json", "accept": "application/json", "user-agent": "paceline"}
    if registry.base_of(provider.name) == "anthropic":
        headers |= {"anthropic-version": "2023-06-01"}
    return ProviderAddress(root, headers, key, provider)


def account(root: str, key: str) -> str:
    """A name for the account of ``key`` at the server ``root`` that does not reveal the key."""
    return f"{urlsplit(root).netloc.lower()}:{sha256(key.encode()).hexdigest()[:12]}"


def provider_of(config: Config) -> str | None:
    """The provider whose API every request uses; ``None``: by the format of each request."""
    if config.provider:
        return registry.provider_named(config.provider).name
    provider = registry.provider_for_host(urlsplit(config.base_url).hostname or "") if config.base_url else None
    return provider.name if provider else None


UPSTREAMS, BASE_URL, ARGUMENTS, ENVIRONMENT = "upstreams", "base_url", "command line", "the environment"
"""Names of settings, and of the places of those that a command was given, or its program finds."""


class UnnamedError(SettingsError):
    """A file that was found leads a key where only a named one may."""


FILE: Final = "_FILE"
"""What follows the name of a variable with a key in the name of the one with its file, as images of containers have it."""

NO_KEY: Final = "none"
"""What a server gets that asks for no key, which ``key_env = ""`` says: SDKs and groups want one."""


def read_key(file: Path) -> str:
    """The key in a file.

    Raises:
        SettingsError: The file cannot be read, or has no key; the message does not quote it.
    """
    key = text_in(file).strip()
    if not key:
        raise SettingsError(f"{file}: it is empty: write the key into it")
    return registry.checked_key(key, str(file))


def key_in(environ: Mapping[str, str], variable: str) -> tuple[str, Path | None]:
    """The key that the environment has in ``variable``, or in the file that ``variable`` with ``_FILE`` names, and that file.

    Raises:
        SettingsError: Both are set, or the key is malformed.
    """
    if not variable:
        return "", None
    key, named = (environ.get(name, "").strip() for name in (variable, variable + FILE))
    if key and named:
        raise SettingsError(f"{variable} and {variable}{FILE} are both set: leave one of them out")
    return _key_of(Path(named)) if named else (registry.checked_key(key, variable), None)


def _key_of(file: Path) -> tuple[str, Path | None]:
    file = file.expanduser()
    return read_key(file), file


@dataclass(frozen=True, slots=True)
class Server:
    """A server with an API of a provider.

    Attributes:
        name: Its name in the settings.
        provider: The provider whose API it has. A member of a group has quotas of its own, as ``provider@name``.
        base_url: Its scheme, host and port, and the path above all of its paths, without a slash at the end.
        key_env: The environment variable of its key.
        key: Its key; empty for none.
        models: Its names of models, by those that requests have.
        key_file: The file of its key; ``None`` if it is in the environment.
    """

    name: str
    provider: Provider
    base_url: str
    key_env: str
    key: str = field(default="", repr=False)
    models: Mapping[str, str] = field(default_factory=dict)
    key_file: Path | None = None

    @property
    def root(self) -> str:
        """The same without ``/v1``, which the paths of requests have."""
        return without_version(self.base_url)

    def renamed(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The body of a request with this server's name of the model."""
        name = self.models.get(str(body.get("model")))
        return body if name is None else {**body, "model": name}

    def model(self, path: str, body: Mapping[str, Any]) -> str | None:
        """The model of a request as its pool here is called; ``None`` for a request that costs nothing."""
        call = self.provider.describe(path, self.renamed(body))
        return call.model if call is not None else None


@dataclass(frozen=True, slots=True)
class ServerGroup:
    """Several servers for the same requests."""

    name: str
    members: Mapping[str, Server]
    options: Mapping[str, Any]

    @property
    def servers(self) -> tuple[Server, ...]:
        """The members."""
        return tuple(self.members.values())

    def choice(self, clock: Clock = SYSTEM_CLOCK, *, by_cache: bool = True) -> Choice:
        """Chooses among the members, for all requests of a process."""
        return Choice(self.members, clock, by_cache=by_cache, **self.options)


def server(config: Config, name: str, environ: Mapping[str, str]) -> Server:
    """The server ``name`` of ``config``; one that is not set is the server of the provider with this name.

    Raises:
        SettingsError: It has no address, or its key is missing or malformed, or may not go there.
    """
    table = config.upstreams.get(name, {})
    named = registry.provider_named(table.get("provider", name))
    home = registry.provider_named(config.provider).name if config.provider else None
    base_url = table.get("base_url") or (config.base_url if name == home else None) or host_root(named)
    if base_url is None:
        why = f" ({registry.ROOTLESS})" if registry.head_of(named.name).rootless else ""
        raise SettingsError(f"upstreams.{name}: {named.name} has no usual address: give its base_url{why}")
    variable = table.get("key_env", named.key_env)
    key, file = _server_key(name, table, named, environ)
    at_host = registry.provider_for_host(urlsplit(base_url).hostname or "")
    if key and variable:
        _check_named(config, name, base_url, named)
    provider = at_host if at_host is not None and at_host.name == named.name else named
    is_member = any(name in one.get("members", ()) for one in config.groups.values())
    if is_member and name != registry.base_of(provider.name):
        provider = registry.changed(provider, name=f"{registry.base_of(provider.name)}@{name}")
    return Server(name, provider, base_url, variable, key, table.get("models", {}), file)


def check_address(config: Config) -> None:
    """Look where ``base_url`` leads keys.

    Raises:
        UnnamedError: It stands in a file that was found, and is neither https at a host of the provider alone, nor this machine.
    """
    if config.base_url:
        _check_named(config, "", config.base_url, registry.provider_named(provider_of(config) or "openai"))


def _server_key(
    name: str, table: Mapping[str, Any], named: Provider, environ: Mapping[str, str]
) -> tuple[str, Path | None]:
    """The key of a server, and the file that it was in."""
    if not named.key_env and ("key_env" in table or "key_file" in table):
        raise SettingsError(f"upstreams.{name}: {registry.no_keys(named.name)}")
    if "key_file" in table:
        if "key_env" in table:
            raise SettingsError(f"upstreams.{name}: key_env and key_file are both set: leave one of them out")
        return _key_of(Path(table["key_file"]))
    variable = table.get("key_env", named.key_env)
    if not variable and named.key_env:
        return NO_KEY, None
    key, file = key_in(environ, variable)
    if not key and "key_env" in table:
        raise SettingsError(f"upstreams.{name}: the environment variable {variable} is not set, nor {variable}{FILE}")
    return key, file


def _check_named(config: Config, name: str, base_url: str, provider: Provider) -> None:
    """A key goes to an address in a file only if it is the provider's own, or this machine, or the user has named the file.

    Raises:
        UnnamedError: The file was found, and names another address.
    """
    key = (UPSTREAMS, name, BASE_URL) if config.upstreams.get(name, {}).get(BASE_URL) else (BASE_URL,)
    origin, url = config.origins.get(key, ""), urlsplit(base_url)
    host = url.hostname or ""
    named = config.trusted or origin.startswith((ENV_PREFIX, ARGUMENTS, ENVIRONMENT))
    why = "" if named or registry.is_loopback(host) else _why_foreign(provider, host, url.scheme, url.netloc)
    if why:
        file = re.sub(r":\d+$", "", origin)
        raise UnnamedError(
            f"{origin}: {'.'.join(key)}: a key would go to {host}, {why}, by a file that you have not named:"
            f" look at it, then name it with --config {file}"
        )


def _why_foreign(provider: Provider, host: str, scheme: str, netloc: str) -> str:
    """Why an address is not one where the provider alone reads keys; empty if it is."""
    rootless, at_host = registry.head_of(provider.name).rootless, registry.provider_for_host(host)
    if rootless or not registry.is_own(provider, host):
        at_home = at_host is not None and registry.base_of(at_host.name) == registry.base_of(provider.name)
        theirs = at_home and not rootless
        return f"which any customer of {provider.name} may have" if theirs else f"which is no host of {provider.name}"
    if scheme != "https":
        return "in clear text: write https"
    return "" if netloc.lower() in (host, f"{host}:443") else f"at a port that is not the one of {provider.name}"


def group(config: Config, name: str, environ: Mapping[str, str]) -> ServerGroup:
    """The group ``name`` of ``config``.

    Raises:
        SettingsError: There is no such group, a member of it is no server of the settings, or an option of it is invalid.
    """
    if name not in config.groups:
        known = ", ".join(config.groups) or "none is set"
        raise SettingsError(f"no group {name!r}{did_you_mean(name, config.groups) or f'; known: {known}'}")
    options = dict(config.groups[name])
    members = options.pop("members", [])
    if name in config.upstreams:
        raise SettingsError(f"groups.{name}: a server in [upstreams] has this name, too: rename one")
    for member in members:
        if member not in config.upstreams:
            hint = did_you_mean(member, config.upstreams) or f": add it, e.g. {member} = {{ base_url = ... }}"
            raise SettingsError(f"groups.{name}: {member!r} is no server in [upstreams]{hint}")
    made = ServerGroup(name, {member: server(config, member, environ) for member in members}, options)
    for member, one in made.members.items():
        if not one.provider.key_env:
            raise SettingsError(
                f"groups.{name}: {member!r} cannot be a member: {registry.no_keys(registry.base_of(one.provider.name))}"
            )
    with explaining(f"groups.{name}", of=SettingsError):
        made.choice()
    return made
