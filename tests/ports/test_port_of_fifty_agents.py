"""Fifty agents under seven starts in any minute, counted where their first requests arrive, over cold connections."""

import asyncio
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import httpx2
import pytest
from plain_provider import PlainProvider, Trailing

from paceline.testing import run_virtual

EXAMPLE = Path(__file__).parents[2] / "examples" / "fifty_agents"
spec = spec_from_file_location("fifty_agents_port", EXAMPLE / "run.py")
example = sys.modules["fifty_agents_port"] = module_from_spec(spec)
spec.loader.exec_module(example)


KEPT = {"headroom_s": 1, "limits": {"gemini/*": "7 requests/min exact"}}
"""What the example's README adds for a provider that counts any 60 s."""


def start_all(way_s, **settings):
    """The provider's count of the limited model, and when each agent started, in seconds."""

    async def main(clock):
        quotas = {"gemini-3.8-flash": {"requests": Trailing(7)}, "gpt-6-luna": {"requests": Trailing(500)}}
        provider = PlainProvider(clock, quotas, way_s=way_s)
        limiter, start_ns, started_s = example.limiter_of(clock=clock, **settings), clock.now_ns(), {}
        async with httpx2.AsyncClient(transport=provider, base_url="http://plain") as client:
            limiter.attach(client, provider="gemini")

            async def agent(name, backend, model):
                await example.start(limiter, name, backend, model)
                started_s[name] = (clock.now_ns() - start_ns) / 1e9
                if backend == "gemini":
                    path, body = example.call(backend, model, f"You are {name}. Say hello.")
                    answer = await client.post(path, json=body | {"generationConfig": {"maxOutputTokens": 50}})
                    assert answer.status_code == 200

            await asyncio.gather(*(agent(*one) for one in example.AGENTS))
        return provider.models["gemini-3.8-flash"], started_s

    return run_virtual(main)


@pytest.mark.parametrize("way_s", [0.05, 0.95], ids=["warm", "cold"])
def test_seven_in_any_minute_at_the_provider(way_s):
    flash, started_s = start_all(way_s, **KEPT)
    took_s = flash.arrivals[-1] - flash.arrivals[0]
    print(f"fifty agents, connections up to {way_s} s late: {flash.refused} refused, all started in {took_s:.1f} s")
    assert (flash.refused, len(flash.arrivals)) == (0, 50)
    assert max(sum(first <= at < first + 60 for at in flash.arrivals) for first in flash.arrivals) == 7
    assert max(at_s for name, at_s in started_s.items() if name.startswith("helper")) == 0
    assert 420 <= took_s <= 435  # an attempt counts from its answer, which comes up to 2 s after it was sent


def test_by_the_file_alone_a_few_are_refused_and_none_is_lost():
    """The requests' own limit is a bucket there, whose first requests leave late."""
    flash, started_s = start_all(0.95)
    assert len(flash.arrivals) == 50
    assert 0 < flash.refused <= 7
    assert max(started_s.values()) == 420
