"""What a request holds, what an answer is charged, which pool, which wait."""

from __future__ import annotations

import email.utils
import json
import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from cases import CLAUDE, told

from paceline.core.results import RefusalKind, RefusalScope
from paceline.estimation.estimate import estimate_tokens
from paceline.http.describe import body_of
from paceline.providers.base import Usage
from paceline.providers.generic import Generic
from paceline.providers.registry import provider_named

OPENAI, ANTHROPIC = provider_named("openai"), provider_named("anthropic")
TEXT = "The quick brown fox jumps over the lazy dog. " * 20
MESSAGES = [{"role": "user", "content": TEXT}]
RATE = json.dumps({"error": {"code": "rate_limit_exceeded", "message": "Please try again in 1.768s."}}).encode()


GEMINI = "/v1beta/models/gemini-3.6-flash:generateContent"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}]}),
        ("/v1/responses", {"input": TEXT}),
        ("/v1/responses", {"instructions": TEXT, "input": "x"}),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": TEXT}]}]}),
        ("/v1/embeddings", {"input": [TEXT]}),
        ("/v1/completions", {"prompt": TEXT}),
        (GEMINI, {"contents": [{"role": "user", "parts": [{"text": TEXT}]}]}),
        (GEMINI, {"contents": [{"parts": [{"text": "x"}]}], "systemInstruction": {"parts": [{"text": TEXT}]}}),
        (GEMINI, {"content": {"parts": [{"text": TEXT}]}}),
        (GEMINI, {"requests": [{"content": {"parts": [{"text": TEXT}]}}]}),
    ],
)
def test_input_is_text_wherever_it_stands(path, body):
    provider = provider_named("gemini" if path == GEMINI else "openai")
    want = estimate_tokens(TEXT, provider.encoding)
    assert want <= provider.describe(path, body).input_tokens <= want + 8


def test_tools_count_and_token_ids_count_one_each():
    tool = {"type": "function", "function": {"name": "f", "description": TEXT, "parameters": {"type": "object"}}}
    call = OPENAI.describe("/chat/completions", {"messages": MESSAGES, "tools": [tool]})
    assert call.input_tokens > 2 * estimate_tokens(TEXT, "o200k")
    assert OPENAI.describe("/embeddings", {"input": [[1, 2, 3], [4, 5]]}).input_tokens == 5
    tool = {"functionDeclarations": [{"name": "f", "description": TEXT, "parameters": {"type": "OBJECT"}}]}
    call = provider_named("gemini").describe(GEMINI, {"contents": [], "tools": [tool]})
    assert call.input_tokens >= estimate_tokens(TEXT, "gemma3")


BLOB = "QUJD" * 100_000
GOOGLE = {"image/png": "image", "audio/wav": "audio", "application/pdf": "file", "video/mp4": "file"}


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BLOB}"}}, "image"),
        ({"type": "image_url", "image_url": {"url": BLOB, "detail": "low"}}, "small_image"),
        ({"type": "input_image", "image_url": BLOB}, "image"),
        ({"type": "input_audio", "input_audio": {"data": BLOB, "format": "wav"}}, "audio"),
        ({"type": "file", "file": {"file_data": BLOB}}, "file"),
        *(({"inlineData": {"mimeType": mime, "data": BLOB}}, kind) for mime, kind in GOOGLE.items()),
        *(({"inline_data": {"mime_type": mime, "data": BLOB}}, kind) for mime, kind in GOOGLE.items()),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_base64_is_never_counted(part, kind):
    provider, path, body = OPENAI, "/chat/completions", {"messages": [{"role": "user", "content": [part]}]}
    if "type" not in part:
        signed = {"text": "x", "thoughtSignature": BLOB}
        provider, path, body = (
            provider_named("gemini"),
            GEMINI,
            {"contents": [{"role": "user", "parts": [part, signed]}]},
        )
    tokens = getattr(provider.media, kind)
    assert tokens <= provider.describe(path, body).input_tokens <= tokens + 8


def test_anthropic_documents_and_tool_calls():
    def tokens(part):
        return ANTHROPIC.describe("/v1/messages", {"messages": [{"role": "user", "content": [part]}]}).input_tokens

    pdf = {"type": "document", "source": {"type": "base64", "data": "QUJD" * 100_000}}
    plain = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": TEXT}}
    call = {"type": "tool_use", "id": "x", "name": "f", "input": {"data": TEXT, "n": 3}}
    thought = {"type": "thinking", "thinking": "x", "signature": "QUJD" * 100_000}
    assert tokens(pdf) < 7_000
    assert tokens(plain) >= estimate_tokens(TEXT)
    assert tokens(call) >= estimate_tokens(TEXT)
    assert tokens(thought) < 10


