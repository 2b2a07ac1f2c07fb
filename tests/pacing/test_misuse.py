"""What people do all the same: typing errors, shared acquisitions, closed loops, signal handlers."""

import decimal
import os
import re
import threading
import time

import pytest

import paceline
from grids import some
from paceline import Limiter, PacelineWarning, QuotaError
from paceline.pacing.clock import CANCELLED_MAX, SYSTEM_CLOCK, SystemClock
from paceline.testing import ManualClock
from programs import python
from waits import join, started, until

AGAIN = pytest.mark.long("starts a process again")


def limiter_of(*quotas, **options):
    return Limiter({"jobs": list(quotas)}, headroom_s=0, **options)


def test_one_acquisition_is_good_for_one_permit():
    acquisition = limiter_of("10 requests/s").acquire("jobs")
    acquisition.wait()
    with pytest.raises(RuntimeError, match="an acquisition gives one permit"):
        acquisition.wait()


def test_again_in_another_pool_is_a_newcomer_and_twice_is_an_error():
    limiter = Limiter({"a": "10 requests/s", "b": "10 requests/s"})
    refused = limiter.acquire("a").wait()
    refused.refused()
    limiter.acquire("b", again=refused).wait().settle()
    with pytest.raises(QuotaError, match="followed by another attempt already"):
        limiter.acquire("a", again=refused)
    assert limiter.status()["pools"]["b"]["waiting"] == 0


def test_closed_in_another_thread_than_it_was_entered_in():
    limiter = limiter_of("1 concurrency")
    acquisition = limiter.acquire("jobs")
    join(started(acquisition.__enter__))
    acquisition.__exit__(None, None, None)
    assert limiter.status()["pools"]["jobs"]["in_flight"] == 0


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({"inptu_tokens": 1}, "input_tokens"),
        ({"timout": 3}, "timeout"),
        ({"pages": 1}, r"unknown unit 'pages'; this pool limits requests and tokens$"),  # each unit once
        ({"priority": 5}, "did you mean 'lane'"),
        *[({"timeout": timeout}, "timeout is") for timeout in (float("nan"), -1, 1e300, "2")],
        *[
            ({"name": name}, "it must be a text of at most 200 characters, or None")
            for name in (5, "x" * 201, b"bytes")
        ],
    ],
)
def test_an_argument_that_nobody_can_mean(argument, said):
    limiter = limiter_of("10 requests/s", "100 requests/min", "50k tokens/min")
    with pytest.raises(QuotaError, match=said):
        limiter.acquire("jobs", **argument)


def test_a_decimal_is_a_number():
    limiter = limiter_of("10 usd/min")
    limiter.acquire("jobs", usd=decimal.Decimal("0.5")).wait().settle()
    assert limiter.status()["pools"]["jobs"]["quotas"][0]["spent"] == 0.5


@pytest.mark.parametrize(
    ("lane", "said"),
    [
        ({"name": ""}, "the name of a lane is empty"),
        ({"name": "a", "priority": True}, "priority of lane 'a' is True"),
        ({"name": "a", "weight": True}, "weight of lane 'a' is True"),
    ],
)
def test_a_lane_that_nobody_can_mean(lane, said):
    with pytest.raises(QuotaError, match=said):
        paceline.LaneSpec(**lane)
    with pytest.raises(QuotaError, match=said), paceline.lane(**lane):
        pass


def test_lanes_by_name_only():
    with pytest.raises(QuotaError, match="'urgent' is not a lane"):
        limiter_of("10 requests/s", lanes=["urgent"])


async def test_waiting_in_a_loop_for_a_thread_is_warned_of():
    limiter = limiter_of("20 requests/s burst 1")
    with limiter.acquire("jobs"):
        pass
    with pytest.warns(PacelineWarning, match="blocks this event loop"), limiter.acquire("jobs"):
        pass


async def test_where_that_warning_is_an_error_nobody_stays_in_line():
    limiter = limiter_of("1 concurrency")
    held = limiter.try_acquire("jobs")
    with pytest.raises(PacelineWarning):
        limiter.acquire("jobs").wait()
    assert limiter.status()["pools"]["jobs"]["waiting"] == 0
    held.settle()
    assert limiter.try_acquire("jobs")


def test_what_a_finalizer_gives_back_late_in_the_section_lets_the_next_one_go():
    limiter = limiter_of("2 concurrency")
    scheduler, held = limiter.pacer.pools.scheduler("jobs"), [limiter.try_acquire("jobs") for _ in range(2)]
    gone = []
    threads = [started(lambda: gone.append(limiter.acquire("jobs").wait())) for _ in range(2)]
    until(lambda: limiter.status()["pools"]["jobs"]["waiting"] == 2)
    pump = scheduler.pool.pump

    def pump_and_collect(now_ns):
        done = pump(now_ns)
        if held:
            held.pop().settle()  # as garbage that is collected here does
        return done

    scheduler.pool.pump = pump_and_collect
    held.pop().settle()
    join(*threads)
    assert len(gone) == 2


