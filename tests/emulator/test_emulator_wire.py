"""Golden answers: the exact headers and texts of both providers."""

import json
import re
from dataclasses import replace

import pytest

from paceline.emulator.anthropic import EmulatedAnthropic
from paceline.emulator.cohere import EmulatedCohere
from paceline.emulator.gemini import EmulatedGemini
from paceline.emulator.openai import EmulatedAzure, EmulatedGroq, EmulatedOpenAI, EmulatedPlain, go_duration
from paceline.emulator.settings import Settings
from paceline.emulator.wire import Ask
from paceline.emulator.world import Admitted, Level, Refused

openai, azure, groq, proxy = EmulatedOpenAI(), EmulatedAzure(), EmulatedGroq(), EmulatedPlain()
anthropic, cohere, gemini = EmulatedAnthropic(), EmulatedCohere(), EmulatedGemini()
PLAIN = Settings()
RATE = Refused("rate", "gpt-5", "gpt-5", "tokens", 60.0, 40_000, 34_513.2, 6_665, 1.7685)


def error_of(answer) -> dict:
    value = json.loads(answer.body)
    return value.get("error", value)  # Cohere's is the whole body


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


DAY_S = 86_400


@pytest.mark.parametrize(
    ("dialect", "levels", "names", "rows"),
    [
        (
            openai,
            [("requests", 60, 10_000, 9_999, 0.006), ("requests", DAY_S, 50_000, 1, 86_000), ("tokens", 60, 10_000_000, -5.5, 60.2),
             ("concurrency", 0, 5, 5, 0)],
            "x-ratelimit-{}-{}",
            ["limit requests 10000", "remaining requests 9999", "reset requests 6ms",
             "limit tokens 10000000", "remaining tokens 0", "reset tokens 1m0.2s"],
        ),
        (  # they hide every other quota
            groq,
            [("requests", 60, 30, 29, 2), ("requests", DAY_S, 1_000, 998, 172.8), ("tokens", DAY_S, 200_000, 1, 1),
             ("tokens", 60, 8_000, 7_927, 0.5475)],
            "x-ratelimit-{}-{}",
            ["limit requests 1000", "remaining requests 998", "reset requests 2m52.8s",
             "limit tokens 8000", "remaining tokens 7927", "reset tokens 547ms"],
        ),
        (  # whole seconds, and they may be negative
            azure,
            [("requests", 10, 100, 99.5, 6.2), ("tokens", 60, 80_000, -27_689, 12.01)],
            "x-ratelimit-{}-{}",
            ["limit requests 100", "remaining requests 99", "reset requests 7",
             "limit tokens 80000", "remaining tokens -27689", "reset tokens 13",
             "renewalperiod tokens 60", "renewalperiod requests 10"],
        ),
        (
            anthropic,
            [("requests", 60, 50, 48.7, 1.5), ("input_tokens", 60, 50_000, 48_499, 1.8), ("output_tokens", 60, 10_000, -20, 60.1)],
            "anthropic-ratelimit-{}-{}",
            ["requests limit 50", "requests remaining 48", "requests reset 2025-11-20T12:00:02Z",
             "input-tokens limit 50000", "input-tokens remaining 48000", "input-tokens reset 2025-11-20T12:00:03Z",
             "output-tokens limit 10000", "output-tokens remaining 0", "output-tokens reset 2025-11-20T12:01:01Z",
             "tokens limit 60000", "tokens remaining 48000", "tokens reset 2025-11-20T12:01:01Z"],
        ),
        (cohere, [("requests", 60, 10, 9, 6.0)], "", []),
        (proxy, [("requests", 60, 500, 499, 0.12)], "", []),
    ],
    ids=["openai", "groq", "azure", "anthropic", "cohere", "proxy"],
)  # fmt: skip
def test_headers(dialect, levels, names, rows):
    found = dialect.rate_headers([Level(*one) for one in levels], 1_763_640_000.5)
    assert found == [(names.format(*row.split()[:2]).encode(), row.split()[2].encode()) for row in rows]


