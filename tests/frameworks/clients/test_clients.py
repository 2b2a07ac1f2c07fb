"""Clients of one provider each, and the HTTP libraries themselves: `paceline.instrument()` paces them all."""

import asyncio
import json

import aiohttp
import httpx
import httpx2
import instructor
import openai
import pytest
import requests
import urllib3
import voyageai
from azure.ai.inference import ChatCompletionsClient
from azure.ai.inference.aio import ChatCompletionsClient as AsyncChatCompletionsClient
from azure.core.credentials import AzureKeyCredential
from cerebras.cloud.sdk import AsyncCerebras, Cerebras
from fireworks import AsyncFireworks, Fireworks
from harness import AT_ONCE, BUSY, MESSAGES, PROMPT, Service, crowd, row
from huggingface_hub import AsyncInferenceClient, InferenceClient
from ollama import AsyncClient as AsyncOllama
from ollama import Client as Ollama
from pydantic import BaseModel
from replicate import Client as Replicate
from together import AsyncTogether, Together

import paceline

ASK = {"model": "m", "messages": MESSAGES, "max_tokens": 40}
KEY = {"authorization": "Bearer k"}
INSTRUMENT = "`instrument()`"


def limits(provider):
    return {f"{provider}/*": BUSY}


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

    async def acall():
        async with AsyncInferenceClient(**where) as client:
            return await client.chat_completion(**ASK)

    return lambda: InferenceClient(**where).chat_completion(**ASK), acall


def voyage(world):
    where = {"api_key": "k", "base_url": f"{world.base_url}/v1", "max_retries": 0}
    client, async_client = voyageai.Client(**where), voyageai.AsyncClient(**where)
    return lambda: client.embed([PROMPT], model="m"), lambda: async_client.embed([PROMPT], model="m")


def raw_httpx(library):
    def calls(world):
        url, client = f"{world.base_url}/v1/chat/completions", library.Client(headers=KEY)

        async def acall():
            async with library.AsyncClient(headers=KEY) as client:
                return (await client.post(url, json=ASK)).raise_for_status()

        return lambda: client.post(url, json=ASK).raise_for_status(), acall

    return calls


def raw_requests(world):
    def call():
        requests.post(f"{world.base_url}/v1/chat/completions", json=ASK, headers=KEY).raise_for_status()

    return call, None


def raw_urllib3(world):
    manager, url = urllib3.PoolManager(), f"{world.base_url}/v1/chat/completions"

    def call():
        answer = manager.request("POST", url, body=json.dumps(ASK), headers=KEY)
        assert answer.status == 200

    return call, None


def raw_aiohttp(world):
    async def acall():
        async with (
            aiohttp.ClientSession(headers=KEY, raise_for_status=True) as session,
            session.post(f"{world.base_url}/v1/chat/completions", json=ASK) as answer,
        ):
            return await answer.json()

    return None, acall


CLIENTS = {
    "azure-ai-inference": ("azure", "azure", azure_ai_inference, "over requests and aiohttp"),
    "cerebras-cloud-sdk": ("cerebras", "groq", stainless(Cerebras, AsyncCerebras), "over httpx"),
    "fireworks-ai": ("fireworks", "groq", stainless(Fireworks, AsyncFireworks), "over httpx"),
    "together": ("together", "groq", stainless(Together, AsyncTogether), "over httpx"),
    "huggingface-hub": ("huggingface", "openai", hugging_face, "over httpx"),
    "voyageai": ("voyage", "openai", voyage, "over requests and aiohttp"),
    "httpx": ("openai", "openai", raw_httpx(httpx), "alone"),
    "httpx2": ("openai", "openai", raw_httpx(httpx2), "alone"),
    "requests": ("openai", "openai", raw_requests, "alone"),
    "urllib3": ("openai", "openai", raw_urllib3, "alone"),
    "aiohttp": ("openai", "openai", raw_aiohttp, "alone"),
}
"""Provider, dialect of the emulator, calls, and how they are sent. Groq's dialect gives back what was not used."""


@pytest.mark.parametrize("package", CLIENTS)
def test_a_crowd_is_never_refused(paceline_emulator, package):
    provider, dialect, calls, over = CLIENTS[package]
    world = paceline_emulator(limits={"m": BUSY}, dialect=dialect, latency_s=0.05)
    limiter = paceline.Limiter(limits(provider))
    with paceline.instrument(limiter, provider=provider):
        crowd(*calls(world))
    (pool,) = limiter.status()["pools"]
    row(package, f"{INSTRUMENT}, {over}", limiter, world, "m", pool)
