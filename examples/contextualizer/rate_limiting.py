"""The names of the author's design as a thin layer over paceline: estimate, wait, call, retry, record.

The names, their arguments and the words of the two errors are the design's. Where the behaviour differs, README.md says how.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from limited_settings import Settings

import paceline
from paceline.estimation.estimate import count_tokens

log = logging.getLogger(__name__)

POOL, CALLS = "contextualizer/tpm", "contextualizer/calls"
KEYWORDS = ("rate limit", "rate_limit", "429", "too many requests")
"""An error whose text has one of these is a rate limit, whatever its type."""


class TPMExhaustedError(Exception):
    """The provider refused every attempt; ``retry_after``: the wait that it asked for, in seconds, if any."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TokenBudgetExceededError(Exception):
    """A call is estimated above ``max_tokens_per_call``; it was not made."""


class TokenEstimator(Protocol):
    """Anything with this method."""

    def estimate(self, messages: list[dict[str, Any]], model: str) -> int:
        """The tokens of the messages."""
        ...


class LiteLLMTokenEstimator:
    """litellm's counter; paceline's estimate by characters where litellm is missing, or fails."""

    def estimate(self, messages: list[dict[str, Any]], model: str) -> int:
        """The tokens of the messages, at least 1."""
        try:
            import litellm

            return int(litellm.token_counter(model=model, messages=messages))
        except Exception as error:  # noqa: BLE001  (a tokenizer may fail in any way)
            log.debug("no count by litellm for %s (%s): estimated by characters", model, type(error).__name__)
            texts = [message.get("content") or "" for message in messages]
            return max(1, sum(count_tokens(text if isinstance(text, str) else json.dumps(text)) for text in texts))


LATE_S = 1.0
"""How much later a call of the factory's provider may come than others: it may have to connect first."""


class TPMThrottle:
    """Tokens in any 60 s, over all threads and event loops.

    A wait reserves its estimate, so that two threads never take the same room; the record of what was used replaces it.

    Args:
        max_tpm: The account's tokens per minute.
        safety_factor: The share of them to use.
        **options: As for :class:`paceline.Limiter`.
    """

    def __init__(self, max_tpm: int, safety_factor: float = 0.85, **options: Any) -> None:
        self.max_tpm = max_tpm
        self.limiter = paceline.Limiter({POOL: f"{max_tpm} tokens/min exact"}, usable=safety_factor, **options)
        self._lock, self._mine, self._reserved = threading.Lock(), threading.local(), 0

    @property
    def effective_limit(self) -> int:
        """The safety factor's share of ``max_tpm``."""
        return round(self._quota()["limit"])

    @property
    def current_usage(self) -> int:
        """The tokens recorded in the last 60 s; what is only reserved is not among them."""
        quota = self._quota()
        with self._lock:
            return max(0, round(quota["limit"] - quota["remaining"]) - self._reserved)

    @property
    def remaining_budget(self) -> int:
        """The rest of the limit; 0 when more was used than estimated."""
        return max(0, self.effective_limit - self.current_usage)

    def reserve(self, estimated_tokens: int) -> paceline.Acquisition:
        """Wait in a ``with`` or ``async with`` block, whose permit is settled: ``permit.settle(tokens=...)``."""
        return self.limiter.acquire(POOL, tokens=estimated_tokens)

    def wait_if_needed(self, estimated_tokens: int) -> float:
        """Wait until there is room, and reserve it until this thread's :meth:`record_usage`; the seconds waited.

        Raises:
            paceline.NeverFitsError: The estimate is above the limit.
        """
        self._close()
        permit = self.reserve(estimated_tokens).wait()
        with self._lock:
            self._reserved += estimated_tokens
        self._mine.permit, self._mine.estimated = permit, estimated_tokens
        return permit.waited_s

    def record_usage(self, actual_tokens: int) -> None:
        """Record what a call has used, in place of this thread's reservation, if there is one; never waits."""
        if not self._close(tokens=actual_tokens):
            with paceline.lane("records", priority=1):
                self.reserve(0).wait().settle(tokens=actual_tokens)

    def _close(self, **used: float) -> bool:
        """Settle this thread's reservation, which stays as estimated unless ``used`` is known; whether there was one."""
        permit = getattr(self._mine, "permit", None)
        if permit is None:
            return False
        self._mine.permit = None
        with self._lock:
            self._reserved -= self._mine.estimated
        permit.settle(**used)
        return True

    def _quota(self) -> Any:
        return self.limiter.status(queue=0)["pools"][POOL]["quotas"][0]


