"""Gemini: the model in the URL, input only, days that end in Los Angeles, nothing in headers."""

from __future__ import annotations

import pytest
from cases import check_error, load

from paceline.providers.base import Usage
from paceline.providers.registry import provider_named

PROVIDER = provider_named("gemini")
CASES = load("gemini")
PATH = "/v1beta/models/gemini-3.6-flash:generateContent"


@pytest.mark.parametrize(
    ("path", "body", "requests"),
    [
        ("/v1beta/models/gemini-embedding-001:batchEmbedContents", {"requests": [{"content": {}}] * 20}, 20),
        ("/v1beta/models/gemini-embedding-001:batchEmbedContents", {"requests": 3}, 1),
        ("/v1beta/models/gemini-embedding-001:embedContent", {"content": {}}, 1),
        ("/v1beta/openai/embeddings", {"model": "gemini-embedding-001", "input": ["a", "b", "c"]}, 3),
        ("/v1beta/openai/embeddings", {"model": "gemini-embedding-001", "input": "abc"}, 1),
        ("/v1beta/openai/embeddings", {"model": "gemini-embedding-001", "input": [1, 2, 3]}, 1),
        ("/v1beta/openai/chat/completions", {"model": "gemini-3.6-flash", "input": ["a", "b"]}, 1),
    ],
)
def test_each_text_of_a_batch_is_a_request(path, body, requests):
    call = PROVIDER.describe(path, body)
    assert PROVIDER.held(call, 10, 0)["requests"] == requests
    assert PROVIDER.charged(call, Usage(8))["requests"] == requests


def test_audio_is_a_part_of_either_side():
    details = [{"modality": "TEXT", "tokenCount": 2}, {"modality": "AUDIO", "tokenCount": 7}, "odd"]
    found = {
        "promptTokenCount": 9,
        "candidatesTokenCount": 9,
        "promptTokensDetails": details,
        "candidatesTokensDetails": 5,
    }
    assert PROVIDER.usage({"usageMetadata": found}) == Usage(9, 9, audio_tokens=7)


@pytest.mark.parametrize("date", ["Fri, 31 Dec 9999 23:59:59 GMT", "Sat, 99 Nov 2026 00:00:00 GMT", "x"])
def test_a_time_that_cannot_be(date):
    case = next(case for case in CASES["error"] if case["what"].startswith("a day, and nobody"))
    check_error(PROVIDER, {**case, "headers": {"date": date}})
