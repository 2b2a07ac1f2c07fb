"""A simulation of 500 agents in rounds, two models, tier 1, before a provider of our own without headers."""

import asyncio
import random

import httpx2
import pytest
from plain_provider import Bucket, PlainProvider, ask

import paceline
from paceline.integrations.extropy import ExtropyLimiter
from paceline.testing import run_virtual

TIER_1 = {"requests": 500, "tokens": 500_000}


def simulate(agents, rounds):
    """The provider, and the most agents that were in flight."""

    async def main(clock):
        quotas = {model: {unit: Bucket(most) for unit, most in TIER_1.items()} for model in ("gpt-5", "gpt-5-mini")}
        provider = PlainProvider(clock, quotas)
        limiter = paceline.Limiter.for_provider("openai", tier=1, clock=clock)
        roles = ExtropyLimiter(limiter, "openai/gpt-5", "openai/gpt-5-mini")
        chance, now, peak = random.Random(3), 0, 0
        async with httpx2.AsyncClient(transport=provider, base_url="http://plain") as client:
            limiter.attach(client, provider="openai")

            async def agent(number, slots):
                nonlocal now, peak
                async with slots:
                    now += 1
                    peak = max(peak, now)
                    text = f"agent {number}: " + "a memory of that day. " * chance.randint(40, 300)  # to 1 600 tokens
                    assert await ask(client, "gpt-5", text, 300) == 200
                    assert await ask(client, "gpt-5-mini", text[:1_500], 80) == 200
                    now -= 1

            for _ in range(rounds):
                slots = asyncio.Semaphore(roles.max_safe_concurrent)
                await asyncio.gather(*(agent(number, slots) for number in range(agents)))
        return provider, peak

    return run_virtual(main)


@pytest.mark.long("a whole program")
def test_none_refused_at_nearly_the_ideal_speed():
    agents, rounds = 500, 2
    provider, peak = simulate(agents, rounds)
    share = provider.models["gpt-5"].share
    print(
        f"simulation: {2 * agents * rounds:,} requests, {provider.refused} refused, gpt-5 {share:.3f} of the best time"
    )
    assert provider.refused == 0
    assert [len(model.arrivals) for model in provider.models.values()] == [agents * rounds] * 2
    assert peak == 250  # half a minute's requests
    assert share >= 0.97
