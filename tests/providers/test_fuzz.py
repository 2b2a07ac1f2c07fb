"""No header, body or stream, however broken, raises or yields a limit that cannot be one."""

from __future__ import annotations

import json
import math
import random
import tomllib
from pathlib import Path

import pytest
from cases import read
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grids import some
from paceline.core.results import Reading, Refusal
from paceline.providers.base import Call
from paceline.providers.generic import Generic
from paceline.providers.registry import PROVIDERS as KNOWN
from paceline.providers.registry import provider_for_host, provider_named
from paceline.providers.verdict import judge

unhurried = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=settings().max_examples // 2
)
PROVIDERS = [*map(provider_named, KNOWN), provider_for_host("acme.openai.azure.com"), Generic("acme")]
ALIKE = {
    kind.__name__: [each for each in PROVIDERS if type(each) is kind] for kind in dict.fromkeys(map(type, PROVIDERS))
}
every_kind = pytest.mark.parametrize("alike", ALIKE.values(), ids=ALIKE)
"""Providers of one class share its code and differ in a row of a table: each property tries all of them."""
FIXTURES = [
    tomllib.loads(file.read_text(encoding="utf-8"))
    for file in sorted(Path(__file__).with_name("fixtures").glob("*.toml"))
]
REAL = [case for name in ("error", "usage", "header") for fixture in FIXTURES for case in fixture.get(name, [])]
REAL_BODIES = [case["body"] for case in REAL if "body" in case]
NUMBERS = st.one_of(
    st.integers().map(str),
    st.floats().map(str),
    st.text(max_size=12),
    st.sampled_from(["0", "-0", "-1", "NaN", "inf", "1e400", "9" * 400, "٣", "1_000", "1,000", "0x10", " 5 ", "²"]),
)
DURATIONS = st.one_of(
    NUMBERS, st.from_regex(r"-?\d{1,30}(\.\d{1,5})?(h|m|s|ms|us|ns| ){0,3}\d{0,4}(s|ms)?", fullmatch=True)
)
DATES = st.one_of(NUMBERS, st.datetimes().map(str), st.datetimes().map(lambda date: date.isoformat() + "Z"))
NAMES = (
    [f"x-ratelimit-{what}-{unit}" for what in ("limit", "remaining", "reset") for unit in ("requests", "tokens", "project-tokens")]
    + [f"anthropic-ratelimit-{unit}-{what}" for what in ("limit", "remaining", "reset") for unit in ("requests", "input-tokens", "output-tokens")]
    + ["retry-after", "retry-after-ms", "date", "anthropic-fast-input-tokens-limit"]
    + sorted({name for case in REAL for name in case.get("headers", {})})
)  # fmt: skip
HEADERS = st.dictionaries(st.sampled_from(NAMES), st.one_of(NUMBERS, DURATIONS, DATES))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from([
                "error", "message", "code", "type", "details", "error_code", "usage", "response", "prompt_tokens", "input_tokens",
                "completion_tokens", "prompt_tokens_details", "cached_tokens", "messages", "content", "role", "input", "source",
                "image_url", "model", "max_tokens", "n", "stream", "tools", "system", "data",
                "contents", "parts", "inlineData", "mimeType", "generationConfig", "maxOutputTokens", "candidateCount", "texts",
                "images", "inputs", "documents", "usageMetadata", "billed_units", "meta", "x_groq", "violations",
                "toolUse", "toolResult", "image", "name", "inferenceConfig", "maxTokens", "toolConfig", "textGenerationConfig",
                "inputTokens", "results", "tokenCount",
            ]),
            inner,
            max_size=6,
        ),
    ),
    max_leaves=12,
)  # fmt: skip
MESSAGES = st.builds(
    "Rate limit reached on {} per {}: Limit {}, Used {}, Requested {}. Please try again in {}. of {} input tokens per minute".format,
    st.text(max_size=8), st.sampled_from(["min", "day", "", "fortnight"]), NUMBERS, NUMBERS, NUMBERS, DURATIONS, NUMBERS,
)  # fmt: skip


@st.composite
def spoilt(draw):
    """A real answer's body in which one value is something else."""

    def spoil(value):
        if isinstance(value, dict) and value and draw(st.integers(0, 4)):
            key = draw(st.sampled_from(sorted(value)))
            return {**value, key: spoil(value[key])}
        if isinstance(value, list) and value and draw(st.integers(0, 4)):
            return [spoil(value[0]), *value[1:]]
        return draw(st.one_of(JSON, NUMBERS, DURATIONS))

    return json.dumps(spoil(draw(st.sampled_from(REAL_BODIES)))).encode()


BODIES = st.one_of(
    st.binary(max_size=60),
    JSON.map(lambda value: json.dumps(value).encode()),
    MESSAGES.map(lambda text: json.dumps({"error": {"message": text, "code": "rate_limit_exceeded"}}).encode()),
    spoilt(),
)
ENDPOINTS = ["chat", "chat_v1", "responses", "messages", "embeddings", "embed", "generate", "converse"]
PATHS = [
    "/v1/predictions",
    "/v1/messages", "/chat/completions", "/responses", "/embeddings", "", "/x", "/v2/chat", "/v1/chat", "/v2/embed", "/v1/rerank",
    "/v1beta/models/m:generateContent", "/v1beta/models/m:batchEmbedContents", "/openai/deployments/d/chat/completions",
    "/model/m/converse", "/model/m/invoke",
]  # fmt: skip


