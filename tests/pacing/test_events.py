"""What a listener is told: each act that counts, once, and outside all locks."""

import asyncio
import gc
import threading

import pytest

import paceline
from paceline.pacing.clock import SystemClock
from paceline.pacing.events import Event
from paceline.testing import ManualClock
from paceline.testing.clock import START_S
from virtual_time import virtual
from waits import gone, join, run_all, started, until

QUOTAS = {"jobs": ["60 requests/min burst 2", "1000 tokens/min"], "openai/*": ["6000 requests/min", "4M tokens/min"]}


class Heard(list):
    """A listener that keeps what it was told, and notes which thread told it."""

    def __init__(self):
        super().__init__()
        self.threads = []

    def __call__(self, event):
        self.threads.append(threading.current_thread())
        self.append(event)

    @property
    def kinds(self):
        return [event.kind for event in self]


def limiter_with(heard, **options):
    return paceline.Limiter(QUOTAS, events=heard, **{"clock": ManualClock(), **options})


@pytest.fixture
def heard():
    return Heard()


class TestByHand:
    def test_acquired_and_settled(self, heard):
        limiter = limiter_with(heard)
        with paceline.lane("night"), limiter.acquire("jobs", tokens=500) as permit:
            assert heard.kinds == ["acquired"]
            permit.settle(tokens=100)
        reserved = {"tokens": 500, "requests": 1}
        assert heard == [
            Event("acquired", "jobs", "night", 0.0, reserved, granted_s=START_S),
            Event("settled", "jobs", "night", 0.0, reserved, {"tokens": 100, "requests": 1}, granted_s=START_S),
        ]

    @pytest.mark.parametrize(
        ("acts", "used"),
        [
            ("settle settle cancel close refused", {"tokens": 10, "requests": 1}),
            ("cancel cancel settle", None),
            ("refused settle", None),
        ],
    )
    def test_only_the_first_act_counts(self, acts, used, heard):
        permit, acts = limiter_with(heard).try_acquire("jobs", tokens=10), acts.split()
        for act in acts:
            getattr(permit, act)()
        assert heard.kinds == ["acquired", {"settle": "settled", "cancel": "cancelled"}.get(acts[0], acts[0])]
        assert heard[1].used == used

    @pytest.mark.parametrize(
        ("refusal", "options", "told"),
        [
            (paceline.Refusal(paceline.RefusalKind.CAPACITY, retry_after_s=3), {}, ("capacity", 3)),
            (None, {"retry_after_s": 7}, ("rate", 7)),  # the pause that the caller knows
        ],
    )
    def test_a_refusal_has_its_reason_and_its_pause(self, refusal, options, told, heard):
        limiter_with(heard).try_acquire("jobs").refused(refusal, **options)
        assert (heard[1].reason, heard[1].retry_after_s) == told

    def test_one_that_expired_before_is_not_settled(self, heard, clock):
        limiter = limiter_with(heard, clock=clock, ttl_s=10)
        permit = limiter.try_acquire("jobs", tokens=5)
        clock.advance(11)
        limiter.try_acquire("jobs").cancel()
        permit.settle(tokens=1)
        assert permit.charged == {"tokens": 5, "requests": 1}
        assert heard.kinds == ["acquired", "acquired", "cancelled"]

    @virtual
    async def test_nobody_hears_of_a_grant_that_nobody_took(self, clock, heard):
        limiter = limiter_with(heard, clock=clock)
        limiter.try_acquire("jobs").settle()
        waiting = asyncio.create_task(limiter.acquire("jobs")._wait_async())
        await asyncio.sleep(0)
        await gone([waiting])
        assert heard.kinds == ["acquired", "settled"]


