"""An attempt's life: describe, acquire, send, observe, pass the body on, settle; hold and retry what time can heal."""

from __future__ import annotations

import json
import logging
import math
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.core.quota import NS, Cost
from paceline.core.results import (
    AcquireTimeoutError,
    GaveUpError,
    NeverFitsError,
    PacelineError,
    PoolStoppedError,
    QueueFullError,
    QuotaError,
    Refusal,
    RefusalKind,
    StoreError,
)
from paceline.http.describe import Metered, describe
from paceline.http.sansio import Io, Send
from paceline.http.tap import Tap, decoded, decoder, tapped_stream, unread
from paceline.pacing.permit import Permit, current_permit
from paceline.pacing.retry import Again
from paceline.providers.base import Provider, Usage

if TYPE_CHECKING:
    from paceline.limiter.limiter import Limiter

log = logging.getLogger("paceline.http")

MARK = "paceline"
"""The key in a request's and a response's ``extensions``: who has handled it, and what came of it."""

ERROR_BODY_MAX, EVENT_MAX = 64_000, 1
"""How much of a refusing answer's body is looked at; of a 200's that may be one, no more than its first chunk."""

NEVER_SENT = {
    "ConnectError",
    "ConnectTimeout",
    "PoolTimeout",
    "UnsupportedProtocol",
    "LocalProtocolError",
    "ProxyError",
    "NothingSentError",
}
"""The HTTP libraries' errors after which the provider has certainly seen nothing."""

_above: ContextVar[list[bool] | None] = ContextVar("paceline_paced_above", default=None)


class NothingSentError(BaseException):
    """Raised by a ``send`` that needed no request after all. Nobody's failure, so no ``Exception``."""


@contextmanager
def paced_above() -> Iterator[None]:
    """Whatever paces HTTP clients below lets the next metered request pass: a door above has paced it."""
    token = _above.set([True])
    try:
        yield
    finally:
        _above.reset(token)


def _passes() -> bool:
    above = _above.get()
    return bool(above and above.pop())


@dataclass(slots=True)
class Exchanged:
    """What became of one request; the response carries it as ``response.extensions["paceline"]``.

    Attributes:
        pool: The pool that was charged.
        cost: What the last attempt reserved, per unit.
        attempts: HTTP attempts made.
        waited_s: Seconds spent in line, over all attempts.
        refusals: What refusing answers said, in order.
        usage: What the answer reported; ``None`` until its body has passed.
    """

    pool: str
    cost: Cost = field(default_factory=dict)
    attempts: int = 0
    waited_s: float = 0.0
    refusals: list[Refusal] = field(default_factory=list)
    usage: Usage | None = None


async def exchange(limiter: Limiter, io: Io, send: Send, request: Any, provider: Provider | None = None) -> Any:
    """Send ``request`` at the pool's pace and return the response.

    Whatever happens to the caller meanwhile, cancellation included, the books are right: a request that was
    never sent is given back, one that may have been counted stays charged.
    """
    if MARK in request.extensions:  # paced above already: attach() below instrument(), or both on one client
        return await io.send(send, request)
    try:
        metered = await describe(limiter, request, provider, io)
    except QuotaError as error:
        return _synthetic(request, error)
    if metered is None or _passes():
        return await io.send(send, request)
    before = request.extensions
    request.extensions = {**before, MARK: True}
    try:
        return await _Exchange(limiter, io, send, request, metered).run()
    finally:
        request.extensions = before  # sent once more by the caller, it is paced once more


