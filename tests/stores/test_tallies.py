"""Sums beside a store, to which processes add."""

import sqlite3

import pytest

from paceline.stores import Prefixed, StoreError
from paceline.stores.memory import MemoryStore
from paceline.stores.redis import RedisStore
from paceline.stores.sqlite import SQLiteStore
from paceline.stores.tallies import KEEP_DAYS, OwnTallies, SQLiteTallies, tallies_beside

DAY = 20_000


@pytest.fixture(params=["sqlite", "redis"])
def store(request, tmp_path):
    if request.param == "sqlite":
        made = SQLiteStore(tmp_path / "quotas.db")
    else:
        made = RedisStore(request.getfixturevalue("redis_server").url, timeout_s=5.0)
    yield made
    made.close()


def test_all_processes_add(store):
    one, other = tallies_beside(store), tallies_beside(Prefixed(store, "a"))
    assert one.read(0, DAY) == {}
    one.add({(DAY, "a/b"): [1, 0.25], (DAY - 1, "é"): [2, 0.5]}, 1)
    other.add({(DAY, "a/b"): [10, 0.1]}, 1)
    sums = {(DAY, "a/b"): [11, pytest.approx(0.35)], (DAY - 1, "é"): [2, 0.5]}
    assert one.read(DAY - 1, DAY) == other.read(0, DAY) == sums
    assert one.read(DAY, DAY).keys() == {(DAY, "a/b")}


def test_redis_adds_the_same_news_once(redis_server):
    store = RedisStore(redis_server.url, timeout_s=5.0)
    tallies = tallies_beside(store)
    for number in (1, 1, 2):  # the answer to the first one was lost
        tallies.add({(DAY, "a"): [1.0]}, number)
    assert tallies.read(0, DAY) == {(DAY, "a"): [2.0]}
    tallies.add({(DAY + KEEP_DAYS, "a"): [1.0]}, 3)
    assert tallies.read(0, DAY + KEEP_DAYS) == {(DAY + KEEP_DAYS, "a"): [1.0]}
    assert all(redis_server.ask("PTTL", key) > 0 for key in redis_server.ask("KEYS", "*"))
    store.close()


def test_sqlite_adds_all_or_nothing(tmp_path):
    tallies = SQLiteTallies(tmp_path / "quotas.db", timeout_s=0.05)
    tallies.add({(DAY, "a"): [1.0]}, 1)
    with sqlite3.connect(tmp_path / "quotas.db.usage", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked"):
            tallies.add({(DAY, "a"): [1.0]}, 2)
        other.execute("ROLLBACK")
    other.close()
    with pytest.raises(ValueError, match="zip"):
        tallies.add({(DAY, "b"): [1.0], (DAY, "a"): [1.0, 2.0]}, 2)
    assert tallies.read(0, DAY) == {(DAY, "a"): [1.0]}


def test_without_a_place_they_are_of_this_process():
    tallies = tallies_beside(MemoryStore())
    assert isinstance(tallies, OwnTallies)
    tallies.add({(DAY, "a"): [1.0]}, 1)
    tallies.add({(DAY + KEEP_DAYS, "a"): [1.0]}, 2)
    assert tallies.read(0, 2 * DAY) == {(DAY + KEEP_DAYS, "a"): [1.0]}
