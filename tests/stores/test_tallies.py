"""Sums beside a store, to which processes add."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from memory_store import MemoryStore
from paceline.limiter.limiter import Limiter
from paceline.limiter.tally import FIELDS, Tally
from paceline.providers.base import Usage
from paceline.stores import Prefixed, StoreError, open_store
from paceline.stores.redis import RedisStore
from paceline.stores.sqlite import SQLiteStore
from paceline.stores.tallies import KEEP_DAYS, OwnTallies, SQLiteTallies, tallies_beside, today

DAY = 20_000


@pytest.fixture
def store(store):
    with closing(open_store(store, timeout_s=5.0)) as made:
        yield made


def test_all_processes_have_rows(store):
    one, other = tallies_beside(store), tallies_beside(Prefixed(store, "a"))
    assert one.read(0, DAY) == {}
    rows = {(DAY, "a/b", "1"): [1, 0.25], (DAY - 1, "é", "1"): [2, 0.5]}
    assert one.tell(rows) == [0, 0]
    assert other.tell({(DAY, "a/b", "2"): [10, 0.1], (DAY - 1, "é", "1"): [1, 0.25]}) == [0, 2]  # an earlier state
    rows[DAY, "a/b", "2"] = [10, 0.1]
    assert one.read(DAY - 1, DAY) == other.read(0, DAY) == rows
    rows[DAY, "a/b", "1"] = [3, 0.75]
    assert one.tell(rows) == [1, 2, 10]
    assert one.tell(rows) == [3, 2, 10]
    assert one.read(0, DAY) == rows
    assert {row[2] for row in one.read(DAY, DAY)} == {"1", "2"}


def test_redis_forgets_old_days_and_what_is_not_used(redis_server):
    store = RedisStore(redis_server.url, timeout_s=5.0)
    tallies = tallies_beside(store)
    tallies.tell({(DAY, "a", "1"): [2.0]})
    tallies.tell({(DAY + KEEP_DAYS, "a", "1"): [1.0]})
    assert tallies.read(0, DAY + KEEP_DAYS) == {(DAY + KEEP_DAYS, "a", "1"): [1.0]}
    assert all(redis_server.ask("PTTL", key) > 0 for key in redis_server.ask("KEYS", "*"))
    redis_server.ask("DEL", "paceline:usage:{/}:days")  # evicted alone
    assert tallies.tell({(DAY + KEEP_DAYS, "a", "1"): [1.0]}) == [0.0]
    assert len(tallies.read(0, DAY + KEEP_DAYS)) == 1
    store.close()


def test_sqlite_keeps_all_or_nothing(tmp_path):
    tallies = SQLiteTallies(tmp_path / "quotas.db", timeout_s=0.05)
    tallies.tell({(DAY, "a", "1"): [1.0]})
    with sqlite3.connect(tmp_path / "quotas.db.usage", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked"):
            tallies.tell({(DAY, "a", "1"): [2.0]})
        other.execute("ROLLBACK")
    other.close()
    with pytest.raises(IndexError):
        tallies.tell({(DAY, "b", "1"): [1.0], (DAY, "a", "1"): []})
    assert tallies.read(0, DAY) == {(DAY, "a", "1"): [1.0]}


class TestALostPlace:
    """What several processes have counted, in a place that forgets."""

    @pytest.fixture
    def limiter(self):
        with Limiter({"*": "1 requests/s"}) as limiter:
            yield limiter

    def tally(self, limiter, store):
        return Tally(limiter, lambda lane: lane, tallies_beside(store))

    def lose(self, store):
        if isinstance(store, SQLiteStore):
            for file in Path(store.url.removeprefix("sqlite:")).parent.glob("*.usage*"):
                file.unlink()
        else:
            store.run_script("redis.call('FLUSHALL')", ["any"])

    def used(self, tally):
        return {name: row["requests"] for name, row in tally.report(None)["keys"].items()}

    def test_is_told_all_of_them_once(self, limiter, store, monkeypatch):
        monkeypatch.setattr("paceline.limiter.tally.ROWS_TOLD", 2)
        before, one, other = (self.tally(limiter, store) for _ in range(3))
        for name in "abcde":
            before.count(name, "vllm", "m", Usage(input_tokens=1))
        before.end()
        one.count("a", "vllm", "m", Usage(input_tokens=1))
        other.count("a", "vllm", "m", Usage(input_tokens=1))
        expected = {"a": 3, "b": 1, "c": 1, "d": 1, "e": 1}
        for tally in (one, other, one):
            tally.flush()
            assert self.used(tally) == expected or tally is one
        for _ in range(2):
            self.lose(store)
            one.count("f", "vllm", "m", Usage(input_tokens=1))
            expected["f"] = expected.get("f", 0) + 1
            for tally in (one, other, one, other):
                assert self.used(tally) in (expected, {**expected, "a": 2})  # until the other one tells its own
            assert self.used(one) == self.used(other) == expected
        other.count("a", "vllm", "m", Usage(input_tokens=1))
        other.end()
        assert self.used(one) == {**expected, "a": 4}

    def test_is_told_them_by_one_that_has_nothing_new_or_nothing_at_all(self, limiter, store):
        tally = self.tally(limiter, store)
        tally.count("a", "vllm", "m", Usage(input_tokens=1))
        tally.flush()
        self.lose(store)
        assert self.used(tally) == {"a": 1}
        tally.end()
        later = self.tally(limiter, store)
        later.flush()
        for _ in range(2):
            self.lose(store)
            assert self.used(later) == {"a": 1}

    def test_that_keeps_nothing_is_left_alone(self, limiter):
        class Sieve(OwnTallies):
            def tell(self, rows):
                told.append(len(rows))
                return [0.0] * len(rows)

        told = []
        tally = Tally(limiter, lambda lane: lane, Sieve())
        tally.count("a", "vllm", "m", Usage(input_tokens=1))
        for _ in range(2):
            tally.flush()
        assert told == [2, 1, 2]  # each with the witness

    def test_memory_is_bounded(self, limiter, monkeypatch):
        monkeypatch.setattr("paceline.limiter.tally.ROWS_MAX", 2)
        kept = OwnTallies()
        kept.tell({(today() - ago, name, "1"): [1.0] * len(FIELDS) for ago in (0, 50) for name in "xyz"})
        tally = Tally(limiter, lambda lane: lane, kept)
        for _ in range(3):
            tally.count("a", "vllm", "m", Usage(input_tokens=1))
            tally.flush()
        assert len(tally._remembered._rows) == 2
        assert self.used(tally)["a"] == 3


def test_without_a_place_they_are_of_this_process():
    tallies = tallies_beside(MemoryStore())
    assert isinstance(tallies, OwnTallies)
    tallies.tell({(DAY, "a", "1"): [1.0]})
    tallies.tell({(DAY + KEEP_DAYS, "a", "1"): [1.0]})
    assert tallies.read(0, 2 * DAY) == {(DAY + KEEP_DAYS, "a", "1"): [1.0]}
