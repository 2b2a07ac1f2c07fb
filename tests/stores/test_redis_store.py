"""The Redis store on real servers: what it keeps, and what it says when something is wrong."""

import socket
import time

import pytest
import redis
from redis_servers import RedisServer

import paceline
from odd_server import OddServer
from paceline.core.quota import parse_quotas
from paceline.shared.messages import Charged
from paceline.stores.base import StoreError
from paceline.stores.redis import LATE_S, RedisStore
from shared_pools import message_of

QUOTAS = parse_quotas("3600 tokens/hour, 1000 requests/day window utc, 4 concurrency")
MARGIN_S = 20.0  # of a busy machine; the clients of the tests would wait 60 s
KEY = "paceline:3:{/pool}"


def message(number=1, who="a", amount=10.0, quotas=QUOTAS, **fields):
    return message_of(who, number, quotas, [-1] * len(quotas), wants=[[amount, 1.0, 0.0]], **fields)


def charged(reply):
    return [standing.charged for standing in reply.standings]


@pytest.fixture
def store(redis_server, redis_at):
    return redis_at(redis_server.url)


def failure(url, timeout_s=5.0):
    """What an exchange with ``url`` says when it fails, and how long it took."""
    store = RedisStore(url, timeout_s=timeout_s)
    before = time.monotonic()
    with pytest.raises(StoreError) as caught:
        store.exchange("pool", message())
    store.close()
    return str(caught.value), time.monotonic() - before


