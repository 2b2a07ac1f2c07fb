"""Other processes for the suite of stores: forked and spawned ones."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from paceline.stores.base import Store
from paceline.testing.sharing import SharingProcess

BOUND_S = 60
"""The most seconds that another process may take: far more than it needs on a busy machine."""

FORKS = 3
"""The number of children: each is forked at another point of the parent."""

TIMES = 10


def optional(request: Any, fixture: str) -> Any:
    """The value of a fixture; the test is skipped if there is none."""
    import pytest

    try:
        return request.getfixturevalue(fixture)
    except pytest.FixtureLookupError as error:
        if error.argname != fixture:
            raise
        pytest.skip(f"this test needs the fixture {fixture!r}")


def needs_forks() -> None:
    """Skip the test on a system without ``fork``."""
    if sys.platform == "win32":
        import pytest

        pytest.skip("this system has no os.fork")


def granted_to_two(opener: Callable[[], Store], pool: str, quotas: str) -> list[int]:
    """The grants of two new processes that ask at the same time for more than the quota has."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as others:
        asking = [others.submit(_ask, opener, pool, quotas, who) for who in "xy"]
        return [answer.result(BOUND_S) for answer in asking]


def _ask(opener: Callable[[], Store], pool: str, quotas: str, who: str) -> int:
    if sys.platform != "win32":
        signal.alarm(BOUND_S)  # the parent waits for this process to end
    store = opener()
    try:
        process = SharingProcess(store, pool, quotas, who)
        deadline_s = time.monotonic() + BOUND_S / 2
        while process.send().peers < 2:
            if time.monotonic() > deadline_s:
                raise TimeoutError("the store does not report the other process")
            time.sleep(0.001)
        return sum(len(process.ask(1.0).grants) for _ in range(60))
    finally:
        store.close()


def forked(store: Store, pool: str, quotas: str) -> list[int]:
    """Fork while a thread exchanges messages; the grants of the parent, and the exit status of each child."""
    done, granted = threading.Event(), [0]
    process = SharingProcess(store, pool, quotas)

    def work() -> None:
        while not done.is_set():
            granted[0] += len(process.ask(1.0).grants)

    process.take(1.0)  # opens the connection
    thread = threading.Thread(target=work)
    thread.start()
    try:
        children = [_fork(store, pool, quotas, f"child {number}") for number in range(FORKS)]
        codes = [os.waitpid(child, 0)[1] for child in children]
    finally:
        done.set()
        thread.join(BOUND_S)
    return [1 + granted[0], *codes]


def _fork(store: Store, pool: str, quotas: str, who: str) -> int:
    if sys.platform == "win32":
        raise NotImplementedError("first call needs_forks()")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point of the test
        child = os.fork()
    if child:
        return child
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(BOUND_S)  # a lock of the parent is never released here
        store.after_fork()
        process = SharingProcess(store, pool, quotas, who)
        for _ in range(TIMES):
            process.take(1.0)
        store.close()
        os._exit(0)
    except BaseException:  # noqa: BLE001  (the child must not continue the test)
        traceback.print_exc()
    finally:
        os._exit(1)
