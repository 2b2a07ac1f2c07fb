"""Cohere: inputs, two generations of paths, a month that is money."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from cases import feed, sse

from paceline.core.quota import REQUESTS, TOKENS
from paceline.providers.answers import usage_cost
from paceline.providers.base import Usage
from paceline.providers.registry import provider_named
from paceline.providers.tables import lookup

PROVIDER = provider_named("cohere")
META = {"meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 9, "output_tokens": 4}}}


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/v2/chat", "chat"), ("/v1/chat", "chat_v1"), ("/v2/embed", "embed"), ("/v1/embed", "embed"), ("/v2/rerank", "rerank"),
        ("/compatibility/v1/chat/completions", "chat"), ("/v1/tokenize", None), ("/v1/models", None), ("/v1/embed-jobs", None),
    ],
)  # fmt: skip
def test_paths(path, endpoint):
    call = PROVIDER.describe(path, {"model": "m"})
    assert (call.endpoint if call else None) == endpoint


@pytest.mark.parametrize(
    ("path", "body", "images"),
    [
        ("/v2/embed", {"texts": ["a", "b", "c"]}, 0),
        ("/v2/embed", {"images": ["data:image/png;base64,QUJD"] * 3}, 3),
        ("/v2/embed", {"inputs": [{"content": [{"type": "text", "text": "a"}]}] * 3}, 0),
        ("/v2/embed", {"inputs": [{"content": [{"type": "text"}, {"type": "image_url"}]}, {"content": "a"}, None]}, 1),
        ("/v2/embed", {"texts": ["a", "b"], "images": ["c"]}, 1),
        ("/compatibility/v1/embeddings", {"input": ["a", "b", "c"]}, 0),
    ],
)
def test_embeddings_count_inputs_and_images(path, body, images):
    call = PROVIDER.describe(path, {"model": "embed-v4.0", **body})
    assert call is not None
    held = {REQUESTS: 1, TOKENS: 10, "input_tokens": 10, "output_tokens": 0, "inputs": 3}
    assert PROVIDER.held(call, 10, 512) == held | ({"images": images} if images else {})
    charged = PROVIDER.charged(call, Usage(8))
    assert (charged["inputs"], charged.get("images", 0)) == (3, images)


def test_a_chat_has_no_inputs():
    call = PROVIDER.describe(
        "/v2/chat", {"model": "command-a-03-2025", "messages": [], "max_tokens": 50, "inputs": ["x"]}
    )
    assert call is not None
    assert call.max_output_tokens == 50
    assert "inputs" not in PROVIDER.held(call, 10, 512)


def test_streams_of_both_generations():
    end = {
        "type": "message-end",
        "delta": {"finish_reason": "COMPLETE", "usage": {"billed_units": {"input_tokens": 9, "output_tokens": 4}}},
    }
    stream = feed(PROVIDER, sse({"type": "message-start"}, {"type": "content-delta"}, end), stream=True)
    assert stream.usage == Usage(9, 4)
    call = PROVIDER.describe("/v1/chat", {"message": "hi", "stream": True})
    reader = PROVIDER.usage_reader(call)
    for line in ({"event_type": "text-generation", "text": "x"}, {"event_type": "stream-end", "response": META}):
        reader.feed(json.dumps(line).encode() + b"\n")
    reader.close()
    assert reader.usage == Usage(9, 4)


def test_usage_after_long_embeddings():
    reader = PROVIDER.usage_reader(PROVIDER.describe("/v2/embed", {"texts": ["x"]}))
    reader.feed(json.dumps({"embeddings": {"float": [[0.125] * 50_000]}, **META}).encode())
    reader.close()
    assert reader.usage == Usage(9, 4)


def test_what_the_sdk_returns():
    units = SimpleNamespace(input_tokens=10.0, output_tokens=3.0)
    chat = SimpleNamespace(usage=SimpleNamespace(billed_units=units, tokens=None))
    assert usage_cost("cohere/command-a-03-2025", chat)[TOKENS] == 13
    assert usage_cost("cohere/embed-v4.0", SimpleNamespace(meta=SimpleNamespace(billed_units=units)))[TOKENS] == 13


def test_limits():
    assert [str(quota) for quota in lookup("cohere", "embed-v4.0").quotas] == [
        "2k requests/min",
        "2k inputs/min",
        "5 images/min",
    ]
    assert [str(quota) for quota in lookup("cohere", "rerank-v4.0-pro", "production").quotas] == ["1k requests/min"]
