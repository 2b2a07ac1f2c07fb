"""Whoever goes away, at whatever moment: the books and the others are as if that request had never been."""

import asyncio
import contextlib
import gc
import sys
from unittest import mock

import pytest

import paceline
from paceline.core.quota import NS
from paceline.pacing import scheduler as scheduler_module
from paceline.testing import ManualClock, run_virtual
from virtual_time import virtual
from waits import gone, join, started, until

QUOTAS = {"jobs": ["60 requests/min burst 2", "6000 tokens/min"]}  # one at once, then one a second


def limiter_of(clock, quotas=QUOTAS):
    return paceline.Limiter(quotas, clock=clock)


def books(limiter):
    status = limiter.status()["pools"]["jobs"]
    return [quota["remaining"] for quota in status["quotas"]], status["waiting"], status["in_flight"]


def play(disturb=None):
    """Six requests in a line, and a seventh second in it that goes away; who was granted when, and the books."""

    async def main(clock):
        limiter, start_ns, granted = limiter_of(clock), clock.now_ns(), []

        async def work(name):
            async with limiter.acquire("jobs", tokens=100) as permit:
                granted.append((name, clock.now_ns() - start_ns))
                permit.settle(tokens=50)

        tasks = [asyncio.create_task(work("0"))]
        await asyncio.sleep(0)
        left = None if disturb is None else await disturb(limiter, clock, start_ns)
        tasks += [asyncio.create_task(work(str(i))) for i in range(1, 6)]
        await asyncio.gather(*tasks)
        await asyncio.sleep(0.5)
        assert left is None or left.cancelled()
        return granted, books(limiter), clock.now_ns()

    return run_virtual(main)


async def start(limiter, clock):
    """A request that waits at the head of the line; it would be granted at 1 s."""
    task = asyncio.create_task(limiter.acquire("jobs", tokens=100)._wait_async())
    await asyncio.sleep(0)
    assert limiter.status()["pools"]["jobs"]["waiting"] == 1
    return task


async def before_the_grant(limiter, clock, start_ns):
    task = await start(limiter, clock)
    clock.call_at(start_ns + NS // 2, task.cancel)
    return task


async def before_it_ever_ran(limiter, clock, start_ns):
    asyncio.create_task(limiter.acquire("jobs", tokens=100)._wait_async()).cancel()


async def at_the_instant_of_the_grant_but_just_before(limiter, clock, start_ns):
    clock.call_at(start_ns + NS, lambda: task.cancel())  # noqa: PLW0108  (before the line's own timer)
    task = await start(limiter, clock)
    return task


async def in_the_iteration_of_the_grant(limiter, clock, start_ns):
    task = await start(limiter, clock)
    clock.call_at(start_ns + NS, task.cancel)  # set after the line's timer: the grant is there, the task has not run
    return task


async def by_a_timeout_at_the_instant_of_the_grant(limiter, clock, start_ns):
    async def patient():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.999_999_999):
                await limiter.acquire("jobs", tokens=100)

    asyncio.create_task(patient())  # noqa: RUF006
    await asyncio.sleep(0)


async def with_the_permit_in_hand(limiter, clock, start_ns):
    async def never_sends():
        permit = await limiter.acquire("jobs", tokens=100)
        permit.cancel()

    asyncio.create_task(never_sends())  # noqa: RUF006
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    "disturb",
    [
        before_the_grant,
        before_it_ever_ran,
        at_the_instant_of_the_grant_but_just_before,
        in_the_iteration_of_the_grant,
        by_a_timeout_at_the_instant_of_the_grant,
        with_the_permit_in_hand,
    ],
)
def test_as_if_it_had_never_been(disturb):
    assert play(disturb) == play()


@virtual
async def test_a_task_cancelled_inside_its_block_stays_charged(clock):
    limiter = limiter_of(clock)

    async def work():
        async with limiter.acquire("jobs", tokens=100):
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await gone([task])
    assert books(limiter) == ([1, 5_900], 0, 0)  # it may have been counted