class _Exchange:
    def __init__(self, limiter: Limiter, io: Io, send: Send, request: Any, metered: Metered) -> None:
        self.limiter, self.io, self.request, self.metered = limiter, io, request, metered
        self.send = send
        self.scheduler = metered.scheduler
        self.record = Exchanged(metered.scheduler.pool.name)
        self.started_ns = limiter.clock.now_ns()

    async def run(self) -> Any:
        permit: Permit | None = None
        while True:
            try:
                permit = await self._permit(permit)
            except PacelineError as error:
                return _synthetic(self.request, error, self.record)
            self.record.attempts += 1
            if self.record.attempts == 1:
                self.limiter.first_attempt(self.scheduler)
            try:
                response = await self.io.send(self.send, self.request)
            except BaseException as error:
                # Noted before the permit is closed: a probe that failed must not let the others go.
                delay_s = self._after_fault(permit) if isinstance(error, Exception) else None
                if {type(error).__name__, type(error.__cause__).__name__} & NEVER_SENT:  # SDKs wrap them
                    permit.cancel()
                else:
                    permit.settle()  # it may have been counted
                if delay_s is None:
                    raise
                await self.io.sleep(delay_s)
                continue
            headers = _plain(response.headers)
            readings = self.metered.provider.readings(headers, self.limiter.clock.now_ns() / NS)
            if readings:
                self.scheduler.observe(readings, permit.reservation)
            if response.status_code < 500:
                self.limiter.succeeded(self.metered.provider.name)
            try:
                answer = await self._answer(response, headers, permit)
            except BaseException:  # cancelled while an error's body was read
                permit.close()
                raise
            if answer is not None:
                return answer

    async def _answer(self, response: Any, headers: Mapping[str, str], permit: Permit) -> Any | None:
        """What to hand up; ``None`` to try again."""
        # A refusal can come as a 200 (Azure, streamed): it says so with a retry-after.
        if response.status_code < 400:
            if "retry-after" not in headers:
                return self._tapped(response, headers, permit)
            body = await self._peek(response, headers, EVENT_MAX)
            if self.metered.provider.refusal(response.status_code, headers, body) is None:
                return self._tapped(response, headers, permit)
        else:
            body = await self._peek(response, headers, ERROR_BODY_MAX)
        return await self._failed(response, headers, body, permit)

    async def _permit(self, refused: Permit | None) -> Permit:
        permit = current_permit(self.record.pool) if refused is None else None
        if permit is None:
            permit = await self.io.permit(self.limiter.acquire_call(self.scheduler, self.metered.cost(), again=refused))
        self.record.cost = permit.cost
        self.record.waited_s += permit.waited_s
        return permit

    def _tapped(self, response: Any, headers: Mapping[str, str], permit: Permit) -> Any:
        """The answer, settled when its body has passed."""

        def settle(usage: Usage | None, refusal: Refusal | None) -> None:
            if refusal is not None:  # inside an answer that had begun: the caller has it, we only learn
                self.record.refusals.append(refusal)
                permit.refused(refusal)
            elif usage is None:
                permit.settle()
            else:
                self.record.usage = usage
                self.metered.calibration.learn(
                    input_estimate=self.metered.call.input_tokens,
                    input_tokens=usage.input_tokens,
                    max_output_tokens=self.metered.call.max_output_tokens,
                    output_tokens=usage.output_tokens,
                )
                permit.settle(**self.metered.provider.charged(self.metered.call, usage))

        response.extensions = {**response.extensions, MARK: self.record}
        reader = self.metered.provider.usage_reader(self.metered.call)
        if hasattr(response, "_content"):  # read already: nobody will iterate its stream
            tap = Tap(reader, None, settle)
            tap.feed(response.content)
            tap.finish()
        else:
            response.stream = tapped_stream(
                httpx_of(type(response)), response.stream, Tap(reader, decoder(response, headers), settle)
            )
        return response

    async def _peek(self, response: Any, headers: Mapping[str, str], most: int) -> bytes:
        """The beginning of the body, decoded; the caller can still read all of it."""
        if hasattr(response, "_content"):
            content: bytes = response.content[:most]
            return content
        stream = response.stream
        try:
            taken, rest = await self.io.peek(stream, most)
        except Exception as error:  # noqa: BLE001  (a body that breaks off: the status alone must do)
            log.debug("%s: an answer's body broke off: %s", self.record.pool, type(error).__name__)
            taken, rest = [], stream
        response.stream = unread(httpx_of(type(response)), stream, taken, rest)
        return decoded(response, headers, taken, most)

    async def _failed(self, response: Any, headers: Mapping[str, str], body: bytes, permit: Permit) -> Any | None:
        """What to hand up; ``None`` to try again (any pause is over by then)."""
        refusal = self.metered.provider.refusal(response.status_code, headers, body)
        response.extensions = {**response.extensions, MARK: self.record}
        if refusal is None:
            delay_s = self._after_fault(permit) if response.status_code >= 500 else None
            permit.settle()  # a request that failed may have been counted
            if delay_s is None:
                return response
            await self.io.close(response)
            await self.io.sleep(delay_s)
            return None
        await self.io.close(response)
        self.record.refusals.append(refusal)
        if refusal.kind is RefusalKind.CAPACITY:
            self.limiter.failed(self.metered.provider.name, permit.reservation.granted_ns)
        decision = self._decide(refusal)
        permit.refuse(refusal, self.limiter.retry.pause_s(refusal, decision))
        log.info("%s: refused (%s), attempt %d", self.record.pool, refusal.kind.value, self.record.attempts)
        if not isinstance(decision, Again):
            return _synthetic(
                self.request, GaveUpError(self.record.pool, self.record.attempts, refusal, decision.reason), self.record
            )
        if not decision.pool_wide:  # else the line makes it wait: for the pool's pause, and for the quotas
            await self.io.sleep(self._delay_s(decision))
        return None

    def _after_fault(self, permit: Permit) -> float | None:
        """How long to wait before another attempt after a server fault or a broken connection; ``None``: none."""
        self.limiter.failed(self.metered.provider.name, permit.reservation.granted_ns)
        if not self.limiter.retry.faults:
            return None
        decision = self._decide(None)
        return self._delay_s(decision) if isinstance(decision, Again) else None

    def _delay_s(self, again: Again) -> float:
        """The pause before another attempt: what was decided, or what the budget for retries asks."""
        return max(again.delay_s, self.limiter.retry_delay_s(self.scheduler))

    def _decide(self, refusal: Refusal | None) -> Any:
        elapsed_s = (self.limiter.clock.now_ns() - self.started_ns) / NS
        in_row = self.scheduler.pool.refused_in_row if refusal is not None else 0
        return self.limiter.retry.after(self.record.attempts, elapsed_s, refusal, random.random(), in_row=in_row)


