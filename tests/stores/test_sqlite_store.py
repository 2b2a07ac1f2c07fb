"""One file for all processes of a machine: what stays, who may read it, and what a fork does."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import types
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.core.quota import NS, Quota, Rule
from paceline.shared.ledger import SharedLedger
from paceline.shared.messages import StoreReply
from paceline.stores import Prefixed, StoreError, sqlite
from paceline.stores.sqlite import SQLiteStore
from paceline.testing import ManualClock
from programs import python
from shared_pools import message_of

DAILY = Quota("requests", 100_000, 86_400.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "books.db"


@pytest.fixture
def opened(path):
    """Open stores that are closed when the test ends."""
    with ExitStack() as stores:
        yield lambda where=path, **options: stores.enter_context(closing(SQLiteStore(where, **options)))


def test_a_ping_needs_the_right_to_write_and_leaves_nothing(opened, path):
    store = opened(timeout_s=0.05)
    Prefixed(store, "a").ping()
    assert by_hand(path, "SELECT count(*) FROM pools") == [(0,)]
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked by another process"):
            store.ping()
    store.ping()


def by_hand(path: Path, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Do something with a file as another program would."""
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute(statement, values).fetchall()
        database.commit()
    return rows


def take(store: SQLiteStore, pool: str = "pool", who: str = "a", number: int = 1) -> StoreReply:
    """One request: granted."""
    reply = store.exchange(pool, message_of(who, number, (DAILY,), [0], headroom_s=0.0, wants=[[1.0]]))
    assert len(reply.grants) == 1
    return reply


def charged(store: SQLiteStore, pool: str = "pool", quota: Quota = DAILY) -> float:
    return store.exchange(pool, message_of("reader", 0, (quota,), [0])).standings[0].charged


ODD = "memory" if os.name == "nt" else ":memory:"  # a name has no colon there