@pytest.mark.parametrize("granted", [False, True], ids=["before the grant", "after the grant"])
def test_a_thread_that_is_interrupted(clock, monkeypatch, granted):
    limiter = limiter_of(clock)
    limiter.acquire("jobs", tokens=100).wait().settle()

    class Interrupted(scheduler_module.ThreadOwner):
        def wait(self):
            clock.advance(1 if granted else 0)
            assert self._woken.locked() != granted
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(scheduler_module, "ThreadOwner", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            limiter.acquire("jobs", tokens=100).wait()
    clock.advance(0 if granted else 1)
    assert books(limiter) == ([2, 6_000], 0, 0)


class TestALoopThatIsClosed:
    def left_behind(self, limiter, tokens=100, count=1):
        """Tasks of a loop that was closed while they waited at the head of the line."""
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda loop, context: None)  # "Task was destroyed but it is pending"
        tasks = [loop.create_task(limiter.acquire("jobs", tokens=tokens)._wait_async()) for _ in range(count)]
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        return tasks

    def thousand_ghosts(self, limiter):
        """The same of 1,000 tasks, each for a minute's quota."""
        return self.left_behind(limiter, 6_000, 1_000)

    def test_what_it_would_have_got_goes_to_the_next(self):
        clock, granted = ManualClock(), []
        limiter = limiter_of(clock)
        limiter.acquire("jobs", tokens=100).wait().settle()
        tasks = self.left_behind(limiter)
        thread = started(lambda: granted.append(limiter.acquire("jobs", tokens=0).wait()))
        until(lambda: limiter.status()["pools"]["jobs"]["waiting"] == 1)
        clock.advance(1)
        join(thread)
        assert granted[0].waited_s == 1
        del tasks
        gc.collect()
        granted[0].settle()
        assert books(limiter) == ([1, 6_000], 0, 0)

    def test_its_waiters_count_in_no_deadline(self):
        clock, granted = ManualClock(), []
        limiter = paceline.Limiter(QUOTAS, clock=clock, headroom_s=0)
        limiter.acquire("jobs", tokens=100).wait().settle()
        tasks = self.thousand_ghosts(limiter)
        limiter.acquire("jobs", tokens=200, timeout=20).wait().settle()
        thread = started(lambda: granted.append(limiter.acquire("jobs", timeout=20).wait()))
        until(lambda: limiter.pacer.pools.scheduler("jobs").pool.queue.length == 1)
        clock.advance(1)
        join(thread)
        assert granted[0].waited_s == 1
        assert all(not task.done() for task in tasks)

    def test_its_waiters_refuse_no_try_and_are_not_shown(self, clock):
        limiter = paceline.Limiter(QUOTAS, clock=clock, headroom_s=0)
        limiter.acquire("jobs", tokens=100).wait().settle()
        left = [self.thousand_ghosts(limiter)]
        assert limiter.try_acquire("jobs", tokens=100)
        left.append(self.thousand_ghosts(limiter))
        assert limiter.status()["pools"]["jobs"]["waiting"] == 0
        assert all(not task.done() for tasks in left for task in tasks)

    @virtual
    async def test_a_loop_with_waiters_that_still_runs_keeps_them(self, clock):
        limiter, left = paceline.Limiter(QUOTAS, clock=clock, headroom_s=0), []
        tasks = [asyncio.ensure_future(limiter.acquire("jobs")) for _ in range(5)]
        await asyncio.sleep(0)
        join(started(lambda: left.append(self.thousand_ghosts(limiter))))
        assert limiter.status()["pools"]["jobs"]["waiting"] == 3
        for task in tasks:
            (await task).settle()

    def test_collecting_its_tasks_under_the_lock_is_no_deadlock(self, clock, monkeypatch):
        # The collector may run anywhere, also while this thread holds the pool's lock; it closes the coroutine.
        limiter = limiter_of(clock)
        limiter.acquire("jobs").wait().settle()
        left = self.left_behind(limiter)
        clock.advance(1)
        pool = limiter.pacer.pools.scheduler("jobs").pool
        inner = pool.binds

        def binds(now_ns):
            left.clear()
            gc.collect()
            return inner(now_ns)

        monkeypatch.setattr(pool, "binds", binds)
        join(started(limiter.status))
        assert not left


@pytest.mark.parametrize(
    ("asyncios", "error", "said"),
    [
        ({}, RuntimeError, r"jobs: no event loop of asyncio runs here.*\(trio, curio\).*run_sync"),
        ({"asyncio": None}, ImportError, "asyncio"),  # its import fails
    ],
)
def test_who_cannot_wait_hears_why_and_is_not_in_the_line(asyncios, error, said):
    limiter = paceline.Limiter({"jobs": "3 concurrency"}, clock=ManualClock())
    big = limiter.try_acquire("jobs", concurrency=3)
    with mock.patch.dict(sys.modules, asyncios), pytest.raises(error, match=said):
        limiter.acquire("jobs")._wait_async().send(None)
    assert limiter.status()["pools"]["jobs"]["waiting"] == 0
    threads = [started(limiter.acquire("jobs").wait) for _ in range(3)]
    until(lambda: limiter.status()["pools"]["jobs"]["waiting"] == 3)
    big.cancel()
    join(*threads)


@pytest.mark.parametrize("ends", ["granted", "cancelled"])
async def test_what_surrounds_a_wait_is_left_with_it(monkeypatch, ends):
    steps = []

    @contextlib.contextmanager
    def around(acquisition):
        assert acquisition.pool == "jobs"
        steps.append("entered")
        try:
            yield
        finally:
            steps.append("left")

    monkeypatch.setattr("paceline.pacing.permit.around_waits", [around])
    limiter = paceline.Limiter({"jobs": "1 concurrency"})
    held = await limiter.acquire("jobs", tokens=0)
    assert steps == ["entered", "left"]
    waiting = asyncio.ensure_future(limiter.acquire("jobs", tokens=0))
    await asyncio.sleep(0)
    assert steps == ["entered", "left", "entered"]
    if ends == "granted":
        held.settle()
        (await waiting).cancel()
    else:
        await gone([waiting])
    assert steps == ["entered", "left"] * 2
