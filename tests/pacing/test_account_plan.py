"""The plan that all pools of an account pass: what its refusals shut, who waits where, and how it opens."""

import asyncio
from dataclasses import replace

import pytest

import paceline
from paceline import Limiter, PlanPolicy, Refusal, RefusalKind, RetryPolicy
from paceline.core.progress import Progress
from paceline.core.results import AcquireTimeoutError, PoolStoppedError
from paceline.pacing.permit import refuse
from paceline.pacing.plans import Plans
from paceline.pacing.retry import Again, Failures, GiveUp
from paceline.providers.plan_headers import PlanReading
from paceline.testing.clock import START_S
from virtual_time import virtual
from waits import gone

HOUR = 3_600.0
ONE, OTHER, ELSEWHERE = "anthropic/claude-opus-4-5", "anthropic/claude-sonnet-4-5", "openai/gpt-5"
FIVE_HOURS = Refusal(RefusalKind.RATE, retry_after_s=HOUR, window="5h", of_account=True)
OF_A_MODEL = Refusal(RefusalKind.RATE, retry_after_s=HOUR, window="7d_oi")


@pytest.fixture
def limiter(clock):
    return Limiter({"anthropic/*": "6000 requests/min", "openai/*": "6000 requests/min"}, clock=clock)


async def refused(limiter, refusal, pool=ONE):
    permit = await limiter.acquire(pool, tokens=0)
    row = limiter.pacer.pools.scheduler(pool).row(permit.reservation, refusal)
    refuse(permit, refusal, Again(min(row.test_s, refusal.retry_after_s or row.test_s), pool_wide=True))
    return permit


def waits(limiter, *pools, timeout=None):
    return [asyncio.create_task(limiter.acquire(pool, tokens=0, timeout=timeout).__aenter__()) for pool in pools]


def rows(limiter):
    names = ("account", "window", "state", "waiting", "scope")
    return [tuple(row[name] for name in names) for row in limiter.status()["plans"]]


@virtual
async def test_a_refusal_about_the_account_shuts_all_its_models_and_no_other_account(clock, limiter):
    async with limiter.acquire(OTHER, tokens=0):
        await refused(limiter, FIVE_HOURS)
    tasks = waits(limiter, ONE, OTHER, ELSEWHERE)
    await asyncio.sleep(1)
    assert [task.done() for task in tasks] == [False, False, True]
    assert rows(limiter) == [("anthropic", "5h", "shut", 2, None)]
    [row] = limiter.status()["plans"]
    assert (row["ends_s"], row["test_s"]) == (HOUR - 1, 59)
    pools = limiter.status()["pools"]
    assert pools["anthropic/plan"]["waiting"] == 2
    own = pools["anthropic/claude-opus-4x"]
    assert own["in_flight"] == own["waiting"] == 0  # no quota is charged while they wait
    assert pools["anthropic/plan"]["cool_down_s"] == pytest.approx(HOUR - 1)
    await asyncio.sleep(60)
    assert [task.done() for task in tasks] == [True, False, True]
    assert rows(limiter)[0][2] == "probing"
    limiter.pacer.pools.scheduler(ONE).admitted(tasks[0].result().reservation)
    await asyncio.sleep(0)
    assert rows(limiter)[0][2] == "opening"
    await tasks[1]
    tasks[0].result().settle(output_tokens=1)
    tasks[1].result().settle(output_tokens=1)
    assert rows(limiter) == []


@pytest.mark.parametrize("further", [{}, {"concurrency": {"anthropic": 50}}])
@virtual
async def test_requests_that_wait_for_their_model_are_not_sent_when_the_account_is_shut(clock, further):
    limiter = Limiter({"anthropic/*": "2 requests/min"}, clock=clock, **further)
    permit = await limiter.acquire(ONE, tokens=0)
    tasks = waits(limiter, *([ONE, OTHER] * 5))
    await asyncio.sleep(1)
    waiting = [task for task in tasks if not task.done()]
    row = limiter.pacer.pools.scheduler(ONE).row(permit.reservation, FIVE_HOURS)
    refuse(permit, FIVE_HOURS, Again(min(row.test_s, HOUR), pool_wide=True))
    await asyncio.sleep(55)  # each model could send two
    assert len(waiting) > 6
    assert [task for task in waiting if task.done()] == []
    await asyncio.sleep(10)
    [test] = [task for task in waiting if task.done()]  # it has had no answer
    assert test.result().waited_s >= 55
    for task in tasks:
        task.cancel()


