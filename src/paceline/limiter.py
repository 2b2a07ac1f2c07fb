"""The limiter: the pools of one key, and every way to ask them."""

from __future__ import annotations

import functools
import inspect
import logging
import math
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, cast

from paceline.clock import SYSTEM_CLOCK, Clock
from paceline.core.breaker import Breaker, BreakerPolicy
from paceline.core.line import LaneName, Lanes, LaneSpec, Ticket
from paceline.core.outcomes import Granted, NeverFits, QuotaError, WaitUntil
from paceline.core.pool import WAITING_MAX, Pool
from paceline.core.quota import NS, REQUESTS, Cost
from paceline.core.retry import RetryBudget, RetryPolicy
from paceline.gate import Gate
from paceline.lessons import Teacher
from paceline.limits import Limits, QuotaLike, Resolved
from paceline.permit import Acquisition, Later, Permit, as_error, check_cost

if TYPE_CHECKING:
    from paceline.shared import Courier
    from paceline.stores.base import Store

log = logging.getLogger("paceline")
P = ParamSpec("P")
R = TypeVar("R")

POOLS_MAX = 10_000
"""How many pools one limiter keeps: model names come from outside, and memory has an end."""

LEASE_MAX_S = 60.0
TIMEOUT_MAX_S = 10 * 366 * 86_400.0
"""Ten years: what is longer is a mistake."""

_lane: ContextVar[LaneName] = ContextVar("paceline_lane", default=("default", None, None))


@contextmanager
def lane(name: str, *, weight: float | None = None, priority: int | None = None) -> Iterator[None]:
    """Everything acquired inside goes through the lane ``name``, however deep inside an SDK.

    Args:
        name: The lane; its latest weight and priority hold for everybody in it.
        weight: Its share among busy lanes of the same priority; what the limiter knows, or 1.
        priority: Higher goes first, strictly; what the limiter knows, or 0.
    """
    Lanes().spec((name, weight, priority))  # what cannot be meant is said here
    token = _lane.set((name, weight, priority))
    try:
        yield
    finally:
        _lane.reset(token)


