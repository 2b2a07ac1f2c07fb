"""Values without behaviour: costs, the origin of a limit, how a request can end, and what an answer says of limits.

Inside of paceline a request ends with an outcome, which is a value. Its caller sees a permit or an exception.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from types import FrameType, MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeVar

Cost = dict[str, float]
"""Amount per unit of one request, e.g. ``{"requests": 1, "tokens": 1_500}``."""

Kind = TypeVar("Kind", bound=type)

QUEUE, STORE, COOL_DOWN, STORE_LOST, NO_ANSWER = "queue", "store", "cool-down", "store lost", "no answer"
"""What binds when no quota does: the waiters ahead, an answer of the store, a pause, a lost store, or the answer to the
probe of a pool whose requests in flight are not answered."""


class Words(NamedTuple):
    """What people read of something that binds and is no quota.

    Attributes:
        awaited: What a request waits for, in its line of the log.
        late: Why it has no permit within its timeout; ``{:.1f}`` stands for the seconds until it would have one.
        paused: If a pool pauses for it: why, after "cool-down 7 s" or "paused for 7 s".
    """

    awaited: str
    late: str
    paused: str = ""


NOT_QUOTAS: Final = MappingProxyType(
    {
        QUEUE: Words("the queue", "other requests were ahead"),
        STORE: Words("the store", "the store had not answered"),
        STORE_LOST: Words("the store", "the store is lost"),
        NO_ANSWER: Words("an answer", "the requests in flight had no answer", "because no answer comes"),
        COOL_DOWN: Words("the cool-down", "the pool pauses for about {:.1f} s", "after a refusal or failures"),
    }
)
"""All that binds and is no quota: each needs its row, because any other text is read as the notation of a quota."""


class SourceKind(StrEnum):
    """How well a limit is known."""

    GIVEN = "given"
    """The user set it."""
    PUBLISHED = "published"
    """The provider publishes it, for this model and for a tier that the user named or that is the only one."""
    ASSUMED = "assumed"
    """The tier was not named, or no row is about this model: the account may have more, or less."""
    LEARNED = "learned"
    """An answer stated it, or it follows from answers."""


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a limit.

    Attributes:
        kind: How well it is known.
        detail: The table's source with its date; empty for a limit that no table states.
        tier: The tier that the table's row is about; empty for none.
    """

    kind: SourceKind
    detail: str = ""
    tier: str = ""

    def __str__(self) -> str:
        about = ", ".join(filter(None, (self.detail, self.tier)))
        return f"{self.kind}: {about}" if about else str(self.kind)


GIVEN = Source(SourceKind.GIVEN)
LEARNED = Source(SourceKind.LEARNED)


def public(kind: Kind) -> Kind:
    """Let a class be shown, and pickled, as a name of ``paceline``, where users find it.

    The texts of its annotations are about the module in which it is written, which ``__home__`` names.
    """
    kind.__home__, kind.__module__ = kind.__module__, "paceline"  # type: ignore[attr-defined]
    return kind


@public
class PacelineError(Exception):
    """The base of all exceptions of paceline."""

    def __reduce__(self) -> tuple[Any, ...]:
        # By default a copy calls the class with the message, where most classes take other arguments: a process pool
        # breaks when an error that it returns cannot be read.
        return _copy_of, (type(self), self.args), self.__dict__


def _copy_of(kind: type[PacelineError], args: tuple[Any, ...]) -> PacelineError:
    error = kind.__new__(kind)
    error.args = args
    return error


@public
class PacelineWarning(UserWarning):
    """A use of paceline that works, but not as well as it could; the message says what to do."""


_BETWEEN = ("paceline", "asyncio", "contextlib")
"""Packages whose calls lie between a warning and the line of the user's."""


