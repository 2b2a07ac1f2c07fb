"""The figures of docs/how_limits_work.md and docs/agents.md: ``python docs/site/figures.py`` writes them to docs/images/.

Every line is computed by the arithmetic of the project: how a provider counts by the rules of the emulator, what a limiter grants by the
meters of the core, or by a whole limiter in virtual time. ``tests/docs/test_site.py`` compares the files with this script.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paceline.core.meters import Bucket as Meter
from paceline.core.quota import NS, Quota
from paceline.core.results import SourceKind
from paceline.core.unstated.measured import RateMeter
from paceline.emulator.rules import BucketRule, CountingRule, SlidingRule, WindowRule
from paceline.planner.picture import Panel, picture
from paceline.planner.simulation import Request, Simulation
from paceline.planner.workload import Conversation

IMAGES = Path(__file__).parents[1] / "images"


def greedy(
    rule: CountingRule, until_s: float, every_s: float = 1.0
) -> tuple[Sequence[tuple[float, float]], Sequence[tuple[float, float]]]:
    """The level of ``rule`` and the number of admitted requests, for a client that sends as soon as a request fits."""
    levels, admitted, count, now = [], [], 0, 0.0
    while now <= until_s:
        while rule.fits(now, 1):
            rule.charge(now, 1)
            count += 1
        levels.append((now, rule.remaining(now)))
        admitted.append((now, float(count)))
        now += every_s
    return levels, admitted


def rules() -> str:
    """The same limit under three rules."""
    kinds: dict[str, Callable[[], CountingRule]] = {
        "bucket": lambda: BucketRule(60, 60.0, 0.0),
        "window (restarts at 0:30)": lambda: WindowRule(60, 60.0, 0.0, offset_s=30.0),
        "sliding window": lambda: SlidingRule(60, 60.0, 0.0),
    }
    runs = {name: greedy(make(), 150.0) for name, make in kinds.items()}
    return picture(
        "Requests admitted under a bucket, a fixed window and a sliding window of 60 requests a minute",
        [
            Panel(
                "requests admitted (60 requests/min; seconds)", [(name, run[1]) for name, run in runs.items()], 150, 240
            )
        ],
    )


def retries(workers: int = 40, *, failed_count: bool, until_s: float = 120.0) -> tuple[list[tuple[float, float]], int]:
    """Workers that retry after 0.5 to 8 s, as SDKs do: the answered requests over time, and the number of refusals."""
    rule, chance = BucketRule(60, 60.0, 0.0, full=0.0), random.Random(7)
    due = [(chance.random(), i, 0) for i in range(workers)]
    heapq.heapify(due)
    served, refused, points = 0, 0, [(0.0, 0.0)]
    while due[0][0] <= until_s:
        now, worker, failures = heapq.heappop(due)
        if rule.fits(now, 1):
            rule.charge(now, 1)
            served += 1
            points.append((now, float(served)))
            heapq.heappush(due, (now + 0.5, worker, 0))  # the answer, and at once the next request
        else:
            refused += 1
            if failed_count:
                rule.charge(now, min(1.0, max(rule.remaining(now), 0.0)))  # what has been refilled is lost again
            pause = min(8.0, 0.5 * 2**failures) * (1 - 0.25 * chance.random())
            heapq.heappush(due, (now + pause, worker, failures + 1))
    return [*points, (until_s, float(served))], refused


def paced(until_s: float = 120.0) -> list[tuple[float, float]]:
    """The requests that a bucket of the core grants, with a second of headroom and an empty start."""
    quota = Quota.parse("60 requests/min")
    meter = Meter(quota, 0, headroom_s=1.0)
    meter.charge(0, quota.burst)
    points, count = [(0.0, 0.0)], 0
    while (at_ns := meter.earliest(0, 1.0)) <= until_s * NS:
        meter.charge(at_ns, 1.0)
        count += 1
        points.append((at_ns / NS, float(count)))
    return points


def retrying() -> str:
    """Retries against a wait for the right instant."""
    lines = [
        ("paced", paced()),
        ("retries", retries(failed_count=False)[0]),
        ("retries, where failures count", retries(failed_count=True)[0]),
    ]
    return picture(
        "Requests answered by 40 workers that retry, and by paced requests, at 60 requests a minute",
        [Panel("requests answered (60 requests/min, 40 workers; seconds)", lines, 120, 120)],
    )


def share(run_s: float, *, headroom_s: float = 0.0, factor: float = 1.0) -> float:
    """The part of what a bucket of 600 requests/min allows in ``run_s`` that a limiter uses."""
    quota = Quota.parse("600 requests/min")
    meter = Meter(quota.with_amount(600 * factor), 0, headroom_s=headroom_s)
    granted = 0
    while meter.earliest(0, 1.0) <= run_s * NS:
        meter.charge(max(meter.earliest(0, 1.0), 0), 1.0)
        granted += 1
    return granted / (quota.burst + quota.rate * run_s)


def headroom() -> str:
    """A fixed headroom against a safety factor."""
    runs = [10, 20, 30, 45, 60, 90, 120, 180, 240, 300]
    lines = [
        ("headroom of 1 s", [(s, 100 * share(s, headroom_s=1.0)) for s in runs]),
        ("safety factor 0.9", [(s, 100 * share(s, factor=0.9)) for s in runs]),
        ("safety factor 0.8", [(s, 100 * share(s, factor=0.8)) for s in runs]),
    ]
    return picture(
        "Share of the allowed requests that is used, with a fixed headroom and with safety factors, by the length of the run",
        [Panel("used, in % of what the limit allows (length of the run; seconds)", lines, 300, 100)],
    )


def found(limits: str, until_s: float, workers: int, latency_s: float, **settings: Any) -> list[tuple[float, float]]:
    """The rate at which a limiter sends to a host that states no limit, per second; it is looked at twice a second."""
    model, points = "llm.example.com/m", []
    simulation = Simulation(
        {model: limits}, net_s=(0.04, 0.06), seed=1, headers=False, dialect="plain", latency_s=latency_s, jitter=0.2, **settings
    )  # fmt: skip
    process = simulation.process(quotas={"llm.example.com/*": "8 concurrency"}, source=SourceKind.ASSUMED)

    async def work() -> None:
        while True:
            await process.send(Request(model, 1))

    async def main() -> None:
        tasks = [asyncio.ensure_future(work()) for _ in range(workers)]
        while simulation.now_s < until_s:
            await simulation.time.sleep(0.5)
            meters = (entry.meter for entry in process.limiter.pacer.pools.in_use[0].pool.ledger.entries)
            points.extend((simulation.now_s, meter.rate.rate) for meter in meters if isinstance(meter, RateMeter))
        for task in tasks:
            task.cancel()

    simulation.run(main)
    return points


def measuring() -> str:
    """The rate where nothing is stated: of a bucket, and of a capacity that falls and rises."""
    times = [(12, "240 requests/min quantised"), (24, "600 requests/min quantised")]
    changes = [{"at_s": at_s, "limits": {"llm.example.com/m": limits}} for at_s, limits in times]
    moving = found("600 requests/min quantised", 60.0, 100, 2.0, quantum_s=0.5, changes=changes)
    return picture(
        "The rate at which attempts are sent, and the rate that the provider admits, for a steady and for a moving capacity",
        [
            Panel(
                "60 requests/min, burst 10: per second (seconds)",
                [("admitted", [(0, 1), (120, 1)]), ("sent", found("10 requests/10s", 120.0, 20, 3.0))],
                120,
                3,
            ),
            Panel(
                "10, then 4, then 10 a second: per second (seconds)",
                [("admitted", [(0, 10), (12, 10), (12, 4), (24, 4), (24, 10), (60, 10)]), ("sent", moving)],
                60,
                15,
            ),
        ],
    )


def turns(until_s: float, *, prompt_cache: bool) -> list[tuple[float, float]]:
    """The answered turns of 20 agents with ten turns each, at 30,000 uncached input tokens a minute."""
    model, agents = "anthropic/m", 20
    limits = "50 requests/min,30k input_tokens/min,8k output_tokens/min"
    simulation = Simulation({model: limits}, seed=1, cache=True, latency_s=0.6)
    process = simulation.process(quotas={model: limits}, prompt_cache=prompt_cache)
    points, chance = [(0.0, 0.0)], random.Random(1)

    async def agent(number: int) -> None:
        talk = Conversation(model, f"agent {number}", 12_000)
        await simulation.time.sleep(0.1 * number)
        for _ in range(10):
            sent = await process.send(talk.request(100, max_output_tokens=100, duration_s=chance.uniform(2, 6)))
            assert sent.error is None
            points.append((simulation.now_s, points[-1][1] + 1))
            talk.grow(600)
            await simulation.time.sleep(chance.uniform(1, 5))

    async def main() -> None:
        working = [asyncio.ensure_future(agent(number)) for number in range(agents)]
        await asyncio.wait(working, timeout=until_s)
        for task in working:
            task.cancel()

    simulation.run(main)
    return [*points, (until_s, points[-1][1])]


def agents() -> str:
    """Turns of agents in the order of arrival, and with cached prompts first."""
    return picture(
        "Turns of 20 agents that are answered with cached prompts first, and in the order of arrival",
        [
            Panel(
                "turns answered (20 agents, 30k input tokens/min; seconds)",
                [
                    ("cached prompts first", turns(720, prompt_cache=True)),
                    ("order of arrival", turns(720, prompt_cache=False)),
                ],
                720,
                200,
            )
        ],
    )


FIGURES = {
    "agents.svg": agents,
    "limits_rules.svg": rules,
    "limits_measured.svg": measuring,
    "limits_retries.svg": retrying,
    "limits_headroom.svg": headroom,
}

if __name__ == "__main__":
    logging.getLogger("paceline").setLevel(logging.CRITICAL)  # refusals are what a figure shows
    for file, draw in FIGURES.items():
        (IMAGES / file).write_text(draw(), "utf-8")
