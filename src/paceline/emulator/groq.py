"""The Groq dialect: OpenAI's, with headers that mean other periods and other words in refusals.

Shapes and texts follow Groq's documentation (2026-08) and captured headers and refusals (2024 to 2026): requests in the
headers are per day, tokens per minute, and every other quota shows in refusals only. Unused output is given back.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paceline.emulator import openai
from paceline.emulator.wire import Answer, Ask, Header, dump, go_duration, load, sse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.emulator.outcome import Admitted, Level, Refused
    from paceline.emulator.settings import Settings

ID_HEADER = b"x-request-id"
HOLDS_OUTPUT, SETTLES = True, True
key, read, answer, failure, error_event = openai.key, openai.read, openai.answer, openai.failure, openai.error_event

_JSON: Header = (b"content-type", b"application/json")
_SHOWN = {("requests", 86_400.0), ("tokens", 60.0)}
_PERIODS = {60.0: ("minute", "M"), 3_600.0: ("hour", "H"), 86_400.0: ("day", "D")}
_SHORT = {"requests": "RP", "tokens": "TP", "input_tokens": "ITP", "output_tokens": "OTP"}
_MORE = " Need more tokens? Upgrade to Dev Tier today at https://console.groq.com/settings/billing"


def rate_headers(levels: list[Level], now: float) -> list[Header]:
    """``x-ratelimit-*-requests`` for a day and ``-tokens`` for a minute; nothing of any other quota."""
    return openai.rate_headers([level for level in levels if level[:2] in _SHOWN], now)


def refusal(refused: Refused, settings: Settings, serial: int) -> Answer:
    """A request that can never fit is a 413, with the code of a rate limit; the rest is as OpenAI's."""
    if refused.kind not in ("rate", "too_large"):
        return openai.refusal(refused, settings, serial)
    never = refused.kind == "too_large"
    retry = [(b"retry-after", b"%d" % max(1, math.ceil(refused.wait_s)))] if settings.headers and not never else []
    text = f"{'Request too large' if never else 'Rate limit reached'} for model `{refused.model}`"
    if settings.body_numbers:
        period, letter = _PERIODS.get(refused.period_s, ("minute", "M"))
        short = f" ({_SHORT[refused.unit]}{letter})" if refused.unit in _SHORT else ""
        text += f" in organization `org_emulated` service tier `on_demand` on {refused.unit.replace('_', ' ')} per "
        text += f"{period}{short}: Limit {refused.limit:.0f}, "
        if never:
            text += f"Requested {refused.requested:.0f}, please reduce your message size and try again."
        else:
            used, requested = math.ceil(refused.used - 1e-6), max(1.0, refused.requested)
            wait = go_duration(max(0.001, refused.wait_s))
            text += f"Used {used}, Requested {requested:.0f}. Please try again in {wait}."
    kind = "requests" if refused.unit == "requests" else "tokens"
    body = dump({"error": {"message": text + _MORE, "type": kind, "code": "rate_limit_exceeded"}})
    return Answer(413 if never else 429, [_JSON, *retry], body)


def events(ask: Ask, admitted: Admitted, serial: int) -> Iterator[tuple[int, bytes]]:
    """As OpenAI's; the last chunk of a chat bears the usage under ``x_groq``, asked for or not."""
    if ask.kind != "chat":
        yield from openai.events(ask, admitted, serial)
        return
    pieces = list(openai.events(ask, admitted, serial))
    tokens, last = pieces[-2]
    chunk = (load(last.removeprefix(b"data: ")) or {}) | {"x_groq": {"id": f"req_{serial:024x}"}}
    chunk["x_groq"]["usage"] = openai.chat_usage(admitted)
    yield from [*pieces[:-2], (tokens, sse(chunk)), pieces[-1]]
