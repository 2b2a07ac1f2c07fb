"""The workloads of the comparison with peers: limits, jobs, and the shortest time in which the limits allow them."""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Literal, NamedTuple

from benchmarks.traffic import CHAT, MAX_OUTPUT_TOKENS, body, prompts
from paceline.emulator.text import PER_MESSAGE, count_tokens

Rule = Literal["bucket", "sliding", "window"]
Server = Literal["emulator", "mocklimit"]
SERVERS: tuple[Server, ...] = ("emulator", "mocklimit")
LATENCY_S = 0.3
MOST_JOBS = 1_500
PER_CHAT = 3
"""The tokens of a chat beside its messages, as the emulator counts them."""
ENTRY_S = 0.2
"""Seconds past its restart at which a run enters a short window, so that every run finds the same phase."""


@dataclass(frozen=True, slots=True)
class Limit:
    """An amount per period, under a rule: a bucket starts full; a window restarts at the clock's multiples of its period."""

    amount: int
    period_s: int = 60
    rule: Rule = "bucket"

    @property
    def rate(self) -> float:
        """Amount per second."""
        return self.amount / self.period_s


class Job(NamedTuple):
    """A prompt, and what the server charges for it, by unit."""

    text: str
    cost: dict[str, int]


@dataclass(frozen=True, slots=True)
class World:
    """A workload.

    Attributes:
        name: As the page and ``--world`` name it.
        about: What is particular, in one sentence.
        told: What each limiter is configured with, per minute.
        true: What the server allows, by unit.
        servers: The servers that can express it.
        others: The share of the rate that other users of the key take.
        outage: Seconds after the first request between which the server is down; a share of the ideal time.
    """

    name: str
    about: str
    told: dict[str, int]
    true: dict[str, Limit]
    servers: tuple[Server, ...] = SERVERS
    others: float = 0.0
    outage: tuple[float, float] = (0.0, 0.0)

    def phase_s(self, ideal_s: float) -> float:
        """Seconds past its restart at which a run enters a window: a longer one restarts at the end of the ideal time."""
        period_s = self.period_s()
        return period_s - ideal_s if period_s > ideal_s else ENTRY_S

    def period_s(self) -> float:
        """The longest period of a window that restarts; 0 without any."""
        return max((limit.period_s for limit in self.true.values() if limit.rule == "window"), default=0)

    def jobs(self, server: Server, ideal_s: float) -> list[Job]:
        """Requests in their order; so many that the limits need ``ideal_s`` for them."""
        jobs = _most_jobs(server)
        times = self.earliest([job.cost for job in jobs], self.phase_s(ideal_s))
        return jobs[: bisect.bisect_right(times, ideal_s)]

    def best(self, server: Server, ideal_s: float) -> list[float]:
        """Seconds from the first admission to each further one of :meth:`jobs`, at best."""
        down_s, up_s = (share * ideal_s for share in self.outage)
        costs = [job.cost for job in self.jobs(server, ideal_s)]
        times = self.earliest(costs, self.phase_s(ideal_s))
        return [up_s if down_s <= at < up_s else at for at in times]

    def earliest(self, costs: Sequence[Mapping[str, int]], start_s: float = 0.0) -> list[float]:
        """Seconds from the first admission to each further one, at best, if the first one is at ``start_s`` on the clock."""
        times = [0.0] * len(costs)
        for unit, limit in self.true.items():
            sums = accumulate(cost[unit] for cost in costs)
            times = [max(a, b) for a, b in zip(times, _times(limit, sums, start_s, self.others), strict=True)]
        return times


@cache
def _most_jobs(server: Server) -> list[Job]:
    texts = [f"request {number}: {prompt}" for number, prompt in enumerate(prompts(MOST_JOBS))]
    return [Job(text, charged(server, CHAT, text, len(_sent(text)))) for text in texts]


def _times(limit: Limit, sums: Iterable[float], start_s: float, others: float) -> Iterable[float]:
    if limit.rule == "bucket":
        return [max(0.0, total - limit.amount) / (limit.rate * (1 - others)) for total in sums]
    phase = start_s % limit.period_s if limit.rule == "window" else 0.0
    return [max(0.0, (math.ceil(total / limit.amount) - 1) * limit.period_s - phase) for total in sums]


def _sent(text: str) -> bytes:
    return json.dumps(body(text), separators=(",", ":"), ensure_ascii=False).encode()


def charged(server: Server, path: str, text: str, size: int) -> dict[str, int]:
    """What a request costs: the emulator counts its text, mocklimit the bytes of its body."""
    counted = count_tokens(text) + PER_MESSAGE + (PER_CHAT if path == CHAT else 0)
    given = counted if server == "emulator" else size // 4
    return {
        "requests": 1, "input_tokens": given, "output_tokens": MAX_OUTPUT_TOKENS, "tokens": given + MAX_OUTPUT_TOKENS,
    }  # fmt: skip


def _both(requests: int, tokens: int) -> dict[str, Limit]:
    return {"requests": Limit(requests), "tokens": Limit(tokens)}


WORLDS = [
    World(
        "requests bind", "The limits are known, and the one on requests binds.",
        {"requests": 600, "tokens": 900_000}, _both(600, 900_000),
    ),
    World(
        "tokens bind", "The limits are known, and the one on tokens binds. Requests cost from 140 to 1,400 tokens.",
        {"requests": 3_000, "tokens": 360_000}, _both(3_000, 360_000),
    ),
    World(
        "half the limits", "The server allows half of what the limiter is configured with.",
        {"requests": 600, "tokens": 900_000}, _both(300, 450_000),
    ),
    World(
        "restarting minute", "600 requests in each minute of the clock, instead of a bucket. No header states the rule, and the run begins in mid-minute. paceline can be told the rule (`600 requests/min window utc`), and here it is not.",
        {"requests": 600, "tokens": 900_000}, {"requests": Limit(600, 60, "window"), "tokens": Limit(900_000)},
    ),
    World(
        "trailing ten seconds", "600 requests a minute are enforced as 100 in any trailing ten seconds, and the headers state 100.",
        {"requests": 600, "tokens": 900_000}, {"requests": Limit(100, 10, "sliding"), "tokens": Limit(900_000)},
    ),
    World(
        "others take a third", "Other users of the key take a third of every limit.",
        {"requests": 600, "tokens": 900_000}, _both(600, 900_000), ("emulator",), others=1 / 3,
    ),
    World(
        "outage", "Every request gets a 503 for a quarter of the ideal time, from a relay before the server.",
        {"requests": 600, "tokens": 900_000}, _both(600, 900_000), outage=(0.25, 0.5),
    ),
]  # fmt: skip
