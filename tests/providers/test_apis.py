"""What the APIs have in common, as grids with rows of each: paths, usage at the end of a stream, the cost of a call, published limits."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from anthropic.types import Usage as OfClaude
from cases import check_error, feed, load, read, sse
from openai.types import CompletionUsage

from paceline import Limiter
from paceline.core.progress import Row
from paceline.core.quota import CONCURRENCY, INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, TOKENS
from paceline.core.results import RefusalKind, SettingsError
from paceline.pacing.retry import Failures, GiveUp, RetryPolicy
from paceline.providers.answers import usage_cost
from paceline.providers.base import COUNTING, Call, Usage
from paceline.providers.registry import provider_for_host, provider_named
from paceline.providers.tables import DEFAULT, lookup

VERTEX = "/v1/projects/p/locations/us-central1"
GEMINI = "/v1beta/models/gemini-3.6-flash"
EMBEDDING = "/v1beta/models/gemini-embedding-001"
ARN = "arn%3Aaws%3Abedrock%3Aeu-west-1%3A123456789012%3Ainference-profile%2Feu.anthropic.claude-opus-5-5"

COUNTED = (COUNTING, COUNTING, False)

# the endpoint, the model of a body about "m", whether it streams; None: it is not metered
PATHS = {
    "openai": {
        "/v1/chat/completions": ("chat", "m", False), "/chat/completions": ("chat", "m", False),
        "/some/gateway/openai/v1/chat/completions/": ("chat", "m", False), "/v1/responses": ("responses", "m", False),
        "/v1/embeddings": ("embeddings", "m", False), "/v1/models": None, "/v1/responses/resp_1/cancel": None, "/v1/files": None,
        "/v1/responses/compact": ("responses", "m", False), "/v1/responses/input_tokens": COUNTED,
        "/v1/batches": None, "/": None,
    },
    "anthropic": {
        "/v1/messages": ("messages", "m", False), "/v1/messages/count_tokens": COUNTED,
        "/v1/messages/batches": None, "/v1/models": None,
    },
    "mistral": {
        "/v1/chat/completions": ("chat", "m", False), "/v1/fim/completions": ("completions", "m", False),
        "/v1/agents/completions": ("completions", "m", False), "/v1/embeddings": ("embeddings", "m", False), "/v1/ocr": ("ocr", "m", False),
        "/v1/models": None, "/v1/conversations": ("conversations", "m", False), "/v1/conversations/c1": ("conversations", "m", False),
        "/v1/conversations/c1/history": None,
    },
    "cohere": {
        "/v2/chat": ("chat", "m", False), "/v1/chat": ("chat_v1", "m", False), "/v2/embed": ("embed", "m", False),
        "/v1/embed": ("embed", "m", False), "/v2/rerank": ("rerank", "m", False), "/compatibility/v1/chat/completions": ("chat", "m", False),
        "/v1/tokenize": None, "/v1/models": None, "/v1/embed-jobs": None,
    },
    "gemini": {
        f"{GEMINI}:generateContent": ("generate", "gemini-3.6-flash", False),
        "/v1/models/gemini-3.6-flash:streamGenerateContent": ("generate", "gemini-3.6-flash", True),
        f"{GEMINI}:streamGenerateContent?alt=sse": ("generate", "gemini-3.6-flash", True),
        f"{EMBEDDING}:embedContent": ("embed", "gemini-embedding-001", False),
        f"{EMBEDDING}:batchEmbedContents": ("embed", "gemini-embedding-001", False),
        "/v1beta/openai/chat/completions": ("chat", "m", False), f"{GEMINI}:countTokens": COUNTED, f"{GEMINI}:batchGenerateContent": None,
        GEMINI: None, "/v1beta/files": None,
    },
    "vertex": {
        f"{VERTEX}/publishers/google/models/gemini-3.6-flash:generateContent": ("generate", "gemini-3.6-flash", False),
        f"{VERTEX}/publishers/google/models/gemini-3.6-flash:streamGenerateContent": ("generate", "gemini-3.6-flash", True),
        f"{VERTEX}/publishers/anthropic/models/claude-opus-5:rawPredict": ("messages", "us-central1/claude-opus-5", False),
        f"{VERTEX}/publishers/anthropic/models/count-tokens:rawPredict": COUNTED,
        f"{VERTEX}/publishers/meta/models/llama:generateContent": None,
        f"{VERTEX}/publishers/google/models/gemini-3.6-flash:countTokens": COUNTED, f"{VERTEX}/batchPredictionJobs": None,
    },
    "bedrock": {
        "/model/anthropic.claude-opus-5-5-v1:0/converse": ("converse", "anthropic.claude-opus-5-5-v1:0", False),
        "/model/us.meta.llama4%3A0/converse-stream": ("converse", "us.meta.llama4:0", True), "/model/m/invoke": ("invoke", "m", False),
        "/model/m/invoke-with-response-stream?x=1": ("invoke", "m", True),
        f"/model/{ARN}/converse": ("converse", "eu-west-1/eu.anthropic.claude-opus-5-5", False), "/model/m/count-tokens": COUNTED,
        "/model/invoke": None, "/guardrail/x/version/1/apply": None, "/": None, "/model/m/converse/x": None,
    },
    "azure": {
        "/openai/deployments/prod/chat/completions": ("chat", "prod", False), "/openai/v1/responses/input_tokens": COUNTED,
    },  # without a host the deployment alone
    "perplexity": {  # APIs with limits of their own
        "/chat/completions": ("chat", "m", False), "/v1/responses": ("responses", "agent-api", False),
        "/v1/agent": ("responses", "agent-api", False), "/search": ("search", "search-api", False), "/async/jobs": None,
    },
}  # fmt: skip


@pytest.mark.parametrize(("name", "path"), [(name, path) for name, paths in PATHS.items() for path in paths])
def test_paths(name, path):
    call = provider_named(name).describe(path, {"model": "m", "query": ["one", "two"], "input": "three"})
    assert (call and (call.endpoint, call.model, call.stream)) == PATHS[name][path]
    assert call is None or provider_named(name).held(call, call.input_tokens, 10)[REQUESTS] == 1


BEDROCK, LEGACY = "/model/m/converse", {"model": "gpt-3.5-turbo-instruct", "max_tokens": 10}
MOST = {  # by provider and path: a body, the most output in all of its answers, and their number
    ("openai", "/v1/chat/completions"): [
        ({"max_completion_tokens": 100}, 100, 1), ({"max_tokens": 100, "n": 3}, 300, 3),
        ({"max_output_tokens": 50}, None, 1),  # of another API: a server would ignore it
        ({"max_completion_tokens": 100, "max_tokens": 7}, 100, 1),
        ({"max_completion_tokens": 7, "max_tokens": 100}, 100, 1),  # a server may read one of them alone
        ({}, None, 1), ({"max_tokens": None}, None, 1), ({"max_tokens": -5}, None, 1), ({"max_tokens": True}, None, 1),
        ({"max_tokens": float("nan")}, None, 1),
        ({"max_tokens": "100"}, 100, 1),  # servers with pydantic take it
        ({"n": "8", "max_tokens": 1, "max_completion_tokens": "10"}, 80, 8),
    ],
    ("openai", "/v1/responses"): [({"input": "hi", "max_output_tokens": 50, "max_tokens": 90}, 50, 1)],
    ("openai", "/v1/completions"): [  # each of several prompts is answered
        (LEGACY | {"prompt": "a"}, 10, 1), (LEGACY | {"prompt": ["a", "b", "c"]}, 30, 3),
        (LEGACY | {"prompt": ["a", "b", "c"], "n": 2, "best_of": 5}, 150, 15), (LEGACY | {"prompt": [1, 2, 3]}, 10, 1),
        (LEGACY | {"prompt": [[1, 2], [3]]}, 20, 2), (LEGACY | {"prompt": []}, 10, 1),
    ],
    ("openai", "/v1/embeddings"): [({"input": "hi", "max_tokens": 5}, 0, 1)],
    ("together", "/v1/images/generations"): [({"max_tokens": 50}, 0, 1)],
    ("together", "/v1/rerank"): [({"max_tokens": 50}, 0, 1)],
    ("together", "/v1/messages"): [({"max_tokens": 50}, 50, 1)],
    ("anthropic", "/v1/chat/completions"): [({"max_completion_tokens": 9, "max_tokens": 0}, 9, 1)],
    ("cohere", "/v2/chat"): [({"messages": [], "max_tokens": 50, "inputs": ["x"]}, 50, 1)],
    ("cohere", "/v2/embed"): [({"texts": ["x"], "max_tokens": 5}, 0, 1)],
    ("gemini", f"{GEMINI}:generateContent"): [
        ({"generationConfig": {"maxOutputTokens": 10, "candidateCount": 8}}, 80, 8),
        ({"generation_config": {"max_output_tokens": 10, "candidate_count": 8}}, 80, 8),
        ({"generationConfig": {"maxOutputTokens": "10", "candidate_count": "8"}}, 80, 8),
        ({"generationConfig": {"maxOutputTokens": 1}, "generation_config": {"max_output_tokens": 10, "candidateCount": 8}}, 80, 8),
    ],
    ("vertex", f"{VERTEX}/publishers/google/models/m:generateContent"): [({"generationConfig": {"maxOutputTokens": 50}}, 50, 1)],
    ("bedrock", BEDROCK): [
        ({"inferenceConfig": {"maxTokens": 300}}, 300, 1), ({"max_tokens": 300}, 300, 1),
        ({"inferenceConfig": {"max_new_tokens": 300}}, 300, 1), ({"max_gen_len": 300}, 300, 1),
        ({"textGenerationConfig": {"maxTokenCount": 300}}, 300, 1), ({"inferenceConfig": {"temperature": 0}}, None, 1),
        ({"inferenceConfig": 7}, None, 1),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("at", "body", "most", "choices"), [(at, *row) for at, rows in MOST.items() for row in rows])
def test_the_most_output(at, body, most, choices):
    provider, path = at
    call = provider_named(provider).describe(path, {"model": "m", **body})
    assert (call.max_output_tokens, call.choices) == (most, choices)


CHUNK, DONE = {"choices": [{"delta": {}}]}, "[DONE]"
USED = {"prompt_tokens": 9, "completion_tokens": 4}
LAST = {"choices": [], "usage": USED}
CACHED = {"choices": [], "usage": {**USED, "prompt_cache_hit_tokens": 8}}
SO_FAR = [
    {"choices": [{}], "usage": {"prompt_tokens": 9, "completion_tokens": n, "citation_tokens": n * 10}}
    for n in (1, 2, 4)
]
ALIVE, PROCESSING = b": keep-alive\n\n" * 1_000, b": OPENROUTER PROCESSING\n\n"
END = {
    "type": "message-end",
    "delta": {"finish_reason": "COMPLETE", "usage": {"billed_units": {"input_tokens": 9, "output_tokens": 4}}},
}
OF_GEMINI = [
    {"candidates": [{}], "usageMetadata": {"promptTokenCount": 9, "totalTokenCount": 9}},
    {"candidates": [{}], "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 1, "thoughtsTokenCount": 30}},
    {
        "candidates": [{"finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 4, "thoughtsTokenCount": 30},
    },
]
STREAMS = {
    "gemini": ("gemini", sse(*OF_GEMINI), Usage(9, 34)),
    "gemini, broken off": ("gemini", sse(*OF_GEMINI[:2]), Usage(9, 31, partial=True)),
    "gemini in OpenAI's form": ("gemini", sse({"choices": [], "usage": None}, LAST, DONE), Usage(9, 4)),
    "mistral": ("mistral", sse({"choices": []}, {"choices": [{"finish_reason": "stop"}], "usage": USED}, DONE), Usage(9, 4)),
    "cerebras": ("cerebras", sse({"choices": [{}], "usage": None}, LAST | {"time_info": {}}, DONE), Usage(9, 4)),
    "together": ("together", sse(CHUNK, {"choices": [{}], "usage": USED}, DONE), Usage(9, 4)),
    "groq": ("groq", sse(CHUNK | {"x_groq": {"id": "x"}}, LAST, DONE), Usage(9, 4)),
    "groq, its own field": ("groq", sse(CHUNK | {"x_groq": {"id": "x"}}, {"choices": [], "x_groq": {"id": "x", "usage": USED}}, DONE), Usage(9, 4)),
    "deepseek, kept alive": ("deepseek", ALIVE + sse({"choices": [], "usage": None}) + ALIVE + sse(CACHED, DONE), Usage(9, 4, 8)),
    "perplexity, each chunk": ("perplexity", sse(*SO_FAR, DONE), Usage(49, 4)),
    "perplexity, broken off": ("perplexity", sse(*SO_FAR), Usage(49, 4, partial=True)),
    "cohere": ("cohere", sse({"type": "message-start"}, {"type": "content-delta"}, END), Usage(9, 4)),
    "openrouter, an error after the answer began": (
        "openrouter", PROCESSING + sse(CHUNK) + PROCESSING + sse({"error": {"code": 503, "message": "overloaded"}, **LAST}), Usage(9, 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("provider", "stream", "usage"), STREAMS.values(), ids=STREAMS)
def test_the_usage_of_a_stream(provider, stream, usage):
    reader = feed(provider_named(provider), stream, stream=True)
    assert (reader.usage, reader.done) == (usage, True)
    assert (reader.refusal and reader.refusal.kind) == (RefusalKind.CAPACITY if provider == "openrouter" else None)


META = {"meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 9, "output_tokens": 4}}}
OLD_EVENTS = ({"event_type": "text-generation", "text": "x"}, {"event_type": "stream-end", "response": META})
MESSAGE = (
    {"type": "message_start", "message": {"usage": {"input_tokens": 1, "cache_read_input_tokens": 8}}},
    {"type": "message_delta", "usage": {"output_tokens": 4}}, {"type": "message_stop"},
)  # fmt: skip
SO_MUCH = [{"output": {"text": "So"}, "usage": {"input_tokens": 9, "output_tokens": most}} for most in (1, 4)]
DASHSCOPE = "/api/v1/services/aigc/text-generation/generation"
OLLAMA = b'{"model": "m", "done": true, "prompt_eval_count": 9, "eval_count": 4}'
INTERACTION = {  # ai.google.dev/gemini-api/docs/interactions/streaming, 2026-05-20
    "id": "v1_x", "status": "completed", "usage": {
        "total_input_tokens": 8, "input_tokens_by_modality": [{"modality": "text", "tokens": 5}, {"modality": "audio", "tokens": 3}],
        "total_cached_tokens": 2, "total_output_tokens": 4, "total_thought_tokens": 20, "total_tool_use_tokens": 1, "total_tokens": 33,
    },
}  # fmt: skip
BEGUN = {"event_type": "interaction.created", "interaction": {"id": "v1_x", "status": "in_progress"}}
STREAM = {"stream": True}


def line(value):
    return json.dumps(value).encode() + b"\n"


ANSWERS = {
    "lines": ("cohere", "/v1/chat", {"message": "hi", "stream": True}, [*map(line, OLD_EVENTS)], Usage(9, 4)),
    "long embeddings": ("cohere", "/v2/embed", {"texts": ["x"]}, [line({"embeddings": {"float": [[0.125] * 50_000]}, **META})], Usage(9, 4)),
    "empty lines": ("deepseek", "/chat/completions", {}, [b"\n" * 300 + line(CACHED)], Usage(9, 4, 8)),
    "many empty lines before a long body": (
        "deepseek", "/chat/completions", {}, [b"\n" * 200_000 + line({**CACHED, "choices": ["x" * 200_000]})], Usage(9, 4, 8),
    ),
    "on Anthropic's path": ("openrouter", "/api/v1/messages", STREAM, [sse(*MESSAGE, name=True)], Usage(9, 4, 8)),
    "OpenAI's form at Anthropic": ("anthropic", "/v1/chat/completions", {"max_completion_tokens": 9}, [line({"usage": USED})], Usage(9, 4)),
    "OpenAI's events at Anthropic": (
        "anthropic", "/v1/chat/completions", STREAM, [sse({"choices": [], "usage": None}, {"usage": USED}, DONE)], Usage(9, 4),
    ),
    # A header asks DashScope for events, so that the request does not tell; each event has the usage so far.
    "DashScope's own": ("dashscope", DASHSCOPE, {"input": {"messages": [{"content": "why?"}]}}, [line(SO_MUCH[1])], Usage(9, 4)),
    "DashScope's own events": ("dashscope", DASHSCOPE, {}, [b"id:1\nevent:result\ndata:" + line(one) + b"\n" for one in SO_MUCH], Usage(9, 4)),
    "a total": ("voyage", "/v1/embeddings", {}, [line({"data": [{"embedding": [0.1]}], "usage": {"total_tokens": 9}})], Usage(9, partial=True)),
    "Ollama": ("ollama", "/api/chat", {"stream": False}, [OLLAMA], Usage(9, 4)),
    "Ollama's lines": ("ollama", "/api/chat", STREAM, [line({"message": {"content": "a"}, "done": False})] * 3_000 + [OLLAMA + b"\n"], Usage(9, 4)),
    "Ollama's two lines": ("ollama", "/api/generate", STREAM, [line({"response": "a", "done": False}), OLLAMA], Usage(9, 4)),
    "behind a long context": (
        "ollama", "/api/generate", STREAM,
        [line({"response": "a", "done": False}), b'{"context": [' + b"128000, " * 40_000 + b"1], ", OLLAMA[1:]], Usage(9, 4),
    ),
    "an interaction": ("gemini", "/v1beta/interactions", {"input": "hi"}, [line(INTERACTION)], Usage(9, 24, 2, audio_tokens=3)),
    "the events of an interaction": (
        "gemini", "/v1beta/interactions", {"input": "hi", "stream": True},
        [sse(BEGUN, {"event_type": "interaction.completed", "interaction": INTERACTION})], Usage(9, 24, 2, audio_tokens=3),
    ),
    "the end of a long answer": (
        "gemini", f"{GEMINI}:generateContent", {},
        [b'{"candidates": ["' + b"QUJD" * 100_000 + b'"], "usageMetadata": {"promptTokenCount": 9}}'], Usage(9, partial=True),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("provider", "path", "body", "answer", "usage"), ANSWERS.values(), ids=ANSWERS)
def test_the_usage_of_an_answer(provider, path, body, answer, usage):
    one = provider_named(provider)
    assert read(one, *answer, call=one.describe(path, {"model": "m", **body})).usage == usage


def cost(input_tokens, output_tokens, **others):
    whole = {
        REQUESTS: 1,
        TOKENS: input_tokens + output_tokens,
        INPUT_TOKENS: input_tokens,
        OUTPUT_TOKENS: output_tokens,
    }
    return whole | others


@pytest.mark.parametrize(
    ("provider", "most", "expected", "held"),
    [
        ("together", 50, 20, cost(100, 20)),  # the expected output; what was asked bounds it
        ("together", 50, 400, cost(100, 50)),
        ("groq", 400, 50, cost(100, 400)),
        ("deepseek", 100, 400, cost(100, 100, concurrency=1)),
        ("cerebras", 400, 20, cost(100, 400, uncached_tokens=500)),
        ("cerebras", 64_000, 20, cost(100, 16_384, uncached_tokens=16_484)),  # a maximum counts up to a cap
        ("cerebras", None, 20, cost(100, 16_384, uncached_tokens=16_484)),
        ("vertex", 50, 400, cost(100, 50)),
        ("openai", 400, 50, cost(100, 400)),
        ("openai", None, 50, cost(100, 50)),
        ("openai", 0, 500, cost(100, 0)),  # an embedding
        ("anthropic", 400, 50, cost(100, 50)),
        ("anthropic", 400, 5_000, cost(100, 400)),
        ("gemini", 400, 5_000, cost(100, 400, tokens=100)),  # output is for a user's own quotas
    ],
)
def test_what_is_held(provider, most, expected, held):
    assert provider_named(provider).held(Call(provider, "chat", "m", 100, most), 100, expected) == held


@pytest.mark.parametrize(
    ("provider", "model", "most", "usage", "charged"),
    [
        ("openai", "gpt-5", 400, Usage(900, 30, cached_tokens=800), cost(900, 400)),  # it keeps what was held
        ("openai", "gpt-5", None, Usage(900, 30), cost(900, 30)),
        ("openai", "text-embedding-3-small", 0, Usage(12), cost(12, 0)),
        ("anthropic", "claude-opus-5", 400, Usage(1_000, 30, 700, 200), cost(300, 30)),  # cached reads do not count
        ("anthropic", "claude-3-5-haiku-20241022", 400, Usage(1_000, 30, 700, 200), cost(1_000, 30)),
        ("deepseek", "m", None, Usage(900, 30), cost(900, 30)),  # the end of an answer frees its slot, and no refund
    ],
)
def test_what_is_charged(provider, model, most, usage, charged):
    assert provider_named(provider).charged(Call(provider, "chat", model, 1_000, most), usage) == charged


CEREBRAS = "5 requests/min, 30k uncached_tokens/min, 90k tokens/min, 1M tokens/hour, 1M tokens/day"


@pytest.mark.parametrize(
    ("provider", "model", "tier", "quotas"),
    [
        ("openrouter", "deepseek/deepseek-v4:free", None, "20 requests/min sliding, 50 requests/day window utc"),
        ("openrouter", "free", None, "20 requests/min sliding, 50 requests/day window utc"),
        ("openrouter", "a/b:free", "from_10_usd", "20 requests/min sliding, 1k requests/day window utc"),
        ("openrouter", "openai/gpt-5", None, "6k requests/min"),
        ("perplexity", "agent-api", 2, "8 requests/s, 500 requests/min"),
        ("perplexity", "search-api", None, "50 requests/s"),
        ("fireworks", "m", None, "6k requests/min, 3.6M input_tokens/min, 900k uncached_input_tokens/min, 36k output_tokens/min"),
        ("fireworks", "m", "small", "6k requests/min, 64.8M input_tokens/min, 16.2M uncached_input_tokens/min, 648k output_tokens/min"),
        ("fireworks", "m", "no_payment_method", "10 requests/min, 3.6M input_tokens/min, 900k uncached_input_tokens/min, 36k output_tokens/min"),
        ("cerebras", "gpt-oss-120b", None, CEREBRAS),
        ("cerebras", "m", None, CEREBRAS),
        ("cerebras", "qwen-3.8-27b", "developer", "300 requests/min, 150k uncached_tokens/min, 750k tokens/min"),
        ("deepseek", "deepseek-v4-pro", None, "500 concurrency"),
        ("deepseek", "deepseek-v9", None, "500 concurrency"),
        ("xai", "grok-4.6", 4, "500 requests/s burst 50, 100M tokens/min"),
        ("xai", "grok-9", None, "9 requests/s burst 1, 2.5M tokens/min"),
        ("together", "meta-llama/Llama-4-70B", None, "1 requests/s"),
        ("vertex_ai", "gemini-3.6-flash", 3, "30k requests/min, 10M tokens/min"),
        ("cohere", "embed-v4.0", None, "2k requests/min, 2k inputs/min, 5 images/min"),
        ("cohere", "rerank-v4.0-pro", "production", "1k requests/min"),
        ("groq", "openai/gpt-oss-120b", None, "30 requests/min, 1k requests/day, 8k tokens/min, 200k tokens/day"),
        ("azure", "acme-eu.openai.azure.com/prod", None, "10 requests/10s window, 10k tokens/min window"),
        ("azure", "gpt-4o", "data_zone", "300 requests/10s window, 300k tokens/min window"),
        ("bedrock", "us-east-1/us.anthropic.claude-opus-5-5-v1:0", None, "30M tokens/min"),
        ("bedrock", "global.anthropic.claude-opus-5-5-v1:0", None, "30M tokens/min"),
        ("bedrock", "us-east-1/anthropic.claude-opus-5-5-v1:0", None, "15M tokens/min"),
        ("bedrock", "us-east-1/anthropic.claude-sonnet-5-5-v1:0", None, "200k tokens/min"),  # nobody publishes it
        ("gemini", "gemini-3.8-flash", None, "5 requests/min, 250k input_tokens/min, 20 requests/day window America/Los_Angeles"),
    ],
)  # fmt: skip
def test_published(provider, model, tier, quotas):
    found = lookup(provider, model, tier)
    assert ", ".join(map(str, found.quotas)) == quotas
    assert provider_named(provider).pool(model) == found.pool == ("free" if model.endswith("free") else model)


@pytest.mark.parametrize(
    ("provider", "tier"),
    [("groq", "base"), ("cohere", "trial"), ("cerebras", "free_trial"), ("openrouter", "under_10_usd")],
)
def test_free_is_its_other_name(provider, tier):
    model = ":free" if provider == "openrouter" else DEFAULT
    named = lookup(provider, model, tier)
    assert lookup(provider, model, "Free").sources == named.sources
    assert named.tier == tier


class Message:
    """A protobuf message, as xAI's SDK returns it."""

    __slots__ = ()

    def ListFields(self):  # noqa: N802  (protobuf's name)
        values = {"prompt_tokens": 100, "completion_tokens": 20, "reasoning_tokens": 300}
        return [(SimpleNamespace(name=name), value) for name, value in values.items()]


