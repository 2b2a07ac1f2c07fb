"""The pools of one key by name, and their use in code.

:class:`Pacer` is the part of a limiter that other packages use; :class:`~paceline.limiter.limiter.Limiter`, the public
class, is derived from it.
"""

from __future__ import annotations

import functools
import logging
import math
import random
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from paceline.core.capacity import Capacity, LocalCapacity
from paceline.core.ledger import Ledger, total_tokens
from paceline.core.pool import Pool
from paceline.core.queue import LaneName, Lanes, LaneSpec, Queue, Waiter
from paceline.core.quota import (
    CONCURRENCY,
    INPUT_TOKENS,
    KNOWN_UNITS,
    NS,
    OUTPUT_TOKENS,
    OWN_RULES,
    REQUESTS,
    TOKENS,
    Cost,
    Quota,
    Rule,
)
from paceline.core.results import (
    GIVEN,
    NeverFits,
    PacelineWarning,
    QuotaError,
    Reservation,
    TooLargeError,
    WaitUntil,
)
from paceline.core.tracker import HEADROOM_S
from paceline.estimation.calibration import Calibrations
from paceline.pacing.allowances import EVERYONE, Allowances, Charge
from paceline.pacing.breaker import BreakerPolicy, Health
from paceline.pacing.chain import ChainedScheduler
from paceline.pacing.clock import Clock
from paceline.pacing.limits import Limits, Resolved, in_days, periods
from paceline.pacing.permit import Acquisition, Later, Permit, as_error, check_cost
from paceline.pacing.retry import RetryPolicy
from paceline.pacing.scheduler import Scheduler, Worker
from paceline.pacing.status import QUEUE_SHOWN, report
from paceline.pacing.traffic import Entry, TrafficLog

if TYPE_CHECKING:
    from paceline.pacing.attempts import Attempts
    from paceline.pacing.events import Event

log = logging.getLogger("paceline")

POOLS_MAX = 10_000
"""How many pools one limiter keeps: the names of models come from callers, and memory is bounded."""

TIMEOUT_MAX_S = 10 * 366 * 86_400.0
"""Ten years, the longest timeout."""

NAME_MAX = 200
"""The longest name of a waiter, in characters."""

DEFAULT_LANE: Final[LaneName] = ("default", None, None)

current_lane: ContextVar[LaneName] = ContextVar("paceline_lane", default=DEFAULT_LANE)


@contextmanager
def lane(name: str, *, weight: float | None = None, priority: int | None = None) -> Iterator[None]:
    """Acquire everything inside the block through the lane ``name``, also inside SDKs.

    Args:
        name: The lane.
        weight: Its share among busy lanes of the same priority; by default as in ``Limiter(lanes=...)``, or 1.
        priority: A higher one always goes first; the latest value holds for the whole lane. By default as in
            ``Limiter(lanes=...)``, or 0.

    Raises:
        QuotaError: The name is empty, the weight is not above 0, or the priority is not a whole number.
    """
    _ = Lanes()[name, weight, priority]  # invalid values raise here
    token = current_lane.set((name, weight, priority))
    try:
        yield
    finally:
        current_lane.reset(token)


Settle = Callable[[Mapping[str, Any] | None], None]
"""Settles a request with its answer; with ``None`` as it was held."""


