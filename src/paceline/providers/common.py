"""What the providers have in common: costs by a rule, and the steps from a request or an answer to its parts."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from paceline.core.quota import CONCURRENCY, DAY_S, INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, TOKENS, Cost
from paceline.core.results import Reading, Refusal, RefusalKind, RefusalScope
from paceline.estimation.estimate import SAFE_ENCODING
from paceline.providers import parse
from paceline.providers.base import AUDIO_SECONDS, COUNTING, Call, Headers, Provider, Usage, UsageReader
from paceline.providers.naming import others_of
from paceline.providers.prompt import MediaTokens, prompt_tokens
from paceline.providers.quota_headers import NOTHING, readings_in, restart_s
from paceline.providers.refusals import classify, of_window_in_words
from paceline.providers.streams import Found, JsonReader, SseReader
from paceline.responses.errors import error_in, error_of, message_of
from paceline.responses.values import decode, values_at

IMAGES: Final = "images"
"""The unit of images that are made, and of those that Cohere embeds."""

INPUTS: Final = "inputs"
"""Cohere's unit of embeddings: one text or image."""

PERIOD_NAMES: Final = {60.0: "minute", 3_600.0: "hour", DAY_S: "day"}


@dataclass(frozen=True, slots=True)
class CostRule:
    """How a provider counts the tokens of a request.

    Attributes:
        holds_maximum: At admission the request's ``max_output_tokens`` are held. Otherwise the expected output is, and
            ``max_output_tokens`` is only its bound.
        holds_at_most: No more output is held, and so much is where the request names no maximum; 0: not known.
        refunds: Output that was held and not produced is given back.
        counts_cached: Cached reads count.
        output_weight: How much a token of output counts in the unit ``tokens``.
        uncached_unit: A unit that counts the same as ``uncached_of``, but without cached reads.
        slots: A request occupies one slot of ``concurrency``.
    """

    holds_maximum: bool = False
    holds_at_most: int = 0
    refunds: bool = True
    counts_cached: bool = True
    output_weight: float = 1.0
    uncached_unit: str = ""
    uncached_of: str = TOKENS
    slots: bool = False

    def held(self, call: Call, input_tokens: float, output_tokens: float) -> Cost:
        most = call.max_output_tokens
        if self.holds_at_most:
            most = min(self.holds_at_most if most is None else most, self.holds_at_most)
        if most is not None:
            output_tokens = most if self.holds_maximum else min(output_tokens, most)
        cost = self._cost(call, input_tokens, output_tokens, 0)
        return cost | {CONCURRENCY: 1.0} if self.slots else cost

    def charged(self, call: Call, usage: Usage) -> Cost:
        input_tokens = usage.input_tokens if self.counts_cached else usage.input_tokens - usage.cached_tokens
        least = 0 if self.refunds else call.max_output_tokens or 0
        cost = self._cost(call, input_tokens, max(least, usage.output_tokens), usage.cached_tokens)
        return cost if usage.audio_s is None else cost | {AUDIO_SECONDS: usage.audio_s}

    def _cost(self, call: Call, input_tokens: float, output_tokens: float, cached_tokens: int) -> Cost:
        """One request in every unit that a user may have set a quota for."""
        cost = {
            REQUESTS: 1.0,
            TOKENS: float(input_tokens + output_tokens * self.output_weight),
            INPUT_TOKENS: float(input_tokens),
            OUTPUT_TOKENS: float(output_tokens),
        }
        for unit, counted in call.units.items():
            if counted:
                cost[unit] = float(counted)
        if self.uncached_unit:
            cost[self.uncached_unit] = cost[self.uncached_of] - cached_tokens
        return cost


