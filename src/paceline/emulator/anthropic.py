"""The Anthropic dialect: messages, in one piece and streamed, with the provider's headers and refusals.

Shapes, header families and texts follow Anthropic's documentation and captured 429 bodies (as of 2026-10).
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from paceline.emulator.text import count_content, count_messages, count_tools
from paceline.emulator.wire import Answer, Ask, Header, count_of, dump, load, pieces, request_id, sse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from paceline.emulator.outcome import Admitted, Level, Refused
    from paceline.emulator.settings import Settings

PATHS = {"/messages": "messages"}
ID_HEADER = b"request-id"
HOLDS_OUTPUT, SETTLES = True, False
ORGANIZATION = "00000000-0000-4000-8000-000000000000"

_JSON: Header = (b"content-type", b"application/json")
_FAMILIES = ("requests", "input_tokens", "output_tokens", "tokens")
_PERIODS = {1.0: "second", 60.0: "minute", 3_600.0: "hour", 86_400.0: "day"}


def key(headers: Mapping[bytes, bytes]) -> str:
    """The ``x-api-key``, or a bearer key."""
    given = headers.get(b"x-api-key") or headers.get(b"authorization", b"").removeprefix(b"Bearer ")
    return given.strip().decode("latin-1")


def read(kind: str, body: bytes, named: str = "") -> Ask:
    """Read a request; what is wrong with it is in ``error``."""
    value = load(body)
    if value is None:
        return Ask(kind, error="The request body is not valid JSON.")
    model, most = named or value.get("model"), count_of(value.get("max_tokens"))
    if not isinstance(model, str) or not model:
        return Ask(kind, error="model: Field required")
    if not isinstance(value.get("messages"), list):
        return Ask(kind, model, error="messages: Field required")
    if most is None:
        return Ask(kind, model, error="max_tokens: Field required")
    size = count_messages(value["messages"]) + count_content(value.get("system")) + count_tools(value.get("tools"))
    return Ask(kind, model, size, most, stream=bool(value.get("stream")))


# --- headers and refusals --------------------------------------------------------------------------------------------


def rate_headers(levels: list[Level], now: float) -> list[Header]:
    """``anthropic-ratelimit-{requests,input-tokens,output-tokens,tokens}-{limit,remaining,reset}``.

    Remainders of the token families are rounded to thousands, times to whole seconds. The ``tokens`` family is a
    quota on all tokens if there is one, else the sum of input and output.
    """
    families: dict[str, tuple[float, float, float]] = {}
    for unit, _, limit, remaining, reset_s in levels:
        if unit in _FAMILIES:
            families.setdefault(unit, (limit, remaining, reset_s))
    sides = [families[unit] for unit in ("input_tokens", "output_tokens") if unit in families]
    if sides and "tokens" not in families:
        families["tokens"] = (sum(s[0] for s in sides), sum(s[1] for s in sides), max(s[2] for s in sides))
    headers: list[Header] = []
    for unit, (limit, remaining, reset_s) in families.items():
        name = b"anthropic-ratelimit-" + unit.replace("_", "-").encode()
        left = max(0.0, remaining)
        shown = math.floor(left) if unit == "requests" else round(left / 1_000) * 1_000
        at = datetime.fromtimestamp(math.ceil(now + reset_s), UTC)
        headers += (
            (name + b"-limit", b"%d" % limit),
            (name + b"-remaining", b"%d" % shown),
            (name + b"-reset", at.strftime("%Y-%m-%dT%H:%M:%SZ").encode()),
        )
    return headers


def _error(
    status: int, kind: str, message: str, serial: int, *, code: str | None = None, wait_s: float = 0.0
) -> Answer:
    error: dict[str, Any] = {"type": kind, "message": message}
    if code is not None:
        error["details"] = {"error_code": code}
    body = dump({"type": "error", "error": error, "request_id": request_id(serial).decode()})
    retry = [(b"retry-after", b"%d" % math.ceil(wait_s))] if wait_s else []
    return Answer(status, [_JSON, *retry], body)


def refusal(refused: Refused, settings: Settings, serial: int) -> Answer:
    """Status, headers and text for every kind of refusal."""
    kind = refused.kind
    wait_s = refused.wait_s if settings.headers and not math.isinf(refused.wait_s) else 0.0
    if kind in ("rate", "too_large"):
        return _error(429, "rate_limit_error", _rate_text(refused, settings), serial, wait_s=wait_s)
    if kind == "growth":
        text = "This request would exceed the acceleration limit for your organization. Please increase traffic slowly."
        return _error(429, "rate_limit_error", text, serial, code="ramp_limit_exceeded", wait_s=wait_s)
    if kind == "capacity":
        return _error(refused.status, "overloaded_error", "Overloaded", serial)
    if kind == "money":
        text = "Your organization has reached its monthly spend limit."
        return _error(429, "rate_limit_error", text, serial, code="enforced_spend_limit_reached")
    if kind == "auth":
        return _error(401, "authentication_error", "invalid x-api-key", serial)
    if kind == "unknown_model":
        return _error(404, "not_found_error", f"model: {refused.model}", serial)
    return _error(400, "invalid_request_error", refused.detail, serial)


def _rate_text(refused: Refused, settings: Settings) -> str:
    if not settings.body_numbers:
        return "This request would exceed your organization's rate limit. Please try again later."
    quota = f"{refused.limit:,.0f} {refused.unit.replace('_', ' ')} per {_PERIODS.get(refused.period_s, 'minute')}"
    if not refused.period_s:
        quota = f"{refused.limit:,.0f} concurrent connections"
    return (
        f"This request would exceed the rate limit for your organization ({ORGANIZATION}) of {quota}."
        " For details, refer to: https://docs.claude.com/en/api/rate-limits. You can see the response headers for"
        " current usage. Please reduce the prompt length or the maximum tokens requested, or try again later."
    )


def error_event(ask: Ask, refusal: Answer, serial: int) -> bytes:  # noqa: ARG001
    """An ``error`` event, with the refusal's own body."""
    return b"event: error\ndata: " + refusal.body + b"\n\n"


