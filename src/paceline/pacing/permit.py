"""The right to make one attempt, and the way to get it: with ``with``, ``async with`` or ``await``."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Collection, Coroutine, Generator
from contextvars import ContextVar, Token
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import TracebackType
from typing import Any, Self, cast

from paceline.core.queue import Waiter
from paceline.core.quota import CONCURRENCY, KNOWN_UNITS, NS, REQUESTS, Cost
from paceline.core.results import (
    AcquireTimeoutError,
    Expired,
    NeverFits,
    NeverFitsError,
    Outcome,
    PacelineError,
    PacelineWarning,
    PoolStoppedError,
    QueueFull,
    QueueFullError,
    QuotaError,
    Refusal,
    RefusalKind,
    Reservation,
    Stopped,
    StoreError,
    StoreLost,
)
from paceline.pacing.scheduler import Scheduler, Waiting, wait_until_s


@dataclass(frozen=True, slots=True)
class Later:
    """Not now: ask again in ``retry_after_s`` seconds; ``quota`` is what binds.

    ``retry_after_s`` is infinite when nobody knows: a slot comes free when somebody else is done.
    """

    retry_after_s: float
    quota: str

    def __bool__(self) -> bool:
        """No permit: ``if permit := limiter.try_acquire(...)`` reads as it should."""
        return False


_current: ContextVar[Permit | None] = ContextVar("paceline_permit", default=None)


PAUSE_MAX_S = 32 * 86_400.0
"""No provider asks for more than to the end of the month."""

AMOUNT_MAX = 10**15
"""No request costs more of anything."""

_KNOWN = frozenset(KNOWN_UNITS)
_REPORTED = _KNOWN - {REQUESTS, CONCURRENCY}
"""Units of which an answer says how much was used: who reserves them should settle."""

_OPEN, _UNSENT = object(), object()
"""What was used by a permit that is not closed, and by one that was cancelled."""

_closing = threading.RLock()  # a finalizer may close another permit while this thread closes one

_PLAIN = (int, float)  # anything else becomes a float, if it can


class Permit:
    """The right to make one attempt. It carries its reserved cost, and is settled or cancelled once.

    A permit that is neither is charged in full. Used with ``with`` (or ``async with``), it is closed at the end
    of the block: as reserved, with a warning when nobody said what was really used.
    """

    __slots__ = ("_followed", "_scheduler", "_spent", "_used", "_waiter", "reservation")

    def __init__(self, scheduler: Scheduler, waiter: Waiter, reservation: Reservation) -> None:
        self._scheduler = scheduler
        self._waiter = waiter
        self.reservation = reservation
        self._spent = self._followed = False
        self._used: object = _OPEN
        if scheduler.events is not None:
            self._tell("acquired")

    def settle(self, usage: object = None, /, **units: float) -> None:
        """Report what was really used; more becomes debt, less a refund. Only the first call counts.

        Args:
            usage: An SDK's answer, its usage object, or either as a mapping.
            **units: Amounts per unit instead, e.g. ``input_tokens=812, output_tokens=64``. What is left out stays as reserved.

        Raises:
            QuotaError: ``usage`` names no usage that any provider reports, or an amount is below 0.
        """
        actual: Cost | None = units or None
        if usage is not None:
            from paceline.providers.answers import usage_cost

            actual = usage_cost(self.pool, usage) | units
        if actual is not None:
            for amount in actual.values():
                if type(amount) not in _PLAIN or not 0 <= amount <= AMOUNT_MAX:
                    check_cost(actual)
        scheduler, reservation = self._scheduler, self.reservation
        if scheduler.events is not None:
            self._settle(actual, self._waiter)
        elif reservation.open:
            self._used = actual
            scheduler.settle(reservation, actual, self._waiter)

    def _settle(self, actual: Cost | None, waiter: Waiter | None) -> None:
        if self._closes(actual):
            self._scheduler.settle(self.reservation, actual, waiter)
            if self._scheduler.events is not None:
                self._tell("settled", self.charged)

    def _closes(self, used: object) -> bool:
        """Whether nobody has closed it before; from now on it is closed."""
        with _closing:
            first = self.reservation.open and self._used is _OPEN
            if first:
                self._used = used
        return first

    def _tell(self, kind: str, used: Cost | None = None, *refusal: object) -> None:
        self._scheduler.tell(
            kind,
            self.pool,
            self._waiter.lane.name,
            self.waited_s,
            self._scheduler.pool.ledger.charged(self.cost, None),
            used and dict(used),
            *refusal,
        )

    def cancel(self) -> None:
        """The request was never sent: give back what was reserved."""
        if self._closes(_UNSENT):
            self._scheduler.cancel(self.reservation)
            if self._scheduler.events is not None:
                self._tell("cancelled")

    def refused(self, refusal: object = None, *, retry_after_s: float | None = None) -> None:
        """The provider said no (a 429): the charge stays, and the whole pool pauses for as long as was asked.

        Go on with ``limiter.acquire(..., again=permit)``, which goes to the front of its lane.

        Args:
            refusal: What was said: a :class:`~paceline.Refusal`, or an SDK's exception as for
                :func:`~paceline.refusal_of`, read in the dialect of the pool's provider. A 429 of paceline's own says
                nothing new, and changes nothing.
            retry_after_s: How long to pause, in seconds, where you know better.

        Raises:
            TypeError: ``refusal`` is neither, and carries no HTTP answer.
            QuotaError: The answer is no refusal (a 400, a 500), or asks for more than 32 days.
        """
        if refusal is None:
            refusal = Refusal(RefusalKind.RATE)
        elif not isinstance(refusal, Refusal):
            from paceline.providers.answers import refusal_said

            said = refusal_said(refusal, self.pool)
            if said is None:
                return
            refusal = said
        if refusal.retry_after_s is None:
            refusal = replace(refusal, retry_after_s=retry_after_s)
        pause_s = retry_after_s or refusal.retry_after_s or 0.0
        if not 0 <= pause_s <= PAUSE_MAX_S:
            raise QuotaError(f"retry_after_s is {pause_s!r}: it must be 0 s or more, and no more than 32 days")
        self.refuse(refusal, pause_s)

    def refuse(self, refusal: Refusal, pause_s: float) -> None:
        """As :meth:`refused`, with the pause that somebody has decided on."""
        counts = self._closes(None)
        self._scheduler.refuse(self.reservation, refusal, pause_s)
        if counts and self._scheduler.events is not None:
            self._tell("refused", None, refusal.kind.value, refusal.retry_after_s)

    def waiter_again(self, scheduler: Scheduler, cost: Cost, name: str | None = None) -> Waiter:
        """A waiter for another attempt of the same request: in the same pool it returns to the front of its lane.

        Raises:
            QuotaError: This permit has been followed by another attempt already.
        """
        if self._followed:
            raise QuotaError(
                f"{self.pool}: this permit was followed by another attempt already; pass that one's permit"
            )
        self._followed = True
        waiter = Waiter(cost, self._waiter.lane, self._waiter.deadline_ns, name or self._waiter.name)
        if scheduler is self._scheduler:
            waiter.number, waiter.returned = self._waiter.number, True
        return waiter

    @property
    def open(self) -> bool:
        """Whether it has been neither settled nor cancelled."""
        return self.reservation.open

    @property
    def pool(self) -> str:
        """The name of the pool that was charged."""
        return self._scheduler.pool.name

    @property
    def cost(self) -> Cost:
        """What was reserved, per unit."""
        return self.reservation.cost

    @property
    def charged(self) -> Cost:
        """What it was charged in the end, per unit of the cost and of the pool's quotas; while it is open, what was reserved."""
        used, ledger = self._used, self._scheduler.pool.ledger
        if used is _UNSENT:
            return dict.fromkeys(ledger.charged(self.cost, None), 0.0)
        return ledger.charged(self.cost, None if used is _OPEN else cast("Cost | None", used))

    @property
    def waited_s(self) -> float:
        """How long the request waited in line, in seconds."""
        return (self.reservation.granted_ns - self._waiter.arrived_ns) / NS

    def take(self) -> bool:
        """Use it for one attempt below; whether it was still unused."""
        unused = self.reservation.open and not self._spent
        self._spent = True
        return unused

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close(forgotten=kind is None, stacklevel=3)

    def close(self, *, forgotten: bool = False, stacklevel: int = 2) -> None:
        """Close it as reserved, if it is still open; with a warning when it was ``forgotten``."""
        if not self.reservation.open:
            return
        self._settle(None, None)
        if forgotten and not _REPORTED.isdisjoint(self.reservation.cost):
            warnings.warn(
                f"{self.pool}: a permit was not settled, so its whole reserved cost stays charged; call "
                "permit.settle(response), or permit.settle() when the reserved cost is the true one",
                PacelineWarning,
                stacklevel=stacklevel,
            )

    def __repr__(self) -> str:
        state = "open" if self.open else "closed"
        return f"<Permit {self.pool} {state} {self.cost} after {self.waited_s:.3f} s>"


