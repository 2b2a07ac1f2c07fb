"""What the requests of one limiter share, and the use of its pools by hand."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from paceline.core.ledger import total_tokens
from paceline.core.plan import INTERACTIVE
from paceline.core.queue import DEFAULT_LANE, Estimate, LaneName, Lanes, LaneSpec, Waiter, line_of
from paceline.core.quota import CONCURRENCY, INPUT_TOKENS, KNOWN_UNITS, NS, REQUESTS, TOKENS, USD, Cost
from paceline.core.results import NeverFits, QuotaError, Reservation, TooLargeError, WaitUntil
from paceline.estimation.calibration import Calibrations
from paceline.pacing.accounts import Accounts
from paceline.pacing.allowances import EVERYONE, Allowances, check_budget
from paceline.pacing.answers import Answers
from paceline.pacing.breaker import Health
from paceline.pacing.events import Event, guarded
from paceline.pacing.limits import Limits
from paceline.pacing.permit import (
    OPTIONS,
    SIDES,
    Acquisition,
    Estimated,
    Later,
    Permit,
    as_error,
    check_cost,
    split_tokens,
    waiter_again,
)
from paceline.pacing.pools import Pools
from paceline.pacing.retry import RetryPolicy
from paceline.pacing.scheduler import Scheduler, Worker
from paceline.pacing.settings import TIMEOUT_MAX_S, PacingSettings, parsed

if TYPE_CHECKING:
    from paceline.pacing.attempts import Attempts
    from paceline.pacing.status import PoolStatus
    from paceline.pacing.traffic import TrafficLog

log = logging.getLogger("paceline")

NAME_MAX = 200
"""The longest name of a waiter, in characters."""

PERSON: Final[LaneName] = (INTERACTIVE, None, 1)
"""Where the requests of a person at a screen wait: before all that have no priority of their own."""

# Compared by identity: a block of lane("default") is a choice of the user, which priorities by name leave alone.
DEFAULT_LANE_NAME: Final[LaneName] = (DEFAULT_LANE.name, None, None)

current_lane: ContextVar[LaneName | LaneSpec] = ContextVar("paceline_lane", default=DEFAULT_LANE_NAME)


@contextmanager
def lane(name: str | LaneSpec, *, weight: float | None = None, priority: int | None = None) -> Iterator[None]:
    """Acquire everything inside the block through the lane ``name``, also inside SDKs.

    Args:
        name: The lane. A :class:`LaneSpec` sets the weight, the priority and the parent. Its limits apply only if it
            is also in ``Limiter(lanes=...)``.
        weight: Its share among busy lanes of the same priority; by default as in ``Limiter(lanes=...)``, or 1.
        priority: A higher one always goes first. The latest value applies to the whole lane. By default as in
            ``Limiter(lanes=...)``, or 0.

    Raises:
        QuotaError: The name is no text or empty, the weight is not above 0, or the priority is not a whole number.

    Example:
        with paceline.lane("nightly", weight=1, priority=-1):
            answer = await limiter.attach(client).responses.create(model="gpt-6-luna", input=prompt)
    """
    parent = name.parent if isinstance(name, LaneSpec) else None
    if isinstance(name, LaneSpec):
        weight, priority = name.weight if weight is None else weight, name.priority if priority is None else priority
        name = name.name
    if not isinstance(name, str):
        raise QuotaError(
            f"the name of a lane is a {type(name).__name__}: give a text, e.g. lane('wrap'), or a LaneSpec"
        )
    spec = Lanes()[name, weight, priority]  # invalid values raise here
    # A name, and not the spec: what is None here follows from the settings of each limiter that the block uses.
    token = current_lane.set((name, weight, priority) if parent is None else replace(spec, parent=parent))
    try:
        yield
    finally:
        current_lane.reset(token)


class CallerLanes(Lanes):
    """The lanes of a limiter, and the lane in which a request waits.

    Args:
        known: The weights and priorities of the settings.
        priorities: The priorities of waiters without a lane, by a pattern of their names.
    """

    def __init__(self, known: Iterable[LaneSpec], priorities: Mapping[str, int]) -> None:
        super().__init__(known)
        self._priorities = dict(priorities)  # a copy: the user may change the mapping
        for pattern, priority in self._priorities.items():
            LaneSpec(f"priority of {pattern!r}", priority=priority)  # an invalid one raises here

    def of(
        self, name: str | None = None, lane: str | LaneSpec | None = None, outside: LaneName | None = None
    ) -> LaneSpec:
        """The given ``lane``, or else the surrounding one.

        Outside of all lanes, the lane of the priority of the waiter ``name``, or ``outside``.
        """
        if isinstance(lane, LaneSpec):
            return lane
        if lane:
            return self[lane, None, None]
        found = current_lane.get()
        if found is DEFAULT_LANE_NAME:
            found = outside or found
            for pattern, priority in self._priorities.items():
                if name is not None and fnmatchcase(name, pattern):
                    found = f"priority {priority}", None, priority
                    break
        return found if isinstance(found, LaneSpec) else self[found]


Settle = Callable[[Mapping[str, Any] | None], None]
"""Settles a request with its answer; with ``None`` as it was held."""


class Pacer:
    """What the requests of one limiter share, by hand and through clients.

    Args:
        settings: The settings of the limiter.
        limits: The quotas of each model.
        worker: Makes the exchanges with the store of shared quotas; ``None``: the quotas are in this process.

    Attributes:
        answers: What came of each attempt.
        jobs: Of requests whose answers are made in the background, by the id of the answer.
        lanes: The lanes in which requests wait.
        shadow: Where requests are logged in place of being held; ``None``: they are held.
    """

    def __init__(self, settings: PacingSettings, limits: Limits, worker: Worker | None) -> None:
        self.settings, self.clock = settings, settings.clock
        self.retry = settings.retry or RetryPolicy()
        self.calibrations = Calibrations(settings.estimate_factor)
        self.health = Health(settings.clock, settings.breaker)
        self.jobs: dict[str, Settle] = {}
        self.answers = Answers()
        lanes = tuple(settings.lanes)
        self.lanes = CallerLanes(lanes, settings.priorities or {})
        notify, self.shadow = _notifier(settings)
        self.pools = Pools(settings, limits, worker, notify, self.health)
        self.accounts = Accounts(self.pools)
        self.allowances = Allowances(self.pools.maker.allowance, dict(settings.prices or {}), settings.unpriced)
        # A parent may stand in the lanes of its children alone, and has limits of its own.
        for spec in (one for each in lanes for one in line_of(each) if one.limits):
            self.allowances.set(spec.name, parsed(spec.limits))
        self.allowances.set(EVERYONE, check_budget(parsed(settings.budget)))

    def acquire_call(
        self,
        scheduler: Scheduler,
        estimate: Callable[[], Estimate],
        *,
        units: Collection[str] = (),
        again: Permit | None = None,
        timeout: float | None = None,
        name: str | None = None,
        lane: LaneName | None = None,
    ) -> Acquisition:
        """Like :meth:`BaseLimiter.acquire`, for a client's call, with the scheduler of the pool.

        Args:
            scheduler: The scheduler.
            estimate: Returns the amounts per unit, ``requests`` among them, and what of the prompt is cached, by what
                is known at present. It is called again when the request comes first in the queue: answers may have
                shown meanwhile that the first estimate was wrong.
            units: Further units that the provider counts, beside the units of the estimate.
            again: As for :meth:`BaseLimiter.acquire`.
            timeout: As there.
            name: As there.
            lane: The lane of a request that the user has put into none; by default the lane ``default``.
        """
        cost, cached_tokens, lost_ns = estimate()
        if self.pools.uncharged:  # empty as a rule, which spares each request the set
            self.pools.warn_of_unmetered(scheduler.pool.name, {CONCURRENCY, *cost, *units})
        # A further attempt keeps the lane of the first.
        spec = None if again is not None else self.lanes.of(name, outside=lane)
        waiter = self.waiter(scheduler, cost, timeout, lane=spec, again=again, name=name, units=cost)
        waiter.estimate, waiter.cached_tokens, waiter.lost_ns = estimate, cached_tokens, lost_ns
        return Acquisition(scheduler, waiter)

    def status(self, queue: int) -> dict[str, PoolStatus]:
        """The state of every pool and every allowance, by name.

        See :meth:`Limiter.status <paceline.limiter.limiter.Limiter.status>`.
        """
        pools = self.pools.status(queue)
        pools |= {scheduler.pool.name: scheduler.status(queue) for scheduler in self.allowances.schedulers}
        return dict(sorted(pools.items()))

    def waiter(
        self,
        scheduler: Scheduler,
        cost: Cost,
        timeout: float | None,
        lane: str | LaneSpec | None,
        again: Permit | None,
        name: str | None = None,
        units: Collection[str] | None = None,
    ) -> Waiter:
        """A waiter for ``cost``. Its units must be known units, units of the quotas, or in ``units``."""
        # Read before the check, which makes a plain number of an estimate.
        sized, known = cost.get(INPUT_TOKENS), True
        counted = scheduler.pool.capacity.ledger.entries.units
        check_cost(cost, units or counted)
        if units is None:  # by hand
            known = _completed(scheduler, cost, counted, self.pools.limits.warn)
            if cost.get(USD) and USD not in counted and self.allowances.has_budget:
                raise QuotaError(
                    f"{scheduler.pool.name}: usd is charged to no budget, because budgets count only the requests of"
                    " attached clients: attach the client, or give the pool a quota like '100 usd/day', or leave out"
                    " usd"
                )
        # In place, as above: the mapping was made for this request, of keywords or by an estimate.
        if REQUESTS not in cost:
            cost[REQUESTS] = 1
        most = self.settings.max_tokens_per_call
        if most is not None and total_tokens(cost) > most:
            raise TooLargeError(scheduler.pool.name, total_tokens(cost), most)
        if again is not None:
            waiter = waiter_again(again, scheduler, cost, name, lane.name if isinstance(lane, LaneSpec) else lane)
            waiter.wait_until(self.deadline_ns(timeout))  # the deadline of the first attempt applies, too
        else:
            spec = lane if isinstance(lane, LaneSpec) else self.lanes.of(name, lane)
            if timeout is None:
                timeout = self.settings.acquire_timeout_s
            waiter = Waiter(cost, spec, None if timeout is None else self.deadline_ns(timeout), name)
        waiter.sized = known
        if isinstance(sized, Estimated):
            waiter.learn = sized.learn
        return waiter

    def deadline_ns(self, timeout: float | None) -> int | None:
        """The instant ``timeout`` seconds from now; ``None`` for none.

        Raises:
            QuotaError: The timeout is no number of seconds from 0 to ten years.
        """
        if timeout is None or timeout == math.inf:
            return None
        if not isinstance(timeout, int | float) or not 0 <= timeout <= TIMEOUT_MAX_S:
            raise QuotaError(f"timeout is {timeout!r}: it must be from 0 s to ten years, or None for none")
        return self.clock.now_ns() + round(timeout * NS)


_USUAL: Final = frozenset(KNOWN_UNITS) - {USD}
"""The units whose amount is known without the user: a usual one, or none."""


def _completed(scheduler: Scheduler, cost: Cost, counted: Collection[str], warn: Callable[[str, str], None]) -> bool:
    """Complete a cost that is given by hand with the units that the quotas count; whether its size was given.

    A forgotten keyword must not send everything at once. Of a unit of the user's own a request takes one: a start, a
    page, a picture; of one of tokens it takes all of its tokens. A request to a model whose tokens are given may have
    none of these. Its dollars are known to the user alone.
    """
    name, sent, bare = scheduler.pool.name, cost.get(REQUESTS, 1), cost.keys() <= {REQUESTS}
    anywhere = scheduler.stated.union(counted)  # also by a joint limit
    known = not sent or _is_sized(cost, anywhere)
    if not known:
        from paceline.providers.answers import unsized_cost

        # Twice, so that amounts which were given outrank the assumed ones.
        cost |= unsized_cost(name, anywhere) | cost
    elif TOKENS in cost and not SIDES.isdisjoint(anywhere.union(cost)):
        split_tokens(name, cost, anywhere, scheduler.stated)
    if sent and (left_out := set(counted).difference(cost, _USUAL)):
        # Of a unit that only answers have shown the caller need not know.
        own = {entry.unit for entry in scheduler.pool.capacity.ledger.entries if entry.given < math.inf} & left_out
        if USD in own:
            _warn_of_dollars(name, warn)
        if bare or not scheduler.by_hand.is_model:
            cost |= {unit: total_tokens(cost) if TOKENS in unit else sent for unit in own - {USD}}
    return known


def _is_sized(cost: Cost, counted: Collection[str]) -> bool:
    """Whether a cost names its tokens, or none are counted that it leaves out."""
    return TOKENS in cost or not (
        SIDES.isdisjoint(cost) and any(TOKENS in unit for unit in set(counted).difference(cost))
    )


def _warn_of_dollars(pool: str, warn: Callable[[str, str], None]) -> None:
    warn(
        f"dollars by hand at {pool}",
        f"{pool}: the quota in usd holds nothing back, because the request names no amount of it: write"
        f" limiter.acquire({pool!r}, usd=0.02), or usd=0 if it costs nothing",
    )


class BaseLimiter:
    """The use of pools by hand: what a limiter is to the packages below :class:`~paceline.limiter.limiter.Limiter`.

    Attributes:
        pacer: What the requests of the limiter share. It is for the packages of paceline, and may change.
    """

    def __init__(self, settings: PacingSettings, limits: Limits, worker: Worker | None) -> None:
        self.pacer = Pacer(settings, limits, worker)

    def acquire(
        self,
        pool: str,
        *,
        timeout: float | None = None,
        lane: str | LaneSpec | None = None,
        again: Permit | None = None,
        name: str | None = None,
        conversation: str | None = None,
        cached_tokens: float | None = None,
        **cost: float,
    ) -> Acquisition:
        """Ask for the right to make one attempt, and wait for it in the queue of its pool.

        Args:
            pool: The pool: ``openai/gpt-6-luna``, ``gpt-6-luna``, or your own name.
            timeout: Seconds to wait at most. If it can't be met, the request fails at once.
            lane: The class of work; by default the lane of the surrounding :func:`paceline.lane`.
            again: The refused permit that this attempt follows: the attempt goes to the front of its lane. It has the
                lane, the conversation and the deadline of the refused attempt.
            name: A name for the ``queue`` in :meth:`status`; a further attempt keeps it.
            conversation: The name of the conversation that this turn belongs to: its prompt begins with the prompt of
                the turn before, which the provider may have cached. ``permit.settle(answer)`` shows how much is
                cached for the next turn.
            cached_tokens: How many tokens of the prompt the provider has cached; by default what the last answer has
                shown.
            **cost: Amounts per unit, e.g. ``input_tokens=1_200, output_tokens=300``; ``requests`` is 1 by default.
                ``tokens`` is both together; with one of them it gives the other. If the pool counts tokens and you
                give no amount of them, 600 of input and 200 of output are reserved, as by ``limiter.estimate(pool)``: a
                request that uses none passes ``tokens=0``. Of a unit of your own that you leave out, it costs 1.

        Returns:
            An object for ``async with``, ``with`` or ``await``, which joins the queue then.

        Raises:
            QuotaError: The pool is unknown, an amount is not a finite number of 0 or more, a name is too long, or an
                argument cannot have an effect: ``tokens`` alone where input and output are counted apart, ``usd`` where
                only clients have a budget, ``cached_tokens`` without a conversation, another lane than ``again`` has.
            TooLargeError: The tokens of the cost are above ``max_tokens_per_call``.

        Example:
            async with limiter.acquire("openai/gpt-6-luna", input_tokens=1_200, timeout=30) as permit:
                permit.settle(await client.responses.create(model="gpt-6-luna", input=prompt))
        """
        pacer = self.pacer
        # The first look-up saves the hot path a call of the second one, which begins with the same.
        scheduler = pacer.pools.named.get(pool) or pacer.pools.scheduler(pool)
        if name is not None and (not isinstance(name, str) or len(name) > NAME_MAX):
            shown = str(name)[:NAME_MAX]
            raise QuotaError(f"name is {shown!r}: it must be a text of at most {NAME_MAX} characters, or None")
        if cached_tokens is not None and conversation is None:
            raise QuotaError("cached_tokens is given without a conversation: name the one whose prompt is cached")
        waiter = pacer.waiter(scheduler, cost, timeout, lane, again, name)
        if conversation is not None and again is None and scheduler.prompt_cache is not None:
            from paceline.pacing.turns import Turn

            turn = waiter.turn = Turn(scheduler, waiter.cost, conversation, cached_tokens)
            waiter.estimate = turn.estimate
            waiter.cost, waiter.cached_tokens, waiter.lost_ns = turn.estimate()
        return Acquisition(scheduler, waiter)

    def try_acquire(self, pool: str, **cost: float) -> Permit | Later | NeverFits:
        """Return a permit if one is available now and no other request waits.

        Use it to do other work while a quota is full.

        Args:
            pool: The pool, as for :meth:`acquire`.
            **cost: Amounts per unit, as for :meth:`acquire`.

        Returns:
            A permit; or ``Later`` or ``NeverFits``, which are false.

        Raises:
            QuotaError, TooLargeError: As for :meth:`acquire`.
            PoolStoppedError: The account has no money left, or the provider asked for a longer wait than the retry
                policy allows.
            StoreError: The store of the quotas has never answered.

        Example:
            permit = limiter.try_acquire("openai/gpt-6-luna", tokens=800)
            if permit:
                permit.settle(await client.responses.create(model="gpt-6-luna", input=prompt))
            elif isinstance(permit, paceline.Later):
                print(f"try again in {permit.retry_after_s:.1f} s")
        """
        pacer = self.pacer
        scheduler = pacer.pools.named.get(pool) or pacer.pools.scheduler(pool)
        if not cost.keys().isdisjoint(OPTIONS):
            named = ", ".join(cost.keys() & set(OPTIONS))
            raise QuotaError(f"try_acquire() takes amounts per unit alone: leave out {named}, or call acquire()")
        waiter = pacer.waiter(scheduler, cost, None, None, None)
        outcome = scheduler.try_grant(waiter)
        if isinstance(outcome, Reservation):
            return Permit(scheduler, waiter, outcome)
        if isinstance(outcome, WaitUntil):
            return Later(scheduler.retry_after_s(outcome), outcome.quota)
        if isinstance(outcome, NeverFits):
            return outcome
        raise as_error(scheduler, waiter, outcome)

    def attempts(self, pool: str, *, retry: RetryPolicy | None = None, **options: Any) -> Attempts:
        """Return the attempts at one call: wait, try, and try again when the provider refuses.

        The loop ends after the first block without a refusal (:func:`~paceline.refusal_of`). After a refusal the pool
        pauses as long as the provider asks; any other error leaves the block. Attached clients retry alike.

        Args:
            pool: The pool.
            retry: The retry policy; by default the limiter's.
            **options: As for :meth:`acquire`, with the amounts per unit.

        Raises:
            QuotaError: As for :meth:`acquire`.
            GaveUpError: In the loop: no attempt is left, or another one cannot succeed.

        Example:
            for attempt in limiter.attempts("openai/gpt-6-luna", input_tokens=1_200, output_tokens=300):
                async with attempt as permit:
                    permit.settle(await client.responses.create(model="gpt-6-luna", input=prompt))
        """
        from paceline.pacing.attempts import Attempts

        if "again" in options:
            raise QuotaError("attempts() follows its own refusals: leave out again, or use acquire(..., again=permit)")
        acquire = functools.partial(self.acquire, pool, **options)
        acquire()  # invalid arguments raise here
        return Attempts(self.pacer.health, self.pacer.pools.scheduler(pool), acquire, retry or self.pacer.retry)


def _notifier(settings: PacingSettings) -> tuple[Callable[[Event], None] | None, TrafficLog | None]:
    """What is called with each event, and the log of requests that are not held.

    The user's listener and the log of the traffic are called.
    """
    notifier = None if settings.events is None else guarded(settings.events)
    path = settings.shadow if settings.traffic_log is None else settings.traffic_log
    if path is None:
        return notifier, None
    from paceline.pacing.traffic import TrafficLog, writing

    if settings.traffic_log is not None:
        return writing(TrafficLog(path, "traffic_log"), notifier, settings.clock), None
    shadow = TrafficLog(path, "shadow")
    log.warning("shadow: paceline delays no request, and logs every request to %s", shadow.path)
    return writing(shadow, notifier, settings.clock), shadow  # those that are acquired by hand
