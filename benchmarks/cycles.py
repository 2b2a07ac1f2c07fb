"""Many tasks, one small cycle for some time, any limiter; and what a Redis server had to do for it.

Needs nothing but redis-py, and that only for Redis, so that every peer's interpreter can run it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

TURN = 16  # cycles that nothing held up: then the others' turn
END_S = 1.0
OURS = {"cmdstat_info", "cmdstat_config|resetstat"}


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run a cycle.

    Attributes:
        tasks: How many tasks make cycles, one after the other each.
        seconds: How long they are watched.
        warm_s: How long they run before that.
        port: Of a Redis on loopback that nobody else uses, whose commands are counted. 0: none.
        slices: Of the time, each with a speed of its own.
    """

    tasks: int
    seconds: float
    warm_s: float = 0.3
    port: int = 0
    slices: int = 5


class Crew:
    """The tasks, and what became of their cycles."""

    def __init__(self, cycle: Callable[[], Awaitable[None]], tasks: int) -> None:
        self._cycle = cycle
        self.done = [0] * tasks
        self.failed: list[Counter[str]] = [Counter() for _ in range(tasks)]
        self.stopped = False

    async def work(self, number: int) -> None:
        """One task: a cycle that fails is counted, and the next one begun."""
        while not self.stopped:
            try:
                await self._cycle()
            except Exception as error:
                self.failed[number][type(error).__name__] += 1
            self.done[number] += 1
            if self.done[number] % TURN == 0:
                await asyncio.sleep(0)

    def went(self) -> int:
        """How many cycles have succeeded."""
        return sum(self.done) - sum(failed.total() for failed in self.failed)


class Watch:
    """CPU of this process, and CPU and commands of the server, between ``start`` and ``read``."""

    def __init__(self, port: int) -> None:
        self._server: Any = None
        self._sent = [0]
        if port:
            import redis

            self._sent = _count_sent()
            self._server = redis.Redis(port=port)

    def start(self) -> None:
        """From now on."""
        if self._server is not None:
            self._server.config_resetstat()
            self._server_s = self._server_cpu_s()
        self._cpu_s, self._base = time.process_time(), self._sent[0]

    def read(self, cycles: int) -> dict[str, float]:
        """What one of ``cycles`` took: microseconds, commands that the client sent, and those inside of scripts."""
        cycles = max(cycles, 1)
        cpu_s, sent = time.process_time() - self._cpu_s, self._sent[0] - self._base
        result = {"cpu_us": cpu_s / cycles * 1e6}
        if self._server is not None:
            stats = self._server.info("commandstats")
            total = sum(stat["calls"] for name, stat in stats.items() if name not in OURS)
            result |= {"sent": sent / cycles, "inside": max(total - sent, 0) / cycles}
            result["server_us"] = (self._server_cpu_s() - self._server_s) / cycles * 1e6
        return result

    def _server_cpu_s(self) -> float:
        cpu = self._server.info("cpu")
        return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


async def run(cycle: Callable[[], Awaitable[None]], plan: Plan) -> dict[str, Any]:
    """Make cycles; plain JSON values: speeds, failures by kind, tasks that failed or never went, and a cycle's cost."""
    watch, crew = Watch(plan.port), Crew(cycle, plan.tasks)
    await asyncio.wait_for(cycle(), 10.0)  # connections and scripts
    tasks = [asyncio.create_task(crew.work(number)) for number in range(plan.tasks)]
    await asyncio.sleep(plan.warm_s)
    watch.start()
    rates, first = [], crew.went()
    for _ in range(plan.slices):
        began, before = time.perf_counter(), crew.went()
        await asyncio.sleep(plan.seconds / plan.slices)
        rates.append((crew.went() - before) / (time.perf_counter() - began))
    result: dict[str, Any] = {"rates": rates, **watch.read(crew.went() - first)}
    result["failed"] = dict(sum(crew.failed, Counter()))
    result["tasks"], result["tasks_failed"] = plan.tasks, sum(map(bool, crew.failed))
    result["never"] = crew.done.count(0)
    crew.stopped = True
    for task in tasks:  # not all clients let a cancellation through
        task.cancel()
    await asyncio.wait(tasks, timeout=END_S)
    return result


_sent: list[int] = []


def _count_sent() -> list[int]:
    """Count what redis-py sends in this process, on connections of either kind; the list's one number."""
    if not _sent:
        from redis import connection
        from redis.asyncio import connection as connection_async

        _sent.append(0)
        for kind in (connection.AbstractConnection, connection_async.AbstractConnection):
            _count_calls(kind, "send_command", lambda *_: 1)
            _count_calls(kind, "pack_commands", len)
    return _sent


def _count_calls(kind: Any, name: str, count: Callable[..., int]) -> None:
    original = getattr(kind, name)

    def counting(self: Any, *args: Any, **options: Any) -> Any:
        if name == "pack_commands":
            args = (list(args[0]),)  # it may be a generator
        _sent[0] += count(*args)
        return original(self, *args, **options)

    setattr(kind, name, counting)
