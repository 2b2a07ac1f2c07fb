"""The turns of conversations.

What a request is expected to cost while the provider has its prompt, and what its answer shows.
"""

from __future__ import annotations

import logging
from typing import Final

from paceline.core.queue import Estimate
from paceline.core.quota import CONCURRENCY, INPUT_TOKENS, NS, OUTPUT_TOKENS, REQUESTS, TOKENS, Cost
from paceline.core.results import QuotaError, Refusal, RefusalKind, RefusalScope
from paceline.estimation.prefixes import ORDERED_FROM, Cached, Prompt, named_keys
from paceline.pacing.permit import check_cost
from paceline.pacing.scheduler import Scheduler
from paceline.providers.base import Call, Provider, Usage

log = logging.getLogger("paceline")

CONVERSATION_MAX: Final = 200
"""The longest name of a conversation, in characters."""

_NOT_INPUT: Final = (REQUESTS, CONCURRENCY, OUTPUT_TOKENS)


def estimated(
    prompt: Prompt, cached: Cached, now_ns: int, whole: Cost, input_tokens: float, provider: Provider, call: Call
) -> Estimate:
    """What a request is expected to cost, and what it would lose.

    Args:
        prompt: Its prompt.
        cached: What of the prompt is expected to be cached.
        now_ns: The present.
        whole: What it costs if nothing is cached; it becomes what is expected.
        input_tokens: The size of the prompt.
        provider: The provider.
        call: The request.
    """
    tokens = min(cached.tokens, int(max(input_tokens - prompt.cache.fresh_tokens, 0.0)))
    if not tokens:
        return Estimate(whole)

    if not provider.holds_cached and (share := prompt.discount(now_ns)):
        fresh, read = (Usage(int(input_tokens), cached_tokens=part) for part in (0, tokens))
        less = provider.charged(call, read)
        for unit, amount in provider.charged(call, fresh).items():
            if unit in whole:
                whole[unit] -= share * (amount - less[unit])
    ordered = prompt.cache.orders and tokens >= ORDERED_FROM * input_tokens
    return Estimate(whole, tokens, cached.lost_ns if ordered else 0)


def answered(prompt: Prompt, usage: Usage, sent_ns: int, provider: Provider, pool: str) -> None:
    """Learn what of ``prompt`` was cached, from an answer to an attempt that was sent at ``sent_ns``."""
    life_ns = round((usage.cache_s or provider.keeps_s(pool.partition("/")[2])) * NS)
    counts = usage.input_tokens, usage.cached_tokens, usage.cache_write_tokens
    prompt.answered(sent_ns, life_ns, *counts, usage.output_tokens, usage.answer)
    # The advice holds for Anthropic's models, at any provider.
    if "claude" in pool and (tokens := prompt.cache.lost_in_an_hour(sent_ns)):
        log.warning(
            "%s: %d tokens in the last hour were cached again, because follow-ups came after their prompts had expired:"
            ' to cache them for an hour, set `cache_control` with `ttl: "1h"` (a write then costs 2 times the input'
            " price instead of 1.25 times)",
            *(pool, tokens),
        )


def refused(prompt: Prompt, refusal: Refusal, now_ns: int) -> None:
    """A refusal that may be about the input ends lower reservations for a while."""
    about_pool = refusal.kind is RefusalKind.RATE and refusal.scope is RefusalScope.POOL
    if about_pool and refusal.unit not in _NOT_INPUT:
        prompt.refused(now_ns)


class Turn:
    """One turn of a conversation that a caller acquires by hand.

    Args:
        scheduler: The scheduler of its pool.
        cost: What it costs if nothing is cached.
        conversation: The name of the conversation.
        cached_tokens: The tokens that the caller expects to be cached; ``None``: as the last answer has shown.

    Raises:
        QuotaError: The name or the number of tokens is invalid.
    """

    __slots__ = ("_cached", "_call", "_cost", "_prompt", "_provider", "_scheduler")

    def __init__(self, scheduler: Scheduler, cost: Cost, conversation: str, cached_tokens: float | None) -> None:
        from paceline.providers.answers import provider_of

        if not isinstance(conversation, str) or not 0 < len(conversation) <= CONVERSATION_MAX:
            shown = str(conversation)[:CONVERSATION_MAX]
            raise QuotaError(
                f"conversation is {shown!r}: it must be a text of 1 to {CONVERSATION_MAX} characters, or None"
            )
        if cached_tokens is not None:
            check_cost({"cached_tokens": cached_tokens})
        assert scheduler.prompt_cache is not None
        pool = scheduler.pool.name
        self._scheduler, self._cost, self._provider = scheduler, cost, provider_of(pool)
        self._call = Call(self._provider.name, "", pool.partition("/")[2], int(self._input_tokens))
        self._prompt = Prompt(scheduler.prompt_cache, named_keys("", conversation))
        self._cached: Cached | None = None
        if cached_tokens is not None:
            until_ns = scheduler.now_ns() + round(self._provider.keeps_s(self._call.model) * NS)
            self._cached = Cached(int(cached_tokens), until_ns)

    @property
    def _input_tokens(self) -> float:
        return self._cost[INPUT_TOKENS] if INPUT_TOKENS in self._cost else self._cost.get(TOKENS, 0.0)

    def estimate(self) -> Estimate:
        """Its present estimate."""
        now_ns = self._scheduler.now_ns()
        if self._cached is None or self._cached.lost_ns <= now_ns:
            cached = self._prompt.look(now_ns)
        else:
            cached = self._prompt.state(self._cached)
        return estimated(
            self._prompt, cached, now_ns, self._cost.copy(), self._input_tokens, self._provider, self._call
        )

    def answered(self, usage: Usage, sent_ns: int) -> None:
        """Learn from what its answer reports."""
        answered(self._prompt, usage, sent_ns, self._provider, self._scheduler.pool.name)

    def refused(self, refusal: Refusal) -> None:
        """Learn from a refusal."""
        refused(self._prompt, refusal, self._scheduler.now_ns())
