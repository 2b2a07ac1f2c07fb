"""An unknown host that speaks OpenAI's paths, bodies and errors, as most hosts and gateways do."""

from __future__ import annotations

import re
from dataclasses import replace

from paceline.core.quota import REQUESTS, TOKENS
from paceline.core.results import Reading
from paceline.estimation.estimate import SAFE_ENCODING
from paceline.providers.base import Headers
from paceline.providers.common import CostRule
from paceline.providers.openai import OpenAIDialect, family_reading


class Generic(OpenAIDialect):
    """An OpenAI-compatible API under any name; the class to start from for a provider of your own."""

    hosts: tuple[str, ...] = ()
    encoding = SAFE_ENCODING
    costs = CostRule(holds_maximum=True, refunds=False)

    def __init__(self, name: str = "generic") -> None:
        self.name = name
        self.key_env = f"{re.sub(r'[^A-Z0-9]+', '_', name.upper()).strip('_') or 'GENERIC'}_API_KEY"

    def readings(self, headers: Headers, now_s: float) -> list[Reading]:  # noqa: ARG002
        return consistent_readings(headers)


def consistent_readings(headers: Headers) -> list[Reading]:
    """The readings under OpenAI's header names that are consistent, for a host that documents none.

    Such hosts use these names for other things: resets that are instants or milliseconds, limits a second or a day. So
    a limit and a remainder count only together and with ``0 <= remaining <= limit``, and a reset only where the three
    numbers prove a period.
    """
    found = []
    for unit in (REQUESTS, TOKENS):
        reading = family_reading(headers, unit, unit)
        if reading is None or reading.limit is None or reading.remaining is None:
            continue
        if 0 <= reading.remaining <= reading.limit:
            found.append(reading if reading.period_s else replace(reading, reset_s=None))
    return found
