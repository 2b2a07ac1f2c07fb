"""The beginning of a body, which is read before the caller has the response: until it is judged, or until its hold is over.

With no further bytes a read blocks, so that the wait for the next part has a bound of its own
(:class:`~paceline.providers.verdict.Patience`). A read that is under way when it is over must lose nothing:

* :func:`held_parts` cancels it. Only for readers that take a part when they return it: aiohttp's, and the gateway's.
* :class:`ReadAhead` lets it go on, in a task or a thread, and its part is the first that the body's reader gets. httpx closes
  a connection whose read is cancelled, and a sync read cannot be cancelled. A timeout of the socket is no way out: http.client
  does not read from a socket that has timed out. Nor is ``select``: bytes can be in the buffers of TLS, or of the library.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent import futures
from contextlib import suppress
from typing import Any

from paceline.pacing.sync import awaited, run_sync
from paceline.providers import verdict
from paceline.providers.verdict import Beginning, Decode

ENCODED_PIECE = 1_024
"""Bytes of an encoded body that are decoded in one step."""


async def held_parts(beginning: Beginning, read: Callable[[], Awaitable[bytes]]) -> AsyncIterator[bytes]:
    """What ``read`` returns, until it is enough for ``beginning``, which is fed with it, or until the hold is over."""
    due_s = None  # by the event loop's clock, once something is held
    while not beginning.enough:
        if due_s is None and beginning.held:
            due_s = asyncio.get_running_loop().time() + beginning.held_s
        try:
            async with asyncio.timeout_at(due_s) as bound:
                part = await read()
        except TimeoutError:
            if not bound.expired():  # a time-out of the reader's own
                raise
            return
        if not part:
            beginning.end()
            return
        yield part


class ReadAhead:
    """Reads the beginning of a body, in async or sync code. In sync code its coroutines do not suspend.

    Args:
        read: Reads the next part; ``None`` at the end. In async code it returns an awaitable.
        beginning: Judges the parts.
        decode: Decodes them for it.
        is_async: Whether the code is async.
        sock: The socket of the connection, which only this body uses; ``None`` if it is not known.

    Attributes:
        parts: What was read before the end of the hold.
        ended: Whether the body was read to its end.
    """

    def __init__(
        self, read: Callable[[], Any], beginning: Beginning, decode: Decode | None, *, is_async: bool, sock: Any = None
    ) -> None:
        self._read, self._beginning, self._decode = read, beginning, decode
        self._is_async, self._socket = is_async, sock
        self.parts: list[bytes] = []
        self.ended = False
        self._reading: _Task | _Thread | None = None  # until its late part is taken
        self._late: bytes | None = None
        self._over = False  # the hold
        self._lock = threading.RLock()  # made here, and not at import, where gevent may not have patched it yet

    async def run(self) -> None:
        """Read until the beginning is judged or its hold is over.

        Raises:
            Exception: The reader's, if the body breaks off before.
        """
        while not await self._step():
            if self._beginning.held:  # before, there is no bound: what is not there is not held
                break
        else:
            return
        self._reading = (_Task if self._is_async else _Thread)(self._go_on())
        try:
            await self._reading.wait(self._beginning.held_s)
        except BaseException:
            await self._reading.stop(self._socket)
            raise
        # Under the lock: a part that comes now is judged before, or is late.
        with self._lock:
            self._over, judged = True, self._beginning.enough or self._beginning.ended
        if self._reading.done:  # its error is one of the beginning, and not of the caller's reading
            await self._reading.result()
        if judged:
            self._reading = None

    async def _go_on(self) -> None:
        while not await self._step():
            pass

    async def _step(self) -> bool:
        """Read a part; whether no other is to be read."""
        read = self._read()
        part = await read if self._is_async else read
        with self._lock:
            self.ended = part is None
            if self._over:
                self._late = part
                return True
            if part is None:
                self._beginning.end()
            else:
                self.parts.append(part)
                self._beginning.take_encoded(part, self._decode)
            return self._beginning.enough or self._beginning.ended

    @property
    def is_late(self) -> bool:
        """Whether a part of the body, or its end, is still to be taken from :meth:`late`."""
        return self._reading is not None

    async def late(self) -> bytes | None:
        """The part whose read was under way at the end of the hold, as soon as it is there; ``None`` if there is none.

        Raises:
            Exception: The reader's.
        """
        if self._reading is not None:
            try:
                await self._reading.result()
            except BaseException:  # the reader's, or Ctrl-C
                await self._reading.stop(self._socket)
                raise
        part, self._late, self._reading = self._late, None, None
        return part

    async def close(self, close: Callable[[], Any]) -> None:
        """Call ``close``, which closes the body's source, when nothing reads from it; do not wait for the server."""
        reading = self._reading
        if reading is not None and not await reading.stop(self._socket):
            assert isinstance(reading, _Thread)  # a task that is stopped has ended
            reading.then(close)
            return
        await awaited(close())


