"""What is sent, and where: the smallest request that a provider answers for a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final
from urllib.parse import quote, urlsplit

from paceline.config import Config
from paceline.core.results import QuotaError
from paceline.providers.base import Provider
from paceline.providers.parse import undated
from paceline.providers.registry import PROVIDERS, is_provider, locate, provider_for_host, provider_named
from paceline.providers.tables import DEFAULT, known_providers, models

MAX_OUTPUT_TOKENS: Final = 16
"""What a request may produce: the least that every provider accepts."""

TEXT: Final = "Say OK."
_OTHERWISE: Final = ("vertex", "bedrock")
"""Providers whose requests are signed in a way that this command does not know."""


@dataclass(frozen=True, slots=True)
class Target:
    """One request to make.

    Attributes:
        page: Whose dialect is spoken.
        model: The model, as the provider names it.
        url: Where it goes.
        headers: The key among them.
        body: What is sent, as JSON.
        key: The key, so that it can be kept out of messages.
    """

    page: Provider
    model: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: Mapping[str, Any]
    key: str = field(repr=False)

    @property
    def host_tells(self) -> bool:
        """Whether the address alone says which page it is."""
        found = provider_for_host(urlsplit(self.url).hostname or "")
        return found is not None and found.name == self.page.name


def target(name: str, config: Config, environ: Mapping[str, str]) -> Target:
    """The request for the model called ``name``, e.g. ``gpt-5`` or ``groq/llama-3.1-8b-instant``.

    Raises:
        QuotaError: Nobody knows whose model it is, where its provider is, or with which key.
    """
    page, model = _owner(name, config)
    if page.name in _OTHERWISE:
        raise QuotaError(f"{page.name}: its requests are signed with credentials that this command does not use")
    known = f"https://{page.hosts[0]}" if page.hosts and "*" not in page.hosts[0] else None
    root, key = locate(page, config.base_url or known, environ)
    path, headers, body = _request(page.name, model, key)
    if path.startswith("/openai/") and root.endswith("/openai"):
        root = root.removesuffix("/openai")
    return Target(page, model, root + path, headers | {"user-agent": "paceline"}, body, key)


def _owner(name: str, config: Config) -> tuple[Provider, str]:
    """Whose model ``name`` is, and its name there."""
    prefix, _, rest = name.partition("/")
    if config.provider:
        page = provider_named(config.provider)
        return page, rest if rest and provider_named(prefix).name == page.name else name
    if rest and is_provider(prefix):
        return provider_named(prefix), rest
    page_there = provider_for_host(urlsplit(config.base_url).hostname or "") if config.base_url else None
    if page_there is not None:
        return page_there, name
    known = known_providers()
    for provider in (provider for provider in PROVIDERS if provider in known and provider not in _OTHERWISE):
        patterns = [pattern for pattern in models(provider) if pattern != DEFAULT]
        if any(fnmatchcase(called, pattern) for pattern in patterns for called in (name, undated(name))):
            return provider_named(provider), name
    raise QuotaError(f"whose model is {name!r}? Write it like 'openai/{name}', or give --provider")


def _request(provider: str, model: str, key: str) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Path, headers and body."""
    messages = [{"role": "user", "content": TEXT}]
    bearer = {"authorization": f"Bearer {key}"}
    if provider == "anthropic":
        headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
        return "/v1/messages", headers, {"model": model, "max_tokens": 1, "messages": messages}
    if provider == "gemini":
        contents = [{"role": "user", "parts": [{"text": TEXT}]}]
        path = f"/v1beta/models/{quote(model, safe='')}:generateContent"
        settings = {"maxOutputTokens": MAX_OUTPUT_TOKENS}
        return path, {"x-goog-api-key": key}, {"contents": contents, "generationConfig": settings}
    if provider == "cohere":
        return "/v2/chat", bearer, {"model": model, "max_tokens": MAX_OUTPUT_TOKENS, "messages": messages}
    base = "/openai/v1" if provider in ("azure", "groq") else "/v1"
    if provider == "openrouter":
        base = "/api/v1"
    elif provider == "fireworks":
        base = "/inference/v1"
    headers = {"api-key": key} if provider == "azure" else bearer
    if "embed" in model.lower():
        return f"{base}/embeddings", headers, {"model": model, "input": TEXT}
    # OpenAI's newer models refuse the older name, most others know no other.
    most = "max_completion_tokens" if provider in ("openai", "azure", "groq") else "max_tokens"
    return f"{base}/chat/completions", headers, {"model": model, most: MAX_OUTPUT_TOKENS, "messages": messages}