class Pacer:
    """Keeps every pool at the speed that its quotas allow, for threads and event loops at once.

    Args:
        limits: The quotas of each model.
        worker: Makes the exchanges with the store of shared quotas; ``None``: the quotas are in this process.
        shadow: Where requests are logged in place of being held; ``None``: they are held.
        traffic_log: Where requests that are held are logged, too; ``None``: nowhere.

    The other arguments are those of :class:`~paceline.limiter.limiter.Limiter`.

    Attributes:
        luck: Gives random numbers from 0 to 1, which spread the retries; a simulation has its own.
        jobs: Of requests whose answers are made in the background, by the id of the answer.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        usable: float,
        headroom_s: float | None,
        ttl_s: float,
        waiting_max: int,
        acquire_timeout_s: float | None,
        max_tokens_per_call: float | None,
        retry: RetryPolicy,
        breaker: BreakerPolicy | None,
        lanes: Iterable[LaneSpec],
        priorities: Mapping[str, int] | None,
        estimate_factor: float | None,
        budget: Collection[Quota],
        prices: Mapping[str, Mapping[str, float]] | None,
        events: Callable[[Event], None] | None,
        clock: Clock,
        worker: Worker | None,
        shadow: TrafficLog | None = None,
        traffic_log: TrafficLog | None = None,
    ) -> None:
        if isinstance(usable, bool) or not isinstance(usable, int | float) or not 0 < usable <= 1:
            raise QuotaError(
                f"usable is {usable!r}: it must be a share of the limits, above 0 and at most 1, e.g. 0.85"
            )
        if headroom_s is not None and not 0 <= headroom_s < math.inf:
            raise QuotaError(f"headroom_s is {headroom_s!r}: it must be 0 s or more, or None for an adaptive one")
        if not 0 < ttl_s <= TIMEOUT_MAX_S:
            raise QuotaError(f"ttl_s is {ttl_s!r}: it must be above 0 s, and at most ten years")
        if max_tokens_per_call is not None and not 0 < max_tokens_per_call < math.inf:
            raise QuotaError(
                f"max_tokens_per_call is {max_tokens_per_call!r}: it must be a number of tokens above 0, or None for no bound"
            )
        self.limits = limits
        self.clock = clock
        self.retry = retry
        self.luck: Callable[[], float] = random.random
        self.calibrations = Calibrations(estimate_factor)
        self.health = Health(clock, breaker)
        self.jobs: dict[str, Settle] = {}
        self._usable, self._most_tokens = usable, max_tokens_per_call
        self._headroom_s, self._ttl_s, self._waiting_max = headroom_s, ttl_s, waiting_max
        self.acquire_timeout_s = _checked_timeout(acquire_timeout_s)
        lanes = tuple(lanes)
        self._lanes = Lanes(lanes)
        for pattern, priority in (priorities or {}).items():
            LaneSpec(f"priority of {pattern!r}", priority=priority)  # an invalid one raises here
        self._priorities = tuple((priorities or {}).items())
        self._notifier: Callable[..., None] | None = None
        if events is not None:
            from paceline.pacing.events import Notifier

            self._notifier = Notifier(events)
        if shadow is not None:
            log.warning("shadow: no request is held; each is logged to %s", shadow.path)
        if (permits := traffic_log or shadow) is not None:  # in shadow only those that are acquired by hand
            self._notifier = _logging(permits, self._notifier, clock)
        self.worker = worker
        self.shadow = shadow
        self._lock = threading.RLock()
        self._schedulers: dict[str, Scheduler] = {}  # by pool
        self.allowances = Allowances(self._account, self._prices)
        self._further: dict[str, Scheduler] = {}  # start spacing and providers' slots, by pool
        self._named: dict[str, Scheduler] = {}  # by the name in the call
        self._known_prices: Any = None  # made when a budget needs them
        self._given_prices = dict(prices or {})
        for spec in lanes:
            self.allowances.set(spec.name, spec.limits)
        self.allowances.set(EVERYONE, budget)
        self._own_units: dict[str, set[str]] = {}  # the user's own, of quotas by name, until the first request
        self._unusual: dict[str, list[Quota]] = {}  # given, on units of few providers, until a client's first call

    def acquire(
        self,
        pool: str,
        *,
        timeout: float | None = None,
        lane: str | LaneSpec | None = None,
        again: Permit | None = None,
        name: str | None = None,
        **cost: float,
    ) -> Acquisition:
        """Ask for the right to make one attempt.

        Args:
            pool: The pool: ``openai/gpt-5``, ``gpt-5``, or the user's own name.
            timeout: Seconds to wait at most; one that cannot be met fails at once.
            lane: The class of work; by default that of the surrounding :func:`paceline.lane`.
            again: The refused permit that this attempt follows: the attempt goes to the front of its lane.
            name: A name for the ``queue`` in :meth:`status`; a further attempt keeps it.
            **cost: Amounts per unit, e.g. ``input_tokens=1_200, output_tokens=300``; ``requests`` is 1 by default.

        Returns:
            An object for ``async with``, ``with`` or ``await``, which joins the queue then.

        Raises:
            QuotaError: The pool is unknown, an amount is not a finite number of 0 or more, or the name is too long.
            TooLargeError: The tokens of the cost are above ``max_tokens_per_call``.
        """
        scheduler = self._named.get(pool) or self.scheduler(pool)
        if scheduler.pool.name in self._own_units:
            self._warn_of_left_out(scheduler.pool.name, cost)
        if name is not None and (not isinstance(name, str) or len(name) > NAME_MAX):
            shown = str(name)[:NAME_MAX]
            raise QuotaError(f"name is {shown!r}: it must be a text of at most {NAME_MAX} characters, or None")
        return Acquisition(scheduler, self._waiter(scheduler, cost, timeout, lane, again, name))

    def acquire_call(
        self,
        scheduler: Scheduler,
        estimate: Callable[[], Cost],
        *,
        units: Collection[str] = (),
        again: Permit | None = None,
        behind: bool = False,
        timeout: float | None = None,
        name: str | None = None,
    ) -> Acquisition:
        """Like :meth:`acquire`, for a client's call, with the scheduler of the pool.

        Args:
            scheduler: The scheduler.
            estimate: Returns the amounts per unit, ``requests`` among them, by the present calibration. It is called again when
                the request comes first in the queue: answers may have shown meanwhile that the first estimate was wrong.
            units: The units that the provider counts, beside those of the estimate.
            again: As for :meth:`acquire`.
            behind: Also a further attempt goes to the end of its lane.
            timeout: As for :meth:`acquire`.
            name: As for :meth:`acquire`.
        """
        cost = estimate()
        if self._unusual:
            self._warn_of_unmetered(scheduler.pool.name, {CONCURRENCY, *cost, *units})
        waiter = self._waiter(scheduler, cost, timeout, None, again, name, cost)
        waiter.returned &= not behind
        waiter.estimate = estimate
        return Acquisition(scheduler, waiter)

    def try_acquire(self, pool: str, **cost: float) -> Permit | Later | NeverFits:
        """A permit if it is available now and no other request waits; else ``Later`` or ``NeverFits``, which are false.

        Raises:
            QuotaError, TooLargeError: As for :meth:`acquire`.
            PoolStoppedError: The account has no money left, or the provider asked for a longer wait than the retry policy allows.
            StoreError: The store of the quotas has never answered.
        """
        scheduler = self._named.get(pool) or self.scheduler(pool)
        if scheduler.pool.name in self._own_units:
            self._warn_of_left_out(scheduler.pool.name, cost)
        waiter = self._waiter(scheduler, cost, None, None, None)
        outcome = scheduler.try_grant(waiter)
        if isinstance(outcome, Reservation):
            return Permit(scheduler, waiter, outcome)
        if isinstance(outcome, WaitUntil):
            return Later(scheduler.retry_after_s(outcome), outcome.quota)
        if isinstance(outcome, NeverFits):
            return outcome
        raise as_error(scheduler, waiter, outcome)

    def attempts(self, pool: str, *, retry: RetryPolicy | None = None, **options: Any) -> Attempts:
        """The attempts at one call: wait, try, and try again when the provider refuses.

            for attempt in limiter.attempts("openai/gpt-5", input_tokens=1_200, output_tokens=300):
                with attempt as permit:  # or `async with`
                    permit.settle(client.responses.create(...))

        The loop ends after the first block without a refusal (:func:`~paceline.refusal_of`). After a refusal the pool
        pauses as long as the provider asks; any other error leaves the block. Attached clients retry alike.

        Args:
            pool: The pool.
            retry: The retry policy; by default that of the limiter.
            **options: As for :meth:`acquire`, with the amounts per unit.

        Raises:
            QuotaError: As for :meth:`acquire`.
            GaveUpError: In the loop: no attempt is left, or another one cannot succeed.
        """
        from paceline.pacing.attempts import Attempts

        if "again" in options:
            raise QuotaError("attempts() follows its own refusals: leave out again, or use acquire(..., again=permit)")
        acquire = functools.partial(self.acquire, pool, **options)
        acquire()  # invalid arguments raise here
        return Attempts(self.health, self.scheduler(pool), acquire, retry or self.retry)

    def status(self, queue: int = QUEUE_SHOWN) -> dict[str, Any]:
        """The state of every pool as JSON values: quotas, what is left of them, the queue, what binds, and counts.

        Pools with quotas given by name, and what their providers' models share, are listed before their first use, too,
        in their initial state.

        Args:
            queue: The waiters that are listed for each pool, at most 50.
        """
        with self._lock:
            schedulers, further = dict(self._schedulers), dict(self._further)
        pools = {name: scheduler.status(queue) for name, scheduler in (schedulers | further).items()}
        now_ns, models = self.clock.now_ns(), {name.partition("/")[2] for name in schedulers}
        for name in islice(self.limits.given, POOLS_MAX):
            if "*" not in name and name not in models:  # a model in use has its provider in the name
                resolved = self.limits.resolve(name)
                for one in (resolved, *_provider_wide(resolved)):
                    if one.pool not in pools:
                        pools[one.pool] = report(self._pool(one, now_ns)[0], now_ns)
        pools |= {scheduler.pool.name: scheduler.status(queue) for scheduler in self.allowances.schedulers}
        return {"pools": dict(sorted(pools.items()))}

    def charge(self, lane: str, cost: Cost, usd: Callable[[Any], float], timeout_s: float | None) -> Charge | None:
        """What a request in ``lane`` will hold of the allowances; ``None`` if it has none.

        Args:
            lane: The lane.
            cost: The amounts per unit, without dollars.
            usd: Estimates the price of the request, with the prices.
            timeout_s: The longest wait.
        """
        allowances = self.allowances.of(lane)
        if not allowances:
            return None
        return Charge(allowances, cost, usd, self._prices, timeout_s)

    def _prices(self) -> Any:
        if self._known_prices is None:
            from paceline.providers.prices import Prices

            self._known_prices = Prices(self._given_prices)
        return self._known_prices

    def scheduler(self, pool: str) -> Scheduler:
        """The scheduler of a pool, created at first use.

        Raises:
            QuotaError: The pool is unknown, or there are too many.
        """
        scheduler = self._named.get(pool)
        return scheduler if scheduler is not None else self._make(pool, self.limits.resolve(pool))

    def scheduler_for(self, provider: str, model: str) -> Scheduler:
        """The scheduler of the pool that ``provider`` charges for ``model``."""
        name = f"{provider}/{model}"
        scheduler = self._named.get(name)
        return scheduler if scheduler is not None else self._make(name, self.limits.model(provider, model))

    @property
    def schedulers(self) -> list[Scheduler]:
        """The schedulers of all pools in use."""
        with self._lock:
            return list(self._schedulers.values())

    def _make(self, name: str, resolved: Resolved) -> Scheduler:
        with self._lock:
            scheduler = self._schedulers.get(resolved.pool)
            if scheduler is None:
                if len(self._schedulers) >= POOLS_MAX:
                    raise QuotaError(
                        f"more than {POOLS_MAX:,} pools in one limiter: {name!r} is one too many; use a second limiter"
                    )
                scheduler = self._open(resolved, self.clock.now_ns())
                scheduler.events = self._notifier
                if not resolved.learns:  # for a provider's model all units are derived
                    own_units = {quota.unit for quota in resolved.quotas}.difference(KNOWN_UNITS)
                    if own_units:
                        self._own_units[resolved.pool] = own_units
                scheduler.periods = periods(resolved.quotas)
                quotas = zip(resolved.quotas, resolved.sources, strict=True)
                unusual = [quota for quota, source in quotas if source == GIVEN and quota.unit not in KNOWN_UNITS]
                if unusual:
                    self._unusual[resolved.pool] = unusual
                self._schedulers[resolved.pool] = scheduler
            if len(self._named) < 10 * POOLS_MAX:
                self._named[name] = scheduler
            return scheduler

    def _warn_of_left_out(self, pool: str, cost: Cost) -> None:
        """Warn of each of the user's own units that ``cost``, that of the first request to ``pool``, leaves out.

        Such a unit cannot be derived, so it costs 0, and a request that leaves it out never waits for its quota.
        """
        if not cost.get(REQUESTS, 1):  # no request is sent
            return
        for unit in sorted(self._own_units.pop(pool, set()).difference(cost)):
            warnings.warn(
                f"{pool}: the quota on {unit!r} is not charged, because the request names no amount of it: write"
                f" limiter.acquire({pool!r}, {unit}=1), or {unit}=0 if it uses none",
                PacelineWarning,
                stacklevel=3,
            )

    def _warn_of_unmetered(self, pool: str, units: set[str]) -> None:
        """Warn of each given quota of ``pool`` on a unit that clients' calls never have, at the first call."""
        for quota in self._unusual.pop(pool, ()):
            if quota.unit not in units:
                self.limits.warn(
                    f"{quota} at {pool.partition('/')[0]}",
                    f"{pool}: the limit '{quota}' holds no call of a client back, because calls are counted in"
                    f" {', '.join(sorted(units))}, and not in {quota.unit!r}: give a limit in one of these units, or charge"
                    f" it by hand: limiter.acquire({pool!r}, {quota.unit}=1)",
                )

    def _open(self, resolved: Resolved, now_ns: int) -> Scheduler:
        further = []
        for one in _provider_wide(resolved):
            if one.pool not in self._further:
                pool, worker = self._pool(one, now_ns)
                self._further[one.pool] = Scheduler(pool, self.clock, worker)
            further.append(self._further[one.pool])
        pool, worker = self._pool(resolved, now_ns)
        return ChainedScheduler(pool, self.clock, further, worker) if further else Scheduler(pool, self.clock, worker)

    def _account(self, name: str, quotas: tuple[Quota, ...]) -> Scheduler:
        """The scheduler of an account: its limits are the user's own, and used to the last."""
        quotas = in_days(quotas)
        resolved = Resolved(name, quotas, (GIVEN,) * len(quotas))
        pool, worker = self._pool(resolved, self.clock.now_ns(), own=True)
        return Scheduler(pool, self.clock, worker)

    def _pool(self, resolved: Resolved, now_ns: int, *, own: bool = False) -> tuple[Pool, Worker | None]:
        """A pool, and the worker that shares it; one with a quota that no provider counts is kept in this process.

        Of an ``own`` one nothing is left unused, because no request is on its way to a provider that counts it.
        """
        learns, worker = resolved.learns, self.worker
        if self.shadow is not None:  # nothing is held
            return Pool(resolved.pool, LocalCapacity.of((), now_ns), waiting_max=self._waiting_max), None
        if any(quota.rule in OWN_RULES for quota in resolved.quotas):
            worker = None
        ledger = Ledger(
            resolved.quotas,
            now_ns,
            usable=1.0 if own else self._usable,
            sources=resolved.sources,
            charged_after=resolved.charged_after if worker is None else (),  # a store counts it at admission
            headroom_s=0.0 if own else HEADROOM_S if self._headroom_s is None else self._headroom_s,
            ttl_s=self._ttl_s,
            gentle=bool(learns),
        )
        queue = Queue()
        capacity: Capacity
        if worker is None:
            capacity = LocalCapacity(ledger, learns=learns, adapts=self._headroom_s is None and not own)
        else:
            capacity = worker.capacity(ledger, queue, now_ns, learns=learns)
        return Pool(resolved.pool, capacity, queue, waiting_max=self._waiting_max), worker

    def _waiter(
        self,
        scheduler: Scheduler,
        cost: Cost,
        timeout: float | None,
        lane: str | LaneSpec | None,
        again: Permit | None,
        name: str | None = None,
        units: Collection[str] | None = None,
    ) -> Waiter:
        """A waiter for ``cost``, whose units are known, or those of the quotas, or in ``units``."""
        check_cost(cost, units or scheduler.pool.capacity.ledger.units)
        if REQUESTS not in cost:
            cost[REQUESTS] = 1
        if self._most_tokens is not None and total_tokens(cost) > self._most_tokens:
            raise TooLargeError(scheduler.pool.name, total_tokens(cost), self._most_tokens)
        if again is not None:
            return again.waiter_again(scheduler, cost, name)
        spec = lane if isinstance(lane, LaneSpec) else self._lanes[(lane, None, None) if lane else self._lane_of(name)]
        if timeout is None:
            timeout = self.acquire_timeout_s
        if timeout is None or timeout == math.inf:
            return Waiter(cost, spec, None, name)
        return Waiter(cost, spec, self.clock.now_ns() + round((_checked_timeout(timeout) or 0) * NS), name)

    def _lane_of(self, name: str | None) -> LaneName:
        """The surrounding lane; outside of all lanes, that of the priority of the waiter ``name``."""
        around = current_lane.get()
        if name is not None and self._priorities and around is DEFAULT_LANE:
            for pattern, priority in self._priorities:
                if fnmatchcase(name, pattern):
                    return f"priority {priority}", None, priority
        return around


