"""Attempts to break the gateway: each a small attack, and what must come of it."""

import gzip
import itertools
import json
import logging
import os
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache, partial
from pathlib import Path

import pytest
from attack_helpers import ANSWER, BODY, GOOD, answers, connect, post, raw_server, read, refused, talk
from gateway_helpers import chat, running_gateway, stub, tell

from paceline.config import Config
from paceline.core.results import SettingsError
from paceline.gateway import errors, incoming, protocol, server
from paceline.gateway.keys import KeyFile
from paceline.gateway.server import ProcessSettings
from paceline.shared.ledger import SharedLedger
from waits import until

CHAT = b"/openai/v1/chat/completions"
POOL = "openai/gpt-5"
PROVIDER_KEY = b"sk-of-openai"
NUMBERS = itertools.count()
"""Of models: a refusal pauses a pool."""


@pytest.fixture(scope="module")
def servers():
    with raw_server() as first, raw_server() as second:
        yield first, second


@pytest.fixture
def upstream(servers):
    for one in servers:
        one.raw.clear()
        one.answer, one.then = ANSWER, None
    return servers[0]


@pytest.fixture
def other(servers):
    return servers[1]


@contextmanager
def attacked(servers, keys, **given):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", PROVIDER_KEY.decode())
        patch.setenv("ANTHROPIC_API_KEY", "sk-of-anthropic")
        tables = {"openai": {"base_url": servers[0].url}, "anthropic": {"base_url": servers[1].url}}
        config = Config.load(environ={}, given={"provider": "openai", "upstreams": tables, "max_attempts": 1, **given})
        with running_gateway(ProcessSettings(config=config, keys=keys, host="127.0.0.1", stop_s=5)) as running:
            yield running


@pytest.fixture(scope="module")
def shared(servers, tmp_path_factory):
    """A gateway without keys for many attacks, which must leave nothing behind."""
    with attacked(servers, tmp_path_factory.mktemp("keys") / "keys.json") as running:
        yield running


@pytest.fixture(scope="module")
def locked(servers, tmp_path_factory):
    """A gateway with a key, and the key."""
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    key = KeyFile(file).add("alice", may_read=True, endpoints=("/v1/files",))
    with attacked(servers, file) as running:
        yield running, key.encode()


@pytest.fixture
def guarded(locked, servers):
    yield locked
    until(lambda: idle(locked[0]) and all(one.has_read_all() for one in servers))


@pytest.fixture
def open_gateway(shared, servers):
    yield shared
    until(lambda: idle(shared) and all(one.has_read_all() for one in servers))


@pytest.fixture
def process(process):
    if sys.platform == "win32":
        pytest.skip("it needs signals, /proc and a limit of files")
    return process


@pytest.fixture
def ask():
    """Send so many chats, each on a connection of its own, which is open until the end of the test."""
    with ExitStack() as stack:

        def start(url, count):
            open_ones = [stack.enter_context(connect(url)) for _ in range(count)]
            for one in open_ones:
                one.sendall(post())
            return open_ones

        yield start


def answer_to_chunks(upstream, connection):
    """Read a chunked body to its end, and answer."""
    while not upstream.raw.endswith(b"\r\n0\r\n\r\n"):
        part = connection.recv(65_536)
        if not part:  # the client has left
            return
        upstream.raw.extend(part)
    connection.sendall(ANSWER)


def granted(running, name=POOL):
    return running.limiter.status()["pools"].get(name, {"counts": {}})["counts"].get("granted", 0)


def status(process):
    got = talk(process.url, b"GET /status HTTP/1.1\r\nhost: localhost\r\n\r\n")
    return json.loads(got.partition(b"\r\n\r\n")[2] or b'{"pools": {}}')


def waiting(process):
    """The requests in the queue of a gateway in another process."""
    return sum(pool["waiting"] for pool in status(process)["pools"].values())


def idle(running):
    """Whether nothing of a request is left."""
    gateway, bodies = running.dispatch, running.dispatch._bodies
    pools = running.limiter.status()["pools"].values()
    nothing = not bodies._shares.total and not gateway.held.waiting
    nothing = nothing and not running.server.server_state.tasks
    return nothing and all(pool["waiting"] == pool["in_flight"] == 0 for pool in pools)


def chunked(body, *headers, **given):
    """A request whose body is sent in chunks: these bytes."""
    return post(CHAT, *headers, b"transfer-encoding: chunked", body=body, length=False, **given)


def get(target, *headers, method=b"GET"):
    """The bytes of a request without a body."""
    return b"\r\n".join([b"%s %s HTTP/1.1" % (method, target), *(headers or [b"host: localhost"])]) + b"\r\n\r\n"


SMUGGLED = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
LENGTHS = [
    [b"content-length: 5", b"transfer-encoding: chunked"],
    [b"transfer-encoding: chunked", b"content-length: 5"],
    [b"transfer-encoding: chunked, identity"],
    [b"transfer-encoding: identity, chunked", b"content-length: 5"],
    [b"transfer-encoding: xchunked"],
    [b"transfer-encoding: chunked", b"transfer-encoding: identity"],
    [b"transfer-encoding: gzip, chunked"],
    [b"transfer-encoding: gzip", b"transfer-encoding: chunked"],
    [b"transfer-encoding:\x0bchunked", b"content-length: 5"],
    [b"transfer-encoding : chunked", b"content-length: 5"],
    [b" transfer-encoding: chunked", b"content-length: 5"],
    [b"transfer-encoding: \x00chunked", b"content-length: 5"],
    [b"x: y\r\n transfer-encoding: chunked", b"content-length: 5"],
    [b"x: y\rtransfer-encoding: chunked", b"content-length: 5"],
    [b"x: y\ntransfer-encoding: chunked", b"content-length: 5"],
    [b"transfer-encoding: 'chunked'"],
    *([b"content-length: " + length] for length in (b"5, 5", b"+5", b"-5", b"0x5", b"5_0", b"9" * 23, b"")),
    [b"content-length: 5", b"content-length: 6"],
]
"""Headers that two servers may read differently."""

