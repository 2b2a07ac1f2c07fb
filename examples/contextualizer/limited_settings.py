"""The settings of the program, from its environment, and the limiter that they define."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import paceline

MODEL = "gpt-6-luna"
POOL = f"openai/{MODEL}"
"""The quota that pipeline and agent share."""

SPEEDS = (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30)
"""Divisors of a minute that give the whole seconds that the emulator needs."""

HEADROOM_S, HEADROOM_MIN_S = 1.0, 0.25
"""The unused part of the quota in seconds of its refill (1/60 of it), and the least when time is compressed."""


class SettingError(ValueError):
    """An invalid setting; the message names it and states the valid values."""


@dataclass(frozen=True)
class Settings:
    """The settings of the program.

    Attributes:
        max_tpm: Tokens per minute of the account.
        tpm_safety_factor: The share of ``max_tpm`` to use. 1: all of it except the limiter's headroom of one second's
            refill, which is as safe and uses 98 % in the long run.
        max_tokens_per_call: A request that is estimated above this is refused; ``None`` for no bound.
        retry_max_attempts: Attempts in total, the first included.
        retry_initial_wait_s: The first wait after a refusal that names none; it doubles.
    """

    max_tpm: int = 30_000
    tpm_safety_factor: float = 0.85
    max_tokens_per_call: int | None = None
    retry_max_attempts: int = 3
    retry_initial_wait_s: float = 2.0

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read ``MAX_TPM``, ``TPM_SAFETY_FACTOR``, ``MAX_TOKENS_PER_CALL``, ``RETRY_MAX_ATTEMPTS``, ``RETRY_INITIAL_WAIT``.

        Raises:
            SettingError: A value is invalid.
        """
        env = os.environ if environ is None else environ
        factor = _number(env, "TPM_SAFETY_FACTOR", "0.85", 0.01, 1.0)
        per_call = _number(env, "MAX_TOKENS_PER_CALL", "8000, or nothing for no bound", 1, 1e9, whole=True)
        tpm = _number(env, "MAX_TPM", "30000", 1, 1e12, whole=True)
        attempts = _number(env, "RETRY_MAX_ATTEMPTS", "3", 1, 100, whole=True)
        wait_s = _number(env, "RETRY_INITIAL_WAIT", "2.0", 0.0, 60.0)
        return cls(
            max_tpm=cls.max_tpm if tpm is None else int(tpm),
            tpm_safety_factor=cls.tpm_safety_factor if factor is None else factor,
            max_tokens_per_call=None if per_call is None else int(per_call),
            retry_max_attempts=cls.retry_max_attempts if attempts is None else int(attempts),
            retry_initial_wait_s=cls.retry_initial_wait_s if wait_s is None else wait_s,
        )

    def limiter(self, speed: int = 1, **options: Any) -> paceline.Limiter:
        """The one limiter of the program.

        Args:
            speed: The seconds of the plan in one real second; one of ``SPEEDS``.
            **options: As for :class:`paceline.Limiter`.
        """
        retry = paceline.RetryPolicy(
            max_attempts=self.retry_max_attempts,
            max_refused=self.retry_max_attempts,
            backoff_s=self.retry_initial_wait_s / speed,
            jitter=0.25,
        )
        return paceline.Limiter(
            {POOL: str(paceline.Quota("tokens", self.max_tpm, period_s=60 / speed))},
            usable=self.tpm_safety_factor,
            headroom_s=0.0 if self.tpm_safety_factor < 1 else max(HEADROOM_S / speed, HEADROOM_MIN_S),
            max_tokens_per_call=self.max_tokens_per_call,
            retry=retry,
            **options,
        )


def _number(
    env: Mapping[str, str], name: str, example: str, least: float, most: float, *, whole: bool = False
) -> float | None:
    text = env.get(name, "").strip()
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most or (whole and not number.is_integer()):
        kind = "a whole number" if whole else "a number"
        raise SettingError(f"{name} is {text!r}: it must be {kind} from {least:g} to {most:g}, e.g. {example}")
    return number
