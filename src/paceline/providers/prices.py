"""What requests cost in US dollars: given prices, else the prices of genai-prices, which collects them from providers' pages."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

from paceline.core.hints import why_missing
from paceline.core.results import SettingsError
from paceline.facts.form import MTOK, PRICE, is_price
from paceline.providers.base import COUNTING, Usage
from paceline.providers.parse import undated
from paceline.providers.registry import base_of, head_of
from paceline.providers.tables import stated

log = logging.getLogger("paceline")

PROBE: Final = 1_000
"""The tokens with which a price is asked for."""

FRESH_S: Final = 60
"""How long a looked-up price is used: some depend on the time of day."""

STARTS: Final = (32_000, 100_000, 128_000, 199_999, 200_000, 256_000, 272_000, 512_000, 524_288)
"""Above so many input tokens, some model costs more for the whole request (genai-prices 0.2.3, 2026-11-21)."""

_PROBED: Final[Mapping[str, list[tuple[str, ...]]]] = {
    "input": [("input_tokens",)],
    "output": [("output_tokens",), ("output_tokens", "output_image_tokens"), ("output_tokens", "output_video_tokens")],
    "cached": [("input_tokens", "cache_read_tokens")],
    "cache_write": [("input_tokens", "cache_write_tokens")],
    "hour_write": [("input_tokens", "cache_write_tokens", "cache_write_1h_tokens")],
    "audio": [("input_tokens", "input_audio_tokens")],
    "audio_output": [("output_tokens", "output_audio_tokens")],
}
"""The counts of genai-prices that have so many tokens more, by the part of a price that this shows; of several, the dearest: of models
that make pictures text counts as pictures do."""

PLAIN: Final = frozenset({"", "auto", "default", "standard", "standard_only", "on_demand", "batch"})
"""Service tiers at the standard price; of a batch, what it saves is counted apart."""


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a model, in US dollars for a million tokens.

    Attributes:
        cached: Of input that was read from a cache.
        cache_write: Of input that was written to a cache.
        hour_write: Of input that was written to a cache which keeps it for an hour.
        request: The fee for each request, in US dollars.
        audio: Of input that is audio.
        audio_output: Of output that is audio.
    """

    input: float
    output: float
    cached: float
    cache_write: float
    hour_write: float
    request: float = 0.0
    audio: float = 0.0
    audio_output: float = 0.0

    def of(self, usage: Usage) -> float:
        """The price of an answer with this usage."""
        plain = usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens
        audio, spoken = min(usage.audio_tokens, max(plain, 0)), min(usage.audio_output_tokens, usage.output_tokens)
        parts = (
            max(plain, 0) * self.input
            + audio * (self.audio - self.input)
            + spoken * (self.audio_output - self.output)
            + usage.cached_tokens * self.cached
            + (usage.cache_write_tokens - usage.hour_write_tokens) * self.cache_write
            + usage.hour_write_tokens * self.hour_write
            + usage.output_tokens * self.output
        )
        return parts / MTOK + self.request

    def most(self, usage: Usage) -> float:
        """The highest price of an answer with so much input and output: nothing is cached, all is written to the cache, or audio."""
        of_input = max(self.input, self.cached, self.cache_write, self.hour_write, self.audio)
        of_output = max(self.output, self.audio_output)
        return (usage.input_tokens * of_input + usage.output_tokens * of_output) / MTOK + self.request


FREE: Final = Price(0.0, 0.0, 0.0, 0.0, 0.0)


