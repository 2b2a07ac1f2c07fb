"""The Azure OpenAI dialect: OpenAI's bodies, a deployment in the path, whole seconds in the headers.

Shapes and texts follow Microsoft's documentation (2026-05, 2026-09) and captured headers and refusals (2024 to 2026).
Tokens count in a minute's window (``100k tokens/min window``), requests over ten seconds or one (``100 requests/10s
window``); unused output is not given back and failed requests count (``failed_count``). All of that is settings.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from paceline.emulator import openai
from paceline.emulator.wire import Answer, Ask, Header, dump, load, sse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.emulator.outcome import Level, Refused
    from paceline.emulator.settings import Settings

ID_HEADER = b"apim-request-id"
HOLDS_OUTPUT, SETTLES = True, False
read, answer, events, failure = openai.read, openai.answer, openai.events, openai.failure

_JSON: Header = (b"content-type", b"application/json")
_VERSION = "2024-10-21"


def key(headers: Mapping[bytes, bytes]) -> str:
    """The ``api-key``, or a bearer key."""
    return headers.get(b"api-key", b"").strip().decode("latin-1") or openai.key(headers)


def rate_headers(levels: list[Level], now: float) -> list[Header]:  # noqa: ARG001
    """OpenAI's names with whole seconds in ``reset``; what remains may be negative (captured: -27689)."""
    headers: list[Header] = []
    seen: set[str] = set()
    for unit, _, limit, remaining, reset_s in levels:
        if unit in ("requests", "tokens") and unit not in seen:
            seen.add(unit)
            headers += (
                (b"x-ratelimit-limit-" + unit.encode(), b"%d" % limit),
                (b"x-ratelimit-remaining-" + unit.encode(), b"%d" % math.floor(remaining)),
                (b"x-ratelimit-reset-" + unit.encode(), b"%d" % math.ceil(reset_s)),
            )
    return headers


def refusal(refused: Refused, settings: Settings, serial: int) -> Answer:
    """The text names the operation and whole seconds, never limit or used; both ``retry-after`` and ``-ms``."""
    if refused.kind == "too_large":  # the code is the documented subtype's name, the words are an assumption
        text = "The request's max_tokens exceeds what the deployment's rate limit can ever admit."
        return _error(429, "max_tokens_too_large", text)
    if refused.kind == "auth":
        text = "Access denied due to invalid subscription key or wrong API endpoint."
        return _error(401, "401", text)
    if refused.kind == "unknown_model":
        return _error(404, "DeploymentNotFound", "The API deployment for this resource does not exist.")
    if refused.kind != "rate":
        return openai.refusal(refused, settings, serial)
    seconds = max(1, math.ceil(refused.wait_s))
    what = "call" if refused.unit == "requests" else "token"
    text = (
        f"Requests to the ChatCompletions_Create Operation under Azure OpenAI API version {_VERSION} have exceeded"
        f" {what} rate limit of your current OpenAI S0 pricing tier."
    )
    text += f" Please retry after {seconds} seconds." if settings.body_numbers else " Please retry later."
    retry: list[Header] = []
    if settings.headers:
        policy = b"DeploymentRatelimit-" + (b"Request" if refused.unit == "requests" else b"Token")
        retry = [
            (b"retry-after", b"%d" % seconds),
            (b"retry-after-ms", b"%d" % math.ceil(max(1.0, refused.wait_s * 1_000))),
            (b"policy-id", policy),
        ]
    return _error(429, "429", text, retry)


def error_event(ask: Ask, refusal: Answer, serial: int) -> bytes:
    """On Responses an ``error`` event, as captured (2026-08); in a chat as OpenAI's."""
    if ask.kind != "responses":
        return openai.error_event(ask, refusal, serial)
    error = (load(refusal.body) or {})["error"]
    code = "rate_limit_exceeded" if error["code"] == "429" else error["code"]
    event = {"type": "error", "code": code, "message": error["message"], "param": None, "sequence_number": 0}
    return sse(event, "error")


def _error(status: int, code: str, message: str, headers: list[Header] | None = None) -> Answer:
    error: dict[str, Any] = {"code": code, "message": message}
    return Answer(status, [_JSON, *(headers or [])], dump({"error": error}))
