"""What a run costs by the public prices, where ``genai-prices`` is installed (the extra ``budget``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Final

from paceline.providers.base import Usage

BATCH: Final = {"openai": 0.5, "groq": 0.5, "azure": 0.5, "mistral": 0.5, "anthropic": 0.5, "gemini": 0.5}
"""The price of a request in a batch, as a part of the usual one, as of 2026-11 (developers.openai.com/api/docs/guides/batch,
platform.claude.com, batch processing; console.groq.com/docs/batch; learn.microsoft.com/azure/ai-foundry/openai/how-to/batch;
docs.mistral.ai/capabilities/batch; ai.google.dev/gemini-api/docs/batch-api). Together has discounts on some models."""

LONG: Final = 100_000
"""From so many input tokens on, some models cost more for each: such answers are priced one by one."""

LONG_MAX: Final = 10_000
"""How many of them; further ones are priced like short ones."""


@dataclass(slots=True)
class Bill:
    """Counts answers, and prices them in the end: the prices take half a second to import.

    Args:
        given: Prices that hold before the public ones, as in the configuration.

    Attributes:
        batched: How many answers came in batches.
    """

    given: Mapping[str, Mapping[str, float]]
    batched: int = 0
    _short: dict[tuple[str, str, bool], tuple[int, list[int]]] = field(default_factory=dict)
    _long: list[tuple[str, str, bool, Usage]] = field(default_factory=list)

    def add(self, provider: str, model: str, usage: Usage, *, batch: bool) -> None:
        """Count one answer."""
        self.batched += batch
        if usage.input_tokens > LONG and len(self._long) < LONG_MAX:
            self._long.append((provider, model, batch, usage))
            return
        amounts = usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.cache_write_tokens
        count, sums = self._short.get((provider, model, batch), (0, [0, 0, 0, 0]))
        self._short[provider, model, batch] = count + 1, [a + b for a, b in zip(sums, amounts, strict=True)]

    def report(self) -> dict[str, float]:
        """The cost, for the summary; empty where prices are not installed.

        Returns:
            ``usd``: the cost in US dollars; ``usd_saved``: how much less that is than one by one; ``in_batches``: how many
            answers came in batches; ``unpriced``: the answers of models without a known price.
        """
        if find_spec("genai_prices") is None:
            return {}
        from paceline.providers.prices import Prices

        prices, usd, saved, unpriced = Prices(self.given), 0.0, 0.0, 0
        kinds = [(*kind, count, sums) for kind, (count, sums) in self._short.items()]
        for provider, model, batch, count, sums in kinds:
            price = prices.find(provider, model)
            if price is None:
                unpriced += count
                continue
            names = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens")
            whole = price.of(Usage(**dict(zip(names, sums, strict=True))))
            usd, saved = _split(usd, saved, whole, provider, batch=batch)
        for provider, model, batch, usage in self._long:
            if prices.find(provider, model) is None:
                unpriced += 1
            else:
                usd, saved = _split(usd, saved, prices.usd(provider, model, usage), provider, batch=batch)
        return {"usd": round(usd, 6), "usd_saved": round(saved, 6), "in_batches": self.batched, "unpriced": unpriced}


def _split(usd: float, saved: float, whole: float, provider: str, *, batch: bool) -> tuple[float, float]:
    part = BATCH.get(provider, 1.0) if batch else 1.0
    return usd + whole * part, saved + whole * (1.0 - part)


def in_words(report: Mapping[str, float], answered: int) -> list[str]:
    """The cost in a summary as a line; none where it is not known."""
    if "usd" not in report or not answered:
        return []
    less = f", {report['usd_saved']:,.4f} less than one by one" if report["usd_saved"] else ""
    which = f" ({report['in_batches']:,} of {answered:,} answers came in batches)" if report["in_batches"] else ""
    without = f"; without {report['unpriced']:,} answers whose price is not known" if report["unpriced"] else ""
    return [f"cost by list prices: {report['usd']:,.4f} USD{less}{which}{without}"]
