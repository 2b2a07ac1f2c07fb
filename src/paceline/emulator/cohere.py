"""The dialect of Cohere: chat of its second version, in one piece and streamed. No header shows any quota.

Shapes follow Cohere's documentation and its SDK 7.3 (2026), refusals the captured ones of trial keys (2025, 2026).
Production keys are limited in requests alone: write ``requests``.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from paceline.emulator.settings import PERIODS, Settings
from paceline.emulator.text import count_messages, count_tools, write
from paceline.emulator.wire import Ask, Dialect, ErrorParts, HttpAnswer, count_of, load, pieces, typed
from paceline.emulator.world import Admitted, Counting, Refused

_DONE = b"data: [DONE]\n\n"


class EmulatedCohere(Dialect):
    """Cohere's API."""

    PATHS = {"/v2/chat": "chat"}  # noqa: RUF012
    COUNTING = Counting(holds_output=False)
    STATES_WAIT = False  # no header is known
    REFUSALS = {  # noqa: RUF012
        # These two texts are assumed.
        "capacity": (503, "The service is overloaded; please try again later.", {}),
        "money": (402, "Please add or update your payment method to continue.", {}),
        "auth": (401, "invalid api token", {}),
        "unknown_model": (404, "model '{refused.model}' not found, make sure the correct model ID was used", {}),
        "failure": (500, "internal server error", {}),
        "other": (400, "{refused.detail}", {}),
    }
    NO_JSON = "invalid request: the body is not valid JSON"
    NO_MODEL = "invalid request: model is required"

    def ask(self, kind: str, model: str, value: dict[str, Any]) -> Ask:
        if not value.get("messages") or not isinstance(value["messages"], list):
            return Ask(kind, model, error="invalid request: list of messages must not be empty")
        size = count_messages(value["messages"]) + count_tools(value.get("tools"))
        return Ask(kind, model, size, count_of(value.get("max_tokens")), stream=bool(value.get("stream")))

    def over_limit(self, refused: Refused, settings: Settings) -> ErrorParts:
        """The text of a trial key's refusal names the limit."""
        text = f"trial token rate limit exceeded, limit is {refused.limit:.0f} tokens per minute"
        if refused.unit == "requests":
            text = (
                f"You are using a Trial key, which is limited to {refused.limit:.0f} API calls /"
                f" {PERIODS.get(refused.period_s, 'minute')}. You can continue to use the Trial key for free or"
                " upgrade to a Production key."
            )
        numbers = settings.body_numbers and refused.period_s
        return 429, text if numbers else "too many requests", {}

    def error(self, serial: int, status: int, text: str, fields: Mapping[str, Any]) -> Any:  # noqa: ARG002
        return {"id": _id(serial, "error"), "message": text}

    def error_event(self, ask: Ask, refusal: HttpAnswer, serial: int) -> bytes:
        """The last event of a stream that breaks off: ``ERROR``, with the refusal's text."""
        delta = {"finish_reason": "ERROR", "error": (load(refusal.body) or {}).get("message", "")}
        return typed("message-end", id=_id(serial, ask.kind), delta=delta) + _DONE

    def answer(self, ask: Ask, admitted: Admitted, serial: int) -> Any:
        message = {"role": "assistant", "content": [{"type": "text", "text": write(admitted.output_tokens)}]}
        return {"id": _id(serial, ask.kind), "message": message} | _end(ask, admitted)

    def events(self, ask: Ask, admitted: Admitted, serial: int) -> Iterator[tuple[int, bytes]]:
        """The stream of a chat; ``message-end`` has the usage."""
        empty: dict[str, Any] = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
        yield 0, typed("message-start", id=_id(serial, ask.kind), delta={"message": empty})
        yield 0, typed("content-start", index=0, delta={"message": {"content": {"type": "text", "text": ""}}})
        for size, text in pieces(admitted.output_tokens):
            yield size, typed("content-delta", index=0, delta={"message": {"content": {"text": text}}})
        yield 0, typed("content-end", index=0)
        yield 0, typed("message-end", id=_id(serial, ask.kind), delta=_end(ask, admitted))
        yield 0, _DONE


def _id(serial: int, kind: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{kind} {serial}"))


def _end(ask: Ask, admitted: Admitted) -> dict[str, Any]:
    units = {"input_tokens": admitted.input_tokens, "output_tokens": admitted.output_tokens}
    usage = {"billed_units": units, "tokens": units, "cached_tokens": 0}
    return {"finish_reason": ask.finish(admitted, "MAX_TOKENS", "COMPLETE"), "usage": usage}
