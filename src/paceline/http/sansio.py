"""One source for sync and async: the life of an attempt is an ``async def`` that never needs a loop.

All that waits or touches the network is in an :class:`Io`. The sync one does its work inside the call and
returns, so a coroutine written against it runs from start to end without ever suspending.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from paceline.pacing.permit import Acquisition, Permit

T = TypeVar("T")

Send = Callable[[Any], Any]
"""Takes a request, returns a response (for the async Io: an awaitable of one)."""


class Io(Protocol):
    """What differs between the two worlds."""

    async def permit(self, acquisition: Acquisition) -> Permit:
        """Wait for the permit."""

    async def send(self, send: Send, request: Any) -> Any:
        """Send the request."""

    async def read(self, request: Any) -> bytes:
        """Read the whole body of a request."""

    async def peek(self, chunks: Any, most: int) -> tuple[list[bytes], Any]:
        """Take chunks from the stream until it ends or they are ``most`` bytes; them, and the iterator of the rest."""

    async def close(self, response: Any) -> None:
        """Let go of a response that nobody will read."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


class SyncIo:
    """Blocks."""

    async def permit(self, acquisition: Acquisition) -> Permit:
        return acquisition.wait()

    async def send(self, send: Send, request: Any) -> Any:
        return send(request)

    async def read(self, request: Any) -> bytes:
        body: bytes = request.read()
        return body

    async def peek(self, chunks: Any, most: int) -> tuple[list[bytes], Any]:
        rest = iter(chunks)
        taken: list[bytes] = []
        size = 0
        for chunk in rest:
            taken.append(chunk)
            size += len(chunk)
            if size > most:
                break
        return taken, rest

    async def close(self, response: Any) -> None:
        response.close()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  (this world blocks)


class AsyncIo:
    """Awaits."""

    async def permit(self, acquisition: Acquisition) -> Permit:
        return await acquisition

    async def send(self, send: Callable[[Any], Awaitable[Any]], request: Any) -> Any:
        return await send(request)

    async def read(self, request: Any) -> bytes:
        body: bytes = await request.aread()
        return body

    async def peek(self, chunks: Any, most: int) -> tuple[list[bytes], Any]:
        rest = aiter(chunks)
        taken: list[bytes] = []
        size = 0
        async for chunk in rest:
            taken.append(chunk)
            size += len(chunk)
            if size > most:
                break
        return taken, rest

    async def close(self, response: Any) -> None:
        await response.aclose()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits only through :class:`SyncIo`."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise AssertionError("a coroutine over SyncIo suspended")
