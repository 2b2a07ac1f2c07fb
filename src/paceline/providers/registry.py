"""From a host or a name to its provider. A provider's module is imported when the provider is first asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import copy
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeVar, cast

from paceline import facts
from paceline.core.hints import did_you_mean
from paceline.core.results import SettingsError, warn
from paceline.providers.base import Provider
from paceline.providers.forms import dialect


class ProviderEntry(NamedTuple):
    """The head of a provider in the data set; ``tables/providers.toml`` explains the fields."""

    key_env: str = ""  # it takes no keys, but the login of its own client
    hosts: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    api: str = ""
    encoding: str = ""
    makes: str = ""
    slashes: bool = False
    day_zone: str = "utc"
    path: str | None = "/v1"
    chat: str | None = None
    own: str = ""
    base_url_env: str = ""
    cache_s: float = 0.0
    prices: str = ""
    rootless: bool = False  # recognised by its hosts, and nothing is sent there: see facts.py


@facts.cached
def _entries() -> dict[str, ProviderEntry]:
    return {name: _entry(head) for name, head in facts.heads().items()}


def _entry(head: Mapping[str, Any]) -> ProviderEntry:
    said: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in head.items()}
    said["path"] = said.get("path", "/v1") or None
    return ProviderEntry(**{name: said[name] for name in ProviderEntry._fields if name in said})


PROVIDERS: Final = facts.Lazy(_entries)
"""The providers that are known, by name."""

_UNKNOWN: Final = ProviderEntry(slashes=True)


def head_of(name: str) -> ProviderEntry:
    """The head of the provider with this name, account aside; of one that is not known, it has OpenAI's paths, and may serve any model."""
    return PROVIDERS.get(base_of(name), _UNKNOWN)


ALIASES: Final = facts.Lazy(
    facts.cached(
        lambda: {alias: name for name, one in _entries().items() for alias in one.aliases if alias not in _entries()}
    )
)
"""Other names of providers; ``-`` and ``_`` are the same."""

GROUP: Final = "paceline.providers"
"""The entry points under which an installed package offers providers of its own."""

_METHODS = ("describe", "pool", "held", "charged", "readings", "refusal", "usage_reader", "usage")
_P = TypeVar("_P", bound=Provider)
_added: dict[str, Provider] = {}
_hosts: dict[str, str] = {}  # of those


@facts.cached
def _known_hosts() -> tuple[dict[str, str], dict[str, str]]:
    """The providers by their hosts: those that requests are sent to, and then the others."""
    found: tuple[dict[str, str], dict[str, str]] = {}, {}
    for name, entry in _entries().items():
        found[entry.rootless].update(dict.fromkeys(entry.hosts, name))
    return found


def register(provider: _P) -> _P:
    """Make ``provider`` known by its name and its hosts; it replaces a provider of the same name.

    Returns:
        The same provider.

    Raises:
        SettingsError: The name or the hosts are invalid, or a method is missing.
    """
    name, hosts = getattr(provider, "name", None), getattr(provider, "hosts", None)
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", name):
        raise SettingsError(f"invalid provider name {name!r}: use lower-case letters, digits, '-', '_' and '.'")
    if not isinstance(hosts, tuple) or not all(isinstance(host, str) and host == host.lower() for host in hosts):
        example = "give a tuple of lower-case host names, e.g. ('api.acme.example',)"
        raise SettingsError(f"invalid hosts {hosts!r} of provider {name}: {example}")
    missing = [method for method in _METHODS if not callable(getattr(provider, method, None))]
    if missing:
        raise SettingsError(
            f"provider {name} has no {', '.join(missing)}(): derive it from paceline.providers.generic.Generic"
        )
    _added[name] = provider
    _hosts.update(dict.fromkeys(hosts, name))
    return provider


def provider_named(name: str) -> Provider:
    """The provider called ``name``; for an unknown name, an OpenAI-compatible provider that carries it.

    ``openai@eu`` is OpenAI with quotas of its own: of another key, region or deployment.
    """
    clean = _canonical(name)
    return _added.get(clean) or _load(clean)


def is_provider(name: str) -> bool:
    """Whether ``name``, or the name that it is an alias of, is a known provider."""
    clean = base_of(name)
    if clean not in PROVIDERS and clean not in _added:
        _plug_in()
    return clean in PROVIDERS or clean in _added


