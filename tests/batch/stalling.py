"""A TCP proxy on loopback that holds, for a time, what passes it."""

import asyncio
import threading
from contextlib import contextmanager

from waits import join


@contextmanager
def stalling_proxy(port, *, after_s, for_s):
    """The port of a proxy before ``port``: it holds all bytes for ``for_s`` seconds, ``after_s`` after the first connection."""
    found, ready, loop = [], threading.Event(), asyncio.new_event_loop()
    passes, tasks = asyncio.Event(), set()
    passes.set()

    async def stall():
        await asyncio.sleep(after_s)
        passes.clear()
        await asyncio.sleep(for_s)
        passes.set()

    async def pump(reader, writer):
        try:
            while data := await reader.read(65_536):
                await passes.wait()
                writer.write(data)
        except OSError:
            pass
        finally:
            writer.close()

    async def connected(reader, writer):
        tasks.add(asyncio.current_task())
        if not found[1:]:
            found.append(asyncio.ensure_future(stall()))
        await passes.wait()
        there = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

    async def main():
        server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=1_024)
        found.append(server.sockets[0].getsockname()[1])
        ready.set()
        while not done.is_set():
            await asyncio.sleep(0.02)
        server.close()
        for task in tasks:
            task.cancel()

    done = threading.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    try:
        assert ready.wait(60)
        yield found[0]
    finally:
        done.set()
        join(thread)
        loop.close()
