"""Processes that share a store share what is known of an account's plan: what is shut, who asks, the shares, and that a person was there."""

import asyncio
import contextlib
from dataclasses import replace

import pytest
from shared_world import SharedWorld

import paceline
from paceline import Refusal, RefusalKind, StoreError
from paceline.pacing.permit import refuse
from paceline.pacing.retry import Again
from paceline.providers.plan_headers import PlanReading
from paceline.providers.registry import provider_named
from paceline.shared.messages import Noted

HOUR = 3_600.0
ONE, OTHER = "anthropic/claude-opus-4-5", "anthropic/claude-sonnet-4-5"
FIVE_HOURS = Refusal(RefusalKind.RATE, retry_after_s=HOUR, window="5h", of_account=True)


class Processes(SharedWorld):
    """Processes with one login."""

    def start(self, **options):
        limits = {"anthropic/*": "6000 requests/min"}
        limiter = paceline.Limiter(limits, store=self.store, clock=self.clock, **options)
        limiter.pacer.pools.limits.untabled |= {"anthropic"}
        self.limiters.append(limiter)
        return limiter

    async def waits(self, limiter, pool=ONE, **options):
        task = asyncio.create_task(limiter.acquire(pool, tokens=0, **options).__aenter__())
        await self.moved(0.1)
        return task

    async def refused(self, limiter, refusal=FIVE_HOURS, permit=None):
        permit = permit or await (await self.waits(limiter))
        row = limiter.pacer.pools.scheduler(ONE).row(permit.reservation, refusal)
        refuse(permit, refusal, Again(min(row.test_s, refusal.retry_after_s or row.test_s), pool_wide=True))
        await self.moved(0.1)

    def now_s(self):
        return self.clock.now_ns() / 1e9


def shut(limiter):
    return [(row["window"], row["state"]) for row in limiter.status()["plans"] if row["state"] != "open"]


@pytest.fixture
def world():
    world = Processes()
    with contextlib.closing(world):
        yield world


async def test_what_one_has_seen_shut_is_shut_for_all_and_one_request_of_all_asks(world):
    one, two = world.start(), world.start()
    (await (await world.waits(two, OTHER))).settle()
    await world.moved(1)
    await world.refused(one)
    new = world.start()
    tasks = {await world.waits(each, pool): each for each, pool in ((one, ONE), (two, ONE), (two, OTHER), (new, ONE))}
    other = list(tasks)[2]
    await world.moved(1)
    assert not any(task.done() for task in tasks)
    for each in (one, two, new):
        assert shut(each) == [("5h", "shut")]
        assert each.status()["plans"][0]["ends_s"] == pytest.approx(HOUR - 1.5, abs=0.1)
    await world.moved(60)
    [probe] = [task for task in tasks if task.done()]
    await world.moved(20)
    assert sum(task.done() for task in tasks) == 1  # though its answer has not begun
    await world.refused(tasks.pop(probe), replace(FIVE_HOURS, retry_after_s=HOUR - 90), probe.result())
    await world.moved(115)  # two minutes after the first refusal, not one after this one
    assert not any(task.done() for task in tasks)
    await world.moved(30)
    [probe] = [task for task in tasks if task.done()]
    tasks[probe].pacer.pools.scheduler(OTHER if probe is other else ONE).admitted(probe.result().reservation)
    await world.moved(6)
    assert {tasks[task] for task in tasks if task.done()} == set(tasks.values())  # each opens gently
    for _ in range(2):
        for task in tasks:
            if task.done():
                task.result().settle()
        await world.moved(1)
    for each in (one, two, new):
        (await (await world.waits(each))).settle()  # one that sends nothing hears nothing
        assert shut(each) == []


@pytest.mark.parametrize("refused", [False, True])
async def test_the_outcome_of_the_test_is_known_to_all_within_a_second(world, refused):
    one, two = world.start(), world.start()
    await world.refused(one)
    tasks = {await world.waits(each): each for each in (one, two)}
    for _ in range(120):  # to the test, whenever that is
        if any(task.done() for task in tasks):
            break
        await world.moved(0.5)
    [probe] = [task for task in tasks if task.done()]
    [other] = tasks.keys() - {probe}
    if not refused:
        tasks[probe].pacer.pools.scheduler(ONE).admitted(probe.result().reservation)
        await world.moved(1.2)
        assert other.done()
        return
    await world.refused(tasks[probe], replace(FIVE_HOURS, retry_after_s=HOUR - 60), probe.result())
    await world.moved(1.2)
    before = len(world.store.messages)
    await world.moved(30)
    assert len(world.store.messages) - before <= 7  # it asks no more often than before
    assert not other.done()
    other.cancel()


async def test_another_process_asks_where_the_one_that_asked_was_not_sent(world):
    one, two = world.start(), world.start()
    await world.refused(one)
    tasks = [await world.waits(each) for each in (one, two)]
    await world.moved(60)
    [probe] = [task for task in tasks if task.done()]
    probe.result().cancel()
    await world.moved(6)
    assert all(task.done() for task in tasks)


async def test_shares_and_persons_are_those_of_all_and_nothing_is_noted_twice(world):
    one, two = world.start(), world.start()
    stated = PlanReading("5h", 0.93, HOUR, "allowed", 5 * HOUR, read_s=world.now_s())
    for _ in range(3):
        one.pacer.pools.read_plan("anthropic", [stated])
    await world.moved(0.1)
    (await (await world.waits(one, lane="interactive"))).settle()
    background = await world.waits(two)
    await world.moved(1)
    assert not background.done()  # the kept share is the person's of the other process
    [row] = two.status()["plans"]
    assert (row["window"], row["used"], row["state"], row["length_s"]) == ("5h", 0.93, "held", 5 * HOUR)
    assert row["ends_s"] == pytest.approx(HOUR - 1, abs=0.5)
    notes = [news.key for message in world.store.messages for news in message.news if isinstance(news, Noted)]
    assert sorted(notes) == ["person", "window 5h"]
    background.cancel()


async def test_each_goes_on_by_itself_while_the_store_is_lost(world):
    one, two = world.start(), world.start()
    await world.refused(one)
    tasks = [await world.waits(each) for each in (one, two)]
    world.store.failure = StoreError("away")
    await world.moved(70)
    assert all(task.done() for task in tasks)


def test_an_account_has_one_name_in_all_processes_of_a_store_and_its_credential_is_in_none_of_their_messages(world):
    def of(limiter):
        of_login = {"is_login": True, "session": "", "person": str}
        payer = limiter.pacer.accounts.of(provider_named("anthropic"), "sk-ant-oat01-secret", **of_login)
        return payer.account.provider.name

    assert of(world.start()) == of(world.start())
    assert of(world.start()) != of(paceline.Limiter({}, clock=world.clock))
    assert "secret" not in repr(world.store.messages)


async def test_a_note_of_another_version_is_ignored(world):
    one, two = world.start(), world.start()
    await world.waits(one)
    capacity = one.pacer.pools.scheduler(ONE).account.pool.capacity
    one.pacer.pools.scheduler(ONE).account.section.change(
        lambda now_ns: [capacity._note(now_ns, key, "[1]") for key in ("shut", "window 5h", "else")]
    )
    await world.moved(0.1)
    assert (await (await world.waits(two))).open
    assert shut(two) == []
