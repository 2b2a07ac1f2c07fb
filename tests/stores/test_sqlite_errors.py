"""What may be wrong with a file: each time the error names it, says what happened and what would be right."""
# ruff: noqa: F811 - fixtures are imported

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sqlite3
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from test_sqlite_store import DAILY, by_hand, charged, opened, path, take  # noqa: F401

from paceline.stores import StoreError, open_store
from paceline.stores.sqlite import APPLICATION_ID, FORMAT, SQLiteStore
from paceline.testing import ManualClock
from shared_pools import message_of
from waits import BOUND_S

NOBODY = 65_534


def fails(store: SQLiteStore, saying: str) -> str:
    """An exchange gives an error that names the file and says this."""
    with pytest.raises(StoreError, match=saying) as raised:
        take(store)
    assert str(raised.value).startswith(store.url + ": ")
    return str(raised.value)


homes = pytest.mark.skipif(os.name == "nt", reason="each name has a home folder there")


class Time:
    """Goes on only while a thread sleeps."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class TestArguments:
    @pytest.mark.parametrize(
        ("url", "says"),
        [
            ("sqlite:", "sqlite: has no path: write 'sqlite:PATH'"),
            ("sqlite:q.db?lost=open", "a SQLite URL has no options: write 'sqlite:PATH'; on_store_failure and lease_s"),
            ("sqlite:q.db?lease_s=1", "on_store_failure and lease_s are arguments"),
            ("sqlite:q.db?prefix=a", "a prefix is given with Prefixed(open_store("),
            ("sqlite:q.db?", "a SQLite URL has no options: write 'sqlite:PATH'"),
            ("sqlite::memory:", "write 'memory:'"),
            ("sqlite:///:memory:", "write 'memory:'"),
            pytest.param("sqlite:~no-such-user/q.db", "this home folder is unknown: write the whole path", marks=homes),
            ("sqlite:q\0.db", "zero byte"),
        ],
    )
    def test_what_cannot_be_meant(self, tmp_path, monkeypatch, url, says):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(StoreError, match=re.escape(says)):
            open_store(url)
        assert not list(tmp_path.iterdir())

    def test_a_name_that_no_file_can_hold(self, opened):
        store = opened()
        fails_for = re.escape("the name of pool 'a\\ud800' contains half of a surrogate pair: rename it")
        with pytest.raises(StoreError, match=fails_for):
            take(store, "a\ud800")
        take(store, "a")

    @pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf")])
    def test_a_timeout_is_above_nothing(self, path, timeout_s):
        with pytest.raises(StoreError, match=r"timeout_s of sqlite:.*books.db is .* above 0"):
            SQLiteStore(path, timeout_s=timeout_s)


class TestLocked:
    """For longer than the timeout, which is for all of an exchange."""

    @pytest.mark.parametrize("known", [True, False])
    def test_by_another_process(self, opened, path, known, monkeypatch):
        virtual = Time()
        monkeypatch.setattr("paceline.stores.sqlite.time", virtual)
        store = opened(timeout_s=0.2, clock=ManualClock())
        if known:
            take(store)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            fails(store, r"locked by another process for longer than the timeout of 0\.2 s: check whether")
            assert 0.2 <= virtual.now_s < 0.201
            other.execute("ROLLBACK")
        take(store, number=2)
        assert charged(store) == 1 + known

    def test_while_others_write_it_is_waited_for_longer_and_not_without_end(self, opened, path, monkeypatch):
        class Busy(Time):
            """Another process writes each tenth of a second, and has the lock otherwise."""

            until_s = 3.0

            def sleep(self, _: float) -> None:
                self.now_s += 0.1
                other.execute("INSERT INTO pools VALUES (?, 3, 1, 0, '')", (str(self.now_s),))
                other.execute("COMMIT")
                if self.now_s < self.until_s:
                    other.execute("BEGIN IMMEDIATE")

        store = opened(timeout_s=1.0, clock=ManualClock())
        take(store)
        virtual = Busy()
        monkeypatch.setattr("paceline.stores.sqlite.time", virtual)
        store._open = store._open._replace(since_s=0.0)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            take(store, number=2)
            assert 3 <= virtual.now_s < 3.2
            virtual.now_s, virtual.until_s = 10.0, 99.0
            store._open = store._open._replace(since_s=10.0)
            other.execute("BEGIN IMMEDIATE")
            fails(store, "locked")
            assert 15 <= virtual.now_s < 16

    def test_by_another_thread(self, opened):
        store = opened(timeout_s=0.1)
        take(store)
        with ThreadPoolExecutor(1) as other:
            other.submit(store._lock.acquire).result(BOUND_S)
            fails(store, "locked")
            other.submit(store._lock.release).result(BOUND_S)
        take(store, number=2)


@pytest.mark.skipif(os.name == "nt", reason="another system's rights")
class TestRights:
    @pytest.fixture
    def folder(self):
        """A folder of the user that the test runs as: nobody, where that is not root."""
        folder = Path(tempfile.mkdtemp())
        root = os.geteuid() == 0
        if root:
            os.chown(folder, NOBODY, -1)
            os.seteuid(NOBODY)
        yield folder
        if root:
            os.seteuid(0)
        folder.chmod(0o700)
        shutil.rmtree(folder)

    @pytest.mark.parametrize("rights", [0o400, 0o200, 0])
    def test_a_file_that_cannot_be_read_and_written(self, opened, folder, rights):
        store = opened(folder / "books.db")
        take(store)
        store.close()
        (folder / "books.db").chmod(rights)
        fails(store, "cannot be written: this user needs to read and write the file and its folder")
        (folder / "books.db").chmod(0o600)
        assert charged(store) == 1

    def test_a_folder_that_cannot_be_written(self, opened, folder):
        store = opened(folder / "books.db")
        take(store)
        store.close()
        folder.chmod(0o500)
        fails(store, "cannot be written: this user needs to read and write the file and its folder")
        fails(opened(folder / "new.db"), r"cannot be made \(Permission denied\): give a path where this user may write")
        fails(opened(folder / "new" / "books.db"), r"cannot be made \(Permission denied\)")


class TestNotOurs:
    @pytest.mark.parametrize("text", ["hello\n", "It was a dark and stormy night. " * 500])
    def test_no_database(self, opened, path, text):
        path.write_text(text)
        fails(opened(), "is no database: give another path, or delete it")
        assert path.read_text() == text

    def test_a_folder_and_a_file_where_its_folder_should_be(self, opened, path):
        fails(opened(path.parent), "is a folder: give the path of a file in it")
        path.write_text("hello")
        fails(opened(path / "books.db"), "cannot be made")

    @pytest.mark.parametrize(
        ("owner", "version", "says"),
        [
            *((0, version, "another program's database: give another path") for version in (0, FORMAT, 7)),
            (APPLICATION_ID, FORMAT + 1, "newer paceline: update this one"),
        ],
    )
    def test_another_programs_database_and_a_newer_format(self, opened, path, owner, version, says):
        by_hand(path, "CREATE TABLE pools (depth REAL)")
        by_hand(path, f"PRAGMA user_version = {version}")
        by_hand(path, f"PRAGMA application_id = {owner}")
        before = path.read_bytes()
        fails(opened(), says)
        assert path.read_bytes() == before
        assert len(list(path.parent.iterdir())) == 1

    def test_an_older_ledger_is_read_without_its_processes(self, opened, path):
        take(opened())
        ((state,),) = by_hand(path, "SELECT state FROM pools")
        state = json.loads(state) | {"peers": {"a": [1, 1, [0.0], 0.5, 0, 0.0]}, "places": []}
        by_hand(path, "UPDATE pools SET format = 1, revision = revision + 1, state = ?", json.dumps(state))
        assert take(opened()).standings[0].charged == 2 * state["accounts"][0]["charged"]


def test_a_full_disk_loses_nothing(opened, path):
    store = opened()
    take(store)
    store._open.connection.execute("PRAGMA max_page_count = 4")
    many = message_of("b" * 50_000, 1, (DAILY,), [0], headroom_s=0.0, wants=[[1.0]])
    with pytest.raises(StoreError, match=re.escape(f"sqlite:{path}: its disk is full: free some space")):
        store.exchange("pool", many)
    assert charged(store) == 1
    assert len(store.exchange("pool", many).grants) == 1  # the store can write again
    assert charged(opened()) == 2


class TestDamage:
    @pytest.mark.parametrize(
        "state",
        ["", "{", "null", "[]", "{}", '{"last": 0}', '{"last": 0, "accounts": [{}]}', '{"last": 0, "accounts": 5}'],
    )
    def test_an_unreadable_ledger(self, opened, path, state):
        store = opened()
        take(store)
        take(store, "other")
        by_hand(path, "UPDATE pools SET state = ?, revision = revision + 1 WHERE name = 'pool'", state)
        for _ in range(2):
            assert "stop the processes that use it and delete it" in fails(
                store, "the ledger of pool 'pool' cannot be read"
            )
        assert charged(store, "other") == 1
        store.close()  # as the advice says: Windows deletes no file that is open
        path.unlink()
        take(store)

    def test_a_file_that_is_damaged(self, opened, path):
        store = opened()
        for number in range(200):
            take(store, f"pool {number}")
        store.close()
        data = bytearray(path.read_bytes())
        data[4_096:] = os.urandom(len(data) - 4_096)
        path.write_bytes(data)
        assert "delete it" in fails(opened(), "is damaged: stop the processes that use it")

    def test_a_table_that_is_gone(self, opened, path, monkeypatch):
        monkeypatch.setattr("paceline.stores.sqlite.REOPEN_S", math.inf)  # a new connection would make it again
        store = opened()
        take(store)
        by_hand(path, "DROP TABLE pools")
        fails(store, "cannot be used: give another path, or stop")
        take(store)  # made again

    @pytest.mark.parametrize("old", [False, True], ids=["at once", "after the time for which a connection is used"])
    @pytest.mark.parametrize(
        ("suffix", "start", "end"),
        [("", 0, 100), ("", 0, 12_288), ("-wal", 0, 100_000)],
        ids=["its first bytes", "all of it", "its log"],
    )
    def test_a_file_that_is_damaged_is_so_for_all(self, opened, path, monkeypatch, suffix, start, end, old):
        """The store that wrote last would go on with what its connection has in memory."""
        first, last = opened(), opened()
        for number in (1, 2):
            take(first, who="first", number=number)
            take(last, who="last", number=number)
        with Path(f"{path}{suffix}").open("r+b") as file:  # this ends the locks of this process, too
            size = file.seek(0, os.SEEK_END)
            file.seek(start)
            file.write(b"\xa5" * (min(end, size) - start))
        if not old:
            take(last, who="last", number=3)
            return
        monkeypatch.setattr("paceline.stores.sqlite.REOPEN_S", 0.0)
        for store in (last, first, opened()):
            fails(store, "is no database|is damaged")
