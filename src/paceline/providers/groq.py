"""Groq: OpenAI's dialect, whose headers mean other periods.

Sources: https://console.groq.com/docs/rate-limits (2026-08-08); live headers and refusals of 2024 to 2026, whose
arithmetic fits OpenAI's bucket for minutes, days and hours of audio.

* Limits: requests and tokens a minute and a day, for an organization, per model; for some organizations input and
  output tokens apart; audio seconds an hour and a day.
* ``x-ratelimit-*-requests`` speaks of a **day**, ``-tokens`` of a minute, ``-audio-seconds`` of an hour. The other
  limits show in refusals only.
* Nothing restarts at midnight: a day's quota refills continuously.
* Held: prompt and ``max_completion_tokens``; without one Groq guesses (1 815 was seen). Settled to what was used
  (observed). Cached reads do not count.
* Batch and flex do not count to these limits. Whether failed requests count is not documented.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.core.quota import REQUESTS, TOKENS, Cost
from paceline.core.results import Reading, Refusal
from paceline.providers.base import Call, Headers, Usage
from paceline.providers.compatible import token_cost
from paceline.providers.openai import OpenAI, family_reading
from paceline.providers.parse import as_mapping

_FAMILIES = (("requests", REQUESTS, 86_400.0), ("tokens", TOKENS, 60.0), ("audio-seconds", "audio_seconds", 3_600.0))


class Groq(OpenAI):
    """The Groq API."""

    name = "groq"
    hosts: tuple[str, ...] = ("api.groq.com",)
    key_env = "GROQ_API_KEY"

    def pool(self, model: str) -> str:
        """The model: each has limits of its own, dated ones too."""
        return model

    def charged(self, call: Call, usage: Usage) -> Cost:  # noqa: ARG002
        """The reported input without cached reads, and the output as it was."""
        return token_cost(usage.input_tokens - usage.cached_tokens, usage.output_tokens)

    def readings(self, headers: Headers, now_s: float) -> list[Reading]:  # noqa: ARG002
        """``x-ratelimit-{limit,remaining,reset}-{requests,tokens,audio-seconds}``, each with its own period."""
        found = [(family_reading(headers, family, unit), period_s) for family, unit, period_s in _FAMILIES]
        return [replace(reading, period_s=period_s) for reading, period_s in found if reading is not None]

    def refusal(self, status: int, headers: Headers, body: bytes) -> Refusal | None:
        """As OpenAI's: 413 ``Request too large`` never fits; 498 is flex processing without capacity."""
        return super().refusal(503 if status == 498 else status, headers, body)

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """Usage as OpenAI's; older streams carry it under ``x_groq``."""
        return super().usage(as_mapping(payload.get("x_groq")) or payload)

    def _on_event(self, event: dict[str, Any], known: Usage | None) -> tuple[Usage | None, Refusal | None, bool]:
        usage = event.get("usage") or as_mapping(event.get("x_groq")).get("usage")
        return super()._on_event({**event, "usage": usage, "x_groq": None}, known)
