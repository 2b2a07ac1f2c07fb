"""An unknown host that speaks OpenAI's paths, bodies and errors, as most hosts and gateways do."""

from __future__ import annotations

import re

from paceline.estimation.estimate import SAFE_ENCODING
from paceline.providers.common import CostRule
from paceline.providers.openai import OpenAIDialect


class Generic(OpenAIDialect):
    """An OpenAI-compatible API under any name; the class to start from for a provider of your own."""

    hosts: tuple[str, ...] = ()
    encoding = SAFE_ENCODING
    costs = CostRule(holds_maximum=True, refunds=False)

    def __init__(self, name: str = "generic") -> None:
        self.name = name
        self.key_env = f"{re.sub(r'[^A-Z0-9]+', '_', name.upper()).strip('_') or 'GENERIC'}_API_KEY"
