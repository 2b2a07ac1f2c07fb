"""The beginning of a stream is held in the gateway; its comments and pings pass on."""

import json
import threading
from contextlib import ExitStack

import anthropic
import httpx2
import pytest
from gateway_helpers import chat

from claude_events import OPEN, OVERLOADED, PING, START, STOP, WORD
from odd_server import HTML, SSE, OddServer, sse
from paceline.providers import verdict

pytestmark = pytest.mark.usefixtures("short_probes")

FAST = {"limits": {"*": "60k requests/min"}, "retry": {"backoff_s": 0.01}}
SOON = {"retry-after-ms": "5"}
ASKED = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi."}]}


@pytest.fixture
def odd():
    with ExitStack() as servers:
        yield lambda answer: servers.enter_context(OddServer(answer))


def named(*events):
    return sse(*events, name=True)


@pytest.fixture
def stream(serve, odd):
    """Pass a stream through a gateway: a server sends its parts, and at ``...`` waits until the client has ``until``.

    With ``then`` this is the answer to the next attempt. Gives the head, what the client had by then, the server and the gateway.
    """

    def stream(until, *parts, head=SSE, then=None, **given):
        go = threading.Event()
        first_try = 200, head, [go if part is ... else part for part in parts]
        server = odd(lambda number, _: first_try if number == 0 or then is None else (200, SSE, then))
        running = serve(server.base_url, provider="anthropic", **given)
        asked = {"url": f"{running.url}/v1/messages", "json": ASKED | {"stream": True}}
        with httpx2.Client() as client, client.stream("POST", **asked) as answer:
            first, lines = b"", answer.iter_raw()
            while until not in first:
                first += next(lines)
            go.set()
            whole = first + b"".join(lines)
        wanted = parts if then is None else (*parts[: parts.index(...)], then)
        assert whole == b"".join(part for part in wanted if part is not ...)
        return answer, first, server, running

    return stream


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(verdict, "HELD_S", 0.05)


def test_pings_pass_on_before_the_answer_begins_and_it_follows(stream):
    parts = *named(PING), b": a comment\n\n", ..., *named(START, OPEN, WORD, STOP)
    answer, first, *_ = stream(b": a comment\n\n", *parts, head=SSE | {"x-request-id": "r"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (200, "r")
    assert b"message_start" not in first


def test_a_ping_inside_of_the_beginning_stays_there_and_the_head_has_what_is_known(stream, short):
    answer, *_ = stream(b"ping", *named(START, OPEN, PING), ..., *named(WORD, STOP))
    assert answer.headers["x-paceline-attempts"] == "1"


@pytest.mark.parametrize("before", [[], [b": a comment\n\n"]])
def test_the_beginning_passes_on_when_its_hold_is_over(stream, short, before):
    parts = *before, *named(START), ..., *named(OPEN, WORD, OVERLOADED)
    _, first, server, running = stream(b"message_start", *parts)
    assert b"Hello." not in first
    assert len(server.asked) == 1
    assert running.pool("anthropic/m")["counts"]["refused_capacity"] == 1


def test_the_length_of_a_refused_attempt_does_not_bound_the_answer(stream):
    note, (error,) = b": k\n\n", named(OVERLOADED)
    head = SSE | SOON | {"content-length": str(len(note + error))}
    right = b"".join(named(START, OPEN, *[WORD] * 9, STOP))
    answer, *_ = stream(note, note, ..., error, head=head, then=right, headroom_s=0, **FAST)
    assert "content-length" not in answer.headers


def test_the_last_refusal_below_a_head_is_an_event(serve, odd):
    go = threading.Event()
    server = odd(lambda *_: (200, SSE | SOON, [*named(PING), go, *named(START, OVERLOADED)]))
    running = serve(server.base_url, provider="anthropic", headroom_s=0, **FAST, max_attempts=2)
    with (
        anthropic.Anthropic(api_key="k", base_url=running.url, max_retries=0) as client,
        client.messages.stream(**ASKED) as stream,
    ):
        go.set()
        with pytest.raises(anthropic.APIStatusError, match="refused"):
            list(stream.text_stream)
    assert len(server.asked) == 2


def test_a_page_is_said_to_be_one(serve, odd):
    running = serve(odd(lambda *_: (200, HTML, b"<html>Back at ten")).base_url)
    answer = httpx2.post(f"{running.url}/v1/chat/completions", json=chat())
    error = json.loads(answer.content)["error"]
    assert (answer.status_code, error["code"]) == (502, "paceline_unreadable")
    assert error["message"].endswith("is not from this API: a page of 17 bytes, and no JSON object")
