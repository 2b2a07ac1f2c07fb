"""Permits, and acquisitions that get them: with ``with``, ``async with`` or ``await``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar, Token
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from logging import DEBUG, WARNING
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast

from paceline.core import progress
from paceline.core.allowance import is_believed
from paceline.core.hints import did_you_mean
from paceline.core.queue import Waiter
from paceline.core.quota import CONCURRENCY, INPUT_TOKENS, KNOWN_UNITS, NS, OUTPUT_TOKENS, REQUESTS, TOKENS, Cost
from paceline.core.results import (
    AcquireTimeoutError,
    Expired,
    NeverFits,
    NeverFitsError,
    Outcome,
    PacelineError,
    PoolStoppedError,
    QueueFull,
    QueueFullError,
    QuotaError,
    Refusal,
    RefusalKind,
    RefusalScope,
    Replaced,
    Reservation,
    Stopped,
    StoreError,
    StoreLost,
    public,
    warn,
)
from paceline.pacing.events import Event
from paceline.pacing.faults import Fault, fault_of, is_timeout
from paceline.pacing.forks import reentrant_lock
from paceline.pacing.lines import LEVELS, log
from paceline.pacing.retry import Again, GiveUp, RetryPolicy
from paceline.pacing.scheduler import Scheduler
from paceline.pacing.status import Waiting, wait_until_s

if TYPE_CHECKING:
    from paceline.providers.base import Usage


@public
@dataclass(frozen=True, slots=True)
class Later:
    """No permit now: ask again in ``retry_after_s`` seconds; ``quota`` is what binds.

    ``retry_after_s`` is infinite when that is unknown: a slot becomes free when another request ends.
    """

    retry_after_s: float
    quota: str

    def __bool__(self) -> Literal[False]:
        """False, so that ``if permit := limiter.try_acquire(...)`` holds for permits only."""
        return False


_current: ContextVar[Permit | None] = ContextVar("paceline_permit", default=None)


PAUSE_MAX_S = 32 * 86_400.0
"""The longest pause of a provider is to the end of a month."""

COST_MAX = 10**15
"""The largest amount of any unit in a cost: a float counts exactly up to nine times as many."""

OPTIONS = ("timeout", "lane", "again", "name", "conversation", "cached_tokens")
"""What :meth:`BaseLimiter.acquire` takes beside amounts per unit."""

_KNOWN = frozenset(KNOWN_UNITS)
SIDES = frozenset((INPUT_TOKENS, OUTPUT_TOKENS))
_OTHER_SIDE = {INPUT_TOKENS: OUTPUT_TOKENS, OUTPUT_TOKENS: INPUT_TOKENS}
_ALIASES = {
    "prompt_tokens": INPUT_TOKENS, "completion_tokens": OUTPUT_TOKENS, "max_tokens": OUTPUT_TOKENS,
    "total_tokens": TOKENS,
}  # fmt: skip
"""Names of amounts in the APIs of providers, and their units."""
_REPORTED = _KNOWN - {REQUESTS, CONCURRENCY}
"""Units whose true amount an answer reports, so that a permit with them should be settled."""

_OPEN, _UNSENT = object(), object()
"""In place of the used cost: of an open permit, and of a cancelled one."""


class TokensApartError(QuotaError):
    """Tokens are given as a sum, and quotas count input and output apart."""


class Estimated(float):
    """An amount that is an estimate: the answer to its request, settled by hand, corrects later ones.

    Attributes:
        learn: Learns from the usage that the answer reports.
    """

    learn: Callable[[Any], None]

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        """A copy, also one in another process, is a plain number."""
        return float, (float(self),)


# One for all permits: it is held for two assignments, and a lock of its own would cost every permit.
_closing = reentrant_lock()  # reentrant: a finalizer may close another permit while this thread closes one

_PLAIN = (int, float)  # other numbers are converted to float


around_waits: list[Callable[[Acquisition], AbstractContextManager[object]]] = []
"""Entered around each wait for a permit, in the context of the caller: frameworks exclude waits from a deadline this
way."""

_ALONE = nullcontext()
"""Around a wait that nothing surrounds."""


@contextmanager
def _surroundings(acquisition: Acquisition) -> Iterator[None]:
    with ExitStack() as waits:
        for around in around_waits:
            waits.enter_context(around(acquisition))
        yield


_BACKOFF: Final = (progress.FIRST_S, progress.MOST_S)
"""The first and the longest pause after refusals that ask for none."""


@public
class Permit:
    """The right to make one attempt. Its cost is reserved until it is settled, cancelled or refused.

    A permit that stays open is charged in full. ``with permit:`` closes it at the end of the block, as reserved and
    with a warning, if it was not settled. So do ``with`` and ``async with limiter.acquire(...)``.

    Attributes:
        refusal: The refusal that was reported, or ``None``.
        reservation: What was charged.
        model: The model of a client's request, for the event.
        status: The HTTP status of its answer; 0 for none.
        usage: What its answer reports.
    """

    __slots__ = (
        "_backoff", "_followed", "_heard", "_scheduler", "_spent", "_used", "_waiter",
        "model", "refusal", "reservation", "status", "usage",
    )  # fmt: skip

    def __init__(self, scheduler: Scheduler, waiter: Waiter, reservation: Reservation) -> None:
        self._scheduler = scheduler
        self._waiter = waiter
        self.reservation = reservation
        self._spent = False  # whether a paced request has used it
        self._followed = False  # whether another attempt continues it
        self._heard = False  # whether a permit or a client inside of its block has met a refusal
        self._backoff = _BACKOFF
        self._used: object = _OPEN
        self.refusal: Refusal | None = None
        self.model: str | None = None
        self.status = 0
        self.usage: Usage | None = None
        if scheduler.events is not None or LEVELS.get(DEBUG) is not False:
            try:
                self._notify("acquired")
            except BaseException:  # SystemExit, KeyboardInterrupt: the caller gets no permit
                self._used = _UNSENT
                scheduler.cancel(reservation)
                raise

    def __bool__(self) -> Literal[True]:
        """True, unlike what :meth:`BaseLimiter.try_acquire` returns in its place."""
        return True

    def settle(self, usage: object = None, /, *, headers: object = None, **units: float) -> None:
        """Report the true cost: a higher one becomes debt, a lower one a refund. Only the first call counts.

        An answer is charged as the provider charges it, as for an attached client. If the provider charges the
        maximum output (OpenAI, Azure, unknown hosts), the reserved ``output_tokens`` stay charged, so reserve the
        request's maximum. Amounts per unit are charged as they are. The pool learns from the limits in the answer's
        headers.

        Args:
            usage: An SDK's answer, its usage object, or either as a mapping; an HTTP response whose body was read; or
                an object with ``tokens_used``, which is charged in ``tokens``. A count above 4 million tokens and
                above 64 times the reserved tokens is lowered to this bound, and logged. An answer without usage
                (pictures, speech) stays charged as reserved.
            headers: The headers of the answer, as for :func:`~paceline.limits_in`; by default the headers of ``usage``,
                if any.
            **units: Amounts per unit instead, e.g. ``input_tokens=812, output_tokens=64``. Units that you leave out
                stay as reserved. ``tokens`` with one of these two gives the other.

        Raises:
            QuotaError: ``usage`` is no answer and has no known usage fields, or is a response with an error; or an
                amount is not a number of 0 or more; or it is ``tokens`` alone, and quotas count input and output
                apart.
            TypeError: ``headers`` is neither a mapping nor pairs.

        Example:
            permit = await limiter.acquire("openai/gpt-6-luna", input_tokens=1_200, output_tokens=300)
            answer = await client.responses.create(model="gpt-6-luna", input=prompt)
            permit.settle(answer)  # or permit.settle(input_tokens=812, output_tokens=64)
        """
        cost: Cost = units
        if usage is not None or headers is not None:
            cost = self._read(usage, headers, units)
        check_cost(cost, self.reservation.cost, self._scheduler.pool.capacity.ledger.entries.units)
        # Input alone is a whole cost, as of an embedding. Nothing at all leaves the cost as reserved.
        lacks_one = INPUT_TOKENS not in cost or OUTPUT_TOKENS not in cost
        if lacks_one and (TOKENS in cost or OUTPUT_TOKENS in cost):
            self._complete(cost)
        actual = cost or None  # nothing was said: it stays as reserved
        scheduler, reservation = self._scheduler, self.reservation
        if scheduler.events is not None or LEVELS.get(DEBUG) is not False:
            self._settle(actual)
        elif reservation.open:  # the hot path, without the lock: the scheduler ignores a second call
            # WEAK: if two threads settle at once, ``charged`` may show the cost of the one that was ignored.
            self._used = actual
            if scheduler.by_hand.fails:
                scheduler.by_hand.answered()
            scheduler.settle(reservation, actual, self._waiter)

    def _complete(self, actual: Cost) -> None:
        """Add to ``actual``, which leaves out the input or the output, what its other units tell of it.

        Raises:
            TokensApartError: They do not tell what the quotas count.
        """
        scheduler, cost = self._scheduler, self.reservation.cost
        counted = scheduler.pool.capacity.ledger.entries.units
        # The usual case, apart for speed alone: without it the same comes out below.
        if TOKENS in actual and TOKENS in counted and SIDES.isdisjoint(actual):
            return
        units = scheduler.stated.union(counted)
        if TOKENS in actual:
            if TOKENS not in units or not SIDES.isdisjoint(actual):
                split_tokens(self.pool, actual, units, scheduler.stated)
        elif TOKENS in units and INPUT_TOKENS not in cost and cost.get(TOKENS):
            raise TokensApartError(
                f"{self.pool}: {cost[TOKENS]:,.15g} tokens were reserved without their input, so output_tokens alone"
                " give no total: pass input_tokens, too, or tokens"
            )

    def _read(self, usage: object, headers: object, units: Cost) -> Cost:
        """The true cost by ``usage`` and ``units``; the pool learns from the headers."""
        # Imported here, as everywhere in this file: a pool of the user's own reads no answers.
        from paceline.providers.answers import headers_in, usage_cost

        actual, seen = units, None
        if usage is not None:
            charged, seen = usage_cost(self.pool, usage, self.reservation.cost)
            actual = charged | units
            # Only while the permit is open: a second call must not teach the same answer twice.
            if seen is not None and self.reservation.open:
                if self._waiter.turn is not None:
                    self._waiter.turn.answered(seen, self.reservation.granted_ns)
                if not units:  # else the caller has said what was used
                    reports(self, charged, seen)
                if self._waiter.learn is not None:
                    self._waiter.learn(seen)
        self._learn(headers_in(usage) if headers is None else headers, usage=seen)
        return actual

    def _learn(self, headers: object, *, refusal: Refusal | None = None, usage: Usage | None = None) -> None:
        """Let the pool learn from the limits in the headers of the answer, and its account from a plan's windows."""
        from paceline.providers.answers import readings_in
        from paceline.providers.parse import headers_of

        texts, scheduler, reservation = headers_of(headers), self._scheduler, self.reservation
        if not (texts and reservation.open):
            return
        if readings := readings_in(self.pool, texts, scheduler.now_ns() / NS):
            scheduler.observe(readings, reservation)
        if (hear_plan := scheduler.by_hand.hear_plan) is not None:
            hear_plan(texts, refusal, usage, reservation.granted_ns / NS)

    def _settle(self, actual: Cost | None, *, answered: bool = True) -> None:
        if self._close_once(actual):
            if answered:
                self._scheduler.by_hand.answered()
            self._scheduler.settle(self.reservation, actual, self._waiter)
            if self._scheduler.events is not None or log.isEnabledFor(DEBUG):
                self._notify("settled", self.charged)

    def _close_once(self, used: object) -> bool:
        """Record ``used`` if the permit is still open; whether it was. Of several threads one closes it."""
        with _closing:
            first = self.reservation.open and self._used is _OPEN
            if first:
                self._used = used
        return first

    def _notify(self, kind: str, used: Cost | None = None, refusal: Refusal | None = None) -> None:
        scheduler, waiter = self._scheduler, self._waiter
        if scheduler.events is not None or log.isEnabledFor(WARNING if kind == "refused" else DEBUG):
            reported = None
            if used is not None and waiter.reported is not None:
                reported = {unit: waiter.reported.get(unit, amount) for unit, amount in used.items()}
            event = Event(
                kind,
                pool=scheduler.pool.name,
                lane=waiter.lane.name,
                waited_s=self.waited_s,
                reserved=scheduler.pool.capacity.ledger.true_cost(self.reservation.cost, None),
                used=used,
                reason=None if refusal is None else refusal.kind.value,
                retry_after_s=None if refusal is None else refusal.retry_after_s,
                name=waiter.name,
                granted_s=self.reservation.granted_ns / NS,
                usage=None if self.usage is None else asdict(self.usage),
                model=self.model,
                status=self.status,
                refusal=refusal,
                reported=reported,
                sized=waiter.sized,
            )
            scheduler.section.outside(partial(scheduler.tell, event))

    def cancel(self) -> None:
        """Refund the reserved cost: the request was never sent.

        Example:
            permit = await limiter.acquire("openai/gpt-6-luna", tokens=800)
            if not prompt:  # nothing to send
                permit.cancel()
            else:
                permit.settle(tokens=640)
        """
        if self._close_once(_UNSENT):
            self._scheduler.cancel(self.reservation)
            self._notify("cancelled")

    def failed(self, error: object = None) -> None:
        """Report that the request got no answer.

        After several failures in a row the pool pauses, as for attached clients (:class:`~paceline.BreakerPolicy`).

        In the pool of a provider's model, the block of the permit reports the error that leaves it. Call this for an
        error that you catch inside of the block, and in a pool of your own. A refusal that leaves the block is reported
        as by :meth:`refused`, in any pool, unless another permit or an attached client in the block has reported one.

        Args:
            error: A timeout, a broken connection or an answer with a status of 500 or more counts as a failure of the
                provider; ``None``, too. If there was no connection, paceline refunds the charge. A refusal is
                reported as by :meth:`refused`. Any other error settles the permit as reserved.

        Raises:
            TypeError: ``error`` is neither an exception nor an HTTP response.

        Example:
            permit = await limiter.acquire("openai/gpt-6-luna", tokens=800)
            try:
                permit.settle(await client.responses.create(model="gpt-6-luna", input=prompt))
            except openai.APIConnectionError as error:
                permit.failed(error)
        """
        if error is not None and self.open:
            from paceline.providers.answers import answer_of

            if not isinstance(error, BaseException) and answer_of(error) is None:
                raise TypeError(
                    f"{self.pool}: error is {error!r}: pass an exception or an HTTP response, or nothing:"
                    " permit.failed()"
                )
        self._failed(error, reported=True)

    def _failed(self, error: object, *, reported: bool) -> None:
        """Close the permit of a request without an answer.

        The caller has ``reported`` it, or ``error`` has left its block. A refusal, whose request others may follow at
        once, is learned from either way, unless another permit in the block has heard it; servers that are full are a
        fault.
        """
        # A refusal that a permit or a client in the block has met is about its pool, and not about this one.
        if self.open and (reported or not self._heard) and self._is_refusal(error):
            self.refused(error)
            return
        fault, answered = _outcome_of(error)
        # Counted before the permit is closed: a failed probe must not let the other waiters go.
        if fault in (Fault.BROKEN, Fault.UNREACHED) and self.open:
            reason = "no answer" if error is None else type(error).__name__
            late = isinstance(error, BaseException) and fault is Fault.BROKEN and is_timeout(error)
            # Too many requests in flight for the server are a lack of slots, and no fault of the host.
            if not (late and self._scheduler.timed_out(self.reservation)):
                self._scheduler.by_hand.failed(
                    self.reservation.granted_ns, reason, reached=fault is Fault.BROKEN, reported=reported
                )
        if fault in (Fault.UNSENT, Fault.UNREACHED):
            self.cancel()
        else:
            self._settle(None, answered=fault is None and answered)

    def _is_refusal(self, error: object) -> bool:
        """Whether it is the provider's refusal, which is not for want of servers."""
        if error is None or (isinstance(error, BaseException) and fault_of(error)):
            return False
        from paceline.providers.answers import refusal_of

        provider, slash, _ = self.pool.partition("/")  # without a slash it is no model of a provider
        refusal = refusal_of(error, provider if slash else None)
        return refusal is not None and refusal.kind is not RefusalKind.CAPACITY

    def refused(self, refusal: object = None, *, retry_after_s: float | None = None) -> None:
        """Report a refusal (a 429): the charge stays, and the whole pool pauses for as long as the provider asks.

        If it asks for no wait, the pool pauses for a second (in ``attempts``, for ``backoff_s`` of its policy), and for
        twice as long after each further refusal in a row. Before a wait that is too long to be believed, the pool
        tests the provider. A refusal with the ``scope`` ``request`` or ``mode`` doesn't pause the pool.

        Continue with ``limiter.acquire(..., again=permit)``, which goes to the front of its lane.

        Args:
            refusal: A :class:`~paceline.Refusal`, an SDK's exception as for :func:`~paceline.refusal_of`, or an event
                of a stream or a WebSocket, read as an answer of the pool's provider. A synthetic 429 of paceline
                changes nothing.
            retry_after_s: The pause in seconds, instead of the wait that the provider asks for.

        Raises:
            TypeError: ``refusal`` is of another type, and has no HTTP answer.
            QuotaError: The answer is not a refusal (a 400, a 500), or ``retry_after_s`` is above 32 days.

        Example:
            permit = await limiter.acquire("openai/gpt-6-luna", tokens=800)
            try:
                answer = await client.responses.create(model="gpt-6-luna", input=prompt)
            except openai.RateLimitError as error:
                permit.refused(error)
                permit = await limiter.acquire("openai/gpt-6-luna", tokens=800, again=permit)
                answer = await client.responses.create(model="gpt-6-luna", input=prompt)
            permit.settle(answer)
        """
        if refusal is None:
            refusal = Refusal(RefusalKind.RATE)
        elif not isinstance(refusal, Refusal):
            from paceline.providers.answers import refusal_said

            refusal, headers = refusal_said(refusal, self.pool)
            if refusal is None:  # paceline's own 429: the pool knows of the refusal behind it
                return
            if refusal.scope is not RefusalScope.MODE:  # as in an attached client
                self._learn(headers, refusal=refusal)
        # A wait that the provider states stays in the refusal, which is told in events. The pause is the caller's.
        if refusal.retry_after_s is None:
            refusal = replace(refusal, retry_after_s=retry_after_s)
        if not 0 <= (retry_after_s or 0.0) <= PAUSE_MAX_S:
            raise QuotaError(f"retry_after_s is {retry_after_s!r}: it must be from 0 s to 32 days")
        pause_s = self._pause_s(refusal, retry_after_s)
        refuse(self, refusal, Again(min(max(pause_s, 0.0), PAUSE_MAX_S), pool_wide=True))

    def _pause_s(self, refusal: Refusal, given_s: float | None) -> float:
        """How long the pool pauses after a refusal, for which the caller may have given a wait."""
        row = self._scheduler.row(self.reservation, refusal) if refusal.kind.about_rate else None
        if row is None:
            return given_s or refusal.retry_after_s or 0.0
        if row.is_paced:  # the measured rate says when the next attempt goes, also if a wait is stated
            return 0.0
        stated_s = given_s or (refusal.retry_after_s if is_believed(refusal) else None)
        return stated_s or progress.pause_s(refusal, row, *self._backoff)

    @property
    def open(self) -> bool:
        """Whether it is neither settled, cancelled nor refused."""
        return self.reservation.open

    @property
    def pool(self) -> str:
        """The name of the pool that was charged."""
        return self._scheduler.pool.name

    @property
    def cost(self) -> Cost:
        """The reserved cost per unit."""
        return self.reservation.cost

    @property
    def charged(self) -> Cost:
        """The charge, per unit of the cost and of the pool's quotas; while it is open, as far as it is known."""
        used, cost, ledger = self._used, self.reservation.cost_now, self._scheduler.pool.capacity.ledger
        if used is _UNSENT:
            return dict.fromkeys(ledger.true_cost(cost, None), 0.0)
        return ledger.true_cost(cost, None if used is _OPEN else cast("Cost | None", used))

    @property
    def waited_s(self) -> float:
        """The wait in the queue, in seconds; of a client's request also for the limits and the budgets of its lane."""
        began_ns = self._waiter.began_ns
        return (self.reservation.granted_ns - (self._waiter.arrived_ns if began_ns is None else began_ns)) / NS

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if isinstance(error, Exception):
            self._failed(error, reported=False)
        # Cancelled or interrupted: the provider may have counted the request, and nothing shows whether it answers.
        elif error is not None:
            self.close()
        elif self.reservation.open:
            # Before the warning, which a program may have made an error.
            self._settle(None)
            if any(map(self.reservation.cost.get, _REPORTED)):
                warn(
                    f"{self.pool}: a permit was not settled, so its whole reserved cost stays charged; call "
                    "permit.settle(response), or permit.settle() when the reserved cost is the true one"
                )

    def close(self) -> None:
        """Settle as reserved, if it is still open."""
        if self.reservation.open:
            self._settle(None, answered=False)

    def __repr__(self) -> str:
        state = "open" if self.open else "closed"
        return f"<Permit {self.pool} {state} {self.cost} after {self.waited_s:.3f} s>"


