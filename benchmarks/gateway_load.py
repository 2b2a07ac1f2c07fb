"""The load on a gateway: one plan as JSON on standard input, its figures as JSON on standard output.

HTTP/1.1 by hand, so that the load costs little beside what is measured.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.proc import cpu_s, resident_mb

PENDING_MAX: Final = 1_000
"""Requests in flight; those beyond are not sent, and the gateway does not keep up."""

DRAIN_S: Final = 5.0
"""How long the last answers may take."""

PROMPT: Final = "The limit of a minute is shared by all workers, so each request waits until its turn has come. " * 14
PATH: Final = "/v1/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to send.

    Attributes:
        port: Where; on loopback.
        headers: Headers beside the usual ones.
        pid: The process whose CPU and memory count; ``None`` for none.
        rate: Requests a second, each sent at its time, whether or not others are answered; 0: one after the other.
        tasks: Connections, where ``rate`` is 0.
        seconds: How long.
        warm_s: The time before, which does not count.
        stream: Whether the answers are streams.
        held: Streams to open and hold, instead of all that.
        open_s: How long their opening may take.
    """

    port: int
    headers: dict[str, str] = field(default_factory=dict)
    pid: int | None = None
    rate: float = 0.0
    tasks: int = 64
    seconds: float = 5.0
    warm_s: float = 1.0
    stream: bool = False
    held: int = 0
    open_s: float = 60.0

    def message(self) -> bytes:
        """The request."""
        value: dict[str, Any] = {"model": "gpt-4o", "max_tokens": 50, "messages": [{"role": "user", "content": PROMPT}]}
        if self.stream or self.held:
            value |= {"stream": True, "user": "idle" if self.held else "load"}
        body = json.dumps(value).encode()
        headers = {
            "host": f"127.0.0.1:{self.port}", "authorization": "Bearer sk-none", "content-type": "application/json",
            "accept": "application/json", "user-agent": "load", "content-length": str(len(body)), **self.headers,
        }  # fmt: skip
        lines = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
        return f"POST {PATH} HTTP/1.1\r\n{lines}\r\n".encode() + body


class Connection(asyncio.Protocol):
    """One connection with at most one request.

    Attributes:
        due_s: The time for which the present request was meant.
        first_s: When the first byte of the body came; 0 before.
    """

    def __init__(self, load: Load) -> None:
        self.load = load
        self.due_s = self.first_s = 0.0
        self.lost = False
        self._busy, self._ok = False, False
        self._got = b""
        self._body, self._size = -1, -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def send(self, due_s: float) -> None:
        """Send the request."""
        self.due_s, self.first_s, self._busy = due_s, 0.0, True
        self._got, self._body = b"", -1
        self.transport.write(self.load.message)

    def data_received(self, data: bytes) -> None:
        got = self._got = self._got + data if self._got else data
        if self._body < 0:
            end = got.find(b"\r\n\r\n")
            if end < 0:
                return
            head = got[:end].lower()
            self._ok = head[9:12] == b"200"
            at = head.find(b"content-length:")
            self._size = int(head[at + 15 :].split(b"\r", 1)[0]) if at >= 0 else -1
            self._body = end + 4
        if not self.first_s and len(got) > self._body:
            self.first_s = time.perf_counter()
            if self.load.plan.held:
                self.load.done(self, self._ok)
                self._got = got[: self._body]
        if got.endswith(b"\r\n0\r\n\r\n") if self._size < 0 else len(got) >= self._body + self._size:
            self._busy = False
            if not self.load.plan.held:
                self.load.done(self, self._ok)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.lost = True
        if self._busy:
            self._busy = False
            self.load.done(self, ok=False)


