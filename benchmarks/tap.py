"""A relay on loopback that notes every request: its number, size and time, and the status of its answer."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from asyncio import StreamReader, StreamWriter
from dataclasses import dataclass
from typing import Self

NUMBER = re.compile(rb"request (\d+):")
LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
CHUNKED = re.compile(rb"(?i)\r\ntransfer-encoding: *chunked")
MOST_HEAD = 1 << 20
"""The longest head of a message in bytes; longer than any client sends."""
OUTAGE = json.dumps({"error": {"message": "Service unavailable.", "type": "server_error", "code": None}}).encode()


@dataclass(slots=True)
class Seen:
    """One request: times in seconds since 1970; ``status`` is 0 while there is no answer."""

    at_s: float
    number: int
    path: str
    size: int
    status: int = 0
    done_s: float = 0.0
    outage: bool = False


class Tap:
    """Between a client and the server at ``port``; ``seen`` has every complete request, in the order of arrival.

    Args:
        port: The server's.
        outage: Seconds after the first request between which every request gets a 503 here, and does not reach the server.
    """

    def __init__(self, port: int, outage: tuple[float, float] = (0.0, 0.0)) -> None:
        self.seen: list[Seen] = []
        self.port = 0
        self._target, self._outage = port, outage
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        start = asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=4_096, limit=MOST_HEAD)
        server = self._loop.run_until_complete(start)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(asyncio.sleep(0))  # its socket closes in the loop's next round
        self._loop.close()

    def _down(self, now: float) -> bool:
        since, until = self._outage
        return bool(self.seen) and since <= now - self.seen[0].at_s < until

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Answer the requests of one connection, one after the other."""
        upstream: tuple[StreamReader, StreamWriter] | None = None
        try:
            while True:
                head, body = await _message(reader)
                found, now = NUMBER.search(body), time.time()
                path = head.split(b" ", 2)[1].decode("latin-1")
                one = Seen(now, int(found[1]) if found else -1, path, len(body), outage=self._down(now))
                self.seen.append(one)
                if one.outage:
                    answer = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
                    answer += b"content-length: %d\r\n\r\n" % len(OUTAGE) + OUTAGE
                else:
                    if upstream is None or upstream[0].at_eof():  # a server closes connections that are idle
                        upstream = await asyncio.open_connection("127.0.0.1", self._target, limit=MOST_HEAD)
                    upstream[1].write(head + body)
                    # The answer is read even if the client has gone: the server has counted the request.
                    answer = b"".join(await _message(upstream[0]))
                one.status, one.done_s = int(answer[9:12]), time.time()
                writer.write(answer)
                await writer.drain()
        except (OSError, EOFError, asyncio.CancelledError):  # the client has closed, or the run is over
            pass
        finally:
            for each in (writer, *(upstream or ())[1:]):
                each.close()

    def settle(self, most_s: float = 3.0) -> None:
        """Wait until every request has its answer; no longer than ``most_s``."""
        until_s = time.monotonic() + most_s
        while any(not one.status for one in self.seen) and time.monotonic() < until_s:
            time.sleep(0.05)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        self._thread.join(5)

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop.stop()


async def _message(reader: StreamReader) -> tuple[bytes, bytes]:
    """The head and the body of one HTTP message, chunked bodies with their framing."""
    head = await reader.readuntil(b"\r\n\r\n")
    if CHUNKED.search(head):
        parts = []
        while True:
            size = await reader.readuntil(b"\r\n")
            parts += [size, await reader.readexactly(int(size.partition(b";")[0], 16) + 2)]
            if not int(size.partition(b";")[0], 16):
                return head, b"".join(parts)
    found = LENGTH.search(head)
    return head, await reader.readexactly(int(found[1])) if found else b""
