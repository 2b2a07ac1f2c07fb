"""The beginning of a stream is held in the gateway; its comments and pings pass on."""

import json
import threading
from contextlib import ExitStack, contextmanager

import anthropic
import httpx2
import pytest
from gateway_helpers import chat

from odd_server import HTML, SSE, OddServer, sse
from paceline.providers import verdict

pytestmark = pytest.mark.usefixtures("short_probes")

FAST = {"limits": {"*": "60k requests/min"}, "retry": {"backoff_s": 0.01}}
MESSAGE = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "m", "stop_reason": None, "usage": {"input_tokens": 3, "output_tokens": 1}}  # fmt: skip
START, PING = {"type": "message_start", "message": MESSAGE}, {"type": "ping"}
WORD = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello."}}
OPEN = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
STOP = {"type": "message_stop"}
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
SOON = {"retry-after-ms": "5"}
ASKED = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi."}]}


@pytest.fixture
def odd():
    with ExitStack() as servers:
        yield lambda answer: servers.enter_context(OddServer(answer))


def named(*events):
    return sse(*events, name=True)


@contextmanager
def streamed(running):
    """An answer of Anthropic's API that streams."""
    with (
        httpx2.Client() as client,
        client.stream("POST", f"{running.url}/v1/messages", json=ASKED | {"stream": True}) as answer,
    ):
        yield answer


def read_with_pause(answer, until, go):
    """Read to the first part with ``until``, let the server go on, and read the rest; returns both."""
    first, lines = b"", answer.iter_raw()
    while until not in first:
        first += next(lines)
    go.set()
    return first, b"".join(lines)


def test_pings_pass_on_before_the_answer_begins_and_it_follows(serve, odd):
    go = threading.Event()
    parts = [*named(PING), b": a comment\n\n", go, *named(START, OPEN, WORD, STOP)]
    server = odd(lambda *_: (200, SSE | {"x-request-id": "r"}, parts))
    running = serve(server.base_url, provider="anthropic")
    with streamed(running) as answer:
        assert (answer.status_code, answer.headers["x-request-id"]) == (200, "r")
        first, rest = read_with_pause(answer, b": a comment\n\n", go)
    assert b"message_start" not in first
    assert first + rest == b"".join(part for part in parts if isinstance(part, bytes))


def test_a_ping_inside_of_the_beginning_stays_there_and_the_head_has_what_is_known(serve, odd, monkeypatch):
    monkeypatch.setattr(verdict, "HELD_S", 0.05)
    go = threading.Event()
    parts = [*named(START, OPEN, PING), go, *named(WORD, STOP)]
    running = serve(odd(lambda *_: (200, SSE, parts)).base_url, provider="anthropic")
    with streamed(running) as answer:
        assert answer.headers["x-paceline-attempts"] == "1"
        first, rest = read_with_pause(answer, b"ping", go)
    assert first + rest == b"".join(part for part in parts if isinstance(part, bytes))


@pytest.mark.parametrize("before", [[], [b": a comment\n\n"]])
def test_the_beginning_passes_on_when_its_hold_is_over(serve, odd, monkeypatch, before):
    monkeypatch.setattr(verdict, "HELD_S", 0.05)
    go = threading.Event()
    parts = [*before, *named(START), go, *named(OPEN, WORD, OVERLOADED)]
    server = odd(lambda *_: (200, SSE, parts))
    running = serve(server.base_url, provider="anthropic")
    with streamed(running) as answer:
        first, rest = read_with_pause(answer, b"message_start", go)
    assert b"Hello." not in first
    assert first + rest == b"".join(part for part in parts if isinstance(part, bytes))
    assert len(server.asked) == 1
    assert running.pool("anthropic/m")["counts"]["refused_capacity"] == 1


def test_the_length_of_a_refused_attempt_does_not_bound_the_answer(serve, odd):
    go = threading.Event()
    parts, right = [b": k\n\n", go, *named(OVERLOADED)], b"".join(named(START, OPEN, *[WORD] * 9, STOP))
    length = {"content-length": str(sum(len(part) for part in parts if isinstance(part, bytes)))}
    server = odd(lambda number, _: (200, SSE | SOON | length, parts) if number == 0 else (200, SSE, right))
    running = serve(server.base_url, provider="anthropic", headroom_s=0, **FAST)
    with streamed(running) as answer:
        assert "content-length" not in answer.headers
        first, rest = read_with_pause(answer, b": k\n\n", go)
    assert first + rest == b": k\n\n" + right


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
