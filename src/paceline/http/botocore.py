"""The binding of botocore and aiobotocore, and of boto3 and others above them: ``Endpoint._get_response``, once for each attempt.

A signature is valid for some minutes, so a request that has waited is signed again before it is sent. A refusal of
paceline's own is a ``ClientError`` with status 429, which botocore's retries do not repeat. Found by running botocore
1.43 and 1.44, and aiobotocore 3.10 over aiohttp. aiobotocore's requests over httpx are paced there.
"""

from __future__ import annotations

import functools
import inspect
import json
import time
from collections.abc import Mapping
from importlib import import_module
from inspect import iscoroutinefunction
from types import MethodType
from typing import Any
from urllib.parse import unquote, urlsplit

from paceline.http.aiohttp import peek_stream, tap_stream
from paceline.http.binding import Exchanged
from paceline.http.paced import exchange
from paceline.http.tap import Tap
from paceline.http.urllib3 import header_text, peek_response, tap_response
from paceline.pacing.pacer import Pacer
from paceline.pacing.permit import Permit
from paceline.pacing.sync import awaited, in_place_of
from paceline.providers.base import Provider
from paceline.providers.verdict import Beginning

SIGNED_S = 30.0
"""A request that was signed longer ago is signed again."""

RECORD = "paceline"
"""The attribute of an error, and of a response as it was sent, with the record of its exchange."""

_MADE = "_paceline_made"


def remembering(original: Any) -> Any:
    """``Endpoint.create_request``, which keeps with a request what it was made of."""

    async def create_request(*args: Any, **options: Any) -> Any:
        return await _signed(functools.partial(original, *args, **options))

    return in_place_of(original, create_request, is_async=iscoroutinefunction(original))


async def _signed(make: Any) -> Any:
    request = await awaited(make())
    setattr(request, _MADE, (time.monotonic(), make))
    return request


def paced_response(pacer: Pacer, original: Any, fallback: Provider | None = None) -> Any:
    """``Endpoint._get_response``, at the pace of ``pacer``; see :func:`~paceline.http.paced.exchange`."""

    async def _get_response(endpoint: Any, request: Any, operation_model: Any, context: Any) -> Any:
        send = functools.partial(original, endpoint)
        if type(endpoint.http_session).__name__ == "HttpxSession":
            return await send(request, operation_model, context)
        http = _Botocore(send, request, operation_model, context)
        try:
            response = await exchange(pacer, http, fallback=fallback)
        except Exception as error:
            if error is http.error:  # the original returns its errors, and the exchange needs them raised
                return None, error
            raise
        return (None, response) if isinstance(response, Exception) else (response, None)

    return in_place_of(original, _get_response, is_async=iscoroutinefunction(original))


def pace_endpoint(pacer: Pacer, endpoint: Any, provider: Provider | None) -> None:
    """Pace the endpoint of one client; ``provider``: for an address that does not tell it."""
    make, get = (inspect.unwrap(getattr(type(endpoint), name)) for name in ("create_request", "_get_response"))
    endpoint.create_request = MethodType(remembering(make), endpoint)
    endpoint._get_response = MethodType(paced_response(pacer, get, provider), endpoint)  # noqa: SLF001


class _Botocore:
    """A request of botocore; see :class:`~paceline.http.binding.Undescribed`. A response is a pair: as sent, and parsed."""

    in_memory = True

    def __init__(self, send: Any, request: Any, operation: Any, context: Any) -> None:
        self.is_async = iscoroutinefunction(send)
        self._send, self._request, self._operation, self._context = send, request, operation, context
        self.method: str = request.method
        self.error: Exception | None = None  # of the last attempt
        url: Any = urlsplit(request.url)
        self.target: tuple[str, str] = url.hostname or "", unquote(url.path)
        self.address: str = url.netloc
        self.query: str = url.query

    def header(self, name: str) -> str:
        return header_text(self._request.headers.get(name, ""))

    async def content(self) -> bytes:
        body = self._request.body
        return body.encode() if isinstance(body, str) else bytes(body) if isinstance(body, bytes | bytearray) else b""

    async def send(self, permit: Permit | None = None) -> Any:
        made = getattr(self._request, _MADE, None)
        # WEAK: on Linux this clock stands still while the machine is suspended, and a signature ages: such a request may be
        # sent with one that has expired.
        if permit is not None and made is not None and time.monotonic() - made[0] > SIGNED_S:
            self._request = await _signed(made[1])
        response, self.error = await awaited(self._send(self._request, self._operation, self._context))
        if self.error is not None:
            raise self.error
        return response

    def head(self, response: Any) -> tuple[int, dict[str, str]]:
        sent = response[0]
        return sent.status_code, {name.lower(): value for name, value in sent.headers.items()}

    async def peek(self, response: Any, headers: Mapping[str, str], beginning: Beginning) -> None:
        sent = response[0]
        if not self._streams or sent.status_code >= 300:  # botocore has read the body of an error
            beginning.take(_content(response))
        elif self.is_async:
            await peek_stream(sent.raw.content, beginning)
        else:
            peek_response(sent.raw, headers, beginning)

    def tap(self, response: Any, headers: Mapping[str, str], tap: Tap) -> None:
        if not self._streams:
            tap.feed(_content(response))
            tap.finish()
        elif self.is_async:
            tap_stream(response[0].raw.content, tap)
        else:
            tap_response(response[0].raw, headers, tap)

    def note(self, response: Any, record: Exchanged) -> None:
        setattr(response if isinstance(response, Exception) else response[0], RECORD, record)

    async def close(self, response: Any) -> None:
        if self._streams:
            response[0].raw.close()

    def respond(self, status: int, headers: Mapping[str, str], body: bytes) -> Any:
        error = {"Code": "ThrottlingException", "Message": json.loads(body)["error"]["message"]}
        about = {"HTTPStatusCode": status, "HTTPHeaders": dict(headers), "RetryAttempts": 0}
        kind = import_module("botocore.exceptions").ClientError
        return kind({"Error": error, "ResponseMetadata": about}, self._operation.name)

    @property
    def _streams(self) -> bool:
        """Whether the body is read by the caller."""
        return bool(self._operation.has_event_stream_output or self._operation.has_streaming_output)


def _content(response: Any) -> bytes:
    """The body, if botocore has read it."""
    return response[0]._content or b""  # noqa: SLF001  (aiobotocore's property is a coroutine)