def refusal_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a refusal, as a row has them."""
    kinds: dict[str, Any] = {"kind": RefusalKind, "scope": RefusalScope}
    return {name: kinds[name](said) if name in kinds else said for name, said in row.items()}


def _refinement(row: Mapping[str, Any], refusal: Refusal, text: str) -> dict[str, Any]:
    """What a row of ``refines`` makes of a refusal with this message; nothing if it is about others."""
    said = re.search(row.get("says", ""), text)
    if said is None:
        return {}
    is_about = (
        refusal.kind in row.get("kinds", (refusal.kind,))
        and refusal.scope == row.get("scope", refusal.scope)
        and all(getattr(refusal, name) is None for name in row.get("without", ()))
        and all((getattr(refusal, name) or 0.0) >= least for name, least in row.get("least", {}).items())
    )
    return refusal_fields(row.get("to", {})) | said.groupdict() if is_about else {}


class BaseProvider(Provider):
    """A provider with costs by a rule, one pool for each model, and the usual headers and errors.

    A subclass adds ``describe``, ``usage`` and ``_on_event``.
    """

    costs = CostRule()
    cache_s = 300.0
    """What :meth:`keeps_s` returns. Anthropic, OpenAI, Bedrock, Cerebras: 5 minutes at least (their documentation, 2026)."""
    media: MediaTokens
    """The tokens of images, audio and files."""
    events: tuple[bytes, ...] = (b'"usage"', b'"error"', b"[DONE]")
    """Of a streamed answer, only events that contain one of these are read."""
    prompts = ""
    """The field of a request that may have several prompts, and each gets so many answers; empty: none."""
    usages: tuple[str, ...] = ("usage",)
    """The keys of a usage object in a JSON answer, which may be longer than what is read of it."""
    codes: Mapping[str, Refusal] = {}
    """Error codes and HTTP statuses of its own, or with a meaning of its own."""
    refines: Collection[Mapping[str, Any]] = ()
    """What changes a refusal, as ``dialects.toml`` explains it."""
    documented = NOTHING
    """What it documents of its headers."""
    wait_header = ""
    """The header that says when to try again after a refusal that does not, with the quota's ``{unit}`` and ``{period}``."""
    day_ends_in = ""
    """The time zone at whose midnight a quota of a day restarts, also if a refusal states a shorter wait; empty: none."""
    errors_outrank = False
    """Whether an error beside a result means that the result is not whole."""

    def __init__(self, name: str, key_env: str, hosts: tuple[str, ...], encoding: str) -> None:
        self.name, self.key_env, self.hosts, self.encoding = name, key_env, hosts, encoding or SAFE_ENCODING

    def keeps_s(self, model: str) -> float:  # noqa: ARG002
        return self.cache_s

    def pool(self, model: str) -> str:
        return model

    def held(self, call: Call, input_tokens: float, output_tokens: float) -> Cost:
        return self.costs.held(call, input_tokens, output_tokens)

    def charged(self, call: Call, usage: Usage) -> Cost:
        return self.costs.charged(call, usage)

    def readings(self, headers: Headers, now_s: float) -> list[Reading]:
        return readings_in(headers, now_s, self.documented)

    def refusal(self, status: int, headers: Headers, body: bytes) -> Refusal | None:
        if status >= 400:
            return self._classify(status, *error_of(body), headers)
        return self._refused(decode(body), headers)

    def usage_reader(self, call: Call) -> UsageReader:
        if call.stream and call.endpoint not in self.lines:
            return SseReader(self._on_event, *self.events)
        return JsonReader(self.usage, *self.usages)

    def _classify(self, status: int | None, error: Mapping[str, Any], text: str, headers: Headers) -> Refusal | None:
        refusal = classify(status, error, text, headers, self.codes)
        if refusal is None:
            return None
        refusal = self._refined(refusal, error, text, headers)
        for row in self.refines:
            if becomes := _refinement(row, refusal, text):
                refusal = replace(refusal, **becomes)
        if refusal.kind is not RefusalKind.RATE:
            return refusal
        if refusal.period_s == DAY_S and self.day_ends_in:  # Google asks for 38 s
            until_s = parse.until_midnight_s(self.day_ends_in, parse.http_date_s(headers.get("date")))
            return replace(refusal, retry_after_s=until_s)
        if refusal.retry_after_s is None:
            unit, period = (refusal.unit or "").removeprefix("uncached_"), PERIOD_NAMES.get(refusal.period_s or 0.0, "")
            header = self.wait_header.format(unit=unit, period=period)
            asked_s = parse.reset_in(headers[header]).asked_s(headers) if header in headers else None
            refusal = replace(refusal, retry_after_s=asked_s or restart_s(headers))
        return of_window_in_words(refusal)

    def _refined(self, refusal: Refusal, error: Mapping[str, Any], text: str, headers: Headers) -> Refusal:  # noqa: ARG002
        """``refusal`` with what is particular to the provider; the arguments as of :func:`classify`."""
        return refusal

    def _refused(self, payload: Any, headers: Headers = MappingProxyType({})) -> Refusal | None:
        """The refusal in an answer, or in an event of a stream."""
        error = error_in(payload)
        return None if error is None else self._classify(None, error, message_of(error), headers)

    def _on_event(self, event: dict[str, Any], known: Usage | None) -> Found:
        """Read an event of a stream; ``known``: the usage so far."""
        raise NotImplementedError

    def _call(self, own: Mapping[str, Any], endpoint: str, model: str, body: Mapping[str, Any]) -> Call:
        """A request with this body, as the row ``own`` of its API reads it."""
        if endpoint == COUNTING:
            return Call(self.name, endpoint, COUNTING, 0, 0)
        model = parse.UNKNOWN if model == COUNTING else model  # its pool and its price are of no model
        schemas = values_at(body, own["schemas"])
        tokens = prompt_tokens([*map(body.get, own["texts"])], schemas, self.encoding_of(model), self.media)
        silent, limits = endpoint in own.get("silent", ()), own["maximum"]
        choices = parse.stated(body, own.get("choices", ())) or 1
        if self.prompts and isinstance(prompts := body.get(self.prompts), list) and prompts:
            choices *= parse.inputs_in(prompts)
        most = parse.stated(body, limits.get(endpoint, limits[""])) * choices or None
        most, stream, tier = 0 if silent else most, body.get("stream") is True, parse.tier_of(body)
        return Call(
            self.name, endpoint, model, tokens, most, stream, tier=tier, choices=choices, others=others_of(body, model)
        )

    def encoding_of(self, model: str) -> str:  # noqa: ARG002
        """The estimator's weights for a model."""
        return self.encoding
