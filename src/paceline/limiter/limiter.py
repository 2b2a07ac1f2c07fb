"""The limiter as users see it: the pacing engine, and the doors to it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Any, ParamSpec, Self, TypeVar, cast

from paceline.core.pool import WAITING_MAX
from paceline.core.queue import LaneSpec
from paceline.core.quota import Cost
from paceline.core.results import QuotaError
from paceline.pacing.breaker import BreakerPolicy
from paceline.pacing.clock import SYSTEM_CLOCK, Clock
from paceline.pacing.events import Event
from paceline.pacing.limits import Limits, QuotaLike
from paceline.pacing.pacer import Pacer
from paceline.pacing.permit import Acquisition, Permit
from paceline.pacing.retry import RetryPolicy

P = ParamSpec("P")
R = TypeVar("R")


class Limiter(Pacer):
    """Keeps every pool at the speed that its quotas allow, for threads and event loops at once.

    Args:
        quotas: Quotas by name: ``{"openai/gpt-5": ["500 requests/min", "500k tokens/min"]}``. A name may be a
            provider's model, a model, ``openai/*``, ``*``, or any word for a pool of your own.
        provider: The provider whose published limits stand behind ``quotas``; ``None`` for none.
        tier: The account's tier at that provider, or at the only one that ``quotas`` names.
        rpm_override: Requests a minute for every model, instead of any other limit on them.
        tpm_override: Tokens a minute, input and output together, for every model, instead of any other limit on them.
        learn: Whether answers correct the limits.
        concurrency: Requests in flight by provider, over all its models; ``*`` for every other provider.
        min_interval_s: The least time between two starts of one pool, in seconds.
        timeout_s: How long a request may wait unless it says so itself, in seconds; ``None``: without end.
        headroom_s: What every quota keeps unused, in seconds of its own refill, against jitter on the way.
        ttl_s: A permit that is neither settled nor cancelled counts as charged in full after this many seconds.
        waiting_max: How many requests may wait in one pool.
        estimate_factor: What estimates of input are multiplied by, on top of their learned ratio; ``None``: a margin
            that is learned from their spread.
        retry: What the HTTP clients below do when the provider refuses.
        breaker: When to stop trying a provider that fails; ``None`` for never.
        lanes: Weights and priorities of lanes, for callers who only name theirs.
        store: Where the quotas are kept when processes share them: a store, a Redis client, or a URL for
            :func:`~paceline.stores.open_store` (``sqlite:PATH``, ``redis://HOST:PORT/DB``, ...). ``None``: in this process.
        on_store_failure: With a store, while it does not answer: ``fail_safe``: go on with this process's share of the
            limits; ``fail_closed``: grant nothing; ``fail_open``: go on as if alone.
        lease_s: With a store: for how many seconds a process may take a share of the rate instead of asking for every
            request. 0: never; ``None``: when the load is high.
        events: Called with an :class:`~paceline.Event` for everything that happens to a permit, in the thread that acts;
            e.g. :func:`~paceline.log_events`. It should be quick, and what it raises is logged.
        clock: The clock; tests bring their own.

    Raises:
        StoreError: The store's URL is invalid, or ``store`` is no store.
        QuotaError: A quota, a tier or another argument is invalid; the message says what would be right.
    """

    def __init__(
        self,
        quotas: Mapping[str, QuotaLike] | None = None,
        *,
        provider: str | None = None,
        tier: str | int | None = None,
        rpm_override: float | None = None,
        tpm_override: float | None = None,
        learn: bool = True,
        concurrency: Mapping[str, int] | None = None,
        min_interval_s: float = 0.0,
        timeout_s: float | None = None,
        headroom_s: float = 1.0,
        ttl_s: float = 900.0,
        waiting_max: int = WAITING_MAX,
        estimate_factor: float | None = None,
        retry: RetryPolicy | None = None,
        breaker: BreakerPolicy | None = BreakerPolicy(),  # noqa: B008  (a frozen value)
        lanes: Iterable[LaneSpec] = (),
        store: object = None,
        on_store_failure: str = "fail_safe",
        lease_s: float | None = None,
        events: Callable[[Event], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        limits = Limits(
            quotas,
            provider=provider,
            tier=tier,
            rpm_override=rpm_override,
            tpm_override=tpm_override,
            learn=learn,
            concurrency=concurrency,
            min_interval_s=min_interval_s,
        )
        if on_store_failure not in {"fail_safe", "fail_closed", "fail_open"}:
            raise QuotaError(
                f"on_store_failure is {on_store_failure!r}: it must be 'fail_safe', 'fail_closed' or 'fail_open'"
            )
        if lease_s is not None:
            from paceline.shared.leases import check_lease

            check_lease(lease_s)
        backend = None
        if store is not None:
            from paceline.shared.worker import StoreWorker
            from paceline.stores import as_store

            backend = StoreWorker(
                as_store(store), clock, on_store_failure=cast("Any", on_store_failure), lease_s=lease_s
            )
        super().__init__(
            limits,
            headroom_s=headroom_s,
            ttl_s=ttl_s,
            waiting_max=waiting_max,
            timeout_s=timeout_s,
            retry=retry or RetryPolicy(),
            breaker=breaker,
            lanes=lanes,
            estimate_factor=estimate_factor,
            events=events,
            clock=clock,
            backend=backend,
        )

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
            tier: The account's tier, e.g. ``2`` or ``build``; the lowest by default.
            quotas: Limits that you know better; they beat the tables.
            **options: As for :class:`Limiter`.

        Raises:
            QuotaError: The tier is unknown.
        """
        return cls(quotas, provider=provider, tier=tier, **options)

    @classmethod
    def load(cls, path: str | PathLike[str] | None = None, **given: Any) -> Self:
        """A limiter as the file ``path`` says, else ``$PACELINE_CONFIG``, else ``paceline.toml`` or ``.yaml`` here.

        Args:
            path: The file, TOML or YAML.
            **given: Settings by name, which beat the environment and the file: ``tier=3``, ``rpm_override=400``, ...; and
                ``events``, ``clock`` and ``store`` as for :class:`Limiter`.

        Raises:
            QuotaError: Settings are invalid; the message lists all of them, each with its place and what would be right.
        """
        from paceline.config import load_arguments

        return cls(**load_arguments(path, **given))

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

        return _paced(take)

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
        """Send the store what is still to be reported, and close it. Without a store, nothing."""
        if self.backend is not None:
            self.backend.close()


def _paced(take: Callable[..., Acquisition]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator, for sync and async functions; ``take`` is given each call's arguments."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def paced_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                async with take(*args, **kwargs) as permit:
                    result = await function(*args, **kwargs)
                    _settle(permit, result)
                    return result

            return cast("Callable[P, R]", paced_async)

        @functools.wraps(function)
        def paced_sync(*args: P.args, **kwargs: P.kwargs) -> R:
            with take(*args, **kwargs) as permit:
                result = function(*args, **kwargs)
                _settle(permit, result)
                return result

        return paced_sync

    return decorate


def _settle(permit: Permit, result: object) -> None:
    """Settle with what ``result`` reports; as reserved when it reports nothing."""
    if permit.open:
        try:
            permit.settle(result)
        except QuotaError:
            permit.settle()
