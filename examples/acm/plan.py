"""The cost and the duration of a run, before it starts and during it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from components import GENERATORS, JUDGES, REPORTERS, planned

import paceline

SHARE = 0.5
"""The average length of an answer, as a part of the most output tokens; the emulator's default."""

CHARGE_THE_MOST = ("openai", "azure")
"""They charge the most output that a request allows."""

COUNT_INPUT_ALONE = ("google",)
"""Their tokens a minute are of input."""


def cost(provider: str, tokens: int, output: int, most: int) -> dict[str, float]:
    """What a call will be charged, by how its provider charges."""
    output = most if provider in CHARGE_THE_MOST else output
    total = tokens if provider in COUNT_INPUT_ALONE else tokens + output
    return {"requests": 1, "tokens": total, "input_tokens": tokens, "output_tokens": output}


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
            self.costs.setdefault(call.name, []).append(cost(call.provider, tokens, output, call.most))
            seconds.setdefault(call.name, []).append(first_s + per_token_s * output)
        self.latency_s = {name: sum(own) / len(own) for name, own in seconds.items()}
        # A report waits for its document and a verdict for its report: the forecast of the pools does not include that.
        stages = [max(self.latency_s[call.name] for call in stage) for stage in (GENERATORS, REPORTERS, JUDGES)]
        self._chain_s = sum(stages) - min(stages)

    @property
    def calls(self) -> int:
        """The number of calls."""
        return sum(map(len, self.costs.values()))

    def forecast(self, limiter: paceline.Limiter, asked: Mapping[str, int]) -> tuple[Any, float]:
        """The forecast of the remaining calls: by pool, and in seconds in all. ``asked``: the calls made to each model."""
        left = {name: costs[asked.get(name, 0) :] for name, costs in self.costs.items()}
        forecast = paceline.eta(limiter, left, latency_s=self.latency_s)
        return forecast, forecast.total_s + (self._chain_s if not asked else 0.0)
