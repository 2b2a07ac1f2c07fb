"""The public class :class:`Limiter`: pools by name, decorators, attached clients and configuration files."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import islice
from os import PathLike
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, cast

from paceline.core.hints import did_you_mean
from paceline.core.quota import NS, Cost
from paceline.core.results import SettingsError, public, warn
from paceline.limiter.past import watch
from paceline.pacing.clock import SYSTEM_CLOCK
from paceline.pacing.limits import Limits
from paceline.pacing.owners import is_async
from paceline.pacing.pacer import BaseLimiter, Pacer
from paceline.pacing.permit import Permit, TokensApartError
from paceline.pacing.pools import Pools
from paceline.pacing.retry import RetryPolicy
from paceline.pacing.settings import PacingSettings, QuotaLike, arguments_of, documented, parsed
from paceline.pacing.status import QUEUE_SHOWN, Status, requests_per_minute

if TYPE_CHECKING:
    from paceline.shared.worker import StoreWorker
    from paceline.telemetry.server import StatusServer

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")


REPR_POOLS = 3
"""How many pools a limiter shows where it is printed."""


@public
class Limiter(BaseLimiter):
    """Send requests at the speed that your quotas allow, from threads and event loops.

    Raises:
        StoreError: The URL of the store is invalid, or ``store`` is not a store.
        QuotaError: A quota or a pool is invalid.
        SettingsError: Another argument is invalid, or a package that it needs is missing.

    Example:
        limiter = paceline.Limiter({"openai/gpt-6-luna": ["500 requests/min", "200k tokens/min"]})
        client = limiter.attach(openai.AsyncOpenAI())
        answer = await client.responses.create(model="gpt-6-luna", input=prompt)
    """

    @arguments_of(PacingSettings)
    def __init__(self, settings: PacingSettings) -> None:
        worker = _worker(settings)
        super().__init__(settings, Limits(settings), worker)
        if worker is not None:
            worker.stored_as = self.pacer.pools.stored_as
            _keep_outputs(worker, self.pacer)
        if not Pools.used and settings.clock is SYSTEM_CLOCK:
            watch()

    @classmethod
    def for_provider(
        cls,
        provider: str,
        *,
        tier: str | int | None = None,
        quotas: Mapping[str, QuotaLike] | None = None,
        **options: Any,
    ) -> Self:
        """Return a limiter with the published limits of ``provider``, which responses correct.

        Args:
            provider: ``openai``, ``anthropic`` (or ``claude``), or another known name; ``openai@eu`` is one with quotas of its own.
            tier: The tier of the account, e.g. ``2`` or ``build``; the lowest by default.
            quotas: Quotas that take precedence over the published limits.
            **options: As for :class:`Limiter`.

        Raises:
            SettingsError: The tier is unknown, or the provider is unknown and you gave no ``quotas``.

        Example:
            limiter = paceline.Limiter.for_provider("openai", tier=2)
        """
        from paceline.providers.registry import PROVIDERS, is_provider
        from paceline.providers.tables import known_providers

        if not quotas and isinstance(provider, str) and provider.strip() and not is_provider(provider):
            hint = did_you_mean(provider, PROVIDERS, cutoff=0.75) or f"; known are {', '.join(known_providers())}"
            raise SettingsError(f"the limits of provider {provider!r} are not known: give quotas, too{hint}")
        return cls(quotas, provider=provider, tier=tier, **options)

    @classmethod
    def load(cls, path: str | PathLike[str] | None = None, **given: Any) -> Self:
        """Return a limiter with the settings of a file: ``path``, ``$PACELINE_CONFIG``, or ``paceline.toml`` here.

        Args:
            path: The file, TOML or YAML.
            **given: Settings by name, which take precedence over the environment and the file: ``tier=3``,
                ``rpm_override=400``, ...; and ``events``, ``clock`` and ``store`` as for :class:`Limiter`.

        Raises:
            SettingsError: The file can't be read, or settings are invalid; the message lists all of them, each with its place and the valid values.

        Example:
            limiter = paceline.Limiter.load("paceline.toml", usable=0.85)
        """
        from paceline.config import load_arguments

        return cls(**load_arguments(path, **given))

    @property
    def limits(self) -> Limits:
        """The quotas of each model, before answers correct them."""
        return self.pacer.pools.limits

    def resume(self, pool: str) -> None:
        """End the stop of a pool, after you have paid or have waited long enough: its requests go at once.

        If the pool isn't stopped, nothing changes. In other processes that share the pool, call it too.

        Args:
            pool: The pool, as :class:`PoolStoppedError` names it.

        Raises:
            QuotaError: The pool is unknown.

        Example:
            try:
                permit = limiter.acquire("openai/gpt-6-luna", tokens=800).wait()
            except paceline.PoolStoppedError as error:
                print(error.reason)
                limiter.resume(error.pool)
        """
        self.pacer.pools.scheduler(pool).resume()

    def max_safe_concurrent(self, pool: str) -> int:
        """Return the useful number of requests in flight in this pool: half a minute's, by the present limits.

        You can start any number of requests, but more would only wait, and use memory and sockets.

        Args:
            pool: The pool, as for :meth:`acquire`.

        Raises:
            QuotaError: The pool is unknown.

        Example:
            slots = asyncio.Semaphore(limiter.max_safe_concurrent("openai/gpt-6-luna"))
        """
        return max(1, requests_per_minute(self.pacer.pools.scheduler(pool).status()) // 2)

    def estimate(self, pool: str, asked: object = None, *, output_tokens: int | None = None) -> Cost:
        """Return the cost that a request would reserve, for ``limiter.acquire(pool, **cost)``.

        Args:
            pool: The pool, as for :meth:`acquire`.
            asked: A text, a list of messages, or the body of a request; ``None`` if you know nothing about it:
                paceline then assumes 600 tokens of input and 200 of output. paceline reads a sample of long texts,
                and the first 200,000 parts of a large body.
            output_tokens: The maximum output of the request (``max_tokens``), if it is not in the body.

        Returns:
            ``input_tokens`` and ``output_tokens``, and the other units that the provider of the pool charges at the
            start.
            The input is corrected by the answers of the model, through attached clients and
            ``permit.settle(answer)``. The output is the maximum (OpenAI), or the expected output (Anthropic).

        Raises:
            QuotaError: The pool is unknown, or ``asked`` is of another type.

        Example:
            cost = limiter.estimate("openai/gpt-6-luna", messages, output_tokens=300)
            async with limiter.acquire("openai/gpt-6-luna", **cost) as permit:
                permit.settle(await client.responses.create(model="gpt-6-luna", input=messages))
        """
        from paceline.http.describe import estimate

        return estimate(self.pacer, pool, asked, output_tokens)

    def observe(self, pool: str, headers: object) -> None:
        """Learn from the headers of an answer that no permit and no attached client has reported.

        A permit knows when its request was sent, so ``permit.settle(..., headers=...)`` teaches more. Without a
        permit, the pool learns the limits, and lowers its remaining amounts if the answer shows less. The windows of a
        plan are read either way.

        Args:
            pool: The pool, as for :meth:`acquire`.
            headers: The headers, as for :func:`~paceline.limits_in`, read in the dialect of the pool's provider.

        Raises:
            QuotaError: The pool is unknown.
            TypeError: ``headers`` is neither a mapping nor pairs.

        Example:
            answer = await client.responses.with_raw_response.create(model="gpt-6-luna", input=prompt)
            limiter.observe("openai/gpt-6-luna", answer.headers)
        """
        from paceline.providers.answers import readings_in
        from paceline.providers.parse import headers_of

        scheduler, texts = self.pacer.pools.scheduler(pool), headers_of(headers)
        scheduler.observe(readings_in(scheduler.pool.name, texts, self.pacer.clock.now_ns() / NS), None)
        if (hear_plan := scheduler.by_hand.hear_plan) is not None:
            hear_plan(texts, None, None, math.inf)

    def override(
        self,
        pool: str,
        *,
        tier: str | int | None = None,
        rpm_override: float | None = None,
        tpm_override: float | None = None,
    ) -> None:
        """Set the tier and the overrides of one model, instead of the limiter's, before its first request.

        Args:
            pool: The model: ``openai/gpt-6-luna``.
            tier: The tier whose published limits apply if you gave the limiter no limits for the model.
            rpm_override: Requests per minute, instead of any other limit per minute.
            tpm_override: Tokens per minute, input and output together, instead of any other limit on them per minute.

        Raises:
            QuotaError: The model is unknown, or the model is in use with other limits.
            SettingsError: The tier is unknown.

        Example:
            limiter = paceline.Limiter(provider="openai")
            limiter.override("openai/gpt-6-luna", rpm_override=400)
        """
        self.pacer.pools.override(pool, tier=tier, rpm_override=rpm_override, tpm_override=tpm_override)

    def paced(
        self,
        pool: str,
        *,
        cost: Callable[..., Mapping[str, float]] | None = None,
        timeout: float | None = None,
        retry: RetryPolicy | bool = False,
        **units: float,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function, sync or async: every call acquires a permit first.

        Args:
            pool: The pool.
            cost: Returns the amounts per unit, from the arguments of the call.
            timeout: Seconds to wait at most.
            retry: Whether to retry a refused call, as :meth:`attempts` does: ``True``, by the policy of the limiter,
                or another policy.
            **units: The amounts of every call, instead of ``cost``.

        The permit is settled with the result of the function if that reports usage, and as reserved otherwise. A result that
        reports a sum of tokens alone is a warning in a pool that counts input and output apart. A method of an object:
        ``provider.generate = limiter.paced(...)(provider.generate)``.

        Raises:
            TypeError: The function is a generator, which gives the permit to its caller's code, too.

        Example:
            @limiter.paced("openai/gpt-6-luna", input_tokens=1_200, output_tokens=300, retry=True)
            async def ask(text):
                return await client.responses.create(model="gpt-6-luna", input=text)

            answer = await ask(prompt)
        """

        def take(*args: Any, **kwargs: Any) -> Iterable[Any]:
            price: dict[str, Any] = {**units, **(cost(*args, **kwargs) if cost else {})}
            if retry is False:
                return (self.acquire(pool, timeout=timeout, **price),)
            return self.attempts(pool, retry=None if retry is True else retry, timeout=timeout, **price)

        return _paced(take)

    def attach(self, client: C, provider: str | None = None) -> C:
        """Pace ``client`` in place: an SDK's client, a client or session of an HTTP library, or any object with one inside.

        Args:
            client: The client. To attach it again has no effect.
            provider: The provider, if the address of the client does not show it.

        Returns:
            The same client.

        Raises:
            TypeError: ``client`` contains no client of httpx2, httpx, aiohttp, requests, urllib3 or botocore.

        Example:
            client = limiter.attach(openai.AsyncOpenAI())
            answer = await client.responses.create(model="gpt-6-luna", input=prompt)
        """
        from paceline.http.attach import attach

        attach(self.pacer, client, provider)
        return client

    def limit_lane(self, name: str, quotas: QuotaLike) -> None:
        """Set the limits and budgets of a lane, instead of earlier ones: ``["60 requests/min", "10 usd/day"]``.

        They apply to the requests of attached clients in that lane, over all pools.

        Args:
            name: The lane.
            quotas: One quota or several, in their notation or as :class:`Quota`.

        Raises:
            QuotaError: A quota is invalid.

        Example:
            limiter.limit_lane("nightly", ["60 requests/min", "10 usd/day"])
        """
        self.pacer.allowances.set(name, parsed(quotas))

    def status(self, queue: int = QUEUE_SHOWN) -> Status:
        """Return the state: ``pools``, windows of ``plans``, ``answers``, and ``unpaced`` requests.

        ``facts`` shows the day of the data set about providers.

        All are JSON values. If you gave a pool quotas by its name, it is listed before its first use too.

        Args:
            queue: How many waiting requests to list for every pool, at most 50.

        Example:
            for name, pool in limiter.status()["pools"].items():
                print(name, pool["waiting"], [(quota["quota"], quota["remaining"]) for quota in pool["quotas"]])
        """
        from paceline.facts import standing
        from paceline.http.unpaced import rows

        now_ns = self.pacer.clock.now_ns()
        return {
            "pools": self.pacer.status(queue),
            "plans": self.pacer.pools.plan_status(now_ns),
            "answers": self.pacer.answers.rows(now_ns / NS),
            "unpaced": rows(),
            "facts": standing(),
        }

    def serve_status(self, host: str = "127.0.0.1", port: int = 8000, *, key: str | None = None) -> StatusServer:
        """Serve the page with the status of this limiter, from a thread, until the program ends or the result is closed.

        Args:
            host: The address. If other machines can reach it, a ``key`` is required.
            port: The port; 0 for any free one.
            key: The key that the page asks for, and that callers send as ``authorization: Bearer KEY``.

        Returns:
            The server, with its ``url`` and ``close()``.

        Raises:
            SettingsError: The address can be reached from other machines, and there is no key.
            OSError: The address is invalid, or the port is taken.
            ImportError: uvicorn is missing; the message names the extra.

        Example:
            server = limiter.serve_status(port=0)
            print(server.url)
            server.close()
        """
        from paceline.telemetry.server import StatusServer

        return StatusServer(self, host, port, key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        pools = self.status(0)["pools"]
        shown = "; ".join(
            f"{name}: {', '.join(quota['quota'] for quota in pool['quotas']) or 'no limit known'}"
            f" ({pool['in_flight']} in flight, {pool['waiting']} wait)"
            for name, pool in islice(pools.items(), REPR_POOLS)
        )
        more = f"; and {len(pools) - REPR_POOLS} more pools" if len(pools) > REPR_POOLS else ""
        return f"<Limiter {shown or 'without pools yet'}{more}>"

    def close(self) -> None:
        """Send the pending reports to the store, and close it. Without a store, do nothing."""
        worker = self.pacer.pools.worker
        if worker is not None:
            worker.close()


Limiter.__doc__ = documented(Limiter.__doc__, PacingSettings)


def _worker(settings: PacingSettings) -> StoreWorker | None:
    """What makes the exchanges with the store; ``None`` for quotas in this process."""
    if settings.store is None:
        return None
    from paceline.shared.worker import StoreWorker
    from paceline.stores import as_store

    opened = as_store(settings.store)
    return None if opened is None else StoreWorker(opened, settings)


def _keep_outputs(worker: StoreWorker, pacer: Pacer) -> None:
    """Keep what answers show of the output beside the store, where it has a place of its own."""
    from paceline.limiter.outputs import KeptOutputs
    from paceline.stores.notes import notes_beside

    notes = notes_beside(worker.store, "outputs", in_use=True)
    if notes is not None:
        worker.aside = KeptOutputs(pacer.calibrations, notes)


def _paced(take: Callable[..., Iterable[Any]]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator for sync and async functions; ``take`` is called with the arguments, and returns the call's attempts."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            name = getattr(function, "__name__", function)
            raise TypeError(f"{name} is a generator: acquire the permit in it, with limiter.acquire(...)")
        if is_async(function):

            @functools.wraps(function)
            async def paced_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                for attempt in take(*args, **kwargs):
                    async with attempt as permit:
                        result = await cast("Callable[P, Awaitable[R]]", function)(*args, **kwargs)
                        _settle(permit, result)
                        return result
                raise AssertionError("the attempts end with a result or an error")

            return cast("Callable[P, R]", paced_async)

        @functools.wraps(function)
        def paced_sync(*args: P.args, **kwargs: P.kwargs) -> R:
            for attempt in take(*args, **kwargs):
                with attempt as permit:
                    result = function(*args, **kwargs)
                    _settle(permit, result)
                    return result
            raise AssertionError("the attempts end with a result or an error")

        return paced_sync

    return decorate


def _settle(permit: Permit, result: object) -> None:
    """Settle with the usage of ``result``; as reserved if it reports none."""
    if permit.open:
        try:
            permit.settle(result)
        except SettingsError as error:
            if isinstance(error, TokensApartError):
                warn(f"{error}; the call stays charged as reserved")
            permit.settle()
