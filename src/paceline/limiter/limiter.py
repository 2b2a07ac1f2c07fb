"""The limiter: the pools of one key, and every way to ask them."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar

from paceline.core.pool import WAITING_MAX, Pool
from paceline.core.queue import Lanes, LaneSpec, Waiter
from paceline.core.quota import KNOWN_UNITS, NS, REQUESTS, Cost
from paceline.core.results import NeverFits, QuotaError, Reservation, WaitUntil
from paceline.estimation.calibration import Calibrations
from paceline.limiter.paced import paced
from paceline.pacing.breaker import BreakerPolicy, Faults
from paceline.pacing.clock import SYSTEM_CLOCK, Clock
from paceline.pacing.lanes import current_lane
from paceline.pacing.limits import Limits, QuotaLike, Resolved
from paceline.pacing.permit import Acquisition, Later, Permit, as_error, check_cost
from paceline.pacing.retry import RetryPolicy
from paceline.pacing.scheduler import Scheduler
from paceline.pacing.status import NamedWaiter

if TYPE_CHECKING:
    from paceline.pacing.attempts import Attempts
    from paceline.pacing.events import Event
    from paceline.shared.worker import StoreWorker
    from paceline.stores.base import Store

P = ParamSpec("P")
R = TypeVar("R")

POOLS_MAX = 10_000
"""How many pools one limiter keeps: model names come from outside, and memory has an end."""

LEASE_MAX_S = 60.0
TIMEOUT_MAX_S = 10 * 366 * 86_400.0
"""Ten years: what is longer is a mistake."""


class Limiter(Faults):
    """Keeps every pool at the speed that its quotas allow, for threads and event loops at once.

    Args:
        quotas: Quotas by name: ``{"openai/gpt-5": ["500 requests/min", "500k tokens/min"]}``. A name may be a
            provider's model, a model, ``openai/*``, ``*``, or any word for a pool of your own.
        headroom_s: What every quota keeps unused, in seconds of its own refill, against jitter on the way.
        ttl_s: A permit that is neither settled nor cancelled counts as charged in full after this many seconds.
        waiting_max: How many may wait in one pool.
        retry: What the HTTP clients below do when the provider refuses.
        breaker: When to stop trying a provider that fails; ``None`` for never.
        lanes: Weights and priorities of lanes, for callers who only name theirs.
        store: Where the books are kept when processes share the quotas: a store, or a URL for
            :func:`~paceline.stores.open_store` (``sqlite:PATH``, ``redis://HOST:PORT/DB``, ...). ``None``: in this process.
        lost: With a store: what to do while it cannot be asked. ``safe``: go on with this process's share of the limits;
            ``closed``: let nobody go; ``open``: go on as if alone.
        lease_s: With a store: for how many seconds a process may take a share of the rate instead of asking for every
            request. 0: never; ``None``: when the load is high.
        events: Called with an :class:`~paceline.Event` for everything that happens to a permit, in the thread that acts;
            e.g. :func:`~paceline.log_events`. It should be quick, and what it raises is logged.
        clock: The clock; tests bring their own.

    Raises:
        StoreError: The store's URL cannot be meant, or this is no store.
        QuotaError: A quota, or another argument, cannot be read; the message says what would be right.
    """

    def __init__(
        self,
        quotas: Mapping[str, QuotaLike] | None = None,
        *,
        headroom_s: float = 1.0,
        ttl_s: float = 900.0,
        waiting_max: int = WAITING_MAX,
        retry: RetryPolicy | None = None,
        breaker: BreakerPolicy | None = BreakerPolicy(),  # noqa: B008  (a frozen value)
        lanes: Iterable[LaneSpec] = (),
        store: Store | str | None = None,
        lost: Literal["safe", "closed", "open"] = "safe",
        lease_s: float | None = None,
        events: Callable[[Event], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if not 0 <= headroom_s < float("inf"):
            raise QuotaError(f"headroom_s is {headroom_s!r}: it must be 0 s or more")
        if not 0 < ttl_s <= TIMEOUT_MAX_S:
            raise QuotaError(f"ttl_s is {ttl_s!r}: it must be above 0 s, and no more than ten years")
        if lost not in {"safe", "closed", "open"}:
            raise QuotaError(f"lost is {lost!r}: it must be 'safe', 'closed' or 'open'")
        if lease_s is not None and (type(lease_s) not in (int, float) or not 0 <= lease_s <= LEASE_MAX_S):
            raise QuotaError(f"lease_s is {lease_s!r}: it must be from 0 to {LEASE_MAX_S:g} s, or None")
        self.limits = Limits(quotas)
        super().__init__(clock, retry, breaker)
        self._options: dict[str, Any] = {"headroom_s": headroom_s, "ttl_s": ttl_s, "waiting_max": waiting_max}
        self._teller = _teller(events)
        self._worker = _worker(store, clock)
        self._shared: dict[str, Any] = {"lost": lost, "lease_s": lease_s}
        self.calibrations = Calibrations()
        self._lanes = Lanes(lanes)
        self._named: dict[str, Scheduler] = {}  # by whatever a caller called it

    @classmethod
    def for_provider(
        cls,
        provider: str,
        *,
        tier: str | int | None = None,
        quotas: Mapping[str, QuotaLike] | None = None,
        **options: Any,
    ) -> Self:
        """A limiter with the published limits of ``provider``; the answers correct them.

        Args:
            provider: ``openai``, ``anthropic`` (or ``claude``), or any other name.
            tier: The account's tier, e.g. ``2`` or ``build``; the lowest when not given.
            quotas: What you know better; it beats the tables.
            **options: As for :class:`Limiter`.

        Raises:
            QuotaError: The tier is unknown.
        """
        from paceline.providers.registry import provider_named
        from paceline.providers.tables import lookup

        limiter = cls(**options)
        name = provider_named(provider).name
        limiter.limits = Limits(quotas, provider=name, tier=tier)
        if tier is not None:
            lookup(name, "default", tier)  # an unknown tier is said now, not at the first request
        return limiter

    @classmethod
    def load(cls, path: str | PathLike[str] | None = None, **given: Any) -> Limiter:
        """A limiter as the file ``path`` says, else ``$PACELINE_CONFIG``, else ``paceline.toml`` or ``.yaml`` here.

        Args:
            path: The file, TOML or YAML.
            **given: Settings by name, which beat the environment and the file: ``tier=3``, ``rpm_override=400``, ...; and
                ``events`` and ``clock``, as for :class:`Limiter`.

        Raises:
            QuotaError: Settings cannot be meant; all of them are told, where they stand and what would be right.
        """
        from paceline.config import load_limiter

        return load_limiter(path, **given)

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
            pool: Whose quotas: ``openai/gpt-5``, ``gpt-5``, or a name of your own.
            timeout: Seconds to wait at most; one that cannot be met fails at once.
            lane: The class of work; by default that of the surrounding :func:`lane`.
            again: The refused permit that this attempt follows: it returns to its place at the front.
            name: Who waits, for the ``queue`` in :meth:`status`; another attempt keeps it.
            **cost: Amounts per unit, e.g. ``input_tokens=1_200, output_tokens=300``; ``requests`` is 1 unless said.

        Returns:
            An object for ``async with``, ``with`` or ``await``; nothing happens before.

        Raises:
            QuotaError: The pool is unknown, the cost is not a finite number, 0 or more, or the name is no short text.
        """
        scheduler = self._named.get(pool) or self.scheduler(pool)
        if scheduler.own_units:
            scheduler.left_out(cost)
        waiter = self._waiter(scheduler, cost, timeout, lane, again)
        return Acquisition(scheduler, waiter if name is None else NamedWaiter(waiter, name))

    def attempts(self, pool: str, *, retry: RetryPolicy | None = None, **options: Any) -> Attempts:
        """The attempts at one call: wait, try, and try again when the provider refuses.

            for attempt in limiter.attempts("openai/gpt-5", input_tokens=1_200, output_tokens=300):
                with attempt as permit:  # or `async with`
                    permit.settle(client.responses.create(...))

        The loop ends with the first block that is left in peace. A refusal (:func:`~paceline.refusal_of`) makes the pool
        wait as long as the provider asks; any other error leaves the block. Attached clients do all this by themselves.

        Args:
            pool: Whose quotas.
            retry: How often, and how long to wait where the provider does not say; the limiter's policy if not given.
            **options: As for :meth:`acquire`, the amounts per unit among them.

        Raises:
            QuotaError: As for :meth:`acquire`; and in the loop, ``GaveUpError`` when no attempt is left, or none can help.
        """
        from paceline.pacing.attempts import Attempts

        acquire = functools.partial(self.acquire, pool, **options)
        acquire()  # what cannot be meant is said now
        return Attempts(self, self.scheduler(pool), acquire, retry or self.retry)

    def acquire_call(self, scheduler: Scheduler, cost: Cost, *, again: Permit | None = None) -> Acquisition:
        """Like :meth:`acquire`, for a pool that is at hand."""
        return Acquisition(scheduler, self._waiter(scheduler, cost, None, None, again))

    def try_acquire(self, pool: str, **cost: float) -> Permit | Later | NeverFits:
        """The permit if it can be had now and nobody waits; else when to ask again, or that it never fits.

        Raises:
            QuotaError: As for :meth:`acquire`.
            PoolStoppedError: The provider said that money is gone.
        """
        scheduler = self._named.get(pool) or self.scheduler(pool)
        if scheduler.own_units:
            scheduler.left_out(cost)
        waiter = self._waiter(scheduler, cost, None, None, None)
        outcome = scheduler.attempt(waiter)
        if isinstance(outcome, Reservation):
            return Permit(scheduler, waiter, outcome)
        if isinstance(outcome, WaitUntil):
            return Later(scheduler.retry_after_s(outcome), outcome.quota)
        if isinstance(outcome, NeverFits):
            return outcome
        raise as_error(scheduler, waiter, outcome)

    def estimate(self, pool: str, asked: object, *, output_tokens: int | None = None) -> Cost:
        """What a request would reserve, for ``limiter.acquire(pool, **cost)``; as when it passes an attached client.

        Args:
            pool: Whose quotas, as for :meth:`acquire`; its provider says what is held.
            asked: A text, a list of messages, or a request's body. Of long texts a sample is read, of a large body the
                first 200 000 parts.
            output_tokens: The most output that the request asks for (``max_tokens``), where the body does not say.

        Returns:
            ``input_tokens`` and ``output_tokens``, and the pool's other units that its provider holds. The input is
            corrected by what answers over HTTP have taught about the model. The output is what the provider books:
            the maximum (OpenAI), or what is to be expected of it (Anthropic).

        Raises:
            QuotaError: The pool is unknown, or ``asked`` is none of these.
        """
        from paceline.http.describe import estimate

        return estimate(self, pool, asked, output_tokens)

    def paced(
        self,
        pool: str,
        *,
        cost: Callable[..., Mapping[str, float]] | None = None,
        timeout: float | None = None,
        **units: float,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Let every call of a function, sync or async, take a permit first.

        Args:
            pool: Whose quotas.
            cost: Given the call's arguments, its amounts per unit.
            timeout: Seconds to wait at most.
            **units: The same amounts for every call, instead of ``cost``.

        The permit is settled with the function's result when that reports usage, and as reserved otherwise.
        """

        def take(*args: Any, **kwargs: Any) -> Acquisition:
            price: dict[str, Any] = {**units, **(cost(*args, **kwargs) if cost else {})}
            return self.acquire(pool, timeout=timeout, **price)

        return paced(take)

    def attach(self, client: Any, *, provider: str | None = None) -> Any:
        """Pace ``client`` in place: an SDK's client, or any object with an httpx or httpx2 client inside.

        Args:
            client: The client; attached twice, it is paced once.
            provider: Whose dialect it speaks, where its address does not tell.

        Returns:
            The same client.

        Raises:
            TypeError: There is no httpx or httpx2 client inside.
        """
        from paceline.http.attach import attach

        attach(self, client, provider)
        return client

    def close(self) -> None:
        """Tell the store what is still to be told, and let go of it. Without a store, nothing."""
        if self._worker is not None:
            self._worker.close()

    def status(self) -> dict[str, Any]:
        """Every pool: its quotas and what is left, who waits, what binds, and what has happened; plain JSON values.

        Pools that quotas were given for by name are there before their first use, as they would be then.
        """
        with self._lock:
            schedulers = dict(self._schedulers)
        pools = {name: scheduler.status() for name, scheduler in schedulers.items()}
        now_ns, models = self.clock.now_ns(), {name.partition("/")[2] for name in schedulers}
        for name in islice(self.limits.given, POOLS_MAX):
            if "*" not in name and name not in models:  # a model without its provider is in use under both names
                resolved = self.limits.resolve(name)
                if resolved.pool not in pools:
                    pools[resolved.pool] = self._pool(resolved, now_ns, self._options_of(resolved)).status(now_ns)
        return {"pools": dict(sorted(pools.items()))}

    def scheduler(self, pool: str) -> Scheduler:
        """The shared side of a pool, made at first use.

        Raises:
            QuotaError: The pool is unknown, or there are too many.
        """
        scheduler = self._named.get(pool)
        return scheduler if scheduler is not None else self._make(pool, self.limits.resolve(pool))

    def scheduler_for(self, provider: str, model: str) -> Scheduler:
        """The pool that ``provider`` charges for ``model``."""
        name = f"{provider}/{model}"
        scheduler = self._named.get(name)
        return scheduler if scheduler is not None else self._make(name, self.limits.model(provider, model))

    def _make(self, name: str, resolved: Resolved) -> Scheduler:
        with self._lock:
            scheduler = self._schedulers.get(resolved.pool)
            if scheduler is None:
                if len(self._schedulers) >= POOLS_MAX:
                    raise QuotaError(f"more than {POOLS_MAX:,} pools in one limiter: {name!r} is one too many")
                scheduler = self._open(resolved, self.clock.now_ns(), self._options_of(resolved))
                scheduler.events = self._teller
                if not resolved.remote:  # a provider's page derives its units
                    scheduler.own_units = {quota.unit for quota in resolved.quotas}.difference(KNOWN_UNITS)
                self._schedulers[resolved.pool] = scheduler
            if len(self._named) < 10 * POOLS_MAX:
                self._named[name] = scheduler
            return scheduler

    def _options_of(self, resolved: Resolved) -> dict[str, Any]:
        return {"source": resolved.source, "gentle": resolved.remote, **self._options}

    def _open(self, resolved: Resolved, now_ns: int, options: dict[str, Any]) -> Scheduler:
        pool = self._pool(resolved, now_ns, options)
        if self._worker is None:
            return Scheduler(pool, self.clock)
        from paceline.shared.capacity import SharedCapacity
        from paceline.shared.worker import SharedScheduler

        assert isinstance(pool, SharedCapacity)
        return SharedScheduler(pool, self.clock, self._worker)

    def _pool(self, resolved: Resolved, now_ns: int, options: dict[str, Any]) -> Pool:
        if self._worker is None:
            return Pool(resolved.pool, resolved.quotas, now_ns, **options)
        from paceline.shared.capacity import SharedCapacity

        return SharedCapacity(
            resolved.pool, resolved.quotas, now_ns, who=os.urandom(16).hex(), **self._shared, **options
        )

    def _waiter(
        self, scheduler: Scheduler, cost: Cost, timeout: float | None, lane: str | LaneSpec | None, again: Permit | None
    ) -> Waiter:
        check_cost(cost, scheduler.pool.ledger.units)
        if REQUESTS not in cost:
            cost[REQUESTS] = 1
        if again is not None:
            return again.waiter_again(scheduler, cost)
        spec = lane if isinstance(lane, LaneSpec) else self._lanes[(lane, None, None) if lane else current_lane.get()]
        if timeout is None or timeout == math.inf:
            return Waiter(cost, spec)
        if not isinstance(timeout, int | float) or not 0 <= timeout <= TIMEOUT_MAX_S:
            raise QuotaError(f"timeout is {timeout!r}: it must be 0 s or more, or None for no end")
        return Waiter(cost, spec, self.clock.now_ns() + round(timeout * NS))


def _teller(events: Callable[[Event], None] | None) -> Callable[..., None] | None:
    if events is None:
        return None
    from paceline.pacing.events import Teller

    return Teller(events)


def _worker(store: Store | str | None, clock: Clock) -> StoreWorker | None:
    if store is None:
        return None
    from paceline.shared.worker import StoreWorker
    from paceline.stores import as_store

    return StoreWorker(as_store(store), clock)