def test_the_timer_thread_holds_nothing_that_a_finalizer_may_want():
    """Garbage is collected in the timer thread, and its finalizer wants a scheduler whose owner is just setting a timer."""
    looking, inside = threading.Event(), threading.Event()

    class Collecting(SystemClock):
        def now_ns(self):
            if threading.current_thread().name == "paceline-timer" and orphans:
                looking.set()
                orphans.pop().settle()
            return super().now_ns()

        def call_at(self, at_ns, callback):
            if threading.current_thread() is worker:
                inside.set()
                looking.wait(60)
            return super().call_at(at_ns, callback)

    clock = Collecting()
    limiter = paceline.Limiter({"jobs": "5 requests/s burst 1"}, headroom_s=0, clock=clock)
    orphans = [limiter.acquire("jobs").wait()]
    worker = threading.Thread(target=limiter.acquire("jobs").wait, daemon=True)
    worker.start()
    inside.wait(60)
    clock.call_at(clock.now_ns() + 3_600 * 10**9, time.time)
    join(worker)
    assert limiter.status()["pools"]["jobs"]["counts"] == {"granted": 2, "settled": 1}


def test_a_finalizer_may_set_a_timer_within_another_one():
    clock, orphans = ManualClock(), [30]
    number = clock._number

    def collecting():
        if orphans:
            clock.call_at(orphans.pop(), list)
        return number()

    clock._number = collecting
    join(started(clock.call_at, 20, list))
    assert clock.next_ns == 20


class Starting(ManualClock):
    """A clock that makes calls while its thread starts."""

    def __init__(self):
        super().__init__()
        self.meanwhile = []

    def call_at(self, at_ns, callback):
        while self.meanwhile:
            self.meanwhile.pop()()
        return super().call_at(at_ns, callback)


@pytest.fixture
def starting():
    """A limiter with a waiter, a permit that sets its timer, and what is done while the thread of timers starts."""
    limiter = limiter_of("60 tokens/min", clock=(clock := Starting()))
    held = limiter.acquire("jobs", tokens=60).wait()
    waits = started(limiter.acquire("jobs", tokens=60).wait)
    until(lambda: limiter.status()["pools"]["jobs"]["waiting"])
    yield limiter, held, clock.meanwhile
    clock.advance(60)
    join(waits)


def test_a_signal_handler_that_asks_while_the_thread_of_timers_starts_gets_an_error(starting):
    """If it waited, its thread would hold the lock of the pool, so that nothing could let it go."""
    limiter, held, meanwhile = starting

    def handler():
        with pytest.raises(RuntimeError, match="from a signal handler"):
            limiter.try_acquire("jobs", tokens=1)

    meanwhile.append(handler)
    held.settle(tokens=10)
    assert not meanwhile
    assert isinstance(limiter.try_acquire("jobs", tokens=1), paceline.Later)


def test_another_greenlet_may_ask_while_the_thread_of_timers_starts(starting, monkeypatch):
    """To a lock from before gevent's patch all greenlets are one thread. They have numbers of their own."""
    (limiter, held, meanwhile), found = starting, []

    def other_greenlet():
        with monkeypatch.context() as patch:
            patch.setattr(threading, "get_ident", lambda: -1)
            found.append(limiter.try_acquire("jobs", tokens=1))

    meanwhile.append(other_greenlet)
    held.settle(tokens=10)  # the other one goes sooner, by another timer
    assert isinstance(found[0], paceline.Later)


def test_timers_that_are_not_needed_any_more_do_not_pile_up():
    limiter = limiter_of("1 requests/day burst 1")
    limiter.acquire("jobs").wait()

    def give_up():
        with pytest.raises(paceline.AcquireTimeoutError):
            limiter.acquire("jobs", timeout=0.5).wait()

    held = started(give_up)
    before = len(SYSTEM_CLOCK._heap)
    for i in range(SYSTEM_CLOCK._tidy_at + 400):
        SYSTEM_CLOCK.call_at(SYSTEM_CLOCK.now_ns() + (3_600 + i) * 10**9, time.time).cancel()
    until(SYSTEM_CLOCK._new.items.empty)
    assert len(SYSTEM_CLOCK._heap) <= 2 * (before + 10) + CANCELLED_MAX  # other tests may have left timers
    join(held)