def check_amounts(found):
    for name in ("limit", "period_s"):
        value = getattr(found, name)
        assert value is None or (math.isfinite(value) and value > 0)
    for name in ("reset_s", "retry_after_s", "used", "requested"):
        value = getattr(found, name, None)
        assert value is None or (math.isfinite(value) and value >= 0)
    if isinstance(found, Reading):
        assert found.remaining is None or math.isfinite(found.remaining)


@every_kind
@unhurried
@given(data=st.data(), headers=HEADERS, now_s=st.floats(0, 4e9))
def test_headers(data, alike, headers, now_s):
    provider = data.draw(st.sampled_from(alike))
    for reading in provider.readings(headers, now_s):
        check_amounts(reading)


@every_kind
@unhurried
@given(
    data=st.data(),
    status=st.sampled_from([200, 301, 400, 401, 402, 403, 413, 429, 498, 500, 503, 529, 999]),
    headers=HEADERS,
    body=BODIES,
)
def test_refusals(data, alike, status, headers, body):
    provider = data.draw(st.sampled_from(alike))
    refusal = provider.refusal(status, headers, body)
    if refusal is not None:
        assert isinstance(refusal, Refusal)
        assert len(refusal.message) <= 300
        check_amounts(refusal)


@every_kind
@unhurried
@given(
    data=st.data(),
    stream=st.booleans(),
    endpoint=st.sampled_from(ENDPOINTS),
    chunks=st.lists(
        st.one_of(BODIES, BODIES.map(lambda body: b"data: " + body + b"\r\n\n"), st.sampled_from([b"\r", b"\n"]))
    ),
)
def test_readers(data, alike, stream, endpoint, chunks):
    provider = data.draw(st.sampled_from(alike))
    reader = read(provider, *chunks, call=Call(provider.name, endpoint, "m", 1, stream=stream))
    usage = reader.usage
    if usage is not None:
        assert 0 <= usage.cached_tokens <= usage.input_tokens
        assert usage.output_tokens >= 0
    if reader.refusal is not None:
        check_amounts(reader.refusal)


@every_kind
@unhurried
@given(data=st.data(), path=st.sampled_from(PATHS), body=JSON)
def test_describe(data, alike, path, body):
    provider = data.draw(st.sampled_from(alike))
    call = provider.describe(path, body if isinstance(body, dict) else {"messages": body})
    if call is not None:
        assert call.input_tokens >= 0
        assert call.max_output_tokens is None or call.max_output_tokens >= 0
        for units in (
            provider.held(call, 10.0, 5.0),
            provider.charged(call, provider.usage({"input_tokens": 3, "output_tokens": 1})),
        ):
            assert all(math.isfinite(amount) and amount >= 0 for amount in units.values())
    usage = provider.usage(body if isinstance(body, dict) else {"results": body})
    assert usage is None or 0 <= usage.cached_tokens <= usage.input_tokens


@every_kind
def test_deep_nesting(alike):
    provider = alike[0]
    deep = b"[" * 200_000
    assert provider.refusal(429, {}, deep) is not None
    assert read(provider, b'{"usage":' + deep).usage is None
    nested = {"role": "user"}
    for _ in range(5_000):
        nested = {"content": [nested]}
    assert any(provider.describe(path, {"messages": nested, "input": nested, "contents": nested}) for path in PATHS)


PUBLIC = json.loads(Path(__file__).with_name("fixtures").joinpath("public.json").read_text(encoding="utf-8"))
PIECES = [
    word for case in PUBLIC["refusals"] for word in (case["body"] if isinstance(case["body"], str) else json.dumps(case["body"])).split(" ")
]  # fmt: skip
NAMED = sorted({name for case in PUBLIC["headers"] for name in case["headers"]})
VALUES = sorted({text for case in PUBLIC["headers"] for text in case["headers"].values()})


def answers(seed, number):
    """Answers of pieces of real ones: a status, headers, and a body that is often no JSON."""
    draw = random.Random(seed)
    for _ in range(number):
        words = " ".join(draw.choices(PIECES, k=draw.randint(1, 60)))
        if draw.random() < 0.5:
            words = json.dumps({"error": {"message": words, "code": draw.choice(PIECES), "type": draw.choice(PIECES)}})
        at = draw.randrange(len(words) + 1)
        body = words[:at] + draw.choice(["", "\u0000", "é", "0" * 30, "limit " * 40, "{"]) + words[at:]
        headers = dict(zip(draw.choices(NAMED, k=9), draw.choices(VALUES, k=9), strict=True))
        yield draw.choice([200, 400, 401, 402, 403, 413, 429, 503]), headers, body.encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("seed", some(range(3), 0, mark=pytest.mark.long("more of the same kind")))
def test_pieces_of_real_answers_in_any_order(seed):
    for count, (status, headers, body) in enumerate(answers(seed, 1_000)):
        provider = PROVIDERS[count % len(PROVIDERS)]
        judge(provider, Call(provider.name, "chat", "m", 1), status, headers, body)
        provider.readings(headers, 0.0)