def adjust(permit: Permit, known: Cost) -> None:
    """Charge the true amounts that the beginning of the answer shows.

    The others stay as reserved until it is settled.
    """
    if permit.reservation.open:
        scheduler = permit._scheduler
        scheduler.section.change(scheduler.pool.adjust, permit.reservation, known, permit._waiter)


def reports(permit: Permit, charged: Cost, usage: Usage) -> None:
    """Note what the answer of ``permit`` reports, if that is less than the provider has ``charged`` for its ``usage``.

    The charge has the output that the request allowed (OpenAI), or a multiple of the output (Bedrock). Neither is used.
    """
    tokens, output = charged.get(INPUT_TOKENS, 0.0) + usage.output_tokens, float(usage.output_tokens)
    permit._waiter.reported = None
    if charged.get(TOKENS, 0.0) > tokens or charged.get(OUTPUT_TOKENS, 0.0) > output:
        permit._waiter.reported = charged | {TOKENS: min(charged.get(TOKENS, 0.0), tokens), OUTPUT_TOKENS: output}


def back_off(permit: Permit, policy: RetryPolicy) -> None:
    """Let the refusals that its block reports pause the pool as ``policy`` says."""
    permit._backoff = policy.backoff_s, policy.backoff_max_s


def refuse(permit: Permit, refusal: Refusal, decision: Again | GiveUp) -> None:
    """Like :meth:`Permit.refused`, with the pause or the stop that the caller has decided."""
    permit.refusal = refusal
    _tell_outer(permit)
    # Before the refusal: the pool blames it on a quota by what this answer has stated.
    if refusal.limits and refusal.scope is RefusalScope.POOL and permit.open:
        permit._scheduler.observe(refusal.limits, permit.reservation)
    if permit._waiter.turn is not None:
        permit._waiter.turn.refused(refusal)
    if refusal.kind is not RefusalKind.CAPACITY:  # any other refusal shows that the host answers
        permit._scheduler.by_hand.answered()
    # What the pool will charge: the provider counts a request that it refuses for its own sake, and none of its tokens.
    of_pool = refusal.scope is RefusalScope.POOL
    first = permit._close_once(None if of_pool else dict.fromkeys(permit.cost, 0.0) | {REQUESTS: 1.0})
    stop_s, why = (decision.stop_s, decision.reason) if isinstance(decision, GiveUp) else (0.0, "")
    # Also if the permit is closed: its charge is final, and the pool has to pause as the provider asks.
    permit._scheduler.refuse(permit.reservation, refusal, decision.pause_s, stop_s, why)
    if first:
        permit._notify("refused", None, refusal)


