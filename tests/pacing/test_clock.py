"""The clocks: the manual one, event loops in virtual time, and the timer thread of the real one."""

import asyncio
import os
import queue
import threading
import time

import pytest

import paceline
from memory_store import MemoryStore
from paceline.core.quota import NS
from paceline.pacing.clock import SystemClock
from paceline.testing import DeadlockError, ManualClock, run_virtual
from paceline.testing import clock as clock_module
from programs import python
from virtual_time import virtual


class TestManualClock:
    def test_callbacks_run_in_order_each_at_its_instant(self):
        clock, seen = ManualClock(start_s=100), []
        for at_s in (3, 1, 2, 1):
            clock.call_at((100 + at_s) * NS, lambda at_s=at_s: seen.append((at_s, clock.now_ns() // NS)))
        clock.advance(2)
        assert seen == [(1, 101), (1, 101), (2, 102)]
        assert (clock.now_ns(), clock.next_ns) == (102 * NS, 103 * NS)
        clock.advance(10)
        assert (seen[3:], clock.now_ns(), clock.next_ns) == ([(3, 103)], 112 * NS, None)

    def test_cancelled_ones_do_not_run_and_move_nothing(self):
        clock, seen = ManualClock(0), []
        first, second = (clock.call_at(at_s * NS, lambda at_s=at_s: seen.append(at_s)) for at_s in (1, 2))
        first.cancel()
        assert clock.next_ns == 2 * NS
        second.cancel()
        second.cancel()
        clock.advance(3)
        assert (seen, clock.next_ns) == ([], None)

    def test_one_for_the_past_runs_at_the_next_move(self):
        clock, seen = ManualClock(10), []
        clock.call_at(1, lambda: seen.append(clock.now_ns()))
        assert seen == []
        clock.advance(0)
        assert seen == [10 * NS]

    @pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan")])
    def test_time_moves_forward(self, seconds):
        with pytest.raises(ValueError, match="it must be a finite number, 0 or more"):
            ManualClock().advance(seconds)
        clock = ManualClock(10)
        clock.advance_to(5 * NS)
        assert clock.now_ns() == 10 * NS

    def test_timers_that_set_each_other_for_ever_end(self, monkeypatch):
        monkeypatch.setattr(clock_module, "CALLBACKS_MAX", 100)
        clock = ManualClock()

        def again():
            clock.call_at(clock.now_ns(), again)

        again()
        with pytest.raises(RuntimeError, match="endlessly"):
            clock.advance(1)


class TestRunVirtual:
    def test_a_timer_of_the_clock_may_set_one_of_the_loop(self):
        async def main(clock):
            loop, start_ns, seen, over = asyncio.get_running_loop(), clock.now_ns(), [], asyncio.Event()

            def note(name):
                seen.append((name, (clock.now_ns() - start_ns) // NS))

            clock.call_at(start_ns + NS, lambda: note("first"))
            clock.call_at(start_ns + 2 * NS, lambda: loop.call_later(2, note, "of the loop"))
            clock.call_at(start_ns + 3 * NS, lambda: note("between"))
            clock.call_at(start_ns + 5 * NS, over.set)
            clock.call_at(start_ns + 5 * NS, lambda: note("of the same instant"))
            await over.wait()
            note("the task")
            return seen

        assert run_virtual(main) == [
            ("first", 1), ("between", 3), ("of the loop", 4), ("of the same instant", 5), ("the task", 5),
        ]  # fmt: skip

    def test_timers_that_wake_nobody_for_ever_end(self, monkeypatch):
        monkeypatch.setattr(clock_module, "CALLBACKS_MAX", 100)

        async def main(clock):
            def again():
                clock.call_at(clock.now_ns(), again)

            again()
            await asyncio.Event().wait()

        with pytest.raises(RuntimeError, match="endlessly"):
            run_virtual(main)

    def test_the_clock_that_is_given_is_the_one_that_moves(self):
        clock = ManualClock(1_000)
        run_virtual(asyncio.sleep(7), clock)
        assert clock.now_ns() == pytest.approx(1_007 * NS, abs=10)

        async def by_hand(same):
            assert same is clock
            sleeper = asyncio.create_task(asyncio.sleep(60))
            await asyncio.sleep(0)
            clock.advance(60)
            await sleeper

        run_virtual(by_hand, clock)

    def test_nothing_will_ever_happen_is_an_error_that_says_who_waits(self):
        async def stuck():
            await asyncio.Event().wait()

        async def main():
            await asyncio.create_task(stuck(), name="the stuck one")

        with pytest.raises(DeadlockError, match=r"no timer is set.*the stuck one at .*test_clock\.py"):
            run_virtual(main())

    def test_what_it_raises_is_handed_on_and_its_tasks_are_cancelled(self):
        cancelled = []

        async def beside():
            try:
                await asyncio.sleep(3_600)
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

        async def main():
            task = asyncio.create_task(beside())
            await asyncio.sleep(1)
            raise LookupError(task.get_name())

        with pytest.raises(LookupError):
            run_virtual(main())
        assert cancelled == [True]

    def test_sockets_and_threads_are_real(self):
        async def main():
            async def echo(reader, writer):
                writer.write(await reader.readline())
                await writer.drain()
                writer.close()
                await writer.wait_closed()

            server = await asyncio.start_server(echo, "127.0.0.1", 0)
            async with server:
                reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                writer.write(b"hello\n")
                answer = await reader.read()
                writer.close()
                await writer.wait_closed()
            return answer, await asyncio.to_thread(threading.get_ident)

        answer, thread = run_virtual(main())
        assert answer == b"hello\n"
        assert thread != threading.get_ident()


class TestSystemClock:
    def test_it_never_goes_back_and_is_near_the_wall_clock(self):
        clock = SystemClock()
        instants = [clock.now_ns() for _ in range(1_000)]
        assert instants == sorted(instants)
        assert abs(instants[0] - time.time_ns()) < 3_600 * NS

    def test_timers_run_in_order_and_not_too_early(self):
        clock, seen, done = SystemClock(), [], threading.Event()
        now_ns = clock.now_ns()
        clock.call_at(now_ns + 600_000_000, lambda: (seen.append((3, clock.now_ns())), done.set()))
        clock.call_at(now_ns + 200_000_000, lambda: seen.append((1, clock.now_ns())))  # wakes the thread earlier
        clock.call_at(now_ns + 400_000_000, lambda: seen.append((2, clock.now_ns()))).cancel()
        assert done.wait(60)
        assert [name for name, _ in seen] == [1, 3]
        assert all(at_ns >= now_ns + name * 200_000_000 for name, at_ns in seen)

    def test_timers_go_on_in_a_thread_with_the_queues_that_gevent_patches(self, monkeypatch):
        """As gevent patches late; with it: ``frameworks/servers``."""
        clock, before, done = SystemClock(), [], threading.Event()
        clock.call_at(0, lambda: (before.append(threading.current_thread()), done.set()))
        assert done.wait(60)
        now_ns, seen = clock.now_ns(), []
        clock.call_at(now_ns + 400_000_000, lambda: seen.append(threading.current_thread()))
        monkeypatch.setattr(queue, "SimpleQueue", queue.Queue)
        done.clear()
        clock.call_at(now_ns + 500_000_000, lambda: (seen.append(threading.current_thread()), done.set()))
        before[0].join(60)
        assert not before[0].is_alive()
        assert done.wait(60)
        assert seen[0] is seen[1] is not before[0]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
    @pytest.mark.parametrize("waiting", [False, True], ids=["idle", "with a waiter in the parent"])
    def test_a_forked_child_keeps_working(self, waiting):
        python(f"""
            import os, signal, sys, threading, warnings
            import paceline

            warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of forks with threads, rightly
            limiter = paceline.Limiter({{"jobs": "16 requests/s burst 4"}}, headroom_s=0)
            for _ in range(5):
                limiter.acquire("jobs").wait().settle()
            assert any(thread.name == "paceline-timer" for thread in threading.enumerate())
            if {waiting}:
                waiter = threading.Thread(target=lambda: limiter.acquire("jobs", requests=4).wait(), daemon=True)
                waiter.start()
                while waiter.is_alive() and not limiter.status()["pools"]["jobs"]["waiting"]:
                    pass
            child = os.fork()
            signal.alarm(0 if child else 60)  # a child that hangs fails
            for _ in range(5):
                limiter.acquire("jobs").wait().settle()
            if child == 0:
                os._exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            sys.exit(f"the child ended with {{status}}" if status else 0)
        """)


@virtual
async def test_a_store_s_thread_is_no_deadlock(clock):
    store = MemoryStore(clock=clock)
    limiter = paceline.Limiter({"jobs": "60 requests/min burst 2"}, store=store, headroom_s=0.0, clock=clock)
    for _ in range(4):
        (await limiter.acquire("jobs")).settle()
    limiter.close()
