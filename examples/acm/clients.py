"""The five SDKs, each with its own dialect, paced by one line each."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anthropic
import groq
import openai
from google import genai

import paceline

KEYS = {
    "openai": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "google": "GEMINI_API_KEY",
    "azure": "AZURE_OPENAI_API_KEY",  # and AZURE_OPENAI_ENDPOINT
    "groq": "GROQ_API_KEY",
}
PROVIDERS = tuple(KEYS)
FAILURES = (openai.APIError, anthropic.APIError, groq.APIError, genai.errors.APIError)
"""The errors of the SDKs; a refusal of paceline, such as a wait above the timeout, is raised as the SDK's 429."""

_AZURE_VERSION = "2024-10-21"


class Clients:
    """The only access to the models, for all components.

    Args:
        limiter: Paces all clients.
        base_urls: The addresses of emulators; any other provider is called at its real API, with the key from the
            environment.
    """

    def __init__(self, limiter: paceline.Limiter, base_urls: Mapping[str, str]) -> None:
        self._clients: dict[str, Any] = {}
        for provider in PROVIDERS:
            client = _client(provider, base_urls.get(provider))
            # The one line: it waits for the quotas, sends, retries refused requests, and settles with the usage.
            self._clients[provider] = limiter.attach(client, provider=provider)
        self._ask: dict[str, Callable[[str, str, int], Awaitable[str]]] = {
            "openai": self._openai,
            "anthropic": self._anthropic,
            "google": self._google,
            "azure": self._azure,
            "groq": self._groq,
        }

    async def ask(self, provider: str, model: str, prompt: str, most: int) -> str:
        """The answer, of at most ``most`` tokens.

        Raises:
            FAILURES: An error of the provider's SDK.
        """
        return await self._ask[provider](model, prompt, most)

    async def close(self) -> None:
        """Close the connections."""
        for provider, client in self._clients.items():
            await (client.aio.aclose() if provider == "google" else client.close())

    async def _openai(self, model: str, prompt: str, most: int) -> str:
        answer = await self._clients["openai"].responses.create(model=model, input=prompt, max_output_tokens=most)
        return paceline.finish_of(answer).text

    async def _anthropic(self, model: str, prompt: str, most: int) -> str:
        messages = [{"role": "user", "content": prompt}]
        answer = await self._clients["anthropic"].messages.create(model=model, max_tokens=most, messages=messages)
        return paceline.finish_of(answer).text

    async def _google(self, model: str, prompt: str, most: int) -> str:
        settings = {"max_output_tokens": most}
        answer = await self._clients["google"].aio.models.generate_content(
            model=model, contents=prompt, config=settings
        )
        return paceline.finish_of(answer).text

    async def _azure(self, model: str, prompt: str, most: int) -> str:
        return await self._chat("azure", model, prompt, most)

    async def _groq(self, model: str, prompt: str, most: int) -> str:
        return await self._chat("groq", model, prompt, most)

    async def _chat(self, provider: str, model: str, prompt: str, most: int) -> str:
        messages = [{"role": "user", "content": prompt}]
        answer = await self._clients[provider].chat.completions.create(model=model, messages=messages, max_tokens=most)
        return paceline.finish_of(answer).text


def _client(provider: str, base_url: str | None) -> Any:
    """An SDK's client without retries of its own: the limiter retries, when the quotas allow it."""
    key = "any" if base_url else os.environ[KEYS[provider]]
    if provider == "openai":
        return openai.AsyncOpenAI(api_key=key, base_url=base_url and f"{base_url}/v1", max_retries=0)
    if provider == "anthropic":
        return anthropic.AsyncAnthropic(api_key=key, base_url=base_url, max_retries=0)
    if provider == "azure":
        endpoint = base_url or os.environ["AZURE_OPENAI_ENDPOINT"]
        return openai.AsyncAzureOpenAI(api_key=key, azure_endpoint=endpoint, api_version=_AZURE_VERSION, max_retries=0)
    if provider == "groq":
        return groq.AsyncGroq(api_key=key, base_url=base_url, max_retries=0)
    return genai.Client(api_key=key, http_options={"base_url": base_url} if base_url else None)
