"""extropy's limiter for two models, on paceline's pools: requests wait outside extropy's deadlines for calls.

extropy ends each call after 15 or 30 s, so a wait inside that deadline would become a failed call. The wait is therefore
in ``acquire()``; ``paceline.instrument(limiter)`` settles the permit with the real usage, and paces only the attempts
after the first. Use both::

    pace_engine(limiter)
    paceline.instrument(limiter)

The tier and the overrides of extropy's command line become limits of the limiter.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from paceline.estimation.calibration import UNKNOWN_INPUT_TOKENS, UNKNOWN_OUTPUT_TOKENS
from paceline.http.instrument import Instrumented
from paceline.integrations import package
from paceline.limiter.limiter import Limiter
from paceline.pacing.permit import Acquisition, Permit, hand_down, take
from paceline.pacing.status import requests_per_minute

REQUIREMENT: Final = "extropy-run>=0.2.3"

_last: ContextVar[Permit | None] = ContextVar("paceline_extropy", default=None)


class ExtropyRole:
    """One model, as extropy's ``RateLimiter``.

    Args:
        limiter: The limiter.
        pool: The model's pool: ``openai/gpt-6-luna``.
    """

    def __init__(self, limiter: Limiter, pool: str) -> None:
        self._limiter, self._pool = limiter, pool
        self._scheduler = limiter.pacer.pools.scheduler(pool)  # an unknown pool is an error now
        self._acquired, self._waited_s = 0, 0.0

    @property
    def rpm(self) -> int:
        """Requests a minute by the current limits (answers correct them); extropy starts its calls 60 / rpm seconds apart."""
        return requests_per_minute(self._scheduler.status())

    @property
    def max_safe_concurrent(self) -> int:
        """The most agents that extropy runs at once: half a minute's requests, as in its own limiter."""
        return self._limiter.max_safe_concurrent(self._pool)

    async def acquire(
        self, estimated_input_tokens: int = UNKNOWN_INPUT_TOKENS, estimated_output_tokens: int = UNKNOWN_OUTPUT_TOKENS
    ) -> float:
        """Wait for a permit, which the next call in this context uses; return the wait in seconds.

        Raises:
            PacelineError: As for :meth:`paceline.Limiter.acquire`.
        """
        return self._taken(await self._acquisition(estimated_input_tokens, estimated_output_tokens))

    def acquire_sync(
        self, estimated_input_tokens: int = UNKNOWN_INPUT_TOKENS, estimated_output_tokens: int = UNKNOWN_OUTPUT_TOKENS
    ) -> float:
        """The same for a thread."""
        return self._taken(self._acquisition(estimated_input_tokens, estimated_output_tokens).wait())

    def stats(self) -> dict[str, Any]:
        """The numbers of extropy's final report, under its names."""
        provider, _, model = self._scheduler.pool.name.partition("/")
        return {
            "provider": provider,
            "model": model,
            "rpm_limit": self.rpm,
            "max_safe_concurrent": self.max_safe_concurrent,
            "total_acquired": self._acquired,
            "total_wait_time_seconds": round(self._waited_s, 2),
        }

    def _acquisition(self, input_tokens: int, output_tokens: int) -> Acquisition:
        last = _last.get()
        if last is not None and take(last):  # its call was never made, or by a client that is not paced
            last.close()
        output = self._scheduler.pool.ledger.expected_output(input_tokens, output_tokens)
        return self._limiter.acquire(self._pool, input_tokens=input_tokens, output_tokens=output)

    def _taken(self, permit: Permit) -> float:
        hand_down(permit)
        _last.set(permit)
        self._acquired += 1
        self._waited_s += permit.waited_s
        return permit.waited_s


class ExtropyLimiter:
    """Both models, as extropy's ``DualRateLimiter``: ``SimulationEngine(..., rate_limiter=ExtropyLimiter(...))``.

    Args:
        limiter: The limiter.
        pivotal: The model of the first pass, e.g. ``openai/gpt-6-luna``; also named ``strong``.
        routine: The model of the second pass, also named ``fast``; both passes share one role if it is ``None`` or the
            same model.
        tier: The tier of the account, for both models; by default the limiter's.
        rpm_override: Requests per minute of the pivotal model.
        tpm_override: Tokens per minute of the pivotal model, input and output together.

    Raises:
        SettingsError: As for :meth:`paceline.Limiter.override`.
    """

    def __init__(
        self,
        limiter: Limiter,
        pivotal: str,
        routine: str | None = None,
        *,
        tier: str | int | None = None,
        rpm_override: float | None = None,
        tpm_override: float | None = None,
    ) -> None:
        same = routine is None or limiter.limits.resolve(routine).pool == limiter.limits.resolve(pivotal).pool
        if tier or rpm_override or tpm_override:
            limiter.override(pivotal, tier=tier, rpm_override=rpm_override, tpm_override=tpm_override)
        if tier and not same:
            limiter.override(routine or pivotal, tier=tier)
        self.pivotal = self.strong = ExtropyRole(limiter, pivotal)
        self.routine = self.fast = self.pivotal if same else ExtropyRole(limiter, routine or pivotal)

    @classmethod
    def factory(cls, limiter: Limiter) -> Callable[..., ExtropyLimiter]:
        """A replacement for ``DualRateLimiter.create``; without a model it takes extropy's default."""

        def create(
            provider: str = "",
            pivotal_model: str = "",
            routine_model: str = "",
            tier: int | None = None,
            rpm_override: int | None = None,
            tpm_override: int | None = None,
            *,
            strong_model_string: str = "",
            fast_model_string: str = "",
        ) -> ExtropyLimiter:
            def named(model: str) -> str:
                return f"{provider}/{model or _default_model()}" if provider else model

            pivotal, routine = strong_model_string or named(pivotal_model), fast_model_string or named(routine_model)
            given: dict[str, Any] = {"tier": tier, "rpm_override": rpm_override, "tpm_override": tpm_override}
            return cls(limiter, pivotal, routine or None, **given)

        return create

    @property
    def max_safe_concurrent(self) -> int:
        """The most agents at once, by the slower of the two models."""
        return min(self.pivotal.max_safe_concurrent, self.routine.max_safe_concurrent)

    def stats(self) -> dict[str, Any]:
        """The numbers of both models, or of one if they are the same."""
        stats = {"pivotal": self.pivotal.stats()}
        return stats if self.routine is self.pivotal else {**stats, "routine": self.routine.stats()}


def pace_engine(limiter: Limiter) -> Instrumented:
    """Make extropy's engine wait for ``limiter`` instead of its own limiter.

    Returns:
        Its ``undo()``, or the end of its ``with`` block, restores extropy's own limiter.

    Raises:
        ImportError: extropy is not installed, or this version has no ``DualRateLimiter``.
    """
    dual = getattr(package("extropy.simulation.engine", REQUIREMENT), "DualRateLimiter", None)
    if dual is None:
        raise ImportError(f"this extropy has no DualRateLimiter: the integration needs {REQUIREMENT!r}")
    done = Instrumented()
    done.replace(dual, "create", staticmethod(ExtropyLimiter.factory(limiter)))
    return done


def _default_model() -> str:
    """The model that extropy calls where its settings name none."""
    return str(package("extropy.core.providers", REQUIREMENT).get_simulation_provider().default_simple_model)