def slip(name: str) -> str:
    """A hint if ``name`` is no known provider but nearly one; else empty."""
    if is_provider(name):
        return ""
    near = did_you_mean(base_of(name), [*PROVIDERS, *ALIASES], cutoff=0.85)
    return near and f"{name!r} is used as a provider of your own{near}"


def prefixed(name: str) -> tuple[Provider, str] | None:
    """The provider and its model in a name like ``groq/openai/gpt-oss-120b``; ``None`` if the name begins with no known provider."""
    prefix, _, model = name.partition("/")
    return (provider_named(prefix), model) if model and is_provider(prefix) else None


ROOTLESS: Final = (
    "data that you have not named sends nothing anywhere: if its hosts are in your settings, name these with --config"
)
"""Why a provider that is known by its hosts has no root, and what to do."""

CREDENTIALS: Final = {"anthropic": "x-api-key", "gemini": "x-goog-api-key", "azure": "api-key"}
"""The header of the key by API, where it is not ``authorization: Bearer KEY``."""


def api_of(name: str) -> str:
    """The provider whose API the provider with this name has; mostly itself."""
    return head_of(name).api or base_of(name)


LOGIN: Final = "sk-ant-oat"
"""The beginning of the tokens with which Claude Code sends the login to a plan (2.1.332, run 2026-11)."""


def output_limit(provider: str) -> str:
    """The field that bounds the output of a chat request in OpenAI's form, by the name of the provider.

    OpenAI's newer models refuse ``max_tokens``, and most other servers know no other name.
    """
    return "max_completion_tokens" if provider in ("openai", "azure", "groq") else "max_tokens"


def method_path(model: str, method: str = "generateContent") -> str:
    """The path of a request to ``model`` in Gemini's form."""
    from urllib.parse import quote

    return f"/v1beta/models/{quote(model, safe='')}:{method}"


def credentials(provider: Provider, path: str, key: str) -> tuple[str, str]:
    """The name and the value of the header that has the key, for a request to ``path``.

    On the paths of OpenAI's format Gemini and Anthropic take a key as OpenAI's SDK sends it (ai.google.dev/gemini-api/docs/openai,
    platform.claude.com/docs/en/cli-sdks-libraries/libraries/openai-sdk, 2026-11).
    """
    name = CREDENTIALS.get(api_of(provider.name))
    as_openai = name in ("x-goog-api-key", "x-api-key") and ("/openai/" in path or path.endswith("/chat/completions"))
    if name is None or as_openai:
        return "authorization", f"Bearer {key}"
    return name, key


def checked_key(key: str, where: str) -> str:
    """The key that ``where`` has for paceline to send.

    Raises:
        SettingsError: It is malformed, or a login to a plan; the message does not quote it.
    """
    if not (key.isascii() and key.isprintable()):
        raise SettingsError(f"invalid key in {where}: it has characters that no key has; set it again")
    if key.startswith(LOGIN):
        raise SettingsError(
            f"{where} has a login to a plan, which only its own client may send (`paceline exec --login -- claude`): set an API key"
        )
    return key


def no_keys(name: str) -> str:
    """Why paceline sends nothing of its own to a provider that takes no keys."""
    return f"{name} takes no keys, but the login of its own client, which alone can send it: `paceline exec --login -- codex`"


def base_of(name: str) -> str:
    """The provider's name without an account: ``openai`` for ``openai@eu``."""
    return _canonical(name).partition("@")[0]


def changed(provider: _P, **attributes: str) -> _P:
    """``provider`` with other attributes, e.g. a name, and so with quotas of its own."""
    other = copy(provider)
    vars(other).update(attributes)
    return other


def provider_for_host(host: str) -> Provider | None:
    """The provider at ``host`` (a port is ignored); ``None`` for an unknown host."""
    clean = host.strip().lower().rstrip(".")
    if clean.count(":") == 1:
        clean = clean.partition(":")[0]
    name = _owner(clean)
    if name is None:
        _plug_in()
        name = _owner(clean)
    return None if name is None else _at_host(cast("Any", provider_named(name)), clean)


def known_host(host: str) -> str:
    """The name of the provider that comes with paceline and is at ``host``, in lower case; empty for any other host."""
    name = _owner(host) or ""
    return name if name in PROVIDERS else ""


