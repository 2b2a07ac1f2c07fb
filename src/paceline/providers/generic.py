"""A host that nobody has written a page for: its bodies are OpenAI's, its headers are believed with care.

Most hosts and gateways speak OpenAI's paths, bodies and errors. Their headers use OpenAI's names for other
things: resets that are instants or milliseconds, limits a second or a day. So a limit and a remainder count only
together and only when they agree, and a reset only when it is an OpenAI-style duration.
"""

from __future__ import annotations

import re
from dataclasses import replace

from paceline.core.quota import REQUESTS, TOKENS
from paceline.core.results import Reading
from paceline.estimation.estimate import SAFE_ENCODING
from paceline.providers.base import Headers
from paceline.providers.openai import OpenAI, family_reading


class Generic(OpenAI):
    """An OpenAI-compatible API under any name."""

    hosts: tuple[str, ...] = ()
    encoding = SAFE_ENCODING

    def __init__(self, name: str = "generic") -> None:
        self.name = name
        self.key_env = f"{re.sub(r'[^A-Z0-9]+', '_', name.upper()).strip('_') or 'GENERIC'}_API_KEY"

    def pool(self, model: str) -> str:
        """The model itself: what it shares with others is unknown."""
        return model

    def readings(self, headers: Headers, now_s: float) -> list[Reading]:  # noqa: ARG002
        """OpenAI's header names, where ``0 <= remaining <= limit``; the period only where the reset proves it."""
        found = []
        for unit in (REQUESTS, TOKENS):
            reading = family_reading(headers, unit, unit)
            if reading is None or reading.limit is None or reading.remaining is None:
                continue
            if 0 <= reading.remaining <= reading.limit:
                found.append(reading if reading.period_s else replace(reading, reset_s=None))
        return found
