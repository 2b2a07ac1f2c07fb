"""Golden answers: the exact headers and texts of both providers."""

import json

import pytest

from paceline.emulator import anthropic, openai
from paceline.emulator.settings import Settings
from paceline.emulator.wire import Ask, go_duration
from paceline.emulator.world import Admitted, Level, Refused

PLAIN = Settings()
RATE = Refused("rate", "gpt-5", "gpt-5", "tokens", 60.0, 40_000, 34_513.2, 6_665, 1.7685)


def text_of(answer) -> str:
    return json.loads(answer.body)["error"]["message"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"), (0.0009, "0s"), (0.006, "6ms"), (0.0015779, "1ms"), (0.0843, "84ms"), (0.5475, "547ms"), (1, "1s"),
        (1.7685, "1.768s"), (20, "20s"), (43.2, "43.2s"), (360, "6m0s"), (432, "7m12s"), (86.4, "1m26.4s"),
        (660.528, "11m0.528s"), (5_692.896, "1h34m52.896s"), (54_432, "15h7m12s"),
    ],
)  # fmt: skip
def test_durations_are_written_as_captured(seconds, text):
    assert go_duration(seconds) == text


def test_openai_headers():
    levels = [
        Level("requests", 60, 10_000, 9_999, 0.006),
        Level("requests", 86_400, 50_000, 1, 86_000),
        Level("tokens", 60, 10_000_000, -5.5, 60.2),
        Level("concurrency", 0, 5, 5, 0),
    ]
    assert openai.rate_headers(levels, 0.0) == [
        (b"x-ratelimit-limit-requests", b"10000"),
        (b"x-ratelimit-remaining-requests", b"9999"),
        (b"x-ratelimit-reset-requests", b"6ms"),
        (b"x-ratelimit-limit-tokens", b"10000000"),
        (b"x-ratelimit-remaining-tokens", b"0"),
        (b"x-ratelimit-reset-tokens", b"1m0.2s"),
    ]


def test_openai_rate_refusal():
    status, headers, body = openai.refusal(RATE, PLAIN, 1)
    assert status == 429
    assert headers == [(b"content-type", b"application/json"), (b"retry-after", b"2")]
    assert json.loads(body) == {
        "error": {
            "message": "Rate limit reached for gpt-5 in organization org-emulated on tokens per min (TPM): Limit 40000,"
            " Used 34514, Requested 6665. Please try again in 1.768s."
            " Visit https://platform.openai.com/account/rate-limits to learn more.",
            "type": "tokens",
            "param": None,
            "code": "rate_limit_exceeded",
        }
    }


def test_openai_day_refusal_names_pool_and_period():
    day = Refused("rate", "gpt-5-2025", "gpt-5", "requests", 86_400.0, 200, 200, 1, 432.0)
    text = text_of(openai.refusal(day, PLAIN, 1))
    assert "gpt-5-2025 (for limit gpt-5) in organization org-emulated on requests per day (RPD): Limit 200" in text
    assert "Please try again in 7m12s." in text


def test_openai_too_large_has_no_used_and_no_retry_after():
    large = Refused("too_large", "gpt-5", "gpt-5", "tokens", 60.0, 30_000, 0, 34_307, float("inf"))
    answer = openai.refusal(large, PLAIN, 1)
    assert answer.status == 429
    assert b"retry-after" not in dict(answer.headers)
    assert text_of(answer).startswith(
        "Request too large for gpt-5 in organization org-emulated on tokens per min (TPM): Limit 30000, Requested 34307."
        " The input or output tokens must be reduced in order to run successfully."
    )


@pytest.mark.parametrize(
    ("refused", "status", "code", "retry_after"),
    [
        (Refused("money", "m"), 429, "insufficient_quota", None),
        (Refused("growth", "m", wait_s=0.2), 429, "slow_down", b"1"),
        (Refused("capacity", "m", status=503), 503, "server_is_overloaded", None),
        (Refused("auth"), 401, "invalid_api_key", None),
        (Refused("unknown_model", "m"), 404, "model_not_found", None),
        (Refused("invalid", "m", detail="no"), 400, None, None),
    ],
)
def test_openai_other_refusals(refused, status, code, retry_after):
    answer = openai.refusal(refused, PLAIN, 1)
    assert (answer.status, dict(answer.headers).get(b"retry-after")) == (status, retry_after)
    assert json.loads(answer.body)["error"]["code"] == code


@pytest.mark.parametrize("dialect", [openai, anthropic])
def test_silent_providers_say_nothing(dialect):
    answer = dialect.refusal(RATE, Settings(headers=False, body_numbers=False), 1)
    assert dict(answer.headers) == {b"content-type": b"application/json"}
    assert not any(c.isdigit() for c in text_of(answer).replace("gpt-5", ""))