def test_anthropic_weights_follow_the_model():
    tokens = {}
    for model in ("claude-sonnet-4-6", "claude-haiku-4-5-20251001", "claude-opus-4-8", "claude-opus-5"):
        tokens[model] = ANTHROPIC.describe("/v1/messages", {"model": model, "messages": MESSAGES}).input_tokens
    assert tokens["claude-sonnet-4-6"] == tokens["claude-haiku-4-5-20251001"]
    assert tokens["claude-opus-4-8"] == tokens["claude-opus-5"] > 1.2 * tokens["claude-sonnet-4-6"]


@pytest.mark.parametrize(("n", "images"), [(None, 1), (4, 4), (0, 1), ("4", 1), (-1, 1), (True, 1)])
@pytest.mark.parametrize("name", ["openai", "azure", "xai", "together", "an.unknown.host"])
def test_images_are_counted_as_asked(name, n, images):
    provider = provider_named(name)
    call = provider.describe("/v1/images/generations", {"model": "gpt-image-2", "prompt": TEXT, "n": n})
    assert provider.held(call, 10, 500)["images"] == images
    assert provider.charged(call, Usage(10, 20))["images"] == images
    assert "images" in provider.units
    chat = provider.describe("/v1/chat/completions", {"model": "gpt-5", "messages": [], "n": 4})
    assert "images" not in provider.held(chat, 10, 500)


def test_the_stricter_of_organization_and_project_binds():
    headers = told(tokens=("2000000", "1900000", "3s"), project_tokens=("50000", "40000", "12s"))
    [reading] = OPENAI.readings(headers, 0)
    assert (reading.limit, reading.remaining, reading.reset_s, reading.period_s) == (50_000, 40_000, 12, 60)
    [reading] = OPENAI.readings({**headers, "x-ratelimit-remaining-tokens": "1000"}, 0)
    assert (reading.limit, reading.remaining, reading.reset_s) == (50_000, 1_000, None)


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, 1.768),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "1"}, 1.768),
        ({"retry-after": "9", "retry-after-ms": "2500"}, 2.5),
        ({"retry-after": "Sat, 21 Nov 2026 10:00:30 GMT", "date": "Sat, 21 Nov 2026 10:00:00 GMT"}, 30.0),
        ({"retry-after": "Sat, 21 Nov 2026 10:00:30 GMT"}, 1.768),
        ({"retry-after": "-5"}, 1.768),
        ({"retry-after": "3, 3"}, 3.0),
        ({"retry-after": "3, 5"}, 1.768),
        ({"retry-after-ms": "0", "retry-after": "3"}, 3.0),
        ({"x-ms-retry-after-ms": "2500", "retry-after": "3"}, 2.5),  # Azure.Core's third name
        (
            {"retry-after": "Sat, 21 Nov 2026 10:00:30 GMT", "date": ", ".join(["Sat, 21 Nov 2026 10:00:00 GMT"] * 2)},
            30.0,
        ),
        ({"retry-after": "nan"}, 1.768),
        ({"retry-after": "1e9"}, 1.768),
        ({"retry-after": "99999999999"}, 1.768),
        ({"retry-after": "9" * 5_000}, 1.768),
    ],
)
def test_the_longer_wait_holds(headers, wait_s):
    assert OPENAI.refusal(429, headers, RATE).retry_after_s == pytest.approx(wait_s)


@pytest.mark.parametrize("form", ["http date", "rfc 3339", "epoch", "milliseconds"])
def test_an_instant_without_a_date_is_compared_with_this_machine(form):
    at_s = round(time.time()) + 300
    written = {
        "http date": email.utils.formatdate(at_s, usegmt=True),
        "rfc 3339": datetime.fromtimestamp(at_s, UTC).isoformat(),
        "epoch": str(at_s),
        "milliseconds": f"{at_s}000",
    }
    refusal = OPENAI.refusal(429, {"retry-after": written[form]}, b"{}")
    assert refusal.retry_after_s == pytest.approx(300, abs=60)


LARGE = "Request too large for organization o on tokens per min (TPM): Limit {}, Requested {}."


