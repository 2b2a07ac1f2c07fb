"""What LangChain says of a model, a prompt, an answer and an error, in paceline's words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

from paceline.core.results import Refusal
from paceline.integrations import package
from paceline.limiter.limiter import Limiter
from paceline.providers.base import Call, Provider, Usage
from paceline.providers.openai import MEDIA
from paceline.providers.prompt import prompt_tokens
from paceline.providers.registry import provider_for_host, provider_named

_tool = package("langchain_core.utils.function_calling", "langchain-core>=1").convert_to_openai_tool

_PROVIDERS: Final = {"google_genai": "gemini", "google_vertexai": "vertex", "mistralai": "mistral", "amazon_bedrock": "bedrock"}  # fmt: skip
"""What LangChain calls a provider, where we call it otherwise."""

_ADDRESSES: Final = ("azure_endpoint", "openai_api_base", "anthropic_api_url", "groq_api_base", "endpoint", "base_url")
"""Where chat models keep their base URL."""

_CALLS: Final = ("tool_use", "tool_call", "function_call")
"""Blocks that repeat what a message's ``tool_calls`` say."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat model as the limiter sees it."""

    page: Provider
    model: str
    max_output_tokens: int | None

    @property
    def pool(self) -> str:
        """Whose quotas, unless the user says otherwise."""
        return f"{self.page.name}/{self.model}"

    def call(self, input_tokens: int) -> Call:
        """A call with that much input. The endpoint is a word of our own: its estimates are LangChain's messages'."""
        return Call(self.page.name, "langchain", self.model, input_tokens, self.max_output_tokens)

    def size(self, messages: Sequence[Any], tools: Sequence[Any] = ()) -> int:
        """The estimate of a prompt, in tokens."""
        parts = [_part(message) for message in messages]
        schemas = [tool if isinstance(tool, dict) else _tool(tool) for tool in tools]
        return prompt_tokens(parts, schemas, self.page.encoding, MEDIA)


def _part(message: Any) -> dict[str, Any]:
    """A message as the estimator reads it: each call of a tool once, with its arguments as the JSON that they are."""
    content = message.content
    if isinstance(content, list):
        content = [block for block in content if not (isinstance(block, dict) and block.get("type") in _CALLS)]
    calls = [(call["name"], json.dumps(call["args"], default=str)) for call in getattr(message, "tool_calls", ())]
    return {"role": message.type, "content": content, "calls": calls}


def chat(limiter: Limiter | None, model: Any, settings: dict[str, Any]) -> Chat:
    """Describe a chat model: the same provider as for its HTTP requests, by address, where that tells."""
    params = model._get_ls_params(**settings)  # noqa: SLF001  (LangChain's own middleware asks it, too)
    named = str(params.get("ls_provider") or "generic")
    named = _PROVIDERS.get(named, named)
    name, most = str(params.get("ls_model_name") or "unknown"), params.get("ls_max_tokens")
    found = (getattr(model, attribute, None) for attribute in _ADDRESSES)
    host = urlsplit(next((address for address in found if isinstance(address, str)), "")).hostname
    page = provider_for_host(host) if host else provider_named(named)
    if page is None:  # a host that nobody knows, as for an HTTP request there
        home = limiter.limits.home if limiter else None
        page = provider_named(named if named == "anthropic" else home or host or named)
    if resource := getattr(page, "host", ""):  # Azure's pools are deployments
        name = f"{resource}/{getattr(model, 'deployment_name', None) or name}"
    return Chat(page, name, most if isinstance(most, int) and most > 0 else None)


def usage_of(response: Any) -> Usage | None:
    """What the messages of an answer say that they used."""
    total = None
    for message in getattr(response, "result", [response]):
        said = getattr(message, "usage_metadata", None)
        if said:
            details = said.get("input_token_details") or {}
            total = total or Usage()
            total = replace(
                total,
                input_tokens=total.input_tokens + (said.get("input_tokens") or 0),
                output_tokens=total.output_tokens + (said.get("output_tokens") or 0),
                cached_tokens=total.cached_tokens + (details.get("cache_read") or 0),
                cache_write_tokens=total.cache_write_tokens + (details.get("cache_creation") or 0),
            )
    return total


def refusal_of(page: Provider, error: Exception) -> Refusal | None:
    """What the provider refused, if ``error`` is an SDK's for an answer over HTTP."""
    response = getattr(error, "response", None)
    status, headers = getattr(response, "status_code", None), getattr(response, "headers", None)
    if not isinstance(status, int) or headers is None:
        return None
    plain = {str(name).lower(): str(value) for name, value in headers.items()}
    if "x-paceline" in plain:  # our own, from below
        return None
    content = getattr(response, "_content", b"")
    return page.refusal(status, plain, content if isinstance(content, bytes) else b"")
