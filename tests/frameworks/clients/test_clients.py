"""Clients of one provider each, and the HTTP libraries themselves: `paceline.instrument()` paces them all."""

import asyncio
import json
from functools import partial

import instructor
import ollama
import openai
import pytest
import replicate
import voyageai
from azure.ai.inference import ChatCompletionsClient
from azure.ai.inference.aio import ChatCompletionsClient as AsyncChatCompletionsClient
from azure.core.credentials import AzureKeyCredential
from cerebras.cloud.sdk import AsyncCerebras, Cerebras
from fireworks import AsyncFireworks, Fireworks
from harness import BUSY, MESSAGES, PROMPT, crowd_row, service_row
from huggingface_hub import AsyncInferenceClient, InferenceClient
from pydantic import BaseModel
from tests.http.http_ways import WAYS, chat_at
from together import AsyncTogether, Together

ASK = {"model": "m", "messages": MESSAGES, "max_tokens": 40}


def azure_ai_inference(world):
    where = {"endpoint": world.base_url, "credential": AzureKeyCredential("k"), "retry_total": 0}

    async def acall():
        async with AsyncChatCompletionsClient(**where) as client:
            return await client.complete(**ASK)

    return lambda: ChatCompletionsClient(**where).complete(**ASK), acall


def stainless(kind, async_kind, path=""):
    """The SDKs that Stainless generates, retries off."""

    def calls(world):
        where = {"api_key": "k", "base_url": world.base_url + path, "max_retries": 0}
        client, async_client = kind(**where), async_kind(**where)
        return lambda: client.chat.completions.create(**ASK), lambda: async_client.chat.completions.create(**ASK)

    return calls


def hugging_face(world):
    where = {"base_url": f"{world.base_url}/v1", "token": "k"}
    client, async_client = InferenceClient(**where), AsyncInferenceClient(**where)
    return lambda: client.chat_completion(**ASK), lambda: async_client.chat_completion(**ASK)


def library(name):
    """An HTTP library alone: by the ways of `http_ways` to send with it."""

    def calls(world):
        def call(way):
            assert WAYS[way](chat_at(world), ASK)[0] == 200

        is_async = f"{name} async" in WAYS
        return partial(call, name), partial(asyncio.to_thread, call, f"{name} async") if is_async else None

    return calls


CLIENTS = {
    "azure-ai-inference": ("azure", "azure", azure_ai_inference, "over requests and aiohttp"),
    "cerebras-cloud-sdk": ("cerebras", "groq", stainless(Cerebras, AsyncCerebras), "over httpx"),
    "fireworks-ai": ("fireworks", "groq", stainless(Fireworks, AsyncFireworks), "over httpx"),
    "together": ("together", "groq", stainless(Together, AsyncTogether), "over httpx"),
    "huggingface-hub": ("huggingface", "groq", hugging_face, "over httpx"),
    "httpx": ("openai", "openai", library("httpx"), "alone"),
    "httpx2": ("openai", "openai", library("httpx2"), "alone"),
    "requests": ("openai", "openai", library("requests"), "alone"),
    "urllib3": ("openai", "openai", library("urllib3"), "alone"),
    "aiohttp": ("openai", "openai", library("aiohttp"), "alone"),
}
"""Provider, dialect of the emulator, calls, and how they are sent. Groq's dialect gives back what was not used."""


@pytest.mark.parametrize("package", CLIENTS)
def test_a_crowd_is_never_refused(paceline_emulator, package):
    provider, dialect, calls, over = CLIENTS[package]
    crowd_row(paceline_emulator, package, over, f"{provider}/m", calls, dialect=dialect)


def voyage(service):
    where = {"api_key": "k", "base_url": f"{service.base_url}/v1", "max_retries": 0}
    client, async_client = voyageai.Client(**where), voyageai.AsyncClient(**where)
    return lambda: client.embed([PROMPT], model="m"), lambda: async_client.embed([PROMPT], model="m")