UNITS = SimpleNamespace(input_tokens=10.0, output_tokens=3.0)
DUMPS = SimpleNamespace(model_dump=lambda: {"input_tokens": 9, "output_tokens": 4})
RING = SimpleNamespace(**USED)
RING.ring = RING
OF_GOOGLE = {"prompt_token_count": 10, "candidates_token_count": 3, "thoughts_token_count": 5}


@pytest.mark.parametrize(
    ("model", "answer", "tokens"),
    [
        ("xai/grok-4.6", SimpleNamespace(usage=Message()), 420),
        ("xai/grok-4.6", Message(), 420),
        ("cohere/command-a-03-2025", SimpleNamespace(usage=SimpleNamespace(billed_units=UNITS, tokens=None)), 13),
        ("cohere/embed-v4.0", SimpleNamespace(meta=SimpleNamespace(billed_units=UNITS)), 13),
        ("mistral/mistral-large-latest", USED, 13),
        ("groq/openai/gpt-oss-120b", USED, 13),
        *(("openai/gpt-5", usage, 13) for usage in (DUMPS, SimpleNamespace(usage=DUMPS), RING, USED, Usage(9, 4))),
        ("arcee", USED, 13),
        (
            "bedrock/us-east-1/us.anthropic.claude-opus-5-5-v1:0",
            {"usage": {"inputTokens": 100, "outputTokens": 10}},
            200,
        ),
        ("openai/gpt-5", CompletionUsage(prompt_tokens=10, completion_tokens=3, total_tokens=13), 13),
    ],
)
def test_what_an_sdk_returns(model, answer, tokens):
    cost, _ = usage_cost(model, answer)
    assert cost[TOKENS] == tokens


