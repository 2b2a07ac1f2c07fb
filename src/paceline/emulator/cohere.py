"""The Cohere dialect: chat of its second version, in one piece and streamed. No header tells of any quota.

Shapes follow Cohere's documentation and its SDK 7.3 (2026), refusals the captured ones of trial keys (2025, 2026).
Production keys are limited in requests alone: write ``requests``.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from paceline.emulator import openai
from paceline.emulator.text import count_messages, count_tools
from paceline.emulator.wire import Answer, Ask, Header, count_of, dump, load, pieces, sse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.emulator.outcome import Admitted, Level, Refused
    from paceline.emulator.settings import Settings

PATHS = {"/v2/chat": "chat"}
ID_HEADER = b""
HOLDS_OUTPUT, SETTLES = False, False
key = openai.key

_JSON: Header = (b"content-type", b"application/json")
_DONE = b"data: [DONE]\n\n"
_PERIODS = {3_600.0: "hour", 86_400.0: "day"}
_ERRORS = {
    "capacity": (503, "The service is overloaded; please try again later."),  # the words are assumed, as are money's
    "money": (402, "Please add or update your payment method to continue."),
    "auth": (401, "invalid api token"),
}


def read(kind: str, body: bytes, named: str = "") -> Ask:  # noqa: ARG001
    """Read a request; what is wrong with it is in ``error``."""
    value = load(body)
    if value is None:
        return Ask(kind, error="invalid request: the body is not valid JSON")
    model = value.get("model")
    if not isinstance(model, str) or not model:
        return Ask(kind, error="invalid request: model is required")
    if not value.get("messages") or not isinstance(value["messages"], list):
        return Ask(kind, model, error="invalid request: list of messages must not be empty")
    size = count_messages(value["messages"]) + count_tools(value.get("tools"))
    return Ask(kind, model, size, count_of(value.get("max_tokens")), stream=bool(value.get("stream")))


def rate_headers(levels: list[Level], now: float) -> list[Header]:  # noqa: ARG001
    """None that is known."""
    return []


def refusal(refused: Refused, settings: Settings, serial: int) -> Answer:
    """An id and a message; a trial key's names the limit."""
    if refused.kind in ("rate", "too_large"):
        text = "You are using a Trial key, which is limited to "
        if refused.unit == "requests":
            text += (
                f"{refused.limit:.0f} API calls / {_PERIODS.get(refused.period_s, 'minute')}. You can continue to use"
            )
            text += " the Trial key for free or upgrade to a Production key."
        else:
            text = f"trial token rate limit exceeded, limit is {refused.limit:.0f} tokens per minute"
        return _error(429, text if settings.body_numbers else "too many requests", serial)
    if refused.kind == "unknown_model":
        return _error(404, f"model '{refused.model}' not found, make sure the correct model ID was used", serial)
    status, text = _ERRORS.get(refused.kind, (400, refused.detail))
    return _error(refused.status if refused.kind == "capacity" else status, text, serial)


def error_event(ask: Ask, refusal: Answer, serial: int) -> bytes:
    """A stream that breaks off: its last event says ``ERROR``, and has the refusal's words."""
    delta = {"finish_reason": "ERROR", "error": (load(refusal.body) or {}).get("message", "")}
    return _event("message-end", id=_id(serial, ask.kind), delta=delta) + _DONE


def failure(serial: int) -> Answer:
    """A 500."""
    return _error(500, "internal server error", serial)


def _error(status: int, message: str, serial: int) -> Answer:
    return Answer(status, [_JSON], dump({"id": _id(serial, "error"), "message": message}))


def _id(serial: int, kind: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{kind} {serial}"))


# --- answers ---------------------------------------------------------------------------------------------------------


def _end(ask: Ask, admitted: Admitted) -> dict[str, Any]:
    units = {"input_tokens": admitted.input_tokens, "output_tokens": admitted.output_tokens}
    finish = "MAX_TOKENS" if admitted.output_tokens == ask.max_output_tokens else "COMPLETE"
    return {"finish_reason": finish, "usage": {"billed_units": units, "tokens": units, "cached_tokens": 0}}


def answer(ask: Ask, admitted: Admitted, serial: int) -> bytes:
    """The whole answer."""
    text = "".join(text for _, text in pieces(admitted.output_tokens))
    message = {"role": "assistant", "content": [{"type": "text", "text": text}]}
    return dump({"id": _id(serial, ask.kind), "message": message} | _end(ask, admitted))


def events(ask: Ask, admitted: Admitted, serial: int) -> Iterator[tuple[int, bytes]]:
    """The stream of a chat; ``message-end`` has the usage."""
    empty: dict[str, Any] = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
    yield 0, _event("message-start", id=_id(serial, ask.kind), delta={"message": empty})
    first = {"type": "text", "text": ""}
    yield 0, _event("content-start", index=0, delta={"message": {"content": first}})
    for size, text in pieces(admitted.output_tokens):
        yield size, _event("content-delta", index=0, delta={"message": {"content": {"text": text}}})
    yield 0, _event("content-end", index=0)
    yield 0, _event("message-end", id=_id(serial, ask.kind), delta=_end(ask, admitted))
    yield 0, _DONE


def _event(name: str, **values: Any) -> bytes:
    return sse({"type": name} | values, name)
