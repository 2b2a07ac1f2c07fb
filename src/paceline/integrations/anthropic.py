"""A middleware for Anthropic's SDK, which runs it once for each HTTP attempt (anthropic 0.125 and later).

``limiter.attach(client)`` does the same in one call. The middleware is for a client that is made elsewhere, and for
``client.with_options(middleware=[...])``, which paces some calls of a client only.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from paceline.http.httpx import HttpxRequest, library_of
from paceline.http.paced import exchange, paced_above
from paceline.integrations import package
from paceline.limiter.limiter import Limiter
from paceline.pacing.sync import awaited, run_sync
from paceline.providers.registry import provider_named

if TYPE_CHECKING:
    from anthropic import APIRequest, Middleware

REQUIREMENT = "anthropic>=0.125"


def middleware(limiter: Limiter, *, provider: str = "anthropic") -> Middleware:
    """Return a middleware for sync and async clients: ``anthropic.Anthropic(middleware=[middleware(limiter)])``.

    Put it last, next to the transport, so that attempts of other middlewares are paced, and answers from their caches
    aren't. A client that is also attached to a limiter is charged once, here.

    Args:
        limiter: The limiter whose pools are charged.
        provider: The provider whose limits apply, if the client speaks Anthropic's dialect to another provider. For
            Bedrock and Vertex use ``limiter.attach()``, because their clients change the request below the
            middlewares.

    Raises:
        ImportError: anthropic is not installed, or is too old to have middleware.
    """
    anthropic = package("anthropic", REQUIREMENT)
    if not hasattr(anthropic, "Middleware"):
        raise ImportError(f"anthropic {anthropic.__version__} has no middleware: pip install {REQUIREMENT!r}")
    named = provider_named(provider)
    httpx = library_of(anthropic.DefaultHttpxClient, "Client")  # or httpx2, by anthropic's version

    async def paced(attempt: _Attempt, *, is_async: bool) -> Any:
        described = _described(httpx, attempt.request)
        if described is None:
            return await awaited(attempt.call_next(attempt.request))
        try:
            http = HttpxRequest(attempt.send, described, is_async=is_async)
            response = await exchange(limiter.pacer, http, named)
            return attempt.result(response)
        except NothingSentError:
            return attempt.answer

    class Pace(anthropic.Middleware):  # type: ignore[misc,name-defined]
        def handle(self, request: APIRequest, call_next: Any) -> Any:
            return run_sync(paced(_Attempt(anthropic.APIResponse, request, call_next), is_async=False))

        async def handle_async(self, request: APIRequest, call_next: Any) -> Any:
            return await paced(_Attempt(anthropic.AsyncAPIResponse, request, call_next), is_async=True)

    return cast("Middleware", Pace())


class NothingSentError(BaseException):
    """There is an answer without a request. Not an ``Exception``, because it is no failure."""


class _Attempt:
    """One attempt, and the SDK's answer that wraps its HTTP response."""

    def __init__(self, wrapper: Any, request: APIRequest, call_next: Any) -> None:
        self._wrapper, self.request, self.call_next = wrapper, request, call_next
        self.answer: Any = None

    async def send(self, _: Any) -> Any:
        """Send it, and keep the answer; return its HTTP response."""
        with paced_above():
            self.answer = await awaited(self.call_next(self.request))
        response = getattr(self.answer, "http_response", None)
        if response is None:  # a middleware below has answered by itself
            raise NothingSentError
        return response

    def result(self, response: Any) -> Any:
        """The SDK's answer of ``response``; a refusal of paceline is wrapped in the same way."""
        if response is getattr(self.answer, "http_response", None):
            return self.answer
        request = self.request
        return self._wrapper(
            raw=response,
            client=None,  # for parsing an answer; the SDK raises its RateLimitError from this one
            cast_to=request.cast_to,
            stream=request.stream,
            stream_cls=request.stream_cls,
            options=request.options,
            retries_taken=request.retries_taken,
        )


def _described(httpx: Any, request: APIRequest) -> Any | None:
    """A copy of the request, for the exchange to read; ``None`` for a request that is not metered."""
    if request.method.upper() != "POST" or not isinstance(request.json, dict):
        return None
    return httpx.Request("POST", request.url, content=json.dumps(request.json, default=str).encode())
