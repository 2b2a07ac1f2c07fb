"""The servers to which the gateway sends, by the first part of a path: ``/openai/v1/chat/completions``."""

from __future__ import annotations

import logging
import posixpath
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Final
from urllib.parse import unquote, unquote_plus, urlsplit
from urllib.request import getproxies, proxy_bypass

from paceline.config import Config
from paceline.config.schema import TARGETS_MAX, by_pattern
from paceline.config.servers import ServerGroup, group, read_key, server
from paceline.core.hints import did_you_mean
from paceline.core.results import SettingsError
from paceline.gateway.stamps import Watched
from paceline.http.account import KEY_PARAMETER, parameter_of
from paceline.pacing.group import Choice
from paceline.providers.base import Provider
from paceline.providers.registry import ALIASES, CREDENTIALS, PROVIDERS, base_of, credentials, provider_named
from paceline.providers.roots import host_root, joined, versioned

log = logging.getLogger("paceline.gateway")

LITELLM_KEY: Final = b"x-litellm-api-key"
"""The header of a client's key at a litellm proxy (docs.litellm.ai, 2026-11), which no server gets from here."""

KEY_HEADERS: Final = (b"authorization", *(name.encode() for name in CREDENTIALS.values()), LITELLM_KEY)
"""The headers in which a client sends its key."""

JUDGED_HEADERS: Final = frozenset({
    b"x-http-method", b"x-http-method-override", b"x-method-override", b"x-original-method", b"x-rewrite-method",
    b"x-original-url", b"x-rewrite-url",
})  # fmt: skip
"""The headers by which frameworks take another method or path than the request's, which the gateway has judged."""

ACCOUNT: Final = frozenset({
    b"openai-organization", b"openai-project", b"anthropic-organization-id", b"anthropic-workspace-id", b"x-goog-user-project",
    b"x-dashscope-workspace", b"x-hf-bill-to", b"x-databricks-org-id", b"x-amz-security-token",
})  # fmt: skip
"""The headers that name the account or the project that pays (documentation of the providers, 2026-11)."""

OF_CLIENT: Final = ACCOUNT | {*KEY_HEADERS, b"cookie"}
"""The headers of a client that do not go with the gateway's own key."""

OF_SERVER: Final = ACCOUNT | {b"set-cookie", b"set-cookie2"}
"""The headers of an answer that are about the account of the gateway's own key."""

_TRICKS: Final = re.compile(r"[\\;]|%2[ef]|%5c", re.IGNORECASE)
"""What is no part of a path of any provider."""

_HEADERS: Final = {"ANTHROPIC_AUTH_TOKEN": ("authorization", "Bearer "), "ANTHROPIC_API_KEY": ("x-api-key", "")}
"""The header of a key, and what precedes it there, by its variable: servers of others with Anthropic's API ask for either
(anthropic for Python 2.11, whose ``auth_token`` and ``api_key`` they are)."""

_UNVERSIONED: Final = ("messages", "models")
"""The first parts of Anthropic's paths behind ``/v1``, which Vercel's SDK expects in ``ANTHROPIC_BASE_URL`` (@ai-sdk/anthropic 3.0)."""


class Secret:
    """The key of a server, which is read again when its file changes.

    Args:
        key: The key; empty for none.
        file: Its file; ``None`` for none.
    """

    __slots__ = ("_file", "_key", "_refused", "_watched")

    def __init__(self, key: str = "", file: Path | None = None) -> None:
        self._key, self._file = key, file
        self._refused = ""  # the key that a server refused last
        if file is not None:
            self._watched = Watched("the earlier key stays in use", file, looked_s=time.monotonic())

    def key(self) -> str:
        """The key now. One that cannot be read leaves the one before, and is logged once."""
        if self._file is not None:
            self._watched.look(partial(self._read, self._file))
        return self._key

    def refused(self, key: str, server: str, variable: str) -> None:
        """Log, once for each key, that the server of this name has answered 401 to ``key``."""
        if key != self._refused:
            self._refused = key
            if place := self._file or variable:
                why = f"refuses the key of {place} (401)", "write a key that is valid there"
            else:  # ``key_env = ""``
                why = "wants a key (401), and has none in the settings", "name the variable of its key, key_env"
            log.warning("%s %s, and clients get paceline_upstream_key: %s", server, *why)

    def _read(self, file: Path) -> None:
        key = read_key(file)
        if key != self._key:
            self._key = key
            log.warning("%s has another key, which is sent from now on", file)


