"""Clients that wait long: notes on their streams, answers before they give up, and places for those that come back."""

import gc
import gzip
import json
import math
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from threading import Thread
from types import SimpleNamespace

import anthropic
import httpx2
import openai
import pytest
from attack_helpers import leave, read, read_until
from gateway_helpers import CHAT, chat, stub
from google import genai
from google.genai import errors
from test_gateway import SSE, Odd
from test_plans import OLD, PRINTS, TERMINAL

from paceline.gateway import waiting
from paceline.gateway.waiting import (
    COMMENT,
    KEEPALIVE,
    PING,
    PLACE_S,
    PLACES_MAX,
    HeldRequest,
    KeptPlaces,
    hears,
    identity,
    note_for,
    patience_s,
    resumes,
    returns,
)
from waits import until

STREAM = b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\ndata: [DONE]\n\n'
STAINLESS = [(b"x-stainless-lang", b"js")]


@pytest.mark.parametrize(
    ("provider", "path", "query", "headers", "note"),
    [
        ("openai", "/v1/chat/completions", "", [], COMMENT),
        ("anthropic", "/v1/messages", "", [], PING),
        ("anthropic", "/v1/chat/completions", "", [], COMMENT),
        ("openai", "/v1/responses", "", [], KEEPALIVE),
        ("openai", "/v1/responses", "", STAINLESS, COMMENT),
        ("gemini", "/v1beta/models/m:streamGenerateContent", "alt=sse", [], b"\n"),
        ("gemini", "/v1beta/models/m:streamGenerateContent", "", [], None),
        ("bedrock", "/model/m/converse-stream", "", [], None),
        ("cohere", "/v2/chat", "", [], COMMENT),
    ],
)
def test_a_note_has_the_form_that_clients_count(provider, path, query, headers, note):
    assert note_for(provider, path, query, headers) == note


DAY = {"x-stainless-runtime": "node", "x-stainless-timeout": "86400"}


@pytest.mark.parametrize(
    ("agent", "more", "facts"),
    [
        ("", {}, (True, False, False, None)),
        (PRINTS, {"x-stainless-runtime": "node"}, (False, True, False, 360)),
        (TERMINAL, {}, (False, True, True, 360)),
        (TERMINAL, {"x-claude-code-agent-id": "a"}, (False, True, False, 360)),
        ("claude-cli/3.0 (external, cli)", {}, (False, True, True, 360)),
        (OLD, {"x-stainless-timeout": "600"}, (False, True, False, 300)),
        ("claude-cli/next (external, cli)", {}, (False, True, False, 300)),
        (f"claude-cli/{'9' * 5_000} (external, cli)", {}, (False, True, True, 360)),
        (PRINTS, DAY, (True, True, False, 86_400)),
        (OLD, DAY, (True, True, False, 300)),  # the limits of the later one alone are lifted
        ("ai/6.0 runtime/node.js/v20.20.2", DAY, (True, False, False, 300)),
        ("ai/6.0 runtime/node.js/v20.20.2", {}, (True, False, False, 300)),
        ("opencode/1.18.33 ai-sdk/provider-utils/4.0.46 runtime/bun/1.3.14", {}, (True, False, False, 300)),
        ("codex_exec/0.171.0 (Debian 12.0.0; x86_64)", {}, (True, False, False, None)),
        ("GeminiCLI-tui/0.61.0/gemini-3.1-pro-preview (linux; x64; terminal)", {}, (True, False, False, 60)),
        ("OpenAI/JS 6.49.0", {"x-stainless-runtime": "node"}, (True, False, False, 300)),
        ("", {"x-stainless-runtime": "CPython", "x-stainless-read-timeout": "600"}, (True, False, False, 600)),
        ("", {"x-stainless-timeout": "NOT_GIVEN", "x-stainless-read-timeout": "900.0"}, (True, False, False, 900)),
        ("", {"x-stainless-read-timeout": "20"}, (True, False, False, None)),  # the user's own
        ("", {"x-stainless-read-timeout": "nan"}, (True, False, False, None)),
        ("", {"x-stainless-read-timeout": "inf"}, (True, False, False, None)),
    ],
)
def test_whether_a_client_hears_returns_and_resumes_and_when_it_gives_up(agent, more, facts):
    headers = [(name.encode(), value.encode()) for name, value in {"user-agent": agent, **more}.items()]
    assert (hears(headers), returns(headers), resumes(headers), patience_s(headers)) == facts