def _tell_outer(permit: Permit) -> None:
    """Let the permit of a surrounding block know of the refusal in it, which may leave that block, too."""
    outer = _current.get()
    if outer is not None and outer is not permit:
        outer._heard = True


def _outcome_of(error: object) -> tuple[Fault | None, bool]:
    """The fault that an error of an attempt shows, if it is one, and whether the provider has answered."""
    from paceline.providers.answers import answer_of

    if isinstance(error, BaseException):
        fault, answer = fault_of(error), answer_of(error) if isinstance(error, Exception) else None
    else:
        fault, answer = (Fault.BROKEN, None) if error is None else (None, answer_of(error))
    if answer is None or answer.ours:
        return fault, False
    return Fault.BROKEN if fault is None and answer.status >= 500 else fault, True


def waiter_again(
    permit: Permit, scheduler: Scheduler, cost: Cost, name: str | None = None, lane: str | None = None
) -> Waiter:
    """A waiter for the next attempt of the same request; in the same pool it goes to the front of its lane.

    Raises:
        QuotaError: Another attempt has followed ``permit`` already, or ``lane`` is not its lane.
    """
    own = permit._waiter.lane.name  # its place in the queue is one in this lane
    if lane is not None and lane != own:
        raise QuotaError(f"{permit.pool}: lane is {lane!r}: a further attempt keeps the lane of the first, {own!r}")
    if permit._followed:
        raise QuotaError(
            f"{permit.pool}: this permit was followed by another attempt already; pass the permit of that attempt"
        )
    permit._followed = True
    waiter = Waiter(cost, permit._waiter.lane, permit._waiter.deadline_ns, name or permit._waiter.name)
    if scheduler is permit._scheduler:
        take_place(waiter, permit)
        waiter.overtook = permit._waiter.overtook
        if permit._waiter.turn is not None:  # with its whole prompt
            waiter.turn, waiter.estimate = permit._waiter.turn, permit._waiter.turn.estimate
    return waiter