def is_own(provider: Provider, host: str) -> bool:
    """Whether ``host`` is the provider's by its whole name, below one, or by its region.

    A host like ``*.openai.azure.com`` is its customers': anyone may register one.
    """
    if not re.fullmatch(r"[a-z0-9.-]+", host):  # HTTP libraries disagree about "\\" and the like
        return False
    hosts = set(provider.hosts)
    below = (one.removeprefix("*.") for one in hosts if one.startswith("*."))
    return not hosts.isdisjoint(_named_for(host)) or any(one in hosts and host.endswith(f".{one}") for one in below)


@facts.cached
def _at_host(provider: Any, host: str) -> Provider:
    """The provider; where each host has limits of its own (Azure's resources, Bedrock's regions), the one for ``host``."""
    at_host: Callable[[str], Provider] = getattr(provider, "at_host", lambda _: provider)
    return at_host(host)


@facts.cached
def maker(model: str) -> str | None:
    """The provider whose own model ``model`` is by its name; ``None`` where the name does not tell it."""
    return next((name for name, entry in PROVIDERS.items() if entry.makes and re.match(entry.makes, model)), None)


@facts.cached
def _canonical(name: str) -> str:
    clean, at, account = name.strip().lower().partition("@")
    usual = clean.replace("-", "_")
    at_host = _known_hosts()[0].get(clean, clean)  # "api.openai.com" is OpenAI
    return ALIASES.get(usual, usual if usual in PROVIDERS else at_host) + at + account


def _owner(host: str) -> str | None:
    known, others = _known_hosts()
    name = _hosts.get(host) or known.get(host)
    if name is not None:  # mostly
        return name
    patterns = _named_for(host)
    while "." in host:
        host = host.partition(".")[2]
        patterns.append(f"*.{host}")
    found = (
        name for hosts in ((_hosts, known), (others,)) for one in patterns for each in hosts if (name := each.get(one))
    )
    return next(found, None)


def _named_for(host: str) -> list[str]:
    """``host``, and the patterns of it whose ``*`` is a region of the provider."""
    label, _, rest = host.partition(".")
    return [host, f"*-{label.rpartition('-')[2]}.{rest}", f"{label}.*.{rest.partition('.')[2]}"]


@cache
def _plug_in() -> None:
    """Register the providers that installed packages offer; done once, when an unknown name or host is asked for.

    A known name keeps its provider, so that a program's behaviour does not depend on when this runs.
    """
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        try:
            provider = point.load()
            provider = provider() if isinstance(provider, type) else provider
            if provider.name not in PROVIDERS and provider.name not in _added:
                register(provider)
        except Exception as error:  # noqa: BLE001  (another package's fault must not stop this program)
            warn(f"provider {point.value!r} of {GROUP!r} is left out: {error}")


@facts.cached
def _load(name: str) -> Provider:
    base, at, _ = name.partition("@")
    if at:
        provider = provider_named(base)
        return changed(provider, name=base_of(provider.name) + name.removeprefix(base))
    entry = PROVIDERS.get(name)
    if entry is None:
        from paceline.providers.generic import Generic

        _plug_in()
        return _added.get(name) or Generic(name)
    module, _, class_name = dialect(entry.api or name).get("class", "compatible:Compatible").partition(":")
    make = cast("Callable[..., Provider]", getattr(import_module(f"paceline.providers.{module}"), class_name))
    return make(name, entry.key_env, entry.hosts, entry.encoding)


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine."""
    import ipaddress

    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def locate(provider: Provider, root: str | None, environ: Mapping[str, str]) -> tuple[str, str]:
    """The base URL ``root`` and the key in ``environ``; ``none`` as the key of a server on this machine that needs none.

    Raises:
        SettingsError: The URL or the key is missing, or the key is malformed; the message does not quote the key.
    """
    from urllib.parse import urlsplit

    if not provider.key_env:
        raise SettingsError(no_keys(provider.name))
    entry = head_of(provider.name)
    own = entry.own
    if not root:
        why = f", because it is your own: give it with --base-url {own}" if own else ": give one with --base-url"
        why = f": {ROOTLESS}, or give one with --base-url" if entry.rootless else why
        raise SettingsError(f"no address is known for {provider.name}{why}")
    key = environ.get(provider.key_env, "").strip()
    if not key and not is_loopback(urlsplit(root).hostname or ""):
        is_local = is_loopback(urlsplit(own).hostname or "")
        instead = f", or give your own server with --base-url {own}" if is_local else ""
        raise SettingsError(f"no key for {provider.name}: set the environment variable {provider.key_env}{instead}")
    return root, checked_key(key, provider.key_env) or "none"
