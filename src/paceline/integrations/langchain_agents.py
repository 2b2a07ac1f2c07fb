"""The middleware of :mod:`paceline.integrations.langchain`: wait, settle, trim the history, cut tools' results."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

from paceline.core.results import SettingsError
from paceline.estimation.calibration import Calibrations, TokenCalibration
from paceline.http.describe import Metered
from paceline.integrations import package
from paceline.integrations.history import shorten_content, trim
from paceline.limiter.limiter import Limiter
from paceline.pacing.permit import Acquisition, Permit, reports
from paceline.providers.answers import refusal_of
from paceline.providers.base import Call, Provider, Usage
from paceline.providers.openai import MEDIA
from paceline.providers.prompt import prompt_tokens
from paceline.providers.registry import provider_for_host, provider_named

_agents = package("langchain.agents.middleware", "langchain>=1.2")
_messages = package("langchain_core.messages", "langchain-core>=1")
_tool = package("langchain_core.utils.function_calling", "langchain-core>=1").convert_to_openai_tool

_PROVIDERS: Final = {"google_genai": "gemini", "google_vertexai": "vertex", "mistralai": "mistral", "amazon_bedrock": "bedrock"}  # fmt: skip
"""LangChain's names of providers that paceline names differently."""

_ADDRESSES: Final = ("azure_endpoint", "openai_api_base", "anthropic_api_url", "groq_api_base", "endpoint", "base_url")
"""The attributes of chat models that hold the base URL."""

_CALLS: Final = ("tool_use", "tool_call", "function_call")
"""Blocks that repeat a message's ``tool_calls``."""


class PacelineMiddleware(_agents.AgentMiddleware):  # type: ignore[misc,name-defined]
    """For ``create_agent(..., middleware=[..., PacelineMiddleware(limiter)])``, sync and async; put it last.

    Each model call waits for a permit over an estimate of its messages and tools, and is settled with the usage that
    its answer reports. An HTTP client below that is also paced (``attach()``, ``instrument()``) uses that permit for
    its first attempt, and acquires one for each further attempt itself. The agent's state keeps the whole history; only
    the messages that are sent to the model are trimmed. A tool's result is cut before it enters the state.

    Args:
        limiter: The limiter; without one, history is trimmed and results are cut, and calls do not wait.
        pool: The pool to charge; by default the pool of the request's model, e.g. ``openai/gpt-6-luna``. Name it where the
            client below is charged to another pool than the model's name and address imply.
        max_input_tokens: The most tokens of system message, tools and history together, by an estimate that the answers
            correct; ``None`` for no limit.
        max_tool_output_chars: The most characters of a tool's result, the marker included.
        timeout: The most seconds to wait for a permit.

    Raises:
        AcquireTimeoutError: From the agent, as are the other errors of :meth:`~paceline.Limiter.acquire`.
    """

    def __init__(
        self,
        limiter: Limiter | None = None,
        pool: str | None = None,
        *,
        max_input_tokens: int | None = None,
        max_tool_output_chars: int = 12_000,
        timeout: float | None = None,
    ) -> None:
        super().__init__()
        if max_tool_output_chars < 100:
            raise SettingsError(f"max_tool_output_chars is {max_tool_output_chars!r}: it must be 100 or more")
        if max_input_tokens is not None and max_input_tokens < 1:
            raise SettingsError(f"max_input_tokens is {max_input_tokens!r}: it must be 1 or more, or None")
        self.limiter, self.pool, self.timeout = limiter, pool, timeout
        self.max_input_tokens, self.max_tool_output_chars = max_input_tokens, max_tool_output_chars
        self._calibrations = limiter.pacer.calibrations if limiter else Calibrations()

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """See :class:`PacelineMiddleware`."""
        request, call = self._prepared(request)
        if self.limiter is None:
            return call.settled(None, handler(request))
        with call.acquire(self.limiter, self.pool, self.timeout) as permit:
            try:
                return call.settled(permit, handler(request))
            except Exception as error:
                call.failed(permit, error)
                raise

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """See :class:`PacelineMiddleware`."""
        request, call = self._prepared(request)
        if self.limiter is None:
            return call.settled(None, await handler(request))
        async with call.acquire(self.limiter, self.pool, self.timeout) as permit:
            try:
                return call.settled(permit, await handler(request))
            except Exception as error:
                call.failed(permit, error)
                raise

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """See :class:`PacelineMiddleware`."""
        return self._cut(handler(request))

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """See :class:`PacelineMiddleware`."""
        return self._cut(await handler(request))

    def _prepared(self, request: Any) -> tuple[Any, _Call]:
        """The request with a trimmed history, and its call."""
        model = chat(self.limiter, request.model, request.model_settings)
        fixed = model.size([request.system_message] if request.system_message else [], request.tools or [])
        sizes = [model.size([message]) for message in request.messages]
        call = model.call(0)
        calibration = self._calibrations.of(call.provider, call.model, call.endpoint)
        total = fixed + sum(sizes)
        if self.max_input_tokens is not None and calibration.input.apply(total) > self.max_input_tokens:
            kept = trim(request.messages, sizes, int(self.max_input_tokens / calibration.input.factor) - fixed)
            request = request.override(messages=[request.messages[index] for index in kept])
            total = fixed + sum(sizes[index] for index in kept)
        return request, _Call(model, total, calibration)

    def _cut(self, result: Any) -> Any:
        """A tool's message, or a command with messages, cut to the allowed length."""
        if isinstance(result, _messages.ToolMessage):
            content = shorten_content(result.content, self.max_tool_output_chars)
            return result if content is result.content else result.model_copy(update={"content": content})
        update = getattr(result, "update", None)
        if is_dataclass(result) and isinstance(update, dict) and isinstance(update.get("messages"), list):
            messages = [self._cut(message) for message in update["messages"]]
            return replace(result, update={**update, "messages": messages})  # type: ignore[type-var]
        return result