def current_permit(pool: str) -> Permit | None:
    """The permit of ``pool`` that a surrounding block holds and nobody has used yet."""
    permit = _current.get()
    return permit if permit is not None and permit.pool == pool and permit.take() else None


def hand_down(permit: Permit) -> None:
    """Let the next paced request in this context use ``permit``, where no block can be put around it."""
    _current.set(permit)


_ONE = "one acquire(), one permit: call limiter.acquire() again for another"


class Acquisition:
    """A permit to be: ``async with``, ``with`` and ``await`` each get it; the ``with`` forms also close it.

    Inside the block the permit travels down to paced HTTP clients, so that nothing is charged twice.
    """

    __slots__ = ("_permit", "_reset", "_scheduler", "_used", "_waiter")

    def __init__(self, scheduler: Scheduler, waiter: Waiter) -> None:
        self._scheduler = scheduler
        self._waiter = waiter
        self._permit: Permit | None = None
        self._reset: Token[Permit | None] | None = None
        self._used = False

    def wait(self) -> Permit:
        """Block this thread until the permit is there.

        Raises:
            AcquireTimeoutError: The timeout passed, or could not be met from the start.
            NeverFitsError: The cost is above what a quota can ever hold.
            QueueFullError: Too many wait already.
            PoolStoppedError: The provider said that money is gone.
        """
        if self._used:
            raise RuntimeError(_ONE)
        self._used = True
        outcome = self._scheduler.wait(self._waiter)
        if isinstance(outcome, Reservation):
            return Permit(self._scheduler, self._waiter, outcome)
        raise as_error(self._scheduler, self._waiter, outcome)

    def why(self) -> Waiting | None:
        """Why it still waits: place in line, the quota that binds, the expected wait. ``None`` when it does not."""
        return self._scheduler.why(self._waiter)

    def __await__(self) -> Generator[Any, None, Permit]:
        return self._wait_async().__await__()

    async def _wait_async(self, *, enter: bool = False) -> Permit:
        if self._used:
            raise RuntimeError(_ONE)
        self._used = True
        outcome = await self._scheduler.wait_async(self._waiter)
        if isinstance(outcome, Reservation):
            permit = Permit(self._scheduler, self._waiter, outcome)
            return self._enter(permit) if enter else permit
        raise as_error(self._scheduler, self._waiter, outcome)

    def __enter__(self) -> Permit:
        return self._enter(self.wait())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._exit(kind)

    def __aenter__(self) -> Coroutine[Any, Any, Permit]:
        return self._wait_async(enter=True)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._exit(kind)

    def _enter(self, permit: Permit) -> Permit:
        self._permit = permit
        self._reset = _current.set(permit)
        return permit

    def _exit(self, kind: type[BaseException] | None) -> None:
        permit, reset = self._permit, self._reset
        assert permit is not None
        assert reset is not None
        try:
            _current.reset(reset)
        except ValueError:  # closed in another context than it was entered in: there it is not current
            pass
        finally:
            if permit.reservation.open:
                permit.close(forgotten=kind is None, stacklevel=4)


