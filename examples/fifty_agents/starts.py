"""Agents start at the speed that ``starts.yaml`` allows: first come, first served, for each backend by itself."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starts_file import Limit, StartsFile

import paceline

QUEUE_SHOWN = 200
"""How many of those who wait the status page names."""


class Started(NamedTuple):
    """An agent that may go: when, by the limiter's clock, and how long it waited; both in seconds."""

    agent: str
    backend: str
    at_s: float
    waited_s: float


class Starts:
    """Lets agents start.

    Args:
        file: The limits and priorities.
        name: Of the logger.
        **options: As for :class:`paceline.Limiter`, e.g. ``clock``.
    """

    def __init__(self, file: StartsFile, *, name: str = "starts", **options: Any) -> None:
        self._file, self._log = file, logging.getLogger(name)
        self._queues = {pool: _Queue(limit) for pool, limit in file.limits.items()}
        quotas = {pool: limit.quota for pool, limit in file.limits.items()}
        longest_s = max((limit.time_window for limit in file.limits.values()), default=0.0)
        # No headroom: nobody else keeps these books, so nothing can arrive there too early.
        self._limiter = paceline.Limiter(quotas, headroom_s=0, ttl_s=900 + 2 * longest_s, **options)

    async def wait(self, agent: str, backend: str, model: str = "") -> Started:
        """Return when ``agent`` may start: at once where there is no limit."""
        pool = self._file.pool(backend, model)
        if pool is None:
            self._log.info("%s (%s) starts at once: there is no limit", agent, backend)
            return Started(agent, backend, self.now_s(), 0.0)
        queue, priority = self._queues[pool], self._file.priority(agent)
        lane = paceline.LaneSpec(f"priority {priority}", priority=priority)
        asked = self._limiter.acquire(pool, lane=lane, starts=1)
        queue.agents[asked] = agent
        asyncio.get_running_loop().call_soon(self._say_that_it_waits, pool, asked)  # by then it is in line, or gone
        try:
            permit = await asked
        finally:
            del queue.agents[asked]
        started = Started(agent, backend, self.now_s(), permit.waited_s)
        if queue.limit.mode == "window":  # its place comes free when the window has passed
            clock = self._limiter.clock
            clock.call_at(clock.now_ns() + round(queue.limit.time_window * 1e9), permit.settle)
        else:
            permit.settle()
        queue.recent.append(started.at_s)
        count = queue.count(started.at_s)
        self._log.info("%s (%s) starts after %.1f s: %d of %s", agent, backend, started.waited_s, count, queue.limit)
        return started

    def _say_that_it_waits(self, pool: str, asked: paceline.Acquisition) -> None:
        queue, now_s = self._queues[pool], self.now_s()
        agent, why = queue.agents.get(asked), asked.why()
        if agent is not None and why is not None:
            count, wait_s = queue.count(now_s), queue.expected_s(why, now_s)
            self._log.info(
                "%s waits %.1f s: %d of %s have started, %d go before", agent, wait_s, count, queue.limit, why.ahead
            )

    def status(self) -> dict[str, Any]:
        """What the limiter says, and with each pool who waits there, in the order in which they will go."""
        status = self._limiter.status()
        for name, pool in status["pools"].items():
            pool["queue"] = self._queues[name].rows(self.now_s())
        return status

    def now_s(self) -> float:
        """The time, as in `Started`."""
        return self._limiter.clock.now_ns() / 1e9


@dataclass(slots=True)
class _Queue:
    """What a pool does not tell: who waits there by name, and when the last ones started."""

    limit: Limit
    agents: dict[paceline.Acquisition, str] = field(default_factory=dict)
    recent: deque[float] = field(init=False)

    def __post_init__(self) -> None:
        self.recent = deque(maxlen=2 * self.limit.max_starts)  # a full bucket, and a window's refill

    def count(self, now_s: float) -> int:
        """How many started in the window that ends now."""
        return sum(at_s > now_s - self.limit.time_window for at_s in self.recent)

    def expected_s(self, why: paceline.Waiting, now_s: float) -> float:
        """How long it will wait. Slots cannot know when they come free: here we do."""
        if self.limit.mode == "even":
            return why.expected_wait_s
        windows, place = divmod(why.ahead, self.limit.max_starts)
        at_s = list(self.recent)[-self.limit.max_starts :][place] + (windows + 1) * self.limit.time_window
        return max(at_s - now_s, 0.0)

    def rows(self, now_s: float) -> list[dict[str, Any]]:
        """Those who wait, the next one first."""
        waiting = [(why.ahead, agent, why) for asked, agent in list(self.agents.items()) if (why := asked.why())]
        waiting.sort(key=lambda row: row[:2])
        return [
            {"agent": agent, "ahead": ahead, "expected_wait_s": round(self.expected_s(why, now_s), 1)}
            for ahead, agent, why in waiting[:QUEUE_SHOWN]
        ]
