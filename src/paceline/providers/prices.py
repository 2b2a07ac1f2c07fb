"""What requests cost in US dollars: given prices, else those of genai-prices, which collects them from providers' pages."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

from paceline.core.results import QuotaError
from paceline.providers.base import Usage
from paceline.providers.registry import base_of

log = logging.getLogger("paceline")

MTOK: Final = 1_000_000
"""Prices are stated for a million tokens."""

PROBE: Final = 1_000
"""The tokens with which a price is asked for."""

TIER: Final = 100_000
"""Up to so many input tokens a price is linear; beyond them some models cost more, and each request is priced by itself."""

NAMES: Final = {
    "gemini": "google",
    "vertex": "google",
    "bedrock": "aws",
    "xai": "x-ai",
    "voyage": "voyageai",
    "moonshot": "moonshotai",
}
"""The names of providers in genai-prices, where they are other ones."""

FIELDS: Final = ("input", "output", "cached", "cache_write")


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a model, in US dollars for a million tokens.

    Attributes:
        cached: Of input that was read from a cache.
        cache_write: Of input that was written to a cache.
        exact: Whether it holds for every length of the input.
    """

    input: float
    output: float
    cached: float
    cache_write: float
    exact: bool = True

    def of(self, usage: Usage) -> float:
        """The price of an answer with this usage."""
        plain = usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens
        parts = (
            max(plain, 0) * self.input + usage.cached_tokens * self.cached + usage.cache_write_tokens * self.cache_write
        )
        return (parts + usage.output_tokens * self.output) / MTOK


class Prices:
    """Prices by provider and model.

    Args:
        given: By ``provider/model`` the price for a million tokens: ``input``, ``output``, and if need be ``cached`` and
            ``cache_write``, which cost as much as input by default.

    Raises:
        QuotaError: A price is invalid, or genai-prices is missing.
    """

    def __init__(self, given: Mapping[str, Mapping[str, float]]) -> None:
        self._given = {name: _given(name, fields) for name, fields in given.items()}
        try:
            self._library: Any = import_module("genai_prices")
        except ImportError:
            raise QuotaError("budgets need prices: pip install 'paceline[budget]'") from None
        self._price = lru_cache(maxsize=4_096)(self._look_up)
        self.find = lru_cache(maxsize=4_096)(self._find)

    def usd(self, provider: str, model: str, usage: Usage) -> float:
        """What a request that uses so much costs."""
        price = self._price(provider, model)
        if not price.exact and usage.input_tokens > TIER:
            return self._by_library(provider, model, usage)
        return price.of(usage)

    def _find(self, provider: str, model: str) -> Price | None:
        """The price of a model; ``None`` if it is not known."""
        names = f"{provider}/{model}", f"{base_of(provider)}/{model}", model
        given = next((self._given[name] for name in names if name in self._given), None)
        if given is not None:
            return given
        try:
            return self._probe(provider, model)
        except LookupError:
            return None

    def _look_up(self, provider: str, model: str) -> Price:
        return self.find(provider, model) or self._highest(provider, model)

    def _probe(self, provider: str, model: str) -> Price:
        probes = (
            Usage(input_tokens=PROBE),
            Usage(output_tokens=PROBE),
            Usage(input_tokens=PROBE, cached_tokens=PROBE),
            Usage(input_tokens=PROBE, cache_write_tokens=PROBE),
        )
        amounts = [self._by_library(provider, model, probe) * MTOK / PROBE for probe in probes]
        return Price(amounts[0], amounts[1], amounts[2], amounts[3], exact=False)

    def _by_library(self, provider: str, model: str, usage: Usage) -> float:
        tokens = self._library.Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
        )
        found = self._library.calc_price(tokens, model_ref=model, provider_id=_id_of(provider))
        return float(found.total_price)

    def _highest(self, provider: str, model: str) -> Price:
        """The highest prices of the provider, for a model without a price; 0 for a provider without any."""
        snapshot = import_module("genai_prices.data_snapshot").get_snapshot()
        wanted = _id_of(provider)
        models = [one.id for each in snapshot.providers if each.id == wanted for one in each.models]
        prices = []
        for one in models:
            try:
                prices.append(self._probe(provider, one))
            except LookupError:  # not sold by tokens
                continue
        if not prices:
            log.warning(
                "no price is known of %s at %s, so it counts as free: give one under [prices], in USD for a million tokens",
                model,
                provider,
            )
            return Price(0.0, 0.0, 0.0, 0.0)
        log.warning(
            "no price is known of the model %s of %s, so the highest of this provider is counted: give one under [prices]",
            model,
            provider,
        )
        return Price(*(max(getattr(price, field) for price in prices) for field in FIELDS))


def _id_of(provider: str) -> str:
    """The name of a provider in genai-prices."""
    base = base_of(provider)
    return NAMES.get(base, base)


def _given(name: str, fields: Mapping[str, float]) -> Price:
    for field, value in fields.items():
        if (
            field not in FIELDS
            or isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 <= value < MTOK
        ):
            raise QuotaError(
                f"price of {name!r}: {field} = {value!r}: give {', '.join(FIELDS)}, in USD for a million tokens"
            )
    if not {"input", "output"} <= fields.keys():
        raise QuotaError(f"price of {name!r}: give input and output, in USD for a million tokens")
    of_input = fields["input"]
    return Price(of_input, fields["output"], fields.get("cached", of_input), fields.get("cache_write", of_input))
