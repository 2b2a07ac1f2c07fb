"""Make any provider with ``generate`` and ``generate_structured`` keep to a limiter: estimate, wait, settle, retry."""

from __future__ import annotations

import inspect
import json
import math
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from limited_settings import POOL, Settings

import paceline
from paceline.estimate import Correction, count_tokens

OUTPUT_TOKENS = 500
"""What an answer is expected to have when the call names no ``max_tokens``."""

RECORDS_MAX = 10_000
"""How many calls are remembered one by one; the totals know them all."""


class TooLargeError(Exception):
    """A request is estimated above the bound for one call; it was not sent.

    Attributes:
        estimated: Its estimate, in tokens.
        most: The bound, in tokens.
    """

    def __init__(self, estimated: int, most: int) -> None:
        super().__init__(f"the request is estimated at {estimated:,} tokens, and one call may have {most:,}")
        self.estimated, self.most = estimated, most


class RateLimitedError(Exception):
    """The provider refused every attempt.

    Attributes:
        attempts: How many were made.
        last: The provider's last error; it is the ``__cause__``, too.
        retry_after: How long the provider asked to wait last, in seconds; ``None`` if it did not say.
    """

    def __init__(self, attempts: int, last: Exception, retry_after: float | None) -> None:
        asked = "" if retry_after is None else f"; it asks to wait {retry_after:g} s"
        super().__init__(f"the provider refused {attempts} of {attempts} attempts{asked}")
        self.attempts, self.last, self.retry_after = attempts, last, retry_after


@dataclass(frozen=True, slots=True)
class Record:
    """One call: what it was thought to cost, what it did, in tokens, and how long it waited in line, in seconds."""

    method: str
    estimated: int
    used: int = 0
    attempts: int = 0
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Room:
    """The quota at this moment, in tokens: of everybody who shares it."""

    limit: float
    used: float
    left: float
    waiting: int


