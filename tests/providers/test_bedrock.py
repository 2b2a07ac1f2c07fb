"""Bedrock: quotas of a region and a profile, output with a weight, and a binary stream."""

from __future__ import annotations

import pytest
from cases import each, load, read
from hypothesis import given
from hypothesis import strategies as st

from odd_server import chunk_of, frame, frame_of
from paceline.core.quota import OUTPUT_TOKENS, TOKENS
from paceline.core.results import RefusalKind
from paceline.providers.base import Call
from paceline.providers.registry import provider_for_host, provider_named
from paceline.providers.tables import lookup
from paceline.responses.events import MAX_EVENT

PROVIDER = provider_named("bedrock")
CASES = load("bedrock")
CALL = Call("bedrock", "converse", "m", 1, stream=True)

USED = {"inputTokens": 9, "outputTokens": 4, "cacheReadInputTokens": 2}
METADATA = frame_of("metadata", {"usage": USED, "metrics": {}})
TEXT = frame_of("contentBlockDelta", {"delta": {"text": "metadata"}})
CONVERSE = frame_of("messageStart", {"role": "assistant"}) + TEXT
STARTED = {"type": "message_start", "message": {"usage": {"input_tokens": 9}}}
INVOKE = chunk_of(STARTED) + chunk_of({"type": "message_delta"})
METRICS = {"inputTokenCount": 9, "outputTokenCount": 4, "cacheReadInputTokenCount": 2, "invocationLatency": 900}
INVOKED = chunk_of({"type": "message_stop", "amazon-bedrock-invocationMetrics": METRICS})


def test_models_that_work_for_an_answer_are_named():
    body = {
        "messages": [],
        "tools": [{"type": "advisor", "name": "advisor", "model": "claude-opus-5"}],
        "max_tokens": 9,
    }
    call = PROVIDER.describe("/model/anthropic.claude-sonnet-5/invoke", body)
    assert (call.others, call.max_output_tokens) == ((("claude-opus-5",), True), 9)


@each(CASES, "charge")
def test_what_is_held_and_charged(case):
    call = Call("bedrock", "converse", case["model"], case["input"], case["most"])
    assert PROVIDER.held(call, case["input"], 5)[TOKENS] == case["held"]
    usage = PROVIDER.usage({"usage": case["usage"]})
    charged = PROVIDER.charged(call, usage)
    assert (charged[TOKENS], charged[OUTPUT_TOKENS]) == (case["charged"], usage.output_tokens)


@pytest.mark.parametrize(("model", "most"), [("anthropic.claude-opus-5-5", 128_000), ("amazon.nova-pro", 64_000)])
def test_without_a_maximum_the_models_own_is_held(model, most):
    assert PROVIDER.held(Call("bedrock", "converse", model, 100), 100, 5)[TOKENS] == 100 + most
    embed = PROVIDER.describe("/model/amazon.titan-embed-text-v2:0/invoke", {"inputText": "hello"})
    assert PROVIDER.held(embed, 10, 5)[TOKENS] == 10


def test_images_and_files_are_constants_and_tools_are_text():
    def tokens(*content, **body):
        call = PROVIDER.describe(
            "/model/m/converse", {"messages": [{"role": "user", "content": list(content)}], **body}
        )
        return call.input_tokens

    bare, data = tokens(), "A" * 400_000
    image = {"image": {"format": "png", "source": {"bytes": data}}}
    assert tokens(image) == bare + 1_600
    assert tokens({"document": {"name": "d", "source": {"bytes": data}}}) == bare + 6_000
    assert tokens({"toolResult": {"toolUseId": "t", "content": [image, {"text": "a word"}]}}) > bare + 1_600
    assert tokens({"toolUse": {"name": "f", "input": {"city": "Rome and Paris"}}}) > tokens({"toolUse": {}})
    assert tokens({"text": "hello"}, system=[{"text": "a long system prompt"}]) > tokens({"text": "hello"})
    assert tokens({"text": "hello"}, toolConfig={"tools": [{"toolSpec": {"name": "weather"}}]}) > tokens(
        {"text": "hello"}
    )


@pytest.mark.parametrize("hour", [0, 30])
def test_a_stream_says_at_its_beginning_for_how_long_it_caches(hour):
    """The metrics at its end do not."""
    started = {"cache_creation_input_tokens": 50, "cache_creation": {"ephemeral_1h_input_tokens": hour}}
    end = {"type": "message_stop", "amazon-bedrock-invocationMetrics": METRICS | {"cacheWriteInputTokenCount": 50}}
    readers = [PROVIDER.usage_reader(CALL) for _ in range(2)]  # each has its own
    readers[0].feed(chunk_of({"type": "message_start", "message": {"usage": started}}))
    for reader in readers:
        reader.feed(chunk_of(end))
    assert [reader.usage.hour_write_tokens for reader in readers] == [hour, 0]
    assert [reader.usage.cache_write_tokens for reader in readers] == [50, 50]


@pytest.mark.parametrize(
    ("kind", "refusal"),
    [
        ("throttlingException", RefusalKind.RATE),
        ("serviceUnavailableException", RefusalKind.CAPACITY),
        ("modelStreamErrorException", None),
    ],
)
def test_an_exception_inside_a_stream(kind, refusal):
    message = {"message": "Too many tokens, please wait before trying again."}
    exception = frame(message, message_type="exception", exception_type=kind)
    reader = read(PROVIDER, CONVERSE + exception, call=CALL)
    found = reader.refusal
    assert (found and found.kind, reader.failed) == (refusal, True)
    if refusal is RefusalKind.RATE:
        assert (found.unit, found.code) == (TOKENS, kind)


@given(st.binary(max_size=400), st.integers(0, 400))
def test_no_bytes_raise_and_none_pile_up(noise, at):
    stream = CONVERSE + METADATA
    for data in (noise, stream[:at] + noise + stream[at:], frame(noise, event_type="metadata"), frame_of("chunk", {"bytes": noise.hex()})):  # fmt: skip
        assert read(PROVIDER, data, call=CALL).done
    reader = PROVIDER.usage_reader(CALL)
    reader.feed((MAX_EVENT + 1).to_bytes(4, "big") + bytes(8))
    assert reader.done


def test_the_region_comes_from_the_host():
    host = "bedrock-runtime.us-west-2.amazonaws.com"
    provider = provider_for_host(host)
    assert provider is provider_for_host(f"{host.upper()}:443")
    call = provider.describe("/model/us.anthropic.claude-opus-5-5-v1:0/converse", {})
    assert call.model == "us-west-2/us.anthropic.claude-opus-5-5-v1:0"
    assert provider_named("bedrock").pool(call.model) == call.model
    assert lookup("bedrock", call.model).pool == call.model
    gov = provider_for_host("bedrock-runtime.us-gov-west-1.amazonaws.com")
    assert gov.describe("/model/m/invoke", {}).model == "us-gov-west-1/m"
