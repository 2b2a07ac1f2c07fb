"""The least time between two starts at one provider, ``min_interval_s``, over all its models."""

import asyncio
import threading
from collections import Counter
from functools import partial
from itertools import pairwise

import httpx2
import pytest
from test_joint import OPENAI, Calls

import paceline
from grids import WORLD
from paceline.core.quota import NS
from paceline.emulator.rules import BucketRule
from virtual_time import virtual
from waits import run_all

STEP_S = 0.05


def starts_of(clock, limits=OPENAI, **given):
    return Calls(paceline.Limiter(limits, min_interval_s=STEP_S, clock=clock, **given))


def gaps(starts):
    return [round(after - before, 6) for (_, before), (_, after) in pairwise(starts.log)]


@virtual
async def test_in_arrival_order_over_all_models(clock):
    starts = starts_of(clock, learn=False)
    await asyncio.gather(*(starts.one(name) for _ in range(40) for name in OPENAI))
    assert set(gaps(starts)) == {STEP_S}
    assert [name for name, _ in starts.log] == list(OPENAI) * 40


@virtual
async def test_other_providers_are_not_spaced_with_it(clock):
    starts = starts_of(clock, {"openai/a": "60 requests/min", "groq/x": "60 requests/min", "jobs": "60 requests/min"})
    await asyncio.gather(*(starts.one(name) for name in ("openai/a", "groq/x", "jobs")))
    log, pools = starts.log, set(starts.limiter.status()["pools"])
    assert [at_s for _, at_s in log] == [0, 0, 0]
    assert pools == {"openai/a", "openai/spacing", "groq/x", "groq/spacing", "jobs"}


@pytest.mark.parametrize("slots", [1, 3, 10])
@virtual
async def test_also_where_slots_become_free_together(clock, slots):
    starts = starts_of(clock, concurrency={"openai": slots}, learn=False)
    await asyncio.gather(*(starts.one(name, answer_s=1.0) for name in OPENAI for _ in range(20)))
    assert min(gaps(starts)) >= STEP_S
    assert starts.log[-1][1] <= 60 / slots * (1 + STEP_S)


@virtual
async def test_a_request_that_gives_up_leaves_its_turn(clock):
    starts = starts_of(clock)
    await starts.one("openai/a")
    with pytest.raises(paceline.AcquireTimeoutError, match=r"openai/b: .*1 requests/0\.05s exact"):
        await starts.one("openai/b", timeout=0.01)
    await starts.one("openai/c")
    log, spent = starts.log, starts.limiter.status()["pools"]["openai/b"]["quotas"][0]["spent"]
    assert (log, spent) == ([("openai/a", 0.0), ("openai/c", 0.05)], 0)


@virtual
async def test_under_attached_clients_and_by_hand_together(clock):
    starts = starts_of(clock)

    def answer(request):
        starts.note(request.url.path)
        return httpx2.Response(200, json={"usage": {"prompt_tokens": 9, "completion_tokens": 1}})

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer), base_url="http://api") as http:
        starts.limiter.attach(http, provider="openai")
        bodies = [{"model": model, "messages": [], "max_tokens": 5} for model in "abc"]
        calls = [http.post("/v1/chat/completions", json=body) for body in bodies]
        await asyncio.gather(*calls, *(starts.one(name) for name in OPENAI))
    assert gaps(starts) == [STEP_S] * 5


@pytest.mark.parametrize(
    "rates", [pytest.param((300, 300, 300), marks=WORLD), pytest.param((300, 300, 500), marks=WORLD), (100, 900, 300)]
)
@virtual
async def test_quotas_hold_at_the_provider_while_many_wait_for_their_start(clock, rates):
    """The provider's buckets stay full until the requests are sent, which is up to a minute after their charge here."""
    limits = {f"openai/{model}": f"{rate} requests/min" for model, rate in zip("abc", rates, strict=True)}
    starts = starts_of(clock, limits, learn=False)
    servers = {name: BucketRule(rate, 60.0, starts.start_ns / NS) for name, rate in zip(limits, rates, strict=True)}
    refused = Counter()

    async def call(name):
        async with starts.limiter.acquire(name) as permit:
            now_s = clock.now_ns() / NS
            if servers[name].fits(now_s, 1):
                servers[name].charge(now_s, 1)
            else:
                refused[name] += 1
            permit.settle()

    await asyncio.gather(*(call(name) for name in limits for _ in range(800)))
    assert refused == {}


def test_in_threads():
    limiter = paceline.Limiter(OPENAI, min_interval_s=0.002, learn=False)
    at_ns, lock = [], threading.Lock()

    def work(name):
        for _ in range(10):
            with limiter.acquire(name) as permit:
                permit.settle()
                with lock:
                    at_ns.append(permit.reservation.granted_ns)

    run_all(partial(work, name) for name in OPENAI)
    assert len(at_ns) == 30
    assert min(b - a for a, b in pairwise(sorted(at_ns))) >= 0.002 * NS


def test_each_process_spaces_its_own_starts_also_with_a_store(tmp_path):
    limiter = paceline.Limiter(OPENAI, min_interval_s=STEP_S, store=f"sqlite:{tmp_path}/quotas.db")
    assert limiter.try_acquire("openai/a")
    later = limiter.try_acquire("openai/b")
    assert later or later.quota == "1 requests/0.05s exact of openai/spacing"
    assert "store" not in limiter.status()["pools"]["openai/spacing"]
    limiter.close()
