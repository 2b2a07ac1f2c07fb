"""Pace any provider with ``generate`` and ``generate_structured``: estimate, wait, settle, retry."""

from __future__ import annotations

import inspect
import json
import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from limited_settings import POOL

import paceline
from paceline.estimation.estimate import count_tokens

OUTPUT_TOKENS = 500
"""The expected output of a call without ``max_tokens``."""

RECORDS_MAX = 10_000
"""The most calls that are kept one by one; the totals include all."""


@dataclass(frozen=True, slots=True)
class Record:
    """One call: its estimated and its real cost in tokens, and its wait in the queue in seconds."""

    method: str
    estimated: int
    used: int = 0
    attempts: int = 0
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Room:
    """The current state of the quota in tokens, over all its users."""

    limit: float
    used: float
    left: float
    waiting: int


class Limited:
    """A provider whose calls wait until the quota has room. Safe to use from any number of threads.

    All other attributes of the provider are available unchanged.

    Args:
        provider: Any object with ``generate(prompt, ...)`` and ``generate_structured(prompt, schema, ...)``. A
            parameter ``max_tokens`` is taken as the most output tokens.
        limiter: The limiter, shared by all users of the quota.
        pool: The quota's name in the limiter.
        keeps_max_tokens: The provider charges an answer's ``max_tokens`` even if it was shorter, as OpenAI does.
    """

    def __init__(
        self,
        provider: Any,
        limiter: paceline.Limiter,
        *,
        pool: str = POOL,
        keeps_max_tokens: bool = False,
    ) -> None:
        self.provider, self.limiter, self.pool = provider, limiter, pool
        self.records: deque[Record] = deque(maxlen=RECORDS_MAX)
        self.calls = self.tokens = 0
        self.waited_s = 0.0
        self._keeps_max_tokens = keeps_max_tokens
        self._counted = self._reported = 0  # of the answers: they correct the estimates, with 10 % before the first one
        self._lock, self._mine = threading.Lock(), threading.local()

    def generate(self, *args: Any, **options: Any) -> Any:
        """Call the provider's method when there is room.

        Raises:
            paceline.TooLargeError: The request is estimated above ``max_tokens_per_call``.
            paceline.GaveUpError: The provider refused every attempt, or the account has no money.
        """
        return self._call("generate", args, options)

    def generate_structured(self, *args: Any, **options: Any) -> Any:
        """Call the provider's method when there is room; raises as :meth:`generate`."""
        return self._call("generate_structured", args, options)

    @property
    def last(self) -> Record | None:
        """This thread's last call."""
        return getattr(self._mine, "last", None)

    def room(self) -> Room:
        """The used and remaining amounts now, and the number of waiting calls."""
        pool = self.limiter.status()["pools"][self.pool]
        quota = next(quota for quota in pool["quotas"] if quota["unit"] == "tokens")
        return Room(quota["limit"], quota["limit"] - quota["remaining"], quota["remaining"], pool["waiting"])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.provider, name)

    def _call(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        method = getattr(self.provider, name)
        counted, max_tokens = _estimate(method, args, options)
        with self._lock:
            prompt_tokens = math.ceil(counted * (self._reported / self._counted if self._counted else 1.1))
        estimated = prompt_tokens + (OUTPUT_TOKENS if max_tokens is None else max_tokens)
        expected, waited_s = estimated - prompt_tokens, 0.0
        attempts = self.limiter.attempts(self.pool, input_tokens=prompt_tokens, output_tokens=expected)
        for attempt in attempts:
            with attempt as permit:
                waited_s += permit.waited_s
                try:
                    answer = method(*args, **options)
                except Exception as error:
                    if _busy(error):
                        permit.settle()  # a closed permit is not retried
                    raise
                reported = usage_of(answer)
                sent, got = reported or _total(answer, counted) or (counted, _length(answer, expected))
                charged = max(got, max_tokens or 0) if self._keeps_max_tokens else got
                permit.settle(input_tokens=sent, output_tokens=charged)
                record = Record(name, estimated, sent + got, attempts.made, waited_s)
                self._keep(record, counted, sent if reported else 0)
                return answer
        raise AssertionError("the attempts end with an answer or an error")

    def _keep(self, record: Record, counted: int, reported: int) -> None:
        self._mine.last = record
        with self._lock:
            if reported:
                self._counted, self._reported = self._counted + counted, self._reported + reported
            self.records.append(record)
            self.calls += 1
            self.tokens += record.used
            self.waited_s += record.waited_s


def _busy(error: Exception) -> bool:
    """Whether the provider is overloaded: not a rate limit, so it is raised at once as any other error."""
    refusal = paceline.refusal_of(error)
    return refusal is not None and refusal.kind is paceline.RefusalKind.CAPACITY


def usage_of(answer: Any) -> tuple[int, int] | None:
    """Input and output tokens that an answer's ``usage`` reports, under either pair of names."""
    usage = _field(answer, "usage")
    values = usage if isinstance(usage, dict) else getattr(usage, "__dict__", None) or {}
    for sent, got in (("input_tokens", "output_tokens"), ("prompt_tokens", "completion_tokens")):
        if isinstance(values.get(sent), int) and isinstance(values.get(got), int):
            return values[sent], values[got]
    return None


def _total(answer: Any, counted: int) -> tuple[int, int] | None:
    """The same of an answer that reports ``tokens_used``, both together: above the estimated input it is output."""
    used = _field(answer, "tokens_used")
    return (min(counted, used), max(used - counted, 0)) if isinstance(used, int) else None


def _field(answer: Any, name: str) -> Any:
    return answer.get(name) if isinstance(answer, dict) else getattr(answer, name, None)


def _estimate(method: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> tuple[int, int | None]:
    """Tokens of all parts of the request, and its ``max_tokens``."""
    bound = inspect.signature(method).bind(*args, **options)
    bound.apply_defaults()
    asked = dict(bound.arguments)
    max_tokens = asked.pop("max_tokens", None)
    texts = [value if isinstance(value, str) else json.dumps(value, default=str) for value in asked.values() if value]
    return count_tokens("\n".join(texts), "o200k", exact=True), max_tokens


def _length(answer: Any, expected: int) -> int:
    """The length of an answer that reports no usage."""
    return count_tokens(answer, "o200k", exact=True) if isinstance(answer, str) else expected
