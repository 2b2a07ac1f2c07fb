"""Where a Redis is: what a URL may contain, the errors for invalid ones, and the settings of clients."""

import socket
import sys

import pytest
import redis

from paceline.stores import StoreError, as_store, open_store
from paceline.stores.redis import RedisStore, explain
from paceline.stores.redis_address import read_client, read_url


@pytest.fixture(autouse=True)
def _sockets_of_unix(monkeypatch):
    """Their URLs are read here, and none is opened: Windows has none."""
    if not hasattr(socket, "AF_UNIX"):
        monkeypatch.setattr(socket, "AF_UNIX", 1, raising=False)


def settings(pool):
    """What redis-py would connect with: host, port, path, database and login, those that are given."""
    names = ("host", "port", "path", "db", "username", "password")
    return {name: pool.connection_kwargs[name] for name in names if pool.connection_kwargs.get(name)}


@pytest.mark.parametrize(
    ("url", "host", "shown"),
    [
        ("redis://", {}, "redis://"),
        ("redis://host", {"host": "host"}, "redis://host"),
        ("redis://:secret@host/", {"host": "host", "password": "secret"}, "redis://host/"),
        ("redis://[::1]:7000/1", {"host": "::1", "port": 7000, "db": 1}, "redis://[::1]:7000/1"),
        ("redis://:sec@ret@host", {"host": "host", "password": "sec@ret"}, "redis://host"),
        (
            "redis://me:p%40ss@db/2?prefix=a",
            {"host": "db", "db": 2, "username": "me", "password": "p@ss"},
            "redis://db/2?prefix=a",
        ),
        (
            "unix://:secret@/run/my%20redis.sock?db=4",
            {"path": "/run/my redis.sock", "db": 4, "password": "secret"},
            "unix:///run/my%20redis.sock",
        ),
        ("unix:///run/a@b", {"path": "/run/a@b"}, "unix:///run/a@b"),
    ],
)
def test_hosts(url, host, shown):
    address = read_url(url)
    assert (settings(address.pool), address.url) == (host, shown)
    assert (address.nodes, address.prefix) == ([], "a" if "prefix" in url else "")
    assert address.pool.connection_class is (redis.UnixDomainSocketConnection if "unix" in url else redis.Connection)


def test_nodes_of_a_cluster():
    address = read_url("redis+cluster://u:secret@a,b:7001")
    assert (address.nodes, address.url) == ([("a", 6379), ("b", 7001)], "redis+cluster://a,b:7001")
    assert settings(address.pool) == {"host": "a", "username": "u", "password": "secret"}


def test_sentinels_have_a_login_of_their_own():
    url = "rediss+sentinel://u:p@a,b:1/main/3?sentinel_username=s&sentinel_password=secret&ssl_cert_reqs=none"
    address = read_url(url)
    assert (address.pool.service_name, address.url) == ("main", "rediss+sentinel://a,b:1/main/3")
    master = address.connection(1.0)
    assert (master.username, master.password, master.db) == ("u", "p", 3)
    pools = [sentinel.connection_pool for sentinel in address.pool.sentinel_manager.sentinels]
    login = {"username": "s", "password": "secret"}
    assert [settings(pool) for pool in pools] == [
        {"host": "a", "port": 26379} | login,
        {"host": "b", "port": 1} | login,
    ]
    for pool in (address.pool, *pools):
        assert issubclass(pool.connection_class, redis.SSLConnection)
        assert pool.connection_kwargs["ssl_cert_reqs"] == "none"


def test_tls():
    address = read_url("rediss://host?ssl_ca_certs=/etc/ca.pem&ssl_check_hostname=false&prefix=a%2Fb")
    given = address.pool.connection_kwargs
    assert (given["ssl_ca_certs"], given["ssl_check_hostname"]) == ("/etc/ca.pem", False)
    assert (address.pool.connection_class, address.prefix) == (redis.SSLConnection, "a/b")


@pytest.mark.parametrize("kind", ["redis://host/1", "redis+sentinel://a,b,c,d/main", "redis+cluster://host"])
def test_connections_make_one_attempt_within_the_timeout(kind):
    connection = read_url(f"{kind}?retry_on_error=1&health_check_interval=5&decode_responses=1").connection(0.4)
    assert (connection.socket_timeout, connection.socket_connect_timeout) == (0.4, 0.4)
    assert (connection.retry._retries, connection.retry_on_error, connection.health_check_interval) == (0, [], 0)
    assert not connection.encoder.decode_responses


def test_sentinels_share_the_timeout():
    finder = read_url("redis+sentinel://a,b,c,d/main").connection(0.4).connection_pool.sentinel_manager
    assert [sentinel.connection_pool.connection_kwargs["socket_timeout"] for sentinel in finder.sentinels] == [0.1] * 4