@pytest.mark.parametrize(
    ("status", "message", "code", "kind"),
    [
        (429, LARGE.format(250_000, 546), "rate_limit_exceeded", RefusalKind.RATE),
        (429, LARGE.format(250_000, 250_001), "rate_limit_exceeded", RefusalKind.NEVER_FITS),
        (429, LARGE.format("250K", 546), "rate_limit_exceeded", RefusalKind.RATE),
        (429, LARGE.format("0.25M", "251k"), "rate_limit_exceeded", RefusalKind.NEVER_FITS),
        (413, LARGE.format(6_000, 546), "rate_limit_exceeded", RefusalKind.RATE),
        (413, LARGE.format(6_000, 9_000), "rate_limit_exceeded", RefusalKind.NEVER_FITS),
        (413, "Request exceeds the maximum size", "request_too_large", RefusalKind.NEVER_FITS),
        (429, "Request too large.", "", RefusalKind.NEVER_FITS),
    ],
)
def test_numbers_decide_whether_a_request_fits(status, message, code, kind):
    refusal = OPENAI.refusal(status, {}, json.dumps({"error": {"message": message, "code": code}}).encode())
    assert refusal.kind is kind
    assert refusal.scope is (RefusalScope.REQUEST if kind is RefusalKind.NEVER_FITS else RefusalScope.POOL)


@pytest.mark.parametrize(
    ("message", "limit", "used"),
    [
        ("Rate limit of 60K tokens per minute exceeded", 60_000, None),
        ("rate limit: 2.5M tokens per minute, used 2.4m", 2.5e6, 2.4e6),
        ("Limit 250,000 tokens per minute, Used 10k, try again", 250_000, 10_000),
        ("limit of 5 tokens per minute", 5, None),
        ("tokens per minute: used 98.5k, limit 100K.", 100_000, 98_500),
        ("tokens per minute: used 12.5, limit 10", 10, 12.5),
        ("limit of 5 tokens per day reached, in the current 24 hour window", 5, None),
    ],
)
def test_amounts_may_be_in_thousands(message, limit, used):
    refusal = OPENAI.refusal(429, {}, json.dumps({"error": {"message": message}}).encode())
    assert (refusal.unit, refusal.limit, refusal.used) == ("tokens", limit, used)


NOW = {"date": "Sat, 21 Nov 2026 10:00:00 GMT"}
SECOND = 1_795_255_200


@pytest.mark.parametrize(
    ("provider", "headers", "message"),
    [
        ("openai", {"retry-after": "0"}, ""),
        ("openai", {"retry-after-ms": "0"}, ""),
        ("openai", {"retry-after": "Sat, 21 Nov 2026 09:59:30 GMT", **NOW}, ""),
        ("openai", {}, "Please try again in 0ms."),
        ("anthropic", {"retry-after": "0"}, ""),
        ("azure", {"retry-after-ms": "0"}, "Please retry after 0 seconds."),
        ("gemini", {}, "Please retry in 0s."),
        ("together", {"x-ratelimit-reset": "0"}, ""),
        ("cerebras", {"x-ratelimit-reset-tokens-minute": "0"}, "tokens per minute limit exceeded"),
        ("cohere", {"x-ratelimit-reset": str(SECOND - 1), **NOW}, ""),
        ("openrouter", {"x-ratelimit-limit": "20", "x-ratelimit-reset": f"{SECOND - 1}000", **NOW}, ""),
        ("bedrock", {"x-amz-retry-after": "0"}, "Too many tokens"),
    ],
)
def test_a_wait_of_nothing_is_absent(provider, headers, message):
    body = {"error": {"message": message, "code": 429}, "message": message, "__type": "ThrottlingException"}
    refusal = provider_named(provider).refusal(429, headers, json.dumps(body).encode())
    assert (refusal.kind, refusal.retry_after_s) == (RefusalKind.RATE, None)


@pytest.mark.parametrize("provider", ["openai", "mistral", "a-host-of-mine"])
@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"ratelimit": "limit=100, remaining=0, reset=6"}, 6),
        (
            {"ratelimit": '"burst";r=4;t=1, "day";r=0;t=6', "ratelimit-policy": '"burst";q=9;w=1, "day";q=100;w=86400'},
            6,
        ),
        ({"ratelimit-limit": "100, 100;w=60", "ratelimit-remaining": "0", "ratelimit-reset": "6"}, 6),
        ({"x-ratelimit-limit": "100", "x-ratelimit-remaining": "0", "x-ratelimit-reset": str(SECOND + 6), **NOW}, 6),
        ({"x-ratelimit-reset": "6"}, 6),
        ({"x-ratelimit-reset": "6", "retry-after": "2"}, 2),
        ({"x-ratelimit-limit": "100", "x-ratelimit-remaining": "5", "x-ratelimit-reset": "6"}, None),  # something else
        ({"ratelimit": '"default";r=5;t=6'}, None),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6s"}, None),  # full, and not a restart
    ],
)
def test_the_restart_of_a_quota_is_a_wait_where_no_other_is_stated(provider, headers, wait_s):
    assert provider_named(provider).refusal(429, headers, b"").retry_after_s == wait_s
    full = provider_named(provider).refusal(503, headers, b"")  # of servers, whose wait is no quota's
    assert full.retry_after_s == (2 if "retry-after" in headers else None)