def voyage_answer(path, body):
    assert path == "/v1/embeddings"
    data = [{"object": "embedding", "embedding": [0.1, 0.2], "index": i} for i, _ in enumerate(body["input"])]
    return {"object": "list", "data": data, "model": body["model"], "usage": {"total_tokens": 57}}, 57, 0


def ollama_chat(service):
    client, async_client = ollama.Client(service.base_url), ollama.AsyncClient(service.base_url)
    return lambda: client.chat("m", MESSAGES), lambda: async_client.chat("m", MESSAGES)


def ollama_answer(path, body):
    assert (path, body["stream"]) == ("/api/chat", False)
    said = {"role": "assistant", "content": "rain"}
    counted = {"prompt_eval_count": 57, "eval_count": 12, "total_duration": 5, "eval_duration": 4}
    return {"model": "m", "message": said, "done": True, "done_reason": "stop", **counted}, 57, 12


def replicate_run(service):
    client = replicate.Client("k", base_url=service.base_url)
    ask = {"ref": "meta/m", "input": {"prompt": PROMPT}, "use_file_output": False}
    return lambda: client.run(**ask), lambda: client.async_run(**ask)


def replicate_answer(path, body):
    assert path == "/v1/models/meta/m/predictions"
    job = {
        "id": "p",
        "model": "meta/m",
        "version": "v",
        "status": "succeeded",
        "input": body["input"],
        "output": "rain",
    }
    urls = {"get": "http://127.0.0.1:9/p", "cancel": "http://127.0.0.1:9/p/cancel"}
    return job | {"error": None, "logs": "", "created_at": "2026-11-01T00:00:00Z", "urls": urls}, 0, 0


class Weather(BaseModel):
    sky: str
    degrees: int


def instructor_create(service):
    where = {"api_key": "k", "base_url": f"{service.base_url}/v1", "max_retries": 0}
    client = instructor.from_openai(openai.OpenAI(**where))
    async_client = instructor.from_openai(openai.AsyncOpenAI(**where))
    ask = ASK | {"response_model": Weather, "max_retries": 0}
    return lambda: client.chat.completions.create(**ask), lambda: async_client.chat.completions.create(**ask)


def instructor_answer(path, body):
    """The call of the tool that instructor asks for. OpenAI charges the most output that was asked for."""
    assert path == "/v1/chat/completions"
    call = {"name": body["tools"][0]["function"]["name"], "arguments": json.dumps({"sky": "grey", "degrees": 9})}
    calls = [{"id": "c", "type": "function", "function": call}]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    usage = {"prompt_tokens": 157, "completion_tokens": ASK["max_tokens"], "total_tokens": 157 + ASK["max_tokens"]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    answer = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    return answer, 157, ASK["max_tokens"]


THROTTLED = {"detail": "Request was throttled. Your rate limit resets in ~30s."}
TOO_MANY = {"error": {"message": "Rate limit reached", "type": "requests", "code": "rate_limit_exceeded"}}
SERVICES = {
    "voyageai": ("voyage/m", voyage, voyage_answer, {"detail": "You have exceeded your rate limit"}, "over requests and aiohttp"),
    "ollama": ("ollama/m", ollama_chat, ollama_answer, {"error": "too many requests"}, "over httpx"),
    "replicate": ("replicate/predictions", replicate_run, replicate_answer, THROTTLED, "over httpx"),
    "instructor": ("openai/m", instructor_create, instructor_answer, TOO_MANY, "over openai 3"),
}  # fmt: skip
"""Pool, calls, answers and refusals, and how the calls are sent: the emulator does not have these APIs."""


@pytest.mark.parametrize("package", SERVICES)
def test_a_crowd_at_a_service_of_its_own_is_never_refused(package):
    pool, calls, answer, refusal, over = SERVICES[package]
    quotas = [quota for quota in BUSY if package != "replicate" or "tokens" not in quota]
    service_row(package, over, pool, answer, refusal, calls, quotas)
