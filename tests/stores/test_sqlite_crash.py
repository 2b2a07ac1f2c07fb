"""Processes that are killed at any instant: the ledger has all grants, and stays valid."""

from __future__ import annotations

import random
import signal
import sqlite3
import time
from contextlib import closing

import pytest
from crew import end, forks
from redis_servers import until
from test_sqlite_store import charged
from worker import take_until_killed

from paceline.stores.sqlite import SQLiteStore

WORKERS, KILLS = 4, 16


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="another system's signals")
def test_what_was_granted_before_a_kill_is_charged(tmp_path):
    path, dice = tmp_path / "books.db", random.Random(7)
    lives = 0

    def start(index: int):
        nonlocal lives
        lives += 1
        process = forks.Process(target=take_until_killed, args=(path, tmp_path / f"log {index}", f"worker {lives}"))
        process.start()
        return process

    def granted(index: int) -> int:
        log = tmp_path / f"log {index}"
        return log.stat().st_size if log.exists() else 0

    workers, before = [start(index) for index in range(WORKERS)], [0] * WORKERS
    try:
        for _ in range(KILLS):
            index = dice.randrange(WORKERS)
            until(lambda i=index: granted(i) > before[i] or not workers[i].is_alive(), "a grant")
            time.sleep(dice.uniform(0.0, 0.1))
            end(workers[index])
            assert workers[index].exitcode == -signal.SIGKILL
            before[index] = granted(index)
            workers[index] = start(index)
    finally:
        for worker in workers:
            end(worker)
    assert [worker.exitcode for worker in workers] == [-signal.SIGKILL] * WORKERS
    told = sum(log.stat().st_size for log in tmp_path.glob("log *"))
    store = SQLiteStore(path, timeout_s=10.0)
    in_ledger = charged(store)
    store.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert told > 100
    assert told <= in_ledger <= told + lives  # each may have died between the grant and the word
