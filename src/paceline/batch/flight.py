"""One HTTP attempt: a deadline for the whole answer, and who is in flight."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import httpx2

from paceline.batch.reach import UNREACHED, Reach

ANSWER_MAX: Final = 256 * 2**20
"""Bytes in an answer's body, as it comes over the wire."""

CONNECT_S: Final = 30.0

SEAT: Final = "paceline.seat"
"""The extension of a request that names its worker, by number: a worker keeps to its connections."""

SEATS: Final = 8
"""Workers that share a connection pool: a pool looks at all its connections for every request."""


class Flight(httpx2.AsyncBaseTransport):
    """A transport that reads whole answers, each within its deadline.

    Args:
        pools: Connections, for ``SEATS`` workers each.
        timeout_s: From sending a request to the end of its answer.
        reach: Hears which addresses cannot be reached.

    Attributes:
        aloft: The tasks whose request is on its way, or has been answered with a 2xx that is not recorded yet.
        attempts: How many requests were sent.
        refused: How many answers were a 429.
        first_s: When the first request was sent, on the monotonic clock.
        last_s: When the last one was.
        landing: Nothing new may start: whoever would try again is cancelled instead.
    """

    def __init__(self, pools: Sequence[httpx2.AsyncBaseTransport], timeout_s: float, reach: Reach) -> None:
        self.aloft: set[asyncio.Task[None]] = set()
        self.attempts = self.refused = 0
        self.landing = False
        self.first_s = self.last_s = 0.0
        self._pools, self._timeout_s, self._reach = pools, timeout_s, reach
        connect_s = min(CONNECT_S, timeout_s)
        self._timeout = {"connect": connect_s, "read": timeout_s, "write": timeout_s, "pool": timeout_s}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send, and read the answer to its end.

        Raises:
            httpx2.TransportError: The connection failed, or the deadline passed.
        """
        task = asyncio.current_task()
        assert task is not None
        request.extensions = {**request.extensions, "timeout": self._timeout}
        self.attempts += 1
        self.last_s = left_s = time.monotonic()
        self.first_s = self.first_s or left_s
        self.aloft.add(task)
        pool = self._pools[request.extensions.get(SEAT, 0) // SEATS % len(self._pools)]
        status = 0
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await pool.handle_async_request(request)
                self._reach.answered(request.url, left_s, time.monotonic())
                body = await self._read(response)
            status = response.status_code
        except TimeoutError:
            raise httpx2.ReadTimeout(f"no answer within {self._timeout_s:g} s", request=request) from None
        except UNREACHED as error:
            if not self.landing:  # then nothing is tried again
                self._reach.failed(request.url, error, left_s, time.monotonic())
            raise
        finally:
            if not 200 <= status < 300:
                self.aloft.discard(task)
                if self.landing:
                    task.cancel()
        self.refused += status == 429
        return httpx2.Response(
            status,
            headers=response.headers,
            stream=httpx2.ByteStream(body),
            request=request,
            extensions={k: v for k, v in response.extensions.items() if k != "network_stream"},
        )

    async def _read(self, response: httpx2.Response) -> bytes:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        parts, size = [], 0
        try:
            async for part in response.stream:
                parts.append(part)
                size += len(part)
                if size > ANSWER_MAX:
                    raise httpx2.ReadError(f"an answer of more than {ANSWER_MAX // 2**20} MB")
        finally:
            await response.stream.aclose()
        return b"".join(parts)

    async def aclose(self) -> None:
        """Close the connections."""
        for pool in self._pools:
            await pool.aclose()
