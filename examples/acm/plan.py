"""The cost and the duration of a run, before it starts and during it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from components import GENERATORS, JUDGES, REPORTERS, planned

import paceline
from paceline.providers.base import Call, Usage
from paceline.providers.registry import provider_named

if TYPE_CHECKING:
    from paceline.planner.forecast import Forecast

SHARE = 0.5
"""The average length of an answer, as a part of the most output tokens; the emulator's default."""


class Plan:
    """Every call of a run, by model, with its expected cost.

    Args:
        documents: The number of documents.
        first_s: Seconds until an answer starts, on average.
        per_token_s: Seconds for each token of an answer.

    Attributes:
        costs: For each model the costs of its calls, in order.
        latency_s: For each model the mean seconds of an answer.
    """

    def __init__(self, documents: int, first_s: float, per_token_s: float) -> None:
        self.costs: dict[str, list[dict[str, float]]] = {}
        seconds: dict[str, list[float]] = {}
        for call, tokens, output in planned(documents, SHARE):
            provider = provider_named(call.provider)  # charges input, output, or the most output, by provider
            asked = Call(provider.name, "", call.model, tokens, call.most)
            self.costs.setdefault(call.name, []).append(provider.charged(asked, Usage(tokens, output)))
            seconds.setdefault(call.name, []).append(first_s + per_token_s * output)
        self.latency_s = {name: sum(own) / len(own) for name, own in seconds.items()}
        # A report waits for its document and a verdict for its report: the forecast of the pools does not include that.
        stages = [max(self.latency_s[call.name] for call in stage) for stage in (GENERATORS, REPORTERS, JUDGES)]
        self._chain_s = sum(stages) - min(stages)

    @property
    def calls(self) -> int:
        """The number of calls."""
        return sum(map(len, self.costs.values()))

    def forecast(self, limiter: paceline.Limiter, asked: Mapping[str, int]) -> tuple[Forecast, float]:
        """The forecast of the remaining calls: by pool, and in seconds in all. ``asked``: the calls made to each model."""
        left = {name: costs[asked.get(name, 0) :] for name, costs in self.costs.items()}
        forecast = paceline.eta(limiter, left, latency_s=self.latency_s)
        return forecast, forecast.total_s + (self._chain_s if not asked else 0.0)