LINES = [
    b"GET /openai/v1/models HTTP/9.9", b"GET /openai/v1/\xc3\xa9 HTTP/1.1", b"GET /openai/v1/\x00 HTTP/1.1", b"PRI * HTTP/2.0",
    b"CONNECT evil.example:443 HTTP/1.1", b"CONNECT /openai/v1/models HTTP/1.1", b"OPTIONS * HTTP/1.1", b"TRACE /openai/v1/models HTTP/1.1",
    b"TRACK /openai/v1/models HTTP/1.1", b"PROPFIND /openai/v1/models HTTP/1.1", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
]  # fmt: skip
CHUNKS = [b"x\r\n", b"5\nhello\n0\n\n", b"-1\r\n\r\n", b"fffffffffffffffff\r\n", b"5\r\nhelloXX0\r\n\r\n"]
HEADS = [b"x: " + b"a" * 70_000, *(b"\r\n".join(b"x%d: 1" % i for i in range(count)) for count in (5_000, 300))]
ENDLESS = [b"1\r\nx\r\n%s%s" % (end, b"a" * 2_000_000) for end in (b"x: ", b"0\r\nx: ", b"1;x=")]
OTHER_HOSTS = [
    b"[", b"[::1", b"evil.example", b"localhost.evil.example", b"", b"localhost@evil.example", b"127.0.0.1.nip.io", b"\xff"
]  # fmt: skip
OTHER_PAGES = [
    [b"origin: https://evil.example"], [b"origin: null"], [b"origin: http://["], [b"sec-fetch-site: cross-site"],
    [b"sec-fetch-site: same-site"], [b"referer: https://evil.example", b"origin: https://localhost.evil.example"],
]  # fmt: skip
PAGES = [
    (b"POST", CHAT),
    (b"OPTIONS", CHAT),
    (b"GET", b"/openai/v1/models"),
    (b"GET", b"/status"),
    (b"GET", b"/metrics"),
]
EMPTY = b"content-length: 0"
REFUSED = {
    "an ambiguous length": ((400, None), [post(CHAT, *lines, body=SMUGGLED, length=False) for lines in LENGTHS]),
    "two hosts": ((400,), [post(CHAT, b"host: localhost")]),
    "no host": ((400,), [post(CHAT).replace(b"host: localhost\r\n", b"")]),
    "an older version": (
        (400,), [b"GET /openai/v1/models%s\r\n\r\n" % end for end in (b"", b" HTTP/0.9\r\nhost: localhost")]
    ),
    "an invalid chunk": ((400, None), [chunked(body) for body in CHUNKS]),
    "another request": ((400, 405, None), [line + b"\r\nhost: localhost\r\n\r\n" for line in LINES]),
    "a huge head": ((431, None), [post(CHAT, line) for line in HEADS]),
    "a huge target": ((431, None), [post(CHAT + b"?" + b"a" * 300_000)]),
    "endless trailers and extensions": ((400, 431, None), [chunked(body) for body in ENDLESS]),
    "names of others": (
        (403,), [get(path, b"host: " + host, EMPTY, method=method) for host in OTHER_HOSTS for method, path in PAGES]
    ),
    "other websites": (
        (403,), [get(path, b"host: localhost", EMPTY, *lines, method=method) for lines in OTHER_PAGES for method, path in PAGES]
    ),
}  # fmt: skip
"""Without keys: the status of each, or ``None`` where the connection ends without one."""


