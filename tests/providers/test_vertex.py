"""Vertex AI: Gemini's dialect, shared capacity, a host for each region."""

from __future__ import annotations

import pytest

from paceline.providers.registry import provider_for_host, provider_named

PROVIDER = provider_named("vertex")
ROOT = "/v1/projects/p/locations/us-central1"


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