def test_the_usage_of_real_sdks_is_divided():
    google = SimpleNamespace(usage_metadata=SimpleNamespace(model_dump=lambda: OF_GOOGLE))
    found, _ = usage_cost("gemini/gemini-3.6-flash", google)
    assert (found[INPUT_TOKENS], found[OUTPUT_TOKENS]) == (10, 8)
    message = OfClaude(input_tokens=10, cache_read_input_tokens=90, output_tokens=3)
    cost, _ = usage_cost("anthropic/claude-opus-5", message)
    assert cost[INPUT_TOKENS] == 10
    with pytest.raises(SettingsError, match="no usage in str"):
        usage_cost("openai/gpt-5", "hello")


OF_OPENAI = ("gemini", "/v1beta/openai/embeddings")
COUNTED_BESIDE = {  # by provider and path: a body, and what is counted of it beside its tokens
    ("cohere", "/v2/embed"): [
        ({"texts": ["a", "b", "c"]}, {"inputs": 3}),
        ({"images": ["data:image/png;base64,QUJD"] * 3}, {"inputs": 3, "images": 3}),
        ({"inputs": [{"content": [{"type": "text", "text": "a"}]}] * 3}, {"inputs": 3}),
        ({"inputs": [{"content": [{"type": "text"}, {"type": "image_url"}]}, {"content": "a"}, None]}, {"inputs": 3, "images": 1}),
        ({"texts": ["a", "b"], "images": ["c"]}, {"inputs": 3, "images": 1}),
    ],
    ("cohere", "/compatibility/v1/embeddings"): [({"input": ["a", "b", "c"]}, {"inputs": 3})],
    ("cohere", "/v2/chat"): [({"messages": [], "inputs": ["x"]}, {})],
    ("gemini", f"{EMBEDDING}:batchEmbedContents"): [({"requests": [{"content": {}}] * 20}, {REQUESTS: 20}), ({"requests": 3}, {})],
    ("gemini", f"{EMBEDDING}:embedContent"): [({"content": {}}, {})],
    OF_OPENAI: [({"input": ["a", "b", "c"]}, {REQUESTS: 3}), ({"input": "abc"}, {}), ({"input": [1, 2, 3]}, {})],
    ("gemini", "/v1beta/openai/chat/completions"): [({"input": ["a", "b"]}, {})],
}  # fmt: skip