@pytest.mark.parametrize("twice", ["30000,30000", "30000, 30000", " 30000 ,30000 , 30000"])
def test_a_repeated_header_is_read_once(twice):
    for provider, headers in ((OPENAI, told(tokens=[twice] * 2)), (ANTHROPIC, told(CLAUDE, input_tokens=[twice] * 2))):
        [reading] = provider.readings(headers, 0)
        assert (reading.limit, reading.remaining) == (30_000, 30_000)
    [reading] = OPENAI.readings(told(tokens=("30000", "15000", "30s, 30s")), 0)
    assert (reading.reset_s, reading.period_s) == (30, 60)
    full = "2026-11-21T10:00:06Z, 2026-11-21T10:00:06Z"
    resets = {"anthropic-ratelimit-requests-limit": "50", "anthropic-ratelimit-requests-reset": full}
    [reading] = ANTHROPIC.readings({**resets, **NOW}, 0)
    assert reading.reset_s == 6


@pytest.mark.parametrize("unequal", ["30000,20000", "30,000", "100, 50;w=60", "30000,", ",".join(["30000"] * 100)])
def test_unequal_values_of_a_header_are_none(unequal):
    assert OPENAI.readings({"x-ratelimit-limit-tokens": unequal}, 0) == []
    assert ANTHROPIC.readings({"anthropic-ratelimit-requests-limit": unequal}, 0) == []
    assert provider_named("azure").readings({"x-ratelimit-limit-tokens": unequal}, 0) == []
    assert provider_named("together").readings({"x-ratelimit-limit": unequal}, 0) == []


@pytest.mark.parametrize(
    ("provider", "body", "mode"),
    [
        ("openai", {"model": "gpt-5.4"}, ""),
        ("openai", {"model": "gpt-6-sol", "service_tier": "ultrafast"}, "ultrafast"),
        ("openai", {"model": "gpt-6-sol", "service_tier": "priority"}, ""),
        ("openai", {"model": "gpt-5.4", "prompt": "a b c d " * 80_000}, "long_context"),
        ("openai", {"model": "gpt-5.4", "prompt": "a b c d " * 40_000}, ""),
        ("openai", {"model": "gpt-4.1-mini", "prompt": "a b c d " * 40_000}, "long_context"),
        ("groq", {"model": "llama-3.3-70b-versatile", "service_tier": "flex"}, "flex"),
        ("groq", {"model": "llama-3.3-70b-versatile", "service_tier": "on_demand"}, ""),
        ("anthropic", {"model": "claude-opus-5", "speed": "fast"}, "fast"),
        ("anthropic", {"model": "claude-opus-5", "speed": "standard"}, ""),
        ("anthropic", {"model": "claude-opus-5", "speed": ["fast"]}, ""),
        ("openai", {"model": "gpt-6-sol", "service_tier": ["ultrafast"]}, ""),
    ],
)
def test_the_mode_of_a_request(provider, body, mode):
    path = {"anthropic": "/v1/messages", "openai": "/v1/completions"}.get(provider, "/openai/v1/chat/completions")
    assert provider_named(provider).describe(path, body).mode == mode


@pytest.mark.parametrize("reset", ["-1s", "nan", "inf", "", "12", "s", "1x", "9" * 5_000 + "s", "1s" * 5_000, "1h-2m"])
def test_a_reset_that_is_none_is_absent(reset):
    [reading] = OPENAI.readings(told(requests=("10", "5", reset)), 0)
    assert reading.reset_s is None
    assert reading.limit == 10


def test_fast_mode_that_is_not_provisioned_never_fits():
    assert ANTHROPIC.refusal(429, {"anthropic-fast-input-tokens-limit": "0"}, b"{}").kind is RefusalKind.NEVER_FITS