def is_followed(permit: Permit) -> bool:
    """Whether a further attempt was made after this one: by the caller, or by a paced client in its block."""
    return permit._followed


def take_place(waiter: Waiter, permit: Permit | None) -> None:
    """Put a waiter at the front of its lane, in the place of an earlier permit of the same pool, if there is one."""
    if permit is not None:
        waiter.number, waiter.returned = permit._waiter.number, True


def go_on(acquisition: Acquisition, earlier: Acquisition) -> None:
    """Wait in the place of an earlier acquisition of the same request and pool, which has ended without a permit."""
    acquisition._waiter.number, acquisition._waiter.returned = earlier._waiter.number, True


def end_later(permit: Permit, by_ns: int) -> None:
    """Give the further attempts of the request of ``permit`` so much more time, if it ends at all."""
    if permit._waiter.deadline_ns is not None:
        permit._waiter.deadline_ns += by_ns


def end_at(permit: Permit, until_ns: int | None) -> None:
    """Set when the request of ``permit`` ends, for its further attempts; ``None`` for never."""
    permit._waiter.deadline_ns = until_ns


def take(permit: Permit) -> bool:
    """Use ``permit`` for an attempt of a paced HTTP client; whether it was open and unused."""
    unused = permit.reservation.open and not permit._spent
    permit._spent = True  # only the first request of a block may use it
    return unused


