"""A store that is slow, never answers, or goes and comes back: what callers, status and log see of it."""

import asyncio
import logging

import pytest

import paceline
from paceline.core.results import StoreError
from paceline.pacing.scheduler import Scheduler
from waits import BOUND_S, gone, soon, until

GONE = StoreError("obedient:store: gone")


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def pair(world, **options):
    """Two processes that know of each other."""
    one, other = (world.joined(**options) for _ in "ab")
    world.join(one)
    return one, other


def crowd(limiter, count):
    return [asyncio.create_task(limiter.acquire("jobs", tokens=0)._wait_async()) for _ in range(count)]


def granted(tasks):
    return sum(task.done() for task in tasks)


async def end(tasks):
    """Those who wait go away; what the others were granted was spent."""
    await gone(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result().settle()


def pools_of(world, *names):
    """A limiter with these pools, joined."""
    limiter = world.limiter()
    limiter.pacer.pools.limits = paceline.Limiter({"*": "60 requests/min"}).limits
    for name in names:
        limiter.acquire(name).wait().settle()
    world.move(0.02)
    return limiter


def failing(store, pool, error):
    """The exchange of ``store``, which fails for this pool."""
    exchange = store.exchange

    def some(name, message):
        if name == pool:
            raise error
        return exchange(name, message)

    return some


def restored(world):
    """The store answers again, and all have heard of it."""
    world.store.failure = None
    world.move(4)


def store_of(world, limiter):
    """What the status says of the store, but for the age of its last reply."""
    return {name: value for name, value in world.status(limiter)["store"].items() if name != "replied_ago_s"}


class TestASlowStore:
    async def test_it_keeps_no_event_loop_waiting(self, world):
        limiter = world.limiter()
        world.store.hold()
        tasks = crowd(limiter, 50)
        await soon(lambda: world.store.messages)
        for _ in range(1_000):
            await asyncio.sleep(0)  # were this loop kept, nobody would ever let the store go
        assert (len(world.store.messages), granted(tasks)) == (1, 0)
        world.store.let_go()
        for permit in await asyncio.gather(*tasks):
            permit.settle()
        world.close()
        assert world.store.charged() == (50, 50)

    async def test_a_deadline_is_kept_to_the_tick(self, world):
        limiter = world.limiter()
        world.store.hold()
        task = asyncio.create_task(limiter.acquire("jobs", tokens=0, timeout=0.1)._wait_async())
        await soon(lambda: world.store.messages)
        world.clock.advance(0.099_999)
        await asyncio.sleep(0)
        assert not task.done()
        world.clock.advance(0.000_001)
        with pytest.raises(paceline.AcquireTimeoutError):
            await asyncio.wait_for(task, BOUND_S)
        world.close()
        assert world.store.charged() == (1, 0)  # what came too late is given back


class TestAStoreThatNeverAnswered:
    @pytest.mark.parametrize("mode", ["fail_safe", "fail_closed"])
    @pytest.mark.parametrize("failure", [GONE, ValueError("password")], ids=["gone", "broken"])
    def test_it_is_an_error_that_says_which(self, world, mode, failure, caplog):
        limiter = world.limiter(on_store_failure=mode)
        world.store.failure = failure
        for ask in (
            lambda: limiter.acquire("jobs", tokens=0).wait(),
            lambda: limiter.try_acquire("jobs", tokens=0),
            lambda: asyncio.run(limiter.acquire("jobs", tokens=0)._wait_async()),
        ):
            with pytest.raises(StoreError, match="jobs: obedient:store") as error:
                ask()
            assert "password" not in str(error.value)
        assert store_of(world, limiter) == {"state": "new", "peers": 1}
        assert warnings(caplog) == []
        assert len(world.store.messages) == 1  # half a second later it is tried again, not before

    async def test_the_next_finds_it_when_it_has_come_after_the_others_have_reported(self, world):
        limiter = world.limiter()
        world.store.failure = GONE
        with pytest.raises(StoreError):
            await limiter.acquire("jobs", tokens=0)
        world.store.failure = None
        await world.moved(0.5)
        (task,) = crowd(limiter, 1)
        await world.moved(2.4)
        assert not task.done()
        assert world.status(limiter)["store"]["state"] == "joined"
        await world.moved(0.1)
        assert (await task).open

    async def test_all_who_wait_are_told(self, world):
        limiter = world.limiter()
        world.store.hold()
        tasks = crowd(limiter, 50)
        await soon(lambda: world.store.messages)
        world.store.failure = GONE
        world.store.let_go()
        answers = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), BOUND_S)
        assert all(isinstance(answer, StoreError) for answer in answers)

    def test_open_goes_on_as_if_alone(self, world, caplog):
        limiter = world.limiter(on_store_failure="fail_open")
        world.store.failure = GONE
        for _ in range(99):
            limiter.acquire("jobs", tokens=0).wait().settle()
        assert not limiter.try_acquire("jobs", tokens=0)
        assert world.status(limiter)["store"]["state"] == "lost"
        restored(world)
        assert store_of(world, limiter) == {"state": "joined", "peers": 1}
        assert world.store.charged() == (99, 99)
        assert len(warnings(caplog)) == 2