def test_an_error_page_is_no_message():
    refusal = OPENAI.refusal(429, {"retry-after": "2"}, b"<html>the prompt was: secret</html>")
    assert (refusal.kind, refusal.message, refusal.retry_after_s) == (RefusalKind.RATE, "", 2.0)


def test_generic_believes_headers_that_agree():
    provider = Generic("acme-cloud")
    assert (provider.name, provider.key_env, provider.hosts) == ("acme-cloud", "ACME_CLOUD_API_KEY", ())
    good = told(requests=("100", "50", "30s"))
    [reading] = provider.readings(good, 0)
    assert (reading.limit, reading.remaining, reading.reset_s, reading.period_s) == (100, 50, 30, 60)
    [reading] = provider.readings({**good, "x-ratelimit-reset-requests": "1795255200"}, 0)
    assert (reading.remaining, reading.reset_s, reading.period_s) == (50, None, None)
    assert provider.readings({**good, "x-ratelimit-remaining-requests": "-1"}, 0) == []
    assert provider.readings({"x-ratelimit-limit-requests": "100"}, 0) == []


def test_usage_in_every_form():
    details = {"prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 2}}
    chat = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13, **details}
    assert OPENAI.usage({"usage": chat}) == OPENAI.usage(chat) == Usage(10, 3, 5, 2)
    responses = {"input_tokens": 10, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 5}}
    assert OPENAI.usage({"response": {"usage": responses}}) == Usage(10, 3, 5)
    assert OPENAI.usage({"usage": {"prompt_tokens": 8, "total_tokens": 8}}) == Usage(8)
    assert provider_named("cloudflare").usage({"result": {"response": "Hi.", "usage": chat}}) == Usage(10, 3, 5, 2)
    said_twice = {"prompt_tokens": 100, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 64}}
    for name, field in (("deepseek", "prompt_cache_hit_tokens"), ("moonshot", "cached_tokens")):
        assert provider_named(name).usage({"usage": {**said_twice, field: 64}}) == Usage(100, 3, 64)
        for unsaid in (0, None):
            details = {"prompt_tokens_details": {"cached_tokens": unsaid}}
            assert provider_named(name).usage({"usage": {**said_twice, **details, field: 64}}) == Usage(100, 3, 64)
    thought = {"prompt_tokens": 14, "completion_tokens": 59, "total_tokens": 633}
    for provider in map(provider_named, ("openai", "gemini", "vertex", "generic")):  # a proxy passes it on
        assert provider.usage({"usage": thought}) == Usage(14, 619)
    read = {"prompt_tokens": 188, "completion_tokens": 55, "total_tokens": 7_355, "connector_tokens": 7_112}
    assert provider_named("mistral").usage({"usage": read}) == Usage(7_300, 55)
    recording = {"type": "tokens", "input_tokens": 14, "output_tokens": 45, "input_token_details": {"audio_tokens": 12}}
    assert OPENAI.usage({"text": "hi", "usage": recording}) == Usage(14, 45, audio_tokens=12)
    message = {"input_tokens": 10, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 5, "output_tokens": 3}
    assert ANTHROPIC.usage({"usage": message}) == Usage(105, 3, 90, 5)
    for kind in ("compaction", "advisor_message"):
        steps = [{"type": kind, "input_tokens": 180, "output_tokens": 7}, {"type": "message", **message}]
        for sums in (message, {"output_tokens": 3}):  # the end of a stream may state the output alone
            assert ANTHROPIC.usage({"usage": {**sums, "iterations": steps}}) == Usage(285, 10, 90, 5)
        assert ANTHROPIC.usage({"usage": {**message, "iterations": steps[:1]}}) == Usage(285, 10, 90, 5)
    assert ANTHROPIC.usage({"usage": {**message, "iterations": steps[1:]}}) == Usage(105, 3, 90, 5)
    answered = {"type": "fallback_message", "model": "claude-opus-4-8", **message}
    for said, expected in (
        (0, Usage(105, 3, 90, 5)),
        (7, Usage(285, 10, 90, 5)),
    ):  # a model that declines without output costs nothing
        declined = {"type": "message", "model": "claude-fable-5", "input_tokens": 180, "output_tokens": said}
        models = ("claude-fable-5", "claude-opus-4-8")[not said :]
        told = ANTHROPIC.usage({"usage": {**message, "iterations": [declined, answered]}})
        assert told == replace(expected, models=models)
    both = [declined, {**answered, "output_tokens": 0}]  # the fallback declines, too
    told = ANTHROPIC.usage({"usage": {**message, "output_tokens": 0, "iterations": both}})
    assert told == Usage(180, 7, models=("claude-fable-5",))
    for nothing in (
        {},
        {"usage": None},
        {"usage": {"prompt_tokens": -1}},
        {"usage": "x"},
        {"prompt_tokens": float("inf")},
    ):
        assert OPENAI.usage(nothing) is None
        assert ANTHROPIC.usage(nothing) is None


