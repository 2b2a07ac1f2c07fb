"""500 workers over two slow models, before a provider of our own that counts any 60 s, or a bucket."""

import asyncio
import random

import httpx2
import pytest
from plain_provider import Bucket, PlainProvider, Trailing, ask

import paceline
from paceline.testing import run_virtual

LIMITS = {"arcee": 200, "pony": 100}


def papers(minutes, rule):
    """The provider, and when each paper was done, in minutes."""

    async def main(clock):
        provider = PlainProvider(clock, {model: {"requests": rule(most)} for model, most in LIMITS.items()})
        lanes = [paceline.LaneSpec("prep", weight=1), paceline.LaneSpec("wrap", weight=4)]
        limits = {f"openai/{model}": f"{most} requests/min" for model, most in LIMITS.items()}
        limiter = paceline.Limiter(limits, lanes=lanes, clock=clock)
        buffer, chance = paceline.Buffer(low=40, high=60), random.Random(7)
        done, start_ns = [], clock.now_ns()
        async with httpx2.AsyncClient(transport=provider, base_url="http://plain") as client:
            limiter.attach(client, provider="openai")

            async def call(model, phase):
                with paceline.lane(phase):
                    assert await ask(client, model, "a paper", 100) == 200

            async def worker():
                while True:
                    async with buffer.place():
                        await call("arcee", "prep")
                        await asyncio.gather(*(call("pony", "expensive") for _ in range(3)))
                    for _ in range(chance.choice((3, 4, 5))):
                        await call("arcee", "wrap")
                    done.append((clock.now_ns() - start_ns) / 60e9)

            workers = [asyncio.create_task(worker()) for _ in range(500)]
            await asyncio.wait(workers, timeout=60 * minutes)
            for one in workers:
                one.cancel()
            for result in await asyncio.gather(*workers, return_exceptions=True):
                assert isinstance(result, asyncio.CancelledError), result
        return provider, done

    return run_virtual(main)


@pytest.mark.parametrize(
    ("minutes", "rule"), [(6, Bucket), pytest.param(12, Trailing, marks=pytest.mark.long("thousands of requests"))]
)
def test_none_refused_and_33_papers_a_minute(minutes, rule):
    provider, done = papers(minutes, rule)
    steady = [at for at in done if at >= 2]
    pony, arcee = (provider.models[model] for model in ("pony", "arcee"))
    calls = len(pony.arrivals) + len(arcee.arrivals)
    print(
        f"papers, {minutes} minutes of a {rule.__name__.lower()} limit: {calls:,} requests, {provider.refused} refused,"
        f" {len(steady) / (minutes - 2):.1f} papers/min, pony {pony.share:.3f} of the best time"
    )
    if rule is Bucket:
        assert provider.refused == 0
        assert provider.models["pony"].share >= 0.97
    else:  # it counts in another way than it was said to: found out by its refusals
        assert provider.refused <= 0.02 * sum(provider.models["pony"].totals.values())
    assert len(steady) / (minutes - 2) >= 31