def current_permit(scheduler: Scheduler) -> Permit | None:
    """The unused permit of ``scheduler`` that a surrounding block holds; it counts as used from now on."""
    permit = _current.get()
    held = permit is not None and permit._scheduler is scheduler
    return permit if held and permit is not None and take(permit) else None


def holds_permit() -> bool:
    """Whether a surrounding block holds a permit, of any pool."""
    return _current.get() is not None


def hand_down(permit: Permit) -> None:
    """Let the next paced request in this context use ``permit``; for callers that cannot put a block around it."""
    _current.set(permit)


_ONE = "an acquisition gives one permit: call limiter.acquire() again for another"


@public
class Acquisition:
    """A request for a permit: ``async with``, ``with`` and ``await`` wait for it; the ``with`` forms also close it.

    Inside the block the first paced HTTP request uses the permit, so that it is not charged twice.
    """

    __slots__ = ("_permit", "_reset", "_scheduler", "_used", "_waiter")

    def __init__(self, scheduler: Scheduler, waiter: Waiter) -> None:
        self._scheduler = scheduler
        self._waiter = waiter
        self._permit: Permit | None = None
        self._reset: Token[Permit | None] | None = None
        self._used = False

    def wait(self) -> Permit:
        """Block this thread until the permit is granted.

        Raises:
            AcquireTimeoutError: The timeout has passed, or cannot be met.
            NeverFitsError: The cost is above what a quota can ever hold.
            QueueFullError: The queue is full.
            PoolStoppedError: The account has no money left, or the provider asked for a longer wait than the retry
                policy allows.
            StoreError: The store of the quotas has never answered.
        """
        if self._used:
            raise RuntimeError(_ONE)
        self._used = True
        outcome: Outcome | None = None
        try:
            with _surroundings(self) if around_waits else _ALONE:
                outcome = self._scheduler.wait(self._waiter)
        except BaseException:  # also of what surrounds the wait, at its end
            self._give_back(outcome)
            raise
        if isinstance(outcome, Reservation):
            return Permit(self._scheduler, self._waiter, outcome)
        raise as_error(self._scheduler, self._waiter, outcome)

    @property
    def pool(self) -> str:
        """The name of its pool."""
        return self._scheduler.pool.name

    def expected_s(self) -> float:
        """Return how long it would wait if it joined the queue now, in seconds; infinite if it can't be granted."""
        return self._scheduler.expected_s(self._waiter)

    def why(self) -> Waiting | None:
        """Return why it waits: its place in the queue, the quota that binds, the expected wait.

        ``None`` if it does not wait.
        """
        return self._scheduler.why(self._waiter)

    def __await__(self) -> Generator[Any, None, Permit]:
        return self._wait_async().__await__()

    async def _wait_async(self, enter: bool = False) -> Permit:  # by position, which is faster
        if self._used:
            raise RuntimeError(_ONE)
        self._used = True
        outcome: Outcome | None = None
        try:
            with _surroundings(self) if around_waits else _ALONE:
                outcome = await self._scheduler.wait_async(self._waiter)
        except BaseException:  # also of what surrounds the wait, at its end
            self._give_back(outcome)
            raise
        if isinstance(outcome, Reservation):
            permit = Permit(self._scheduler, self._waiter, outcome)
            return self._enter(permit) if enter else permit
        raise as_error(self._scheduler, self._waiter, outcome)

    def _give_back(self, outcome: Outcome | None) -> None:
        """Cancel a grant that the caller will not have."""
        if isinstance(outcome, Reservation):
            self._scheduler.cancel(outcome)

    def __enter__(self) -> Permit:
        return self._enter(self.wait())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        permit, reset = self._permit, self._reset
        assert permit is not None
        assert reset is not None
        try:
            _current.reset(reset)
        except ValueError:  # the block ends in another context, where the permit is not current
            pass
        finally:
            if permit.reservation.open:
                permit.__exit__(kind, error, tb)
            # Told again: until the reset the current permit was this one, which is no outer one of itself.
            if permit.refusal is not None or permit._heard:
                _tell_outer(permit)

    def __aenter__(self) -> Coroutine[Any, Any, Permit]:
        # Not ``async def``: that would be a second coroutine around the first one for every permit.
        return self._wait_async(True)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, tb)

    def _enter(self, permit: Permit) -> Permit:
        self._permit = permit
        self._reset = _current.set(permit)
        return permit


