"""A relay on loopback that notes each request's number, the time at which it was sent on, and the status of the answer."""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import suppress
from typing import Any, Self

NUMBER = re.compile(rb"request (\d+):")
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")


class Tap:
    """Between a client and the server at ``port``; ``seen`` holds (seconds, number, status) for each answer."""

    def __init__(self, port: int) -> None:
        self.seen: list[tuple[float, int, int]] = []
        self.port = 0
        self._target = port
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=4_096))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._target)
        at: dict[str, Any] = {"number": -1, "s": 0.0, "waits": False, "text": b""}

        async def forward() -> None:
            while data := await reader.read(65_536):
                if not at["waits"]:
                    at.update(waits=True, s=self._loop.time(), number=-1, text=b"")
                if at["number"] < 0:
                    at["text"] += data
                    found = NUMBER.search(at["text"])
                    at["number"] = int(found[1]) if found else -1
                other_writer.write(data)
                await other_writer.drain()
            other_writer.close()

        async def back() -> None:
            while data := await other_reader.read(65_536):
                found = STATUS.match(data)
                if at["waits"] and found:
                    if at["number"] >= 0:
                        self.seen.append((at["s"], at["number"], int(found[1])))
                    at["waits"] = False
                writer.write(data)
                await writer.drain()
            writer.close()

        try:
            with suppress(OSError):
                await asyncio.gather(forward(), back())
        except asyncio.CancelledError:  # the run is over
            pass
        finally:
            writer.close()
            other_writer.close()

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
