"""The middleware of :mod:`paceline.integrations.langchain`: wait, settle, trim the history, cut tools' results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Any

from paceline.core.results import QuotaError
from paceline.estimation.calibration import Calibrations, TokenCalibration
from paceline.http.describe import Metered
from paceline.integrations import package
from paceline.integrations.history import trim
from paceline.integrations.langchain_models import Chat, chat, refusal_of, usage_of
from paceline.integrations.shorten import shorten_content
from paceline.pacing.permit import Acquisition, Permit

if TYPE_CHECKING:
    from paceline.limiter.limiter import Limiter

_agents = package("langchain.agents.middleware", "langchain>=1.2")
_messages = package("langchain_core.messages", "langchain-core>=1")


class PacelineMiddleware(_agents.AgentMiddleware):  # type: ignore[misc,name-defined]
    """For ``create_agent(..., middleware=[..., PacelineMiddleware(limiter)])``, sync and async; put it last.

    Each model call waits for a permit over an estimate of its messages and tools, and is settled with the usage that
    its answer reports. An HTTP client below that is paced, too (``attach()``, ``instrument()``), uses that permit
    for its first attempt, and takes one for each further attempt itself. The agent's state keeps the whole history:
    only what the model is sent is trimmed. A tool's result is cut where it enters the state.

    Args:
        limiter: Who is asked; without one, history is trimmed and results are cut, and nobody waits.
        pool: Whose quotas; by default those of the model in hand, e.g. ``openai/gpt-5``. Name it where the client
            below is charged to another pool than the model's name and address tell.
        max_input_tokens: What system message, tools and history may have together, by an estimate that
            the answers correct; ``None`` for no end.
        max_tool_chars: Characters of a tool's result, the marker where it was cut included.
        timeout: Seconds to wait for a permit at most.

    Raises:
        AcquireTimeoutError: From the agent, as are the other errors of :meth:`~paceline.Limiter.acquire`.
    """

    def __init__(
        self,
        limiter: Limiter | None = None,
        pool: str | None = None,
        *,
        max_input_tokens: int | None = None,
        max_tool_chars: int = 12_000,
        timeout: float | None = None,
    ) -> None:
        super().__init__()
        if max_tool_chars < 100:
            raise QuotaError(f"max_tool_chars is {max_tool_chars!r}: it must be 100 or more")
        if max_input_tokens is not None and max_input_tokens < 1:
            raise QuotaError(f"max_input_tokens is {max_input_tokens!r}: it must be 1 or more, or None")
        self.limiter, self.pool, self.timeout = limiter, pool, timeout
        self.max_input_tokens, self.max_tool_chars = max_input_tokens, max_tool_chars
        self._teacher = limiter.calibrations if limiter else Calibrations()

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """See :class:`PacelineMiddleware`."""
        request, call = self._prepared(request)
        if self.limiter is None:
            return call.learned(handler(request))
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
            return call.learned(await handler(request))
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
        """The request with a history that fits, and its call."""
        model = chat(self.limiter, request.model, request.model_settings)
        fixed = model.size([request.system_message] if request.system_message else [], request.tools or [])
        sizes = [model.size([message]) for message in request.messages]
        call = model.call(0)
        lessons = self._teacher.of(call.provider, call.model, call.endpoint)
        total = fixed + sum(sizes)
        if self.max_input_tokens is not None and lessons.input.apply(total) > self.max_input_tokens:
            kept = trim(request.messages, sizes, int(self.max_input_tokens / lessons.input.factor) - fixed)
            request = request.override(messages=[request.messages[index] for index in kept])
            total = fixed + sum(sizes[index] for index in kept)
        return request, _Call(model, total, lessons)

    def _cut(self, result: Any) -> Any:
        """A tool's message, or a command that brings messages, with what is too long cut."""
        if isinstance(result, _messages.ToolMessage):
            content = shorten_content(result.content, self.max_tool_chars)
            return result if content is result.content else result.model_copy(update={"content": content})
        update = getattr(result, "update", None)
        if is_dataclass(result) and isinstance(update, dict) and isinstance(update.get("messages"), list):
            messages = [self._cut(message) for message in update["messages"]]
            return replace(result, update={**update, "messages": messages})  # type: ignore[type-var]
        return result


class _Call:
    """One call of the model: what it should cost, and what it did."""

    def __init__(self, model: Chat, input_tokens: int, lessons: TokenCalibration) -> None:
        self._model, self._call, self._calibration = model, model.call(input_tokens), lessons

    def acquire(self, limiter: Limiter, pool: str | None, timeout: float | None) -> Acquisition:
        scheduler = limiter.scheduler(pool) if pool else limiter.scheduler_for(self._model.page.name, self._model.model)
        cost: dict[str, Any] = Metered(self._model.page, self._call, scheduler, self._calibration).cost()
        return limiter.acquire(pool or self._model.pool, timeout=timeout, **cost)

    def learned(self, response: Any) -> Any:
        """Compare the answer with the estimate."""
        usage = usage_of(response)
        if usage is not None:
            self._calibration.learn(
                input_estimate=self._call.input_tokens,
                input_tokens=usage.input_tokens,
                max_output_tokens=self._call.max_output_tokens,
                output_tokens=usage.output_tokens,
            )
        return response

    def settled(self, permit: Permit, response: Any) -> Any:
        """Learn from the answer, and settle with it unless an HTTP client below has done so."""
        usage = usage_of(response)
        if permit.open:
            permit.settle(**(self._model.page.charged(self._call, usage) if usage else {}))
        return self.learned(response)

    def failed(self, permit: Permit, error: Exception) -> None:
        """Let the pool pause when the provider said so to an HTTP client that nobody paces."""
        refusal = refusal_of(self._model.page, error) if permit.open else None
        if refusal is not None:
            permit.refused(refusal)