@dataclass(frozen=True, slots=True)
class Upstream:
    """A server to which the gateway sends.

    Attributes:
        name: The first part of its paths in the gateway.
        provider: The provider whose API it has.
        root: Its scheme, host and port, and the path above all of its paths, without a slash at the end.
        secret: The key that the gateway sends.
        key_env: The variable of the key.
        proxy: The URL of the proxy on the way, from the usual variables (``HTTPS_PROXY``, ``NO_PROXY``).
        models: Its names of models, by those that requests have.
    """

    name: str
    provider: Provider
    root: str
    secret: Secret = field(default_factory=Secret, repr=False)
    proxy: str | None = field(default=None, repr=False)
    models: Mapping[str, str] = field(default_factory=dict)
    key_env: str = ""

    @property
    def host(self) -> str:
        """The host, without a port."""
        return urlsplit(self.root).hostname or ""

    @property
    def key(self) -> str:
        """The key that the gateway sends; empty: the client's key is passed on."""
        return self.secret.key()

    @property
    def is_home(self) -> bool:
        """Whether it is the provider's own server, which asks for a key."""
        return self.root == host_root(self.provider)

    def credentials(self, path: str, key: str) -> tuple[bytes, bytes]:
        """The header that has ``key``."""
        header = None if self.key_env == self.provider.key_env else _HEADERS.get(self.key_env)
        name, value = credentials(self.provider, path, key) if header is None else (header[0], header[1] + key)
        return name.encode(), value.encode()


@dataclass(frozen=True, slots=True)
class Destination:
    """Where requests go: a server, or the members of a group: ``choice`` chooses one for each request.

    By the name of a model, which ``routes`` knows, the request goes on to another one. That has the name, and the setting that has led
    there, as ``asked`` and ``target``.
    """

    name: str
    members: tuple[Upstream, ...]
    choice: Choice | None = None
    asked: str = ""
    target: str = ""
    routes: Routes | None = None

    @property
    def reads_names(self) -> bool:
        """Whether the names in a body decide on what is sent."""
        return self.choice is not None or any(one.models for one in self.members)


class Routes:
    """The places of each name.

    Args:
        models: The targets of each name, ``SERVER/MODEL``. A name and its targets can have one ``*``, which stands for the same text.
        places: The servers and groups by name.

    Raises:
        SettingsError: A target is no server with a model, or there are too many.
    """

    def __init__(self, models: Mapping[str, Sequence[str]], places: Mapping[str, Destination]) -> None:
        self._places = places
        self._exact: dict[str, tuple[Destination, ...]] = {}
        self._patterns = {name: targets for name, targets in models.items() if "*" in name}
        for name, targets in models.items():
            self._check(name, targets)
            if "*" not in name:
                self._exact[name] = tuple(self._place(name, target) for target in targets)
        servers = {target.partition("/")[0] for targets in models.values() for target in targets}
        self._named = [places[name] for name in servers]

    def _check(self, name: str, targets: Sequence[str]) -> None:
        if not 0 < len(targets) <= TARGETS_MAX:
            raise SettingsError(f"models.{name}: it has {len(targets)} targets: give 1 to {TARGETS_MAX}")
        if name.count("*") > 1 or any(one.count("*") > name.count("*") for one in targets):
            raise SettingsError(f"models.{name}: a name can have one '*', and a target one only if its name has it")
        for place, target in enumerate(targets):
            server, slash, model = target.partition("/")
            if target in targets[:place]:
                raise SettingsError(f"models.{name}: {target!r} is named twice: keep one")
            if server not in self._places:
                hint = did_you_mean(server, self._places) or f"; known: {', '.join(self._places)}"
                raise SettingsError(f"models.{name}: {target!r}: {server!r} is no server or group{hint}")
            if not slash or not model:
                raise SettingsError(f"models.{name}: {target!r} has no model: write {server}/MODEL")

    def __iter__(self) -> Iterator[str]:
        """The names without a ``*``."""
        return iter(self._exact)

    def find(self, name: str) -> tuple[Destination, ...]:
        """The places of ``name``, in their order; none for an unknown one."""
        if name in self._exact:
            return self._exact[name]
        _, targets = by_pattern(name, self._patterns)
        return tuple(self._place(name, target) for target in dict.fromkeys(targets))

    def _place(self, name: str, target: str) -> Destination:
        """A server or a group that has ``name`` for the model of ``target``."""
        server, _, model = target.partition("/")
        place = self._places[server]
        members = tuple(replace(one, models={name: one.models.get(model, model)}) for one in place.members)
        return replace(place, members=members, asked=name, target=target)

    def speaks(self, path: str) -> bool:
        """Whether a server has a metered call at ``path``, decoded."""
        return any(place.members[0].provider.describe(path, {}) is not None for place in self._named)