class TestPlaces:
    @pytest.fixture
    def ended(self):
        return []

    @pytest.fixture
    def places(self, ended):
        return KeptPlaces(lambda held, _: ended.append(held))

    def held(self, body=b"body", key="alice", headers=(), *, waits=True):
        identify = partial(identity, key, "one ", "POST /v1?", list(headers), body)
        return HeldRequest(SimpleNamespace(waits=waits), identify, 0.0)

    def claim(self, places, held, opened_s, now_s):
        return places.claim(held.identify().key, held.identify, opened_s, now_s)

    def test_one_is_claimed_once_by_a_later_connection(self, places, ended):
        held, parts = self.held(), [b"body"]
        assert places.keep(held, parts, 10.0)
        assert (parts, held.parts, held.exchange.present.is_set()) == ([], [b"body"], False)
        assert self.claim(places, held, 9.9, 11.0) is None
        assert self.claim(places, held, 10.1, 11.0) is held
        assert held.exchange.present.is_set()
        assert self.claim(places, held, 10.1, 11.0) is None
        assert (len(places), ended) == (0, [])

    def test_those_of_one_body_are_claimed_in_order(self, places):
        both = [self.held(), self.held()]
        for number, one in enumerate(both):
            assert places.keep(one, [], float(number))
        assert [self.claim(places, both[0], 5.0, 5.0) for _ in range(3)] == [*both, None]

    def test_it_ends_after_a_minute(self, places, ended):
        held = self.held()
        places.keep(held, [], 10.0)
        places.expire(10.0 + PLACE_S)
        assert ended == []
        assert self.claim(places, held, 20.0, 10.1 + PLACE_S) is None
        assert ended == [held]

    def test_its_body_is_hashed_once(self, places, ended):
        held, made = self.held(), []
        identify, held.identify = held.identify, lambda: made.append(1) or identify()
        assert places.keep(held, [], 10.0)
        places.clear()
        assert (ended, made) == ([held], [1])

    def test_another_key_or_body_has_no_claim(self, places):
        named = [(b"idempotency-key", b"1")]
        places.keep(self.held(headers=named), [], 1.0)
        for other in (
            self.held(),
            self.held(headers=[(b"idempotency-key", b"2")]),
            self.held(key="bob", headers=named),
            self.held(b"another", headers=named),
        ):
            assert self.claim(places, other, 2.0, 2.0) is None
        assert self.claim(places, self.held(headers=named), 2.0, 2.0) is not None

    def test_none_is_kept_of_what_is_in_flight_nor_beyond_the_bound(self, places, ended):
        assert not places.keep(self.held(waits=False), [], 1.0)
        assert all(places.keep(self.held(b"%d" % number), [], 1.0) for number in range(PLACES_MAX))
        assert not places.keep(self.held(), [], 1.0)
        assert places.keep(self.held(key="bob"), [], 1.0)
        places.clear()
        assert (len(places), len(ended)) == (0, PLACES_MAX + 1)


def by_openai(url, headers):
    with openai.OpenAI(api_key="k", base_url=f"{url}/v1", max_retries=0, default_headers=headers) as client:
        list(client.chat.completions.create(**chat(stream=True)))


def by_anthropic(url, headers):
    with anthropic.Anthropic(
        api_key="k", base_url=f"{url}/anthropic", max_retries=0, default_headers=headers
    ) as client:
        list(client.messages.create(**chat(stream=True)))


def by_genai(url, headers):
    with genai.Client(api_key="k", http_options={"base_url": url, "headers": headers}) as client:
        list(client.models.generate_content_stream(model="m", contents="Hi."))


