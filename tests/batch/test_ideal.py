"""The share of the ideal speed of a run: of answers alone, by the limits that are in effect."""

import asyncio
import random
from dataclasses import dataclass

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.stated import HOST, Server

import paceline
from paceline.batch.ideal import IdealSpeed
from paceline.core.quota import NS
from paceline.testing import run_virtual

pytestmark = pytest.mark.filterwarnings("ignore::paceline.PacelineWarning")
MESSAGES = [{"role": "user", "content": "Hi."}]


@dataclass
class World(Server):
    """A server whose answers may cost more than was held, which may fail and change its limit, and may state nothing."""

    tokens: int = 17
    faults: float = 0.0
    stating: bool = True
    later: int = 100  # the limit from ``change_s`` on
    change_s: float = 1e9

    async def handle_async_request(self, request):
        if self.now_s >= self.change_s:
            self.limit = self.later
        if self.dice.random() < self.faults:
            return httpx2.Response(self.dice.choice([500, 503, 429]), json={"error": {"message": "no"}})
        response = await super().handle_async_request(request)
        headers = dict(response.headers) if self.stating else {}
        headers.pop("content-length", None)
        body = response.json()
        if response.status_code == 200:
            tokens = self.dice.randint(1, self.tokens)
            body["usage"] = {"prompt_tokens": tokens, "completion_tokens": 5, "total_tokens": tokens + 5}
        return httpx2.Response(response.status_code, headers=headers, json=body)


def share_of(server, told, *, jobs=150, workers=30, limit_s=7_200.0, **options):
    """The share of the ideal speed of ``jobs`` requests by an attached client, and how many were answered."""
    ideal = IdealSpeed()

    async def main(clock):
        limiter = paceline.Limiter({f"{HOST}/m": told} if told else {}, clock=clock, **options)
        server.start_s, left, answered = asyncio.get_running_loop().time(), iter(range(jobs)), 0
        ideal.begin(clock.now_ns() / NS, limiter.status()["pools"])

        async def work(client):
            nonlocal answered
            for _ in left:
                body = {"model": "m", "messages": MESSAGES, "max_tokens": 5}
                response = await client.post("/v1/chat/completions", json=body)
                answered += response.status_code == 200
                ideal.take(limiter, response.extensions["paceline"])

        transport = httpx2.AsyncClient(transport=server, base_url=f"https://{HOST}", timeout=None)
        async with limiter.attach(transport) as client:
            try:
                async with asyncio.timeout(limit_s):
                    await asyncio.gather(*(work(client) for _ in range(workers)))
            except TimeoutError:
                pass
        return answered

    state = random.getstate()
    try:
        answered = run_virtual(main)
        return ideal.share, answered
    finally:
        random.setstate(state)


WORLDS = st.builds(
    World,
    rule=st.sampled_from(["window", "first", "oldest", "newest", "bucket"]),
    form=st.sampled_from(["epoch", "iso", "seconds"]),
    offset_s=st.sampled_from([0.0, 20.0]),
    limit=st.sampled_from([5, 40, 100]),
    period_s=st.sampled_from([5.0, 60.0]),
    latency_s=st.sampled_from([(0.0, 0.0), (0.2, 2.0), (1.0, 30.0)]),
    others=st.sampled_from([0, 3]),
    retry_after=st.booleans(),
    stating=st.booleans(),
    tokens=st.sampled_from([1, 20, 5_000]),
    faults=st.sampled_from([0.0, 0.1, 0.5]),
    later=st.sampled_from([5, 1_000]),
    change_s=st.sampled_from([3.0, 30.0, 1e9]),
    seed=st.integers(0, 99),
)
TOLD = st.sampled_from(
    [
        None, "40 requests/min", "1000 requests/min", "30 requests/min, 2k tokens/min", "10 requests/s, 200 tokens/s burst 50",
        "60 requests/min window", "50 requests/10s sliding, 3 concurrency", "100 requests/day, 900 tokens/min",
    ]
)  # fmt: skip


@given(WORLDS, TOLD, st.booleans(), st.sampled_from([1, 8, 60]))
@settings(max_examples=25, deadline=None)
def test_no_share_is_above_one(server, told, learn, workers):
    share, _ = share_of(server, told, workers=workers, jobs=120, limit_s=900.0, learn=learn)
    assert share is None or 0 < share <= 1
