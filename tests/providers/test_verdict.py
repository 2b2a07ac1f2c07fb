"""What an answer is follows from its bytes, cut anywhere: results, refusals, other errors, and what is none of an API."""

import json
import logging
from itertools import pairwise

import pytest
from cases import JSON, judged, sse
from hypothesis import given
from hypothesis import strategies as st

from odd_server import frame
from paceline.core.results import RefusalKind
from paceline.providers import verdict
from paceline.providers.base import Call
from paceline.providers.registry import provider_named
from paceline.providers.verdict import HELD_MAX, WHOLE_MAX, Beginning, Verdict
from paceline.responses.errors import is_result

TEXT = {"choices": [{"message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}]}
SSE = {"content-type": "text/event-stream"}


def begun(provider="openai", endpoint="chat", *, headers=SSE):
    return Beginning(provider_named(provider), Call(provider, endpoint, "m", 1, stream=headers is SSE), 200, headers)


RESULTS = {
    "chat": TEXT,
    "tool call": {"choices": [{"message": {"content": None, "tool_calls": [{"id": "a"}]}}]},
    "no text": {"choices": [{"message": {"content": None}, "finish_reason": "stop"}]},
    "error null": TEXT | {"error": None},
    "responses": {"object": "response", "status": "completed", "error": None, "output": [{"type": "message"}]},
    "in the background": {"id": "resp_1", "object": "response", "status": "queued", "error": None, "output": []},
    "messages": {"type": "message", "content": [{"type": "text", "text": "Hi."}]},
    "messages, no content": {"type": "message", "content": [], "stop_reason": "end_turn"},
    "embeddings": {"data": [{"embedding": [0.1]}]},
    "gemini": {"candidates": [{"content": {"parts": [{"text": "Hi."}]}}]},
    "gemini, blocked": {"promptFeedback": {"blockReason": "SAFETY"}},
    "cohere": {"message": {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]}},
    "ollama": {"message": {"role": "assistant", "content": ""}, "done": True},
    "cloudflare": {"result": {"response": "Hi."}, "success": True, "errors": [], "messages": []},
    "huggingface": [{"generated_text": "Hi."}],
    "dashscope": {"status_code": 200, "code": "", "message": "", "output": {"text": "Hi."}},
    "job": {"id": "a", "status": "starting", "output": None},
    "minimax": TEXT | {"base_resp": {"status_code": 0, "status_msg": "success"}},
    "usage alone": {"usage": {"prompt_tokens": 3}},
    "count of tokens": {"input_tokens": 14},
    "openai, count of tokens": {"object": "response.input_tokens", "input_tokens": 14},
    "gemini, count of tokens": {"totalTokens": 31, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 31}]},
    "bedrock, count of tokens": {"inputTokens": 14},
}


@pytest.mark.parametrize("body", RESULTS.values(), ids=RESULTS)
def test_results(body):
    assert judged(body).verdict is Verdict.RESULT
    assert is_result(body)


def test_bodies_that_are_no_json_are_results_where_they_can_be():
    assert judged(b"\x00\xffID3", endpoint="speech", headers={}).verdict is Verdict.RESULT
    assert judged(b"RIFF", endpoint="speech", headers={"content-type": "audio/wav"}).verdict is Verdict.RESULT
    assert (
        judged(b"WEBVTT\n", endpoint="transcriptions", headers={"content-type": "text/vtt"}).verdict is Verdict.RESULT
    )
    assert judged(b"<p>down", endpoint="transcriptions", headers={}).verdict is Verdict.UNREADABLE
    assert judged(b"\x1f\x8b\x08", headers={"content-encoding": "unheard-of"}).verdict is Verdict.RESULT


UNREADABLE = {
    "page": b"<!DOCTYPE html><html><title>Maintenance</title>",
    "nothing": b"",
    "text": b"OK",
    "cut": b'{"choices": [{"mess',
    "choices": {"id": "a", "choices": [], "usage": {"prompt_tokens": 3}},
    "candidates": {"candidates": [], "usageMetadata": {"promptTokenCount": 3}},
    "empty": {},
    "list": [],
    "number": b"7",
    "other": {"status": "maintenance", "message": "We are back at ten."},
}


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE)
def test_what_is_no_answer_of_the_api(body):
    found = judged(body, headers={})
    assert (found.verdict, found.status) == (Verdict.UNREADABLE, 502)
    assert found.why
    assert "Maintenance" not in found.why


