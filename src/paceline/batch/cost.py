"""What the answers of a run have used, and what they cost by the public prices, where ``genai-prices`` is installed (the extra ``budget``)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final

from paceline.providers.base import Usage
from paceline.providers.prices import STARTS

BATCH: Final = {"openai": 0.5, "groq": 0.5, "azure": 0.5, "mistral": 0.5, "anthropic": 0.5, "gemini": 0.5}
"""The price of a request in a batch, as a part of the usual one, as of 2026-11 (developers.openai.com/api/docs/guides/batch,
platform.claude.com, batch processing; console.groq.com/docs/batch; learn.microsoft.com/azure/ai-foundry/openai/how-to/batch;
docs.mistral.ai/capabilities/batch; ai.google.dev/gemini-api/docs/batch-api). Together has discounts on some models."""

_COUNTS: Final = (
    "input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "hour_write_tokens", "audio_tokens", "audio_output_tokens",
)  # fmt: skip


@dataclass(slots=True)
class Bill:
    """Counts answers, and prices them in the end: the prices take half a second to import.

    Args:
        given: Prices that hold before the public ones, as in the configuration.

    Attributes:
        answers: How many there were, finished or not.
        batched: How many answers came in batches.
        input_tokens: The input of all of them.
        output_tokens: Their output.
    """

    given: Mapping[str, Mapping[str, float]]
    answers: int = 0
    batched: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    _stated: float = 0.0
    _sums: dict[tuple[str, str, str, int, bool], tuple[int, list[int]]] = field(default_factory=dict)

    def add(self, provider: str, model: str, usage: Usage, *, batch: bool = False) -> None:
        """Count one answer. Those in one band of lengths are added up, because their price is linear."""
        self.answers += 1
        self.batched += batch
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        if usage.usd is not None:
            self._stated += usage.usd
            return
        kind = provider, model, usage.tier, bisect_left(STARTS, usage.input_tokens), batch
        count, sums = self._sums.get(kind, (0, [0] * len(_COUNTS)))
        self._sums[kind] = count + 1, [total + getattr(usage, name) for total, name in zip(sums, _COUNTS, strict=True)]

    def report(self) -> dict[str, float]:
        """The cost, for the summary; empty where prices are not installed.

        Returns:
            ``usd``: the cost in US dollars; ``usd_saved``: how much less that is than one by one; ``in_batches``: how many
            answers came in batches; ``unpriced``: the answers of models without a known price.
        """
        if find_spec("genai_prices") is None:
            return {}
        from paceline.providers.prices import Prices

        prices, usd, saved, unpriced = Prices(self.given), self._stated, 0.0, 0
        for (provider, model, tier, _, batch), (count, sums) in self._sums.items():
            price = prices.find(provider, model, tier, sums[0] / count)
            if price is None:
                unpriced += count
                continue
            used: dict[str, Any] = dict(zip(_COUNTS, sums, strict=True))
            whole = price.of(Usage(**used)) + (count - 1) * price.request
            part = BATCH.get(provider, 1.0) if batch else 1.0
            usd, saved = usd + whole * part, saved + whole * (1.0 - part)
        return {"usd": round(usd, 6), "usd_saved": round(saved, 6), "in_batches": self.batched, "unpriced": unpriced}


def dollars(usd: float) -> str:
    """An amount with four digits after the point, or six if four would show nothing."""
    return f"{usd:,.{4 if usd >= 0.0001 else 6}f}"


def in_words(report: Mapping[str, float], answered: int) -> list[str]:
    """The cost in a summary as a line; none without an answer."""
    if not answered:
        return []
    if "usd" not in report:
        return ["cost: not known without the list of prices: pip install 'paceline[budget]'"]
    if report["unpriced"] == answered:
        known = "name the provider whose prices apply with --provider (in Python: provider=), or state the price under [prices]"
        return [f"cost: no price of these answers is known: {known}"]
    less = f", {dollars(report['usd_saved'])} less than one by one" if report["usd_saved"] else ""
    which = f" ({report['in_batches']:,} of {answered:,} answers came in batches)" if report["in_batches"] else ""
    without = f"; without {report['unpriced']:,} answers whose price is not known" if report["unpriced"] else ""
    return [f"cost by list prices: {dollars(report['usd'])} USD{less}{which}{without}"]
