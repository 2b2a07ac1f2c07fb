"""The threads of the timers and of the store: whatever is raised in them, and also when they are gone, nobody waits without end."""

import ctypes
import threading
import time

import pytest

import paceline
from paceline.pacing import clock as clock_module
from paceline.pacing.clock import SystemClock
from paceline.pacing.lateness import Lateness
from waits import BOUND_S, join, until

ANY = [SystemExit, KeyboardInterrupt, MemoryError]
SOON_NS = 100_000_000


def disturb(thread, error):
    """Raise ``error`` in a thread, wherever it is."""
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(error)) == 1


@pytest.fixture
def clock():
    """A clock with a thread of its own."""
    return SystemClock()


def test_a_thread_goes_on_when_it_is_disturbed_again_while_it_logs_and_rests(monkeypatch):
    errors, at = iter([MemoryError, SystemExit, KeyboardInterrupt, SystemExit]), []

    def disturbed(where):
        at.append(where)
        if (error := next(errors, None)) is not None:
            raise error

    with monkeypatch.context() as patch:
        patch.setattr(clock_module.time, "sleep", lambda _: disturbed("rest"))
        patch.setattr(clock_module.log, "error", lambda *_, **__: disturbed("log"))
        clock_module.go_on(lambda: disturbed("serve"), "it was disturbed")
    assert at == ["serve", "log", "log", "log", "log", "rest", "serve"]


class TestTheTimer:
    @pytest.mark.parametrize("error", ANY)
    def test_goes_on_after_an_exception_in_its_thread(self, clock, error):
        fired = []
        clock.call_at(clock.now_ns() + SOON_NS, lambda: fired.append("timer"))
        disturb(clock._threads[0], error)  # it is raised when the thread wakes for the timer
        until(lambda: fired == ["timer"])

    def test_no_timer_is_lost_on_the_way(self, clock, monkeypatch):
        """The exception comes between the queue of new timers and the heap."""
        fired, push = [], clock._push

        def broken(timer):
            monkeypatch.setattr(clock, "_push", push)
            raise MemoryError

        monkeypatch.setattr(clock, "_push", broken)
        for n in range(3):
            clock.call_at(clock.now_ns(), lambda n=n: fired.append(n))
        until(lambda: sorted(fired) == [0, 1, 2])
        assert not clock._pending

    def test_a_timer_is_pending_until_its_call_is_made(self, clock, monkeypatch):
        """The exception comes when the timer has just been taken from those that are pending."""
        fired, cancel = [], clock_module._Timer.cancel

        def broken(timer):
            monkeypatch.setattr(clock_module._Timer, "cancel", cancel)
            cancel(timer)
            raise MemoryError

        monkeypatch.setattr(clock_module._Timer, "cancel", broken)
        clock.call_at(clock.now_ns(), lambda: fired.append("timer"))
        until(lambda: fired == ["timer"])

    def test_starts_again_when_it_has_ended(self, clock, monkeypatch):
        fired = []
        with monkeypatch.context() as patch:
            patch.setattr(clock, "_run", lambda: None)
            clock.call_at(clock.now_ns(), lambda: fired.append("first"))
            until(lambda: not clock._threads[0].is_alive())
        clock.call_at(clock.now_ns(), lambda: fired.append("second"))
        until(lambda: sorted(fired) == ["first", "second"])

    @pytest.mark.parametrize("granted", [False, True])
    def test_a_pool_that_was_disturbed_in_its_timer_is_looked_at_again(self, clock, monkeypatch, granted):
        limiter = paceline.Limiter({"jobs": "10 requests/s burst 1"}, headroom_s=0.0, clock=clock)
        limiter.acquire("jobs").wait().settle()
        section = next(iter(limiter.pacer.pools.in_use)).section
        work = section._work

        def broken(now_ns):
            if threading.current_thread().name != "paceline-timer":
                return work(now_ns)
            monkeypatch.setattr(section, "_work", work)
            if granted:
                work(now_ns)
            raise MemoryError

        monkeypatch.setattr(section, "_work", broken)
        limiter.acquire("jobs", timeout=BOUND_S).wait().settle()


class AskedLock:
    """The lock of a section, and the threads that have asked for it."""

    def __init__(self, lock):
        self.lock, self.asked = lock, set()

    def __enter__(self):
        self.asked.add(threading.current_thread())
        self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()


def test_no_other_thread_wakes_a_waiter_whose_grant_is_not_noted_yet(monkeypatch):
    """It would be noted as one that is not sent, until its answer ends."""
    limiter, left = paceline.Limiter({"jobs": "1 concurrency"}), []
    held = limiter.acquire("jobs").wait()
    section = next(iter(limiter.pacer.pools.in_use)).section
    section._lock = lock = AskedLock(section._lock)
    granted = Lateness.granted

    def slowly(lateness, reservation):
        other = threading.Thread(target=section._leave)
        other.start()
        until(lambda: other in lock.asked or not other.is_alive())
        left.append(len(section._decided))
        granted(lateness, reservation)

    monkeypatch.setattr(Lateness, "granted", slowly)
    waiting = threading.Thread(target=lambda: limiter.acquire("jobs", timeout=BOUND_S).wait().settle())
    waiting.start()
    until(lambda: section.read(lambda _: section._pool.queue.length))
    held.settle()
    join(waiting)
    assert left == [1]


class TestTheStoreWorker:
    @pytest.fixture
    def limiter(self, tmp_path):
        limiter = paceline.Limiter({"jobs": "60 requests/min burst 3"}, headroom_s=0.0, store=f"sqlite:{tmp_path}/q.db")
        limiter.acquire("jobs").wait().settle()
        yield limiter
        limiter.close()

    @pytest.mark.parametrize("error", ANY)
    def test_goes_on_after_an_exception_in_its_thread(self, limiter, error):
        disturb(limiter.pacer.pools.worker._thread, error)
        limiter.acquire("jobs", timeout=BOUND_S).wait().settle()

    @pytest.mark.parametrize("error", ANY)
    def test_a_message_that_was_taken_has_an_outcome(self, limiter, monkeypatch, error):
        contact = limiter.pacer.pools.worker.contact
        exchange = contact.exchange

        def broken(*_):
            monkeypatch.setattr(contact, "exchange", exchange)
            raise error

        monkeypatch.setattr(contact, "exchange", broken)
        limiter.acquire("jobs", timeout=BOUND_S).wait().settle()

    def test_starts_again_when_it_has_ended(self, limiter):
        worker = limiter.pacer.pools.worker
        ended = worker._thread
        worker._queue.put(None)
        until(lambda: not ended.is_alive())  # and what is due may have started another one by now
        limiter.acquire("jobs", timeout=BOUND_S).wait().settle()
        assert worker.running
        assert worker._thread is not ended


def test_a_step_of_the_page_that_fails_is_one_that_is_missing(monkeypatch):
    from paceline.telemetry import history

    monkeypatch.setattr(history, "STEP_S", 0.01)
    limiter = paceline.Limiter({"jobs": "60 requests/min"})
    limiter.acquire("jobs").wait().settle()
    recorder = history.Recorder(limiter)
    recorder.start()
    states = recorder._states

    def broken():
        monkeypatch.setattr(recorder, "_states", states)
        raise RuntimeError("the set has changed")

    monkeypatch.setattr(recorder, "_states", broken)
    until(lambda: recorder._states == states)
    before_s = time.time()
    until(lambda: recorder.document(before_s)["pools"])
    recorder.stop()