OPENAI_RATE = (
    "Rate limit reached for gpt-5 in organization org-emulated on tokens per min (TPM): Limit 40000, Used 34514, Requested 6665."
    " Please try again in 1.768s. Visit https://platform.openai.com/account/rate-limits to learn more."
)
DAY = Refused("rate", "gpt-5-2025", "gpt-5", "requests", DAY_S, 200, 200, 1, 432.0)
LARGE = Refused("too_large", "gpt-5", "gpt-5", "tokens", 60.0, 30_000, 0, 34_307, float("inf"))
CLAUDE = Refused("rate", "claude", "claude", "input_tokens", 60.0, 50_000, 49_000, 2_000, 1.2)
# Captured numbers: 414.72 s is what Groq printed for these.
GROQ_DAY = Refused("rate", "llama", "llama", "tokens", DAY_S, 100_000, 99_996, 484, 414.72)
GROQ_LARGE = Refused("too_large", "llama", "llama", "tokens", 60.0, 8_000, 0, 8_096, float("inf"))
TRIAL = (
    "You are using a Trial key, which is limited to 10 API calls / minute. You can continue to use the Trial key for free or upgrade to"
    " a Production key."
)
TRIAL_TOKENS = "trial token rate limit exceeded, limit is 100000 tokens per minute"
TOKENS = {"type": "tokens", "code": "rate_limit_exceeded"}


@pytest.mark.parametrize(
    ("dialect", "refused", "status", "waits", "fields", "text"),
    [
        (openai, RATE, 429, {b"retry-after": b"2"}, {**TOKENS, "param": None, "message": OPENAI_RATE}, OPENAI_RATE),
        (openai, DAY, 429, {b"retry-after": b"432"}, {"type": "requests"},
         ("gpt-5-2025 (for limit gpt-5) in organization org-emulated on requests per day (RPD): Limit 200, Used 200, Requested 1."
         " Please try again in 7m12s.")),
        (openai, LARGE, 429, {}, TOKENS,
         ("Request too large for gpt-5 in organization org-emulated on tokens per min (TPM): Limit 30000, Requested 34307."
         " The input or output tokens must be reduced in order to run successfully.")),
        (anthropic, CLAUDE, 429, {b"retry-after": b"2"}, {"type": "rate_limit_error"},
         ("This request would exceed the rate limit for your organization (00000000-0000-4000-8000-000000000000) of"
         " 50,000 input tokens per minute.")),
        (groq, GROQ_DAY, 429, {b"retry-after": b"415"}, TOKENS,
         ("Rate limit reached for model `llama` in organization `org_emulated` service tier `on_demand` on tokens per day (TPD):"
         " Limit 100000, Used 99996, Requested 484. Please try again in 6m54.72s.")),
        (groq, GROQ_LARGE, 413, {}, TOKENS, "on tokens per minute (TPM): Limit 8000, Requested 8096, please reduce"),
        (azure, RATE, 429, {b"retry-after": b"2", b"retry-after-ms": b"1769", b"policy-id": b"DeploymentRatelimit-Token"}, {"code": "429"},
         "have exceeded token rate limit of your current OpenAI S0 pricing tier. Please retry after 2 seconds."),
        (cohere, Refused("rate", "m", "m", "requests", 60.0, 10, 10, 1, 4.2), 429, {}, {"message": TRIAL}, TRIAL),
        (cohere, Refused("rate", "m", "m", "tokens", 60.0, 100_000, 99_000, 2_000, 1.0), 429, {}, {"message": TRIAL_TOKENS},
         TRIAL_TOKENS),
    ],
)  # fmt: skip
def test_refusals_by_a_quota(dialect, refused, status, waits, fields, text):
    answer = dialect.refusal(refused, PLAIN, 10)
    assert (answer.status, dict(answer.headers)) == (status, {b"content-type": b"application/json"} | waits)
    error = error_of(answer)
    assert error | fields == error
    assert text in error["message"]
    blind = dialect.refusal(refused, Settings(headers=False, body_numbers=False), 10)
    assert dict(blind.headers) == {b"content-type": b"application/json"}
    assert not re.search(r"\d", re.sub("gpt-5(-2025)?|S0|2024-10-21|https:.*", "", error_of(blind)["message"]))


def test_an_error_of_anthropic_has_the_id_of_its_request():
    value = json.loads(anthropic.refusal(CLAUDE, PLAIN, 10).body)
    assert (value["type"], value["request_id"]) == ("error", "req_00000000000000000000000a")


