"""What is said of a Redis that evicts keys, that is a replica, or that has lost what it had."""

import json
import logging
from contextlib import closing

import pytest
from click.testing import CliRunner
from redis_servers import HOST, RedisServer

import paceline
from paceline.cli.app import app
from paceline.stores import Prefixed, StoreError
from paceline.stores.redis import RedisStore
from paceline.stores.redis_health import remarks as read
from waits import carried, until

EVICTS, REPLICA, EMPTY = "it evicts keys", "it is a replica", "it came back empty"
POOLS = {"jobs": "6000 requests/min"}


def limiter_at(url):
    return closing(paceline.Limiter(POOLS, store=url))


def ask(limiter):
    limiter.acquire("jobs").wait().settle(requests=1)


def said(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def doctor(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.environ", {"PATH": "", "HOME": str(tmp_path), "PACELINE_STORE": url})
    done = CliRunner().invoke(app, ["doctor", "--json"])
    return done.exit_code, json.loads(done.stdout)["problems"]


@pytest.fixture(scope="module")
def master():
    with RedisServer("maxmemory 100mb", "maxmemory-policy volatile-lru") as server:
        yield server


def test_the_log_and_the_doctor_name_eviction(master, caplog, tmp_path, monkeypatch):
    for pools in (POOLS, POOLS | {"others": "1 requests/s"}):
        with closing(paceline.Limiter(pools, store=master.url)) as limiter:
            for pool in pools:
                limiter.acquire(pool).wait().settle(requests=1)
    address = f"redis://{HOST}:{master.port}/0"
    text = f"{address}: {EVICTS} when its memory is full (maxmemory-policy volatile-lru)"
    assert [line.startswith(text) for line in said(caplog)] == [True, True]  # once for each limiter
    code, (problem,) = doctor(master.url, tmp_path, monkeypatch)
    assert code == 1
    assert problem.startswith(text)


def test_a_replica_that_takes_writes_is_named(master, caplog, tmp_path, monkeypatch):
    with RedisServer(f"replicaof {HOST} {master.port}", "replica-read-only no") as replica:
        until(lambda: replica.ask("ROLE")[3] == "connected", "a replica that is up to date")
        with limiter_at(replica.url) as limiter:
            ask(limiter)
        (line,) = said(caplog)
        assert REPLICA in line
        assert "role slave" in line
        code, problems = doctor(replica.url, tmp_path, monkeypatch)
        assert (code, [REPLICA in problem for problem in problems]) == (1, [True])


@pytest.mark.parametrize("how", ["FLUSHALL", "restart"])
def test_a_store_that_came_back_empty_is_named(redis_server, caplog, tmp_path, monkeypatch, how):
    monkeypatch.setattr("paceline.shared.contact.LOOK_S", 0.0)
    with limiter_at(redis_server.url) as limiter:
        for _ in range(3):
            ask(limiter)
        until(lambda: redis_server.ask("EXISTS", "paceline:made:{/jobs}"))
        assert carried(limiter.pacer.pools.worker)
        redis_server.restart() if how == "restart" else redis_server.ask("FLUSHALL")
        until(lambda: ask(limiter) or any(EMPTY in line for line in said(caplog)))
    caplog.clear()
    with limiter_at(redis_server.url) as limiter:  # one that joins later
        ask(limiter)
    assert [EMPTY in line for line in said(caplog)] == [True]
    code, problems = doctor(redis_server.url, tmp_path, monkeypatch)
    assert (code, [EMPTY in problem for problem in problems]) == (1, [True])


def test_a_store_that_was_lost_and_came_back_empty_is_named_at_once(redis_server, caplog, monkeypatch):
    monkeypatch.setattr("paceline.shared.contact.LOOK_S", 3_600.0)
    with limiter_at(redis_server.url) as limiter:
        ask(limiter)
        until(lambda: redis_server.ask("EXISTS", "paceline:made:{/jobs}"))
        assert carried(limiter.pacer.pools.worker)
        redis_server.kill()
        until(lambda: ask(limiter) or limiter.status()["pools"]["jobs"]["store"]["state"] == "lost")
        redis_server.restart()
        until(lambda: ask(limiter) or any(EMPTY in line for line in said(caplog)))


def test_a_healthy_one_is_not_mentioned(redis_server, caplog, tmp_path, monkeypatch):
    with limiter_at(redis_server.url) as limiter:
        ask(limiter)
    assert said(caplog) == []
    assert doctor(redis_server.url, tmp_path, monkeypatch) == (0, [])
    with closing(RedisStore(redis_server.url)) as one, closing(RedisStore(redis_server.url)) as other:
        assert one.remarks("p") == one.remarks("p") == other.remarks("p") == []
        redis_server.ask("DEL", "paceline:made:{/p}")
        assert other.remarks("new") == []
        assert [EMPTY in line for line in other.remarks("p")] == [True]
        assert [EMPTY in line for line in one.remarks("p")] == [True]
        lost, now = map(int, (redis_server.ask("HGET", "paceline:made:{/p}", "lost"), 86_400 * 10**6 + 1))
        redis_server.ask("HSET", "paceline:made:{/p}", "lost", lost - now)
        assert one.remarks("p") == []  # a day later
        assert Prefixed(one, "a").remarks("p") == []


def test_who_may_not_ask_is_told_nothing(redis_server):
    with redis_server.user("+@all -info") as url, closing(RedisStore(url)) as store:
        assert store.remarks("p") == []


def test_a_full_server_has_lost_nothing():
    # Less than it needs for itself.
    with (
        RedisServer("maxmemory 1kb", "maxmemory-policy noeviction") as server,
        closing(RedisStore(server.url)) as store,
    ):
        assert [store.remarks("p") for _ in range(2)] == [[], []]


def test_a_cluster_and_sentinels_are_looked_at_where_the_pool_is(redis_cluster, redis_sentinel):
    for door in (redis_cluster.url, redis_sentinel.url):
        with closing(RedisStore(door, timeout_s=5.0)) as store:
            assert [store.remarks(pool) for pool in "abcdef"] == [[]] * 6
            for node in (*redis_cluster.nodes, redis_sentinel.master):
                node.ask("FLUSHALL")
            assert all(EMPTY in store.remarks(pool)[0] for pool in "abcdef")


def test_a_store_that_does_not_answer_is_an_error():
    with closing(RedisStore("redis://127.0.0.1:1")) as store, pytest.raises(StoreError, match="check the address"):
        store.remarks("p")


@pytest.mark.parametrize(("memory", "replication", "found"), [
    ("maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n", "role:master\r\n", []),
    ("maxmemory:9\r\nmaxmemory_policy:noeviction\r\n", "role:master\r\n", []),
    ("maxmemory:9\r\nmaxmemory_policy:allkeys-random\r\n", "role:active-replica\r\n", [EVICTS, REPLICA]),  # KeyDB
    ("# Memory\r\nused_memory:1\r\n", "", []),
])  # fmt: skip
def test_what_servers_say(memory, replication, found):
    answer = [b"1", b"", b"2", memory.encode(), replication.encode()]
    assert [line.startswith(text) for line, text in zip(read(answer), found, strict=True)] == [True] * len(found)