@dataclass(frozen=True)
class RateLimitInfo:
    """What a provider's headers say is left, in tokens, and when the quota is full again."""

    input_tokens_remaining: int | None = None
    output_tokens_remaining: int | None = None
    reset_at: datetime | None = None


class RetryHandler:
    """Attempts at one call: after a rate limit the next one waits ``initial_wait`` seconds, doubling, 25 % up or down.

    A ``retry-after`` takes precedence. While one caller waits, the others of this handler do, too.

    Args:
        max_attempts: Attempts in total, the first included.
        initial_wait: The first wait in seconds.
        **options: As for :class:`paceline.Limiter`.
    """

    def __init__(self, max_attempts: int = 3, initial_wait: float = 2.0, **options: Any) -> None:
        self.max_attempts, self.initial_wait = max_attempts, initial_wait
        policy = paceline.RetryPolicy(
            max_attempts=max_attempts, max_refused=max_attempts, backoff_s=initial_wait, jitter=0.25
        )
        self.limiter = paceline.Limiter({CALLS: "1M requests/s"}, learn=False, retry=policy, **options)

    def execute_with_retry(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``fn``; any error but a rate limit is raised at once.

        Raises:
            TPMExhaustedError: Every attempt was refused; its cause is the last error.
        """
        try:
            for attempt in self.limiter.attempts(CALLS):
                with attempt as permit:
                    try:
                        return fn(*args, **kwargs)
                    except Exception as error:
                        if not _is_rate_limit(error):
                            permit.settle()  # a closed permit is not retried
                        raise
        except paceline.GaveUpError as error:
            text = f"Rate limit: {error.attempts}/{self.max_attempts} retries exhausted; last error: {error.__cause__}"
            raise TPMExhaustedError(text, error.retry_after_s) from error.__cause__
        raise AssertionError("the attempts end with a result or an error")

    def extract_rate_limit_info(self, headers: Mapping[str, str]) -> RateLimitInfo | None:
        """What the headers of an answer say, of any provider that paceline knows; ``None`` if they say nothing."""
        found = {reading.unit: reading for reading in paceline.limits_in(headers).readings}
        sent, got = found.get("input_tokens") or found.get("tokens"), found.get("output_tokens")
        if sent is None and got is None:
            return None
        reset_s = None if sent is None else sent.reset_s
        at = None if reset_s is None else datetime.now(UTC) + timedelta(seconds=reset_s)
        return RateLimitInfo(*(None if one is None else round(one.remaining or 0) for one in (sent, got)), reset_at=at)


def _is_rate_limit(error: Exception) -> bool:
    """Whether ``error`` is a rate limit by its text, or by the answer that an SDK's error carries."""
    refusal = paceline.refusal_of(error)
    return (refusal is not None and refusal.kind is not paceline.RefusalKind.CAPACITY) or any(
        word in str(error).lower() for word in KEYWORDS
    )


class RateLimitedProvider:
    """A provider whose calls are estimated, wait, are retried and recorded; a drop-in replacement for it.

    Args:
        provider: Any object with ``generate`` and ``generate_structured``.
        throttle: Shared with all who use the same quota.
        estimator: Estimates a prompt.
        retry_handler: Retries rate limits.
        max_tokens_per_call: A call that is estimated above this is not made.
    """

    def __init__(
        self,
        provider: Any,
        throttle: TPMThrottle,
        estimator: TokenEstimator,
        retry_handler: RetryHandler,
        max_tokens_per_call: int | None = None,
    ) -> None:
        self.provider, self.throttle, self.estimator = provider, throttle, estimator
        self.retry_handler, self.max_tokens_per_call = retry_handler, max_tokens_per_call
        self.model_name = getattr(provider, "model_name", "unknown")

    def generate(self, prompt: str, system: str | None = None) -> Any:
        """An answer in prose; raises as :meth:`generate_structured`."""
        return self._call(self.provider.generate, prompt, system)

    def generate_structured(self, prompt: str, system: str | None = None, schema: Any = None) -> Any:
        """An answer by a schema.

        Raises:
            TokenBudgetExceededError: The estimate is above ``max_tokens_per_call``.
            TPMExhaustedError: The provider refused every attempt.
        """
        return self._call(self.provider.generate_structured, prompt, system, schema=schema)

    def _call(self, method: Callable[..., Any], prompt: str, system: str | None, **options: Any) -> Any:
        messages = [{"role": "system", "content": system}] if system else []
        estimated = self.estimator.estimate([*messages, {"role": "user", "content": prompt}], self.model_name)
        if self.max_tokens_per_call is not None and estimated > self.max_tokens_per_call:
            text = f"Estimated {estimated} tokens, which exceeds the limit of {self.max_tokens_per_call} for one call"
            raise TokenBudgetExceededError(text)
        with self.throttle.reserve(estimated) as permit:
            result = self.retry_handler.execute_with_retry(method, prompt, system=system, **options)
            used = getattr(result, "tokens_used", None)
            permit.settle(**({} if used is None else {"tokens": used}))  # not known: it stays as estimated
            return result


@dataclass(frozen=True)
class LLMResponse:
    """An answer, and the tokens that it cost, input and output together."""

    content: str
    model: str
    tokens_used: int


class OpenAIProvider:
    """OpenAI's API, or one like it, without any code for limits; the SDK makes one attempt."""

    def __init__(self, model_name: str, api_key: str | None = None, base_url: str | None = None) -> None:
        import openai

        self.model_name = model_name
        self.client = openai.OpenAI(api_key=api_key, base_url=base_url, max_retries=0)

    def generate(self, prompt: str, system: str | None = None, **options: Any) -> LLMResponse:
        """An answer in prose."""
        messages: Any = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
        said = self.client.chat.completions.create(model=self.model_name, messages=messages, **options)
        return LLMResponse(said.choices[0].message.content or "", said.model, said.usage.total_tokens)

    def generate_structured(self, prompt: str, system: str | None = None, schema: Any = None) -> Any:
        """An answer as an object of a pydantic class."""
        form = {"name": schema.__name__, "schema": schema.model_json_schema()}
        said = self.generate(prompt, system, response_format={"type": "json_schema", "json_schema": form})
        return schema.model_validate_json(said.content)


class AnthropicProvider:
    """Anthropic's API, without any code for limits; the SDK makes one attempt."""

    def __init__(self, model_name: str, api_key: str | None = None, base_url: str | None = None) -> None:
        import anthropic

        self.model_name = model_name
        self.client = anthropic.Anthropic(api_key=api_key, base_url=base_url, max_retries=0)

    def generate(self, prompt: str, system: str | None = None) -> LLMResponse:
        """An answer in prose."""
        messages: Any = [{"role": "user", "content": prompt}]
        said = self.client.messages.create(
            model=self.model_name, max_tokens=1_024, messages=messages, **({"system": system} if system else {})
        )
        return LLMResponse(said.content[0].text, said.model, said.usage.input_tokens + said.usage.output_tokens)

    def generate_structured(self, prompt: str, system: str | None = None, schema: Any = None) -> Any:
        """An answer as an object of a pydantic class."""
        form = f"Answer with JSON by this schema, and nothing else: {json.dumps(schema.model_json_schema())}"
        return schema.model_validate_json(self.generate(prompt, f"{system or ''}\n{form}").content)


PROVIDERS = {"anthropic": AnthropicProvider, "openai": OpenAIProvider}


@dataclass(frozen=True)
class Config:
    """The settings of the program; the limits come from ``MAX_TPM`` and so on (``.env.example``)."""

    llm_provider: str = "anthropic"
    model_name: str = "claude-haiku-5-5"
    api_key: str | None = None
    api_base_url: str | None = None
    max_tpm: int = 30_000
    tpm_safety_factor: float = 0.85
    max_tokens_per_call: int | None = None
    retry_max_attempts: int = 3
    retry_initial_wait: float = 2.0

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **given: Any) -> Config:
        """The limits from the environment, and ``given``.

        Raises:
            SettingError: A value is invalid.
        """
        read = Settings.from_env(environ)
        return cls(
            **given,
            max_tpm=read.max_tpm,
            tpm_safety_factor=read.tpm_safety_factor,
            max_tokens_per_call=read.max_tokens_per_call,
            retry_max_attempts=read.retry_max_attempts,
            retry_initial_wait=read.retry_initial_wait_s,
        )


def create_llm_provider(config: Config, throttle: TPMThrottle | None = None) -> RateLimitedProvider:
    """The provider of ``config``, wrapped; with the agent's ``throttle`` both share one quota."""
    inner = PROVIDERS[config.llm_provider](config.model_name, config.api_key, config.api_base_url)
    return RateLimitedProvider(
        provider=inner,
        throttle=throttle or TPMThrottle(config.max_tpm, config.tpm_safety_factor, headroom_s=LATE_S),
        estimator=LiteLLMTokenEstimator(),
        retry_handler=RetryHandler(config.retry_max_attempts, config.retry_initial_wait),
        max_tokens_per_call=config.max_tokens_per_call,
    )
