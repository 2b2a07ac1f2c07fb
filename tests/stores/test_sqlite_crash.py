"""Processes that are killed at any instant: the ledger has all grants, and stays valid."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from test_sqlite_store import charged

from paceline.stores.sqlite import SQLiteStore

WORKERS, KILLS = 4, 16

WORKER = """
import os, sys
sys.path.insert(0, {tests!r})
from test_sqlite_store import SQLiteStore, take

path, log, name = sys.argv[1:]
store, number, log = SQLiteStore(path, timeout_s=10.0), 0, os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while True:
    number += 1
    take(store, who=name, number=number)
    os.write(log, b".")
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="another system's signals")
def test_what_was_granted_before_a_kill_is_charged(tmp_path):
    path, dice = tmp_path / "books.db", random.Random(7)
    code = WORKER.format(tests=str(Path(__file__).parent))
    lives = 0

    def start(index: int) -> subprocess.Popen[bytes]:
        nonlocal lives
        lives += 1
        arguments = [str(path), str(tmp_path / f"log {index}"), f"worker {lives}"]
        return subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE)

    workers = [start(index) for index in range(WORKERS)]
    try:
        for _ in range(KILLS):
            time.sleep(dice.uniform(0.05, 0.4))
            index = dice.randrange(WORKERS)
            workers[index].kill()
            assert workers[index].wait() == -signal.SIGKILL, workers[index].communicate()
            workers[index].stderr.close()
            workers[index] = start(index)
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    assert [worker.returncode for worker in workers] == [-signal.SIGKILL] * WORKERS
    told = sum(log.stat().st_size for log in tmp_path.glob("log *"))
    store = SQLiteStore(path, timeout_s=10.0)
    in_ledger = charged(store)
    store.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert told > 100
    assert told <= in_ledger <= told + lives  # each may have died between the grant and the word