class Upstreams:
    """The servers of a gateway by name, and the groups of them.

    They are taken from the setting ``upstreams``; without it, every provider whose server has one usual address.

    Args:
        config: The settings.
        environ: Holds the keys.

    Attributes:
        servers: The servers by name.
        native: The place for paths that begin with no name, such as ``/v1/messages``: a server or a group, or none itself where the names of
            models lead to one; ``None`` for none.

    Raises:
        SettingsError: A server has no address, its key is malformed, or a group is invalid.
    """

    def __init__(self, config: Config, environ: Mapping[str, str]) -> None:
        self.servers = {one.name: one for one in _configured(config, environ)}
        self._places = {name: Destination(name, (one,)) for name, one in self.servers.items()}
        self._places |= {name: self._place(group(config, name, environ)) for name in config.groups}
        names = [provider_named(config.provider).name] if config.provider else list(config.upstreams)
        if len(names) > 1 and len(config.groups) == 1:
            names = list(config.groups)
        self.native = self._places[names[0]] if len(names) == 1 else None
        if config.models:
            self.native = Destination("", (), routes=Routes(config.models, self._places))

    def _place(self, of: ServerGroup) -> Destination:
        return Destination(of.name, tuple(self.servers[name] for name in of.members), of.choice())

    def find(self, path: str) -> tuple[Destination, str] | None:
        """The place for the undecoded ``path``, and the path there; ``None`` for an unknown one."""
        name, slash, rest = path[1:].partition("/")
        place = self._places.get(name) or self._places.get(ALIASES.get(name.replace("-", "_"), ""))
        if place is not None:
            if rest.partition("/")[0] in _UNVERSIONED and base_of(place.members[0].provider.name) == "anthropic":
                rest = f"v1/{rest}"
            return place, slash + rest
        return None if self.native is None else (self.native, path)

    def hint(self, path: str) -> str:
        """What would be right in place of the unknown ``path``."""
        name = path[1:].partition("/")[0][:100]
        return did_you_mean(name, self._places) or f": begin the path with one of {', '.join(self._places)}"


def _configured(config: Config, environ: Mapping[str, str]) -> Iterable[Upstream]:
    names = dict.fromkeys(config.upstreams)
    if config.provider:
        names.setdefault(provider_named(config.provider).name)
    if not config.upstreams:
        names |= dict.fromkeys(name for name in PROVIDERS if host_root(provider_named(name)))
    proxies = getproxies()
    for name in names:
        one = server(config, name, environ)
        secret, proxy = Secret(one.key, one.key_file), _proxy(one.root, proxies)
        yield Upstream(one.name, one.provider, one.root, secret, proxy, one.models, one.key_env)


def path_at(upstream: Upstream, path: str) -> str:
    """The path of the one address, with ``/v1`` or without, as a server has it: Groq has OpenAI's paths behind ``/openai/v1``."""
    return joined(upstream.root, versioned(path)).removeprefix(upstream.root)


def _proxy(root: str, proxies: Mapping[str, str]) -> str | None:
    parts = urlsplit(root)
    proxy = proxies.get(parts.scheme)
    return None if proxy is None or proxy_bypass(parts.hostname or "") else proxy


@lru_cache(maxsize=64)
def is_plain(path: str) -> bool:
    """Whether an undecoded path names what it seems to name, also decoded twice.

    It has no ``..``, no empty part, no backslash and no ``;``, behind which some servers look for no ``..``.
    """
    try:
        decoded = unquote(unquote(path, errors="strict"), errors="strict")
    except ValueError:  # other encodings of a dot
        return False
    return (
        path.startswith("/")
        and decoded.isprintable()
        and not _TRICKS.search(decoded)
        and posixpath.normpath(decoded) == (decoded.rstrip("/") or "/")
    )


def without_key(query: str, given: str) -> str:
    """A query without the key of a client, which sent ``given``; the rest is as it was."""
    parts = query.split("&")
    kept = [
        part for part in parts if parameter_of(part) != KEY_PARAMETER and not (given and given in unquote_plus(part))
    ]
    return "&".join(kept)
