"""The author's middleware for LangChain's agents, over paceline's: it trims and cuts, and waits on the pipeline's throttle."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from rate_limiting import LiteLLMTokenEstimator, TokenEstimator, TPMThrottle

import paceline
from paceline.integrations.langchain import PacelineMiddleware


class TokenBudgetMiddleware(PacelineMiddleware):  # type: ignore[misc]
    """History within ``max_input_tokens``, tools' results within ``max_tool_output_chars``, calls within the throttle.

    Args:
        max_input_tokens: The most tokens that are sent; ``None`` for no limit.
        max_tool_output_chars: The most characters of a tool's result.
        throttle: Shared with the pipeline; without one, calls do not wait.
        estimator: Estimates what is sent.
        model_name: The model, for the estimator.
    """

    def __init__(
        self,
        max_input_tokens: int | None = None,
        max_tool_output_chars: int = 12_000,
        throttle: TPMThrottle | None = None,
        estimator: TokenEstimator | None = None,
        model_name: str = "unknown",
    ) -> None:
        super().__init__(max_input_tokens=max_input_tokens, max_tool_output_chars=max_tool_output_chars)
        self.throttle, self.model_name = throttle, model_name
        self.estimator = estimator or (LiteLLMTokenEstimator() if throttle else None)

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Trim, wait, call, record."""

        def paced(trimmed: Any) -> Any:
            if self.throttle is None:
                return handler(trimmed)
            with self.throttle.reserve(self._estimate(trimmed)) as permit:
                return _settled(permit, handler(trimmed))

        return super().wrap_model_call(request, paced)

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """The same in an event loop."""

        async def paced(trimmed: Any) -> Any:
            if self.throttle is None:
                return await handler(trimmed)
            async with self.throttle.reserve(self._estimate(trimmed)) as permit:
                return _settled(permit, await handler(trimmed))

        return await super().awrap_model_call(request, paced)

    def _estimate(self, request: Any) -> int:
        messages = [request.system_message] if request.system_message else []
        sent = [{"role": one.type, "content": one.content} for one in [*messages, *request.messages]]
        assert self.estimator is not None
        return self.estimator.estimate(json.loads(json.dumps(sent, default=str)), self.model_name)


def _settled(permit: paceline.Permit, response: Any) -> Any:
    """Settle with the usage that the answer reports; without one it stays as estimated."""
    messages = getattr(response, "result", [response])
    reported = [usage for message in messages if (usage := getattr(message, "usage_metadata", None))]
    permit.settle(**({"tokens": sum(usage["total_tokens"] for usage in reported)} if reported else {}))
    return response