class Limiter:
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
        lost: What to do while the store cannot be asked: ``safe``: go on with this process's share of the limits;
            ``closed``: let nobody go; ``open``: go on as if alone.
        lease_s: With a store: for how many seconds a process may take a share of the rate instead of asking for every
            request. 0: never; ``None``: when the load is high.
        clock: The clock; tests bring their own.

    Raises:
        StoreError: The store's URL cannot be meant.
        QuotaError: A quota cannot be read; the message says what would be right.
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
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if not 0 <= headroom_s < float("inf"):
            raise QuotaError(f"headroom_s is {headroom_s!r}: it must be 0 s or more")
        if not 0 < ttl_s <= TIMEOUT_MAX_S:
            raise QuotaError(f"ttl_s is {ttl_s!r}: it must be above 0 s, and no more than ten years")
        if lost not in {"safe", "closed", "open"}:
            raise QuotaError(f"lost is {lost!r}: it must be 'safe', 'closed' or 'open'")
        if lease_s is not None and not 0 <= lease_s <= LEASE_MAX_S:
            raise QuotaError(f"lease_s is {lease_s!r}: it must be from 0 to {LEASE_MAX_S:g} s, or None")
        self.limits = Limits(quotas)
        self.retry = retry or RetryPolicy()
        self.clock = clock
        self._options: dict[str, Any] = {"headroom_s": headroom_s, "ttl_s": ttl_s, "waiting_max": waiting_max}
        self._courier = _courier(store, clock)
        self._shared: dict[str, Any] = {"lost": lost, "lease_s": lease_s}
        self.teacher = Teacher()
        self._lanes = Lanes(lanes)
        self._breaker = breaker
        self._breakers: dict[str, Breaker] = {}  # by provider
        self._budgets: dict[str, RetryBudget] = {}  # by pool
        self._gates: dict[str, Gate] = {}  # by pool
        self._named: dict[str, Gate] = {}  # by whatever a caller called it
        self._lock = threading.RLock()

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
    def load(cls, path: str | PathLike[str] | None = None) -> Limiter:
        """A limiter as the file ``path`` says, else ``$PACELINE_CONFIG``, else ``paceline.toml`` or ``.yaml`` here.

        Raises:
            QuotaError: Settings cannot be meant; all of them are told, where they stand and what would be right.
        """
        from paceline.config import load_limiter

        return load_limiter(path)

    def acquire(
        self,
        pool: str,
        *,
        timeout: float | None = None,
        lane: str | LaneSpec | None = None,
        again: Permit | None = None,
        **cost: float,
    ) -> Acquisition:
        """Ask for the right to make one attempt.

        Args:
            pool: Whose quotas: ``openai/gpt-5``, ``gpt-5``, or a name of your own.
            timeout: Seconds to wait at most; one that cannot be met fails at once.
            lane: The class of work; by default that of the surrounding :func:`lane`.
            again: The refused permit that this attempt follows: it returns to its place at the front.
            **cost: Amounts per unit, e.g. ``input_tokens=1_200, output_tokens=300``; ``requests`` is 1 unless said.

        Returns:
            An object for ``async with``, ``with`` or ``await``; nothing happens before.

        Raises:
            QuotaError: The pool is unknown or the cost is not a finite number, 0 or more.
        """
        gate = self._named.get(pool) or self.gate(pool)
        return Acquisition(gate, self._ticket(gate, cost, timeout, lane, again))

    def acquire_call(self, gate: Gate, cost: Cost, *, again: Permit | None = None) -> Acquisition:
        """Like :meth:`acquire`, for a pool that is at hand."""
        return Acquisition(gate, self._ticket(gate, cost, None, None, again))

    def try_acquire(self, pool: str, **cost: float) -> Permit | Later | NeverFits:
        """The permit if it can be had now and nobody waits; else when to ask again, or that it never fits.

        Raises:
            QuotaError: As for :meth:`acquire`.
            PoolStoppedError: The provider said that money is gone.
        """
        gate = self._named.get(pool) or self.gate(pool)
        ticket = self._ticket(gate, cost, None, None, None)
        outcome = gate.enter(ticket)
        if type(outcome) is Granted:
            return Permit(gate, ticket, outcome.reservation)
        if isinstance(outcome, WaitUntil):
            return Later(max(outcome.at_ns - gate.now_ns(), 0) / NS, outcome.quota)
        if isinstance(outcome, NeverFits):
            return outcome
        raise as_error(gate, ticket, outcome)

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

        def take(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Acquisition:
            price = {**units, **(cost(*args, **kwargs) if cost else {})}
            return Acquisition(gate := self.gate(pool), self._ticket(gate, price, timeout, None, None))

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if inspect.iscoroutinefunction(function):

                @functools.wraps(function)
                async def paced_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                    async with take(args, kwargs) as permit:
                        result = await function(*args, **kwargs)
                        _settle(permit, result)
                        return result

                return cast("Callable[P, R]", paced_async)

            @functools.wraps(function)
            def paced_sync(*args: P.args, **kwargs: P.kwargs) -> R:
                with take(args, kwargs) as permit:
                    result = function(*args, **kwargs)
                    _settle(permit, result)
                    return result

            return paced_sync

        return decorate

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

    def succeeded(self, provider: str) -> None:
        """An answer of ``provider`` came; if its breaker was open, that ends the pause."""
        breaker = self._breakers.get(provider)
        if breaker is not None and breaker.in_row:
            with self._lock:
                until_ns = breaker.open_until_ns
                breaker.succeeded()
                gates = self._gates_of(provider) if until_ns else []
            for gate in gates:
                gate.lift(until_ns)

    def failed(self, provider: str, left_ns: int) -> None:
        """An attempt at ``provider`` that left at ``left_ns`` failed; too many in a row pause all of its pools."""
        if self._breaker is None:
            return
        with self._lock:
            breaker = self._breakers.setdefault(provider, Breaker(self._breaker))
            opened = breaker.failed(self.clock.now_ns(), left_ns)
            until_ns, in_row, gates = breaker.open_until_ns, breaker.in_row, self._gates_of(provider)
        if opened:
            log.warning("%s: %d failures in a row; pausing for %g s", provider, in_row, self._breaker.pause_s)
            for gate in gates:
                gate.pause(until_ns)

    def _gates_of(self, provider: str) -> list[Gate]:
        return [gate for name, gate in self._gates.items() if name.partition("/")[0] == provider]

    def retry_delay_s(self, gate: Gate) -> float:
        """Spend one retry of the pool's budget; how long to wait for it, in seconds."""
        now_ns = self.clock.now_ns()
        with self._lock:
            return self._budget(gate, now_ns).spend(now_ns)

    def first_attempt(self, gate: Gate) -> None:
        """A request makes its first attempt: it earns a share of a retry."""
        with self._lock:
            self._budget(gate, self.clock.now_ns()).earn()

    def _budget(self, gate: Gate, now_ns: int) -> RetryBudget:
        return self._budgets.setdefault(gate.pool.name, RetryBudget(now_ns))

    def close(self) -> None:
        """Tell the store what is still to be told, and let go of it. Without a store, nothing."""
        if self._courier is not None:
            self._courier.close()

    def status(self) -> dict[str, Any]:
        """Every pool: its quotas and what is left, who waits, what binds, and what has happened; plain JSON values."""
        with self._lock:
            gates = dict(self._gates)
        return {"pools": {name: gate.status() for name, gate in sorted(gates.items())}}

    def gate(self, pool: str) -> Gate:
        """The shared side of a pool, made at first use.

        Raises:
            QuotaError: The pool is unknown, or there are too many.
        """
        gate = self._named.get(pool)
        return gate if gate is not None else self._make(pool, self.limits.resolve(pool))

    def gate_for(self, provider: str, model: str) -> Gate:
        """The pool that ``provider`` charges for ``model``."""
        name = f"{provider}/{model}"
        gate = self._named.get(name)
        return gate if gate is not None else self._make(name, self.limits.model(provider, model))

    def _make(self, name: str, resolved: Resolved) -> Gate:
        with self._lock:
            gate = self._gates.get(resolved.pool)
            if gate is None:
                if len(self._gates) >= POOLS_MAX:
                    raise QuotaError(f"more than {POOLS_MAX:,} pools in one limiter: {name!r} is one too many")
                options = {"source": resolved.source, "gentle": resolved.remote, **self._options}
                gate = self._gates[resolved.pool] = self._open(resolved, self.clock.now_ns(), options)
            if len(self._named) < 10 * POOLS_MAX:
                self._named[name] = gate
            return gate

    def _open(self, resolved: Resolved, now_ns: int, options: dict[str, Any]) -> Gate:
        if self._courier is None:
            return Gate(Pool(resolved.pool, resolved.quotas, now_ns, **options), self.clock)
        from paceline.core.branch import Branch
        from paceline.shared import SharedGate

        branch = Branch(resolved.pool, resolved.quotas, now_ns, who=uuid.uuid4().hex, **self._shared, **options)
        return SharedGate(branch, self.clock, self._courier)

    def _ticket(
        self, gate: Gate, cost: Cost, timeout: float | None, lane: str | LaneSpec | None, again: Permit | None
    ) -> Ticket:
        check_cost(cost, gate.pool.ledger.units)
        if REQUESTS not in cost:
            cost[REQUESTS] = 1
        if again is not None:
            return again.ticket_again(gate, cost)
        spec = lane if isinstance(lane, LaneSpec) else self._lanes.spec((lane, None, None) if lane else _lane.get())
        if timeout is None or timeout == math.inf:
            return Ticket(cost, spec)
        if not 0 <= timeout <= TIMEOUT_MAX_S:
            raise QuotaError(f"timeout is {timeout!r}: it must be 0 s or more, or None for no end")
        return Ticket(cost, spec, self.clock.now_ns() + round(timeout * NS))


def _courier(store: Store | str | None, clock: Clock) -> Courier | None:
    if store is None:
        return None
    from paceline.shared import Courier
    from paceline.stores import open_store

    return Courier(open_store(store) if isinstance(store, str) else store, clock)


def _settle(permit: Permit, result: object) -> None:
    """Settle with what ``result`` reports; as reserved when it reports nothing."""
    if permit.open:
        try:
            permit.settle(result)
        except QuotaError:
            permit.settle()
