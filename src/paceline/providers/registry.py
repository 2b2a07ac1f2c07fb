"""From a host or a name to a provider's page. A page is imported when it is first asked for."""

from __future__ import annotations

import re
import warnings
from collections import ChainMap
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeVar, cast

from paceline.core.results import PacelineWarning, QuotaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from paceline.providers.base import Provider

PAGES: Final = {
    "openai": "paceline.providers.openai:OpenAI",
    "anthropic": "paceline.providers.anthropic:Anthropic",
    "gemini": "paceline.providers.gemini:Gemini",
    "vertex": "paceline.providers.vertex:Vertex",
    "azure": "paceline.providers.azure:Azure",
    "groq": "paceline.providers.groq:Groq",
    "mistral": "paceline.providers.mistral:Mistral",
    "cohere": "paceline.providers.cohere:Cohere",
    "xai": "paceline.providers.xai:XAI",
    "deepseek": "paceline.providers.deepseek:DeepSeek",
    "together": "paceline.providers.together:Together",
    "fireworks": "paceline.providers.fireworks:Fireworks",
    "openrouter": "paceline.providers.openrouter:OpenRouter",
    "cerebras": "paceline.providers.cerebras:Cerebras",
    "perplexity": "paceline.providers.perplexity:Perplexity",
    "bedrock": "paceline.providers.bedrock:Bedrock",
}
"""Provider names to the class that is their page."""

ALIASES: Final = {
    "claude": "anthropic",
    "google": "gemini",
    "vertex_ai": "vertex",
    "azure_openai": "azure",
    "grok": "xai",
}
"""Other names that people use."""

HOSTS: Final = {
    "api.openai.com": "openai",
    "us.api.openai.com": "openai",
    "eu.api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "gemini",
    "aiplatform.googleapis.com": "vertex",
    "*-aiplatform.googleapis.com": "vertex",
    "*.openai.azure.com": "azure",
    "*.cognitiveservices.azure.com": "azure",
    "*.services.ai.azure.com": "azure",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral",
    "codestral.mistral.ai": "mistral",
    "api.cohere.com": "cohere",
    "api.cohere.ai": "cohere",
    "api.x.ai": "xai",
    "api.deepseek.com": "deepseek",
    "api.together.ai": "together",
    "api.together.xyz": "together",
    "api.fireworks.ai": "fireworks",
    "openrouter.ai": "openrouter",
    "api.cerebras.ai": "cerebras",
    "api.perplexity.ai": "perplexity",
    "bedrock-runtime.*.amazonaws.com": "bedrock",
}
"""Hosts to provider names, so that no page is imported to find out; a leading ``*.`` matches any subdomain, and
``*-`` any beginning of the first label, and ``.*.`` any second label."""


GROUP: Final = "paceline.providers"
"""The entry points under which an installed package offers pages of its own."""

_METHODS = ("describe", "pool", "held", "charged", "readings", "refusal", "usage_reader", "usage")
_P = TypeVar("_P", bound="Provider")
_added: dict[str, Provider] = {}
_hosts: ChainMap[str, str] = ChainMap({}, HOSTS)


def register(provider: _P) -> _P:
    """Let ``provider`` be found by its name and its hosts; a page of the same name gives way to it.

    Returns:
        The same provider.

    Raises:
        QuotaError: Its name, its hosts or a method is missing; the message says which.
    """
    name, hosts = getattr(provider, "name", None), getattr(provider, "hosts", None)
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", name):
        raise QuotaError(f"a provider's name is {name!r}: use lower-case letters, digits, '-', '_' and '.'")
    if not isinstance(hosts, tuple) or not all(isinstance(host, str) and host == host.lower() for host in hosts):
        raise QuotaError(
            f"hosts of {name}: {hosts!r}: give a tuple of lower-case host names, e.g. ('api.acme.example',)"
        )
    missing = [method for method in _METHODS if not callable(getattr(provider, method, None))]
    if missing:
        raise QuotaError(
            f"provider {name} has no {', '.join(missing)}(): start from paceline.providers.generic.Generic"
        )
    _added[name] = provider
    _hosts.maps[0].update(dict.fromkeys(hosts, name))
    return provider


def provider_named(name: str) -> Provider:
    """The page of the provider called ``name``, or of an OpenAI-compatible one that carries the name."""
    clean = name.strip().lower()
    clean = ALIASES.get(clean, clean)
    return _added.get(clean) or _load(clean)


def is_provider(name: str) -> bool:
    """Whether ``name`` (or the alias that it is) has a page of its own."""
    clean = name.strip().lower()
    clean = ALIASES.get(clean, clean)
    if clean not in PAGES and clean not in _added:
        _plug_in()
    return clean in PAGES or clean in _added


def provider_for_host(host: str) -> Provider | None:
    """The page for the traffic to ``host`` (a port is ignored); ``None`` for a host that nobody knows."""
    clean = host.strip().lower().rstrip(".")
    if clean.count(":") == 1:
        clean = clean.partition(":")[0]
    name = _owner(clean)
    if name is None:
        _plug_in()
        name = _owner(clean)
    if name is None:
        return None
    page = provider_named(name)
    # Where every customer has a host and limits of its own (Azure), the page is told which one.
    at_host: Callable[[str], Provider] | None = getattr(page, "at_host", None)
    return at_host(clean) if at_host else page


def _owner(host: str) -> str | None:
    """The name of the provider whose hosts ``host`` is one of."""
    label, _, rest = host.partition(".")
    name = _hosts.get(host) or _hosts.get(f"*-{label.rpartition('-')[2]}.{rest}")
    name = name or _hosts.get(f"{label}.*.{rest.partition('.')[2]}")
    while name is None and "." in host:
        host = host.partition(".")[2]
        name = _hosts.get(f"*.{host}")
    return name


@cache
def _plug_in() -> None:
    """Register the pages that installed packages offer, once, when something is asked for that nobody here knows.

    A name that has a page already keeps it: what a program does must not depend on when this ran.
    """
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        try:
            page = point.load()
            page = page() if isinstance(page, type) else page
            if page.name not in PAGES and page.name not in _added:
                register(page)
        except Exception as error:  # noqa: BLE001  (another package's fault must not stop this program)
            warnings.warn(f"provider {point.value!r} of {GROUP!r} is left out: {error}", PacelineWarning, stacklevel=2)


def suggest(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the nearest of ``known``, or nothing."""
    near = get_close_matches(name.lower(), list(known), 1)
    return f"; did you mean {near[0]!r}?" if near and near[0] != name else ""


@lru_cache(maxsize=256)
def _load(name: str) -> Provider:
    if name not in PAGES:
        _plug_in()
        if name in _added:
            return _added[name]
    module, _, class_name = PAGES.get(name, "paceline.providers.generic:Generic").partition(":")
    page = cast("Callable[..., Provider]", getattr(import_module(module), class_name))
    return page() if name in PAGES else page(name)
