"""The Redis store in a cluster and behind Sentinels."""

import time
from contextlib import contextmanager

import pytest
from redis.cluster import RedisCluster
from redis.sentinel import Sentinel
from redis_servers import HOST, SLOTS, RedisServer, free_port, frozen, sentinel, url_of

from paceline.core.quota import parse_quotas
from paceline.stores.base import StoreError
from shared_pools import message_of
from waits import until

QUOTAS = parse_quotas("3600 tokens/hour")
MARGIN_S = 20.0  # of a busy machine; the clients of the tests would wait 60 s


def message(number=1):
    return message_of("a", number, QUOTAS, [-1], wants=[[10.0]])


@contextmanager
def at_once(seconds):
    """An exchange here fails, and in time."""
    before = time.monotonic()
    with pytest.raises(StoreError) as caught:
        yield caught
    assert time.monotonic() - before < seconds


def test_cluster_has_each_pool_on_one_node(redis_cluster, redis_at):
    store = redis_at(f"{redis_cluster.url}?prefix=each")
    for number in (1, 2):
        for pool in range(20):
            assert store.exchange(f"pool {pool}", message(number)).standings[0].charged == 10 * number
    keys = [node.ask("KEYS", "paceline:3:{each/*}") for node in redis_cluster.nodes]
    assert sum(map(len, keys)) == 20
    assert all(keys)


def test_client_of_a_cluster(redis_cluster, redis_at):
    with RedisCluster.from_url(redis_cluster.nodes[0].url, socket_timeout=60) as client:
        store = redis_at(client, timeout_s=5.0, prefix="client")
    for number in (1, 2):
        for pool in range(10):
            assert store.exchange(f"pool {pool}", message(number)).standings[0].charged == 10 * number
    assert store.url.startswith("redis+cluster://127.0.0.1:")


def test_pools_of_a_cluster_over_tls(redis_at):
    with RedisServer("cluster-enabled yes", f"cluster-port {free_port()}", tls=True) as node:
        node.ask("CONFIG", "SET", "cluster-announce-ip", HOST, "cluster-announce-port", node.port)
        node.ask("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
        until(lambda: node.ask("CLUSTER INFO")["cluster_state"] == "ok", "a cluster of one node")
        store = redis_at(node.url.replace("rediss:", "rediss+cluster:"))
        assert store.exchange("pool", message()).grants
        assert store.pools() == ["pool"]


@pytest.mark.parametrize(("gone", "there"), [("", 2), ("127.0.0.1:1,no-such-host.invalid:1,", 0)])
def test_one_node_is_enough_to_find_the_others_and_those_that_are_gone_are_passed_over(
    redis_cluster, gone, there, redis_at
):
    store = redis_at(f"redis+cluster://{gone}127.0.0.1:{redis_cluster.nodes[there].port}")
    for pool in range(10):
        assert store.exchange(f"found {there} {pool}", message()).grants


def test_key_that_moves_to_another_node(redis_cluster, redis_at):
    store = redis_at(f"{redis_cluster.url}?prefix=moves")
    store.exchange("here", message())
    here, there = sorted(redis_cluster.nodes, key=lambda node: -len(node.ask("KEYS", "paceline:3:{moves/*}")))[:2]
    slot, home = here.ask("CLUSTER", "KEYSLOT", store.key("here")), here.ask("CLUSTER", "MYID")
    away = there.ask("CLUSTER", "MYID")
    there.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", home)
    here.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", away)
    with pytest.raises(StoreError, match="back when it has moved"):
        store.exchange("here", message(2))
    keys = sorted(here.ask("CLUSTER", "GETKEYSINSLOT", slot, 10))
    assert keys == [store.key("here"), *(store.key("here") + name for name in (":events", ":peers"))]
    here.ask("MIGRATE", "127.0.0.1", there.port, "", 0, 5_000, "KEYS", *keys)
    for node in (there, here):
        node.ask("CLUSTER", "SETSLOT", slot, "NODE", away)
    there.ask("SCRIPT", "FLUSH")
    assert store.exchange("here", message(2)).standings[0].charged == 20  # has moved there


def test_node_of_a_cluster_is_no_server_of_its_own(redis_cluster, redis_at):
    store = redis_at(url_of("redis", redis_cluster.nodes[:1]))
    said = [error for pool in range(20) if (error := failure(store, f"pool {pool}"))]
    assert 0 < len(said) < 20
    assert all("write redis+cluster://" in error for error in said)


def failure(store, pool):
    try:
        store.exchange(pool, message())
    except StoreError as error:
        return str(error)
    return ""


def test_frozen_node_is_an_error_in_time_for_its_pools_alone(redis_cluster, redis_at):
    store = redis_at(f"{redis_cluster.url}?prefix=frozen", timeout_s=0.3)
    pools = [f"pool {n}" for n in range(20)]
    for pool in pools:
        store.exchange(pool, message(1))
    lost = redis_cluster.nodes[1]
    of_lost = {key[:-1].rpartition("/")[2] for key in lost.ask("KEYS", "paceline:3:{frozen/*}")}
    with frozen(lost):
        for pool in sorted(of_lost)[:2]:
            with at_once(0.3 + MARGIN_S):
                store.exchange(pool, message(2))
        for pool in set(pools) - of_lost:
            assert store.exchange(pool, message(2)).standings[0].charged == 20
    for pool in of_lost:
        until(lambda pool=pool: not failure(store, pool), "the thawed node")


def test_frozen_cluster_is_an_error_in_time(redis_cluster, redis_at):
    store = redis_at(redis_cluster.url, timeout_s=1.0)
    with frozen(*redis_cluster.nodes), at_once(2.9) as caught:  # one timeout, not one for each node
        store.exchange("pool", message())
    assert "overloaded or stopped" in str(caught.value)


@pytest.mark.long("a real failover")
def test_sentinels_lead_to_the_new_master(redis_at):
    with sentinel() as group:
        store = redis_at(group.url, timeout_s=1.0)
        assert store.exchange("pool", message(1)).standings[0].charged == 10
        with group.master.client() as client:  # WAIT counts the writes of its own connection, and all before them
            client.set("written", 1)
            assert client.wait(1, 30_000) == 1  # the replica has them
        group.fail_over()
        assert store.exchange("pool", message(2)).standings[0].charged == 20
        assert group.master.ask("EXISTS", store.key("pool")) == 1


@pytest.mark.long("a real failover")
def test_client_of_sentinels(redis_sentinel, redis_at):
    client = Sentinel(redis_sentinel.addresses, socket_timeout=60).master_for(redis_sentinel.name, db=1)
    store = redis_at(client, timeout_s=1.0, prefix="client")
    assert store.url == redis_sentinel.url.removesuffix("0") + "1"
    assert store.exchange("pool", message()).standings[0].charged == 10
    store.close()
    with frozen(*redis_sentinel.sentinels), at_once(1.0 + MARGIN_S):
        store.exchange("pool", message(2))


def test_sentinels_do_not_know_the_master(redis_sentinel, redis_at):
    store = redis_at(url_of("redis+sentinel", redis_sentinel.sentinels, "/nobody"), timeout_s=1.0)
    with pytest.raises(StoreError, match=r"'nobody'.*check the name of the master"):
        store.exchange("pool", message())


def test_sentinels_that_are_silent(redis_sentinel, redis_at):
    store = redis_at(redis_sentinel.url, timeout_s=0.3)
    with frozen(*redis_sentinel.sentinels), at_once(0.3 + MARGIN_S):
        store.exchange("pool", message())