@pytest.mark.parametrize(("statuses", "requests"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_reaches_no_server(open_gateway, upstream, statuses, requests):
    for sent in requests:
        assert next(iter(answers(talk(open_gateway.url, sent))), None) in statuses, sent[:400]
        assert upstream.raw == b"", sent[:400]


class TestFraming:
    """Requests whose end two servers may see at different places."""

    @pytest.mark.parametrize(
        ("target", "method"), [(b"//openai/v1/models", b"GET"), (b"//", b"GET"), (b"*", b"OPTIONS")]
    )
    def test_a_target_that_is_no_path_is_named(self, guarded, upstream, target, method):
        got = talk(guarded[0].url, get(target, method=method))
        assert (answers(got), b"paceline_path" in got, upstream.raw) == ([400], True, b"")

    @pytest.mark.parametrize("lines", [[], [b"Transfer_Encoding: gzip"]])
    def test_a_chunked_body_is_sent_with_its_length_and_no_trailers(self, open_gateway, upstream, lines):
        trailers = b"x-evil: 1\r\nauthorization: Bearer other\r\nx-paceline-timeout: x\r\nhost: evil.example\r\n"
        sent = chunked(b"%x;a=b\r\n%s\r\n0\r\n%s\r\n" % (len(BODY), BODY, trailers), *lines)
        assert answers(talk(open_gateway.url, sent)) == [200]
        assert upstream.raw.endswith(b"\r\n\r\n" + BODY)
        assert b"content-length: %d\r\n" % len(BODY) in upstream.raw.lower()
        assert not any(word in upstream.raw.lower() for word in (b"\r\ntransfer-encoding:", b"evil", b"other"))

    def test_a_chunked_body_of_http_1_0_is_not_smuggled(self, open_gateway, upstream):
        talk(open_gateway.url, chunked(SMUGGLED, version=b"1.0"))
        assert b"smuggled" not in upstream.raw

    def test_pipelined_requests_are_answered_in_order(self, open_gateway, upstream):
        got = talk(open_gateway.url, post() + post(b"/openai/v1/a%20b", body=b"") + post(), 3)
        assert answers(got) == [200, 200, 200]
        assert upstream.raw.count(b"POST /v1/chat/completions HTTP/1.1\r\n") == 2

    def test_garbage_after_a_request_is_no_answer_to_it(self, open_gateway, upstream):
        assert 400 not in answers(talk(open_gateway.url, post() + b"\x00garbage\r\n\r\n"))

    def test_http_1_0_is_answered(self, open_gateway, upstream):
        got = talk(open_gateway.url, post(version=b"1.0"))
        assert answers(got) == [200]
        assert b"connection: close" in got

    def test_an_upgrade_is_declined(self, open_gateway, upstream):
        """Some clients (Java) offer HTTP/2 so with their first request."""
        offer = [b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAAQAAP__"]
        sent = [post(), post(CHAT, *offer), chunked(b"5\r\n[1,2]\r\n0\r\n\r\n", *offer), post()]
        assert answers(talk(open_gateway.url, b"".join(sent), 4)) == [200] * 4
        assert (upstream.raw.count(BODY), upstream.raw.count(b"[1,2]")) == (3, 1)
        assert b"h2c" not in upstream.raw
        assert b"http2-settings" not in upstream.raw.lower()

    def test_a_body_is_asked_for_only_if_it_is_wanted(self, open_gateway, upstream):
        """After an answer without the body the connection ends: what comes next may be the body, or another request."""
        expects = b"expect: 100-continue", b"content-length: %d" % len(BODY)
        with connect(open_gateway.url) as connection:
            connection.sendall(post(CHAT, *expects, b"origin: null", length=False, body=b""))
            assert answers(read(connection, 1)) == [403]
            assert connection.recv(1) == b""
        with connect(open_gateway.url) as connection:
            connection.sendall(post(CHAT, *expects, length=False, body=b""))
            assert read(connection, 1) == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(BODY)
            assert answers(read(connection, 1)) == [200]
            connection.sendall(post(CHAT, *expects, b"origin: null", length=False, body=b""))
            assert (answers(read(connection, 1)), connection.recv(1)) == ([403], b"")
        assert b"expect" not in upstream.raw.lower()

    def test_an_early_answer_does_not_cut_the_body_off(self, open_gateway, upstream):
        early = post(CHAT, b"origin: null", body=b"x" * 4_000_000)
        assert answers(talk(open_gateway.url, early + post(), 2)) == [403, 200]


TARGETS = [
    (b"http://evil.example/openai/v1/models", b"/v1/models"),
    (b"http://user:pass@evil.example:1/openai/v1/models", b"/v1/models"),
    (b"/openai/v1/models?host=evil.example&url=http://evil.example", b"/v1/models?host=evil"),
    (b"/openai/@evil.example/x", b"/@evil.example/x"),
    (b"/openai@evil.example/v1", b"/openai@evil.example/v1"),  # a path of the native server
    (b"/openai.evil.example/v1", b"/openai.evil.example/v1"),
    (b"/openai/anthropic/v1/messages", b"/anthropic/v1/messages"),
    *((target, None) for target in [
        b"/openai/http://evil.example/x", b"/openai//evil.example/x", b"//evil.example/openai/v1/models", b"///evil.example",
        b"/openai%2f..%2fanthropic/v1", b"/openai/../anthropic/v1", b"/openai/..;/anthropic/v1", b"/openai/..%3b/anthropic/v1",
        b"/openai/%2e%2e/anthropic/v1", b"/openai/%252e%252e/anthropic/v1", b"/openai/%25252e%25252e/anthropic/v1",
        b"/openai/.%2e/anthropic/v1", b"/openai/%c0%ae%c0%ae/anthropic", b"/openai/v1\\..\\x", b"/openai/v1/%5c%2e%2e",
        b"/openai/v1/%0d%0aevil: 1", b"/openai/v1/%0d%0aevil:%201", b"/openai/v1/%00",
    ]),
]  # fmt: skip
"""Targets, and the path at the provider; ``None`` where nothing is asked."""


class TestAddress:
    """No request decides which host is asked."""

    def test_the_first_part_of_the_path_does(self, open_gateway, upstream, other):
        for target, path in TARGETS:
            upstream.raw.clear()
            got = talk(open_gateway.url, get(target))
            assert other.raw == b"", target
            assert answers(got)[0] in ((400, 404) if path is None else (200,)), target
            if path is None:
                assert upstream.raw == b"", target
            else:
                assert upstream.raw.startswith(b"GET %s" % path), target
                assert b"\r\nhost: %s\r\n" % upstream.url[7:].encode() in upstream.raw.lower()

    def test_no_header_does(self, open_gateway, upstream):
        tricks = b"forwarded x-forwarded-host x-forwarded-for x-forwarded-proto x-original-url x-rewrite-url x-host"
        lines = [b"%s: evil.example" % name for name in tricks.split()]
        assert answers(talk(open_gateway.url, post(CHAT, *lines))) == [200]
        assert upstream.raw.startswith(b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1")

    def test_a_redirect_is_passed_on(self, open_gateway, upstream, other):
        upstream.answer = b"HTTP/1.1 307 Go\r\nlocation: %s/x\r\ncontent-length: 0\r\n\r\n" % other.url.encode()
        got = talk(open_gateway.url, post())
        assert answers(got) == [307]
        assert b"location: " + other.url.encode() in got
        assert other.raw == b""

    @pytest.mark.parametrize("encode", [bytes, gzip.compress], ids=["plain", "gzip"])
    def test_a_server_that_names_itself_is_asked_through_the_gateway(self, open_gateway, upstream, other, encode):
        """Anthropic's SDKs ask for the answers of a batch where the batch says, with the key that they have."""
        body = encode(b'{"id": "b", "results_url": "%s/v1/messages/batches/b/results"}' % other.url.encode())
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nlocation: %s/x\r\ncontent-length: %d\r\n"
        coding = b"content-encoding: gzip\r\n" if encode is gzip.compress else b""
        other.answer = b"%b%b\r\n%b" % (head % (other.url.encode(), len(body)), coding, body)
        target = b"/anthropic/v1/messages/batches/b"
        got = talk(open_gateway.url, get(target))
        assert b"location: http://localhost/anthropic/x\r\n" in got
        assert got.endswith(b'"results_url": "http://localhost/anthropic/v1/messages/batches/b/results"}')
        behind_tls = talk(open_gateway.url, get(target, b"host: localhost", b"x-forwarded-proto: https"))
        assert b'"https://localhost/anthropic/v1/messages/batches/b/results"' in behind_tls

    def test_the_bytes_of_an_upload_go_through_the_gateway(self, guarded, upstream):
        """The SDKs of Google send them to the address in the first answer: for Node with their key, for Python without."""
        running, key = guarded
        own = upstream.url.encode()
        lines = b"x-goog-upload-url: %b/v1/files?upload_id=a\r\nx-goog-upload-control-url: %b/v1/a\r\n" % (own, own)
        upstream.answer = b"HTTP/1.1 200 OK\r\n" + lines + b"content-length: 0\r\n\r\n"
        begun = talk(running.url, post(b"/openai/v1/files", b"authorization: Bearer " + key))
        target = begun.partition(b"x-goog-upload-url: http://localhost")[2].partition(b"\r\n")[0]
        assert target == b"/openai/v1/files?upload_id=a&key=" + key
        assert b"x-goog-upload-control-url: http://localhost/openai/v1/a?key=" + key in begun
        assert answers(talk(running.url, post(target))) == [200]
        assert b"POST /v1/files?upload_id=a HTTP/1.1\r\n" in upstream.raw
        assert key not in upstream.raw

    @pytest.mark.parametrize(
        "path", [b"/openai/v1/chat/%63ompletions", b"/openai/v1/chat%2fcompletions", b"/openai/v1/chat/completions/"]
    )
    def test_another_spelling_of_a_path_is_paced_too(self, open_gateway, upstream, path):
        before = granted(open_gateway)
        assert answers(talk(open_gateway.url, post(path))) == [200]
        assert granted(open_gateway) == before + 1
        assert upstream.raw.startswith(b"POST " + path[7:])


class TestUploads:
    """Bodies that are not read pass as they come, of any size."""

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch):
        monkeypatch.setattr(incoming, "UPLOAD_FROM", 1_000)
        monkeypatch.setattr(incoming, "BODY_MAX", 10_000)

    @pytest.mark.parametrize("path", [b"/openai/v1/files", b"/openai/v1/uploads/u/parts"])
    @pytest.mark.parametrize("chunked", [False, True])
    def test_one_passes_as_it_comes(self, open_gateway, upstream, path, chunked):
        body = b"x" * 300_000
        length = b"content-length: 300000"
        if chunked:
            length, body = b"transfer-encoding: chunked", b"493e0\r\n" + body + b"\r\n0\r\n\r\n"
            upstream.answer, upstream.then = b"", partial(answer_to_chunks, upstream)
        with connect(open_gateway.url) as client:
            client.sendall(post(path, length, length=False, body=body[:200_000]))
            until(lambda: len(upstream.raw) > 100_000)
            client.sendall(body[200_000:])
            assert answers(read(client, 1)) == [200]
        head, _, sent = upstream.raw.partition(b"\r\n\r\n")
        assert length in head
        assert sent.count(b"x") == 300_000

    def test_an_early_answer_comes_before_the_rest_of_a_body_that_was_asked_for(self, serve):
        async def early(_scope, _receive, send):
            await tell(send, {}, 413)

        lines = b"expect: 100-continue", b"content-length: 300000"
        with stub(early) as url, connect(serve(url).url) as client:
            client.sendall(post(b"/openai/v1/files", *lines, length=False, body=b""))
            assert answers(read(client, 2)) == [100, 413]
            client.sendall(b"x" * 300_000 + post(b"/openai/v1/files"))
            assert answers(read(client, 1)) == [413]

    def test_a_key_without_the_right_is_refused_before_the_body(self, guarded, upstream):
        running, key = guarded
        lines = b"authorization: Bearer " + key, b"content-length: 300000"
        head = post(b"/openai/v1/batches", *lines, length=False, body=b"")
        assert answers(talk(running.url, head, 1)) == [403]
        assert upstream.raw == b""

    def test_the_call_ends_with_the_client(self, serve, own_upstream):
        running = serve(own_upstream.url)
        with connect(running.url) as client:
            client.sendall(post(b"/openai/v1/files", b"content-length: 300000", length=False, body=b"x" * 2_000))
            until(lambda: own_upstream.raw.endswith(b"x" * 2_000))
        until(lambda: own_upstream.open == 0)
        until(lambda: idle(running))


class TestHeaders:
    @pytest.mark.parametrize(
        "lines",
        [
            [b"connection: authorization"],
            [b"connection: close, Authorization, content-length, host"],
            [b"connection: keep-alive", b"connection: authorization, x-api-key"],
            [b"connection: transfer-encoding, content-type"],
            [b"authorization: Bearer client", b"authorization: Bearer client2", b"api-key: client3"],
            [b"x-api-key: client", b"x-goog-api-key: client"],
            [b"proxy-authorization: Basic client"],
            [b"connection: keep-alive", b"connection: X-Hop", b"x-hop: 1"],
        ],
    )
    def test_the_gateway_sends_its_own_key(self, open_gateway, upstream, lines):
        assert answers(talk(open_gateway.url, post(CHAT, *lines))) == [200]
        head = upstream.raw.lower()
        assert head.count(b"authorization:") == 1
        assert b"authorization: bearer sk-of-openai\r\n" in head
        assert b"client" not in head
        assert b"x-hop" not in head
        assert b"content-length: %d\r\n" % len(BODY) in head

    NEVER = (
        b"X-HTTP-Method x-http-method-override x-method-override x_http_method-override X-Original-URL x_rewrite_url"
    ).split()
    ACCOUNT = (
        b"OpenAI-Organization openai-project openai_project x-goog-user-project x-dashscope-workspace cookie"
    ).split()
    OTHERS = b"anthropic-beta anthropic-version chatgpt-account-id openai-beta x-title x-of-tomorrow".split()

    def test_no_header_changes_the_method_the_path_or_the_account(self, open_gateway, upstream):
        lines = [b"%b: value%d" % (name, number) for number, name in enumerate(self.NEVER + self.ACCOUNT)]
        others = [name + b": other" for name in self.OTHERS]
        assert answers(talk(open_gateway.url, post(CHAT, *lines, *others))) == [200]
        assert b"value" not in upstream.raw
        assert upstream.raw.count(b": other\r\n") == len(others)

    def test_the_account_of_a_clients_own_key_is_named(self, servers, upstream, tmp_path, monkeypatch):
        with attacked(servers, tmp_path / "keys.json") as running:
            monkeypatch.setattr(type(running.gateway.upstreams.servers["openai"]), "key", "")
            lines = [name + b": value" for name in self.NEVER + self.ACCOUNT]
            upstream.answer = reply(b"200 OK", b"set-cookie: a=1", b"openai-organization: mine", body=GOOD)
            got = talk(running.url, post(CHAT, b"authorization: Bearer own", *lines))
        assert upstream.raw.count(b": value\r\n") == len(self.ACCOUNT)
        assert b"set-cookie: a=1\r\n" in got
        assert b"openai-organization: mine\r\n" in got

    @pytest.mark.parametrize("status", [b"200 OK", b"404 No"])
    def test_what_an_answer_tells_of_the_account_stays_here(self, open_gateway, upstream, status):
        names = (b"Set-Cookie", b"openai-organization", b"openai-project", b"anthropic-organization-id")
        lines = [*(name + b": value" for name in names), b"x-request-id: 1", b"anthropic-priority: 2"]
        upstream.answer = reply(status, *lines, body=GOOD)
        got = talk(open_gateway.url, post())
        assert b": value\r\n" not in got
        assert b"x-request-id: 1\r\n" in got
        assert b"anthropic-priority: 2\r\n" in got

    def test_its_own_page_is_served_and_no_other_server_s_of_this_machine(self, open_gateway):
        """Older browsers send no sec-fetch-site."""
        own = open_gateway.url.encode()
        for origin, status in ((own, 200), (b"http://localhost:1", 403), (b"http://127.0.0.1", 403)):
            sent = b"GET /status HTTP/1.1\r\nhost: %b\r\norigin: %b\r\n\r\n" % (own.removeprefix(b"http://"), origin)
            assert answers(talk(open_gateway.url, sent)) == [status]


def reply(status=b"200 OK", *headers, body=b"", length=True):
    lines = [b"HTTP/1.1 " + status, *headers]
    if length:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def reply_in_chunks(body=b"", *headers):
    """What comes of it at first: these bytes."""
    return reply(b"200 OK", b"transfer-encoding: chunked", *headers, length=False, body=body)


@cache
def bomb():
    return gzip.compress(b"0" * 50_000_000, 1)


class TestAnswers:
    """Servers that answer against the rules."""

    @pytest.mark.parametrize(
        "answer",
        [
            reply_in_chunks(b"zz\r\n"),
            reply_in_chunks(b"5\r\nhello"),
            reply(b"200 OK", b"content-length: 100", length=False, body=b"short"),
            reply_in_chunks(b"7\r\nab\r\nabc\r\n0\r\n\r\n", b"content-length: 5"),
        ],
    )
    def test_a_broken_body_breaks_the_connection(self, open_gateway, upstream, answer, caplog):
        upstream.answer, upstream.then = answer, socket.socket.close
        with connect(open_gateway.url) as connection:
            connection.sendall(post())
            got = read(connection, 1)
        assert answers(got) in ([200], [], [502])
        assert not got.endswith(b"0\r\n\r\n")
        assert "Traceback" not in caplog.text

    @pytest.mark.parametrize(
        ("answer", "status"),
        [
            (reply(b"304 Not Modified", b"content-length: 100", length=False), 304),
            (reply(b"204 No Content", length=False), 204),
            (b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000 + b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + ANSWER, 200),
            (reply(b"200 OK", b"connection: x-hop, close", b"x-hop: 1", b"keep-alive: 5", b"upgrade: h2c"), 200),
        ],
    )
    def test_unusual_heads_are_passed_on(self, open_gateway, upstream, answer, status, caplog):
        upstream.answer = answer
        got = talk(open_gateway.url, get(b"/openai/v1/models") * 2, 2)
        assert answers(got) == [status] * 2
        assert (b"x-hop" in got, b"upgrade" in got, "Traceback" in caplog.text) == (False, False, False)

    def test_a_head_answer_keeps_its_length(self, open_gateway, upstream, caplog):
        upstream.answer = reply(b"200 OK", b"content-length: 100", length=False)
        got = talk(open_gateway.url, get(b"/openai/v1/models", method=b"HEAD") * 2, 2)
        assert answers(got) == [200] * 2
        assert (b"content-length: 100" in got, "Traceback" in caplog.text) == (True, False)

    @pytest.mark.parametrize("status", [b"200 OK", b"400 Bad Request", b"429 Too Many Requests"])
    @pytest.mark.parametrize("kind", [b"application/json", b"text/event-stream"])
    def test_a_compressed_bomb_passes_as_it_is(self, open_gateway, upstream, status, kind):
        lines = b"content-type: " + kind, b"content-encoding: gzip", b"x-should-retry: false"
        upstream.answer = reply(status, *lines, body=bomb())
        own = BODY.replace(b"gpt-5", b"m-%d" % next(NUMBERS))
        tracemalloc.start()
        got = talk(open_gateway.url, post(CHAT, b"x-paceline-timeout: 0", b"accept-encoding: gzip", body=own))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(got) < 1_000_000
        assert most < 30_000_000

    def test_a_server_that_never_answers_is_a_504(self, serve, upstream):
        upstream.answer = b""
        running = serve(upstream.url, timeout_s=0.1)
        assert answers(talk(running.url, b"GET /openai/v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")) == [504]

    @pytest.mark.parametrize(
        ("begun", "part"),
        [
            (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 10),
            (b"HTTP/1.1 200 OK\r\n", b"x: %s\r\n" % (b"a" * 60_000)),
            (reply_in_chunks(), b"400\r\n" + b"a" * 1_024 + b"\r\n"),
        ],
        ids=["informational", "head", "answer"],
    )
    def test_an_endless_answer_ends_with_the_client(self, serve, own_upstream, begun, part):
        def pour(connection):
            while True:
                connection.sendall(part)
                time.sleep(0.001)

        own_upstream.answer, own_upstream.then = begun, pour
        running = serve(own_upstream.url)
        with connect(running.url) as connection:
            connection.sendall(post())
            until(lambda: own_upstream.open)
            if b"chunked" in begun:
                assert len(connection.recv(100_000)) > 0
        until(lambda: idle(running))
        until(lambda: own_upstream.open == 0)


class TestRights:
    """A client's key is no key to the provider's account."""

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("POST", "/openai/v1/batches"),
            ("POST", "/openai/v1/b%61tches"),
            ("POST", "/v1/videos"),
            ("POST", "/openai/v1/fine_tuning/jobs"),
            ("DELETE", "/openai/v1/files/x"),
            ("GET", "/openai/v1/organization/admin_api_keys"),
            ("GET", "/openai/v1/chat/completions"),
            ("POST", "/anthropic/v1/messages/batches"),
            ("GET", "/openai/v1/models/x/permissions"),
        ],
    )
    def test_unmetered_endpoints_are_none_of_its(self, guarded, upstream, other, method, path):
        running, key = guarded
        request = post(path.encode(), b"authorization: Bearer " + key, body=b"{}").replace(b"POST", method.encode(), 1)
        assert answers(talk(running.url, request)) == [403]
        assert not upstream.raw
        assert not other.raw

    def test_further_ones_are_named(self, upstream, own_upstream, keys):
        headers = b"authorization: Bearer " + keys.add("ci", endpoints=("GET /v1/models", "/v1/files*")).encode()
        with attacked((upstream, own_upstream), keys.file) as running:
            for method, path, status in (
                (b"GET", b"/openai/v1/models", 200), (b"GET", b"/openai/v1/m%6fdels?limit=2", 200), (b"POST", b"/v1/models", 403),
                (b"DELETE", b"/openai/v1/files/x", 200), (b"GET", b"/openai/v1/models/x", 403), (b"POST", CHAT, 200),
            ):  # fmt: skip
                request = post(path, headers).replace(b"POST", method, 1)
                assert answers(talk(running.url, request)) == [status], (method, path)

    def test_limits_and_further_endpoints_exclude_each_other(self, keys):
        unmetered = "/v1/files", "GET /v1/files", "/v1/models", "POST /v1/models", "GET /v1/models*", "GET /*/models"
        for one in ({"limits": ("10 usd/day",)}, {"models": ("gpt-5",)}):
            for endpoint in unmetered:
                with pytest.raises(SettingsError, match="don't apply at unmetered endpoints"):
                    keys.add("ci", endpoints=(endpoint,), **one)
        with pytest.raises(SettingsError, match="a path at the provider, or a method and a path"):
            keys.add("ci", endpoints=("batches",))
        assert keys.add("lists", endpoints=("GET /v1/models",), limits=("10 usd/day",))

    @pytest.mark.parametrize("named", [False, True])
    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("GET", "/v1/models"),
            ("GET", "/v1beta/models/gemini-2.5-flash"),
            ("HEAD", "/openai/models"),
            ("GET", "/api/tags"),
            ("GET", "/api/version"),
        ],
    )
    def test_what_costs_nothing_goes_with_limits(self, keys, method, path, named):
        endpoints = {"endpoints": (f"{method} {path}",)} if named else {}
        secret = keys.add("a", limits=("10 usd/day",), **endpoints)
        key = KeyFile(keys.file).find(secret)
        assert key.may_use(method, path)
        assert not key.may_use(method, "/v1/files")
        assert not key.may_use("POST", path)

    def test_a_file_of_an_earlier_release_is_read(self, keys):
        key = keys.add("old")
        content = json.loads(keys.file.read_text())
        del content["keys"][0]["endpoints"]
        keys.file.write_text(json.dumps(content))
        assert not KeyFile(keys.file).find(key).may_use("GET", "/v1/files")


