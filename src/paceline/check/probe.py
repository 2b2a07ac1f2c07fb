"""Send one request and read what its answer says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx2

from paceline.check.target import Target
from paceline.check.verdict import Finding, compare, told_by
from paceline.config import Config
from paceline.core.results import Reading, Refusal, RefusalKind
from paceline.http import pace_transport
from paceline.limiter.limiter import Limiter
from paceline.pacing.retry import RetryPolicy

TIMEOUT_S: Final = 60.0
MESSAGE_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of one request.

    Attributes:
        model: ``provider/model``.
        pool: The pool that it is charged to.
        source: Where the configured limits come from.
        status: The answer's HTTP status; 0 without an answer.
        told: Whether the answer said anything about limits.
        problem: Why there was no good answer, in a sentence; empty when there was.
        findings: One for each quota.
    """

    model: str
    pool: str
    source: str
    status: int
    told: bool
    problem: str
    findings: Sequence[Finding]

    def record(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "model": self.model,
            "pool": self.pool,
            "source": self.source,
            "status": self.status,
            "told": self.told,
            "problem": self.problem or None,
            "quotas": [finding.record() for finding in self.findings],
        }


class _Witness(httpx2.BaseTransport):
    """Keeps the provider's own answer: a refused attempt's is replaced above."""

    def __init__(self, inner: httpx2.BaseTransport) -> None:
        self.inner = inner
        self.answer: httpx2.Response | None = None

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.answer = self.inner.handle_request(request)
        return self.answer

    def close(self) -> None:
        self.inner.close()


def probe(target: Target, config: Config) -> Checked:
    """Send the request, once, as any paced request is sent.

    Raises:
        QuotaError: The limits of its model cannot be meant.
    """
    page = target.page
    limiter = Limiter(**config.arguments(page.name))
    limiter.retry = RetryPolicy(max_attempts=1)
    witness = _Witness(httpx2.HTTPTransport())
    transport = pace_transport(limiter, witness, None if target.host_tells else page.name)
    problem = ""
    with httpx2.Client(transport=transport, timeout=TIMEOUT_S) as client:
        request = client.build_request("POST", target.url, headers=dict(target.headers), json=dict(target.body))
        call = page.describe(request.url.path, target.body)
        assert call is not None, "a request that is sent to be charged"
        try:
            response: httpx2.Response | None = client.send(request)
        except httpx2.TransportError as error:
            response = None
            problem = f"no answer from {page.name} at {request.url.host}: {_plain(error)}"
    resolved = limiter.limits.model(page.name, call.model)
    answer = witness.answer
    readings: list[Reading] = [] if answer is None else page.readings(answer.headers, time.time())
    if response is not None and answer is None:
        problem = f"{page.name}: the configured limits do not admit even this request: {_message(response, target)}"
    elif response is not None and answer is not None and answer.status_code >= 400:
        refusals: list[Refusal] = getattr(response.extensions.get("paceline"), "refusals", [])
        refusal = refusals[-1] if refusals else None
        problem = _why(answer.status_code, refusal, response, target)
        readings += told_by(refusal) if refusal else []
    return Checked(
        f"{page.name}/{call.model}",
        resolved.pool,
        resolved.source,
        answer.status_code if answer is not None else 0,
        any(reading.limit for reading in readings),
        problem,
        compare(resolved.quotas, readings),
    )


def _why(status: int, refusal: Refusal | None, response: httpx2.Response, target: Target) -> str:
    """Why there was no good answer, in a sentence."""
    name = target.page.name
    said = _short(refusal.message, target) if refusal else _message(response, target)
    if status in (401, 403) or (status == 400 and "API_KEY_INVALID" in response.text):
        return f"{name} refused the key in {target.page.key_env} ({status})"  # its words may repeat the key
    if status == 404:
        return f"{name} has no model {target.model!r}, or this key may not use it (404)"
    if refusal is None:
        return f"{name} did not answer the request ({status}): {said}"
    wait = "" if refusal.retry_after_s is None else f"; it asks to wait {refusal.retry_after_s:,.0f} s"
    if refusal.kind is RefusalKind.MONEY:
        return f"{name} says that the money is gone ({status}): {said}"
    if refusal.kind is RefusalKind.NEVER_FITS:
        return f"{name} will never admit even this request ({status}): {said}"
    if refusal.kind is RefusalKind.CAPACITY:
        return f"{name} is overloaded ({status}){wait}"
    what = f" of {refusal.unit.replace('_', ' ')}" if refusal.unit else ""
    return f"{name} refused the request: its limit{what} is used up ({status}){wait}"


def _message(response: httpx2.Response, target: Target) -> str:
    """The provider's words, shortened, without the key."""
    try:
        error = response.json()["error"]
        words = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        words = "no reason given"
    return _short(words, target)


def _short(words: str, target: Target) -> str:
    words = " ".join(words.replace(target.key, "***").split())
    return words if len(words) <= MESSAGE_MAX else words[:MESSAGE_MAX] + "..."


def _plain(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
