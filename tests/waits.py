"""Waits for what another thread, task or process brings about."""

import asyncio
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from traceback import format_stack

from paceline.pacing.section import Due
from paceline.shared.exchange import side_of

BOUND_S = 60.0
"""Only a broken test gets here, also on a busy machine."""


def until(condition, what="it"):
    """Poll until ``condition()`` is true."""
    deadline_s = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not happen"
        time.sleep(0.001)


async def soon(condition, what="it"):
    """The same, while the event loop goes on."""
    deadline_s = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not happen"
        await asyncio.sleep(0.001)


def carried(worker) -> bool:
    """Wait until the exchanges of a `StoreWorker` that are due are made, and the replies delivered; false if it takes too long."""
    deadline_s, exchange_for, passed = time.monotonic() + BOUND_S, worker.exchange_for, threading.Event()
    # The queue of the worker is in order, so that a mark comes after all exchanges that are due.
    worker.exchange_for = lambda one, **options: one.set() if one is passed else exchange_for(one, **options)
    try:
        while time.monotonic() < deadline_s:
            passed.clear()
            if worker.running:
                worker._queue.put(passed)
                if not passed.wait(max(deadline_s - time.monotonic(), 0.0)):
                    return False
            if all(
                each.section._exchanges.due is Due.LATER and side_of(each.pool).asked is None
                for each in list(worker.schedulers)
            ):
                return True
            time.sleep(0.0005)
        return False
    finally:
        del worker.exchange_for


def play(clock, function, *args, **options):
    """The result of a function that waits on a `ManualClock`: it runs in a thread, and time passes whenever it waits."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(function, *args, **options)
        deadline_s = time.monotonic() + BOUND_S
        while not future.done() and time.monotonic() < deadline_s:
            if (next_ns := clock.next_ns) is not None:
                clock.advance_to(next_ns)
            time.sleep(0.0005)
        return future.result(timeout=0)


def join(*threads: threading.Thread):
    """Wait for the ends of ``threads``; one that goes on fails the test, which shows where it is."""
    for thread in threads:
        thread.join(BOUND_S)
        where = "".join(format_stack(sys._current_frames().get(thread.ident))) if thread.is_alive() else ""
        assert not where, f"the thread {thread.name} goes on:\n{where}"


def started(work, *args, **options) -> threading.Thread:
    """A thread that does ``work``; it does not keep the process."""
    thread = threading.Thread(target=work, args=args, kwargs=options, daemon=True)
    thread.start()
    return thread


async def gone(tasks):
    """Cancel them, and wait for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def run_all(works):
    """Do them all at once, each in a thread of its own; what one of them raises is raised here."""
    errors = []

    def do(work):
        try:
            work()
        except BaseException as error:  # noqa: BLE001  (raised below)
            errors.append(error)

    for thread in [started(do, work) for work in works]:
        join(thread)
    for error in errors:
        raise error
