"""One request in the terms of an HTTP library, the record of it, and the response that paceline makes itself."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from paceline.core.quota import Cost
from paceline.core.results import (
    AcquireTimeoutError,
    BudgetError,
    GaveUpError,
    NeverFitsError,
    PacelineError,
    PoolStoppedError,
    QueueFullError,
    QuotaError,
    Refusal,
    RefusalKind,
    RefusalScope,
    SettingsError,
    StoreError,
    TooLargeError,
)
from paceline.core.stop import ENDS
from paceline.http.tap import Tap
from paceline.pacing.permit import Permit
from paceline.providers.base import Usage
from paceline.providers.verdict import Beginning


class UnsentError(Exception):
    """A binding's own refusal to send: the permit is given back."""


class Binding(Protocol):
    """One described request in the terms of an HTTP library, and its responses."""

    is_async: bool

    @property
    def address(self) -> str: ...  # the host, with a port that is not the usual one
    @property
    def target(self) -> tuple[str, str]: ...  # the host, without a port, and the path
    async def send(self, permit: Permit | None = None) -> Any: ...  # the response; `permit`: of this attempt
    def head(self, response: Any) -> tuple[int, Mapping[str, str]]: ...  # status; headers, names in lower case
    async def peek(
        self, response: Any, headers: Mapping[str, str], beginning: Beginning
    ) -> None: ...  # fed until it is enough
    def tap(self, response: Any, headers: Mapping[str, str], tap: Tap) -> None: ...  # fed while the caller reads
    def note(self, response: Any, record: Exchanged) -> None: ...
    async def close(self, response: Any) -> None: ...
    def respond(self, status: int, headers: Mapping[str, str], body: bytes) -> Any: ...  # a response made here


class Undescribed(Binding, Protocol):
    """The same of a request that is to be described."""

    method: str

    @property
    def in_memory(self) -> bool: ...  # whether the body of the request is there without reading
    @property
    def query(self) -> str: ...  # of its URL, as it is sent
    def header(self, name: str) -> str: ...  # its first value; empty for none
    async def content(self) -> bytes: ...  # of the request, which can still be sent


@dataclass(slots=True)
class Exchanged:
    """The record of one request; httpx and httpx2 carry it as ``response.extensions["paceline"]``.

    Attributes:
        pool: The pool that was charged.
        cost: What the last attempt reserved, per unit.
        attempts: HTTP attempts made.
        waited_s: Seconds spent in the queues of the pool and of the lane, over all attempts.
        refusals: The provider's refusals, in order.
        usage: What the answer reported; ``None`` until its body has passed.
        granted_ns: When the permit of the last attempt was granted, on the limiter's clock.
        settled: The permit of the answer, once its body has passed; ``None`` before, and without one.
        whole: Whether the answer has come to its end: not so of a stream that has broken off, or whose reader has left.
        failed: Whether a stream has an error in it.
    """

    pool: str
    cost: Cost = field(default_factory=dict)
    attempts: int = 0
    waited_s: float = 0.0
    refusals: list[Refusal] = field(default_factory=list)
    usage: Usage | None = None
    granted_ns: int = 0
    settled: Permit | None = field(default=None, repr=False)
    whole: bool = True
    failed: bool = False

    @property
    def charged(self) -> Cost | None:
        """What was charged for the answer, per unit; ``None`` until its body has passed, and without one."""
        return None if self.settled is None else self.settled.charged


_WORDS = {
    AcquireTimeoutError: "timeout", BudgetError: "budget", QueueFullError: "queue_full", NeverFitsError: "never_fits", PoolStoppedError: "stopped",
    QuotaError: "quota", SettingsError: "quota", StoreError: "store", TooLargeError: "too_large",
}  # fmt: skip


def own_refusal(http: Binding, error: PacelineError, record: Exchanged | None = None) -> Any:
    """A 429 of paceline's own, which every SDK raises as its ``RateLimitError`` without another attempt.

    After refusals for want of capacity it is a 503, as the provider's was. So it is where the store of the quotas has never answered:
    a handler of 429 backs off, and this needs a person.
    """
    word, status = _WORDS.get(type(error), "gave_up"), 429
    if isinstance(error, GaveUpError):
        if error.refusal.kind in ENDS and error.refusal.scope is RefusalScope.POOL:
            word = "stopped"
        elif error.refusal.kind is RefusalKind.NEVER_FITS:
            word = "never_fits"
        elif error.refusal.kind is RefusalKind.CAPACITY:
            status = 503
    elif isinstance(error, StoreError):
        status = 503
    headers = {"x-should-retry": "false", "x-paceline": word, "content-type": "application/json"}
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None and math.isfinite(retry_after_s):
        # Rounded up, because the header has whole seconds, and a client that comes too early is refused again.
        headers["retry-after"] = str(math.ceil(retry_after_s))
    kind = "rate_limit_error" if status == 429 else "service_unavailable_error"
    told = error.told if isinstance(error, PoolStoppedError) else error
    detail = {"type": kind, "code": f"paceline_{word}", "message": f"paceline: {told}", "param": None}
    response = http.respond(status, headers, json.dumps({"type": "error", "error": detail}).encode())
    if record is not None:
        http.note(response, record)
    return response