def warn(message: str) -> None:
    """Warn at the line of the user's that called this package, at any depth."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  (inspect is slow to import)
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, PacelineWarning, stacklevel=level)


@public
class SettingsError(PacelineError, ValueError):
    """A setting, a file or an argument is invalid, or a package that it needs is missing.

    The message says where, why and what to do.
    """


@contextmanager
def explaining(
    what: str,
    then: str = "",
    *,
    kind: Callable[[str], Exception] = SettingsError,
    of: type[Exception] | tuple[type[Exception], ...] = OSError,
) -> Iterator[None]:
    """Raise an error in the block as one of ``kind``: what failed, the words of the error, and what to do then.

    Args:
        what: What failed.
        then: What to do.
        kind: Makes the error that is raised.
        of: The errors to explain. Default: errors of the system.
    """
    try:
        yield
    except of as error:
        # Not the whole text of an OSError: it repeats the path, which `what` names.
        raise kind(f"{what}: {getattr(error, 'strerror', None) or error}{then}") from None


@public
class QuotaError(SettingsError):
    """A quota, a cost, a pool or another argument of a limiter is invalid; the message says what is valid."""


@public
class NeverFitsError(PacelineError):
    """The cost of the request is above the amount of a quota that you gave: no wait is long enough."""

    def __init__(self, pool: str, unit: str, cost: float, most: float, quota: str = "") -> None:
        holds = f"the quota holds {most:,.0f} at most{f' ({quota})' if quota else ''}"
        super().__init__(f"{pool}: the request costs {cost:,.0f} {unit}, and {holds}: send less, or raise the limit")
        self.pool, self.unit, self.cost, self.most = pool, unit, cost, most


@public
class TooLargeError(NeverFitsError):
    """The request is estimated above ``max_tokens_per_call``; it was not sent."""

    def __init__(self, pool: str, cost: float, most: float) -> None:
        super().__init__(pool, "tokens", cost, most)
        asked = f"{pool}: the request is estimated at {cost:,.0f} tokens, and one call may have {most:,.0f}"
        # In place of the message of a quota, which NeverFitsError has made.
        self.args = (f"{asked}: send less, or raise max_tokens_per_call",)


@public
class AcquireTimeoutError(PacelineError, TimeoutError):
    """The deadline has passed, or cannot be met.

    Attributes:
        waited_s: How long the request waited, in seconds.
        retry_after_s: Seconds until it would be allowed; infinite if that is unknown.
        quota: What binds, as in :class:`WaitUntil`.
    """

    def __init__(self, pool: str, waited_s: float, retry_after_s: float, quota: str) -> None:
        when = f"in about {retry_after_s:.1f} s" if retry_after_s < inf else "when a request in flight ends"
        words = NOT_QUOTAS.get(quota)
        reason = f"{quota} would allow it {when}" if words is None else words.late.format(retry_after_s)
        super().__init__(f"{pool}: no permit within the timeout (waited {waited_s:.1f} s; {reason})")
        self.pool, self.waited_s, self.retry_after_s, self.quota = pool, waited_s, retry_after_s, quota


@public
class QueueFullError(PacelineError):
    """The queue of the pool is full.

    Attributes:
        retry_after_s: Seconds until paceline has sent the requests that wait now; infinite if that is unknown.
    """

    def __init__(self, pool: str, length: int, retry_after_s: float = inf) -> None:
        super().__init__(
            f"{pool}: {length:,} requests wait already, and the queue is full; send fewer at once, or raise waiting_max"
        )
        self.pool, self.length, self.retry_after_s = pool, length, retry_after_s


@public
class BudgetError(PacelineError):
    """A budget in US dollars is spent; the request was not sent.

    Attributes:
        retry_after_s: Seconds until the budget allows it; ``None``: never.
    """

    def __init__(self, pool: str, message: str, retry_after_s: float | None) -> None:
        hours = "" if retry_after_s is None or retry_after_s < 7_200 else f" ({retry_after_s / 3_600:.1f} hours)"
        when = "" if retry_after_s is None else f"; it is allowed in {retry_after_s:,.0f} s{hours}"
        super().__init__(f"{pool}: {message}{when}")
        self.pool, self.retry_after_s = pool, retry_after_s


@public
class PoolStoppedError(PacelineError):
    """The pool was stopped.

    The account has no money left, or the provider asked to wait longer than the retry policy allows.

    Attributes:
        told: The message for a client that has no limiter to call.
        retry_after_s: Seconds until the end that the provider states. If it states none: until paceline tests the
            provider.
    """

    def __init__(self, pool: str, reason: str, retry_after_s: float, tried_s: float | None = None) -> None:
        tried_s = retry_after_s if tried_s is None else tried_s
        told = f"{pool}: stopped: {reason} (one request is tried in {tried_s:,.0f} s, and then every 10 to 60 minutes"
        super().__init__(f"{told}; limiter.resume({pool!r}) ends the stop)")
        self.told = f"{told})"
        self.pool, self.reason, self.retry_after_s = pool, reason, retry_after_s


@public
class GaveUpError(PacelineError):
    """The provider refused, and no attempt is left, or another one cannot succeed.

    Attributes:
        pool: The pool.
        attempts: The number of attempts.
        refusal: The refusal of the last attempt.
        retry_after_s: The wait that it asked for, in seconds; ``None`` if it named none.
    """

    def __init__(self, pool: str, attempts: int, refusal: Refusal, reason: str) -> None:
        message = f": {refusal.message}" if refusal.message else ""
        super().__init__(f"{pool}: refused ({refusal.kind.value}), {reason}{message}")
        self.pool, self.attempts, self.refusal = pool, attempts, refusal
        self.retry_after_s = refusal.retry_after_s


@public
class UnfinishedError(PacelineError):
    """The model has not finished its answer; the message says why.

    Attributes:
        state: ``cut_off``, ``declined``, ``blocked``, ``empty`` or ``paused``.
        text: The text so far.
    """

    def __init__(self, state: str, problem: str, text: str = "") -> None:
        super().__init__(f"{state}: {problem}")
        self.state, self.text = state, text


@public
class StoreError(PacelineError):
    """The store cannot be used; the message names it, the cause and the remedy."""


class StoreFormatError(StoreError):
    """A newer version of this library has written the store.

    What it holds cannot be read, and no share of it is left.
    """


NO_NOTES: Final[Mapping[int, Any]] = MappingProxyType({})
"""Of an attempt whose answer is compared with nothing, or has shown nothing."""


class Reservation:
    """What one attempt has charged to every quota of its pool: the attempt may be sent.

    Attributes:
        cost: The reserved cost per unit.
        amounts: What was charged, one number per entry: less than ``cost`` where the request is larger than a quota.
            Quotas are only ever appended to a ledger, so an older reservation has amounts for the first of them.
        marks: What :meth:`Meter.charge <paceline.core.meters.Meter.charge>` returned, per entry. Where a store has
            charged the quotas there are none, or only marks of measured limits.
        notes: The :class:`Note <paceline.core.learning.tracker.Note>` of each quota that has a tracker, by its index:
            ``Learning`` compares the answer with it.
        shown: What was left of each quota by the headers of its answer, by its index.
        known: The true amounts that the beginning of its answer has shown.
        granted_ns: The instant of the grant; of the last one, where the request passes several pools. Learning takes it
            for the instant of sending.
        lost_at_ns: When it is closed as lost, if it is still open.
        open: Whether it is neither settled, cancelled, refused nor lost.
        begun: Whether its answer has begun, as the caller has noted; a stream can go on for minutes.
        arrived: Whether exact quotas count it from the beginning of its answer.
        alone: Whether no other request of its pool waited or was in flight when it was refused.
        oversized: Whether its request is larger than a quota.
        number: How many attempts were granted until then, with this one; 0 where nothing is learned.
        passed: What it holds at other pools, which end with it.
    """

    __slots__ = (
        "alone", "amounts", "arrived", "begun", "cost", "granted_ns", "known", "lost_at_ns", "marks", "notes", "number",
        "open", "oversized", "passed", "shown",
    )  # fmt: skip

    def __init__(self, cost: Cost, amounts: list[float], marks: list[int], granted_ns: int, lost_at_ns: int) -> None:
        self.cost = cost
        self.amounts = amounts
        self.marks = marks
        self.granted_ns = granted_ns
        self.lost_at_ns = lost_at_ns
        self.notes: Mapping[int, Any] = NO_NOTES
        self.shown: Mapping[int, float] = NO_NOTES
        self.passed: tuple[Any, ...] = ()
        self.known: Cost | None = None
        self.open = True
        self.begun = self.arrived = self.alone = self.oversized = False
        self.number = 0

    @property
    def cost_now(self) -> Cost:
        """The reserved cost per unit, with what is known already."""
        return self.cost | self.known if self.known else self.cost


class WaitUntil(NamedTuple):
    """Not before ``at_ns``.

    Attributes:
        at_ns: The instant.
        quota: What binds: a quota in its notation, or a name in :data:`NOT_QUOTAS`.
    """

    at_ns: int
    quota: str


@public
@dataclass(frozen=True, slots=True)
class NeverFits:
    """The cost of ``unit`` is above ``most``, the largest amount that ``quota`` can hold."""

    unit: str
    cost: float
    most: float
    quota: str = field(default="", compare=False)

    def __bool__(self) -> Literal[False]:
        """False, so that ``if permit := limiter.try_acquire(...)`` holds for permits only."""
        return False


@dataclass(frozen=True, slots=True)
class Expired:
    """The deadline has passed, or cannot be met: ``quota`` would have allowed the request at ``at_ns``."""

    at_ns: int
    quota: str


@dataclass(frozen=True, slots=True)
class QueueFull:
    """The queue has reached its bound of ``length`` waiters, which need at least until ``at_ns``."""

    length: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """The pool was stopped for ``reason``: it sends only probes, at ``probe_ns`` and later every 10 to 60 minutes.

    ``ends_ns``: the end that the provider has stated; 0 for none.
    """

    reason: str
    probe_ns: int
    ends_ns: int = 0


@dataclass(frozen=True, slots=True)
class StoreLost:
    """The quotas are kept by a store that has never answered, for ``reason``."""

    reason: str


Decision = Reservation | WaitUntil | NeverFits
"""What a capacity says of a request."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """Another pool has taken the place of this one: the request waits there."""


Outcome = Decision | Expired | QueueFull | Stopped | StoreLost | Replaced
"""What a pool says of it."""


LIMIT_MIN, LIMIT_MAX = 1e-3, 1e12
# A quota of a month asks to wait for 31 days at most.
WAIT_MAX_S = 32 * 86_400.0
"""The range of limits and waits of providers; a number outside of it counts as missing."""


def within(value: float | None, least: float, most: float) -> float | None:
    """``value`` if it is within the range, else ``None``, as for NaN."""
    return value if value is not None and least <= value <= most else None


@public
class RefusalKind(StrEnum):
    """Why a provider refused a request.

    Attributes:
        about_rate: Whether the reason is the rate of the requests, or its growth: the pool learns from such refusals.
    """

    about_rate: bool

    RATE = "rate"  # a rate limit of the account
    GROWTH = "growth"  # the traffic grew too fast: slow_down, ramp_limit_exceeded
    CAPACITY = "capacity"  # the provider's servers are full: 503, 529
    MONEY = "money"  # no balance, or a spend limit: never retried
    NEVER_FITS = "never_fits"  # the request is larger than the limit: never retried

    def __init__(self, value: str) -> None:
        self.about_rate = value in ("rate", "growth")


@public
class RefusalScope(StrEnum):
    """The requests that a refusal concerns: as few as the answer allows."""

    REQUEST = "request"  # this one alone: its size, or a max_tokens that the balance cannot cover
    MODE = "mode"  # those in one mode of the model: fast mode, long context, a priority tier, the provider's batches
    POOL = "pool"  # every request of the pool


@public
@dataclass(frozen=True, slots=True)
class Refusal:
    """The content of a refusing answer; every field but the kind may be missing.

    Attributes:
        kind: The reason.
        scope: The requests that it concerns. With ``request`` and ``mode``, the pool doesn't pause or stop, and
            learns nothing.
        message: The provider's message, shortened; never part of a prompt.
        code: The provider's error code.
        retry_after_s: The wait that the provider asks for, in seconds: the longest one, if it states several.
        sooner_s: The shortest of several.
        chance: The probability that it is about its scope, and not about the request alone, by the request's earlier
            refusals.
        retracts: How many earlier refusals of the request were taken for refusals of the pool, and were about the
            request.
        limits: The quotas that it states, if it names several and doesn't say which one is used up.
        window: The window of the account's plan that it concerns, by its headers or its words.
        of_account: Whether that window applies to all models of the account.
        unit: The unit whose quota was exceeded.
        period_s: The period of that quota, in seconds.
        limit: The amount of that quota.
        used: The amount that the provider counts as used.
        requested: The amount that the provider would have charged for this request.
        pool: The provider's name of the pool.
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
    scope: RefusalScope = RefusalScope.POOL
    sooner_s: float | None = None
    chance: float = 1.0
    retracts: int = 0
    limits: tuple[Reading, ...] = ()
    window: str | None = None
    of_account: bool = False