@pytest.mark.parametrize(("at", "body", "units"), [(at, *row) for at, rows in COUNTED_BESIDE.items() for row in rows])
def test_what_is_counted_beside_tokens(at, body, units):
    one = provider_named(at[0])
    call = one.describe(at[1], {"model": "m", **body})
    for found in (one.held(call, 10, 512), one.charged(call, Usage(8))):
        assert found == cost(found[INPUT_TOKENS], found[OUTPUT_TOKENS], **{TOKENS: found[TOKENS]} | units)


@pytest.mark.parametrize(
    ("error", "kind", "unit"),
    [
        ({"code": "insufficient_quota", "message": "You exceeded your current quota"}, RefusalKind.MONEY, None),
        ({"message": "Insufficient Balance"}, RefusalKind.MONEY, None),
        ({"message": "The server is overloaded"}, RefusalKind.CAPACITY, None),
        ({"code": "rate_limit_exceeded", "message": "Rate limit reached"}, RefusalKind.RATE, CONCURRENCY),
        ({"message": "Please wait"}, RefusalKind.RATE, CONCURRENCY),
    ],
)
def test_a_status_alone_says_less_than_a_name(error, kind, unit):
    refusal = provider_named("deepseek").refusal(429, {}, json.dumps({"error": error}).encode())
    assert (refusal.kind, refusal.unit) == (kind, unit)