_WORDS = {
    AcquireTimeoutError: "timeout", QueueFullError: "queue_full", NeverFitsError: "never_fits", PoolStoppedError: "stopped",
    QuotaError: "quota", StoreError: "store",
}  # fmt: skip


def _synthetic(request: Any, error: PacelineError, record: Exchanged | None = None) -> Any:
    """Our own refusal, as a 429 that every SDK turns into its ``RateLimitError`` without another attempt."""
    word = _WORDS.get(type(error), "gave_up")
    if isinstance(error, GaveUpError) and error.refusal.kind is RefusalKind.MONEY:
        word = "stopped"
    headers = {"x-should-retry": "false", "x-paceline": word, "content-type": "application/json"}
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None and math.isfinite(retry_after_s):
        headers["retry-after"] = str(math.ceil(retry_after_s))
    detail = {"type": "rate_limit_error", "code": f"paceline_{word}", "message": f"paceline: {error}", "param": None}
    body = json.dumps({"type": "error", "error": detail}).encode()
    extensions: Mapping[str, Any] = {MARK: record} if record else {}
    return httpx_of(type(request)).Response(429, headers=headers, content=body, request=request, extensions=extensions)


def _plain(headers: Any) -> dict[str, str]:
    """The headers as a plain mapping with names in lower case: it is looked into some twenty times."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers.raw}


def httpx_of(cls: type) -> Any:
    """The module, httpx or httpx2, that a class is from."""
    for base in cls.__mro__:
        root = sys.modules[base.__module__.partition(".")[0]]
        if hasattr(root, "AsyncByteStream"):
            return root
    raise TypeError(f"{cls.__name__} belongs neither to httpx nor to httpx2")