class Load:
    """One measurement."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.message = plan, plan.message()
        self.loop = asyncio.get_running_loop()
        self.idle: list[Connection] = []
        self.pending = self.failed = self.dropped = self.answered = 0
        self.taken_s: list[float] = []
        self.first_s: list[float] = []
        self.held: list[Connection] = []
        self.from_s = self.until_s = 0.0
        self.tasks: set[asyncio.Task[None]] = set()

    def done(self, connection: Connection, ok: bool) -> None:
        """An answer is there, or the connection is lost."""
        self.pending -= 1
        now = time.perf_counter()
        self.answered += ok and self.from_s <= now < self.until_s
        if self.from_s <= connection.due_s < self.until_s:
            if ok:
                self.taken_s.append(now - connection.due_s)
                self.first_s.append(connection.first_s - connection.due_s)
            else:
                self.failed += 1
        if self.plan.held:
            self.held.append(connection)
        elif self.plan.rate:
            if not connection.lost:
                self.idle.append(connection)
        elif now < self.until_s:
            self.send(now, None if connection.lost else connection)

    def send(self, due_s: float, connection: Connection | None) -> None:
        """Send a request that was meant for ``due_s``."""
        if self.pending >= PENDING_MAX:
            self.dropped += 1
            return
        self.pending += 1
        while connection is None and self.idle:
            connection = self.idle.pop()
            if connection.lost:
                connection = None
        if connection is not None:
            connection.send(due_s)
            return
        task = self.loop.create_task(self._connect(due_s))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _connect(self, due_s: float) -> None:
        connection = Connection(self)
        connection.due_s = due_s
        try:
            await self.loop.create_connection(lambda: connection, "127.0.0.1", self.plan.port)
        except OSError:
            connection.lost = True
            await asyncio.sleep(0.01)
            self.done(connection, ok=False)
        else:
            connection.send(due_s)

    async def run(self) -> dict[str, Any]:
        """Send all and return the figures."""
        plan = self.plan
        if plan.held:
            return await self._hold()
        begin_s = time.perf_counter() + 0.05
        self.from_s = begin_s + plan.warm_s
        self.until_s = self.from_s + plan.seconds
        watch = self.loop.create_task(self._cpu())
        if plan.rate:
            self._tick(begin_s)
        else:
            for _ in range(plan.tasks):
                self.send(time.perf_counter(), None)
        used_s = await watch
        while self.pending and time.perf_counter() < self.until_s + DRAIN_S:  # noqa: ASYNC110  (nothing is measured by it)
            await asyncio.sleep(0.01)
        lost = self.failed + self.dropped + self.pending
        return {
            "answered": self.answered, "rate": self.answered / plan.seconds, "cpu_s": used_s,
            "failed": self.failed, "behind": lost > 0 or self.answered < 0.95 * plan.rate * plan.seconds,
            "taken_s": quantiles(self.taken_s), "first_s": quantiles(self.first_s),
        }  # fmt: skip

    async def _cpu(self) -> float:
        """CPU of the process between the warm-up and the end; what is not yet answered is in it, about as at the beginning."""
        if self.plan.pid is None:
            await asyncio.sleep(self.until_s - time.perf_counter())
            return 0.0
        await asyncio.sleep(self.from_s - time.perf_counter())
        before_s = cpu_s(self.plan.pid)
        await asyncio.sleep(self.until_s - time.perf_counter())
        return cpu_s(self.plan.pid) - before_s

    def _tick(self, begin_s: float) -> None:
        """Send each request at its time. A thread wakes the loop, whose own timers know milliseconds only."""
        plan = self.plan
        count = int(plan.rate * (plan.warm_s + plan.seconds))
        read, write = os.pipe()
        sent = 0

        def wait() -> None:
            for number in range(count):
                left_s = begin_s + number / plan.rate - time.perf_counter()
                if left_s > 0:
                    time.sleep(left_s)
                os.write(write, b".")

        def fire() -> None:
            nonlocal sent
            for _ in os.read(read, 65_536):
                self.send(begin_s + sent / plan.rate, None)
                sent += 1

        self.loop.add_reader(read, fire)
        threading.Thread(target=wait, daemon=True).start()

    async def _hold(self) -> dict[str, Any]:
        """Open streams, at most 64 at a time, and look at the memory while nothing but comments comes."""
        plan = self.plan
        before_mb = resident_mb(plan.pid) if plan.pid else 0.0
        began_s = time.perf_counter()
        self.from_s, self.until_s = began_s, began_s + plan.open_s
        opened = 0
        while time.perf_counter() < self.until_s and len(self.held) < plan.held:
            while opened < plan.held and self.pending < plan.tasks:
                self.send(time.perf_counter(), None)
                opened += 1
            await asyncio.sleep(0.005)
        took_s = time.perf_counter() - began_s
        await asyncio.sleep(plan.seconds)
        after_mb = resident_mb(plan.pid) if plan.pid else 0.0
        still = sum(not one.lost and bool(one.first_s) for one in self.held)
        return {"held": still, "failed": self.failed, "opened_s": took_s, "before_mb": before_mb, "after_mb": after_mb}


def quantiles(values: list[float]) -> dict[str, float] | None:
    """The median and the 99th percentile."""
    if not values:
        return None
    ordered = sorted(values)
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)]}


async def main() -> None:
    """Do what standard input says."""
    plan = Plan(**json.load(sys.stdin))
    gc.disable()  # its pauses would count as the gateway's
    print(json.dumps(await Load(plan).run()), flush=True)
    os._exit(0)  # thousands of connections would take a while


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(main())
    else:
        uvloop.run(main())