class Prices:
    """Prices by provider, model, service tier and length of the input.

    Args:
        given: By ``provider/model`` the price for a million tokens: ``input``, ``output``, and if need be ``cached``,
            ``cache_write``, which cost as much as input by default, ``hour_write`` (as ``cache_write``), and ``request``, a fee for each
            request in US dollars. ``provider/model@tier`` is the price of a service tier.

    Raises:
        SettingsError: A price is invalid, or genai-prices is missing.
    """

    def __init__(self, given: Mapping[str, Mapping[str, float]]) -> None:
        self._given = {name: _given(name, fields) for name, fields in given.items()}
        self._sellers = {name.partition("/")[0] for name in given}
        try:
            self._snapshot: Any = import_module("genai_prices.data_snapshot").get_snapshot()
        except ImportError as error:
            raise SettingsError(why_missing(error, "a budget in US dollars", "budget")) from None
        self._usage: Any = import_module("genai_prices").Usage
        self._model = lru_cache(maxsize=4_096)(self._find_model)
        self._highest = lru_cache(maxsize=4_096)(self._find_highest)
        self._highest_of = lru_cache(maxsize=256)(self._find_highest_of)
        self._price = lru_cache(maxsize=4_096)(self._find)
        self._warn_of_tier = lru_cache(maxsize=1_000)(_warn_of_tier)  # once for each

    def usd(self, provider: str, model: str, usage: Usage) -> float:
        """What a request that uses so much costs: as the provider states, else by its price."""
        if usage.usd is not None:
            return usage.usd
        return self._of(provider, model, usage).of(usage)

    def most_usd(self, provider: str, model: str, usage: Usage) -> float:
        """What a request with so much input and output costs at most."""
        return self._of(provider, model, usage).most(usage)

    def _of(self, provider: str, model: str, usage: Usage) -> Price:
        found = self.find(provider, model, usage.tier, usage.input_tokens)
        return found or self._highest(self._seller(provider), model)

    def _seller(self, provider: str) -> str:
        """Whose prices an account has: its own if some are given, else its provider's, which thousands of accounts share."""
        return provider if provider in self._sellers else base_of(provider)

    def output_max(self, provider: str, model: str) -> int | None:
        """The tokens that an answer of a model has at most, its context window if no more is known; ``None``: nothing is."""
        most: int | None = stated(base_of(provider), model, "output_max")
        found = self._model(base_of(provider), model) if most is None else None
        return most if found is None else found[1].context_window

    def find(self, provider: str, model: str, tier: str = "", input_tokens: float = 0) -> Price | None:
        """The price of a model for inputs of this length; ``None`` if it is not known."""
        if model == COUNTING:
            return FREE
        band = bisect_left(STARTS, input_tokens)
        tier, minute = "" if tier in PLAIN else tier, int(time.time()) // FRESH_S
        return self._price(self._seller(provider), model, tier, band, minute)

    def _find(self, provider: str, model: str, tier: str, band: int, _minute: int) -> Price | None:
        names = f"{provider}/{model}", f"{base_of(provider)}/{model}", model, undated(model.rpartition("/")[2])
        of_tier = [self._given.get(f"{name}@{tier}") for name in names] if tier else []
        given = next(filter(None, of_tier), None)
        if given is not None:
            return given
        given = next((self._given[name] for name in names if name in self._given), None)
        if given is None and (fields := stated(provider, model, "price")):
            given = _price(fields)
        library = None if given is not None else self._model(base_of(provider), model)
        if tier and (given is not None or (library is not None and not _has_tier(library[1], tier))):
            self._warn_of_tier(provider, model, tier)
        if library is None:
            return given
        try:
            return self._probe(*library, tier, STARTS[band - 1] + 1 if band else 0)
        except LookupError:  # not sold by tokens
            return None

    def _find_model(self, provider: str, model: str) -> tuple[Any, Any] | None:
        """A model of the library, or the one that is called as the end of its name: a deployment at Azure, Vertex' ``google/...``."""
        for name in (model, model.rpartition("/")[2]):
            with suppress(LookupError):
                found: tuple[Any, Any] = self._snapshot.find_provider_model(name, None, _id_of(provider), None)
                return found
        return None

    def _probe(self, provider: Any, model: Any, tier: str = "", least: int = 0, kinds: int | None = None) -> Price:
        """The price for inputs of ``least`` tokens and somewhat more, which is linear; ``kinds``: of the first kinds of output alone."""
        context = {"service_tier": tier, "speed": tier} if tier else None

        def usd(*counts: str) -> float:
            asked = {"input_tokens": 0, "output_tokens": 0} | dict.fromkeys(counts, PROBE)
            asked["input_tokens"] += least
            return float(model.calc_price(self._usage(**asked), provider, price_context=context).total_price)

        base = usd()
        dearest = {what: max(usd(*counts) for counts in ways[:kinds]) for what, ways in _PROBED.items()}
        price = {what: (most - base) * MTOK / PROBE for what, most in dearest.items()}
        return Price(**price, request=base - least * price["input"] / MTOK)

    def _find_highest(self, provider: str, model: str) -> Price:
        """The highest prices of the provider, for a model without a price; 0 for a provider without any."""
        price = self._highest_of(_id_of(provider))
        said = (
            "no price is known of %s at %s, so it counts as free: give one under [prices], in USD for a million tokens,"
            ' or refuse such requests with unpriced = "refuse"'
            if price is None
            else "no price is known of the model %s of %s, so the highest of this provider is counted: give one under [prices]"
        )
        log.warning(said, model, provider)
        return price or FREE

    def _find_highest_of(self, wanted: str) -> Price | None:
        prices = []
        for each in self._snapshot.providers:
            for one in each.models if each.id == wanted else ():
                with suppress(LookupError):  # not sold by tokens
                    prices.append(self._probe(each, one, least=STARTS[-1] + 1, kinds=1))  # most write texts
        return Price(*(max(getattr(price, field) for price in prices) for field in PRICE)) if prices else None


def _warn_of_tier(provider: str, model: str, tier: str) -> None:
    log.warning(
        "no price is known of the service tier %s of %s at %s, so the standard one is counted: give one under [prices] as %r",
        *(tier, model, provider, f"{provider}/{model}@{tier}"),
    )


def _has_tier(model: Any, tier: str) -> bool:
    return any(tier in variant.when.values() for variant in model.price_variants or ())


def _id_of(provider: str) -> str:
    return head_of(provider).prices or base_of(provider)


def _given(name: str, fields: Mapping[str, float]) -> Price:
    if not is_price(fields):
        raise SettingsError(
            f"price of {name!r}: {dict(fields)!r:.200}: give input and output, and if need be {', '.join(PRICE[2:])}, in USD for a million tokens"
        )
    return _price(fields)


def _price(fields: Mapping[str, float]) -> Price:
    as_input = dict.fromkeys(("cached", "cache_write", "hour_write", "audio"), fields["input"])
    write = fields.get("cache_write", fields["input"])
    return Price(**(as_input | {"hour_write": write, "audio_output": fields["output"]} | dict(fields)))