class TestServed:
    """Over real connections; one request is in flight, and no other may be until it ends."""

    @pytest.fixture
    def key(self, keys, request):
        return keys.add("alice", limits=getattr(request, "param", ()))

    @pytest.fixture
    def running(self, serve, key, keys, send_chat):
        other = keys.add("bob")
        running = serve(odd := Odd(), limits={"*": "1 concurrency"})
        running.odd = odd
        odd.go.clear()
        send_chat(running, other)
        until(lambda: odd.seen)
        yield running
        odd.go.set()

    @pytest.fixture
    def at(self, serve):
        """Start a gateway in front of an odd server of a provider."""
        with ExitStack() as servers:

            def at(odd, provider, **given):
                url = servers.enter_context(stub(odd))
                return serve(url, provider=provider, upstreams={provider: {"base_url": url}}, **given)

            yield at

    @pytest.fixture
    def queue(self, send_chat):
        """Send a chat that has to wait; its connection, once it is in the queue."""

        def send(running, key, *lines, **fields):
            before = running.pool()["waiting"]
            connection = send_chat(running, key, *lines, **fields)
            until(lambda: running.pool()["waiting"] == before + 1)
            return connection

        return send

    def test_who_comes_back_has_its_place_and_is_sent_once(self, running, key, send_chat, queue):
        first = queue(running, key, user="first")
        second = queue(running, key, user="second")
        leave(running, first)
        assert running.pool()["waiting"] == 2
        back = send_chat(running, key, user="first")
        until(lambda: len(running.dispatch.held.places) == 0)
        assert running.pool()["waiting"] == 2
        running.odd.go.set()
        assert b"200 OK" in read(back, 1)
        assert b"200 OK" in read(second, 1)
        assert [json.loads(seen[-1]).get("user") for seen in running.odd.seen] == [None, "first", "second"]
        until(lambda: running.dispatch._bodies._shares.total == 0)

    @pytest.mark.parametrize("key", [(), ("1 concurrency",)], ids=["unlimited", "limited"], indirect=True)
    def test_nothing_is_sent_or_held_while_nobody_is_connected(self, running, key, send_chat, queue):
        leave(running, queue(running, key, user="first"))
        running.odd.go.set()
        until(lambda: running.pool()["counts"].get("cancelled") == 1)
        assert b"200 OK" in read(send_chat(running, key, user="second"), 1)
        assert b"200 OK" in read(send_chat(running, key, user="first"), 1)
        assert [json.loads(seen[-1]).get("user") for seen in running.odd.seen] == [None, "second", "first"]

    def test_nothing_is_sent_with_a_key_that_was_revoked_meanwhile(
        self, running, keys, key, queue, at_once, monkeypatch
    ):
        monkeypatch.setattr(waiting, "NOTES_FROM_S", 0.01)
        plain, stream = queue(running, key), queue(running, key, stream=True)
        begun = read_until(stream, b": waiting\n\n")
        keys.revoke("alice")
        running.odd.go.set()
        assert b"this key was revoked while its request waited" in read(plain, 1)
        assert b'"paceline_key"' in begun + read_until(stream, b"}\n\n")
        assert (len(running.odd.seen), running.pool()["waiting"]) == (1, 0)
        until(lambda: running.dispatch._bodies._shares.total == 0)

    def test_who_does_not_come_back_goes_without_a_garbage_collection(self, running, key, queue):
        gc.disable()
        try:
            leave(running, queue(running, key))
            running.odd.go.set()
            until(lambda: running.pool()["counts"].get("cancelled") == 1)
            running.loop.call_soon_threadsafe(running.dispatch.held.expire, math.inf)
            until(lambda: not any(type(one) is HeldRequest for one in gc.get_objects()))
        finally:
            gc.enable()

    def test_without_client_keys_a_place_is_kept_of_one_that_has_waited(self, serve, send_chat, queue, monkeypatch):
        running = serve(odd := Odd(), limits={"*": "1 concurrency"})
        odd.go.clear()
        send_chat(running, "none")
        until(lambda: odd.seen)
        queue(running, "none", user="first").close()
        until(lambda: running.pool()["waiting"] == 0)
        assert len(running.dispatch.held.places) == 0
        monkeypatch.setattr(waiting, "FRESH_S", 0.0)
        monkeypatch.setattr(waiting, "SOON", 0.0001)
        got = read(send_chat(running, "none", b"x-stainless-runtime: node", user="first"), 1).lower()
        assert got.startswith(b"http/1.1 429")  # before it gives up it is told to come back
        for line in (b"retry-after: 5\r\n", b"x-should-retry: true\r\n", b"connection: close\r\n"):
            assert line in got
        assert len(running.dispatch.held.places) == 1
        monkeypatch.setattr(waiting, "SOON", 0.9)
        other = queue(running, "another", user="first")  # with another key of a provider it is another request
        back = send_chat(running, "none", b"x-stainless-runtime: node", user="first")
        until(lambda: len(running.dispatch.held.places) == 0)
        assert running.pool()["waiting"] == 2
        odd.go.set()
        assert b"200 OK" in read(back, 1)
        assert b"200 OK" in read(other, 1)
        until(lambda: running.dispatch._bodies._shares.total == 0)

    def test_a_stream_is_kept_alive_by_default(self, running, key, send_chat, monkeypatch):
        monkeypatch.setattr(waiting, "NOTES_FROM_S", 0.01)
        monkeypatch.setattr(waiting, "NOTES_EVERY_S", 0.01)
        running.odd.parts, running.odd.headers = [STREAM], SSE
        connection = send_chat(running, key, stream=True)
        got, _ = [read_until(connection, b": waiting\n\n") for _ in range(2)]
        running.odd.go.set()
        read_until(connection, STREAM)
        assert got.startswith(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream")

    def test_an_invalid_option_leaves_the_place(self, running, key, send_chat, queue):
        leave(running, queue(running, key))
        assert b"400 Bad Request" in read(send_chat(running, key, b"x-paceline-keepalive: soon"), 1)
        assert len(running.dispatch.held.places) == 1

    @pytest.mark.parametrize("shared", [False, True])
    def test_one_that_waits_at_the_end_is_told_after_a_note(self, serve, client, kept, tmp_path, shared, caplog):
        got = []
        store = f"sqlite:{tmp_path / 'quotas.db'}" if shared else None
        running = serve(Odd(), store=store, limits={"*": "1 requests/day"}, stop_s=0.3)
        assert client.post(running.url + CHAT, json=chat()).status_code == 200
        with client.stream("POST", running.url + CHAT, json=chat(stream=True), headers=kept) as answer:
            lines = answer.iter_raw()
            assert next(lines)[:1] == b":"
            Thread(target=running.stop).start()
            with pytest.raises(httpx2.RemoteProtocolError):  # it breaks off, so that no client takes it for whole
                got.extend(lines)
        assert b'"paceline_stopping"' in got[-1]
        assert "without completing" not in caplog.text

    @pytest.mark.parametrize(
        ("provider", "asks"), [("openai", by_openai), ("deepseek", by_anthropic), ("gemini", by_genai)]
    )
    def test_an_error_of_the_gateway_after_a_note_is_raised_by_the_sdk(self, at, kept, provider, asks):
        odd = Odd([b'{"error": {"message": "Slow down."}}'], status=429, held=0)
        running = at(odd, provider, retry={"max_attempts": 1})
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(asks, f"{running.url}/{provider}", kept)
            until(lambda: any(one.answering for one in running.server.server_state.connections))
            odd.go.set()
            with pytest.raises((openai.APIError, anthropic.APIError, errors.APIError), match="Slow down"):
                asked.result()

    @pytest.mark.parametrize(("provider", "path"), [("ollama", "/api/chat"), ("cohere", "/v1/chat")])
    def test_a_stream_of_lines_of_json_gets_no_notes(self, at, client, kept, provider, path):
        lines = b'{"message": {"content": "hi"}, "done": false}\n{"done": true, "eval_count": 3}\n'
        odd = Odd([lines], {"content-type": "application/x-ndjson"}, held=0)
        running = at(odd, provider, limits={"*": "1k requests/min"})
        asked = {"model": "m", "messages": [{"role": "user", "content": "x"}], "message": "x", "stream": True}
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(client.post, f"{running.url}/{provider}{path}", json=asked, headers=kept)
            until(lambda: odd.seen)
            assert not wait([answer], timeout=0.05).done  # ten notes would have come
            odd.go.set()
            assert answer.result().content == lines

    def test_an_encoded_answer_after_a_note_is_decoded(self, serve, client, kept):
        odd = Odd([gzip.compress(STREAM)], SSE | {"content-encoding": "gzip"}, held=0)
        running = serve(odd)
        headers = {**kept, "accept-encoding": "gzip"}
        with client.stream("POST", running.url + CHAT, json=chat(stream=True), headers=headers) as answer:
            lines = answer.iter_raw()
            assert next(lines)[:1] == b":"
            odd.go.set()
            assert b"".join(lines).endswith(STREAM)
        assert odd.seen[0][3][b"accept-encoding"] == b"gzip"