class TestKeysStay:
    """A client's key reaches no server, and a provider's key reaches no client and no log."""

    QUERIES = (b"", b"?key=%s", b"?a=1&api_key=%s&b=2", b"?%%6bey=%s", b"?key=other&key=%s")
    PLACES = (b"", b"x-api-key: %s", b"x-goog-api-key: %s", b"cookie: a=%s", b"x-other: Token %s", b"x-api-key: other")

    @pytest.mark.parametrize(
        ("line", "query"), [*((line, b"?key=%s") for line in PLACES), *((b"x-api-key: %s", query) for query in QUERIES)]
    )
    def test_that_of_the_client(self, guarded, upstream, line, query):
        running, key = guarded
        lines = [b"authorization: Bearer " + key] + ([line.replace(b"%s", key)] if line else [])
        got = talk(running.url, post(CHAT + query.replace(b"%s", key).replace(b"%%", b"%"), *lines))
        assert answers(got) == [200]
        assert not any(word in upstream.raw for word in (key, key[:20], b"other"))
        assert b"authorization: bearer sk-of-openai\r\n" in upstream.raw.lower()

    @pytest.mark.parametrize(
        "lines",
        [
            [b"authorization: BEARER KEY"],
            [b"authorization: bearer  KEY"],
            [b"authorization: Bearer pk-wrong", b"x-api-key: KEY"],
            [b"x-api-key: wrong", b"authorization: Bearer KEY"],
        ],
    )
    def test_a_right_one_counts_beside_wrong_ones(self, guarded, upstream, lines):
        running, key = guarded
        assert answers(talk(running.url, post(CHAT, *[line.replace(b"KEY", key) for line in lines]))) == [200]
        assert key not in upstream.raw
        assert b"wrong" not in upstream.raw

    @pytest.mark.parametrize(
        "line",
        [
            *(b"authorization: " + value for value in (
                b"Bearer ", b"Bearer pk-wrong", b"Basic pk-wrong", b"pk-" + b"a" * 60_000, b"Bearer \xff\xfe", b"Bearer KEYx", b"Bearer \tKEY KEY",
            )),
            b"x-api-key:", b"cookie: key=KEY", b"x-paceline-key: KEY", b"proxy-authorization: Bearer KEY",
        ],
    )  # fmt: skip
    def test_a_wrong_one_gets_nothing(self, guarded, upstream, line, caplog):
        running, key = guarded
        for path in (CHAT, b"/status", b"/metrics", b"/api/v1/queue/x", b"/unknown"):
            got = talk(running.url, post(path, line.replace(b"KEY", key)))
            assert (answers(got), key in got, upstream.raw) == ([401], False, b"")
        assert key.decode() not in caplog.text

    def test_the_first_one_holds_at_once(self, serve, upstream, keys, at_once):
        running = serve(upstream.url)
        assert answers(talk(running.url, post())) == [200]
        keys.add("alice")
        assert answers(talk(running.url, post())) == [401]

    @pytest.mark.parametrize(
        ("status", "encoding", "path"),
        [
            (b"401 Unauthorized", None, CHAT),
            (b"400 Bad Request", b"gzip", CHAT),
            (b"429 Too Many Requests", b"deflate", CHAT),
            (b"500 Error", b"gzip", b"/openai/v1/files"),
            (b"401 Unauthorized", b"deflate", b"/openai/v1/files"),
        ],
    )
    def test_that_of_the_provider_in_an_error(self, guarded, upstream, status, encoding, path, caplog):
        running, key = guarded
        echo = b'{"error": {"message": "wrong key: Bearer %s"}}' % PROVIDER_KEY
        body = {None: bytes, b"gzip": gzip.compress, b"deflate": zlib.compress}[encoding](echo)
        headers = [b"x-echo: Bearer " + PROVIDER_KEY, b"retry-after: 1000", b"content-type: application/json"]
        upstream.answer = reply(status, *headers, *([b"content-encoding: " + encoding] if encoding else []), body=body)
        lines = [b"authorization: Bearer " + key, b"accept-encoding: gzip, deflate"]
        got = talk(running.url, post(path, *lines, body=BODY.replace(b"gpt-5", b"m-%d" % next(NUMBERS))))
        assert answers(got) == [int(status[:3])]
        head, _, rest = got.partition(b"\r\n\r\n")
        assert b"content-encoding" not in head or PROVIDER_KEY not in zlib.decompress(rest, zlib.MAX_WBITS | 32)
        pages = (b"/status", b"/history", b"/metrics", b"/", b"/api/v1/openapi.json")
        shown = [talk(running.url, get(page, b"host: x", b"x-api-key: " + key)) for page in pages]
        assert [answers(page) for page in shown] == [[200]] * len(pages)
        assert PROVIDER_KEY not in b"".join([got, caplog.text.encode(), *shown])
        assert key not in b"".join(shown)

    @pytest.mark.long("starts two processes")
    def test_many_at_once_are_made(self, tmp_path):
        """Two commands that write the file at once do not lose a key."""
        code = "import sys; from pathlib import Path; from paceline.gateway.keys import KeyFile; KeyFile(Path(sys.argv[1])).add(sys.argv[2])"
        file = tmp_path / "keys.json"
        running = [subprocess.Popen([sys.executable, "-c", code, file, f"k{i}"]) for i in range(2)]
        assert [one.wait() for one in running] == [0] * 2
        assert len(KeyFile(file)) == 2


