"""Azure: pools by deployment, whole seconds, windows, refusals with status 200."""

from __future__ import annotations

import pytest
from cases import load

from paceline import Limiter
from paceline.core.progress import Row
from paceline.core.quota import TOKENS
from paceline.pacing.retry import Failures, GiveUp, RetryPolicy
from paceline.providers.answers import usage_cost
from paceline.providers.registry import provider_for_host, provider_named

PROVIDER = provider_named("azure")
CASES = load("azure")
HOST = "acme-eu.openai.azure.com"


@pytest.mark.parametrize(
    ("host", "path", "model"),
    [
        (HOST, "/openai/deployments/prod/chat/completions", f"{HOST}/prod"),
        (HOST, "/openai/deployments/prod/embeddings", f"{HOST}/prod"),
        (HOST, "/openai/v1/chat/completions", f"{HOST}/in-body"),
        (HOST, "/openai/v1/responses", f"{HOST}/in-body"),
        ("acme.cognitiveservices.azure.com", "/openai/responses", "acme.cognitiveservices.azure.com/in-body"),
        ("acme.services.ai.azure.com", "/models/chat/completions", "acme.services.ai.azure.com/in-body"),
        (HOST, "/openai/deployments/prod/images/generations", f"{HOST}/prod"),
        (HOST, "/openai/deployments/prod/images/edits", f"{HOST}/prod"),
        (HOST, "/openai/deployments", None),
    ],
)
def test_a_pool_is_a_resource_and_a_deployment(host, path, model):
    provider = provider_for_host(host)
    assert provider is not None
    assert provider.name == "azure"
    assert provider is provider_for_host(host.upper())
    call = provider.describe(path, {"model": "in-body"})
    assert (call.model if call else None) == model
    if call is not None:
        assert provider.pool(call.model) == model


def test_without_a_host_the_deployment_alone():
    call = provider_named("azure").describe("/openai/deployments/prod/chat/completions", {"model": "gpt-5"})
    assert call is not None
    assert call.model == "prod"


def test_two_deployments_are_two_pools():
    limiter = Limiter({"azure/*": "600 requests/min, 100k tokens/min", f"azure/{HOST}/prod": "1M tokens/min window"})
    prod, other = (
        limiter.pacer.pools.of_model("azure", f"{HOST}/prod"),
        limiter.pacer.pools.of_model("azure", f"{HOST}/gpt-4o-2024-08-06"),
    )
    assert (prod.pool.name, other.pool.name) == (f"azure/{HOST}/prod", f"azure/{HOST}/gpt-4o-2024-08-06")
    assert prod.pool.ledger.entries[0].meter.quota.amount == 1_000_000
    assert usage_cost(prod.pool.name, {"prompt_tokens": 10, "completion_tokens": 3})[TOKENS] == 13


def test_a_day_is_handed_up():
    case = next(case for case in CASES["error"] if case["what"].startswith("a day"))
    import json

    refusal = PROVIDER.refusal(429, case["headers"], json.dumps(case["body"]).encode())
    assert isinstance(RetryPolicy().after(Failures(of_pool=1), refusal, Row(1), 0.5), GiveUp)
