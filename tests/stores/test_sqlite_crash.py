"""Processes that are killed at any instant: the ledger has all grants, and stays valid."""

from __future__ import annotations

import random
import signal
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from crew import BOUND_S, end, forks, receive
from test_sqlite_store import charged, take
from worker import AMPLE, take_until_killed

from paceline.stores import StoreError, sqlite
from paceline.stores.sqlite import SQLiteStore
from systems import unless_wine
from waits import until

WORKERS, KILLS = 4, 8
KILLED = -getattr(signal, "SIGKILL", signal.SIGTERM)  # as multiprocessing tells of a process that Windows has ended


@unless_wine("its processes take longer to start than the test waits for a grant")
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
            assert workers[index].exitcode == KILLED
            before[index] = granted(index)
            workers[index] = start(index)
    finally:
        for worker in workers:
            end(worker)
    assert [worker.exitcode for worker in workers] == [KILLED] * WORKERS
    told = sum(log.stat().st_size for log in tmp_path.glob("log *"))
    store = SQLiteStore(path, timeout_s=60.0)
    in_ledger = charged(store, quota=AMPLE)
    store.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert told > 100
    assert told <= in_ledger <= told + lives  # each may have died between the grant and the word


def take_when_told(path, who, connection):
    """One request for each message, which says for how long a connection is used; the reply: what went wrong, if any."""
    store, number = SQLiteStore(path, timeout_s=60.0), 0
    while (reopen_s := connection.recv()) is not None:
        sqlite.REOPEN_S, number = reopen_s, number + 1
        try:
            take(store, who=who, number=number)
        except StoreError as error:
            connection.send(str(error))
        else:
            connection.send(None)
    store.close()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.write_bytes(b"hello, world\n" * 2_000), "is no database"),
        pytest.param(
            lambda path: [Path(f"{path}{suffix}").unlink() for suffix in ("-wal", "-shm")],
            None,
            marks=pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be deleted there"),
        ),
    ],
    ids=["written over", "without its log"],
)
def test_all_processes_see_the_same_file(tmp_path, damage, says):
    path, processes, pipes = tmp_path / "books.db", [], []

    def start():
        ours, theirs = forks.Pipe()
        processes.append(forks.Process(target=take_when_told, args=(path, f"worker {len(pipes)}", theirs)))
        processes[-1].start()
        pipes.append(ours)

    def takes(pipe, reopen_s=3_600.0):
        pipe.send(reopen_s)
        return receive(pipe, BOUND_S)

    try:
        for _ in range(2):
            start()
            assert takes(pipes[-1]) is None
        damage(path)
        start()
        assert (takes(pipes[2]) or "").find(says or "") >= 0
        assert takes(pipes[1]) is None  # as if nothing had happened: it would go on so
        said = [takes(pipe, 0.0) for pipe in (*pipes, *pipes)]
        assert all((says in error) if says else error is None for error in said)
        if says is None:  # they charge one ledger
            store = SQLiteStore(path, timeout_s=60.0)
            before = charged(store)
            assert [takes(pipe, 0.0) for pipe in pipes] == [None] * 3
            assert charged(store) == before + 3
            store.close()
    finally:
        for pipe, process in zip(pipes, processes, strict=True):
            end(process)
            pipe.close()
