"""A server over plain sockets that a test writes, with an event loop of its own in a thread."""

import asyncio
import socket
import threading


async def head_of(reader):
    """The method, the target and the headers of the next request."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    return method, target, [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines if line)]


class LoopServer:
    """Calls the coroutine ``one(reader, writer)`` for each request of a connection, until it returns false.

    Attributes:
        url: Its address.
    """

    def __enter__(self):
        self._loop = asyncio.new_event_loop()
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, sock=listener, limit=2**20))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        async def end():
            self._server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _serve(self, reader, writer):
        try:
            while await self.one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
