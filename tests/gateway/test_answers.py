"""Requests with an ``Idempotency-Key`` that come again: their answers are kept, for each client key, within bounds."""

import gzip
import logging

import pytest
from attack_helpers import connect, leave, post, read, read_until
from gateway_helpers import CHAT, chat, stub
from test_gateway import SSE, Odd

from paceline.gateway import answers as module
from paceline.gateway import app, waiting
from paceline.gateway.answers import ANSWER_S, KeptAnswers
from paceline.gateway.relay import ClientReply, Noted
from paceline.gateway.shares import Shares
from paceline.gateway.waiting import Identity
from waits import until

ANSWER = b'{"choices": [{"message": {"content": "hi"}}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}'
CHUNK = b'data: {"choices": [{"delta": {"content": "%d"}}]}\n\n'
PARTS = [*(CHUNK % number for number in range(3)), b"data: [DONE]\n\n"]
ERROR = b'data: {"error": {"message": "overloaded", "type": "server_error"}}\n\n'


def seen(body, status=200, headers=()):
    """An answer that was read to its end."""
    reply = ClientReply(status, list(headers), body)
    reply.start(Noted(10**9, 10**9, "", Shares()))
    reply.seen.extend(body)
    return reply


def same(number=0, key="alice", content=b"content"):
    return Identity(key, b"%d" % number, content)


class TestAnswers:
    @pytest.fixture
    def answers(self):
        return KeptAnswers()

    def keep(self, answers, identity, body=b"{}", now_s=0.0, **given):
        answers.keep(identity, seen(body, **given), now_s, stream=True)

    def test_it_is_forgotten_in_time(self, answers):
        for number in range(3):
            self.keep(answers, same(number), now_s=float(number))
        answers.expire(1.5 + ANSWER_S)
        assert [answers.get(same(number)) is None for number in range(3)] == [True, True, False]
        answers.expire(9.0 + ANSWER_S)
        assert not answers._kept
        assert not answers._sizes

    @pytest.mark.parametrize(
        ("name", "most"),
        [("ANSWERS_MAX", 2), ("OF_KEY_MAX", 2 * (module._BESIDE + 2)), ("ALL_MAX", 3 * (module._BESIDE + 2))],
    )
    def test_the_oldest_of_the_key_with_the_most_make_room(self, answers, monkeypatch, name, most):
        monkeypatch.setattr(module, name, most)
        self.keep(answers, same(key="bob"))
        for number in range(3):
            self.keep(answers, same(number))
        assert answers.get(same(key="bob"))
        assert [answers.get(same(number)) is None for number in range(3)] == [True, False, False]

    @pytest.mark.parametrize(
        ("body", "status", "headers"),
        [
            (b"{}", 500, []),
            (b"{}", 400, []),
            (b"".join(PARTS[:2]) + ERROR, 200, []),
            (b"".join(PARTS[:1]) * 10_000 + ERROR.rstrip(), 200, []),
            (gzip.compress(PARTS[0] + ERROR), 200, [(b"content-encoding", b"gzip")]),
            (b'{"text": "a"}\n{"error": {"message": "x"}}\n', 200, []),
        ],
    )
    def test_of_what_failed_none_is_kept(self, answers, body, status, headers):
        self.keep(answers, same(), body, status=status, headers=headers)
        assert answers.get(same()) is None

    def test_of_a_stream_that_ends_well_one_is_kept(self, answers):
        self.keep(answers, same(), b"".join(PARTS))
        assert answers.get(same()).body == b"".join(PARTS)

    @pytest.mark.parametrize(("accepted", "encoded"), [("gzip, deflate", True), ("br", False), ("", False)])
    def test_it_has_an_encoding_that_the_client_accepts(self, answers, accepted, encoded):
        headers = [(b"content-encoding", b"gzip"), (b"content-length", b"9"), (b"x-request-id", b"1")]
        self.keep(answers, same(), gzip.compress(ANSWER), headers=headers)
        reply = answers.get(same()).reply(accepted)
        assert ((b"content-encoding", b"gzip") in reply.headers) == encoded
        assert (b"x-request-id", b"1") in reply.headers
        assert (b"idempotent-replayed", b"true") in reply.headers