@pytest.mark.parametrize("kind", ["rate", "capacity", "too_large"])
def test_a_plain_server_names_nothing(kind):
    answer = proxy.refusal(replace(RATE, kind=kind), Settings(headers=False), 1)
    assert (answer.status, dict(answer.headers)) == (429, {b"content-type": b"application/json"})
    assert json.loads(answer.body) == {"error": {"message": "Too many requests."}}
    event = proxy.error_event(Ask("responses", "m", stream=True), answer, 1).split(b"data: ")[1]
    assert json.loads(event)["response"]["error"] == {"code": None, "message": "Too many requests."}


@pytest.mark.parametrize(
    ("headers", "retry_after", "stated"),
    [(True, "", b"2"), (False, "", None), (False, "true", b"2"), (True, "none", None), (False, 60.0, b"2")],
)
def test_the_wait_is_stated_with_or_without_other_headers(headers, retry_after, stated):
    answer = openai.refusal(RATE, Settings(headers=headers, retry_after=retry_after), 1)
    assert dict(answer.headers).get(b"retry-after") == stated


@pytest.mark.parametrize(
    ("dialect", "refused", "status", "said", "retry_after"),
    [
        (openai, Refused("money", "m"), 429, {"code": "insufficient_quota"}, None),
        (openai, Refused("growth", "m", wait_s=0.2), 429, {"code": "slow_down"}, b"1"),
        (openai, Refused("capacity", "m", status=503), 503, {"code": "server_is_overloaded"}, None),
        (openai, Refused("auth"), 401, {"code": "invalid_api_key"}, None),
        (openai, Refused("unknown_model", "m"), 404, {"code": "model_not_found"}, None),
        (openai, Refused("invalid", "m", detail="no"), 400, {"code": None}, None),
        (anthropic, Refused("money", "m"), 429, {"type": "rate_limit_error", "error_code": "enforced_spend_limit_reached"}, None),
        (anthropic, Refused("growth", "m", wait_s=1), 429, {"type": "rate_limit_error", "error_code": "ramp_limit_exceeded"}, b"1"),
        (anthropic, Refused("capacity", "m", status=529), 529, {"type": "overloaded_error", "error_code": None}, None),
        (anthropic, Refused("auth"), 401, {"type": "authentication_error", "error_code": None}, None),
        (anthropic, Refused("unknown_model", "m"), 404, {"type": "not_found_error", "error_code": None}, None),
        (anthropic, Refused("invalid", "m", detail="no"), 400, {"type": "invalid_request_error", "error_code": None}, None),
        (gemini, Refused("capacity", "m", status=503), 503, {"status": "UNAVAILABLE"}, None),
        (gemini, Refused("money", "m"), 429, {"status": "RESOURCE_EXHAUSTED"}, None),
        (gemini, Refused("auth"), 400, {"status": "INVALID_ARGUMENT"}, None),
        (gemini, Refused("unknown_model", "m"), 404, {"status": "NOT_FOUND"}, None),
        (gemini, Refused("invalid", "m", detail="no"), 400, {"status": "INVALID_ARGUMENT"}, None),
        (cohere, Refused("money", "m"), 402, {"message": "Please add or update your payment method to continue."}, None),
        (cohere, Refused("capacity", "m", status=503), 503, {"message": "The service is overloaded; please try again later."}, None),
        (cohere, Refused("auth", "m"), 401, {"message": "invalid api token"}, None),
        (cohere, Refused("invalid", "m", detail="no"), 400, {"message": "no"}, None),
    ],
)  # fmt: skip
def test_other_refusals(dialect, refused, status, said, retry_after):
    answer = dialect.refusal(refused, PLAIN, 1)
    error = error_of(answer)
    if dialect is anthropic:
        error |= {"error_code": error.get("details", {}).get("error_code")}
    waits = {} if retry_after is None else {b"retry-after": retry_after}
    assert (answer.status, dict(answer.headers)) == (status, {b"content-type": dialect.ERROR_TYPE} | waits)
    assert {name: error[name] for name in said} == said


