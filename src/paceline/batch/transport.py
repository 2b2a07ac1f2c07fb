"""One HTTP attempt: a deadline for the whole answer, the tasks in flight, and which addresses cannot be reached."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import httpx2

ANSWER_MAX: Final = 256 * 2**20
"""Bytes in an answer's body, as received."""

CONNECT_S: Final = 30.0

WORKER: Final = "paceline.worker"
"""The extension of a request with its worker's number: a worker keeps to one connection pool."""

WORKERS_PER_POOL: Final = 8
"""A connection pool searches all its connections for every request, so the workers are spread over several."""

NO_CONNECTION: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError)

REPORT_EVERY_S: Final = 30.0
"""The least time between two messages that one address cannot be reached."""

REASON_MAX: Final = 200


class AnswerTransport(httpx2.AsyncBaseTransport):
    """A transport that reads whole answers, each within a deadline.

    Args:
        pools: Connection pools, for ``WORKERS_PER_POOL`` workers each.
        timeout_s: The time from sending a request to the end of its answer.

    Attributes:
        in_flight: The tasks whose request was sent, or was answered with a 2xx that is not recorded yet.
        attempts: The number of requests sent.
        refused: The number of answers with status 429.
        first_s: When the first request was sent, on the monotonic clock.
        last_s: When the last request was sent.
        stopping: No new attempt may start: a task that would make another one is cancelled.
    """

    def __init__(self, pools: Sequence[httpx2.AsyncBaseTransport], timeout_s: float, reach: Reach) -> None:
        self.in_flight: set[asyncio.Task[None]] = set()
        self.attempts = self.refused = 0
        self.stopping = False
        self.first_s = self.last_s = 0.0
        self._pools, self._timeout_s, self._reach = pools, timeout_s, reach
        connect_s = min(CONNECT_S, timeout_s)
        self._timeout = {"connect": connect_s, "read": timeout_s, "write": timeout_s, "pool": timeout_s}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request, and read the answer to its end.

        Raises:
            httpx2.TransportError: The connection failed, or the deadline passed.
        """
        task = asyncio.current_task()
        assert task is not None
        request.extensions = {**request.extensions, "timeout": self._timeout}
        self.attempts += 1
        self.last_s = sent_s = time.monotonic()
        self.first_s = self.first_s or sent_s
        self.in_flight.add(task)
        pool = self._pools[request.extensions.get(WORKER, 0) // WORKERS_PER_POOL % len(self._pools)]
        status = 0
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await pool.handle_async_request(request)
                self._reach.answered(request.url, sent_s, time.monotonic())
                body = await _read(response)
            status = response.status_code
        except TimeoutError:
            raise httpx2.ReadTimeout(f"no answer within {self._timeout_s:g} s", request=request) from None
        except NO_CONNECTION as error:
            if not self.stopping:  # otherwise there is no further attempt to announce
                self._reach.failed(request.url, error, sent_s, time.monotonic())
            raise
        finally:
            if not 200 <= status < 300:
                self.in_flight.discard(task)
                if self.stopping:
                    task.cancel()
        self.refused += status == 429
        return httpx2.Response(
            status,
            headers=response.headers,
            stream=httpx2.ByteStream(body),
            request=request,
            extensions={k: v for k, v in response.extensions.items() if k != "network_stream"},
        )

    async def aclose(self) -> None:
        """Close the connections."""
        for pool in self._pools:
            await pool.aclose()


async def _read(response: httpx2.Response) -> bytes:
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    body = bytearray()
    try:
        async for part in response.stream:
            body += part
            if len(body) > ANSWER_MAX:
                raise httpx2.ReadError(f"an answer of more than {ANSWER_MAX // 2**20} MB")
    finally:
        await response.stream.aclose()
    return bytes(body)


@dataclass(slots=True)
class _Address:
    """The state of one address; instants in seconds of one clock."""

    answered_s: float = -math.inf
    failed_s: float = -math.inf
    reported_s: float = -math.inf
    reported: bool = False  # as an address that cannot be reached
    why: str = ""  # why it cannot be reached; empty while it can
    lost: str = ""  # why a request failed that is not retried


class Reach:
    """Reports, once, that an address cannot be reached, and when it can be reached again.

    Args:
        say: Takes a line for the user.
        again: Whether a request without a connection is retried.
        proxy: The proxy's URL, if there is one; it may hold a password.
    """

    def __init__(self, say: Callable[[str], None], *, again: bool, proxy: str | None = None) -> None:
        self._say, self._again = say, "; trying again" if again else ""
        self._via = f" through the proxy {origin(httpx2.URL(proxy))}" if proxy else ""
        self._addresses: dict[str, _Address] = {}

    def failed(self, url: httpx2.URL, error: Exception, sent_s: float, now_s: float) -> None:
        """An attempt sent at ``sent_s`` got no connection; ignored if another was answered since."""
        address = self._address(url)
        if address.answered_s > sent_s:
            return
        address.why, address.failed_s = reason(error), now_s
        if not address.reported and now_s - address.reported_s >= REPORT_EVERY_S:
            address.reported, address.reported_s = True, now_s
            self._say(f"{self._unreached(origin(url), address.why)}{self._again}")

    def answered(self, url: httpx2.URL, sent_s: float, now_s: float) -> None:
        """An attempt sent at ``sent_s`` was answered; over an older connection that says nothing of new ones."""
        address = self._address(url)
        address.answered_s = now_s
        if address.why and sent_s >= address.failed_s:
            address.why = ""
            if address.reported:
                address.reported = False
                self._say(f"{origin(url)} can be reached again")

    def lose(self, url: httpx2.URL, error: Exception) -> str:
        """A request got no connection and is not retried; returns the message for its record."""
        self._address(url).lost = reason(error)
        return self._unreached(origin(url), reason(error))

    def at_end(self) -> list[str]:
        """A line for each address that cannot be reached now, or because of which requests failed."""
        down = [self._unreached(name, one.why) for name, one in self._addresses.items() if one.why]
        was = [(name, one.lost) for name, one in self._addresses.items() if one.lost and not one.why]
        return down + [f"{name} could not be reached for a while{self._via}: {lost}" for name, lost in was]

    def _unreached(self, name: str, why: str) -> str:
        return f"cannot reach {name}{self._via}: {why}"

    def _address(self, url: httpx2.URL) -> _Address:
        return self._addresses.setdefault(origin(url), _Address())


def origin(url: httpx2.URL) -> str:
    """Scheme, host and port: paths, queries and user names can hold keys."""
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


def reason(error: Exception) -> str:
    """Why there was no connection, in a few words, from the system's error inside the library's."""
    if isinstance(error, httpx2.ConnectTimeout):
        return "connection timed out"
    inner: BaseException | None = error
    while inner is not None and not (isinstance(inner, OSError) and inner.errno is not None):
        nested = inner.exceptions[0] if isinstance(inner, BaseExceptionGroup) else None
        inner = nested or inner.__cause__ or inner.__context__
    words = str(error) or type(error).__name__
    match inner:
        case ConnectionRefusedError():
            words = "connection refused"
        case socket.gaierror(errno=socket.EAI_NONAME):
            words = "no such host"
        case socket.gaierror():
            words = f"its name cannot be resolved: {inner.strerror}"
        case ssl.SSLCertVerificationError():
            words = f"its certificate is not trusted: {inner.verify_message}"
        case ssl.SSLError():
            words = f"TLS failed: {(inner.reason or str(inner)).replace('_', ' ').lower()}"
        case OSError():
            system = os.strerror(inner.errno or 0)
            words = system[:1].lower() + system[1:]
    return "".join(c for c in words if c.isprintable())[:REASON_MAX]