class TestServed:
    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch):
        monkeypatch.setattr(app, "LOOK_S", 0.05)

    @pytest.fixture
    def odd(self):
        return Odd([ANSWER])

    @pytest.fixture
    def key(self, keys):
        return keys.add("alice")

    @pytest.fixture
    def running(self, serve, odd, key):
        running = serve(odd)
        yield running
        odd.go.set()
        until(lambda: not running.dispatch._bodies._shares.total and not running.dispatch.held.answers._under_way)
        assert running.dispatch.held.answers._read.total == 0

    @pytest.fixture
    def ask(self, running, key, send_chat):
        def ask(name=b"1", key=key, headers=(), **fields):
            return send_chat(running, key, *headers, *([b"idempotency-key: " + name] if name else []), **fields)

        return ask

    def test_the_answer_comes_again_and_is_paid_once(self, running, odd, ask, caplog):
        with caplog.at_level(logging.DEBUG, "paceline"):
            first, again = read(ask(user="secret-prompt"), 1), read(ask(user="secret-prompt"), 1)
        assert ANSWER in first
        assert ANSWER in again
        assert b"idempotent-replayed" not in first
        assert b"idempotent-replayed: true\r\n" in again
        assert (len(odd.seen), odd.seen[0][3][b"idempotency-key"]) == (1, b"1")
        assert running.pool()["counts"]["granted"] == 1
        assert "secret-prompt" not in caplog.text
        assert '"hi"' not in caplog.text

    def test_another_body_is_a_422_and_another_client_is_another_request(self, odd, keys, ask, running, at_once):
        other = keys.add("bob")
        assert b"200 OK" in read(ask(), 1)
        refused = read(ask(user="another"), 1)
        assert refused.startswith(b"HTTP/1.1 422")
        assert b"this Idempotency-Key was used for another request" in refused
        assert b"200 OK" in read(ask(key=other), 1)
        assert b"200 OK" in read(ask(b""), 1)
        assert len(odd.seen) == 3

    def test_it_is_for_whoever_has_the_key_and_not_its_name(self, odd, keys, key, ask, at_once):
        assert b"200 OK" in read(ask(), 1)
        new = keys.rotate("alice", 600.0)
        assert [b"200 OK" in read(ask(key=one), 1) for one in (new, key)] == [True, True]
        assert len(odd.seen) == 1, "the owner is the same"
        keys.revoke("alice")
        got = read(ask(key=keys.add("alice")), 1)
        assert (b"200 OK" in got, b"idempotent-replayed" in got) == (True, False)
        assert len(odd.seen) == 2

    def test_it_is_of_one_server(self, serve, odd, keys, client):
        with stub(odd) as url:
            table = {"provider": "openai", "base_url": url, "key_env": "OPENAI_API_KEY", "models": {}}
            running = serve(url, provider=None, upstreams={"one": table, "two": table}, keys=keys.file)
            headers = {"authorization": f"Bearer {keys.add('alice')}", "idempotency-key": "1"}
            for name in ("one", "two", "one", "two"):
                path = f"{running.url}/{name}/v1/chat/completions"
                assert client.post(path, json=chat(), headers=headers).status_code == 200
        assert len(odd.seen) == 2

    @pytest.fixture
    def first(self, odd, ask):
        """The connection of a client whose request is in flight."""
        odd.go.clear()
        first = ask()
        until(lambda: odd.seen)
        return first

    def test_one_that_is_being_answered_is_a_409(self, odd, ask, first):
        refused = read(ask(), 1).lower()
        assert refused.startswith(b"http/1.1 409")
        assert b"retry-after: 5\r\n" in refused
        assert b"x-should-retry: true\r\n" in refused
        assert read(ask(user="another"), 1).startswith(b"HTTP/1.1 422")
        odd.go.set()
        assert b"200 OK" in read(first, 1)
        assert len(odd.seen) == 1

    @pytest.mark.parametrize(("most", "calls"), [(module.ANSWER_MAX, 1), (10, 2)], ids=["kept", "too large"])
    def test_a_client_that_leaves_in_flight_gets_its_answer_later(
        self, running, odd, ask, first, monkeypatch, most, calls
    ):
        monkeypatch.setattr(module, "ANSWER_MAX", most)
        leave(running, first)
        odd.go.set()
        until(lambda: len(running.dispatch.held.places) == 0)
        assert ANSWER in read(ask(), 1)
        assert (len(odd.seen), odd.gone) == (calls, 0)

    def test_one_that_leaves_within_a_stream_gets_it_from_the_beginning(self, running, odd, ask):
        odd.parts, odd.headers, odd.held = PARTS, SSE, 2
        odd.go.clear()
        first = ask(stream=True)
        read_until(first, PARTS[1])
        leave(running, first)
        back = ask(stream=True)
        got = read_until(back, PARTS[1])
        odd.go.set()
        assert PARTS[0] in got
        got = read(back, 0)
        assert PARTS[2] in got
        assert PARTS[3] in got
        assert (len(odd.seen), odd.gone) == (1, 0)

    def test_the_call_ends_if_no_client_comes_back(self, odd, ask, first, monkeypatch):
        monkeypatch.setattr(waiting, "PLACE_S", 0.0)
        first.close()
        until(lambda: odd.gone == 1)
        odd.go.set()
        assert ANSWER in read(ask(), 1)
        assert len(odd.seen) == 2

    def test_before_a_client_gives_up_in_flight_it_is_told_to_come_back(self, odd, ask, monkeypatch):
        monkeypatch.setattr(waiting, "SOON", 0.0001)
        odd.go.clear()
        assert read(ask(headers=[b"x-stainless-runtime: node"]), 1).startswith(b"HTTP/1.1 429")
        until(lambda: odd.seen)
        odd.go.set()
        assert ANSWER in read(ask(), 1)
        assert len(odd.seen) == 1

    def test_without_client_keys_none_is_kept(self, serve):
        running = serve(odd := Odd([ANSWER]))
        for _ in range(2):
            with connect(running.url) as connection:
                connection.sendall(post(CHAT.encode(), b"idempotency-key: 1"))
                assert ANSWER in read(connection, 1)
        assert len(odd.seen) == 2
        assert not running.dispatch.held.answers._kept