class _Call:
    """One call of the model: its estimated cost, and its usage."""

    def __init__(self, model: Chat, input_tokens: int, calibration: TokenCalibration) -> None:
        self._provider, self._model, self._call = model.provider, model, model.call(input_tokens)
        self._calibration = calibration

    def acquire(self, limiter: Limiter, pool: str | None, timeout: float | None) -> Acquisition:
        pools = limiter.pacer.pools
        scheduler = pools.scheduler(pool) if pool else pools.of_model(self._provider.name, self._model.model)
        cost: dict[str, Any] = Metered(self._provider, self._call, scheduler, self._calibration).cost()
        return limiter.acquire(pool or self._model.pool, timeout=timeout, **cost)

    def settled(self, permit: Permit | None, response: Any) -> Any:
        """Settle with the answer's usage unless an HTTP client below has done so, and correct the estimates by it."""
        usage = usage_of(response)
        if permit is not None and permit.open:
            charged = self._provider.charged(self._call, usage) if usage else {}
            if usage:
                reports(permit, charged, usage)
            permit.settle(**charged)
        if usage is not None:
            self._calibration.learn(
                input_estimate=self._call.input_tokens,
                input_tokens=usage.input_tokens,
                max_output_tokens=self._call.max_output_tokens,
                output_tokens=usage.output_tokens,
            )
        return response

    def failed(self, permit: Permit, error: Exception) -> None:
        """Pause the pool if the provider has refused the request of an HTTP client that is not paced."""
        refusal = refusal_of(error, self._provider.name) if permit.open else None
        if refusal is not None:
            permit.refused(refusal)


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat model as the limiter sees it."""

    provider: Provider
    model: str
    max_output_tokens: int | None

    @property
    def pool(self) -> str:
        """The pool to charge, unless the user names another."""
        return f"{self.provider.name}/{self.model}"

    def call(self, input_tokens: int) -> Call:
        """A call with so much input. Its own endpoint, ``langchain``, keeps its calibration apart from HTTP requests."""
        return Call(self.provider.name, "langchain", self.model, input_tokens, self.max_output_tokens)

    def size(self, messages: Sequence[Any], tools: Sequence[Any] = ()) -> int:
        """The estimate of a prompt, in tokens."""
        parts = [_part(message) for message in messages]
        schemas = [tool if isinstance(tool, dict) else _tool(tool) for tool in tools]
        return prompt_tokens(parts, schemas, self.provider.encoding, MEDIA)


def _part(message: Any) -> dict[str, Any]:
    """A message as the estimator reads it: each call of a tool once, with its arguments in JSON."""
    content = message.content
    if isinstance(content, list):
        content = [block for block in content if not (isinstance(block, dict) and block.get("type") in _CALLS)]
    calls = [(call["name"], json.dumps(call["args"], default=str)) for call in getattr(message, "tool_calls", ())]
    return {"role": message.type, "content": content, "calls": calls}


def chat(limiter: Limiter | None, model: Any, settings: dict[str, Any]) -> Chat:
    """Describe a chat model: the same provider as for its HTTP requests, by its address where that is known."""
    params = model._get_ls_params(**settings)  # noqa: SLF001  (LangChain's own middleware calls it, too)
    named = str(params.get("ls_provider") or "generic")
    named = _PROVIDERS.get(named, named)
    name, most = str(params.get("ls_model_name") or "unknown"), params.get("ls_max_tokens")
    found = (getattr(model, attribute, None) for attribute in _ADDRESSES)
    host = urlsplit(next((address for address in found if isinstance(address, str)), "")).hostname
    provider = provider_for_host(host) if host else provider_named(named)
    if provider is None:  # an unknown host, as for an HTTP request there
        home = limiter.limits.home if limiter else None
        provider = provider_named(named if named == "anthropic" else home or host or named)
    if resource := getattr(provider, "host", ""):  # Azure's pools are deployments
        name = f"{resource}/{getattr(model, 'deployment_name', None) or name}"
    return Chat(provider, name, most if isinstance(most, int) and most > 0 else None)


def usage_of(response: Any) -> Usage | None:
    """The usage that the messages of an answer report, together."""
    messages = getattr(response, "result", [response])
    reported = [usage for usage in (getattr(message, "usage_metadata", None) for message in messages) if usage]
    details = [usage.get("input_token_details") or {} for usage in reported]

    def total(counts: list[dict[str, Any]], name: str) -> int:
        return sum(count.get(name) or 0 for count in counts)

    sizes = total(reported, "input_tokens"), total(reported, "output_tokens")
    return Usage(*sizes, total(details, "cache_read"), total(details, "cache_creation")) if reported else None