def failure(serial: int) -> Answer:
    """A 500."""
    return _error(500, "api_error", "Internal server error", serial)


# --- answers ---------------------------------------------------------------------------------------------------------


def _usage(admitted: Admitted, output_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": admitted.input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": output_tokens,
        "service_tier": "standard",
    }


def _stop(ask: Ask, admitted: Admitted) -> str:
    return "max_tokens" if admitted.output_tokens == ask.max_output_tokens else "end_turn"


def answer(ask: Ask, admitted: Admitted, serial: int) -> bytes:
    """The whole message."""
    text = "".join(text for _, text in pieces(admitted.output_tokens))
    head = {"id": f"msg_{serial:024x}", "type": "message", "role": "assistant", "model": admitted.model}
    content = [{"type": "text", "text": text}]
    usage = _usage(admitted, admitted.output_tokens)
    stop = {"stop_reason": _stop(ask, admitted), "stop_sequence": None}
    return dump(head | {"content": content} | stop | {"usage": usage})


def events(ask: Ask, admitted: Admitted, serial: int) -> Iterator[tuple[int, bytes]]:
    """The stream of a message; ``message_delta`` carries the cumulative output."""

    def event(name: str, **values: Any) -> bytes:
        return sse({"type": name} | values, name)

    head = {"id": f"msg_{serial:024x}", "type": "message", "role": "assistant", "model": admitted.model}
    stop = {"stop_reason": None, "stop_sequence": None}
    message: dict[str, Any] = head | {"content": []} | stop | {"usage": _usage(admitted, 1)}
    yield 0, event("message_start", message=message)
    yield 0, event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    yield 0, event("ping")
    for size, text in pieces(admitted.output_tokens):
        yield size, event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})
    yield 0, event("content_block_stop", index=0)
    delta = {"stop_reason": _stop(ask, admitted), "stop_sequence": None}
    yield 0, event("message_delta", delta=delta, usage={"output_tokens": admitted.output_tokens})
    yield 0, event("message_stop")
