"""What a Redis URL may say, and what is said of one that cannot be meant."""

import sys

import pytest

from paceline.stores import StoreError, open_store
from paceline.stores.redis_address import read_url
from paceline.stores.redis_errors import explain


def test_server():
    address = read_url("redis://me:p%40ss@db.example:6380/2?prefix=team")
    assert (address.kind, address.tls, address.hosts, address.db) == ("server", False, [("db.example", 6380)], 2)
    assert address.login == {"username": "me", "password": "p@ss"}
    assert (address.prefix, address.url) == ("team", "redis://db.example:6380/2?prefix=team")


@pytest.mark.parametrize(
    ("url", "hosts", "shown"),
    [
        ("redis://", [("localhost", 6379)], "redis://"),
        ("redis://host", [("host", 6379)], "redis://host"),
        ("redis://:secret@host/", [("host", 6379)], "redis://host/"),
        ("redis://[::1]:7000/1", [("::1", 7000)], "redis://[::1]:7000/1"),
        ("redis://:sec/ret@host", [("host", 6379)], "redis://host"),
        ("redis+cluster://a,b:7001", [("a", 6379), ("b", 7001)], "redis+cluster://a,b:7001"),
        ("redis+sentinel://u:secret@a,b:1/main", [("a", 26379), ("b", 1)], "redis+sentinel://a,b:1/main"),
    ],
)
def test_hosts(url, hosts, shown):
    address = read_url(url)
    assert (address.hosts, address.url) == (hosts, shown)


def test_sentinels_have_a_login_of_their_own():
    address = read_url("rediss+sentinel://u:p@a/main/3?sentinel_username=s&sentinel_password=secret&ssl_cert_reqs=none")
    assert (address.kind, address.tls, address.master, address.db) == ("sentinel", True, "main", 3)
    assert address.login == {"username": "u", "password": "p"}
    assert address.options == {"sentinel_username": "s", "sentinel_password": "secret", "ssl_cert_reqs": "none"}
    assert address.url == "rediss+sentinel://a/main/3"


def test_tls():
    address = read_url("rediss://host?ssl_ca_certs=/etc/ca.pem&ssl_check_hostname=false&prefix=a%2Fb")
    assert address.options == {"ssl_ca_certs": "/etc/ca.pem", "ssl_check_hostname": False}
    assert (address.tls, address.prefix) == (True, "a/b")


def test_unix_socket():
    address = read_url("unix://:secret@/run/my%20redis.sock?db=4")
    assert (address.path, address.db, address.login) == ("/run/my redis.sock", 4, {"password": "secret"})
    assert address.url == "unix:///run/my%20redis.sock"
    assert read_url("unix:///run/a@b").path == "/run/a@b"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://host?prefx=a", "no option 'prefx': did you mean 'prefix'"),
        ("redis://host?x=a", "no option 'x': there is: prefix$"),
        ("rediss://host?x=a", "no option 'x': there are: prefix, ssl_cert_reqs"),
        ("redis://host?timeout=a", "a store has 1 s to answer"),
        ("redis://host?lost=open", r"no option 'lost': write Limiter\(..., lost=...\)"),
        ("redis://host?lease_s=0", r"no option 'lease_s': write Limiter\(..., lease_s=...\)"),
        ("redis://host?db=1", "stands in the path"),
        ("redis://host?ssl_ca_certs=a", "write 'rediss' instead of 'redis'"),
        ("rediss://host?ssl_cert_reqs=maybe", "write none, optional or required"),
        ("rediss://host?ssl_check_hostname=maybe", "write true or false"),
        ("redis://host/zero", "number of the database"),
        ("unix:///a?db=x", "number of the database"),
        ("unix://a", "whole path"),
        ("redis://a,b", "has one host.*redis.cluster"),
        ("rediss://a,b", "has one host.*rediss.cluster"),
        ("redis+cluster://a/1", "only database 0"),
        ("redis+sentinel://a,b", "which master is meant"),
        ("redis://host:70000", "HOST:PORT/DB"),
        ("redis:host", "'//' is missing: write 'redis://host'$"),
        ("redis:/host:1/2", "'//' is missing: write 'redis://host:1/2'$"),
        ("redis", "'//' is missing: write 'redis://HOST:PORT/DB'$"),
        ("unix:/run/redis.sock", "'//' is missing: write 'unix:///PATH"),
        ("redi://host", "no store is called 'redi': did you mean 'redis'"),
        ("valkey://host", "write redis://"),
        ("valkeys://host", "write rediss://"),
        ("redis+other://host", "redis.cluster"),
    ],
)
def test_what_cannot_be_meant(url, says):
    with pytest.raises(StoreError, match=says):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        *("redis://u:hunter?2@host", "redis://:hunter 2", "unix://hunter", "redis::hunter2@host", "valkey://:hunter@h"),
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
    with pytest.raises(StoreError, match=r'pip install "paceline\[redis\]"'):
        open_store("redis://host")


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("Error running script (call to f_1): @user_script:9: -OOM command not allowed", "raise its maxmemory"),
        ("@user_script: 9: -READONLY You can't write against a read only replica.", "redis+sentinel://"),
        ("MISCONF Redis is configured to save RDB snapshots, but it is unable to", "its disk"),
        ("BUSY Redis is busy running a script.", "SCRIPT KILL"),
        ("DB index is out of range", "?prefix=NAME"),
        ("SELECT is not allowed in cluster mode", "?prefix=NAME"),
        ("unknown command `SENTINEL`, with args beginning with: `MASTERS`", "is no Sentinel: for a Redis itself"),
    ],
)
def test_answers_of_old_servers_are_understood(said, advice):
    assert advice in explain(RuntimeError(said))


def test_what_was_sent_is_not_repeated():
    said = explain(RuntimeError("unknown command 'EVALSHA', with args beginning with: 'fd84' '1' 'paceline:1:{/jobs}'"))
    assert "redis+sentinel://HOST:PORT/MASTER" in said
    assert "jobs" not in said