def waiter_of(acquisition: Acquisition) -> Waiter:
    """What stands in the queue for ``acquisition``."""
    return acquisition._waiter


class ReplacedError(PacelineError):
    """The limits for which a request waited were replaced: it is to wait for the present ones."""


def as_error(scheduler: Scheduler, waiter: Waiter, outcome: Outcome) -> PacelineError:
    """The exception for an outcome other than a grant."""
    name, now_ns = scheduler.pool.name, scheduler.now_ns()
    match outcome:
        case NeverFits(unit, cost, most, quota):
            return NeverFitsError(name, unit, cost, most, quota)
        case QueueFull(length, at_ns):
            return QueueFullError(name, length, wait_until_s(at_ns, now_ns))
        case Stopped(reason, probe_ns, ends_ns):
            tried_s = max(probe_ns - now_ns, 0) / NS
            return PoolStoppedError(name, reason, max((ends_ns - now_ns) / NS, 0.0) if ends_ns else tried_s, tried_s)
        case StoreLost(reason):
            return StoreError(f"{name}: {reason}")
        case Replaced():
            return ReplacedError(f"{name}: its limits were replaced")
        case Expired(at_ns, quota):
            return AcquireTimeoutError(name, (now_ns - waiter.arrived_ns) / NS, wait_until_s(at_ns, now_ns), quota)
        case _:
            raise AssertionError(outcome)


