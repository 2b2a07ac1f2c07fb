"""Documented hosts and paths: each is known and metered, under the right model."""

from __future__ import annotations

import pytest
from cases import read, sse, told

from paceline.core.results import Reading, RefusalKind
from paceline.providers.registry import provider_for_host, provider_named

BODY = {"model": "m", "messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 50}
AZURE = "acme-eu.openai.azure.com"
CLAUDE = "/v1/projects/p/locations/{}/publishers/anthropic/models/{}:streamRawPredict"


HOSTS = {
    "acme.openai.azure.us": "azure",
    "us-east-1.api.x.ai": "xai",
    "bedrock-runtime-fips.us-east-1.amazonaws.com": "bedrock",
    "aiplatform.eu.rep.googleapis.com": "vertex",
    "api.moonshot.cn": "moonshot",
    "ws.ap-southeast-1.maas.aliyuncs.com": "dashscope",
    "adb-1.2.azuredatabricks.net": "databricks",
    "API.OpenAI.com": "openai",
    "api.openai.com:443": "openai",
    "eu.api.openai.com": "openai",
    "aiplatform.googleapis.com": "vertex",
    "us-central1-aiplatform.googleapis.com": "vertex",
    # of plans and regions
    "token-plan-sgp.xiaomimimo.com": "xiaomi",
    "token-plan.cn-beijing.maas.aliyuncs.com": "dashscope",
    "ark.ap-southeast.bytepluses.com": "volcengine",
    "inference.generativeai.us-chicago-1.oci.oraclecloud.com": "oci",
    "acme.snowflakecomputing.com": "snowflake_cortex",
    "api.business.githubcopilot.com": "github_copilot",
    "model-1.api.baseten.co": "baseten",
    # of none
    "api.openai.com.evil.example": None,
    "notapi.openai.com": None,
    "localhost": None,
    "": None,
    "[::1]:80": None,
    "evil-aiplatform.googleapis.com.example": None,
    "xaiplatform.googleapis.com": None,
    "storage.googleapis.com": None,
    "s3.amazonaws.com": None,
    "bedrock.us-west-2.amazonaws.com": None,
    "bedrock-runtime.us-west-2.example.com": None,
}


@pytest.mark.parametrize(("host", "name"), HOSTS.items())
def test_hosts(host, name):
    found = provider_for_host(host)
    assert (found and found.name) == name


@pytest.mark.parametrize(
    ("host", "path", "model"),
    [
        (AZURE, "/openai/deployments/prod/chat/completions", f"{AZURE}/prod"),
        (AZURE, "/openai/deployments/prod/images/generations", f"{AZURE}/prod"),
        (AZURE, "/openai/v1/chat/completions", f"{AZURE}/m"),
        (AZURE, "/openai/deployments", None),
        ("acme.cognitiveservices.azure.com", "/openai/responses", "acme.cognitiveservices.azure.com/m"),
        ("acme.services.ai.azure.com", "/models/chat/completions", "acme.services.ai.azure.com/m"),
        ("acme.services.ai.azure.com", "/anthropic/v1/messages", "acme.services.ai.azure.com/m"),
        ("api.deepseek.com", "/anthropic/v1/messages", "m"),
        ("openrouter.ai", "/api/v1/messages", "m"),
        ("api.openai.com", "/v1/threads/t/messages", None),
        ("generativelanguage.googleapis.com", "/v1beta/interactions", "m"),
        ("generativelanguage.googleapis.com", "/v1beta/interactions/i", None),
        ("api.together.ai", "/v1/rerank", "m"),
        ("api.together.ai", "/v1/images/generations", "m"),
        ("api.together.ai", "/v1/audio/speech", "m"),
        ("api.openai.com", "/v1/images/edits", "m"),
        ("api.openai.com", "/v1/moderations", "m"),
        ("api.groq.com", "/openai/v1/audio/transcriptions", "m"),
        ("api.anthropic.com", "/v1/chat/completions", "m"),
        ("dashscope.aliyuncs.com", "/api/v1/services/aigc/text-generation/generation", "m"),
        ("dashscope-intl.aliyuncs.com", "/api/v1/services/aigc/multimodal-generation/generation", "m"),
        ("dashscope.aliyuncs.com", "/api/v1/services/embeddings/text-embedding/text-embedding", "m"),
        ("dashscope.aliyuncs.com", "/api/v1/services/rerank/text-rerank/text-rerank", "m"),
        ("dashscope.aliyuncs.com", "/api/v1/services/aigc/text2image/image-synthesis", "m"),
        ("dashscope.aliyuncs.com", "/api/v1/tasks/t-1", None),
        ("ollama.com", "/api/embeddings", "m"),
        ("acme.cloud.databricks.com", "/serving-endpoints/databricks-gpt-oss-120b/invocations", "databricks-gpt-oss-120b"),
        ("api.cloudflare.com", "/client/v4/accounts/a/ai/run/@cf/meta/llama-3.1-8b-instruct", "@cf/meta/llama-3.1-8b-instruct"),
        ("api.cloudflare.com", "/client/v4/accounts/a/ai/v1/chat/completions", "m"),
        ("ollama.com", "/api/chat", "m"),
        ("ollama.com", "/api/pull", None),
        ("api.voyageai.com", "/v1/embeddings", "m"),
        ("api.voyageai.com", "/v1/contextualizedembeddings", "m"),
        ("api.voyageai.com", "/v1/rerank", "m"),
        ("us-east5-aiplatform.googleapis.com", CLAUDE.format("us-east5", "claude-opus-5"), "us-east5/claude-opus-5"),
        ("aiplatform.eu.rep.googleapis.com", "/v1/projects/p/locations/eu/endpoints/openapi/chat/completions", "m"),
    ],
)  # fmt: skip
def test_paths(host, path, model):
    call = provider_for_host(host.upper()).describe(path, BODY)
    assert (call.model if call else None) == model
    assert call is None or call.input_tokens > 3


def test_a_refusal_in_a_stream_in_openai_s_form_is_read_at_anthropic():
    provider = provider_named("anthropic")
    call = provider.describe("/v1/chat/completions", BODY | {"stream": True})
    overloaded = sse({"error": {"type": "overloaded_error", "message": "Overloaded"}})
    assert read(provider, overloaded, call=call).refusal.kind is RefusalKind.CAPACITY


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_ollama_streams_unless_told_otherwise(path):
    for asked, streams in (({}, True), ({"stream": None}, True), ({"stream": True}, True), ({"stream": False}, False)):
        assert provider_named("ollama").describe(path, {"model": "m", "prompt": "hi", **asked}).stream is streams
    assert not provider_named("ollama").describe("/v1/chat/completions", BODY).stream


def test_perplexity_s_asynchronous_requests_have_limits_of_their_own():
    body = {"request": BODY | {"model": "sonar-deep-research"}}
    call = provider_named("perplexity").describe("/async/chat/completions", body)
    assert (call.model, call.max_output_tokens) == ("async-api", 0)
    assert call.input_tokens > 3


def test_the_prompt_of_dashscope_s_own_requests_counts():
    path, messages = "/api/v1/services/aigc/text-generation/generation", {"messages": BODY["messages"]}
    assert provider_named("dashscope").describe(path, {"model": "qwen-plus", "input": messages}).input_tokens > 3


@pytest.mark.parametrize(
    ("provider", "model", "pool"),
    [
        ("azure", f"{AZURE}/prod", f"{AZURE}/prod"),
        ("openai", "gpt-4o-2024-08-06", "gpt-4o"),
        ("openai", "gpt-5.5-2026-04-23", "gpt-5.5"),
        ("openai", "gpt-4-0613", "gpt-4"),
        ("openai", "gpt-5-mini", "gpt-5-mini"),
        ("openai", "gpt-realtime-mini-2025-12-15", "gpt-4o-mini-realtime"),
        ("openai", "gpt-realtime-2", "gpt-4o-realtime"),
        ("openai", "gpt-image-2-codex", "gpt-image"),
        ("anthropic", "claude-sonnet-4-5-20250929", "claude-sonnet-4x"),
        ("anthropic", "claude-opus-4-8", "claude-opus-4x"),
        ("anthropic", "claude-opus-5-5", "claude-opus-5-5"),
        ("anthropic", "claude-haiku-4-5-20251001", "claude-haiku-4-5"),
        ("anthropic", "claude-fable-5-1", "claude-fable-5"),
        ("acme", "gpt-4o-2024-08-06", "gpt-4o-2024-08-06"),
        ("openrouter", "google/gemma-4-31b-it:free", "free"),
        ("openrouter", "free-lunch/m", "free-lunch/m"),
        ("groq", "moonshotai/kimi-k2-instruct-0905", "moonshotai/kimi-k2-instruct-0905"),
        ("anthropic", "claude-haiku-4.5", "claude-haiku-4-5"),
        ("anthropic", "claude-sonnet-4.5", "claude-sonnet-4x"),
        ("openai", "ft:gpt-4o-mini-2024-07-18:org::id", "gpt-4o-mini"),
        ("vertex", "google/gemini-2.5-flash", "gemini-2.5-flash"),
        ("vertex", "global/claude-opus-4-8", "global/claude-opus"),
        ("vertex", "global/claude-opus-5@20260601", "global/claude-opus"),
        ("vertex", "eu/claude-sonnet-5-5", "eu/claude-sonnet"),
        ("vertex", "us/claude-fable-5", "us/claude-fable"),
        ("vertex", "global/claude-opus-4-7@20260101", "global/claude-opus-4-7"),  # launched before the lineages
        ("vertex", "global/claude-haiku-4-5@20251001", "global/claude-haiku-4-5"),
        ("vertex", "us-east5/claude-opus-5", "us-east5/claude-opus-5"),  # a region has quotas by model
    ],
)
def test_pools(provider, model, pool):
    assert provider_named(provider).pool(model) == pool


@pytest.mark.parametrize(
    ("provider", "headers", "readings"),
    [
        ("sambanova", {"requests": ("60", "59", "1790000000")}, [Reading("requests", 60, 59, None, 60.0)]),
        (
            "digitalocean",
            {"requests": ("120", "119", "1790000000"), "tokens_per_day": ("5000000", "4999000", "1790000000")},
            [Reading("requests", 120, 119, None, 60.0), Reading("tokens", 5e6, 4_999_000, None, 86_400.0)],
        ),
    ],
)
def test_documented_headers(provider, headers, readings):
    assert provider_named(provider).readings(told(**headers), 0.0) == readings


def test_predictions_of_replicate_share_a_limit():
    provider = provider_for_host("api.replicate.com")
    body = {"input": {"prompt": "Say something about the weather."}, "stream": True}
    for path in ("/v1/predictions", "/v1/models/meta/llama-3/predictions", "/v1/deployments/a/b/predictions"):
        call = provider.describe(path, body)
        assert (call.model, call.max_output_tokens, call.stream) == ("predictions", 0, False)
        assert call.input_tokens > 3
    assert provider.describe("/v1/predictions/p-1/cancel", {}) is None
    throttled = b'{"detail":"Request was throttled. Your rate limit resets in ~30s."}'
    refusal = provider.refusal(429, {}, throttled)
    assert (refusal.unit, refusal.retry_after_s) == ("requests", 30)
    assert provider.refusal(429, {"retry-after": "4"}, throttled).retry_after_s == 4
