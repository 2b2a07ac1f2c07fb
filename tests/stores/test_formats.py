"""Two versions on one store: the newer one converts what is there, the older one stops, in every mode, and says what to do."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import paceline
from paceline.core.quota import Quota
from paceline.core.results import StoreFormatError
from paceline.stores.redis import KEYS, RedisStore
from paceline.stores.redis_wire import NEWER, decode, encode, quota_lines, script
from paceline.stores.sqlite import FORMAT, SQLiteStore
from shared_pools import message_of

QUOTAS = (Quota("requests", 600.0),)
MODES = ["fail_safe", "fail_closed", "fail_open"]


def message(who, number, count):
    return message_of(who, number, QUOTAS, [-1], headroom_s=0.0, wants=[[1.0]] * count)


class InRedis:
    """The store, and a process of the next version."""

    newer = script().replace("local FORMAT = 4 ", "local FORMAT = 5 ")

    def __init__(self, server):
        assert self.newer != script()
        self._server = server
        self.store = RedisStore(server.url)

    def exchange(self, told):
        return decode(self.call(self.newer, told), told)

    def call(self, text, told):
        key = self.store.key("jobs")
        with self._server.client(decode_responses=False) as client:
            keys = [key, *(key + name for name in KEYS)]
            return client.eval(text, len(keys), *keys, encode(told), quota_lines(told.known.quotas))


class InSQLite:
    def __init__(self, path):
        self._path = path
        self.store = SQLiteStore(path)

    def exchange(self, told):
        """As the next version would leave it: the format is a number beside the ledger."""
        reply = self.store.exchange("jobs", told)
        with closing(sqlite3.connect(self._path)) as database, database:
            database.execute("UPDATE pools SET format = ?, revision = revision + 1", (FORMAT + 1,))
        return reply


@pytest.fixture(params=["redis", "sqlite"])
def shared(request, tmp_path):
    made = (
        InSQLite(tmp_path / "q.db") if request.param == "sqlite" else InRedis(request.getfixturevalue("redis_server"))
    )
    yield made
    made.store.close()


def test_the_older_one_is_told_and_changes_nothing(shared):
    shared.store.exchange("jobs", message("old", 1, 100))
    assert shared.exchange(message("new", 1, 50)).standings[0].spent == 150
    for number in (2, 3):
        with pytest.raises(StoreFormatError, match="newer paceline: update this one"):
            shared.store.exchange("jobs", message("old", number, 100))


def test_a_script_of_format_3_stops_because_it_needs_sets_of_quotas_in_the_state(redis_server):
    shared = InRedis(redis_server)
    shared.store.exchange("jobs", message("new", 1, 1))
    older, told = script().replace("local FORMAT = 4 ", "local FORMAT = 3 "), message("old", 1, 1)
    assert older != script()
    assert shared.call(older, told)[0] == NEWER
    shared.store.close()


def test_the_page_names_the_formats():
    in_redis = re.search(r"local FORMAT = (\d+) ", script())[1]
    page = (Path(__file__).parents[2] / "docs/stores.md").read_text(encoding="utf-8")
    assert f"The format of this version is {in_redis} in Redis and {FORMAT} in SQLite" in page


def test_the_newer_one_goes_on_with_what_was_used_and_without_the_processes(redis_server):
    shared = InRedis(redis_server)
    shared.store.exchange("jobs", message("old", 1, 100))
    reply = shared.exchange(message("new", 1, 50))
    assert (reply.standings[0].spent, reply.peers) == (150, 1)
    reply = shared.exchange(message("another", 1, 50))
    assert (reply.standings[0].spent, reply.peers) == (200, 2)
    shared.store.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_limiter_of_the_older_one_stops_in_every_mode(shared, mode, caplog):
    limiter = paceline.Limiter({"jobs": "600 requests/min"}, store=shared.store, on_store_failure=mode, headroom_s=0.0)
    limiter.acquire("jobs").wait().settle()
    shared.exchange(message("new", 1, 1))
    for _ in range(4):
        with pytest.raises(paceline.StoreError, match="written by a newer paceline: update this one"):
            limiter.acquire("jobs").wait()
    status = limiter.status()["pools"]["jobs"]
    assert status["counts"]["granted"] == 1
    assert status["store"]["state"] == "stopped"
    assert status["store"]["reason"].endswith("written by a newer paceline: update this one")
    limiter.close()
    assert sum("newer paceline" in record.getMessage() for record in caplog.records) == 1


def test_a_run_sends_nothing_also_where_no_store_was_named(monkeypatch, tmp_path):
    from paceline.batch import job
    from paceline.config import Config

    class Named:
        """A store that a newer version uses."""

        url = "sqlite:state.db"

        def exchange(self, *_):
            raise StoreFormatError("sqlite:state.db: written by a newer paceline")

    monkeypatch.setattr(job, "choose_store", lambda *_: Named())
    environ = {"OPENAI_API_KEY": "sk-secret"}
    config = Config.load(environ=environ, given={"provider": "openai"})
    one = job.Job(str(tmp_path / "in.jsonl"), config=config, environ=environ)
    with pytest.raises(paceline.StoreError, match="newer paceline; nothing has been sent"):
        one.store(["openai/gpt-5"], {}, None)