def check_cost(cost: Cost, *units: Collection[str]) -> None:
    """Refuse an invalid cost; amounts of other numeric types become floats.

    Raises:
        QuotaError: An amount is not a number from 0 to 1e15, or a unit is neither known nor in one of ``units`` (which
            are the units of the pool; none: any unit).
    """
    for unit, amount in cost.items():
        # Not ``isinstance``: a bool or a number of numpy, which is a float, becomes a plain one.
        if type(amount) not in _PLAIN or not 0 <= amount <= COST_MAX:  # also true for NaN
            cost[unit] = _number(unit, amount)
        if unit not in _KNOWN:
            _check_unit(unit, dict.fromkeys(chain.from_iterable(units)))


def _check_unit(unit: str, units: Collection[str]) -> None:
    if unit not in units and (units or unit in _ALIASES):
        raise QuotaError(
            f"unknown unit {unit!r}; this pool limits {' and '.join(units) or 'nothing'}{_hint(unit, units)}"
        )


def _hint(unit: str, units: Collection[str]) -> str:
    """What an unknown ``unit`` may stand for."""
    if unit in _ALIASES:
        return f"; it is {_ALIASES[unit]!r} here"
    if unit == "cached_tokens":
        return "; acquire() takes it with a conversation, and the answer tells it: settle(answer)"
    if unit in {"priority", "weight"}:
        return "; did you mean 'lane'?"
    return did_you_mean(unit, [*OPTIONS, *KNOWN_UNITS, *units])