class TestAStoreThatIsLost:
    @pytest.fixture
    def limiter(self, world):
        """Another process knows of it."""
        return pair(world)[0]

    @pytest.mark.parametrize("failure", [GONE, ValueError("odd")], ids=["gone", "broken"])
    @pytest.mark.parametrize(("mode", "went"), [("fail_safe", 10), ("fail_closed", 0), ("fail_open", 20)])
    async def test_those_who_wait_go_on_as_declared(self, world, caplog, mode, went, failure):
        limiter, _ = pair(world, on_store_failure=mode)
        for _ in range(98):  # and one has come back since they joined, less a second of headroom
            world.take(limiter).settle()
        world.move(0.02)
        assert world.store.charged()[1] == 98
        world.store.failure = failure
        tasks = crowd(limiter, 60)
        await world.moved(20)
        assert granted(tasks) == pytest.approx(went, abs=1)  # one a second, shared by two
        reason = "obedient:store: gone" if failure is GONE else "obedient:store: ValueError"
        assert store_of(world, limiter) == {"state": "lost", "peers": 2, "mode": mode, "reason": reason}
        assert warnings(caplog) == [f"jobs: {reason}; continuing in mode {mode} until the store answers again"]
        world.store.failure = None
        await world.moved(4)
        assert store_of(world, limiter) == {"state": "joined", "peers": 1}  # the other was silent for 15 s
        assert warnings(caplog)[1:] == ["jobs: the store answers again"]
        assert granted(tasks) <= 1 + 24  # one a second, and no burst
        await world.moved(10)
        assert granted(tasks) == pytest.approx(1 + 34, abs=2)  # and nothing is lost
        assert len(warnings(caplog)) == 2
        await end(tasks)
        world.close()
        assert world.store.charged()[1] == 98 + granted([task for task in tasks if not task.cancelled()])

    @pytest.mark.parametrize("mode", ["fail_safe", "fail_closed"])
    async def test_all_together_stay_within_the_quota(self, world, mode):
        """While it is away, when it comes back, and afterwards; and after it has come back at the full speed."""
        tasks = [task for limiter in pair(world, on_store_failure=mode) for task in crowd(limiter, 150)]
        started_ns = world.clock.now_ns()
        for second in range(60):
            world.store.failure = GONE if 10 <= second < 30 else None
            await world.moved(1)
            assert granted(tasks) <= 100 + (world.clock.now_ns() - started_ns) / 1e9
        assert granted(tasks) >= 99 + 60 - 4
        await end(tasks)
        world.close()
        assert world.store.charged()[1] == granted([task for task in tasks if not task.cancelled()])

    async def test_an_answer_that_makes_no_sense(self, world, limiter, monkeypatch, caplog):
        with monkeypatch.context() as patch:
            patch.setattr(world.store, "exchange", lambda pool, message: None)
            (await asyncio.wait_for(limiter.acquire("jobs", tokens=0)._wait_async(), BOUND_S)).settle()
            assert world.status(limiter)["store"]["reason"] == "obedient:store: invalid reply"
        await world.moved(4)
        assert world.status(limiter)["store"]["state"] == "joined"
        world.close()
        assert world.store.charged()[1] == 1

    def test_an_answer_that_was_lost(self, world, limiter, monkeypatch):
        """It may have been granted: it stays charged. What was told with it is told again, and counts once."""
        limiter.acquire("jobs", tokens=100).wait().settle(tokens=40)

        def deaf(pool, message):
            world.store.inner.exchange(pool, message)
            raise GONE

        with monkeypatch.context() as patch:
            patch.setattr(world.store, "exchange", deaf)
            limiter.acquire("jobs", tokens=7).wait().settle()  # by itself
        assert world.store.charged(1)[1] == 47
        world.move(4)
        world.close()
        assert world.store.charged(1)[1] == 40 + 7 + 7

    def test_what_was_granted_before_is_settled_meanwhile(self, world, limiter):
        permit = limiter.acquire("jobs", tokens=100).wait()
        world.store.failure = GONE
        limiter.acquire("jobs", tokens=7).wait().settle(tokens=3)
        permit.settle(tokens=60)
        alone = limiter.acquire("jobs", tokens=50).wait()
        restored(world)
        alone.settle(tokens=80)
        world.close()
        assert world.store.charged(1)[1] == 60 + 3 + 80

    def test_a_try_is_answered(self, world, limiter):
        closed, _ = pair(world, on_store_failure="fail_closed")
        world.store.failure = GONE
        world.take(limiter).settle()
        later = closed.try_acquire("jobs", tokens=0)
        assert (later.quota, later.retry_after_s) == ("store lost", pytest.approx(1, abs=0.5))

    def test_a_try_whose_thread_continues_after_the_failure(self, world, limiter, monkeypatch):
        world.store.failure = GONE
        block = Scheduler._block

        def late(*given):
            world.quiet()
            return block(*given)

        monkeypatch.setattr(Scheduler, "_block", late)
        world.take(limiter).settle()
        assert world.status(limiter)["in_flight"] == 0

    def test_when_two_have_waited_no_other_pool_does(self, world, monkeypatch):
        monkeypatch.setattr("paceline.shared.contact.QUICK_S", -1.0)  # any failure takes longer
        names = ("one", "two", "three", "four")
        limiter = pools_of(world, *names)
        world.store.failure, told = GONE, len(world.store.messages)
        for name in names:
            limiter.acquire(name).wait().settle()
        assert len(world.store.messages) == told + 2
        assert {pool["store"]["state"] for pool in limiter.status()["pools"].values()} == {"lost"}

    def test_slots_that_were_taken_meanwhile_are_known(self, world):
        """To those who were faster to come back."""
        one, other = (world.limiter("4 concurrency") for _ in "ab")
        for limiter in (one, other, one, one, other):  # a share rises when the other process knows that its own fell
            limiter.acquire("jobs", tokens=0).wait().cancel()
            world.move(0.02)
        world.store.failure = GONE
        held = [limiter.acquire("jobs", tokens=0).wait() for limiter in (one, one, other, other)]
        assert not one.try_acquire("jobs", tokens=0)
        world.store.failure = None
        world.move(1.2)
        assert world.status(one)["store"]["state"] == "lost"  # a moment more
        newcomer = world.limiter("4 concurrency")
        assert not newcomer.try_acquire("jobs", tokens=0)
        held[0].settle()
        world.move(4)
        assert newcomer.try_acquire("jobs", tokens=0)

    def test_threads_end_while_it_is_lost(self, world, limiter):
        world.store.failure = GONE
        limiter.acquire("jobs", tokens=0).wait().settle()
        limiter.close()
        world.clock.advance(10)  # it would be tried again each second
        told = len(world.store.messages)
        world.clock.advance(10)
        assert len(world.store.messages) == told
        until(lambda: not limiter.pacer.pools.worker.running)