def test_cohere_refuses_without_numbers_and_inside_a_stream():
    answer = cohere.refusal(RATE, Settings(body_numbers=False), 1)
    event = cohere.error_event(Ask("chat", "m", stream=True), answer, 1).split(b"data: ")[1]
    assert json.loads(event)["delta"] == {"finish_reason": "ERROR", "error": "too many requests"}
    assert cohere.failure(1).status == 500


@pytest.mark.parametrize(
    ("unit", "period_s", "quota_id", "delay"),
    [
        ("requests", 60.0, "GenerateRequestsPerMinutePerProjectPerModel-FreeTier", "1.8s"),
        ("requests", 86_400.0, "GenerateRequestsPerDayPerProjectPerModel-FreeTier", "38.2s"),
        ("input_tokens", 60.0, "GenerateContentInputTokensPerModelPerMinute-FreeTier", "1.8s"),
    ],
)
def test_gemini_rate_refusal(unit, period_s, quota_id, delay):
    status, headers, body = gemini.refusal(Refused("rate", "g", "g", unit, period_s, 20, 20, 1, 1.7685), PLAIN, 1)
    error = json.loads(body)["error"]
    violation = error["details"][0]["violations"][0]
    assert (status, error["status"], error["details"][1]["retryDelay"]) == (429, "RESOURCE_EXHAUSTED", delay)
    assert (violation["quotaId"], violation["quotaValue"]) == (quota_id, "20")
    assert [name for name, _ in headers] == [b"content-type"]
    assert "details" not in json.loads(gemini.refusal(RATE, Settings(body_numbers=False), 1).body)["error"]


def test_gemini_requests_are_read():
    contents = [{"role": "user", "parts": [{"text": "one two"}, {"text": "three"}]}]
    settings = {"maxOutputTokens": 10, "candidateCount": 2}
    ask = gemini.read(
        "stream", json.dumps({"contents": contents, "generationConfig": settings}).encode(), "gemini-2.5-pro"
    )
    assert (ask.model, ask.max_output_tokens, ask.choices, ask.stream, ask.error) == ("gemini-2.5-pro", 20, 2, True, "")
    assert 6 <= ask.input_tokens <= 8


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"contents":5}', b'{"contents":["x"],"generationConfig":5}']
)
def test_gemini_broken_requests_are_named_not_raised(body):
    assert gemini.read("generate", body, "m").error


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


@pytest.mark.parametrize("dialect", [openai, anthropic, cohere])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"{}", b'{"model":5}', b'{"model":"m"}', b"[" * 100_000])
def test_broken_requests_are_named_not_raised(dialect, body):
    for kind in dialect.PATHS.values():
        assert kind == "responses" or dialect.read(kind, body).error


def admitted_with(output: int) -> Admitted:
    return Admitted("m", 7, output)


@pytest.mark.parametrize("output", [0, 1, 19, 500])
@pytest.mark.parametrize(
    ("dialect", "ask"),
    [
        (openai, Ask("chat", "m", 7, 600, stream=True, include_usage=True)),
        (openai, Ask("chat", "m", 7, 600, stream=True, choices=3)),
        (openai, Ask("responses", "m", 7, 600, stream=True)),
        (anthropic, Ask("messages", "m", 7, 600, stream=True)),
        (groq, Ask("chat", "m", 7, 600, stream=True)),
        (azure, Ask("chat", "m", 7, 600, stream=True)),
        (gemini, Ask("stream", "m", 7, 600, stream=True)),
        (cohere, Ask("chat", "m", 7, 600, stream=True)),
    ],
)
def test_streams_bring_every_token_once(dialect, ask, output):
    pieces = list(dialect.events(ask, admitted_with(output), 1))
    assert sum(tokens for tokens, _ in pieces) == output
    assert len(pieces) <= 20 * ask.choices + 10
    assert all(piece.endswith((b"\n\n", b"\r\n\r\n")) for _, piece in pieces)


def test_anthropic_stream_order():
    pieces = [piece for _, piece in anthropic.events(Ask("messages", "m", 7, 600), admitted_with(1), 1)]
    assert [piece.split(b"\n")[0].removeprefix(b"event: ").decode() for piece in pieces] == [
        "message_start", "content_block_start", "ping", "content_block_delta", "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip
    assert json.loads(pieces[-2].split(b"data: ")[1])["usage"] == {"output_tokens": 1}