def as_error(scheduler: Scheduler, waiter: Waiter, outcome: Outcome) -> PacelineError:
    """The exception for an outcome that is no permit."""
    name, now_ns = scheduler.pool.name, scheduler.now_ns()
    match outcome:
        case NeverFits(unit, cost, most):
            return NeverFitsError(name, unit, cost, most)
        case QueueFull(length):
            return QueueFullError(name, length)
        case Stopped(reason):
            return PoolStoppedError(name, reason)
        case StoreLost(reason):
            return StoreError(f"{name}: {reason}")
        case Expired(at_ns, quota):
            return AcquireTimeoutError(name, (now_ns - waiter.arrived_ns) / NS, wait_until_s(at_ns, now_ns), quota)
        case _:
            raise AssertionError(outcome)


def check_cost(cost: Cost, units: Collection[str] = ()) -> None:
    """Refuse a cost that nobody can mean, and one in a unit that nobody counts.

    Raises:
        QuotaError: An amount is not a number from 0 to 1e15, or (where ``units`` are given) a unit is unknown.
    """
    for unit, amount in cost.items():
        if type(amount) not in _PLAIN or not 0 <= amount <= AMOUNT_MAX:  # NaN is neither
            cost[unit] = _number(unit, amount)
        if unit not in _KNOWN and units and unit not in units:
            names = ["timeout", "lane", "again", "name", *KNOWN_UNITS, *units]
            near = ["lane"] if unit in {"priority", "weight"} else get_close_matches(unit, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise QuotaError(f"nobody counts {unit!r} here: the quotas are on {', '.join(units)}{hint}")


def _number(unit: str, amount: object) -> float:
    """A Decimal or a number of numpy's as a float; nothing else that is not plain."""
    try:
        number = float(amount)  # type: ignore[arg-type]
        if 0 <= number <= AMOUNT_MAX:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise QuotaError(f"{unit} is {amount!r}: it must be a finite number, 0 or more")
