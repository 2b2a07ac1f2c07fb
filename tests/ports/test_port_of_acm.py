"""Three components over five providers by the plan's own file, before providers of our own that count any 60 s."""

import asyncio

import httpx2
import pytest
from plain_provider import Bucket, PlainProvider

import paceline
from virtual_time import virtual

FILE = """
defaults:
  openai: {gpt-4o: {rpm: 500, tpm: 150000}, default: {rpm: 100, tpm: 40000}}
  anthropic: {claude-sonnet-4-20250514: {rpm: 50, tpm: 40000}, default: {rpm: 50, tpm: 40000}}
  google: {gemini-1.5-pro: {rpm: 60, tpm: 120000}, default: {rpm: 60, tpm: 100000}}
  azure: {default: {rpm: 100, tpm: 80000}}
  groq: {llama-3.1-70b-versatile: {rpm: 30, tpm: 6000}, default: {rpm: 30, tpm: 6000}}
  default: {rpm: 10, tpm: 10000}
concurrency: {openai: 10, anthropic: 5, google: 10, azure: 10, groq: 5, default: 3}
settings: {acquire_timeout: 3000, token_estimate_buffer: 1.1, min_request_interval_ms: 50, update_from_headers: true}
"""
"""The plan's numbers; the timeout is longer, because every document is asked for at once."""

PROVIDERS = {
    "openai": ("gpt-4o", 500, 150_000), "anthropic": ("claude-sonnet-4-20250514", 50, 40_000),
    "google": ("gemini-1.5-pro", 60, 120_000), "azure": ("gpt-4.1", 100, 80_000),
    "groq": ("llama-3.1-70b-versatile", 30, 6_000),
}  # fmt: skip
MOST = {"openai": 10, "anthropic": 5, "google": 10, "azure": 10, "groq": 5}
DOCUMENTS = 90


def request(name, text, most):
    """The path and the body of a call in the provider's own form."""
    model, said = PROVIDERS[name][0], [{"role": "user", "content": text}]
    if name == "google":
        body = {
            "contents": [{"role": "user", "parts": [{"text": text}]}],
            "generationConfig": {"maxOutputTokens": most},
        }
        return f"/v1beta/models/{model}:generateContent", body
    body = {"model": model, "messages": said, "max_tokens": most}
    paths = {"anthropic": "/v1/messages", "groq": "/openai/v1/chat/completions"}
    paths["azure"] = f"/openai/deployments/{model}/chat/completions"
    return paths.get(name, "/v1/chat/completions"), body


@virtual
@pytest.mark.long("a whole program")
async def test_none_refused_at_five_providers(clock, tmp_path):
    path = tmp_path / "rate_limits.yaml"
    path.write_text(FILE)
    limiter = paceline.Limiter.load(path, clock=clock)
    providers = {
        name: PlainProvider(
            clock, {model: {"requests": Bucket(rpm), "tokens": Bucket(tpm)}},
            books_output=name in ("openai", "azure", "groq"),
        )
        for name, (model, rpm, tpm) in PROVIDERS.items()
    }  # fmt: skip
    clients = {
        name: limiter.attach(httpx2.AsyncClient(transport=one, base_url=f"http://{name}"), provider=name)
        for name, one in providers.items()
    }

    async def call(name, text, most):
        where, body = request(name, text, most)
        answer = await clients[name].post(where, json=body)
        assert answer.status_code == 200, (name, answer.status_code, answer.text)

    async def document(number):
        await call(("openai", "groq")[number % 2], f"Write about case {number}. " * 20, 100)
        await asyncio.gather(*(report(writer, number) for writer in ("anthropic", "google")))

    async def report(writer, number):
        await call(writer, f"Write a report about document {number}. " * 60, 300)
        await asyncio.gather(*(call(judge, "Rate the report. " * 100, 80) for judge in ("openai", "azure")))

    await asyncio.gather(*(document(number) for number in range(DOCUMENTS)))
    for client in clients.values():
        await client.aclose()
    models = {name: next(iter(one.models.values())) for name, one in providers.items()}
    for name, model in models.items():
        print(
            f"acm, {name}: {len(model.arrivals)} requests, {model.refused} refused, {model.share:.3f} of the best time"
        )
    assert {name: model.refused for name, model in models.items()} == dict.fromkeys(models, 0)
    assert {name: len(model.arrivals) for name, model in models.items()} == {
        "openai": 45 + 180, "anthropic": 90, "google": 90, "azure": 180, "groq": 45,
    }  # fmt: skip
    assert all(model.peak <= MOST[name] for name, model in models.items())
    assert max(model.share for model in models.values()) >= 0.9