class TestWhereItIsTold:
    def test_threads_that_settle_the_same_permit_tell_it_once(self, heard):
        limiter = paceline.Limiter({"jobs": "1M requests/s"}, events=heard, headroom_s=0)
        for _ in range(50):
            permit, scheduler = limiter.try_acquire("jobs"), threading.Barrier(4)

            def close(permit=permit, scheduler=scheduler):
                scheduler.wait(10)
                permit.settle()
                permit.cancel()

            run_all([close] * 4)
        assert (len(heard), heard.kinds.count("acquired")) == (100, 50)

    def test_in_the_thread_that_acts(self, heard):
        limiter = limiter_with(heard)
        worker = started(lambda: limiter.acquire("jobs").wait().settle())
        join(worker)
        assert heard.threads == [worker, worker]

    def test_a_listener_may_use_the_limiter_and_so_may_others_meanwhile(self):
        seen = []

        def listener(event):
            # It would wait for ever if we held the pool's lock.
            join(started(lambda: seen.append(limiter.status()["pools"]["jobs"]["in_flight"])))
            seen.append(event.kind)

        limiter = limiter_with(listener)
        limiter.try_acquire("jobs").settle()
        assert seen == [1, "acquired", 0, "settled"]

    def test_a_finalizer_inside_our_own_section_is_told_after_it(self):
        """Garbage may be collected anywhere: here, while the scheduler works."""
        heard, held = Heard(), []
        limiter = limiter_with(heard)
        scheduler = limiter.pacer.pools.scheduler("jobs")
        forgotten = limiter.try_acquire("jobs")

        class Finalized:
            def __del__(self):
                forgotten.settle()
                held.append(heard.kinds)

        def pump(now_ns):
            if not held:
                Finalized()
                gc.collect()
            return []

        scheduler.pool.queue.length, scheduler.pool.pump = 1, pump  # a section in which something is collected
        scheduler.resume()
        scheduler.pool.queue.length = 0
        assert held == [["acquired"]]  # not told inside
        assert heard.kinds == ["acquired", "settled"]
        assert scheduler.pool.ledger.in_flight == 0


class TestAFaultyListener:
    def test_it_is_logged_once_and_breaks_nobody(self, caplog):
        def broken(event):
            raise LookupError("no such metric")

        limiter = limiter_with(broken)
        with limiter.acquire("jobs", tokens=5) as permit:
            permit.settle(tokens=4)
        limiter.try_acquire("openai/gpt-5").cancel()
        assert [(record.name, record.levelname) for record in caplog.records] == [("paceline", "ERROR")]
        assert "no such metric" in caplog.text

    @pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
    @pytest.mark.parametrize("kind", ["acquired", "settled", "cancelled", "refused"])
    def test_an_exit_reaches_the_caller_and_leaves_no_permit_open(self, error, kind):
        def exits(event):
            if event.kind == kind:
                raise error

        quotas = {"jobs": "60 requests/min burst 3", "openai": ["3 concurrency"], "openai/*": ["10 requests/min"]}
        end = {"cancelled": "cancel", "refused": "refused"}.get(kind, "settle")

        def by_thread(limiter, pool):
            getattr(limiter.acquire(pool).wait(), end)()

        def by_block(limiter, pool):
            with limiter.acquire(pool) as permit:
                getattr(permit, end)()

        def by_trial(limiter, pool):
            getattr(limiter.try_acquire(pool), end)()

        for pool in ("jobs", "openai/gpt-5"):
            for use in (by_thread, by_block, by_trial):
                limiter = paceline.Limiter(quotas, events=exits, clock=ManualClock(), headroom_s=0)
                with pytest.raises(error):
                    use(limiter, pool)
                status = limiter.status()["pools"]
                assert {name: one["in_flight"] for name, one in status.items()} == dict.fromkeys(status, 0)
                left = [one["quotas"][0]["remaining"] for name, one in status.items() if name == pool]
                stated_nothing = kind == "refused" and pool != "jobs"  # which has no provider whose refusals teach
                assert (left[0] in (3, 10)) == (kind in ("acquired", "cancelled") or stated_nothing)

    def test_an_exit_at_a_grant_gives_it_to_the_next_waiter(self):
        clock, granted, exits = ManualClock(), [], []

        def listener(event):
            if event.kind == "acquired" and exits:
                raise exits.pop()

        limiter = paceline.Limiter({"jobs": "1 concurrency"}, events=listener, clock=clock)
        first = limiter.try_acquire("jobs")
        scheduler = limiter.pacer.pools.scheduler("jobs")

        def work():
            try:
                granted.append(limiter.acquire("jobs").wait())
            except SystemExit as error:
                granted.append(error)

        threads = []
        for number in (1, 2):
            threads.append(started(work))
            until(lambda number=number: scheduler.pool.queue.length == number)
        exits.append(SystemExit())
        first.settle()
        join(*threads)
        assert sorted(type(one).__name__ for one in granted) == ["Permit", "SystemExit"]
        assert scheduler.pool.ledger.in_flight == 1

    def test_an_exit_does_not_end_the_thread_of_the_timers(self, caplog):
        clock, called = SystemClock(), threading.Event()

        def exits():
            raise SystemExit

        clock.call_at(0, exits)
        clock.call_at(1, called.set)
        assert called.wait(10)
        assert "a timer failed" in caplog.text

    def test_what_cannot_be_called_is_said_at_once(self):
        with pytest.raises(paceline.SettingsError, match="events is 'log': it must be a function or None"):
            paceline.Limiter(QUOTAS, events="log")