@virtual
async def test_a_request_that_waited_before_there_was_an_account_has_waited(clock):
    limiter = Limiter({"anthropic/*": "2 requests/min"}, clock=clock)
    _, last = waits(limiter, ONE, ONE)
    await asyncio.sleep(1)
    assert not last.done()
    limiter.pacer.pools.open_account("anthropic")  # where nothing is shut
    assert (await last).waited_s == pytest.approx(clock.now_ns() / 1e9 - START_S, abs=0.1)
    assert last.result().waited_s > 20


@virtual
async def test_a_request_takes_no_turn_of_an_account_that_is_open(clock, limiter):
    limiter.pacer.pools.scheduler(ONE)
    limiter.pacer.pools.read_plan("anthropic", [reading(0.5)])
    with paceline.lane("interactive", priority=1):
        permit = await limiter.acquire(ONE, tokens=0)
    assert limiter.status()["pools"]["anthropic/plan"]["in_flight"] == 0
    limiter.pacer.pools.read_plan("anthropic", [reading(0.95)])  # a share is kept for the person
    [agent] = waits(limiter, OTHER)
    refuse(permit, FIVE_HOURS, Again(60.0, pool_wide=True))
    await asyncio.sleep(59)
    assert rows(limiter) == [("anthropic", "5h", "shut", 1, None)]
    limiter.pacer.pools.read_plan("anthropic", [reading(0.1)])
    await asyncio.sleep(2)
    assert limiter.status()["pools"]["anthropic/plan"]["in_flight"] == 1  # the test
    assert agent.done()


@virtual
async def test_the_models_that_were_refused_are_named_and_a_test_where_one_waits(clock, limiter):
    stated = PlanReading("7d_oi", 1.0, HOUR, scope="Fable", read_s=START_S)
    limiter.pacer.pools.plans.read("anthropic", [stated])
    assert rows(limiter) == [("anthropic", "7d_oi", "open", 0, "Fable")]
    await refused(limiter, OF_A_MODEL)
    assert rows(limiter) == [("anthropic", "7d_oi", "shut", 0, "claude-opus-4x")]
    assert limiter.status()["plans"][0]["test_s"] is None
    await refused(limiter, OF_A_MODEL, OTHER)
    [task] = waits(limiter, ONE)
    await asyncio.sleep(1)
    assert rows(limiter) == [("anthropic", "7d_oi", "shut", 1, "claude-opus-4x, claude-sonnet-4x")]
    assert limiter.status()["plans"][0]["test_s"] == pytest.approx(60, abs=2)
    task.cancel()


@pytest.mark.parametrize(("login", "later_s", "shut"), [(True, 30, True), (True, 40, False), (False, 30, False)])
@virtual
async def test_two_models_of_a_login_that_are_refused_to_the_same_end_are_one_window(
    clock, limiter, login, later_s, shut
):
    """Within a hundredth of the wait. Models of a key can have days of their own, which end together."""
    unnamed = replace(FIVE_HOURS, window=None, of_account=False)
    limiter.pacer.pools.limits.untabled |= {"anthropic"} if login else set()
    await refused(limiter, unnamed)
    await refused(limiter, replace(unnamed, retry_after_s=HOUR + later_s), OTHER)
    [task] = waits(limiter, "anthropic/claude-haiku-4-5")
    await asyncio.sleep(1)
    assert task.done() is not shut
    if shut:
        assert ("anthropic", "unnamed", "shut", 1, None) in rows(limiter)
    task.cancel()


