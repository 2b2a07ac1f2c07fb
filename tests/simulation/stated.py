"""A server that counts requests by a rule of its own and states the instant of its reset, before an attached client."""

from __future__ import annotations

import asyncio
import heapq
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate

import httpx2
from tests.http.chats import ANSWER, CHAT, PATH

import paceline
from paceline.testing import run_virtual
from paceline.testing.clock import START_S

HOST = "llm.example.com"
OFFSETS_S = (0.0, 15.0, 30.0, 45.0)
FORMS = ("epoch", "iso", "seconds")
TOLD = {"nothing": None, "as it is": "100 requests/min", "too high": "1000 requests/min"}


@dataclass
class Server(httpx2.AsyncBaseTransport):
    """A server with one quota of requests.

    Attributes:
        rule: ``window`` restarts at fixed instants, ``first`` one period after the first request of a window. ``oldest`` and
            ``newest`` count a trailing period, and state when the first or the last request leaves it. ``bucket`` states
            when it is full.
        form: How it states the instant.
        offset_s: How long after the start of the work a window restarts.
        latency_s: The bounds of the time to an answer.
        skew_s: How far its clock is ahead.
        dated: Whether an answer has a ``date``, the second in which it is sent.
        late: Whether its headers are as of the end of an answer, and not of its beginning.
        family: The end of the names of its headers.
        others: What others use of each period, at its start.
        change: From when on it counts by another rule, and by which.
    """

    rule: str = "window"
    form: str = "epoch"
    offset_s: float = 0.0
    latency_s: tuple[float, float] = (0.2, 2.0)
    limit: int = 100
    period_s: float = 60.0
    skew_s: float = 0.0
    dated: bool = False
    late: bool = False
    family: str = "-requests"
    others: int = 0
    seed: int = 1
    change: tuple[float, str] | None = None
    retry_after: bool = True
    admitted_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    first_s: float = -1e9

    def __post_init__(self) -> None:
        self.dice, self.start_s = random.Random(self.seed), 0.0

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time() - self.start_s

    def count(self, now_s: float) -> tuple[float, float]:
        """What is used, and the seconds until the reset."""
        rule = self.change[1] if self.change and now_s >= self.change[0] else self.rule
        recent = [at_s for at_s in self.admitted_s if at_s > now_s - self.period_s]
        if rule in ("window", "first"):
            since_s = (now_s - self.offset_s) // self.period_s * self.period_s + self.offset_s
            if rule == "first":
                if now_s >= self.first_s + self.period_s:
                    self.first_s = now_s
                since_s = self.first_s
            return sum(at_s >= since_s for at_s in recent) + self.others, since_s + self.period_s - now_s
        if rule == "bucket":
            full_s = 0.0
            for at_s in self.admitted_s:
                full_s = max(full_s, at_s) + self.period_s / self.limit
            return max(full_s - now_s, 0.0) / self.period_s * self.limit, max(full_s - now_s, 0.0)
        of_s = (recent[0] if rule == "oldest" else recent[-1]) if recent else now_s
        return len(recent) + self.others, of_s + self.period_s - now_s

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await asyncio.sleep(self.dice.uniform(0.001, 0.02))
        now_s = self.now_s
        used, reset_s = self.count(now_s)
        headers = {}
        if admitted := used + 1 <= self.limit:
            self.admitted_s.append(now_s)
            used, reset_s = self.count(now_s)
        else:
            self.refused_s.append(now_s)
            if self.retry_after:
                headers["retry-after"] = str(int(reset_s) + 1)
        await asyncio.sleep(self.dice.uniform(*self.latency_s) if admitted else 0.01)
        if self.late:
            now_s = self.now_s
            used, reset_s = self.count(now_s)
        at_s = START_S + now_s + reset_s + self.skew_s
        stated = {
            "epoch": str(int(at_s)), "iso": datetime.fromtimestamp(int(at_s), UTC).isoformat().replace("+00:00", "Z"),
            "seconds": str(int(reset_s)), "up": str(-int(-reset_s // 1)),
        }[self.form]  # fmt: skip
        headers[f"x-ratelimit-limit{self.family}"] = str(self.limit)
        headers[f"x-ratelimit-remaining{self.family}"] = str(max(int(self.limit - used), 0))
        headers[f"x-ratelimit-reset{self.family}"] = stated
        if self.dated:
            headers["date"] = formatdate(int(START_S + self.now_s + self.skew_s), usegmt=True)
        if admitted:
            return httpx2.Response(200, headers=headers, json=ANSWER)
        return httpx2.Response(
            429, headers=headers, json={"error": {"message": "Rate limit reached", "code": "rate_limit_exceeded"}}
        )


@dataclass
class Outcome:
    """What became of the work."""

    took_s: float
    ideal_s: float
    refused: int
    limiter: paceline.Limiter
    server: Server

    @property
    def share(self) -> float:
        return self.ideal_s / self.took_s


def ideal_s(server: Server, jobs: int, workers: int) -> float:
    """What a client needs that sends all that a window admits at once after its restart, with as many workers."""
    dice, free_s, done_s = random.Random(server.seed), [0.0] * workers, 0.0
    used: dict[float, int] = {}
    for _ in range(jobs):
        at_s = heapq.heappop(free_s)
        window = (at_s - server.offset_s) // server.period_s
        while used.get(window, server.others) >= server.limit:
            window += 1
            at_s = max(at_s, window * server.period_s + server.offset_s)
        used[window] = used.get(window, server.others) + 1
        done_s = max(done_s, at_s + dice.uniform(*server.latency_s))
        heapq.heappush(free_s, at_s + dice.uniform(*server.latency_s))
    return done_s


def run(
    server: Server, told: str | None, *, jobs: int = 600, workers: int = 50, limit_s: float = 3_600.0, **options
) -> Outcome:
    """Let ``workers`` send ``jobs`` requests by an attached client. Each is answered in the end."""

    async def main(clock):
        limiter = paceline.Limiter({f"{HOST}/m": told} if told else {}, clock=clock, **options)
        server.start_s = asyncio.get_running_loop().time()
        left, answered = iter(range(jobs)), 0

        async with limiter.attach(
            httpx2.AsyncClient(transport=server, base_url=f"https://{HOST}", timeout=None)
        ) as client:

            async def work():
                nonlocal answered
                for _ in left:
                    response = await client.post(PATH, json=CHAT | {"model": "m"})
                    answered += response.status_code == 200

            async with asyncio.timeout(limit_s):
                await asyncio.gather(*(work() for _ in range(workers)))
        assert answered == jobs
        return Outcome(server.now_s, ideal_s(server, jobs, workers), len(server.refused_s), limiter, server)

    state = random.getstate()
    random.seed(1)  # the instants at which workers begin again are a matter of luck
    try:
        return run_virtual(main)
    finally:
        random.setstate(state)