@pytest.mark.parametrize(
    ("quotas", "why"),
    [
        (500, "500 is no quota: write it as a text, e.g. '500 requests/min'"),
        (None, "None is no quota: write it as a text"),
        ([500], "500 is no quota"),
        ({"rpm": 500}, "is no quota: write it as a text"),
    ],
)
def test_a_limit_that_is_no_text(quotas, why):
    with pytest.raises(QuotaError, match=f"^limit of 'x': .*{re.escape(why)}"):
        Limiter({"x": quotas})


@pytest.mark.parametrize("wrong", [{"openai/*": "5 requests/min"}, None, "openai", Limiter])
def test_instrument_takes_a_limiter(wrong):
    said = r"instrument\(\) takes a limiter, not \w+: paceline.instrument\(paceline.Limiter"
    with pytest.raises(TypeError, match=said):
        paceline.instrument(wrong)


HELD_LOCKS = """
import faulthandler, gc, os, sys, threading, warnings, paceline
from paceline.stores.sqlite import SQLiteStore
warnings.simplefilter("ignore", DeprecationWarning)
def use(pool):
    with limiter.acquire(pool, tokens=3) as permit:
        permit.settle({"input_tokens": 2, "output_tokens": 1}, headers={"x-ratelimit-remaining-requests": "9"})
    limiter.status()
def locks():
    kind, of_limiter, modules = type(threading.RLock()), gc.get_objects(), [*sys.modules.values()]
    ours = [one for one in of_limiter if type(one).__module__.startswith("paceline") and hasattr(one, "__dict__")]
    ours += [one for one in modules if one.__name__.startswith("paceline")]
    return [lock for one in ours for lock in vars(one).values() if isinstance(lock, kind)]
def hold():
    held.extend(lock for lock in locks() if lock.acquire(timeout=1))
    is_held.set()
    threading.Event().wait()
limiter = paceline.Limiter({"openai/*": ["10 requests/s", "1M tokens/min"]}, store=STORE)
use("openai/a")
buffer = paceline.Buffer(low=1, high=9)
held, is_held = [], threading.Event()
threading.Thread(target=hold, daemon=True).start()
is_held.wait()
if not (pid := os.fork()):
    faulthandler.dump_traceback_later(30, exit=True)
    use("openai/b")
    use("openai/a")
    with buffer.place():
        limiter.close()
    os._exit(0)
print(len(held), os.waitpid(pid, 0)[1])
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
# A fork waits as long for the lock of a store as its timeout says.
@pytest.mark.parametrize("store", ["None", "SQLiteStore(sys.argv[1], timeout_s=0.5)"])
def test_a_forked_child_waits_for_no_lock_of_another_thread(store, tmp_path):
    held, ended, *_ = python(HELD_LOCKS.replace("STORE", store), tmp_path / "quotas.db").split()
    assert int(held) > 5
    assert ended == "0"


FORKS = """
import os, sys, warnings, paceline
from paceline.stores.sqlite import SQLiteStore
warnings.simplefilter("ignore", DeprecationWarning)
limiter = paceline.Limiter({"a": "10 requests/s", "b": "10 requests/s"}, store=STORE)
def use():
    for name in ("a", "b"):
        limiter.acquire(name).wait().settle()
def child(*work):
    reader, writer = os.pipe()
    if not (pid := os.fork()):
        os.dup2(gate[0], gate[1])  # only the first process can write, and the others end with it
        for each in work:
            each()
        os.write(writer, b"done")
        os.read(gate[0], 1)  # until the others have had their turn
        os._exit(0)
    os.read(reader, 4)
    return pid
gate = os.pipe()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize(
    ("script", "store", "hints"),
    some(
        [
            ("child(use); child(use); child(use)", None, 1),  # workers of a master that does not use it
            ("child(use); child(int)", None, 0),
            ("child(use)", None, 0),  # a daemon
            ("use(); child(int)", None, 0),
            ("child(lambda: child(use)); child(use)", None, 1),
            ("os.write(gate[1], b'1'); os.waitpid(child(use), 0); child(use)", None, 0),  # one worker that is replaced
            ("use(); child(use); use()", None, 1),
            ("use(); child(use); use(); limiter.close()", "SQLiteStore(sys.argv[1])", 0),
        ],
        ("child(use)", None, 0),
        ("use(); child(use); use()", None, 1),
        mark=AGAIN,
    ),
)
def test_forked_processes_are_told_of_stores_once_if_two_of_them_use_it(script, store, hints, tmp_path):
    said = python(FORKS.replace("STORE", str(store)) + script, tmp_path / "quotas.db")
    assert said.count("several processes use this limiter since a fork") == hints, said
    assert said.count("give the limiter a store: Limiter(..., store=") == hints
