"""One request for a model, the smallest that its provider answers, and what the answer says about limits."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from paceline.check.verdict import QuotaFinding, compare, stated_by
from paceline.config import Config
from paceline.config.servers import address_at, address_of, server
from paceline.core.results import Refusal, RefusalKind, SettingsError
from paceline.http import pace_transport
from paceline.limiter.limiter import Limiter
from paceline.pacing.retry import RetryPolicy
from paceline.providers import registry
from paceline.providers.base import Provider
from paceline.providers.embeddings import embeds
from paceline.providers.roots import joined, placed
from paceline.providers.tables import counted_units, ending, listing
from paceline.responses.errors import error_of

MAX_OUTPUT_TOKENS: Final = 16
"""The output limit of a request: the smallest that every provider accepts."""

TEXT: Final = "Say OK."
TIMEOUT_S: Final = 60.0
MESSAGE_MAX: Final = 300
_SIGNED: Final = ("vertex", "bedrock")
"""Providers whose requests are signed with other credentials than an API key."""


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """The request for one model.

    Attributes:
        model: The model, as the provider names it.
        key: The key, to keep it out of messages.
        key_env: Where it is from: a variable of the environment, or a file.
        is_member: Whether it goes to a member of a group, which has an address of its own.
    """

    provider: Provider
    model: str
    url: str
    headers: Mapping[str, str] = field(repr=False)
    body: Mapping[str, Any]
    key: str = field(repr=False)
    key_env: str
    is_member: bool = False

    @property
    def host_known(self) -> bool:
        """Whether the provider is known by the URL's host."""
        found = registry.provider_for_host(urlsplit(self.url).hostname or "")
        return found is not None and found.name == self.provider.name


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of one request.

    Attributes:
        model: ``provider/model``.
        sources: The source of each configured limit.
        status: The answer's HTTP status; 0 without an answer.
        stated: Whether the answer stated a limit.
        problem: Why the request was not answered with success, in a sentence; empty if it was.
        findings: One for each quota.
        ending: What is known of an end of the model that has come or is near; empty for none.
    """

    model: str
    pool: str
    sources: Mapping[str, str]
    status: int
    stated: bool
    problem: str
    findings: Sequence[QuotaFinding]
    ending: str = ""

    def record(self) -> dict[str, Any]:
        """Plain JSON values."""
        values = {name: getattr(self, name) for name in ("model", "pool", "sources", "status", "stated", "ending")}
        return values | {"problem": self.problem or None, "quotas": [finding.record() for finding in self.findings]}


def target(name: str, config: Config, environ: Mapping[str, str]) -> ProbeTarget:
    """The request for the model called ``name``, e.g. ``gpt-6-luna`` or ``groq/openai/gpt-oss-120b``.

    Raises:
        SettingsError: The provider is unknown or cannot be checked, or its address or key is missing.
    """
    found = _provider_of(name, config)
    if found is None:
        raise SettingsError(f"unknown provider of model {name!r}: write it like 'openai/{name}', or give --provider")
    provider, model = found
    base = registry.base_of(provider.name)
    if base in _SIGNED:
        raise SettingsError(f"{base}: its requests are signed with credentials that this command does not use")
    member = provider.name.partition("@")[2] or provider.name
    is_member = any(member in one.get("members", ()) for one in config.groups.values())
    if is_member:
        own = server(config, member, environ)
        if not (own.key or registry.is_loopback(urlsplit(own.root).hostname or "")):
            raise SettingsError(f"no key for {member}: set the environment variable {own.key_env}")
        at, key_env = address_at(own.provider, own.root, own.key), str(own.key_file or own.key_env)
    else:
        at, key_env = address_of(provider, config.base_url, environ), provider.key_env
    path, body = _request(base, model)
    return ProbeTarget(provider, model, joined(at.root, path), at.headers_for(path), body, at.key, key_env, is_member)


def configured(config: Config) -> tuple[list[str], list[str]]:
    """The models with limits in the settings, and the names there that no provider is known of.

    A pool of the user's own is one of these, and a model whose name is wrong.
    """
    units = counted_units()
    names = [
        name
        for name, quotas in config.limits.items()
        if not name.endswith("*") and {quota.unit for quota in quotas} <= units
    ]
    unknown = [name for name in names if _provider_of(name, config) is None]
    return [name for name in names if name not in unknown], unknown


def _provider_of(name: str, config: Config) -> tuple[Provider, str] | None:
    """The provider of the model called ``name``, and the model's name there; ``None`` if it is unknown."""
    found = registry.prefixed(name)
    if config.provider:
        provider = registry.provider_named(config.provider)
        is_own = found is not None and found[0].name == provider.name and not registry.head_of(provider.name).slashes
        return provider, found[1] if found is not None and is_own else name
    if found is not None:
        return found
    at_address = registry.provider_for_host(urlsplit(config.base_url).hostname or "") if config.base_url else None
    if at_address is not None:
        return at_address, name
    made_by = registry.maker(name)
    for candidate, model in [(made_by, name)] if made_by else listing(name):
        if candidate not in _SIGNED:
            return registry.provider_named(candidate), model
    return None