def refused(provider, message, *, status=429, **error):
    body = {"error": {"message": message, **error}}
    return provider.refusal(status, {"date": "Fri, 15 May 2026 13:00:00 GMT"}, json.dumps(body).encode())


@pytest.mark.parametrize("host", ["api.kimi.com", "api.moonshot.ai"])
@pytest.mark.parametrize("code", ["access_terminated_error", "permission_error"])
def test_the_window_of_a_coding_plan_states_no_end(host, code):
    def said(message):
        return refused(provider_for_host(host), message, status=403, type=code)

    weekly = said("You've reached your weekly (7-day) usage limit. It resets when the current 7-day window ends.")
    assert (weekly.kind, weekly.window, weekly.of_account, weekly.retry_after_s) == ("rate", "7d", True, None)
    hours = said("You've reached your 5-hour usage limit. Your quota will reset when the current 5-hour window ends.")
    assert (hours.window, hours.of_account, hours.used) == ("5h", True, None)
    cycle = said(
        "You've reached your usage limit for this billing cycle. Your quota will be refreshed in the next cycle."
    )
    assert (cycle.kind, cycle.window, cycle.of_account) == ("rate", "cycle", True)
    assert said("Your access was terminated.") is None


@pytest.mark.parametrize(("every", "window"), [("hour", "5h"), ("week", "7d"), ("month", "30d")])
def test_the_coding_plan_of_dashscope_names_no_tokens_of_a_minute(every, window):
    found = refused(provider_named("dashscope"), f"{every} allocated quota exceeded.", code="insufficient_quota")
    assert (found.kind, found.window, found.of_account) == ("rate", window, True)
    assert (found.unit, found.period_s) == (None, None)