class Limited:
    """A provider whose calls wait until the quota has room. Safe to use from any number of threads.

    Everything else that the provider offers is there unchanged.

    Args:
        provider: Any object with ``generate(prompt, ...)`` and ``generate_structured(prompt, schema, ...)``. A
            parameter ``max_tokens`` is understood as the longest answer.
        limiter: Whose quota; share it with whoever spends from the same one.
        settings: For the bound on one call.
        pool: The quota's name in the limiter.
        keeps_max_tokens: The provider charges an answer's ``max_tokens`` even if it was shorter, as OpenAI does.
        refusal_of: What an error says if it is a rate limit, else ``None``; by default by status 429 and ``retry-after``.
    """

    def __init__(
        self,
        provider: Any,
        limiter: paceline.Limiter,
        settings: Settings,
        *,
        pool: str = POOL,
        keeps_max_tokens: bool = False,
        refusal_of: Callable[[Exception], paceline.Refusal | None] | None = None,
    ) -> None:
        limiter.gate(pool)  # a name that nobody knows is said now, and the status shows the pool from the start
        self.provider, self.limiter, self.settings, self.pool = provider, limiter, settings, pool
        self.records: deque[Record] = deque(maxlen=RECORDS_MAX)
        self.calls = self.tokens = 0
        self.waited_s = 0.0
        self._keeps_max_tokens = keeps_max_tokens
        self._refusal_of = refusal_of or rate_limit
        self._correction = Correction()  # what the answers teach about the estimates; 10 % on top before the first
        self._lock, self._mine = threading.Lock(), threading.local()

    def generate(self, *args: Any, **options: Any) -> Any:
        """As the provider's, when there is room.

        Raises:
            TooLargeError: It is estimated above ``max_tokens_per_call``.
            RateLimitedError: The provider refused every attempt.
        """
        return self._call("generate", args, options)

    def generate_structured(self, *args: Any, **options: Any) -> Any:
        """As the provider's, when there is room; raises as :meth:`generate`."""
        return self._call("generate_structured", args, options)

    @property
    def last(self) -> Record | None:
        """This thread's last call."""
        return getattr(self._mine, "last", None)

    def room(self) -> Room:
        """What is used and what is left now, and how many wait."""
        pool = self.limiter.status()["pools"][self.pool]
        quota = next(quota for quota in pool["quotas"] if quota["unit"] == "tokens")
        return Room(quota["limit"], quota["limit"] - quota["remaining"], quota["remaining"], pool["waiting"])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.provider, name)

    def _call(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        method = getattr(self.provider, name)
        counted, max_tokens = _estimate(method, args, options)
        with self._lock:
            prompt_tokens = math.ceil(self._correction.apply(counted))
        record = Record(name, prompt_tokens + (OUTPUT_TOKENS if max_tokens is None else max_tokens))
        most = self.settings.max_tokens_per_call
        if most is not None and record.estimated > most:
            raise TooLargeError(record.estimated, most)
        cost = {"input_tokens": prompt_tokens, "output_tokens": record.estimated - prompt_tokens}
        permit: paceline.Permit | None = None
        while True:
            with self.limiter.acquire(self.pool, again=permit, **cost) as permit:
                record = replace(record, attempts=record.attempts + 1, waited_s=record.waited_s + permit.waited_s)
                try:
                    answer = method(*args, **options)
                except Exception as error:
                    if not self._again(permit, record.attempts, error):
                        raise
                else:
                    reported = usage_of(answer)
                    sent, got = reported or (counted, _length(answer, record.estimated - prompt_tokens))
                    charged = max(got, max_tokens or 0) if self._keeps_max_tokens else got
                    permit.settle(input_tokens=sent, output_tokens=charged)
                    self._keep(replace(record, used=sent + got), counted, sent if reported else 0)
                    return answer

    def _again(self, permit: paceline.Permit, attempts: int, error: Exception) -> bool:
        """Whether to try again; if so the whole pool pauses before."""
        refusal = self._refusal_of(error)
        if refusal is None:
            return False
        decision = self.limiter.retry.after(attempts, 0.0, refusal, random.random())
        delay_s = getattr(decision, "delay_s", None)  # else it is to give up
        permit.refused(refusal, retry_after_s=delay_s)
        if delay_s is None:
            raise RateLimitedError(attempts, error, refusal.retry_after_s) from error
        return True

    def _keep(self, record: Record, counted: int, reported: int) -> None:
        self._mine.last = record
        with self._lock:
            self._correction.observe(counted, reported)
            self.records.append(record)
            self.calls += 1
            self.tokens += record.used
            self.waited_s += record.waited_s


def rate_limit(error: Exception) -> paceline.Refusal | None:
    """What ``error`` says, if it is a rate limit's: SDKs put ``status_code`` on it, and the answer as ``response``.

    ``insufficient_quota`` is a 429, too, but no waiting helps against an empty account.
    """
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", None) or getattr(response, "status_code", None)
    if status != 429 or getattr(error, "code", None) == "insufficient_quota":
        return None
    asked = getattr(error, "retry_after", None)
    if asked is None:
        asked = (getattr(response, "headers", None) or {}).get("retry-after")
    try:
        retry_after_s = None if asked is None else max(float(asked), 0.0)
    except (TypeError, ValueError):  # a date: the doubling waits serve as well
        retry_after_s = None
    return paceline.Refusal(paceline.RefusalKind.RATE, retry_after_s=retry_after_s)


def usage_of(answer: Any) -> tuple[int, int] | None:
    """Input and output tokens that an answer's ``usage`` reports, under either pair of names."""
    usage = answer.get("usage") if isinstance(answer, dict) else getattr(answer, "usage", None)
    values = usage if isinstance(usage, dict) else getattr(usage, "__dict__", None) or {}
    for sent, got in (("input_tokens", "output_tokens"), ("prompt_tokens", "completion_tokens")):
        if isinstance(values.get(sent), int) and isinstance(values.get(got), int):
            return values[sent], values[got]
    return None


def _estimate(method: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> tuple[int, int | None]:
    """Tokens of everything that is sent, and the longest answer that is asked for."""
    bound = inspect.signature(method).bind(*args, **options)
    bound.apply_defaults()
    asked = dict(bound.arguments)
    max_tokens = asked.pop("max_tokens", None)
    texts = [value if isinstance(value, str) else json.dumps(value, default=str) for value in asked.values() if value]
    return count_tokens("\n".join(texts), "o200k", exact=True), max_tokens


def _length(answer: Any, expected: int) -> int:
    """The length of an answer that reports no usage."""
    return count_tokens(answer, "o200k", exact=True) if isinstance(answer, str) else expected