def split_tokens(pool: str, cost: Cost, units: Collection[str], stated: Collection[str]) -> None:
    """Add to ``cost``, which names ``tokens``, the input or the output that they leave beside the other one.

    Args:
        pool: The name of the pool.
        cost: The amounts per unit.
        units: The units that are counted.
        stated: Those that were counted before the first answer. Of others a sum alone is a warning: the same call was
            right before.

    Raises:
        TokensApartError: Input or output is counted, and does not follow from ``cost``.
    """
    total = cost[TOKENS]
    for side, other in _OTHER_SIDE.items():
        known = cost.get(other, None if total else 0.0)  # of a total of 0 each side is 0
        if side not in cost and known is not None and total >= known and (other in cost or side in units):
            cost[side] = total - known
    missing = [side for side in _OTHER_SIDE if side in units and side not in cost]
    if not missing:
        return
    why = f" of input and output together, and this pool counts {' and '.join(missing)} apart"
    for side in SIDES & cost.keys():
        why = f", and {side} alone is {cost[side]:,.15g}"
    told = f"{pool}: tokens is {total:,.15g}{why}: pass input_tokens and output_tokens, or one of them with tokens"
    if not set(missing).isdisjoint(stated):
        raise TokensApartError(told)
    warn(told)


def _number(unit: str, amount: object) -> float:
    """A Decimal or a numpy number as a float."""
    try:
        number = float(amount)  # type: ignore[arg-type]
        if 0 <= number <= COST_MAX:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise QuotaError(f"{unit} is {amount!r}: it must be a finite number, 0 or more")
