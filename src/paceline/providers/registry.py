"""From a host or a name to a provider's page. A page is imported when it is first asked for."""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from paceline.providers.base import Provider

PAGES: Final = {
    "openai": "paceline.providers.openai:OpenAI",
    "anthropic": "paceline.providers.anthropic:Anthropic",
}
"""Provider names to the class that is their page."""

ALIASES: Final = {"claude": "anthropic"}
"""Other names that people use."""

HOSTS: Final = {
    "api.openai.com": "openai",
    "us.api.openai.com": "openai",
    "eu.api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
}
"""Hosts to provider names, so that no page is imported to find out; a leading ``*.`` matches any subdomain."""


def provider_named(name: str) -> Provider:
    """The page of the provider called ``name``, or of an OpenAI-compatible one that carries the name."""
    clean = name.strip().lower()
    return _load(ALIASES.get(clean, clean))


def is_provider(name: str) -> bool:
    """Whether ``name`` (or the alias that it is) has a page of its own."""
    clean = name.strip().lower()
    return ALIASES.get(clean, clean) in PAGES


def provider_for_host(host: str) -> Provider | None:
    """The page for the traffic to ``host`` (a port is ignored); ``None`` for a host that nobody knows."""
    clean = host.strip().lower().rstrip(".")
    if clean.count(":") == 1:
        clean = clean.partition(":")[0]
    name = HOSTS.get(clean)
    while name is None and "." in clean:
        clean = clean.partition(".")[2]
        name = HOSTS.get(f"*.{clean}")
    return _load(name) if name else None


def suggest(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the nearest of ``known``, or nothing."""
    near = get_close_matches(name.lower(), list(known), 1)
    return f"; did you mean {near[0]!r}?" if near and near[0] != name else ""


@lru_cache(maxsize=256)
def _load(name: str) -> Provider:
    module, _, class_name = PAGES.get(name, "paceline.providers.generic:Generic").partition(":")
    page = cast("Callable[..., Provider]", getattr(import_module(module), class_name))
    return page() if name in PAGES else page(name)