def _request(provider: str, model: str) -> tuple[str, dict[str, Any]]:
    """Path and body."""
    messages = [{"role": "user", "content": TEXT}]
    if provider == "anthropic":
        return "/v1/messages", {"model": model, "max_tokens": 1, "messages": messages}
    if provider == "gemini":
        contents, limit = [{"role": "user", "parts": [{"text": TEXT}]}], {"maxOutputTokens": MAX_OUTPUT_TOKENS}
        return registry.method_path(model), {"contents": contents, "generationConfig": limit}
    if provider == "cohere":
        return "/v2/chat", {"model": model, "max_tokens": MAX_OUTPUT_TOKENS, "messages": messages}
    if embeds(model):
        return placed(provider, "/v1/embeddings"), {"model": model, "input": TEXT}
    body = {"model": model, registry.output_limit(provider): MAX_OUTPUT_TOKENS, "messages": messages}
    return placed(provider, "/v1/chat/completions"), body


class _Recorder(httpx2.HTTPTransport):
    """Keeps the provider's own answer: the pacing transport replaces the answer of a refused attempt."""

    answer: httpx2.Response | None = None

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.answer = super().handle_request(request)
        return self.answer


def probe(target: ProbeTarget, config: Config) -> Checked:
    """Send the request once, as any paced request is sent.

    Raises:
        SettingsError: Invalid limits of its model.
    """
    provider = target.provider
    limiter = Limiter(**config.arguments(provider.name) | {"retry": RetryPolicy(max_attempts=1)})
    recorder = _Recorder()
    transport = pace_transport(limiter, recorder, None if target.host_known else provider.name)
    response, problem = None, ""
    with httpx2.Client(transport=transport, timeout=TIMEOUT_S) as client:
        request = client.build_request("POST", target.url, headers=dict(target.headers), json=dict(target.body))
        call = provider.describe(request.url.path, target.body)
        assert call is not None, "the request is one that is paced"
        try:
            response = client.send(request)
        except httpx2.TransportError as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            problem = f"no answer from {provider.name} at {request.url.host}: {reason}"
    resolved = limiter.limits.model(provider.name, call.model)
    answer = recorder.answer
    readings = [] if answer is None else provider.readings(answer.headers, time.time())
    if response is not None and answer is None:
        problem = f"{provider.name}: the configured limits do not admit even this request: {_message(response, target)}"
    elif response is not None and answer is not None and answer.status_code >= 400:
        refusals: list[Refusal] = getattr(response.extensions.get("paceline"), "refusals", [])
        refusal = refusals[-1] if refusals else None
        problem = _problem(answer.status_code, refusal, response, target)
        readings += stated_by(refusal) if refusal else []
    return Checked(
        f"{provider.name}/{call.model}",
        resolved.pool,
        dict(zip(map(str, resolved.quotas), map(str, resolved.sources), strict=True)),
        answer.status_code if answer is not None else 0,
        any(reading.limit for reading in readings),
        problem,
        compare([quota for quota in resolved.quotas if quota != resolved.slots], readings),  # those are of all models
        ending(provider.name, call.model),
    )


def _problem(status: int, refusal: Refusal | None, response: httpx2.Response, target: ProbeTarget) -> str:
    """Why the request was not answered with success, in a sentence."""
    name = target.provider.name
    message = _short(refusal.message, target) if refusal else _message(response, target)
    if status in (401, 403) or (status == 400 and "API_KEY_INVALID" in response.text):
        return f"{name} refused the key in {target.key_env} ({status})"  # its message may repeat the key
    if status == 404:
        return f"{name} has no model {target.model!r}, or this key may not use it (404)"
    if refusal is None:
        return f"{name} did not answer the request ({status}): {message}"
    wait = "" if refusal.retry_after_s is None else f"; it asks to wait {refusal.retry_after_s:,.0f} s"
    if refusal.kind is RefusalKind.MONEY:
        return f"{name} reports that no money is left ({status}): {message}"
    if refusal.kind is RefusalKind.NEVER_FITS:
        return f"{name} will never admit even this request ({status}): {message}"
    if refusal.kind is RefusalKind.CAPACITY:
        return f"{name} is overloaded ({status}){wait}"
    what = f" of {refusal.unit.replace('_', ' ')}" if refusal.unit else ""
    return f"{name} refused the request: its limit{what} is used up ({status}){wait}"


def _message(response: httpx2.Response, target: ProbeTarget) -> str:
    """The provider's error message, shortened, without the key."""
    error, words = error_of(response.content)
    return _short((error and words) or "no reason given", target)


def _short(words: str, target: ProbeTarget) -> str:
    words = " ".join(words.replace(target.key, "***").split())
    return words if len(words) <= MESSAGE_MAX else words[:MESSAGE_MAX] + "..."
