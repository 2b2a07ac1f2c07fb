"""Usage from the bytes of an answer, cut anywhere."""

from __future__ import annotations

import json

import pytest
from cases import read, sse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_bedrock import CONVERSE, INVOKE, INVOKED, METADATA

from paceline.core.results import RefusalKind
from paceline.providers.base import Call, Usage
from paceline.providers.registry import provider_named

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
OPENAI, ANTHROPIC, BEDROCK, GEMINI = map(provider_named, ("openai", "anthropic", "bedrock", "gemini"))


def chunk(text, usage=None):
    return {"choices": [{"delta": {"content": text}}], "usage": usage}


CHAT = sse(
    chunk('hé\\n"usage":{}'), chunk("b"), {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}, "[DONE]"
)  # fmt: skip
RESPONSES = sse(
    {"type": "response.created", "response": {"usage": None, "error": None}},
    {"type": "response.output_text.delta", "delta": "x"},
    {"type": "response.completed", "response": {"usage": {"input_tokens": 9, "output_tokens": 4}}},
).replace(b"\n", b"\r\n")
MESSAGES = sse(
    {
        "type": "message_start",
        "message": {"usage": {"input_tokens": 3, "cache_read_input_tokens": 6, "output_tokens": 1}},
    },
    {"type": "content_block_delta", "delta": {"text": "usage"}},
    {"type": "message_delta", "usage": {"output_tokens": 2}},
    {"type": "message_delta", "usage": {"output_tokens": 4}},
    {"type": "message_stop"},
).replace(b"\n", b"\r\n")
SPREAD = b'data: {"choices":[],\ndata: "usage":{"prompt_tokens":9,\ndata:"completion_tokens":4}}\n\ndata: [DONE]\n\n'
LONE_CR = CHAT.replace(b"\n", b"\r")
ARRAY = '[{"candidates": [{"content": {"parts": [{"text": "hé }, ]"}]}}]},\r\n{"usageMetadata":\n{"promptTokenCount": 9, "candidatesTokenCount": 4}}]\r\n'.encode()
STREAMS = {
    "chat": (OPENAI, CHAT, Usage(9, 4)),
    "responses": (OPENAI, RESPONSES, Usage(9, 4)),
    "messages": (ANTHROPIC, MESSAGES, Usage(9, 4, 6)),
    "spread over lines": (OPENAI, SPREAD, Usage(9, 4)),
    "lone carriage returns": (OPENAI, LONE_CR, Usage(9, 4)),
    "chat at Anthropic": (ANTHROPIC, CHAT, Usage(9, 4)),
    "converse": (BEDROCK, CONVERSE + METADATA, Usage(11, 4, 2)),
    "invoke": (BEDROCK, INVOKE + INVOKED, Usage(11, 4, 2)),
}
BODIES = {
    "chat": (OPENAI, {"choices": [{"message": {"content": '"usage": {"prompt_tokens": 1}'}}], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}),
    "usage first": (OPENAI, {"usage": {"prompt_tokens": 9, "completion_tokens": 4}, "choices": [{"message": {"content": "é" * 300_000}}]}),
    "usage last": (OPENAI, {"data": [{"embedding": [0.1] * 50_000}], "usage": {"prompt_tokens": 9, "completion_tokens": 4}, "metadata": {"usage": "x"}}),
    "message": (ANTHROPIC, {"content": [{"text": "x" * 200_000}], "usage": {"input_tokens": 9, "output_tokens": 4}}),
}  # fmt: skip


def feed(provider, data, cuts, *, stream):
    """The reader of an answer that is cut; it is done at the last event."""
    reader, at = provider.usage_reader(Call(provider.name, "chat", "m", 1, stream=stream)), 0
    for cut in [*sorted(cuts), len(data)]:
        assert not reader.done or (stream and at >= len(data) - 2)
        reader.feed(data[at:cut])
        at = max(at, cut)
    return reader


@pytest.mark.parametrize("name", STREAMS)
@unhurried
@given(data=st.data())
def test_any_cut_of_a_stream_gives_the_same_usage(name, data):
    provider, stream, usage = STREAMS[name]
    each_byte = st.just(range(len(stream)))
    cuts = data.draw(each_byte | st.lists(st.integers(0, len(stream)), max_size=12))
    reader = feed(provider, stream, cuts, stream=True)
    assert (reader.usage, reader.done, reader.refusal) == (usage, True, None)
    reader.close()
    assert (reader.usage, reader.refusal) == (usage, None)


@pytest.mark.parametrize("size", [1, 2, 7, len(ARRAY)])
def test_any_cut_of_an_array_gives_the_same_usage(size):
    reader = feed(GEMINI, ARRAY, range(0, len(ARRAY), size), stream=True)
    assert reader.usage == Usage(9, 4)
    reader.close()
    assert reader.usage == Usage(9, 4)


@pytest.mark.parametrize("name", BODIES)
@unhurried
@given(data=st.data())
def test_any_cut_of_a_body_gives_the_same_usage(name, data):
    provider, answer = BODIES[name]
    body = json.dumps(answer).encode()
    reader = feed(provider, body, data.draw(st.lists(st.integers(0, len(body)), max_size=8)), stream=False)
    assert not reader.done
    reader.close()
    assert (reader.usage, reader.done) == (Usage(9, 4), True)


@pytest.mark.parametrize(
    ("provider", "stream"),
    [(OPENAI, sse(chunk("a"), chunk("b"))), *((BEDROCK, one) for one in (CONVERSE, INVOKE, CONVERSE + METADATA[:-1]))],
)
def test_a_stream_without_usage_or_cut_short_names_none(provider, stream):
    reader = feed(provider, stream, (), stream=True)
    assert not reader.done
    reader.close()
    assert (reader.usage, reader.done) == (None, True)


def test_events_that_one_blank_line_should_part_are_read_one_by_one():
    assert read(OPENAI, CHAT.replace(b"\n\n", b"\n"), stream=True).usage == Usage(9, 4)


def test_a_failed_response_is_a_refusal_and_ends():
    error = {"code": "rate_limit_exceeded", "message": "Rate limit reached: Limit 10, Used 10, Requested 1."}
    failed = sse({"type": "response.failed", "response": {"error": error, "usage": None}})
    reader = feed(OPENAI, failed, (), stream=True)
    assert (reader.done, reader.refusal.kind, reader.refusal.limit) == (True, RefusalKind.RATE, 10)


def test_memory_is_bounded():
    body = OPENAI.usage_reader(Call("openai", "chat", "m", 1))
    stream = OPENAI.usage_reader(Call("openai", "chat", "m", 1, stream=True))
    for _ in range(40):
        body.feed(b"x" * 1_000_000)
        stream.feed(b"x" * 1_000_000)
        assert len(body._head) + len(body._tail) <= 1_400_000
        assert len(stream._buffer) <= 18_000_000
    body.close()
    stream.close()
    assert body.usage is stream.usage is None
