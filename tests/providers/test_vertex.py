"""Vertex AI: Gemini's dialect, shared capacity, a host for each region."""

from __future__ import annotations

import pytest

from paceline.core.quota import TOKENS
from paceline.providers.registry import provider_for_host, provider_named
from paceline.providers.tables import lookup

PROVIDER = provider_named("vertex")
ROOT = "/v1/projects/p/locations/us-central1"


@pytest.mark.parametrize(
    ("path", "model"),
    [
        (f"{ROOT}/publishers/google/models/gemini-3.6-flash:generateContent", "gemini-3.6-flash"),
        (f"{ROOT}/publishers/google/models/gemini-3.6-flash:streamGenerateContent", "gemini-3.6-flash"),
        (f"{ROOT}/publishers/anthropic/models/claude-opus-5:rawPredict", "us-central1/claude-opus-5"),
        (f"{ROOT}/publishers/meta/models/llama:generateContent", None),
        (f"{ROOT}/publishers/google/models/gemini-3.6-flash:countTokens", None),
        (f"{ROOT}/batchPredictionJobs", None),
    ],
)
def test_paths(path, model):
    call = PROVIDER.describe(path, {})
    assert (call.model if call else None) == model
    assert call is None or call.stream == ("stream" in path)


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("aiplatform.googleapis.com", True),
        ("us-central1-aiplatform.googleapis.com", True),
        ("europe-west4-aiplatform.googleapis.com:443", True),
        ("evil-aiplatform.googleapis.com.example", False),
        ("xaiplatform.googleapis.com", False),
        ("storage.googleapis.com", False),
    ],
)
def test_hosts(host, known):
    provider = provider_for_host(host)
    assert (provider.name if provider else None) == ("vertex" if known else None)


def test_output_counts():
    call = PROVIDER.describe(
        f"{ROOT}/publishers/google/models/m:generateContent", {"generationConfig": {"maxOutputTokens": 50}}
    )
    assert call is not None
    assert PROVIDER.held(call, 100, 400)[TOKENS] == 150


def test_the_line_by_spend():
    assert [str(quota) for quota in lookup("vertex", "gemini-3.1-pro", 2).quotas] == [
        "30k requests/min",
        "1M tokens/min",
    ]
    assert lookup("vertex_ai", "gemini-3.6-flash", 3).quotas[1].amount == 10_000_000
    assert PROVIDER.pool("google/gemini-3.6-flash") == PROVIDER.pool("gemini-3.6-flash")
