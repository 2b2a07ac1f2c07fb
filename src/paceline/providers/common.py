"""What the providers have in common: costs by a rule, and the steps from a request or an answer to its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.core.quota import CONCURRENCY, INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, TOKENS, Cost
from paceline.core.results import Reading, Refusal
from paceline.estimation.estimate import SAFE_ENCODING
from paceline.providers import parse
from paceline.providers.base import Call, Headers, Provider, Usage, UsageReader
from paceline.providers.parse import as_text
from paceline.providers.prompt import MediaTokens, prompt_tokens
from paceline.providers.streams import Found, JsonReader, SseReader


def token_cost(input_tokens: float, output_tokens: float, output_weight: float = 1.0) -> Cost:
    """One request in every unit that a user may have set a quota for; ``output_weight`` applies to ``tokens`` only."""
    return {
        REQUESTS: 1.0,
        TOKENS: float(input_tokens + output_tokens * output_weight),
        INPUT_TOKENS: float(input_tokens),
        OUTPUT_TOKENS: float(output_tokens),
    }


@dataclass(frozen=True, slots=True)
class CostRule:
    """How a provider counts the tokens of a request.

    Attributes:
        holds_maximum: At admission the request's ``max_output_tokens`` are held. Otherwise the expected output is, and
            ``max_output_tokens`` is only its bound.
        refunds: Output that was held and not produced is given back.
        counts_cached: Cached reads count.
        output_weight: How much a token of output counts in the unit ``tokens``.
        uncached_unit: A unit that counts the same as ``uncached_of``, but without cached reads.
        slots: A request occupies one slot of ``concurrency``.
    """

    holds_maximum: bool = False
    refunds: bool = True
    counts_cached: bool = True
    output_weight: float = 1.0
    uncached_unit: str = ""
    uncached_of: str = TOKENS
    slots: bool = False

    def held(self, call: Call, input_tokens: float, output_tokens: float) -> Cost:
        """What is held at admission."""
        most = call.max_output_tokens
        if most is not None:
            output_tokens = most if self.holds_maximum else min(output_tokens, most)
        cost = self._cost(input_tokens, output_tokens, 0)
        return cost | {CONCURRENCY: 1.0} if self.slots else cost

    def charged(self, call: Call, usage: Usage) -> Cost:
        """What is charged in the end."""
        input_tokens = usage.input_tokens if self.counts_cached else usage.input_tokens - usage.cached_tokens
        least = 0 if self.refunds else call.max_output_tokens or 0
        return self._cost(input_tokens, max(least, usage.output_tokens), usage.cached_tokens)

    def _cost(self, input_tokens: float, output_tokens: float, cached_tokens: int) -> Cost:
        cost = token_cost(input_tokens, output_tokens, self.output_weight)
        if self.uncached_unit:
            cost[self.uncached_unit] = cost[self.uncached_of] - cached_tokens
        return cost


class BaseProvider(Provider):
    """A provider with costs by a rule, one pool for each model, and no quotas in headers.

    A subclass adds ``describe``, ``usage``, ``_classify`` and ``_on_event``.
    """

    costs = CostRule()
    charged_after: frozenset[str] = frozenset()
    units: frozenset[str] = frozenset()
    media: MediaTokens
    """The tokens of images, audio and files."""
    events: tuple[bytes, ...] = (b'"usage"', b'"error"', b"[DONE]")
    """Of a streamed answer, only events that contain one of these are read."""
    errors_outrank = False
    """Whether an error beside a result means that the result is not whole."""

    def __init__(self, name: str, key_env: str, hosts: tuple[str, ...], encoding: str) -> None:
        self.name, self.key_env, self.hosts, self.encoding = name, key_env, hosts, encoding or SAFE_ENCODING

    def pool(self, model: str) -> str:
        return model

    def held(self, call: Call, input_tokens: float, output_tokens: float) -> Cost:
        return self.costs.held(call, input_tokens, output_tokens)

    def charged(self, call: Call, usage: Usage) -> Cost:
        return self.costs.charged(call, usage)

    def readings(self, headers: Headers, now_s: float) -> list[Reading]:  # noqa: ARG002
        return []

    def refusal(self, status: int, headers: Headers, body: bytes) -> Refusal | None:
        error, text = parse.error_of(body)
        if status >= 400:
            return self._classify(status, error, text, headers)
        found = parse.error_in(parse.decode(body))
        return None if found is None else self._classify(None, found, as_text(found.get("message"))[:4_096], headers)

    def usage_reader(self, call: Call) -> UsageReader:
        return SseReader(self._on_event, *self.events) if call.stream else JsonReader(self.usage)

    def _classify(self, status: int | None, error: Mapping[str, Any], text: str, headers: Headers) -> Refusal | None:
        """The refusal in an error object; ``None`` for any other error.

        Args:
            status: The HTTP status; ``None`` for an error inside a stream.
            error: The error object.
            text: The provider's message.
            headers: The answer's headers; empty for an error inside a stream.
        """
        raise NotImplementedError

    def _on_event(self, event: dict[str, Any], known: Usage | None) -> Found:
        """Read an event of a stream; ``known`` is the usage so far."""
        raise NotImplementedError

    def _call(
        self, endpoint: str, model: str, parts: Sequence[Any], schemas: Any, most: int | None, *, stream: bool
    ) -> Call:
        """A request whose input is ``parts`` and ``schemas``, and whose output is bounded by ``most``."""
        return Call(self.name, endpoint, model, prompt_tokens(parts, schemas, self.encoding, self.media), most, stream)
