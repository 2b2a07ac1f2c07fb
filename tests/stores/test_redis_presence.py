"""A Redis sees whether a process lives: its share is not kept when it has ended, and is when it has only lost its way."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from redis_servers import RIGHTS, RedisServer

from paceline.core.quota import Quota
from paceline.stores import redis as redis_store
from paceline.stores import redis_presence
from paceline.stores.redis import RedisStore
from shared_pools import message_of
from waits import until

QUOTAS = (Quota("requests", 60.0),)


def seen(server, who="p1"):
    """How many subscriptions the server sees of ``who``."""
    return server.ask("PUBSUB", "NUMSUB", f"paceline:{who}")[1]


def exchange(store, number=1, who="p1"):
    return store.exchange("pool", message_of(who, number, QUOTAS, [-1], wants=[[1.0]]))


@pytest.fixture
def store(redis_server, redis_at):
    return redis_at(redis_server.url)


def test_it_is_seen_after_the_first_exchange_until_the_store_is_closed(redis_server, store):
    exchange(store)
    assert seen(redis_server) == 1
    exchange(store, who="p2")
    assert (seen(redis_server), seen(redis_server, "p2")) == (1, 1)
    store.close()
    until(lambda: (seen(redis_server), seen(redis_server, "p2")) == (0, 0))
    exchange(store, 2)
    assert seen(redis_server) == 1


def test_a_broken_subscription_is_made_again(redis_server, store, monkeypatch):
    monkeypatch.setattr(redis_presence, "LOOK_S", 0.0)
    exchange(store)
    redis_server.ask("CLIENT", "KILL", "TYPE", "pubsub")
    until(lambda: not seen(redis_server))
    exchange(store, 2)
    assert seen(redis_server) == 1


def test_a_new_server_sees_it(redis_server, store, monkeypatch):
    monkeypatch.setattr(redis_presence, "LOOK_S", 0.0)
    monkeypatch.setattr(redis_store, "IDLE_S", 0.0)  # each exchange looks whether its connection is open
    exchange(store)
    redis_server.kill()
    redis_server.restart()
    exchange(store, 2)
    exchange(store, 3)
    assert seen(redis_server) == 1


@pytest.mark.parametrize("more", ["", "+subscribe &paceline:*"])
def test_a_user_without_the_rights_has_no_subscription_and_no_error_and_is_told_once(caplog, more):
    with RedisServer(f"user app on >secret ~paceline:* resetchannels {RIGHTS} {more}") as server:
        store = RedisStore(server.url.replace("://", "://app:secret@"))
        for number in (1, 2, 3):
            exchange(store, number)
        assert seen(server) == 0
        said = [record.getMessage() for record in caplog.records]
        assert [text.startswith("the store cannot see when this process ends") for text in said] == [True]
        assert "allow its user &paceline:* +subscribe +pubsub" in said[0]
        server.ask("ACL", "SETUSER", "app", "+subscribe", "+pubsub", "&paceline:*")
        store.close()
        store = RedisStore(server.url.replace("://", "://app:secret@"))
        exchange(store)
        assert seen(server) == 1
        exchange(store, 2)
        store.close()


def test_it_is_seen_by_the_node_of_a_cluster_that_has_the_pool(redis_cluster, redis_at):
    store = redis_at(redis_cluster.url)
    for number, pool in enumerate(["a", "b", "c", "d", "e"]):
        store.exchange(pool, message_of(f"p{number}", 1, QUOTAS, [-1]))
    for number, pool in enumerate(["a", "b", "c", "d", "e"]):
        having = [node for node in redis_cluster.nodes if f"paceline:3:{{/{pool}}}" in node.ask("KEYS", "*")]
        assert [seen(node, f"p{number}") for node in having] == [1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.parametrize("end", ["SIGTERM", "SIGKILL"])
def test_it_ends_with_a_process_also_one_whose_forked_child_lives(redis_server, end):
    script = textwrap.dedent("""
        import os, sys, time
        from paceline.core.quota import Quota
        from paceline.shared.messages import Known, Message
        from paceline.stores.redis import RedisStore

        store = RedisStore(sys.argv[1])
        store.exchange("pool", Message("p1", 1, Known((Quota("requests", 60.0),), [-1])))
        if not (child := os.fork()):
            store.after_fork()
            print(os.getpid(), flush=True)
        time.sleep(60)
    """)
    with subprocess.Popen([sys.executable, "-c", script, redis_server.url], stdout=subprocess.PIPE) as process:
        child = int(process.stdout.readline())
        assert seen(redis_server) == 1
        process.send_signal(signal.Signals[end])
        until(lambda: not seen(redis_server))
        os.kill(child, signal.SIGKILL)
