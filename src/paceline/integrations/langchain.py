"""LangChain: a middleware for its agents, and, for a chat model alone, a rate limiter.

``limiter.attach(model)`` and ``paceline.instrument(limiter)`` see every HTTP attempt of a chat model, and are the better
way to pace one. The middleware also keeps the history and the tools' results small, which only an agent's loop can do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.integrations import package
from paceline.limiter.limiter import Limiter
from paceline.pacing.permit import Permit

if TYPE_CHECKING:
    from paceline.integrations.langchain_agents import PacelineMiddleware

__all__ = ["PacelineMiddleware", "PacelineRateLimiter"]

_rate_limiters = package("langchain_core.rate_limiters", "langchain-core>=1")


class PacelineRateLimiter(_rate_limiters.BaseRateLimiter):  # type: ignore[misc,name-defined]
    """A rate limiter for ``init_chat_model(..., rate_limiter=...)``, if there is no HTTP client to attach to.

    LangChain passes it neither the model nor the prompt nor the answer: each call is charged the same fixed cost, once
    for all attempts of the SDK below (set ``max_retries=0``). Use it instead of ``attach()`` and ``instrument()``, not
    with them.

    Args:
        limiter: The limiter.
        pool: The pool to charge, e.g. ``openai/gpt-6-luna``.
        **cost: The cost of a call, per unit, e.g. ``input_tokens=1_200, output_tokens=300``.

    Raises:
        SettingsError: The pool is unknown, or the cost is invalid.
    """

    def __init__(self, limiter: Limiter, pool: str, **cost: float) -> None:
        self._limiter, self._pool = limiter, pool
        self._cost: dict[str, Any] = dict(cost)
        limiter.acquire(pool, **self._cost)  # what is invalid is an error now

    def acquire(self, *, blocking: bool = True) -> bool:
        """Charge one call to the pool; without ``blocking``, return whether it could be charged at once."""
        if blocking:
            self._limiter.acquire(self._pool, **self._cost).wait().settle()
            return True
        permit = self._limiter.try_acquire(self._pool, **self._cost)
        if not isinstance(permit, Permit):
            return False
        permit.settle()
        return True

    async def aacquire(self, *, blocking: bool = True) -> bool:
        """Charge one call to the pool; without ``blocking``, return whether it could be charged at once."""
        if not blocking:
            return self.acquire(blocking=False)
        (await self._limiter.acquire(self._pool, **self._cost)).settle()
        return True


def __getattr__(name: str) -> Any:
    """The middleware, which needs more than langchain-core."""
    if name != "PacelineMiddleware":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from paceline.integrations.langchain_agents import PacelineMiddleware

    return PacelineMiddleware