def _provider_wide(resolved: Resolved) -> list[Resolved]:
    """The pools that all models of the provider share: its slots, and then the spacing of starts.

    A request that waits for its turn to start holds its slot, which others could not use before that turn either.
    """
    provider, wide = resolved.pool.partition("/")[0], []
    if resolved.slots is not None:
        wide.append(Resolved(f"{provider}/in flight", (resolved.slots,), (GIVEN,)))
    if resolved.interval_s:
        spacing = Quota(REQUESTS, 1.0, resolved.interval_s, rule=Rule.EXACT)
        wide.append(Resolved(f"{provider}/spacing", (spacing,), (GIVEN,)))
    return wide


def _logging(permits: TrafficLog, listener: Callable[..., None] | None, clock: Clock) -> Callable[..., None]:
    """A listener that writes the permits that are settled or refused, and calls ``listener``."""

    def listen(kind: str, pool: str, lane: str, waited_s: float, reserved: Cost, used: Cost | None, *rest: Any) -> None:
        if kind in ("settled", "refused"):
            cost, (granted_s, usage, model, status) = reserved | (used or {}), rest[-4:]
            entry = Entry(granted_s - waited_s, pool, lane, model, seconds=clock.now_ns() / NS - granted_s)
            entry.output_tokens, entry.status = cost.get(OUTPUT_TOKENS, 0.0), 429 if kind == "refused" else 200
            if model is not None and kind == "settled":
                entry.status = status
            entry.input_tokens = cost.get(INPUT_TOKENS, max(cost.get(TOKENS, 0.0) - entry.output_tokens, 0.0))
            if usage is not None:
                if entry.output_tokens > usage["output_tokens"]:  # the provider charges what the request allowed
                    entry.max_output_tokens = round(entry.output_tokens)
                entry.input_tokens, entry.output_tokens = usage["input_tokens"], usage["output_tokens"]
            permits.write(entry)
        if listener is not None:
            listener(kind, pool, lane, waited_s, reserved, used, *rest)

    return listen


def _checked_timeout(timeout: float | None) -> float | None:
    if timeout is None or timeout == math.inf:
        return timeout
    if not isinstance(timeout, int | float) or not 0 <= timeout <= TIMEOUT_MAX_S:
        raise QuotaError(f"timeout is {timeout!r}: it must be from 0 s to ten years, or None for none")
    return timeout