class _Task:
    """A read beside the caller, in a task of its own."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)
        self._task.add_done_callback(_seen)

    @property
    def done(self) -> bool:
        return self._task.done()

    async def wait(self, seconds: float) -> None:
        await asyncio.wait([self._task], timeout=seconds)

    async def result(self) -> None:
        await self._task  # which is cancelled with its caller, as the read would be

    async def stop(self, sock: Any) -> bool:  # noqa: ARG002
        """Whether it has ended."""
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        return True


def _seen(task: asyncio.Task[None]) -> None:
    """Take the error of a read: a caller that drops the response does not."""
    if not task.cancelled():
        task.exception()


class _Thread:
    """The same in a thread: a sync read blocks."""

    def __init__(self, work: Coroutine[Any, Any, None]) -> None:
        self._ended: futures.Future[None] = futures.Future()
        try:
            threading.Thread(target=self._run, args=(work,), name="paceline-read", daemon=True).start()
        except RuntimeError:  # there are too many, or the interpreter ends: read here, and hold without a bound
            self._run(work)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            run_sync(work)
        except BaseException as error:  # noqa: BLE001  (for the caller)
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    @property
    def done(self) -> bool:
        return self._ended.done()

    async def wait(self, seconds: float) -> None:
        futures.wait([self._ended], seconds)

    async def result(self) -> None:
        self._ended.result()

    async def stop(self, sock: Any) -> bool:
        if sock is not None and not self.done:
            # The lock of http.client's buffer is the reader's. Closing a socket wakes its reader on Windows alone, where nothing else does.
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
                if sys.platform == "win32":
                    socket.close(sock.detach())
            # For a bounded time: if nothing wakes the reader, the caller goes on, and the source is closed when the read ends.
            await self.wait(verdict.HELD_S)
        return self.done

    def then(self, call: Callable[[], Any]) -> None:
        """Make a call at its end, whose errors are ignored."""

        def at_end(_: object) -> None:
            with suppress(Exception):
                call()

        self._ended.add_done_callback(at_end)


def in_pieces(
    headers: Mapping[str, str], make: Callable[[str], Callable[[bytes], bytes | Iterable[bytes]]]
) -> Decode | None:
    """A function that removes the content encoding of a body, chunk by chunk; ``None`` for a plain body.

    Its pieces are small, so that a reader can stop in the middle of a body that expands without end: a kilobyte becomes at
    most a megabyte in gzip.

    Args:
        headers: The headers of the answer, with names in lower case.
        make: Returns the library's decoder of an encoding. It returns bytes, or gives some of them at a time.
    """
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return None
    decode = make(encoding)

    def pieces(chunk: bytes) -> Iterable[bytes]:
        for start in range(0, len(chunk), ENCODED_PIECE):
            plain = decode(chunk[start : start + ENCODED_PIECE])
            yield from (plain,) if isinstance(plain, bytes) else plain

    return pieces