def test_where_the_api_is_a_guess_an_unknown_object_is_a_result():
    assert judged(UNREADABLE["other"], strict=False).verdict is Verdict.RESULT
    assert judged(UNREADABLE["choices"], strict=False).verdict is Verdict.UNREADABLE
    assert judged(UNREADABLE["page"], strict=False).verdict is Verdict.UNREADABLE


REFUSALS = {
    "openrouter": ("openrouter", {"error": {"code": 429, "message": "Rate limit exceeded: free-models-per-min. "}}, "rate"),
    "openrouter, in a choice": ("openrouter", {"choices": [{"error": {"code": 429, "message": "Provider returned error"}}]}, "capacity"),
    "beside choices": (
        "openrouter", {"error": {"code": 429, "message": "Provider returned error"}, "choices": [{"message": {"content": "H"}}]}, "capacity"
    ),
    "by type": ("openai", {"error": {"type": "rate_limit_error", "message": "Slow down"}}, "rate"),
    "a status as text": ("openai", {"error": {"code": "429", "message": "Too many requests"}}, "rate"),
    "an empty choice": ("openai", {"error": {"code": 429, "message": "x"}, "choices": [{"message": {"content": None}}]}, "rate"),
    "anthropic": ("anthropic", {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "capacity"),
    "gemini": ("gemini", [{"error": {"code": 503, "status": "UNAVAILABLE", "message": "The model is overloaded."}}], "capacity"),
    "responses": (
        "openai", {"object": "response", "status": "failed", "error": {"code": "rate_limit_exceeded", "message": "Limit"}, "output": []}, "rate"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("provider", "body", "kind"), REFUSALS.values(), ids=REFUSALS)
def test_refusals_with_status_200(provider, body, kind):
    found = judged(body, provider=provider)
    assert (found.verdict, found.refusal.kind) == (Verdict.REFUSAL, RefusalKind(kind))
    assert found.status >= 400
    assert not is_result(body) or provider == "openrouter"


FAULTS = {
    "a number": ({"error": {"code": 400, "message": "no"}}, 400),
    "a type": ({"error": {"type": "invalid_request_error", "message": "no"}}, 400),
    "a text": ({"error": "the model has crashed"}, 500),
    "unknown": ({"error": {"message": "no"}}, 500),
    "tencent": ({"Response": {"Error": {"Code": "AuthFailure", "Message": "no"}, "RequestId": "a"}}, 500),
    "baidu": ({"error_code": 336003, "error_msg": "the max length of current question is too long"}, 500),
    "cloudflare": ({"success": False, "errors": [{"code": 5006, "message": "no"}], "result": None}, 500),
    "a code beside": ({"code": 50000, "msg": "internal", "data": None}, 500),
}


@pytest.mark.parametrize(("body", "status"), FAULTS.values(), ids=FAULTS)
def test_other_errors_with_status_200(body, status):
    found = judged(body)
    assert (found.verdict, found.status, found.refusal) == (Verdict.FAULT, status, None)
    assert found.error
    assert not is_result(body)


def test_a_result_with_an_error_beside_is_a_result_and_that_is_said_once(caplog):
    verdict._log_both.cache_clear()
    with caplog.at_level(logging.WARNING, "paceline"):
        for _ in range(2):
            assert judged(TEXT | {"error": {"code": 429}}).verdict is Verdict.RESULT
    assert [record.message for record in caplog.records] == [
        "openai: an answer with status 200 has a result and an error: it is taken for a result"
    ]


START = {"type": "message_start", "message": {"usage": {"input_tokens": 3}}}
BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
DELTA = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi."}}
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
CREATED = {"type": "response.created", "response": {"id": "a", "status": "in_progress", "error": None, "output": []}}
FAILED = {
    "type": "response.failed",
    "response": {
        "status": "failed",
        "error": {"code": "rate_limit_exceeded", "message": "Rate limit reached. Please try again in 2.512s."},
    },
}
WINDOWS = {
    "type": "codex.rate_limits",
    "plan_type": "plus",
    "rate_limits": {"allowed": True, "primary": {"used_percent": 4}},
}
ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
WORD = {"choices": [{"index": 0, "delta": {"content": "Hi."}}]}
INVALID = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}

STREAMS = {
    "anthropic": ("anthropic", sse(START, BLOCK, DELTA, name=True), Verdict.RESULT),
    "anthropic, refused": ("anthropic", sse(START, {"type": "ping"}, BLOCK, OVERLOADED, name=True), Verdict.REFUSAL),
    "anthropic, later": ("anthropic", sse(START, BLOCK, DELTA, OVERLOADED, name=True), Verdict.RESULT),
    "anthropic, invalid": ("anthropic", sse(START, INVALID, name=True), Verdict.FAULT),
    "thoughts": ("anthropic", sse(START, {"type": "content_block_start", "content_block": {"type": "thinking"}}), Verdict.RESULT),
    "responses": ("openai", sse(CREATED, {"type": "response.output_text.delta", "delta": "Hi."}), Verdict.RESULT),
    "responses, refused": ("openai", sse(CREATED, FAILED), Verdict.REFUSAL),
    "a plan's windows, refused": ("openai", sse(CREATED, WINDOWS, FAILED, name=True), Verdict.REFUSAL),
    "an error without an object": ("openai", sse({"type": "error", "code": "rate_limit_exceeded", "message": "x"}), Verdict.REFUSAL),
    "chat": ("openai", sse(ROLE, WORD, "[DONE]"), Verdict.RESULT),
    "a tool": ("openai", sse(ROLE, {"choices": [{"delta": {"tool_calls": [{"id": "a"}]}}]}), Verdict.RESULT),
    "reasoning": ("openai", sse(ROLE, {"choices": [{"delta": {"reasoning_content": "Hm"}}]}), Verdict.RESULT),
    "chat without a text": ("openai", sse(ROLE, {"choices": [{"delta": {}, "finish_reason": "stop"}]}), Verdict.RESULT),
    "azure": ("azure", sse({"choices": [], "prompt_filter_results": []}, {"error": {"code": "429", "message": "x"}}), Verdict.REFUSAL),
    "comments": ("openrouter", b": OPENROUTER PROCESSING\n\n" * 9 + sse({"error": {"code": 429, "message": "x"}, "choices": []}), Verdict.REFUSAL),
    "no blank line at the end": ("openai", sse(WORD).rstrip(), Verdict.RESULT),
    "carriage returns": ("openai", sse(ROLE, WORD).replace(b"\n", b"\r\n"), Verdict.RESULT),
    "no content": ("openai", sse(ROLE, "[DONE]"), Verdict.UNREADABLE),
    "nothing": ("openai", b"", Verdict.UNREADABLE),
    "a page": ("openai", b"<html>", Verdict.UNREADABLE),
    "json": ("openai", json.dumps(TEXT).encode(), Verdict.RESULT),
    "an error as json": ("openai", json.dumps({"error": {"code": 429, "message": "x"}}, indent=1).encode(), Verdict.REFUSAL),
    "gemini": ("gemini", sse({"candidates": [{"content": {"parts": [{"text": "Hi."}]}}]}), Verdict.RESULT),
    "gemini, refused": ("gemini", sse({"error": {"code": 503, "message": "x", "status": "UNAVAILABLE"}}), Verdict.REFUSAL),
    "an array": ("gemini", b'[{"candidates": [{"content": {}}]}\n,', Verdict.RESULT),
    "an array, refused": ("gemini", b'[{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}]', Verdict.REFUSAL),
    "lines": ("ollama", b'{"message": {"content": "Hi."}, "done": false}\n{"done": true}\n', Verdict.RESULT),
    "lines, fault": ("ollama", b'{"error": "the model has crashed"}\n', Verdict.FAULT),
}  # fmt: skip


@pytest.mark.parametrize(("provider", "body", "expected"), STREAMS.values(), ids=STREAMS)
@given(cuts=st.lists(st.integers(0, 400), max_size=8))
def test_a_stream_is_judged_by_its_first_content_wherever_it_is_cut(provider, body, expected, cuts):
    call = Call(provider, "chat", "m", 10, 5, stream=True)
    beginning = Beginning(provider_named(provider), call, 200, {} if body[:1] in b"[{<" else SSE)
    at = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    for start, end in pairwise(at):
        if beginning.feed(body[start:end]):
            break
    else:
        beginning.end()
    assert beginning.judged().verdict is expected


def test_lines_that_nobody_has_asked_for_are_a_stream():
    lines = b'{"response": "Hi", "done": false}\n{"response": "", "done": true}\n'
    assert judged(lines, headers={"content-type": "application/x-ndjson"}).verdict is Verdict.RESULT
    assert judged(lines).verdict is Verdict.UNREADABLE


def test_the_wait_of_a_refusal_in_a_stream_is_known():
    assert judged(sse(CREATED, FAILED), stream=True, headers=SSE).refusal.retry_after_s == 2.512


@pytest.mark.parametrize("body", [b"data: " + b"x" * 200, b": wait\n\n", b'{"choices": [{"x": "', b" " * 99])
def test_what_never_ends_is_held_up_to_a_bound(body):
    beginning = begun()
    pieces = 0
    while not beginning.feed(body):
        pieces += 1
    assert pieces * len(body) <= HELD_MAX
    assert beginning.judged().verdict is (Verdict.UNREADABLE if body.startswith(b" ") else Verdict.RESULT)


def test_pings_before_an_answer_can_be_passed_on():
    beginning = begun("anthropic", "messages")
    ping, start = sse({"type": "ping"}, name=True), sse(START, name=True)
    beginning.feed(BOM + ping + b": a comment\n\n" + start[:20])
    assert beginning.take_idle() == BOM + ping + b": a comment\n\n"
    assert beginning.take_idle() == b""
    assert bytes(beginning.body) == start[:20]


def test_pings_inside_of_an_answer_stay_in_their_place():
    beginning = begun("anthropic", "messages")
    ping, start = sse({"type": "ping"}, name=True), sse(START, name=True)
    beginning.feed(ping + start + ping)
    assert beginning.take_idle() == b""
    assert bytes(beginning.body) == ping + start + ping


def test_a_long_body_is_judged_by_its_beginning_and_its_end():
    beginning = begun(endpoint="embeddings", headers=JSON)
    assert not beginning.feed(b'{"data": [' + b"0.1, " * HELD_MAX)
    beginning.end()
    assert beginning.judged().verdict is Verdict.UNREADABLE  # it is cut
    beginning.feed(b"0.1]}\n")
    assert beginning.judged().verdict is Verdict.RESULT
    assert beginning.feed(b" " * WHOLE_MAX)
    assert judged(b"<html>" + b" " * HELD_MAX).verdict is Verdict.UNREADABLE


def test_frames_of_aws():
    aws = {"content-type": "application/vnd.amazon.eventstream"}
    start = frame({"role": "assistant"}, event_type="messageStart")
    throttled = frame({"message": "Too many tokens, please wait."}, exception_type="throttlingException")
    text = frame({"delta": {"text": "Hi."}}, event_type="contentBlockDelta")
    broken = frame({"message": "x"}, exception_type="modelStreamErrorException")
    options = {"provider": "bedrock", "endpoint": "converse", "stream": True, "headers": aws}
    assert judged(start + text + throttled, **options).verdict is Verdict.RESULT
    refused = judged(start + throttled + text, **options)
    assert (refused.verdict, refused.refusal.unit) == (Verdict.REFUSAL, "tokens")
    assert judged(start + broken, **options).verdict is Verdict.FAULT
    assert judged(start, **options).verdict is Verdict.UNREADABLE
    assert judged(b"<html>" + b" " * 99, **options).verdict is Verdict.RESULT  # no frames: the caller's reader says so


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        ("transcriptions", {"text": "", "x_groq": {"id": "a"}}),
        ("transcriptions", ""),
        ("search", {"results": [], "id": "a"}),
        ("chat", {"messages": [{"role": "assistant", "content": "Hi."}], "usage": None}),
        ("chat", {"predictions": []}),
        ("chat", {"result": [], "success": True, "errors": []}),
        ("embeddings", {"embeddings": []}),
        ("rerank", {"results": []}),
    ],
)
def test_an_empty_answer_is_one(endpoint, body):
    kind = {"content-type": "application/json" if body else "text/plain"}
    assert judged(body or b"", "groq", endpoint=endpoint, headers=kind).verdict is Verdict.RESULT


BOM = b"\xef\xbb\xbf"
ANSWER = {"choices": [{"message": {"content": "Hi."}}]}


def test_a_byte_order_mark_is_no_part_of_an_answer():
    long = BOM + json.dumps(ANSWER | {"more": "x" * HELD_MAX}).encode()
    for body in (BOM + json.dumps(ANSWER).encode(), long):
        assert judged(body).verdict is Verdict.RESULT
    assert judged(BOM + json.dumps({"error": {"code": 429, "message": "x"}}).encode()).verdict is Verdict.REFUSAL
    event = BOM + b'data: {"error": {"code": 429, "message": "x"}}\n\n'
    assert judged(event, stream=True, headers=SSE).verdict is Verdict.REFUSAL


def test_a_stream_byte_by_byte_costs_what_its_bytes_cost():
    beginning = begun()
    for byte in b'data: {"x": "' + b"y" * 30_000:
        assert not beginning.feed(bytes([byte]))