@pytest.mark.parametrize(("n", "images"), [(b"3", 3), (b"many", 1), (b"99999999", 1), ("\u0663".encode(), 1)])
def test_images_of_a_form_are_counted_as_asked(n, images):
    part = b'--x\r\ncontent-disposition: form-data; name="%s"\r\n\r\n%s\r\n'
    body = body_of(part % (b"model", b"gpt-image-2") + part % (b"n", n) + b"--x--\r\n")
    assert OPENAI.describe("/v1/images/edits", body).units == {"images": images}


OF_CLAUDE = {
    "input_tokens": 100, "cache_creation_input_tokens": 3_000, "cache_read_input_tokens": 4_000, "output_tokens": 50,
    "cache_creation": {"ephemeral_5m_input_tokens": 1_000, "ephemeral_1h_input_tokens": 2_000},
}  # fmt: skip
OF_CONVERSE = {
    "inputTokens": 100, "cacheWriteInputTokens": 3_000, "cacheReadInputTokens": 4_000, "outputTokens": 50,
    "cacheDetails": [{"ttl": "1h", "inputTokens": 2_000}, {"ttl": "5m", "inputTokens": 1_000}],
}  # fmt: skip
USED = Usage(7_100, 50, 4_000, 3_000, 2_000)


@pytest.mark.parametrize(
    "host", ["anthropic", "openrouter", "vertex", "deepseek", "moonshot", "zai", "bedrock", "generic"]
)
def test_an_answer_of_claude_has_the_same_usage_at_every_host(host):
    """What was cached is no part of its input there."""
    provider = provider_named(host)
    message = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "hi"}], "usage": OF_CLAUDE}
    assert [provider.usage(found) for found in (message, OF_CLAUDE)] == [USED] * 2
    iterations = [{"type": "compaction", "input_tokens": 9, "output_tokens": 1}, {"type": "message", **OF_CLAUDE}]
    if host != "bedrock":
        step = provider.usage(message | {"usage": {"input_tokens": 100, "output_tokens": 50, "iterations": iterations}})
        assert (step.input_tokens, step.output_tokens) == (7_109, 51)


READ = {"cache_read_input_tokens": 4_000}


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        ({"prompt_tokens": 7_100, "input_tokens": 7_100, **READ}, 0),
        ({"prompt_tokens": 7_100, "prompt_tokens_details": {"cached_tokens": 4_000}, **READ}, 4_000),
        ({"input_tokens": 7_100, "input_tokens_details": {"cached_tokens": 4_000}, **READ}, 4_000),
        ({"prompt_tokens": 7_100, "input_tokens": 3_100, "cached_tokens": 4_000, **READ}, 4_000),
    ],
)
@pytest.mark.parametrize("kind", [{}, {"type": "message"}, {"object": "response"}])
def test_a_usage_in_openais_form_is_counted_once(usage, cached, kind):
    """Proxies add Anthropic's fields to it."""
    found = provider_named("generic").usage({**kind, "usage": {**usage, "output_tokens": 50}})
    assert (found.input_tokens, found.output_tokens, found.cached_tokens) == (7_100, 50, cached)


def test_bedrock_says_for_how_long_it_caches():
    assert provider_named("bedrock").usage({"output": {}, "usage": OF_CONVERSE}) == USED
    counts = {"prompt_tokens": 7_100, "completion_tokens": 50, "cache_read_input_tokens": 4_000}  # litellm's form
    assert provider_named("generic").usage({"usage": counts}).input_tokens == 7_100


def test_audio_is_a_part_of_either_side_of_gemini():
    details = [{"modality": "TEXT", "tokenCount": 2}, {"modality": "AUDIO", "tokenCount": 7}, "odd"]
    found = {"promptTokenCount": 9, "candidatesTokenCount": 9, "candidatesTokensDetails": 5}
    usage = provider_named("gemini").usage({"usageMetadata": found | {"promptTokensDetails": details}})
    assert usage == Usage(9, 9, audio_tokens=7)