def test_anthropic_headers():
    levels = [
        Level("requests", 60, 50, 48.7, 1.5),
        Level("input_tokens", 60, 50_000, 48_499, 1.8),
        Level("output_tokens", 60, 10_000, -20, 60.1),
    ]
    assert anthropic.rate_headers(levels, 1_763_640_000.5) == [
        (b"anthropic-ratelimit-requests-limit", b"50"),
        (b"anthropic-ratelimit-requests-remaining", b"48"),
        (b"anthropic-ratelimit-requests-reset", b"2025-11-20T12:00:02Z"),
        (b"anthropic-ratelimit-input-tokens-limit", b"50000"),
        (b"anthropic-ratelimit-input-tokens-remaining", b"48000"),
        (b"anthropic-ratelimit-input-tokens-reset", b"2025-11-20T12:00:03Z"),
        (b"anthropic-ratelimit-output-tokens-limit", b"10000"),
        (b"anthropic-ratelimit-output-tokens-remaining", b"0"),
        (b"anthropic-ratelimit-output-tokens-reset", b"2025-11-20T12:01:01Z"),
        (b"anthropic-ratelimit-tokens-limit", b"60000"),
        (b"anthropic-ratelimit-tokens-remaining", b"48000"),
        (b"anthropic-ratelimit-tokens-reset", b"2025-11-20T12:01:01Z"),
    ]


def test_anthropic_rate_refusal():
    refused = Refused("rate", "claude", "claude", "input_tokens", 60.0, 50_000, 49_000, 2_000, 1.2)
    status, headers, body = anthropic.refusal(refused, PLAIN, 10)
    assert (status, dict(headers)[b"retry-after"]) == (429, b"2")
    value = json.loads(body)
    assert (value["type"], value["error"]["type"], value["request_id"]) == (
        "error",
        "rate_limit_error",
        "req_00000000000000000000000a",
    )
    assert value["error"]["message"].startswith(
        "This request would exceed the rate limit for your organization (00000000-0000-4000-8000-000000000000) of"
        " 50,000 input tokens per minute."
    )


@pytest.mark.parametrize(
    ("refused", "status", "kind", "code"),
    [
        (Refused("money", "m"), 429, "rate_limit_error", "enforced_spend_limit_reached"),
        (Refused("growth", "m", wait_s=1), 429, "rate_limit_error", "ramp_limit_exceeded"),
        (Refused("capacity", "m", status=529), 529, "overloaded_error", None),
        (Refused("auth"), 401, "authentication_error", None),
        (Refused("unknown_model", "m"), 404, "not_found_error", None),
        (Refused("invalid", "m", detail="no"), 400, "invalid_request_error", None),
    ],
)
def test_anthropic_other_refusals(refused, status, kind, code):
    answer = anthropic.refusal(refused, PLAIN, 1)
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["type"], error.get("details", {}).get("error_code")) == (status, kind, code)
    assert (b"retry-after" in dict(answer.headers)) == (refused.kind == "growth")


def ask_of(dialect, kind, **body) -> Ask:
    return dialect.read(kind, json.dumps(body).encode())


def test_openai_requests_are_read():
    messages = [
        {"role": "user", "content": "one two"},
        {"role": "user", "content": [{"type": "text", "text": "three"}]},
    ]
    chat = ask_of(openai, "chat", model="m", messages=messages, max_completion_tokens=10, n=3, stream=True)
    assert (chat.max_output_tokens, chat.choices, chat.stream, chat.error) == (30, 3, True, "")
    assert 13 <= chat.input_tokens <= 16
    assert ask_of(openai, "chat", model="m", messages=messages, max_tokens=10).max_output_tokens == 10
    assert ask_of(openai, "chat", model="m", messages=messages).max_output_tokens is None
    responses = ask_of(openai, "responses", model="m", input="one two", instructions="three", max_output_tokens=7)
    assert (responses.input_tokens, responses.max_output_tokens) == (3, 7)
    emb = ask_of(openai, "embeddings", model="m", input=[[1, 2, 3], [4, 5]], dimensions=8)
    assert (emb.input_tokens, emb.choices, emb.dimensions, emb.max_output_tokens) == (5, 2, 8, 0)


@pytest.mark.parametrize("dialect", [openai, anthropic])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"{}", b'{"model":5}', b'{"model":"m"}', b"[" * 100_000])
def test_broken_requests_are_named_not_raised(dialect, body):
    for kind in dialect.PATHS.values():
        assert kind == "responses" or dialect.read(kind, body).error


def admitted_with(output: int) -> Admitted:
    return Admitted("m", "m", 7, output, 7 + output, 0.0)


@pytest.mark.parametrize("output", [0, 1, 19, 500])
@pytest.mark.parametrize(
    ("dialect", "ask"),
    [
        (openai, Ask("chat", "m", 7, 600, stream=True, include_usage=True)),
        (openai, Ask("chat", "m", 7, 600, stream=True, choices=3)),
        (openai, Ask("responses", "m", 7, 600, stream=True)),
        (anthropic, Ask("messages", "m", 7, 600, stream=True)),
    ],
)
def test_streams_bring_every_token_once(dialect, ask, output):
    pieces = list(dialect.events(ask, admitted_with(output), 1))
    assert sum(tokens for tokens, _ in pieces) == output
    assert len(pieces) <= 20 * ask.choices + 10
    assert all(piece.endswith(b"\n\n") for _, piece in pieces)


def test_anthropic_stream_order():
    pieces = [piece for _, piece in anthropic.events(Ask("messages", "m", 7, 600), admitted_with(1), 1)]
    assert [piece.split(b"\n")[0].removeprefix(b"event: ").decode() for piece in pieces] == [
        "message_start", "content_block_start", "ping", "content_block_delta", "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip
    assert json.loads(pieces[-2].split(b"data: ")[1])["usage"] == {"output_tokens": 1}