def test_a_ping_leaves_nothing(store, redis_server):
    redis_server.ask("CONFIG", "RESETSTAT")
    store.ping()
    with redis_server.client() as client:
        assert client.info("commandstats")["cmdstat_set"]["calls"] == 1
    assert [key for key in redis_server.ask("KEYS", "*") if redis_server.ask("PTTL", key) > 1] == []
    redis_server.ask("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(StoreError, match="raise the server's maxmemory"):
            store.ping()
    finally:
        redis_server.ask("CONFIG", "SET", "maxmemory", "0")


def test_exchange_is_one_command_and_keeps_keys_that_expire(store, redis_server):
    store.exchange("pool", message())
    redis_server.ask("PEXPIRE", KEY, 60_000)  # which the next one renews
    redis_server.ask("CONFIG", "RESETSTAT")
    store.exchange("pool", message(2))
    with redis_server.client() as client:
        calls = {name: stats["calls"] for name, stats in client.info("commandstats").items()}
    calls = {name: count for name, count in calls.items() if name.split("_")[1] in ("evalsha", "get", "set", "time")}
    assert calls == {"cmdstat_evalsha": 1, "cmdstat_get": 1, "cmdstat_set": 2, "cmdstat_time": 1}
    keys = sorted(redis_server.ask("KEYS", "*"))
    assert keys == [KEY, f"{KEY}:events", f"{KEY}:peers"]
    day_ms = 86_400_000
    for key in keys:
        assert 3 * day_ms - 60_000 < redis_server.ask("PTTL", key) <= 3 * day_ms


def test_a_key_beside_the_ledger_may_be_evicted(store, redis_server):
    for number, gone in enumerate(["peers", "events"], start=1):
        assert store.exchange("pool", message(number, "a")).peers == 1
        assert store.exchange("pool", message(number, "b")).peers == 2
        redis_server.ask("DEL", f"{KEY}:{gone}")
        reply = store.exchange("pool", message(number, "c"))
        assert (reply.peers, charged(reply)[0]) == (1, 40 * number - 10)
        store.exchange("pool", message(number, "c", leaving=True))


def test_a_message_that_nobody_awaits_is_not_applied(redis_server, redis_at):
    store = redis_at(redis_server.url, timeout_s=0.3)
    store.exchange("pool", message(1))
    redis_server.freeze()
    try:
        with pytest.raises(StoreError):
            store.exchange("pool", message(2, "b"))
        time.sleep(0.3 + LATE_S)
    finally:
        redis_server.thaw()
    other = redis_at(redis_server.url)
    reply = other.exchange("pool", message(1, "c"))
    assert (reply.peers, charged(reply)[0]) == (2, 20)


def test_the_clock_of_the_server_may_be_set_forward(store):
    store.exchange("pool", message(1))
    store._ahead_us -= 3_600_000_000
    assert charged(store.exchange("pool", message(2)))[0] == 20


def test_scripts_may_be_forgotten_at_any_time(store, redis_server):
    for number in range(1, 6):
        redis_server.ask("SCRIPT", "FLUSH")
        assert charged(store.exchange("pool", message(number))) == [10 * number, number, 0]


def test_keys_may_be_forgotten_at_any_time(store, redis_server):
    store.exchange("pool", message(1))
    redis_server.ask("FLUSHALL")
    reply = store.exchange("pool", message(2, recalled=[[5.0], [7.0], [0.0]]))
    assert charged(reply) == [10, 1, 0]
    assert reply.standings[0].lack_ns == 15_000_000_000
    assert reply.standings[1].used == 8


def test_a_snapshot_from_before_the_last_messages_has_lost_no_use(redis_at):
    with RedisServer() as server:
        store = redis_at(server.url)
        for number in (1, 2, 3):
            reply = store.exchange("pool", message(number))
            if number == 1:
                server.ask("SAVE")
        used = reply.standings[1].used
        server.restart()
        store = redis_at(server.url)  # the connection of the other one is broken
        remembered = [[30.0], [used], [0.0]]
        assert store.exchange("pool", message(4, recalled=remembered)).standings[1].used == used + 1
        # Once: what is refunded afterwards stays refunded.
        assert store.exchange("pool", message(5, recalled=[[30.0], [50.0], [0.0]])).standings[1].used == used + 2


def test_what_the_script_does_not_know_survives(store, redis_server):
    store.exchange("pool", message())
    add = """
        local state = cmsgpack.unpack(redis.call('GET', KEYS[1]))
        state.later, state.accounts[1].later, state.accounts[1].meter.later = {1, 2}, 'x', 0.5
        redis.call('SET', KEYS[1], cmsgpack.pack(state))"""
    read = """
        local state = cmsgpack.unpack(redis.call('GET', KEYS[1]))
        return {state.later[2], state.accounts[1].later, tostring(state.accounts[1].meter.later)}"""
    redis_server.ask("EVAL", add, 1, KEY)
    store.exchange("pool", message(2, news=[Charged([1.0, 1.0, 0.0])]))
    assert redis_server.ask("EVAL", read, 1, KEY) == [2, "x", "0.5"]


def test_over_tls(redis_at):
    with RedisServer(tls=True) as server:
        store = redis_at(server.url)
        assert charged(store.exchange("pool", message())) == [10, 1, 0]
        said, _ = failure(server.url.partition("?")[0])
        assert "ssl_ca_certs" in said


class TestClients:
    """A client gives its connection settings; its connections, timeouts and retries are its own."""

    def test_a_limiter_takes_one(self, redis_server, redis_at):
        client = redis_server.client()
        limiter = paceline.Limiter({"jobs": "3600 tokens/hour"}, store=client)
        limiter.acquire("jobs", tokens=10).wait().settle()
        limiter.close()
        keys = [f"paceline:3:{{/jobs}}{name}" for name in ("", ":events", ":peers")]
        assert sorted(client.keys()) == [*keys, "paceline:made:{/jobs}"]
        second = redis_at(redis_server.url)
        assert charged(second.exchange("jobs", message(who="b", quotas=QUOTAS[:1], amount=0.0))) == [10]

    def test_with_a_password_that_no_error_shows(self, redis_at):
        with RedisServer(password="p@ss/word") as server:
            assert redis_at(server.client()).exchange("pool", message())
            store = redis_at(redis.Redis(port=server.port, password="wr/ong"))
            with pytest.raises(StoreError) as caught:
                store.exchange("pool", message())
        assert "redis://USER:PASSWORD@HOST" in str(caught.value)
        assert "wr/ong" not in str(caught.value)

    def test_it_stays_open(self, redis_server):
        client = redis_server.client()
        client.ping()
        store = RedisStore(client)
        store.exchange("pool", message())
        store.close()
        assert len(client.connection_pool._available_connections) == 1


# When something is wrong.


def test_frozen_server_is_an_error_in_time_nothing_is_sent_twice_and_its_late_answer_is_nobodys(redis_server, redis_at):
    redis_server.ask("CONFIG", "RESETSTAT")
    store = redis_at(redis_server.url, timeout_s=0.2)
    store.exchange("pool", message(1))
    redis_server.freeze()
    before = time.monotonic()
    with pytest.raises(StoreError, match=r"overloaded|stopped"):
        store.exchange("pool", message(2))
    with pytest.raises(StoreError):
        store.exchange("pool", message(2))
    assert 0.4 <= time.monotonic() - before < 0.4 + MARGIN_S
    redis_server.thaw()
    store = redis_at(redis_server.url)
    reply = store.exchange("pool", message(3, amount=500.0))
    assert len(reply.grants) == 1
    assert charged(reply)[0] in (510, 520, 530)  # of the two that were lost, nobody can know which arrived
    with redis_server.client() as client:
        calls = client.info("commandstats")
    assert calls["cmdstat_evalsha"]["calls"] + calls["cmdstat_eval"]["calls"] <= 1 + 4  # the first with EVAL as well


def test_server_that_comes_back_is_found_again(store, redis_server):
    store.exchange("pool", message(1))
    redis_server.kill()
    for _ in range(2):
        with pytest.raises(StoreError, match=r"(?s)127\.0\.0\.1.*check the address, and that the server runs"):
            store.exchange("pool", message(2))
    redis_server.restart()
    assert charged(store.exchange("pool", message(3)))[0] == 10


@pytest.mark.parametrize("login", ["", "wrong@", ":wr%2Fong@", "somebody:wrong@"])
def test_wrong_password(login, redis_at):
    with RedisServer(password="p@ss/word") as server:
        assert redis_at(server.url).exchange("pool", message())
        assert redis_at(server.socket_url).exchange("pool", message())
        said, _ = failure(f"redis://{login}127.0.0.1:{server.port}")
        assert "redis://:PASSWORD@HOST or redis://USER:PASSWORD@HOST" in said
        assert f"redis://127.0.0.1:{server.port}" in said
        assert "wr" not in said.replace("wrong user", "").replace("write", "").replace("WRONGPASS", "")


def test_user_who_may_not():
    with RedisServer("user guest on >guest ~other:* +@all") as server:
        said, _ = failure(f"redis://guest:guest@127.0.0.1:{server.port}")
        assert "~paceline:*" in said


def test_read_only_replica(redis_server):
    with RedisServer(f"replicaof 127.0.0.1 {redis_server.port}") as replica:
        said, _ = failure(replica.url)
        assert "redis+sentinel://" in said


@pytest.mark.parametrize(("command", "says"), [("LPUSH", r"\?prefix=NAME"), ("SET", "delete the keys paceline")])
def test_a_key_of_something_else_and_a_damaged_ledger(store, redis_server, command, says):
    redis_server.ask(command, KEY, "no ledger")
    with pytest.raises(StoreError, match=says):
        store.exchange("pool", message())


sockets = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="there are no such sockets here")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://no-such-host.invalid", "check the address"),
        ("redis://127.0.0.1:1", "check the address, and that the server runs"),
        pytest.param("unix:///no/such/socket", "check the address, and that the server runs", marks=sockets),
        ("redis+sentinel://127.0.0.1:1,127.0.0.1:2/master", "addresses of the Sentinels"),
        ("redis+cluster://127.0.0.1:1", "check the address, and that the server runs"),
        ("redis+sentinel://127.0.0.1:{}/master", "redis://HOST:PORT for a Redis"),
        ("redis://127.0.0.1:{}/99", "give the number of a database that exists"),
    ],
)
def test_what_is_asked_for_is_not_there(request, url, says):
    url = url.format(request.getfixturevalue("redis_server").port) if "{}" in url else url
    said, _ = failure(url)
    assert said.startswith(f"{url}: ")
    assert says in said


def test_sentinel_that_is_taken_for_a_server():
    with RedisServer(is_sentinel=True) as server:
        said, _ = failure(f"redis://127.0.0.1:{server.port}")
    assert "write redis+sentinel://HOST:PORT/MASTER for Sentinels" in said
    assert "tokens" not in said  # nothing of what was sent


def test_no_tls_there_and_tls_that_is_not_asked_for(redis_server):
    assert "write redis instead of rediss" in failure(f"rediss://127.0.0.1:{redis_server.port}", 0.2)[0]
    with RedisServer(tls=True) as server:
        assert "write rediss instead of redis" in failure(f"redis://127.0.0.1:{server.port}")[0]


def test_what_is_no_redis():
    with OddServer(None) as server:
        said = [failure(f"{scheme}://127.0.0.1:{server.server_port}")[0] for scheme in ("redis", "redis+cluster")]
    assert all("this server is not a Redis: check the port" in text for text in said), said


def test_name_that_cannot_be_sent(store):
    with pytest.raises(StoreError, match="the name of the pool, or of a unit, contains half of a surrogate pair"):
        store.exchange("a\ud800", message())
    store.exchange("a", message())
