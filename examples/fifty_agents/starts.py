"""Agents start at the speed that ``starts.yaml`` allows: first come, first served, for each backend by itself."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starts_file import Limit, StartsFile

import paceline


class Started(NamedTuple):
    """The start of an agent: its time by the limiter's clock, and its wait; both in seconds."""

    agent: str
    backend: str
    at_s: float
    waited_s: float


class Starts:
    """Paces the starts of agents.

    Args:
        file: The limits and priorities.
        name: The logger's name.
        **options: As for :class:`paceline.Limiter`, e.g. ``clock``.
    """

    def __init__(self, file: StartsFile, *, name: str = "starts", **options: Any) -> None:
        self._file, self._log = file, logging.getLogger(name)
        self._queues = {pool: _Queue(limit) for pool, limit in file.limits.items()}
        quotas = {pool: limit.quota for pool, limit in file.limits.items()}
        longest_s = max((limit.time_window for limit in file.limits.values()), default=0.0)
        # No headroom: these limits are the program's own, so no request can arrive too early at a provider.
        self._limiter = paceline.Limiter(quotas, headroom_s=0, ttl_s=900 + 2 * longest_s, **options)

    async def wait(self, agent: str, backend: str, model: str = "") -> Started:
        """Return when ``agent`` may start: at once where there is no limit."""
        pool = self._file.pool(backend, model)
        if pool is None:
            self._log.info("%s (%s) starts at once: there is no limit", agent, backend)
            return Started(agent, backend, self.now_s(), 0.0)
        queue, priority = self._queues[pool], self._file.priority(agent)
        lane = paceline.LaneSpec(f"priority {priority}", priority=priority)
        asked = self._limiter.acquire(pool, lane=lane, name=agent, starts=1)
        asyncio.get_running_loop().call_soon(
            self._say_that_it_waits, agent, queue, asked
        )  # by then it waits in the queue, or has started
        permit = await asked
        started = Started(agent, backend, self.now_s(), permit.waited_s)
        if queue.limit.mode == "window":  # its slot is released when the window has passed
            clock = self._limiter.clock
            clock.call_at(clock.now_ns() + round(queue.limit.time_window * 1e9), permit.settle)
        else:
            permit.settle()
        queue.recent.append(started.at_s)
        count = queue.count(started.at_s)
        self._log.info("%s (%s) starts after %.1f s: %d of %s", agent, backend, started.waited_s, count, queue.limit)
        return started

    def _say_that_it_waits(self, agent: str, queue: _Queue, asked: paceline.Acquisition) -> None:
        why, now_s = asked.why(), self.now_s()
        if why is not None:
            # A pool cannot predict when slots are released; in mode window the time is known here.
            window = queue.limit.mode == "window"
            wait_s = queue.window_wait_s(why.ahead, now_s) if window else why.expected_wait_s
            count = queue.count(now_s)
            self._log.info(
                "%s waits %.1f s: %d of %s have started, %d go before", agent, wait_s, count, queue.limit, why.ahead
            )

    def status(self) -> dict[str, Any]:
        """The limiter's status; each waiting agent has an ``expected_wait_s`` added."""
        status, now_s = self._limiter.status(), self.now_s()
        for name, pool in status["pools"].items():
            queue, left = self._queues[name], pool["quotas"][0]["remaining"]
            for ahead, row in enumerate(pool["queue"]):
                window = queue.limit.mode == "window"
                wait_s = queue.window_wait_s(ahead, now_s) if window else queue.even_wait_s(ahead, left)
                row["expected_wait_s"] = round(wait_s, 1)
        return status

    def now_s(self) -> float:
        """The time, as in `Started`."""
        return self._limiter.clock.now_ns() / 1e9


@dataclass(slots=True)
class _Queue:
    """The times of the last starts of a pool."""

    limit: Limit
    recent: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        self.recent = deque(maxlen=2 * self.limit.max_starts)  # a full bucket and the refill of one window

    def count(self, now_s: float) -> int:
        """The number of starts in the window that ends now."""
        return sum(at_s > now_s - self.limit.time_window for at_s in self.recent)

    def even_wait_s(self, ahead: int, left: float) -> float:
        """The wait in mode even, with ``ahead`` agents before and ``left`` starts available."""
        return max(ahead + 1 - left, 0.0) * self.limit.time_window / self.limit.max_starts

    def window_wait_s(self, ahead: int, now_s: float) -> float:
        """The wait in mode window: until an earlier start leaves the window."""
        windows, place = divmod(ahead, self.limit.max_starts)
        at_s = list(self.recent)[-self.limit.max_starts :][place] + (windows + 1) * self.limit.time_window
        return max(at_s - now_s, 0.0)