@pytest.mark.parametrize(
    ("message", "window"),
    [
        ("you (x) have reached your weekly usage limit, upgrade for higher limits", "7d"),
        ("you've reached your hourly usage limit, please wait or upgrade to continue", "1h"),
        ("Sorry, you've exceeded your 5 hour session limits.", "5h"),
        ("You have reached your daily request limit.", None),  # a quota that counts requests
        ("Rate limit exceeded: 1000 per 1 day", None),
        ("The per-minute limit is reached.", None),
        ("Hourly rate limit exceeded, try again in 4 s", None),  # a rate
    ],
)
def test_hours_and_days_of_nothing_that_is_counted_are_the_window_of_a_plan(message, window):
    found = refused(provider_named("ollama"), message)
    assert (found.kind, found.window, found.of_account) == ("rate", window, False)


@pytest.mark.parametrize("headers", [{"retry-after": "4"}, {"x-ratelimit-reset": "4"}])
def test_hours_with_a_wait_of_seconds_are_a_rate(headers):
    body = json.dumps({"error": {"message": "Hourly rate limit exceeded"}}).encode()
    found = provider_named("ollama").refusal(429, headers, body)
    assert (found.kind, found.window, found.retry_after_s) == ("rate", None, 4.0)


@pytest.mark.parametrize(
    ("message", "wait_s"),
    [
        ("usage limit exceeded, 5-hour usage limit reached for Token Plan Starter (0/0 used), resets at 2026-05-15T15:00:00Z (2056)", 7_200.0),
        ("It will reset at 2026-05-15 23:00:00 +0800 CST. Request id: x", 7_200.0),
        ("Rate limit exceeded. Try again after 2026-05-15 15:00 UTC.", 7_200.0),
        ("The budget resets at 2026-05-15T15:00:00.000000+00:00", 7_200.0),
        ("Your limit will reset at 2026-05-15 23:00:00", None),  # in some zone
        ("It will reset at 2026-05-15T12:00:00Z", None),  # which is past
        ("It will reset at 2026-99-15T12:00:00Z", None),
        ("usage limit reached, resets at 2026-05-15T15:00:00Z, try again in 30 s", 30.0),
    ],
)  # fmt: skip
def test_a_message_states_when_a_quota_restarts(message, wait_s):
    assert refused(provider_named("minimax"), message).retry_after_s == wait_s