class TestTheFile:
    def test_a_path_is_where_it_was_said(self, opened, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for name in ("HOME", "USERPROFILE"):  # of Windows
            monkeypatch.setenv(name, str(tmp_path / "home"))
        here, home, odd = opened("books.db"), opened("~/books.db"), opened(ODD)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        for store in (here, home, odd):
            take(store)
        for name in ("books.db", "home/books.db", ODD):
            assert (tmp_path / name).is_file()

    def test_nothing_is_opened_before_its_first_use(self, opened, path):
        store = opened()
        assert not path.exists()
        take(store)
        assert path.exists()

    @pytest.mark.skipif(os.name == "nt", reason="another system's rights")
    def test_nobody_else_may_read_it(self, opened, tmp_path):
        path = tmp_path / "new" / "folder" / "books.db"
        take(opened(path))
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600

    @pytest.mark.skipif(os.name == "nt", reason="another system's rights")
    def test_a_folder_that_is_there_stays_as_it_is(self, opened, tmp_path):
        tmp_path.chmod(0o750)
        take(opened())
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o750

    def test_it_is_one_file_that_does_not_grow(self, opened, path):
        store = opened()
        for number in range(1, 2_001):
            take(store, number=number)
        assert path.with_name("books.db-wal").stat().st_size < 8_000_000
        store.close()
        assert [file.name for file in path.parent.iterdir()] == ["books.db"]
        assert path.stat().st_size < 100_000

    @pytest.mark.skipif(os.name == "nt", reason="an open file cannot be deleted there")
    def test_a_file_that_was_deleted_is_made_again(self, opened, path):
        store, other = opened(), opened()
        take(store)
        take(other, who="b")
        path.unlink()
        assert take(store, number=2).standings[0].charged == 1
        assert take(other, who="b", number=2).standings[0].charged == 2

    def test_pools_that_nobody_uses_are_thrown_away(self, clock, opened):
        store = opened(clock=clock)
        take(store, "old")
        clock.advance(60 * 86_400)
        take(store, "new")
        clock.advance(31 * 86_400)
        store.close()
        later = opened(clock=clock)
        assert charged(later, "new") == 1
        assert charged(later, "old") == 0


class TestBooks:
    def test_they_are_read_again_only_when_others_wrote(self, opened, monkeypatch):
        loads = []
        load = SharedLedger.load
        monkeypatch.setattr(SharedLedger, "load", lambda state: loads.append(1) or load(state))
        one, two = opened(), opened()
        for number in range(1, 6):
            take(one, number=number)
        assert loads == []
        assert take(two, who="b").standings[0].charged == 6
        assert take(one, number=6).standings[0].charged == 7
        assert len(loads) == 2

    def test_who_does_not_report_has_ended_and_takes_nothing_along(self, clock, opened):
        store, minute = opened(clock=clock), (Quota("requests", 60.0),)
        for who, wants in (("a", [[60.0]]), ("b", [[10.0]])):
            reply = store.exchange("pool", message_of(who, 1, minute, [-1], headroom_s=0.0, wants=wants, place_ns=NS))
        assert (reply.grants, reply.wait_ns) == ([], 10 * NS)
        for number in (1, 2, 3, 4):
            clock.advance(5)
            wants = [[20.0]] if number == 4 else []
            reply = store.exchange("pool", message_of("c", number, minute, [-1], headroom_s=0.0, wants=wants))
        assert len(reply.grants) == 1  # b has not spent its share meanwhile

    def test_what_failed_half_way_did_not_happen(self, opened):
        store = opened()
        take(store)
        with pytest.raises(TypeError):  # its second request means nothing
            store.exchange("pool", message_of("a", 2, (DAILY,), [0], wants=[[1.0], ["two"]]))
        take(store, number=3)
        assert charged(opened()) == 2

    def test_the_clock_is_read_when_nobody_else_can_come_between(self, opened):
        class Clock(ManualClock):
            def now_ns(self):
                reads.append(store._open.connection.in_transaction)
                return super().now_ns()

        reads: list[bool] = []
        store = opened(clock=Clock())
        take(store)
        take(store, number=2)
        assert len(reads) >= 2
        assert all(reads)


@pytest.mark.skipif(os.name == "nt", reason="a process cannot be asked for there without a right to it")
@pytest.mark.parametrize("lives", [False, True])
def test_one_that_was_killed_takes_no_share_along_after_a_time_without_messages(opened, lives):
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    store = opened(clock=(clock := ManualClock()))
    daily = replace(DAILY, rule=Rule.WINDOW)
    wants = {"quotas": (daily,), "versions": [0], "headroom_s": 0.0}
    store.exchange(
        "pool",
        message_of(f"here:{os.getpid() if lives else killed.pid}:a", 1, wants=[[100_001.0]], place_ns=NS, **wants),
    )
    clock.advance(20)
    asked = message_of(f"here:{os.getpid()}:b", 1, wants=[[90_000.0]], place_ns=NS, **wants)
    assert len(store.exchange("pool", asked).grants) == (not lives)


OUTLIVES_ITS_PARENTS_STORE = """
import os, sys, warnings
warnings.simplefilter("ignore")
sys.path[:0] = {tests!r}
from test_sqlite_store import SQLiteStore, charged, take

path = sys.argv[1]
store = SQLiteStore(path, timeout_s=10.0)
take(store)
(from_child, to_parent), (from_parent, to_child) = os.pipe(), os.pipe()
pid = os.fork()
if not pid:
    store.after_fork()
    assert store._open is None
    take(store, who="b")
    os.write(to_parent, b"x")
    os.read(from_parent, 1)
    take(store, who="b", number=2)
    store.close()
    os._exit(0)
os.read(from_child, 1)
take(store, number=2)
store.close()  # while the child has it open
os.write(to_child, b"x")
assert os.waitpid(pid, 0)[1] == 0
assert charged(SQLiteStore(path)) == 4, charged(SQLiteStore(path))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_forked_child_opens_its_own(path):
    code = OUTLIVES_ITS_PARENTS_STORE.format(tests=[str(folder) for folder in Path(__file__).parents[:2]])
    assert python(code, path) == ""
    assert by_hand(path, "PRAGMA integrity_check") == [("ok",)]


class TestTheWallClock:
    """It may be set while processes run; what has elapsed is told by the clock of the machine since its start."""

    MINUTE = Quota("requests", 60.0)
    HOUR_NS = 3_600 * NS

    @pytest.fixture
    def times(self, monkeypatch):
        class Times:
            wall_ns, elapsed_ns = 1_790_000_000 * NS, 1_000 * NS

            def pass_by(self, seconds):
                self.wall_ns += seconds * NS
                self.elapsed_ns += seconds * NS

        times = Times()
        monkeypatch.setattr("paceline.stores.sqlite.time.time_ns", lambda: times.wall_ns)
        monkeypatch.setattr("paceline.stores.sqlite.elapsed_ns", lambda: times.elapsed_ns)
        return times

    def grants(self, store, number):
        message = message_of("a", number, (self.MINUTE,), [-1], headroom_s=0.0, wants=[[1.0]] * 100)
        return len(store.exchange("pool", message).grants)

    @pytest.mark.parametrize("again", [False, True], ids=["open", "opened again"])
    @pytest.mark.parametrize("by_ns", [HOUR_NS, -HOUR_NS, 2 * NS])
    def test_a_step_of_it_refills_nothing(self, opened, times, by_ns, again):
        store = opened()
        assert self.grants(store, 1) == 60
        times.pass_by(5)
        times.wall_ns += by_ns
        store = opened() if again else store
        assert self.grants(store, 2) == 5
        times.pass_by(3)
        assert self.grants(store, 3) == 3

    def test_it_may_go_to_and_fro(self, opened, times):
        store, granted = opened(), 0
        assert self.grants(store, 1) == 60
        for number in range(2, 42):
            times.wall_ns += (NS if number % 2 else -NS) * 9 // 10
            times.pass_by(1) if number % 4 == 0 else None
            granted += self.grants(store, number)
        assert granted == 10

    @pytest.mark.parametrize("days", [91, 20_000])
    def test_a_large_step_deletes_nothing(self, opened, times, days):
        daily = {
            name: message_of("a", 1, (DAILY,), [-1], headroom_s=0.0, wants=[[40_000.0]]) for name in ("one", "two")
        }
        store = opened()
        for name, message in daily.items():
            assert len(store.exchange(name, message).grants) == 1
        times.wall_ns += days * 86_400 * NS
        store = opened()
        for name, message in daily.items():
            assert store.exchange(name, replace(message, number=2)).standings[0].charged == 80_000
            store = opened()
        times.pass_by(91 * 86_400)
        assert charged(opened(), "one") == 80_000
        assert by_hand(store._path, "SELECT name FROM pools") == [("one",)]

    @pytest.mark.parametrize("named", [False, True], ids=["ran for a shorter time", "ran longer, and has a name"])
    def test_after_a_new_start_of_the_machine_it_is_believed(self, opened, times, monkeypatch, named):
        assert self.grants(opened(), 1) == 60
        if named:
            monkeypatch.setattr(sqlite, "_boot", lambda: "the second start")
        times.wall_ns, times.elapsed_ns = times.wall_ns + self.HOUR_NS, named * times.elapsed_ns + 20 * NS
        assert self.grants(opened(), 2) == 60


def test_the_start_of_a_machine_has_a_name(monkeypatch):
    """Without it, a machine that has run for longer than before its last start seems to be the same one, with another clock."""
    boot = sqlite._boot.__wrapped__
    monkeypatch.setattr(sys, "platform", "darwin")
    asked = types.SimpleNamespace(sysctlbyname=lambda name, buffer, *_: setattr(buffer, "value", b"0A-1B" + name[:4]))
    monkeypatch.setattr("ctypes.CDLL", lambda _: asked)
    assert boot() == "0A-1Bkern"
    monkeypatch.setattr("ctypes.CDLL", lambda _: types.SimpleNamespace())
    assert boot() == ""
    values = {"OpenKey": lambda *_: nullcontext(), "QueryValueEx": lambda *_: (17, 4)}
    registry = types.SimpleNamespace(HKEY_LOCAL_MACHINE=0, **values)
    monkeypatch.setitem(sys.modules, "winreg", registry)
    monkeypatch.setattr(sys, "platform", "win32")
    for clock in ("GetTickCount64()", "QueryPerformanceCounter()"):  # of Python 3.12 and of 3.13
        monkeypatch.setattr("time.get_clock_info", lambda _, name=clock: types.SimpleNamespace(implementation=name))
        assert boot() == f"17 {clock}"
    registry.OpenKey = lambda *_: Path("no such key").stat()
    assert boot() == clock