def ask(limiter, pool):
    """An exchange, whether it grants or not."""
    permit = limiter.try_acquire(pool)
    if permit:
        permit.settle()


class TestTheLog:
    """A line for each loss, and once a minute at most."""

    LOST = "jobs: obedient:store: gone; continuing in mode fail_safe until the store answers again"
    BACK = "jobs: the store answers again"

    def turns(self, world, limiter, count):
        """The store fails for 2 s and answers for 4 s, in turn."""
        for _ in range(count):
            world.store.failure = GONE
            ask(limiter, "jobs")
            world.move(2)
            restored(world)
            ask(limiter, "jobs")
            world.move(0.1)

    def test_a_store_that_fails_and_answers_by_turns(self, world, caplog):
        limiter, _ = pair(world)
        self.turns(world, limiter, 9)
        assert warnings(caplog) == [self.LOST, self.BACK]
        world.store.failure = GONE
        ask(limiter, "jobs")
        world.move(120)
        assert warnings(caplog)[2:] == [self.LOST]  # this loss lasts
        restored(world)
        assert warnings(caplog)[3:] == [self.BACK]
        world.move(61)
        ask(limiter, "jobs")
        world.move(0.1)
        assert not limiter.pacer.pools.worker.contact._losses

    def test_a_long_silence_after_another_is_no_turn(self, world, caplog):
        """The share has waned meanwhile, so that a request waits for its turn."""
        limiter, _ = pair(world)
        for _ in range(3):
            self.turns(world, limiter, 1)
            world.move(61)
        assert warnings(caplog) == 3 * [self.LOST, self.BACK]

    def test_many_pools_on_one_store(self, world, caplog):
        limiter = pools_of(world)
        names = [f"pool {number}" for number in range(20)]

        def once():
            for name in names:
                ask(limiter, name)
            world.move(0.1)

        once()
        for _ in range(4):
            world.store.failure = GONE
            once()
            restored(world)
            once()
        first, *rest = warnings(caplog)
        assert first.startswith("pool 0 (one of the 20 pools of this store): obedient:store: gone; continuing")
        assert rest == ["obedient:store: the store answers again"]

    def test_an_unreadable_ledger_names_its_pool(self, world, caplog, monkeypatch):
        limiter = pools_of(world, "good", "bad")
        unreadable = StoreError("obedient:store: the ledger of pool 'bad' cannot be read")
        with monkeypatch.context() as patch:
            patch.setattr(world.store, "exchange", failing(world.store, "bad", unreadable))
            ask(limiter, "bad")
            ask(limiter, "good")
            states = {name: pool["store"]["state"] for name, pool in limiter.status()["pools"].items()}
            assert states == {"good": "joined", "bad": "lost"}
            world.store.failure = GONE
            ask(limiter, "good")
            restored(world)
        world.move(4)
        bad, good, *back = warnings(caplog)
        assert bad.startswith("bad: obedient:store: the ledger of pool 'bad' cannot be read; continuing")
        assert good.startswith("good (one of the 2 pools of this store): obedient:store: gone; continuing")
        assert sorted(back) == ["bad: the store answers again", "obedient:store: the store answers again"]


@pytest.mark.parametrize("where", ["store", "listener"])
def test_the_store_s_thread_goes_on_after_an_exit_in_it(world, monkeypatch, where):
    limiter, _ = pair(world)
    worker = limiter.pacer.pools.worker
    target, name = (world.store, "exchange") if where == "store" else (worker.contact, "note")

    def leave(*_):
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(target, name, leave)
        ask(limiter, "jobs")
        world.move(0.1)
    world.move(4)
    ask(limiter, "jobs")
    world.quiet()
    assert worker._thread.is_alive()
    assert world.status(limiter)["store"]["state"] == "joined"
