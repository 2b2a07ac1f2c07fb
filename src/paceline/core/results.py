"""How a request can end: decisions as types, and the exceptions whose type says who is to blame.

Decisions travel inside paceline as values. Exceptions are for callers. Nothing is said by a ``bool``,
a ``-1`` or a ``None``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any

Cost = dict[str, float]
"""Amount per unit that one request spends, e.g. ``{"requests": 1, "tokens": 1_500}``."""


QUEUE, STORE = "queue", "store"
"""What binds where no quota does, and no cool-down: those ahead, or a store's answer."""


class PacelineError(Exception):
    """The root of everything that paceline raises on purpose."""


class PacelineWarning(UserWarning):
    """Something works, but not as well as it could; the message says what to do."""


class QuotaError(PacelineError, ValueError):
    """A quota, a cost or a configuration that cannot be meant. The message says what would be right."""


class NeverFitsError(PacelineError):
    """The request costs more than its quota can ever hold: waiting cannot help."""

    def __init__(self, pool: str, unit: str, cost: float, most: float) -> None:
        super().__init__(f"{pool}: the request costs {cost:,.0f} {unit}, and the quota holds {most:,.0f} at most")
        self.pool, self.unit, self.cost, self.most = pool, unit, cost, most


class AcquireTimeoutError(PacelineError, TimeoutError):
    """The deadline passed, or could not be met from the start."""

    def __init__(self, pool: str, waited_s: float, retry_after_s: float, quota: str) -> None:
        reasons = {QUEUE: "others were ahead of it", STORE: "the store had not let it go"}
        when = f"in about {retry_after_s:.1f} s" if retry_after_s < inf else "when another is done"
        reason = reasons.get(quota, f"{quota} would allow it {when}")
        super().__init__(f"{pool}: no permit within the timeout (waited {waited_s:.1f} s; {reason})")
        self.pool, self.waited_s, self.retry_after_s, self.quota = pool, waited_s, retry_after_s, quota


class QueueFullError(PacelineError):
    """The pool's line has reached its bound."""

    def __init__(self, pool: str, length: int) -> None:
        super().__init__(
            f"{pool}: {length:,} requests wait already, which is the bound; send fewer at once or raise it"
        )
        self.pool, self.length = pool, length


class PoolStoppedError(PacelineError):
    """The provider said that money is gone (or the key is refused): nothing more is sent."""

    def __init__(self, pool: str, reason: str) -> None:
        super().__init__(f"{pool}: stopped: {reason}")
        self.pool, self.reason = pool, reason


class GaveUpError(PacelineError):
    """The provider refused, and no attempt is left, or none can help.

    Attributes:
        pool: The pool.
        attempts: How many were made.
        refusal: What the last one was told.
        retry_after_s: How long the provider asked to wait then, in seconds; ``None`` if it did not say.
    """

    def __init__(self, pool: str, attempts: int, refusal: Refusal, reason: str) -> None:
        said = f": {refusal.message}" if refusal.message else ""
        super().__init__(f"{pool}: refused ({refusal.kind.value}), {reason}{said}")
        self.pool, self.attempts, self.refusal = pool, attempts, refusal
        self.retry_after_s = refusal.retry_after_s


class StoreError(PacelineError):
    """The shared store cannot be used. The message names it, says what happened, and what would be right."""


class Reservation:
    """Every quota has been charged: send now. Opaque outside the ledger, but for ``cost``.

    Attributes:
        cost: The reserved cost per unit.
        amounts: The same, one number for each meter.
        marks: Where each meter stood, for a guarded refund.
        notes: What :mod:`~paceline.core.learning` wants to remember.
        granted_ns: When it was granted.
        expires_ns: When it counts as lost if nobody has settled it.
        open: Whether it has been neither settled nor cancelled, nor refused.
    """

    __slots__ = ("amounts", "cost", "expires_ns", "granted_ns", "marks", "notes", "open")

    def __init__(
        self,
        cost: Cost,
        amounts: list[float],
        marks: Sequence[int],
        granted_ns: int,
        expires_ns: int,
    ) -> None:
        self.cost = cost
        self.amounts = amounts
        self.marks = marks
        self.granted_ns = granted_ns
        self.expires_ns = expires_ns
        self.notes: Sequence[Any] = ()  # of whoever watches the meters
        self.open = True


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Not before ``at_ns``; ``quota`` is what binds: one of the quotas, ``cool-down``, ``line`` or ``store``."""

    at_ns: int
    quota: str


@dataclass(frozen=True, slots=True)
class NeverFits:
    """Never: the cost of ``unit`` is above ``most``, the most that its quota can hold."""

    unit: str
    cost: float
    most: float

    def __bool__(self) -> bool:
        """No permit: ``if permit := limiter.try_acquire(...)`` reads as it should."""
        return False


@dataclass(frozen=True, slots=True)
class Expired:
    """The deadline came first, or could not be met; ``at_ns`` and ``quota`` say when it would have gone."""

    at_ns: int
    quota: str


@dataclass(frozen=True, slots=True)
class QueueFull:
    """The line has reached its bound of ``length``."""

    length: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """The pool sends nothing more, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class StoreLost:
    """The books are in a store that has never answered, for this reason."""

    reason: str


Decision = Reservation | WaitUntil | NeverFits
Outcome = Decision | Expired | QueueFull | Stopped | StoreLost


class RefusalKind(StrEnum):
    """Why a provider said no. Only ``RATE`` may lower a learned limit."""

    RATE = "rate"  # your own rate limit
    GROWTH = "growth"  # you grew too fast: slow_down, ramp_limit_exceeded
    CAPACITY = "capacity"  # their servers are full: 503, 529
    MONEY = "money"  # the balance or a spend cap: never retried
    NEVER_FITS = "never_fits"  # this request is too large for the limit: never retried


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a refusing answer said; every field but the kind may be missing.

    Attributes:
        kind: Why.
        message: The provider's own words, shortened; never a prompt.
        code: The provider's error code.
        retry_after_s: How long the provider asks to wait, in seconds.
        unit: The unit whose quota was exceeded.
        period_s: The period of that quota, in seconds.
        limit: That quota's amount, as the provider has it.
        used: How much of it the provider counts as used.
        requested: What the provider would have charged for this request.
        pool: The provider's own name of the pool, where it gives one.
    """

    kind: RefusalKind
    message: str = ""
    code: str = ""
    retry_after_s: float | None = None
    unit: str | None = None
    period_s: float | None = None
    limit: float | None = None
    used: float | None = None
    requested: float | None = None
    pool: str | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What an answer's headers say about one quota; every field but the unit may be missing.

    Attributes:
        unit: The unit that the provider counts.
        limit: The quota's amount.
        remaining: What is left of it; may be negative.
        reset_s: Seconds until the quota is *full* again.
        period_s: The quota's period, where the provider's dialect fixes it.
        resolution: ``remaining`` is rounded to multiples of this.
    """

    unit: str
    limit: float | None = None
    remaining: float | None = None
    reset_s: float | None = None
    period_s: float | None = None
    resolution: float = 1.0