SLOW = [
    (b"", b""),
    (b"", b"\r"),
    (b"POST ", b"x"),
    (b"POST /openai/v1/x HTTP/1.1\r\nx: ", b"x"),
    (b"POST /openai/v1/x HTTP/1.1\r\n", b"x: y\r\n"),
    (post(CHAT, b"content-length: 1000", length=False), b"x"),
    (chunked(b""), b"1\r\nx\r\n"),
    (chunked(b"1\r\nx\r\n0\r\n"), b"x: y\r\n"),
    (post(), b""),  # no other request
    (post(), b"\r\n"),
    (post(), b"P"),
    (post(b"/status", b"content-length: 1000", length=False), b"x"),  # a body that is not waited for
    (post(CHAT, b"origin: null", b"content-length: 1000", length=False), b"x"),
    (post(CHAT, b"connection: upgrade", b"upgrade: h2c"), b"x"),
    (post(b"/openai/v1/files", b"content-length: 9999999", length=False), b"x"),
]
"""What a connection sends at first, and again and again."""


class TestSlowness:
    """Clients that take their time; the times are shortened."""

    @pytest.fixture(autouse=True)
    def short(self, monkeypatch):
        for name in ("HEAD_S", "KEEP_S", "WRITE_S"):
            monkeypatch.setattr(protocol, name, 0.2)
        monkeypatch.setattr(server, "KEEP_S", 0.2)
        monkeypatch.setattr(incoming, "BODY_S", 0.2)

    def test_the_connection_ends(self, serve, upstream):
        running = serve(upstream.url)

        def goes_on(first, then):
            """Whether the server leaves the connection open, however long this client takes."""
            with connect(running.url) as connection, suppress(ConnectionResetError, BrokenPipeError):
                connection.sendall(first)
                connection.settimeout(0.02)
                for _ in range(500):  # ten seconds
                    with suppress(TimeoutError):
                        if not connection.recv(65_536):
                            return False
                    connection.sendall(then)
                return True
            return False

        with ThreadPoolExecutor(len(SLOW)) as threads:
            left_open = list(threads.map(goes_on, *zip(*SLOW, strict=True)))
        assert [case for case, is_open in zip(SLOW, left_open, strict=True) if is_open] == []
        until(lambda: idle(running) and not running.server.server_state.connections)

    @pytest.mark.parametrize("stream", [False, True])
    def test_of_a_client_that_reads_nothing(self, serve, own_upstream, stream):
        def pour(connection):
            while True:
                connection.sendall(b"2400\r\n" + b"data: 1\n\n" * 1_024 + b"\r\n")
                time.sleep(0.001)

        own_upstream.answer = reply_in_chunks(b"", b"content-type: text/event-stream")
        own_upstream.then = pour
        running = serve(own_upstream.url, limits={"gpt-5": "600 requests/min burst 1"})
        with connect(running.url) as first, connect(running.url) as second:
            first.sendall(post())
            second.sendall(post(CHAT, b"x-paceline-keepalive: 1", body=json.dumps(chat(stream=stream)).encode()))
            until(lambda: granted(running) == 2)
            until(lambda: idle(running))
            until(lambda: own_upstream.open == 0)

    def test_of_one_that_reads_no_status(self, serve, upstream):
        running = serve(upstream.url)
        with connect(running.url) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
            with suppress(ConnectionResetError, BrokenPipeError):
                connection.sendall(b"GET /api/v1/openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 2_000)
            until(lambda: not running.server.server_state.connections)


class TestCrowds:
    def test_bodies_that_are_being_read_count(self, serve, upstream, monkeypatch):
        monkeypatch.setattr(incoming, "BODIES_MAX", 300_000)
        running = serve(upstream.url)
        with ExitStack() as stack:
            open_ones = [stack.enter_context(connect(running.url)) for _ in range(4)]
            for one in open_ones:
                one.sendall(post(CHAT, b"transfer-encoding: chunked", length=False, body=b"186a0\r\n" + b"x" * 99_999))
            refused = [answers(read(one, 1, 0.1)) for one in open_ones]
            assert [503] in refused
            assert running.dispatch._bodies._shares.total <= 400_000
        until(lambda: idle(running))

    @pytest.mark.parametrize("head", [b"content-length: 70000000", b"transfer-encoding: chunked"])
    def test_a_large_body_is_a_413(self, serve, upstream, head, monkeypatch):
        monkeypatch.setattr(incoming, "BODY_MAX", 1_000_000)
        running = serve(upstream.url)
        body = b"200000\r\n" + b"x" * 2**21 if b"chunked" in head else b"x" * 100
        assert answers(talk(running.url, post(CHAT, head, length=False, body=body))) == [413]
        assert upstream.raw == b""
        until(lambda: idle(running))

    @pytest.mark.parametrize(
        "body",
        [
            b"[" * 500_000,
            b'{"model":' * 100_000,
            b'{"model": ' + b"9" * 100_000 + b"}",
            b"\xff" * 1_000,
            b"\x1f\x8b" + b"\0" * 1_000,
            b'{"model": {"a": 1}, "messages": "x", "max_tokens": 1e999, "stream": "x"}',
            b'{"model": "gpt-5", "messages": [1, null, {"role": 3, "content": {"x": []}}], "max_tokens": -5}',
        ],
    )
    def test_a_hostile_body_is_passed_on(self, open_gateway, upstream, body, caplog):
        assert answers(talk(open_gateway.url, post(CHAT, body=body))) == [200]
        assert upstream.raw.endswith(body)
        assert "a request failed" not in caplog.text

    def test_a_hostile_name_forges_nothing(self, serve, upstream, caplog):
        running = serve(upstream.url)
        names = [
            "gpt-5\nINFO forged",
            'x"} 1\nforged 1',
            "<script>alert(1)</script>",
            "../../x",
            "\u202e",
            "\ud800",
            "a" * 5_000,
        ]
        with caplog.at_level(logging.INFO):
            for name in names:
                got = talk(running.url, post(CHAT, body=json.dumps(chat(model=name)).encode()))
                assert answers(got)[0] in (200, 429)
        metrics = talk(running.url, get(b"/metrics"))
        assert answers(metrics) == [200]
        assert not any(line.startswith(b"forged") for line in metrics.split(b"\n"))
        assert not any(record.getMessage().count("\n") for record in caplog.records)
        page = talk(running.url, get(b"/", b"host: localhost", b"accept: text/html"))
        assert b"<script>alert" not in page

    def test_a_connection_too_many_ends_the_one_that_is_idle_for_longest(self, serve, upstream, monkeypatch, caplog):
        monkeypatch.setattr(server, "CONNECTIONS_MAX", 3)
        monkeypatch.setattr(errors, "_told", {})
        running = serve(upstream.url)
        with ExitStack() as stack:
            open_ones = [stack.enter_context(connect(running.url)) for _ in range(3)]
            open_ones[0].sendall(post())
            assert answers(read(open_ones[0], 1)) == [200]
            newer = [stack.enter_context(connect(running.url)) for _ in range(2)]
            for one in newer:
                one.sendall(post())
                assert answers(read(one, 1)) == [200]
            for one in open_ones[1:]:  # its first request may be on its way
                got = read(one)
                assert (answers(got), b"retry-after: 1\r\n" in got) == ([503], True)
            open_ones[0].sendall(post())
            assert answers(read(open_ones[0], 1)) == [200]
            stack.enter_context(connect(running.url))
            assert read(newer[0]) == b""  # has had its answer
        assert "all 3 connections of this process are in use" in caplog.text

    def test_where_all_connections_have_a_request_another_one_gets_a_503(self, serve, upstream, monkeypatch):
        monkeypatch.setattr(server, "CONNECTIONS_MAX", 2)
        running = serve(upstream.url, limits={"gpt-5": "1 requests/day"})
        assert answers(talk(running.url, post())) == [200]
        with ExitStack() as stack:
            for number in range(2):
                stack.enter_context(connect(running.url)).sendall(post())
                until(lambda number=number: running.pool()["waiting"] == number + 1)
            assert answers(read(stack.enter_context(connect(running.url)))) == [503]

    def test_clients_that_vanish_leave_nothing(self, serve, own_upstream, ask):
        """Half of them while they wait, and half of them while their answer comes."""
        own_upstream.answer = reply_in_chunks(b"5\r\nhello\r\n")
        own_upstream.then = lambda connection: connection.recv(1)
        running = serve(own_upstream.url, limits={"gpt-5": "50 concurrency"})
        open_ones = ask(running.url, 100)
        until(lambda: running.pool()["in_flight"] == 50 and running.pool()["waiting"] == 50)
        for one in open_ones:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset
            one.close()
        until(lambda: idle(running))
        until(lambda: own_upstream.open == 0)
        counts = running.pool()["counts"]
        assert counts["granted"] == counts["settled"] + counts.get("cancelled", 0) >= 50


@pytest.mark.long("starts several processes")
class TestProcesses:
    """Signals, and the limit of open files."""

    @pytest.fixture
    def held(self, own_upstream):
        """A server that answers when it is let go."""
        own_upstream.answer, own_upstream.go = b"", threading.Event()

        def wait(connection):
            own_upstream.go.wait(60)
            connection.sendall(ANSWER.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))

        own_upstream.then = wait
        yield own_upstream
        own_upstream.go.set()

    def test_too_few_open_files_are_announced(self, process, upstream):
        one = process(upstream=upstream.url, files=1_000)
        text = "the limit of open files is 1000, so that a process takes 468 connections instead of 20000"
        until(lambda: text in one.log())

    def test_more_streams_than_files_are_handed_back_and_break_nothing(self, process, held, ask):
        one = process("--limit", "*=100k requests/min burst 1000", upstream=held.url, files=256)
        clients = ask(one.url, 300)
        most = (256 - server.FILES_OWN) // 2
        until(lambda: held.raw.count(b"POST ") == most and len(select.select(clients, [], [], 0)[0]) == 300 - most)
        early = select.select(clients, [], [], 0)[0]
        got = [read(client, 1) for client in early]
        assert {(*answers(one), b"retry-after: 1" in one) for one in got} == {(503, True)}
        held.go.set()
        assert [answers(read(client, 1)) for client in clients if client not in early] == [[200]] * most
        assert "failures in a row" not in one.log()

    def test_ctrl_c_hands_back_what_waits(self, process, held, ask):
        """Also where other processes share the quotas: who presses it does not want to wait."""
        given = ("--limit", "gpt-5=20 concurrency", "--store", "sqlite:quotas.db", "--drain", 0.1)
        one = process(*given, upstream=held.url)
        clients = ask(one.url, 60)
        until(lambda: waiting(one) == 40 and held.raw.count(b"POST ") == 20)
        one.signal(signal.SIGINT)
        until(lambda: len(select.select(clients, [], [], 0)[0]) == 40)
        first = select.select(clients, [], [], 0)[0]
        got = [read(client, 1) for client in first]
        assert [answers(one) for one in got] == [[503]] * 40
        assert all(b"retry-after: 1" in one for one in got)
        held.go.set()
        assert [answers(read(client, 1)) for client in clients if client not in first] == [[200]] * 20
        assert one.wait(10) == 0
        assert "Traceback" not in one.log()

    @pytest.mark.parametrize("workers", [1, 2])
    def test_with_a_store_what_waits_is_finished(self, process, held, ask, workers, tmp_path):
        file = tmp_path / "quotas.db"
        given = ("--limit", "gpt-5=20 concurrency", "--workers", workers, "--store", f"sqlite:{file}", "--drain", 0.1)
        one = process(*given, upstream=held.url)
        clients = ask(one.url, 60)
        until(lambda: waiting(one) == 40 and held.raw.count(b"POST ") == 20)
        one.signal(signal.SIGTERM)
        until(lambda: refused(one.url))
        held.go.set()
        assert [answers(read(client, 1)) for client in clients] == [[200]] * 60
        assert one.wait(10) == 0
        assert "Traceback" not in one.log()
        with closing(sqlite3.connect(file)) as database:
            ((text,),) = database.execute("SELECT state FROM pools WHERE name = ?", (POOL,)).fetchall()
        peers = SharedLedger.load(json.loads(text))._peers
        assert 1 <= len(peers._peers) <= workers  # the system chooses who gets the connections
        assert (peers.live, peers.told) == (0, 0), "they have signed off"

    def test_sigterm_after_a_time_ends_what_is_in_flight(self, serve, held, ask, caplog):
        running = serve(held.url, stop_s=1, limits={"gpt-5": "1 requests/day"})
        clients = ask(running.url, 2)
        until(lambda: running.pool()["in_flight"] == 1 and running.pool()["waiting"] == 1)
        running.stop()
        assert not running.thread.is_alive()
        assert [answers(read(client, 1)) for client in clients] == [[503], [503]]
        assert "Traceback" not in caplog.text
        assert "those that wait get a 503: 1" in caplog.text

    def test_a_body_that_ends_after_the_signal_is_handed_back(self, serve, upstream):
        running = serve(upstream.url, limits={"gpt-5": "1 requests/day"})
        assert answers(talk(running.url, post())) == [200]
        with connect(running.url) as client:
            client.sendall(post()[:-5])
            until(lambda: running.dispatch._under_way.total)
            running.server.should_exit = True
            until(lambda: running.gateway.life.draining)
            client.sendall(post()[-5:])
            assert answers(read(client, 1)) == [503]

    def test_kill_loses_no_charge(self, process, own_upstream, ask, tmp_path):
        """What was in flight when a gateway was killed stays charged for the next one."""
        arguments = ("--limit", "gpt-5=6000 requests/hour window", "--store", f"sqlite:{tmp_path / 'quotas.db'}")
        one = process(*arguments, upstream=own_upstream.url)
        own_upstream.answer = b""
        ask(one.url, 120)
        until(lambda: own_upstream.raw.count(b"POST ") == 120)
        one.signal(signal.SIGKILL)
        one.wait()
        own_upstream.answer = ANSWER
        one = process(*arguments, upstream=own_upstream.url)
        assert answers(talk(one.url, post())) == [200]
        until(lambda: status(one)["pools"][POOL]["quotas"][0]["remaining"] <= 6_000 - 121)

    def test_a_killed_worker_is_started_again(self, process, upstream):
        one = process("--workers", 2, "--log-format", "json", upstream=upstream.url)
        until(lambda: len(one.workers()) == 2)
        workers = one.workers()
        until(lambda: answers(talk(one.url, post())) == [200])
        os.kill(workers[0], signal.SIGKILL)
        for _ in range(20):
            assert answers(talk(one.url, post()))[-1:] in ([200], [])
        until(lambda: len(set(one.workers()) - {workers[0]}) == 2)
        until(lambda: all(answers(talk(one.url, post())) == [200] for _ in range(5)))
        talk(one.url, post(b"/openai/v1/unheard"))  # which is sent without a permit, as the log says
        until(lambda: "/v1/unheard" in one.log())
        assert all(json.loads(line)["level"] for line in one.log().splitlines())

    def test_workers_end_when_the_first_process_was_killed(self, process, upstream):
        def is_there(pid):
            try:
                return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
            except OSError:
                return False

        one = process("--workers", 2, "--drain", 0, upstream=upstream.url)
        until(lambda: len(one.workers()) == 2)
        until(lambda: answers(talk(one.url, post())) == [200])
        workers = one.workers()
        one.signal(signal.SIGKILL)
        try:
            until(lambda: not any(map(is_there, workers)))
        finally:
            for pid in filter(is_there, workers):
                os.kill(pid, signal.SIGKILL)
        with pytest.raises(OSError):
            connect(one.url)

    @pytest.fixture
    def slow_start(self, tmp_path, monkeypatch):
        slowly = "import sys, time\nif any('spawn_main' in word for word in sys.orig_argv): time.sleep(6)\n"
        (tmp_path / "sitecustomize.py").write_text(slowly)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))

    @pytest.mark.long("a process takes six seconds to start")
    def test_ctrl_c_ends_workers_that_start(self, process, upstream, slow_start):
        one = process("--workers", 2, upstream=upstream.url)
        until(lambda: len(one.workers()) == 2)
        for number in (one.process.pid, *one.workers()):
            os.kill(number, signal.SIGINT)  # as a terminal does
        one.wait(server.HUNG_S / 2)
        assert "Traceback" not in one.log()

    @pytest.mark.long("a process takes six seconds to start")
    def test_a_worker_that_starts_slowly_is_not_started_again(self, process, upstream, slow_start):
        """On a busy machine all start so slowly; those that were started again lost the connections that they had accepted."""
        one = process("--workers", 2, upstream=upstream.url)
        until(lambda: len(one.workers()) == 2)
        workers = one.workers()
        until(lambda: answers(talk(one.url, post())) == [200])
        assert one.workers() == workers


@pytest.mark.soak
class TestSoak:
    def test_10_000_idle_connections(self, process, upstream):
        import resource

        one = process(upstream=upstream.url)
        before = one.memory()
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        with ExitStack() as stack:
            for number in range(10_000):
                open_one = stack.enter_context(connect(one.url))
                if number % 2:
                    open_one.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert [answers(talk(one.url, post())) for _ in range(20)] == [[200]] * 20
            assert one.memory() - before < 10_000 * 40_000

    def test_rounds_of_2_000_clients_that_vanish(self, process, own_upstream, ask):
        own_upstream.answer = reply_in_chunks(b"5\r\nhello\r\n")
        own_upstream.then = lambda connection: connection.recv(1)
        one = process("--limit", "gpt-5=300 concurrency", upstream=own_upstream.url)
        levels = []
        for _ in range(16):
            open_ones = ask(one.url, 2_000)
            until(lambda: waiting(one) == 1_700)
            for each in open_ones:
                each.close()
            until(lambda: waiting(one) == 0 and own_upstream.open == 0)
            levels.append(one.memory())
        assert max(levels[-3:]) < 1.1 * max(levels[4:8])