@pytest.mark.parametrize("stated", [{"quotaResetDelay": "2h"}, {"quotaResetTimeStamp": "2026-05-15T15:00:00Z"}])
def test_cloud_code_states_when_its_quota_restarts(stated):
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "QUOTA_EXHAUSTED",
        "metadata": {"model": "m", **stated},
    }
    found = refused(provider_named("gemini"), "You have exhausted your capacity on this model.", details=[info])
    assert (found.kind, found.retry_after_s) == ("rate", 7_200.0)


def test_two_quotas_of_fireworks_without_a_remainder_name_no_unit():
    none = {f"x-ratelimit-{what}-tokens-{family}": value for family in ("prompt", "generated") for what, value in (("limit", "40000000"), ("remaining", "0"))}  # fmt: skip
    assert provider_named("fireworks").refusal(429, none, b"").unit is None


def test_the_first_answer_raises_the_limits_of_mistral_s_free_plan():
    mistral, limiter = provider_named("mistral"), Limiter.for_provider("mistral")
    scheduler = limiter.pacer.pools.scheduler("mistral-large-latest")
    headers = next(case["headers"] for case in load("mistral")["header"] if case["what"].startswith("live"))
    permit = limiter.try_acquire("mistral-large-latest", requests=0.25)  # a whole one would wait
    scheduler.observe(mistral.readings(headers, 0.0), permit.reservation)
    assert [m.quota.amount for m in scheduler.pool.ledger.meters] == [720, 5_000_000]
    permit.cancel()


