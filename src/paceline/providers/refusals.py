"""A refusal from whatever a caller caught: an SDK's exception, or a response."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from paceline.core.results import QuotaError, Refusal
from paceline.providers.base import Provider
from paceline.providers.registry import is_provider, provider_for_host, provider_named

BODY_MAX: Final = 64_000
"""How much of a body is looked at."""

_SDKS: Final = {
    "openai": "openai", "anthropic": "anthropic", "groq": "groq", "mistralai": "mistral", "cohere": "cohere",
    "google": "gemini", "botocore": "bedrock", "together": "together", "cerebras": "cerebras",
}  # fmt: skip
"""SDKs by the package of their exceptions, for a host that nobody knows: a proxy, an emulator."""


class Answer(NamedTuple):
    """An HTTP answer as far as it matters here; ``host``: who gave it, or empty."""

    status: int
    headers: dict[str, str]
    body: bytes
    host: str

    @property
    def ours(self) -> bool:
        """Whether paceline itself gave it."""
        return "x-paceline" in self.headers


def refusal_of(error: object, provider: str | None = None) -> Refusal | None:
    """What an exception says about the provider's limits, in the provider's own dialect.

    Args:
        error: An exception of ``openai``, ``anthropic``, ``groq``, ``mistralai``, ``google-genai``, ``cohere`` or
            ``httpx``; whatever carries a ``response`` with a status and headers, or a status code itself.
        provider: Whose dialect it is in, e.g. ``openai``; by default who answered, by the host, else the SDK's.

    Returns:
        Why the provider refused, and how long it asks to wait; ``None`` when it did not: for any other fault (a 400,
        a 500), an exception without an HTTP answer, and a 429 that is paceline's own.
    """
    answer = answer_of(error)
    if answer is None or answer.ours:
        return None
    return _page(error, answer, provider).refusal(answer.status, answer.headers, answer.body)


def refusal_said(error: object, pool: str) -> Refusal | None:
    """As :func:`refusal_of`, where the provider of ``pool`` must have refused; ``None`` only for paceline's own 429.

    Raises:
        TypeError: ``error`` carries no HTTP answer.
        QuotaError: Its answer is no refusal.
    """
    answer = answer_of(error)
    if answer is None:
        raise TypeError(
            f"{pool}: {type(error).__name__} carries no HTTP answer, so it does not say that the provider refused: pass"
            " an SDK's exception with a response, a paceline.Refusal, or retry_after_s=..."
        )
    if answer.ours:
        return None
    name, slash, _ = pool.partition("/")
    refusal = refusal_of(error, name if slash and is_provider(name) else None)
    if refusal is None:
        raise QuotaError(
            f"{pool}: an answer with status {answer.status} is no refusal: settle() the permit, or cancel() it if nothing"
            " was sent"
        )
    return refusal


def answer_of(error: object) -> Answer | None:
    """The HTTP answer that ``error`` carries, or is; ``None`` when there is none."""
    for name in ("response", "raw_response", "http_response"):
        response = _get(error, name)
        if isinstance(response, Mapping):  # botocore's
            return _parsed(response)
        status = _status(response)
        if status is not None:
            headers = _headers(response) or _headers(error)
            return Answer(status, headers, _body(response) or _body(error), _host(response) or _host(error))
    status = _status(error)
    return None if status is None else Answer(status, _headers(error), _body(error), _host(error))


def _parsed(response: Mapping[str, Any]) -> Answer | None:
    """What botocore has made of an answer: its status, headers and error apart."""
    about, error = response.get("ResponseMetadata"), response.get("Error")
    status = about.get("HTTPStatusCode") if isinstance(about, Mapping) else None
    if not isinstance(about, Mapping) or not isinstance(status, int) or not isinstance(error, Mapping):
        return None
    said = {"__type": str(error.get("Code", "")), "message": str(error.get("Message", ""))[:BODY_MAX]}
    headers = {str(name).lower(): str(value) for name, value in dict(about.get("HTTPHeaders") or {}).items()}
    return Answer(status, headers, json.dumps(said).encode(), "")


def _page(error: object, answer: Answer, provider: str | None) -> Provider:
    if provider is not None:
        return provider_named(provider)
    known = provider_for_host(answer.host) if answer.host else None
    if known is not None:
        return known
    packages = (cls.__module__.partition(".")[0] for cls in type(error).__mro__)
    return provider_named(next((_SDKS[package] for package in packages if package in _SDKS), "generic"))


def _get(thing: object, name: str) -> Any:
    """An attribute; ``None`` where there is none or it cannot be had (a body that was not read, say)."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001  (a foreign property)
        return None


def _status(thing: object) -> int | None:
    for name in ("status_code", "status", "code"):
        status = _get(thing, name)
        if isinstance(status, int) and 100 <= status <= 599:
            return int(status)
    return None


def _headers(thing: object) -> dict[str, str]:
    headers = _get(thing, "headers")
    try:
        return {_word(name).lower(): _word(value) for name, value in dict(headers).items()}
    except Exception:  # noqa: BLE001  (a foreign mapping)
        return {}


def _word(said: object) -> str:
    return said.decode("latin-1") if isinstance(said, bytes) else str(said)


def _body(thing: object) -> bytes:
    for name in ("content", "body", "details", "text"):
        body = _get(thing, name)
        if isinstance(body, Mapping | list):
            try:
                body = json.dumps(body)
            except (TypeError, ValueError, RecursionError):
                continue
        if isinstance(body, str):
            body = body[:BODY_MAX].encode("utf-8", "replace")
        if isinstance(body, bytes) and body:
            return body[:BODY_MAX]
    return b""


def _host(thing: object) -> str:
    host = _get(_get(_get(thing, "request"), "url"), "host")
    return host if isinstance(host, str) else ""
