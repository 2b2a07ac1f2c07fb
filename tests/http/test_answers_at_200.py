"""Refusals, errors and pages that come with status 200, under real SDKs and HTTP libraries: nothing is lost."""

import asyncio
import json
import threading
from contextlib import ExitStack

import anthropic
import httpx2
import openai
import pytest
from chats import ANSWER, CHAT, EVENTS, REFUSED, STREAM, URL, WHOLE, attached, counts, pool_of
from http_ways import WAYS, chat_at

import paceline
from claude_events import OPEN, OVERLOADED, PING, START, STOP, WORD
from odd_server import HTML, JSON, SSE, OddServer, sse

pytestmark = pytest.mark.usefixtures("short_probes")

LIMITS = {"openai/*": "60k requests/min", "anthropic/*": "60k requests/min", "gemini/*": "60k requests/min"}
PAGE = b"<!DOCTYPE html><html><title>Back at ten</title></html>"
SOON = JSON | {"retry-after-ms": "5"}


def limiter_of(**options):
    """Without headroom: a refusal empties a bucket, and no second passes until the next attempt."""
    retry = paceline.RetryPolicy(backoff_s=0.01, jitter=0.0)
    return paceline.Limiter(LIMITS, retry=retry, headroom_s=0, **options)


@pytest.fixture
def serve():
    """Start servers with an answer each, which end with the test."""
    with ExitStack() as servers:
        yield lambda answer: servers.enter_context(OddServer(answer))


def first(count, wrong, right):
    """So many wrong answers, and then right ones."""
    return lambda number, _: wrong if number < count else right


def openai_at(server, **options):
    return openai.OpenAI(api_key="k", base_url=f"{server.base_url}/v1", **options)