@virtual
async def test_a_refusal_about_a_rate_says_nothing_of_the_plan(clock, limiter):
    await refused(limiter, FIVE_HOURS)
    await asyncio.sleep(60)
    permit = await limiter.acquire(ONE, tokens=0)  # the test
    permit.refused(Refusal(RefusalKind.RATE, retry_after_s=5.0, unit="requests"))
    assert rows(limiter) == [("anthropic", "5h", "shut", 0, None)]
    [task] = waits(limiter, OTHER)
    await asyncio.sleep(0)
    assert task.done()  # another one asks in its place


@virtual
async def test_a_request_that_cannot_wait_so_long_is_told_when_it_ends(clock, limiter):
    await refused(limiter, FIVE_HOURS)
    with pytest.raises(AcquireTimeoutError) as raised:
        await limiter.acquire(OTHER, tokens=0, timeout=30)
    assert raised.value.retry_after_s == pytest.approx(HOUR, abs=1)
    assert not limiter.try_acquire(ONE, tokens=0)
    [task] = waits(limiter, ONE)
    await asyncio.sleep(1)
    await gone([task])
    assert rows(limiter)[0][3] == 0


@virtual
async def test_none_waits_for_a_model_with_the_turn_of_the_account(clock, limiter):
    """The model's requests arrived first, and its window is shut for longer."""
    await refused(limiter, FIVE_HOURS)
    first = waits(limiter, ONE, ONE)
    await asyncio.sleep(60)
    [sent] = [task.result() for task in first if task.done()]
    later = Again(2 * HOUR, pool_wide=True)
    refuse(sent, Refusal(RefusalKind.RATE, retry_after_s=2 * HOUR, window="7d_oi"), later)
    [other] = waits(limiter, OTHER)
    await asyncio.sleep(1)
    assert other.done()
    assert not all(task.done() for task in first)
    other.result().settle(output_tokens=1)
    await asyncio.sleep(2 * HOUR)
    assert all(task.done() for task in first)


@virtual
async def test_an_account_with_a_plan_that_is_shut_is_not_forgotten(clock, limiter):
    await refused(limiter, FIVE_HOURS)
    scheduler = limiter.pacer.pools.scheduler(ONE)
    assert not limiter.pacer.pools.forget(scheduler)
    await asyncio.sleep(HOUR)
    async with limiter.acquire(ONE, tokens=0) as permit:
        permit.settle(output_tokens=1)
    await asyncio.sleep(60)
    assert limiter.pacer.pools.forget(scheduler)


@virtual
async def test_an_answer_may_take_as_long_as_the_settings_say(clock):
    limiter = Limiter({"anthropic/*": "6000 requests/min"}, clock=clock, ttl_s=2 * HOUR)
    await refused(limiter, FIVE_HOURS)
    async with limiter.acquire(ONE, tokens=0) as permit:
        await asyncio.sleep(HOUR)
        (await limiter.acquire(ONE, tokens=0)).settle(output_tokens=1)
        permit.settle(output_tokens=1)
    assert limiter.status()["pools"]["anthropic/plan"]["counts"].get("lost", 0) == 0


@virtual
async def test_who_does_not_hold_gives_the_refusal_at_once(clock):
    row = Progress().row(1, 1, FIVE_HOURS)._replace(holds=False)
    gives_up = GiveUp("the provider asks to wait 3,600 s", stop_s=HOUR)
    assert RetryPolicy(max_retry_after_s=1e6).after(Failures(), FIVE_HOURS, row, 0.0) == gives_up
    limiter = Limiter({"anthropic/*": "6000 requests/min"}, plans=PlanPolicy(when_shut="refuse"), clock=clock)
    async with limiter.acquire(ONE, tokens=0) as permit:
        row = limiter.pacer.pools.scheduler(ONE).row(permit.reservation, FIVE_HOURS)
        assert row.is_allowance
        assert not row.holds
        refuse(permit, FIVE_HOURS, GiveUp("it says so", stop_s=HOUR))
    with pytest.raises(PoolStoppedError) as raised:
        await limiter.acquire(OTHER, tokens=0)
    assert raised.value.retry_after_s == HOUR
    limiter.resume(ONE)
    [task] = waits(limiter, OTHER)
    await asyncio.sleep(0)
    assert task.done()


