"""How long a run takes, said beforehand: held against runs in virtual time."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from itertools import repeat

import pytest
from example_programs import EXAMPLES, load

import paceline
from grids import some
from paceline.config import load_arguments
from paceline.core.quota import NS
from paceline.core.results import Refusal, RefusalKind
from paceline.planner.forecast import REQUESTS_MAX, eta
from paceline.stores import open_store
from paceline.testing import ManualClock
from virtual_time import virtual

LIMITS = EXAMPLES / "acm" / "limits.yaml"
_, components, plan = load("acm", "components", "plan")
POOL = "openai/gpt-6.1-sol"


def limiter_of(clock, *quotas, **options):
    return paceline.Limiter({POOL: list(quotas)}, clock=clock, **options)


async def work_off(limiter, clock, costs, latency_s):
    """Ask for all of it at once; the seconds until the last answer."""
    start_ns = clock.now_ns()

    async def call(cost):
        async with limiter.acquire(POOL, **cost) as permit:
            await asyncio.sleep(latency_s)
            permit.settle(**cost)

    await asyncio.gather(*(call(cost) for cost in costs))
    return (clock.now_ns() - start_ns) / NS


COST = {"input_tokens": 300, "output_tokens": 100}
WORLDS = {
    "requests": (["60 requests/min", "1M tokens/min"], 200, "60 requests/min"),
    "tokens": (["600 requests/min", "60k tokens/min"], 400, "60k tokens/min"),
    "burst": (["60 requests/min burst 5"], 100, "60 requests/min burst 5"),
    "slots": (["6000 requests/min", "4 concurrency"], 100, "4 concurrency"),
    "window": (["30 requests/min window utc"], 100, "30 requests/min window utc"),
    "window of unknown start": (["30 requests/min window"], 100, "30 requests/min window"),
    "latency": (["6000 requests/min"], 5, "latency"),
    "day": (["600 requests/min", "100 requests/day window utc"], 250, "100 requests/day window utc"),
}


@pytest.mark.parametrize(("quotas", "requests", "binds"), WORLDS.values(), ids=WORLDS)
@virtual
async def test_it_takes_as_long_as_was_said(clock, quotas, requests, binds):
    """Exactly: the replay's books are the run's."""
    limiter = limiter_of(clock, *quotas)
    forecast = eta(limiter, {POOL: [COST] * requests}, latency_s=2.0)
    took_s = await work_off(limiter, clock, [COST] * requests, 2.0)
    assert forecast.total_s == pytest.approx(took_s, rel=0.01, abs=0.1)
    assert forecast.binds == {POOL: binds}
    if "day" in binds:
        assert forecast.total_s > 86_400  # over midnight, twice


@pytest.mark.parametrize(("documents", "jitter"), some([(75, 0.3), (75, 0.0), (300, 0.3)], (75, 0.3), (75, 0.0)))
@virtual
async def test_the_program_s_eta_is_within_a_tenth(clock, documents, jitter):
    """The whole program in virtual time: reports wait for documents, answers vary, and more is reserved than is used."""
    limiter = paceline.Limiter(**load_arguments(LIMITS, {}, clock=clock, acquire_timeout=None))
    limiter.pacer.settings = replace(limiter.pacer.settings, acquire_timeout_s=None)
    planned = plan.Plan(documents, 0.5, 0.004)
    costs = {name: iter(own) for name, own in planned.costs.items()}
    drawn = iter(range(10**9))

    async def ask(provider, model, prompt, most):
        name = f"{provider}/{model}"
        used = next(costs[name])
        varied = 1 + jitter * math.sin(next(drawn))
        held = {**used, "input_tokens": used["input_tokens"] * 1.1 * varied}
        if "tokens" in used:
            held["tokens"] = held["input_tokens"] + (0 if provider == "google" else used["output_tokens"])
        async with limiter.acquire(name, **held) as permit:
            await asyncio.sleep(planned.latency_s[name] * varied)
            permit.settle(**used)
        return "An answer."

    evaluation = components.Evaluation(documents, ask)
    before = planned.forecast(limiter, {})[1]
    start_ns, halfway = clock.now_ns(), []

    async def look():
        await asyncio.sleep(before / 2)
        halfway.append(planned.forecast(limiter, evaluation.asked)[1] + before / 2)

    await asyncio.gather(evaluation.run(), look())
    assert evaluation.answered == planned.calls == documents * 10
    took_s = (clock.now_ns() - start_ns) / NS
    assert before == pytest.approx(took_s, rel=0.1)
    assert halfway == [pytest.approx(took_s, rel=0.1)]


class TestFromWhereThePoolsStand:
    @pytest.mark.parametrize("after_s", [0.5, 30.0, 100.0])
    @virtual
    async def test_in_the_middle_of_a_run(self, clock, after_s):
        """Who waits and who is in flight is counted without being named."""
        limiter = limiter_of(clock, "60 requests/min", "30k tokens/min", "8 concurrency")
        start_ns, costs = clock.now_ns(), [COST] * 200
        run = asyncio.ensure_future(work_off(limiter, clock, costs, 3.0))
        await asyncio.sleep(after_s)
        forecast = eta(limiter, {POOL: []}, latency_s=3.0)
        passed_s = (clock.now_ns() - start_ns) / NS
        assert passed_s + forecast.total_s == pytest.approx(await run, rel=0.03)

    @virtual
    async def test_of_a_day_half_used(self, clock):
        limiter = limiter_of(clock, "6000 requests/min", "1000 requests/day window utc")
        await work_off(limiter, clock, [COST] * 600, 0.0)
        within, beyond = (eta(limiter, {POOL: repeat(COST, n)}) for n in (399, 401))
        assert within.total_s < 60
        assert beyond.total_s > 3_600  # after midnight
        assert "requests/day" in beyond.binds[POOL]

    def test_learned_limits_and_pauses(self):
        clock = ManualClock()
        limiter = limiter_of(clock, "600 requests/min")
        permit = limiter.acquire(POOL).wait()
        first_s = eta(limiter, {POOL: repeat({}, 1_000)}).total_s
        limiter.pacer.pools.scheduler(POOL).pool.ledger.adopt(clock.now_ns(), 0, 60.0)
        slower_s = eta(limiter, {POOL: repeat({}, 1_000)}).total_s
        assert slower_s > 9 * first_s
        permit.refused(Refusal(RefusalKind.RATE, retry_after_s=100.0))
        paused_s = eta(limiter, {POOL: [{}]}).total_s
        assert 100 <= paused_s < 110

    def test_nothing_is_changed_by_asking(self):
        limiter = limiter_of(ManualClock(), "60 requests/min", "30k tokens/min", "2 concurrency")
        limiter.pacer.pools.scheduler(POOL)
        before = limiter.status()
        eta(limiter, {POOL: [COST] * 500}, latency_s=1.0)
        assert limiter.status() == before

    def test_money_gone_is_never(self):
        limiter = limiter_of(ManualClock(), "60 requests/min")
        limiter.acquire(POOL).wait().refused(Refusal(RefusalKind.MONEY, message="no credit"))
        forecast = eta(limiter, {POOL: [COST]})
        assert (forecast.total_s, forecast.binds) == (math.inf, {POOL: "stopped"})


def test_slots_that_models_share():
    """Ten at a provider: two models take twice as long together as one alone."""
    limiter = paceline.Limiter(**load_arguments(LIMITS, {}, clock=ManualClock()))
    costs = [{"input_tokens": 10, "output_tokens": 10}] * 200
    one = eta(limiter, {"openai/gpt-6.1-sol": costs}, latency_s=5.0)
    both = eta(limiter, {"openai/gpt-6.1-sol": costs, "openai/gpt-6-luna": costs}, latency_s=5.0)
    assert one.total_s == pytest.approx(100, rel=0.05)
    assert both.total_s == pytest.approx(200, rel=0.05)
    assert set(both.binds.values()) == {"10 concurrency"}
    apart = eta(
        limiter,
        {"openai/gpt-6.1-sol": costs, "groq/x": costs[:20]},
        latency_s={"openai/gpt-6.1-sol": 5.0, "groq/x": 1.0},
    )
    assert apart.pools["openai/gpt-6.1-sol"] == pytest.approx(100, rel=0.05)
    assert apart.pools["groq/x"] < 10


def test_the_store_is_asked_how_shared_pools_stand(tmp_path):
    """What another process has spent of the day is known before the first request, and what it holds comes back."""
    url = f"sqlite:{tmp_path}/quotas.db"
    quotas = {POOL: ["6000 requests/min", "1000 requests/day window utc", "5 concurrency"]}
    other = paceline.Limiter(quotas, store=open_store(url), headroom_s=0)
    for number in range(900):
        permit = other.acquire(POOL).wait()
        if number < 895:
            permit.settle()
    other.close()
    limiter = paceline.Limiter(quotas, store=open_store(url), headroom_s=0)
    forecasts = [eta(limiter, {POOL: repeat({}, n)}, latency_s=0.1) for n in (50, 150)]
    assert forecasts[0].total_s < 60
    assert forecasts[1].total_s > forecasts[0].total_s
    assert "day" in forecasts[1].binds[POOL]
    counts = limiter.status()["pools"][POOL]["counts"]
    assert counts.get("granted", 0) == counts.get("cancelled", 0) == 0
    limiter.close()


class TestBounds:
    def test_a_million_requests_and_no_more(self, monkeypatch):
        monkeypatch.setattr("paceline.planner.forecast.REQUESTS_MAX", 1_000)
        limiter = limiter_of(ManualClock(), "600k requests/min")
        assert eta(limiter, {POOL: repeat({}, 1_000)}).total_s < 1
        with pytest.raises(paceline.QuotaError, match="more than 1,000 requests: forecast a part of them"):
            eta(limiter, {POOL: repeat({})})
        assert REQUESTS_MAX == 1_000_000

    def test_what_takes_ten_years_never_ends(self):
        limiter = limiter_of(ManualClock(), "1 requests/day")
        assert eta(limiter, {POOL: repeat({}, 5_000)}).total_s == math.inf

    def test_no_work_takes_no_time(self):
        limiter = limiter_of(ManualClock(), "1 requests/day")
        assert eta(limiter, {}).total_s == 0
        assert eta(limiter, {POOL: []}).pools == {POOL: 0}

    def test_what_never_fits_is_said(self):
        limiter = limiter_of(ManualClock(), "60 requests/min", "1k tokens/min")
        with pytest.raises(paceline.NeverFitsError, match="costs 5,000 tokens"):
            eta(limiter, {POOL: [{"tokens": 5_000}]})

    @pytest.mark.parametrize("latency_s", [-1, math.nan, math.inf, {POOL: -1}])
    def test_a_latency_that_cannot_be_meant(self, latency_s):
        with pytest.raises(paceline.QuotaError, match=r"latency_s of openai/gpt-6\.1-sol is"):
            eta(limiter_of(ManualClock(), "60 requests/min"), {POOL: []}, latency_s=latency_s)

    @pytest.mark.parametrize("cost", [{"tokens": -1}, {"tokens": math.nan}, {"tokenz": 1}])
    def test_a_cost_that_cannot_be_meant(self, cost):
        with pytest.raises(paceline.QuotaError):
            eta(limiter_of(ManualClock(), "60 requests/min", "1k tokens/min"), {POOL: [cost]})