BODIES = {
    "error": REFUSED,
    "beside choices": REFUSED | {"choices": []},
    "minimax": {"choices": None, "base_resp": {"status_code": 1002, "status_msg": "rate limit"}},
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_two_thirds_of_the_answers_are_refusals_and_each_call_has_its_result(serve, body):
    server = serve(lambda number, _: (200, SOON, ANSWER if number % 3 == 2 else body))
    limiter = limiter_of()
    with limiter.attach(openai_at(server, max_retries=0), provider="openai") as client:
        texts = [client.chat.completions.create(**CHAT).choices[0].message.content for _ in range(2)]
    assert texts == ["Hi."] * 2
    assert (counts(limiter)["settled"], len(server.asked)) == (2, 6)


def test_the_pool_pauses_and_the_last_refusal_is_an_error(serve):
    limiter = limiter_of()
    server = serve(lambda *_: (200, JSON | {"retry-after": "30"}, REFUSED))
    limiter.pacer.retry = paceline.RetryPolicy(max_attempts=1)
    with (
        limiter.attach(openai_at(server, max_retries=2), provider="openai") as client,
        pytest.raises(openai.RateLimitError, match="1 attempt made: Rate limit exceeded"),
    ):
        client.chat.completions.create(**CHAT)
    assert len(server.asked) == 1
    assert 25 < pool_of(limiter)["cool_down_s"] <= 30.25


WRONG = {
    "page": (200, HTML, PAGE),
    "text": (200, {}, b"OK"),
    "nothing": (200, JSON, b""),
    "cut": (200, JSON, b'{"choices": [{"mes'),
    "choices": (200, JSON, ANSWER | {"choices": []}),
    "another": (200, JSON, {"status": "maintenance"}),
    "fault": (200, JSON, {"error": {"code": 502, "message": "Bad gateway"}}),
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
def test_what_is_no_answer_is_a_fault_of_the_server_that_sdks_repeat(serve, answer, monkeypatch):
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    server, limiter = serve(first(1, answer, (200, JSON, ANSWER))), limiter_of()
    with limiter.attach(openai_at(server, max_retries=1), provider="openai") as client:
        assert client.chat.completions.create(**CHAT).choices[0].message.content == "Hi."
    assert counts(limiter)["settled"] == 2
    server = serve(lambda *_: answer)
    with (
        limiter.attach(openai_at(server, max_retries=0), provider="openai") as client,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        client.chat.completions.create(**CHAT)
    assert caught.value.status_code == 502
    assert "Back at ten" not in str(caught.value)


def test_an_error_of_the_request_has_its_status(serve):
    server = serve(lambda *_: (200, JSON, {"error": {"code": 400, "message": "no such parameter"}}))
    with (
        limiter_of().attach(openai_at(server), provider="openai") as client,
        pytest.raises(openai.BadRequestError, match="no such parameter"),
    ):
        client.chat.completions.create(**CHAT)
    assert len(server.asked) == 1


# --- streams

ENDED = [
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    STOP,
]
LIMITED = {
    "type": "error",
    "error": {"type": "rate_limit_error", "message": "This request would exceed the rate limit"},
}


def anthropic_at(server, limiter):
    client = anthropic.Anthropic(api_key="k", base_url=server.base_url, max_retries=0)
    return limiter.attach(client, provider="anthropic")


@pytest.mark.parametrize("error", [OVERLOADED, LIMITED])
@pytest.mark.parametrize("before", [0, 1, 3])
def test_an_error_before_the_first_content_of_anthropics_is_a_refused_attempt(serve, error, before):
    wrong = (200, SSE | {"retry-after-ms": "5"}, sse(*[START, PING, OPEN][:before], error, name=True))
    server = serve(first(2, wrong, (200, SSE, sse(START, PING, OPEN, WORD, *ENDED, name=True))))
    limiter = limiter_of()
    client = anthropic_at(server, limiter)
    with client, client.messages.stream(**CHAT) as stream:
        assert "".join(stream.text_stream) == "Hello."
    assert (len(server.asked), counts(limiter, "anthropic/gpt-5")["settled"]) == (3, 1)


def test_an_error_after_content_is_the_callers(serve):
    server, limiter = serve(lambda *_: (200, SSE, sse(START, PING, OPEN, WORD, OVERLOADED, name=True))), limiter_of()
    client = anthropic_at(server, limiter)
    with client, client.messages.stream(**CHAT) as stream:
        texts = stream.text_stream
        assert next(texts) == "Hello."
        with pytest.raises(anthropic.APIStatusError):
            next(texts)
    assert len(server.asked) == 1


# --- HTTP libraries, and parts of any size

READERS = {
    name: WAYS[name] for name in ("requests streamed", "urllib3 streamed", "aiohttp", "httpx", "httpx2", "httpx2 async")
}
each_reader = pytest.mark.parametrize("ask", READERS.values(), ids=READERS)


@pytest.mark.sample(6)
@each_reader
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_what_was_held_comes_whole_and_is_settled(serve, ask, size):
    parts = [WHOLE[at : at + size] for at in range(0, len(WHOLE), size)]
    wrong = (200, SSE, sse(REFUSED))
    server, limiter = serve(first(1, wrong, (200, SSE, parts))), limiter_of()
    with paceline.instrument(limiter, provider="openai"):
        assert ask(chat_at(server), STREAM) == (200, WHOLE)
    assert (counts(limiter)["settled"], len(server.asked)) == (1, 2)


@each_reader
@pytest.mark.parametrize("code", ["context_length_exceeded", "invalid_prompt", "invalid_image"])
def test_an_error_of_the_request_at_the_beginning_of_a_stream_comes_as_its_event(serve, ask, code):
    """Codex knows by the event that its context is full. A 500 instead is what it, and SDKs, repeat."""
    failed = {"id": "r", "status": "failed", "error": {"code": code, "message": "no"}}
    said = sse({"type": "response.created"}, {"type": "response.failed", "response": failed}, name=True)
    server, limiter = serve(lambda *_: (200, SSE, said)), limiter_of()
    with paceline.instrument(limiter, provider="openai"):
        assert ask(chat_at(server), STREAM) == (200, b"".join(said))
    assert (len(server.asked), pool_of(limiter)["in_flight"]) == (1, 0)
    assert [(row["status"], row["cause"]) for row in limiter.status()["answers"]] == [(400, "request")]


@each_reader
def test_the_first_content_is_not_waited_beyond(serve, ask):
    """The rest of the answer comes when the caller has had its beginning."""
    go = threading.Event()
    server, limiter = serve(lambda *_: (200, SSE, [*EVENTS[:2], go, EVENTS[2]])), limiter_of()
    begun = limiter.pacer.pools.of_model("openai", "gpt-5")
    begun.begun = lambda _: go.set()
    with paceline.instrument(limiter, provider="openai"):
        assert ask(chat_at(server), STREAM) == (200, WHOLE)


@each_reader
def test_a_page_in_the_place_of_a_stream(serve, ask):
    server, limiter = serve(lambda *_: WRONG["page"]), limiter_of()
    with paceline.instrument(limiter, provider="openai"):
        status, text = ask(chat_at(server), STREAM)
    assert (status, json.loads(text)["error"]["code"]) == (502, "paceline_unreadable")
    assert pool_of(limiter)["in_flight"] == 0


def test_a_body_that_breaks_off_before_its_content_is_a_broken_connection():
    limiter = paceline.Limiter(LIMITS, retry=paceline.RetryPolicy(max_attempts=2, backoff_s=0.01, faults=True))
    with attached(limiter, httpx2.Response(200, stream=_Breaks())) as client, pytest.raises(httpx2.ReadError):
        client.post(URL, json=CHAT)
    assert (counts(limiter), pool_of(limiter)["in_flight"]) == ({"granted": 2, "settled": 2}, 0)


class _Breaks(httpx2.SyncByteStream):
    def __iter__(self):
        yield b'{"choices": ['
        raise httpx2.ReadError("gone")


async def test_a_caller_that_leaves_while_a_beginning_is_held_leaves_no_connection(serve):
    go = threading.Event()
    server, limiter = serve(lambda *_: (200, SSE, [EVENTS[0], go, EVENTS[1]])), limiter_of()
    async with httpx2.AsyncClient() as client:
        limiter.attach(client, provider="openai")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.post(chat_at(server), json=STREAM)
        assert client._transport.inner._pool.connections == []
    go.set()
    assert pool_of(limiter)["in_flight"] == 0