def reading(used, **others):
    return PlanReading("5h", used, 5 * HOUR, length_s=5 * HOUR, read_s=START_S, **others)


@virtual
async def test_a_share_is_kept_for_a_person_by_what_answers_state(clock, limiter):
    pools = limiter.pacer.pools
    limiter.pacer.pools.scheduler(ONE)
    pools.read_plan("anthropic", [reading(0.5), PlanReading("7d_oi", 1.0, 9.0, scope="Fable", read_s=START_S)])
    with paceline.lane("interactive", priority=1):
        (await limiter.acquire(ONE, tokens=0)).settle(output_tokens=1)
    pools.read_plan("anthropic", [reading(0.95)])
    [agent] = waits(limiter, OTHER)
    await asyncio.sleep(1)
    assert not agent.done()
    assert limiter.status()["pools"]["anthropic/plan"]["binds"] == "the share of 5h that is left"
    with paceline.lane("interactive", priority=1):
        (await limiter.acquire(ONE, tokens=0)).settle(output_tokens=1)
    assert not agent.done()
    pools.read_plan("anthropic", [reading(0.1)])  # another window
    await asyncio.sleep(0)
    assert agent.done()


@pytest.mark.parametrize("used", [1.01, 2.0, 62.0])
@virtual
async def test_a_number_that_is_no_share_holds_nobody_back(clock, used):
    limiter = Limiter({"anthropic/*": "6000 requests/min"}, clock=clock, plans=PlanPolicy(stop_at=0.8, spread="5h"))
    limiter.pacer.pools.scheduler(ONE)
    limiter.pacer.pools.read_plan("anthropic", [reading(0.95, status="allowed")])
    [one] = waits(limiter, ONE)
    await asyncio.sleep(1)
    assert not one.done()
    limiter.pacer.pools.read_plan("anthropic", [reading(used, status="allowed")])
    await asyncio.sleep(1)
    assert one.done()


@virtual
async def test_who_waits_for_a_kept_share_is_shown_and_logged_once(clock, caplog):
    limiter = Limiter({"anthropic/*": "6000 requests/min"}, clock=clock, plans=PlanPolicy(stop_at=0.8))
    limiter.pacer.pools.scheduler(ONE)
    limiter.pacer.pools.read_plan("anthropic", [reading(0.9, status="allowed")])
    assert rows(limiter) == [("anthropic", "5h", "open", 0, None)]
    waits(limiter, ONE, ONE)
    await asyncio.sleep(1)
    assert rows(limiter) == [("anthropic", "5h", "held", 2, None)]
    assert limiter.status()["plans"][0]["test_s"] == pytest.approx(5 * HOUR - 1)
    await asyncio.sleep(5 * HOUR)
    assert rows(limiter) == []
    [line] = caplog.messages
    assert line.startswith("anthropic/plan: 90% of 5h is used, and requests wait for the remaining part")


def test_that_requests_go_on_for_money_is_said_once(caplog):
    kept = Plans()
    for served, used, paid in ((True, 1.0, False), (False, 1.0, True)):
        kept.read("anthropic@7f3a91", [reading(used, paid=paid)], served=served)
    assert not caplog.records
    for used in (1.0, 1.01):
        kept.read("anthropic@7f3a91", [reading(used, paid=True)], served=True)
    [line] = caplog.messages
    assert line.startswith("anthropic@7f3a91: requests cost money, as the provider states")


@virtual
async def test_who_wants_to_pay_nothing_waits_where_the_provider_goes_on_for_money(clock):
    limiter = Limiter({"anthropic/*": "6000 requests/min"}, clock=clock, plans=PlanPolicy(overage="wait"))
    limiter.pacer.pools.scheduler(ONE)
    limiter.pacer.pools.read_plan("anthropic", [reading(1.01, status="allowed", paid=True)])
    [one] = waits(limiter, ONE)
    await asyncio.sleep(1)
    assert not one.done()
