"""Speed under a known limit: 500 workers against an emulated bucket, each limiter in turn, in the same run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import paceline
from benchmarks import peers
from benchmarks.table import Row
from benchmarks.throttle import run_throttle
from benchmarks.traffic import MAX_OUTPUT_TOKENS, MODEL, client_of, cut, free, prompts, send
from benchmarks.worlds import PER_CHAT
from paceline.emulator import Emulator
from paceline.emulator.text import PER_MESSAGE, count_tokens

GOAL = 0.995


@dataclass(frozen=True, slots=True)
class World:
    """The limits, and how long the batch takes at best once the first minute's worth has gone."""

    ideal_s: float
    workers: int = 500
    requests: int = 1_200
    tokens: int = 960_000
    latency_s: float = 0.3

    def jobs(self) -> list[tuple[str, int]]:
        """Prompts with what the server will charge: peers are told the true cost, paceline has to estimate it."""
        count = self.requests + round(self.requests / 60 * self.ideal_s)
        extra = PER_MESSAGE + PER_CHAT + MAX_OUTPUT_TOKENS
        return [(prompt, count_tokens(prompt) + extra) for prompt in prompts(count)]


def measure(quick: bool) -> list[Row]:
    """A row with the default headroom, one with a quarter of a second; the peers beside the first."""
    world = World(10.0 if quick else 60.0)
    jobs = world.jobs()
    limits = {MODEL: [f"{world.requests} requests/min", f"{world.tokens} tokens/min"]}
    what = f"{world.workers} workers, {len(jobs):,} requests, {world.ideal_s:g} s at best: share of the ideal speed"
    goal = f">= {GOAL} with 0 refused"
    with Emulator(limits, process=True, latency_s=world.latency_s) as emulator:
        ours = _run(emulator, _paceline(emulator, world, jobs, 1.0))
        said = [f"aiolimiter: {_or_na('aiolimiter', emulator, _admitted(emulator, world, jobs, peers.aiolimiter))}"]
        if quick:
            return [Row(what, _say(ours), goal, _met(ours), said[0])]
        closer = _run(emulator, _paceline(emulator, world, jobs, 0.25))
        said += [
            f"async-batch-llm: {_or_na('async_batch_llm', emulator, _async_batch_llm(emulator, world, jobs))}",
            f"limits: {_or_na('limits', emulator, _admitted(emulator, world, jobs, peers.limits))}",
            f"token-throttle: {_throttle(emulator, world, jobs)}",
        ]
    return [
        Row(what, _say(ours), goal, _met(ours), "; ".join(said)),
        Row("the same, headroom_s=0.25", _say(closer), goal, _met(closer)),
    ]


def _run(emulator: Emulator, coroutine: Any) -> dict[str, Any]:
    emulator.reset()
    result = asyncio.run(coroutine)
    return dict(result) | {"tally": emulator.tally()}


def _or_na(module: str, emulator: Emulator, coroutine: Any) -> str:
    if not peers.installed(module):
        coroutine.close()
        return "n/a"
    return _say(_run(emulator, coroutine))


async def _paceline(emulator: Emulator, world: World, jobs: list[tuple[str, int]], headroom_s: float) -> dict[str, Any]:
    limiter = paceline.Limiter(
        {f"openai/{MODEL}": [f"{world.requests} requests/min", f"{world.tokens} tokens/min"]}, headroom_s=headroom_s
    )
    async with client_of(emulator.base_url) as client:
        limiter.attach(client, provider="openai")
        return await send(client, jobs, free, world.workers, cut(world.ideal_s))


async def _admitted(emulator: Emulator, world: World, jobs: list[tuple[str, int]], peer: Any) -> dict[str, Any]:
    async with client_of(emulator.base_url) as client:
        return await send(client, jobs, peer(world.requests, world.tokens), world.workers, cut(world.ideal_s))


async def _async_batch_llm(emulator: Emulator, world: World, jobs: list[tuple[str, int]]) -> dict[str, Any]:
    async with client_of(emulator.base_url) as client:
        return await peers.async_batch_llm(
            client, jobs, requests=world.requests, tokens=world.tokens, workers=world.workers, cut_s=cut(world.ideal_s)
        )


def _throttle(emulator: Emulator, world: World, jobs: list[tuple[str, int]]) -> str:
    job = {
        "what": "speed", "url": emulator.base_url, "jobs": jobs, "workers": world.workers, "requests": world.requests,
        "tokens": world.tokens, "cut_s": cut(world.ideal_s),
    }  # fmt: skip
    emulator.reset()
    result = run_throttle(job, cut(world.ideal_s) + 60)
    return f"n/a ({result['why']})" if "why" in result else _say(result | {"tally": emulator.tally()})


def _share(result: dict[str, Any]) -> float:
    """Of the ideal speed, by the server's clock; of a run that was stopped, up to then."""
    tally = result["tally"]
    if not result["stopped"]:
        return float(tally["speed_vs_ideal"] or 0.0)
    return max(float(tally["ideal_s"] or 0.0), 0.0) / float(result["seconds"])


def _say(result: dict[str, Any]) -> str:
    refused = result["tally"]["refused_total"]
    lost = f", {result['lost']:,} lost" if result["lost"] else ""
    end = f", stopped after {result['seconds']:.0f} s with {result['done']:,} done" if result["stopped"] else ""
    return f"{_share(result):.3f}, {refused:,} refused{lost}{end}"


def _met(result: dict[str, Any]) -> bool:
    return _share(result) >= GOAL and not result["tally"]["refused_total"] and not result["stopped"]