class TestClients:
    """Their settings are taken over, and nothing else."""

    @pytest.mark.parametrize(
        ("client", "shown"),
        [
            (redis.Redis(), "redis://localhost:6379/0"),
            (redis.Redis("::1", 7000, db=2, username="me", password="secret"), "redis://[::1]:7000/2"),
            (redis.Redis("host", ssl=True), "rediss://host:6379/0"),
            (redis.Redis(unix_socket_path="/run/a b.sock", password="secret"), "unix:///run/a%20b.sock"),
            (redis.Redis.from_url("redis://:secret@host/3"), "redis://host:6379/3"),
            (
                redis.Sentinel([("a", 1), ("b", 2)]).master_for("main", password="secret"),
                "redis+sentinel://a:1,b:2/main/0",
            ),
        ],
    )
    def test_shown_without_a_password(self, client, shown):
        store = as_store(client)
        assert isinstance(store, RedisStore)
        assert store.url == shown

    def test_login_and_timeout(self):
        options = {"socket_timeout": 60, "retry_on_error": [redis.ConnectionError], "decode_responses": True}
        connection = read_client(redis.Redis("host", 1, password="secret", **options)).connection(0.4)
        assert (connection.host, connection.port, connection.password) == ("host", 1, "secret")
        assert (connection.socket_timeout, connection.socket_connect_timeout) == (0.4, 0.4)
        assert (connection.retry._retries, connection.retry_on_error) == (0, [])
        assert not connection.encoder.decode_responses

    @pytest.mark.parametrize("client", [redis.asyncio.Redis(), redis.Sentinel([("a", 1)])])
    def test_what_is_no_client_that_can_be_used(self, client):
        with pytest.raises(StoreError, match=r"unsupported client redis\..*: give a redis.Redis, .* or a URL"):
            as_store(client)

    def test_prefix(self):
        assert RedisStore(redis.Redis(), prefix="team").key("pool") == open_store("redis://?prefix=team").key("pool")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://host?prefx=a", "unknown option 'prefx' in the Redis URL: write prefix"),
        ("redis://host?socket_timeout=5", "no option for the timeout: the store has 1 s to answer"),
        ("redis://host?lease_s=0", "unknown option 'lease_s'.*arguments of Limiter"),
        ("redis://host?ssl_ca_certs=a", r"unknown option 'ssl_ca_certs'.*for TLS with rediss://"),
        ("rediss://host?ssl_cert_reqs=maybe", "Invalid SSL Certificate Requirements Flag: maybe"),
        ("redis://host/zero", "redis://HOST:PORT/DB"),
        ("unix:///a?db=x", "Invalid value for 'db'"),
        ("unix://a", "unix:///PATH"),
        ("redis://a,b", r"redis\+cluster://HOST:PORT,HOST:PORT"),
        ("redis+cluster://a/1", r"redis\+cluster://HOST:PORT,HOST:PORT;"),
        ("redis+sentinel://a,b", r"redis\+sentinel://HOST:PORT,HOST:PORT/MASTER/DB"),
        ("redis://host:70000", "Port out of range.*HOST:PORT/DB"),
        ("redis://host:123456", "HOST:PORT/DB"),
        ("redis://:sec/ret@host", "'/' as %2F"),
        ("redis:host", "write redis://HOST:PORT/DB"),
        ("redis", "write redis://HOST:PORT/DB"),
        ("unix:/run/redis.sock", "write unix:///PATH"),
        ("redi://host", "no store is called 'redi': did you mean 'redis'"),
        ("valkey://host", "did you mean 'redis'"),
        ("valkeys://host", "did you mean 'rediss'"),
        ("redis+other://host", "redis.cluster"),
    ],
)
def test_invalid_urls(url, says):
    with pytest.raises(StoreError, match=says):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        *("redis://u:hunter?2@host", "redis://:hunter 2", "unix://hunter", "redis::hunter2@host", "valkey://:hunter@h"),
        *("redis://:123?hunter@host", "redis://:1/hunter@host", "unix://:hunter/2@/run/redis.sock"),
        *("hunter@host", "hunter@host:1", ":hunter", "mysql://u:hunter@host", "hunter2", "hunter2:", "hunter2:6379"),
    ],
)
def test_no_error_shows_a_password(url):
    with pytest.raises(StoreError) as caught:
        open_store(url)
    assert "hunter" not in str(caught.value)


def test_timeout_must_be_above_zero():
    with pytest.raises(StoreError, match="timeout_s"):
        open_store("redis://host", timeout_s=0.0)


def test_without_redis_py(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(StoreError, match=r"pip install 'paceline\[redis\]'"):
        open_store("redis://host")


def test_scheme_of_a_redis_store():
    with pytest.raises(StoreError, match=r"write redis, unix, redis\+sentinel, redis\+cluster before '://'"):
        RedisStore("sqlite://host")


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        (
            "Error running script (call to f_1): @user_script:9: -OOM command not allowed",
            "raise the server's maxmemory",
        ),
        ("@user_script: 9: -READONLY You can't write against a read only replica.", "redis+sentinel://"),
        ("DB index is out of range", "?prefix=NAME"),
        ("SELECT is not allowed in cluster mode", "?prefix=NAME"),
        ("unknown command `SENTINEL`, with args beginning with: `MASTERS`", "redis://HOST:PORT for a Redis"),
    ],
)
def test_answers_of_old_servers_are_understood(said, advice):
    assert advice in explain(RuntimeError(said))


@pytest.mark.parametrize(
    "said",
    [
        "MISCONF Redis is configured to save RDB snapshots, but it is unable to persist. Check the Redis logs",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE",
    ],
)
def test_answers_that_need_no_advice(said):
    assert explain(RuntimeError(said)) == said


def test_what_was_sent_is_not_repeated():
    said = explain(RuntimeError("unknown command 'EVALSHA', with args beginning with: 'fd84' '1' 'paceline:2:{/jobs}'"))
    assert "redis+sentinel://HOST:PORT/MASTER" in said
    assert "jobs" not in said


def test_a_socket_of_unix_where_there_are_none(monkeypatch):
    monkeypatch.delattr(socket, "AF_UNIX", raising=False)
    with pytest.raises(StoreError, match="this system has no sockets of the kind unix: write redis://HOST:PORT"):
        read_url("unix:///run/redis.sock")