def test_two_deployments_of_azure_are_two_pools():
    host = "acme-eu.openai.azure.com"
    limiter = Limiter({"azure/*": "600 requests/min, 100k tokens/min", f"azure/{host}/prod": "1M tokens/min window"})
    prod, other = (
        limiter.pacer.pools.of_model("azure", f"{host}/{name}").pool for name in ("prod", "gpt-4o-2024-08-06")
    )
    assert (prod.name, other.name) == (f"azure/{host}/prod", f"azure/{host}/gpt-4o-2024-08-06")
    assert prod.ledger.entries[0].meter.quota.amount == 1_000_000
    cost, _ = usage_cost(prod.name, USED)
    assert cost[TOKENS] == 13


@pytest.mark.parametrize(("name", "what"), [("azure", "a day"), ("gemini", "a day, and nobody")])
def test_a_day_that_is_over_is_not_tried_again_in_seconds(name, what):
    case = next(case for case in load(name)["error"] if case["what"].startswith(what))
    refusal = provider_named(name).refusal(429, case.get("headers", {}), json.dumps(case["body"]).encode())
    assert refusal.kind is RefusalKind.RATE
    assert isinstance(RetryPolicy().after(Failures(of_pool=1), refusal, Row(1), 0.5), GiveUp)


@pytest.mark.parametrize("case", load("groq")["header"], ids=lambda case: case["what"])
def test_the_resets_of_groq_are_of_a_bucket(case):
    for reading in provider_named("groq").readings(case["headers"], 0.0):
        if reading.reset_s is not None:
            lacking = reading.limit - reading.remaining
            assert reading.reset_s == pytest.approx(lacking * reading.period_s / reading.limit, abs=0.001)


@pytest.mark.parametrize("date", ["Fri, 31 Dec 9999 23:59:59 GMT", "Sat, 99 Nov 2026 00:00:00 GMT", "x"])
def test_a_time_that_cannot_be(date):
    case = next(case for case in load("gemini")["error"] if case["what"].startswith("a day, and nobody"))
    check_error(provider_named("gemini"), {**case, "headers": {"date": date}})
