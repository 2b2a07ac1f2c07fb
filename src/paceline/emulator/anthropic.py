"""The dialect of Anthropic: messages, in one piece and streamed, with the provider's headers and refusals.

Shapes, header families and texts follow Anthropic's documentation and captured 429 bodies (as of 2026-10).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from paceline.emulator.parts import life_of, prompt_parts
from paceline.emulator.prompt_cache import PromptPart
from paceline.emulator.settings import PERIODS, Settings
from paceline.emulator.text import count_content, count_messages, count_tools, write
from paceline.emulator.wire import Ask, Dialect, ErrorParts, Header, HttpAnswer, count_of, pieces, request_id, typed
from paceline.emulator.world import Admitted, Counting, Level, Refused

ORGANIZATION = "00000000-0000-4000-8000-000000000000"

STOPS = "max_tokens", "end_turn"
"""The reason of an answer that was cut, and of a complete one."""

_FAMILIES = ("requests", "input_tokens", "output_tokens", "tokens")


class EmulatedAnthropic(Dialect):
    """Anthropic's API."""

    PATHS = {"/messages": "messages"}  # noqa: RUF012
    ID_HEADER = b"request-id"
    KEY_HEADERS = (b"x-api-key", b"authorization")
    COUNTING = Counting(counts_cached=False)
    REFUSALS = {  # noqa: RUF012
        "growth": (
            429, "This request would exceed the acceleration limit for your organization. Please increase traffic slowly.",
            {"type": "rate_limit_error", "details": {"error_code": "ramp_limit_exceeded"}},
        ),
        "capacity": (529, "Overloaded", {"type": "overloaded_error"}),
        "money": (
            429, "Your organization has reached its monthly spend limit.",
            {"type": "rate_limit_error", "details": {"error_code": "enforced_spend_limit_reached"}},
        ),
        "auth": (401, "invalid x-api-key", {"type": "authentication_error"}),
        "unknown_model": (404, "model: {refused.model}", {"type": "not_found_error"}),
        "failure": (500, "Internal server error", {"type": "api_error"}),
        "other": (400, "{refused.detail}", {"type": "invalid_request_error"}),
    }  # fmt: skip
    LOOKBACK = 20  # Anthropic's documentation of prompt caching, 2026-09
    NO_JSON = "The request body is not valid JSON."
    NO_MODEL = "model: Field required"

    def ask(self, kind: str, model: str, value: dict[str, Any]) -> Ask:
        most = count_of(value.get("max_tokens"))
        if not isinstance(value.get("messages"), list):
            return Ask(kind, model, error="messages: Field required")
        if most is None:
            return Ask(kind, model, error="max_tokens: Field required")
        size = count_messages(value["messages"]) + count_content(value.get("system")) + count_tools(value.get("tools"))
        return Ask(kind, model, size, most, stream=bool(value.get("stream")))

    def parts(self, kind: str, value: dict[str, Any]) -> Sequence[PromptPart]:  # noqa: ARG002
        """Tools, system and messages. A ``cache_control`` beside them marks the last block: the automatic breakpoint."""
        parts = prompt_parts(value.get("tools"), value.get("system"), value["messages"])
        if parts and (life := life_of(value)):
            parts[-1] = parts[-1]._replace(life=life)
        return parts

    def rate_headers(self, levels: list[Level], now: float) -> list[Header]:
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

    def over_limit(self, refused: Refused, settings: Settings) -> ErrorParts:
        text = "This request would exceed your organization's rate limit. Please try again later."
        if settings.body_numbers:
            quota = f"{refused.limit:,.0f} concurrent connections"
            if refused.period_s:
                period = PERIODS.get(refused.period_s, "minute")
                quota = f"{refused.limit:,.0f} {refused.unit.replace('_', ' ')} per {period}"
            text = (
                f"This request would exceed the rate limit for your organization ({ORGANIZATION}) of {quota}."
                " For details, refer to: https://docs.claude.com/en/api/rate-limits. You can see the response headers for"
                " current usage. Please reduce the prompt length or the maximum tokens requested, or try again later."
            )
        return 429, text, {"type": "rate_limit_error"}

    def error(self, serial: int, status: int, text: str, fields: Mapping[str, Any]) -> Any:  # noqa: ARG002
        return {"type": "error", "error": {"message": text, **fields}, "request_id": request_id(serial).decode()}

    def error_event(self, ask: Ask, refusal: HttpAnswer, serial: int) -> bytes:  # noqa: ARG002
        return b"event: error\ndata: " + refusal.body + b"\n\n"

    def answer(self, ask: Ask, admitted: Admitted, serial: int) -> Any:
        content = [{"type": "text", "text": write(admitted.output_tokens)}]
        return _message(admitted, serial, content, ask.finish(admitted, *STOPS), admitted.output_tokens)

    def events(self, ask: Ask, admitted: Admitted, serial: int) -> Iterator[tuple[int, bytes]]:
        """The stream of a message; ``message_delta`` carries the cumulative output."""
        yield 0, typed("message_start", message=_message(admitted, serial, [], None, 1))
        yield 0, typed("content_block_start", index=0, content_block={"type": "text", "text": ""})
        yield 0, typed("ping")
        for size, text in pieces(admitted.output_tokens):
            yield size, typed("content_block_delta", index=0, delta={"type": "text_delta", "text": text})
        yield 0, typed("content_block_stop", index=0)
        delta = {"stop_reason": ask.finish(admitted, *STOPS), "stop_sequence": None}
        yield 0, typed("message_delta", delta=delta, usage={"output_tokens": admitted.output_tokens})
        yield 0, typed("message_stop")


def _message(
    admitted: Admitted, serial: int, content: list[dict[str, str]], stop: str | None, output_tokens: int
) -> dict[str, Any]:
    read, written, written_1h, _ = admitted.cache
    usage = {
        "input_tokens": admitted.input_tokens - read - written, "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read, "output_tokens": output_tokens, "service_tier": "standard",
        "cache_creation": {
            "ephemeral_5m_input_tokens": written - written_1h, "ephemeral_1h_input_tokens": written_1h,
        },
    }  # fmt: skip
    head = {"id": f"msg_{serial:024x}", "type": "message", "role": "assistant", "model": admitted.model}
    return head | {"content": content, "stop_reason": stop, "stop_sequence": None, "usage": usage}