class Basis(StrEnum):
    """How a fact is known, the surest kind first."""

    STATED = "stated"
    """The answer states it, or the provider documents it for every entry."""
    PROVED = "proved"
    """It follows from the numbers of the answer, and holds only if the quota is a bucket."""
    ASSUMED = "assumed"
    """Neither. It adds no quota."""


@public
@dataclass(frozen=True, slots=True)
class Reading:
    """The headers of an answer about one quota; every field but the unit may be missing.

    Attributes:
        unit: The unit that the quota counts.
        limit: The amount of the quota.
        remaining: What is left of it; may be negative.
        reset_s: Seconds until the quota is full again, or until its counter restarts. paceline learns which.
        period_s: The period in seconds, if it is known.
        resolution: ``remaining`` is rounded to a multiple of this.
        reset_resolution_s: ``reset_s`` is rounded to a multiple of this.
        basis: How ``period_s`` is known.
        reset_number: A reset whose subject or unit is unknown; ``reset_s`` is missing then.
        until_s: Seconds until the instant that the header states, by the clock of this machine; negative when it has
            passed. It is true whenever the answer was written.
    """

    unit: str
    limit: float | None = None
    remaining: float | None = None
    reset_s: float | None = None
    period_s: float | None = None
    resolution: float = 1.0
    reset_resolution_s: float = 0.0
    basis: Basis = field(default=Basis.STATED, compare=False)
    reset_number: float | None = field(default=None, compare=False)
    until_s: float | None = field(default=None, compare=False)
