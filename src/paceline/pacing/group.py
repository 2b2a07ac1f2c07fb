"""Several quotas for one kind of requests: of several keys, regions, deployments or providers.

A request joins the queue of the member where it can go soonest, by the quotas and by the requests that wait there. It
is not tied to it: where it waits much longer than expected, because the member was paused meanwhile, it chooses again.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Mapping
from hashlib import blake2b
from types import TracebackType
from typing import Any

from paceline.core.queue import LaneSpec
from paceline.core.quota import NS
from paceline.core.results import (
    AcquireTimeoutError,
    NeverFitsError,
    PoolStoppedError,
    QueueFullError,
    QuotaError,
    StoreError,
    public,
)
from paceline.pacing.clock import SYSTEM_CLOCK, Clock
from paceline.pacing.forks import reentrant_lock
from paceline.pacing.pacer import BaseLimiter
from paceline.pacing.permit import Acquisition, Permit, end_at, go_on, waiter_of
from paceline.pacing.sync import awaited, run_sync

SAME_S = 0.05
"""Members with about this difference are equally soon: weights decide."""

PATIENCE, PATIENCE_MIN_S = 3, 5.0
"""A request chooses again after so many times the expected wait, and not before so many seconds. If the wait at some
member is not known, because slots bind there, it chooses again after these seconds."""

ASIDE_S, ASIDE_MAX = 60.0, 10_000
"""For how long a member is left out that has shown that it cannot answer requests for a model; how many are known."""

HERE = (AcquireTimeoutError, NeverFitsError, PoolStoppedError, QueueFullError, StoreError)
"""Errors of one member, after which another one is tried."""


class Choice:
    """Chooses one of several members for each request.

    Args:
        names: The members.
        clock: The clock.
        in_order: See :class:`Group`.
        weights: See :class:`Group`.
        sticky_s: See :class:`Group`.
        by_cache: Whether a request without a ``sticky`` key prefers the member that has its prompt in its cache.

    Raises:
        QuotaError: See :class:`Group`.
    """

    def __init__(
        self,
        names: Collection[str],
        clock: Clock,
        *,
        in_order: bool = False,
        weights: Mapping[str, float] | None = None,
        sticky_s: float = 5.0,
        by_cache: bool = True,
    ) -> None:
        if not names:
            raise QuotaError("a group needs one member or more")
        weights = dict(weights or {})
        for name, weight in weights.items():
            if name not in names:
                raise QuotaError(f"weights has {name!r}, which is no member of the group: {', '.join(names)}")
            if not 0 < weight < math.inf:
                raise QuotaError(f"the weight of {name!r} is {weight!r}: it must be a number above 0")
        if not 0 <= sticky_s < math.inf:
            raise QuotaError(f"sticky_s is {sticky_s!r}: it must be 0 s or more")
        self.names = tuple(names)
        self.clock, self._in_order, self._sticky_s, self._by_cache = clock, in_order, sticky_s, by_cache
        self._weights = {name: float(weights.get(name, 1.0)) for name in names}
        self._turns = dict.fromkeys(names, 0.0)  # smooth weighted round robin
        self._aside: dict[tuple[str, str], int] = {}  # until when a member is left out for some model
        self._lock = reentrant_lock()  # a handler of a signal may begin a request while this thread begins one

    def put_aside(self, name: str, model: str) -> bool:
        """Leave a member out for a model for ``ASIDE_S``, while there are others.

        Return whether it was not left out before.
        """
        now_ns = self.clock.now_ns()
        first = self._aside.pop((name, model), 0) <= now_ns  # popped, so that it becomes the newest
        self._aside[name, model] = now_ns + round(ASIDE_S * NS)
        if len(self._aside) > ASIDE_MAX:
            del self._aside[next(iter(self._aside))]
        return first

    def left_aside(self, model: str) -> Collection[str]:
        """The members that are left out for a model."""
        if not self._aside:
            return ()
        now_ns = self.clock.now_ns()
        return [name for name in self.names if self._aside.get((name, model), 0) > now_ns]

    def pick(
        self, waits: Mapping[str, float], sticky: str | None, cached: Mapping[str, int], stayed: str | None = None
    ) -> str:
        """The member for a request, by the expected waits in seconds of those that can have it.

        Args:
            waits: The expected waits.
            sticky: The key of the request.
            cached: The tokens of its prompt that members have in their caches.
            stayed: The member at which it has waited, and has a place.
        """
        soonest_s, own = min(waits.values()), None
        if sticky is not None:  # rendezvous hashing: a key keeps its member when others come or go
            own = max(waits, key=lambda name: blake2b(f"{name}\0{sticky}".encode(), digest_size=8).digest())
        elif cached:
            own = max(cached, key=cached.__getitem__)
        # A member whose cache has the prompt may be left out of the waits.
        if own is not None and waits.get(own, math.inf) <= soonest_s + self._sticky_s:
            return own
        if stayed is not None and stayed in waits and soonest_s == math.inf:  # of none is known how soon it is
            return stayed
        if self._in_order and soonest_s <= 0:
            return next(name for name in self.names if waits.get(name, math.inf) <= 0)
        equal = [name for name, wait_s in waits.items() if wait_s <= soonest_s + SAME_S]
        with self._lock:
            for name in equal:
                self._turns[name] += self._weights[name]
            chosen = max(equal, key=self._turns.__getitem__)
            self._turns[chosen] -= sum(self._weights[name] for name in equal)
        return chosen

    def _chosen(
        self,
        asked: Mapping[str, Acquisition],
        sticky: str | None,
        failed: Collection[str],
        model: str,
        stayed: str | None,
    ) -> tuple[str, float]:
        """The member to wait at, and the patience with it, in seconds.

        Members that are worse than the others are left out, if any are left then.
        """
        looked_at = asked if self._by_cache else {}
        cached = {name: tokens for name, one in looked_at.items() if (tokens := waiter_of(one).cached_tokens)}
        waits = {name: one.expected_s() for name, one in asked.items()}
        unknown = [name for name, wait_s in waits.items() if wait_s == math.inf]
        for worse in (unknown, self.left_aside(model), failed):
            waits = {name: wait_s for name, wait_s in waits.items() if name not in worse} or waits
        member = self.pick(waits, sticky, cached, stayed)
        patience_s = PATIENCE_MIN_S if unknown else max(PATIENCE * waits[member], PATIENCE_MIN_S)
        return member, patience_s if len(asked) > 1 else math.inf

    async def permit(
        self,
        ask: Callable[[str], Acquisition],
        wait: Callable[[str, float | None, bool], Permit | Awaitable[Permit]],
        until_ns: int | None,
        sticky: str | None,
        *,
        model: str = "",
        failed: Collection[str] = (),
    ) -> tuple[str, Permit]:
        """The member that grants a permit, and the permit.

        The seconds of a wait are the patience with one member. They are no deadline of the request: after a grant its
        waiter has ``until_ns``, because a further attempt has the time that is left until then.

        Args:
            ask: Returns an acquisition at a member, which is only asked how long it would wait.
            wait: Waits at a member, for so many seconds at most; if it has just waited there, in its earlier place.
            until_ns: When the request ends; ``None`` for never.
            sticky: See :meth:`Group.acquire`.
            model: The model, as for :meth:`put_aside`.
            failed: Members that have failed this request already: they come last.

        Raises:
            PacelineError: The error of the last member, when none is left.
        """
        clock, left_out, stayed = self.clock, set[str](), None
        while True:
            asked = {name: ask(name) for name in self.names if name not in left_out}
            member, patience_s = self._chosen(asked, sticky, failed, model, stayed)
            rest_s = None if until_ns is None else max((until_ns - clock.now_ns()) / NS, 0.0)
            # The last wait: the time of the request ends before the patience with this member.
            began_ns, last = clock.now_ns(), rest_s is not None and rest_s <= patience_s
            wait_s = rest_s if last else None if patience_s == math.inf else patience_s
            try:
                permit = await awaited(wait(member, wait_s, member == stayed))
            except HERE as error:
                # An error at the same instant is no wait: the member knows that it cannot be in time.
                if isinstance(error, AcquireTimeoutError) and clock.now_ns() > began_ns:
                    if last or wait_s is None:
                        raise
                    left_out.clear()  # it has waited for longer than expected: the others may be sooner now
                    stayed = member
                    continue
                stayed = None
                left_out.add(member)
                if len(left_out) == len(self.names):
                    raise
            else:
                end_at(permit, until_ns)
                return member, permit


@public
class Group:
    """Take every permit from the member that can give it soonest.

    A member whose account has no money left, whose queue is full, or whose store has never answered is left out; so is
    one that is paused, for as long as others are sooner.

    Args:
        members: The limiter and the pool of each member, by a name of your choice. Several keys need several limiters.
        in_order: Whether to use the members in their order: a later member gets a request only if all members before
            it are full, for example provisioned throughput first, then pay-as-you-go.
        weights: The shares of members that are equally soon; 1 for a member that isn't named.
        sticky_s: How many seconds longer a request waits for the member of its ``sticky`` key than for the soonest.

    Raises:
        QuotaError: There is no member, one isn't a limiter with a pool, a pool is unknown, a weight is not above 0 or
            not of a member, or ``sticky_s`` is negative.

    Example:
        eu = paceline.Limiter({"openai/gpt-6-luna": "500 requests/min"})
        us = paceline.Limiter({"openai/gpt-6-luna": "500 requests/min"})
        group = paceline.Group({"eu": (eu, "openai/gpt-6-luna"), "us": (us, "openai/gpt-6-luna")})
        async with group.acquire(input_tokens=1_200, output_tokens=300) as (member, permit):
            permit.settle(await {"eu": client, "us": client}[member].responses.create(model="gpt-6-luna", input=prompt))
    """

    def __init__(
        self,
        members: Mapping[str, tuple[BaseLimiter, str]],
        *,
        in_order: bool = False,
        weights: Mapping[str, float] | None = None,
        sticky_s: float = 5.0,
    ) -> None:
        for name, member in members.items():
            try:
                limiter, pool = member
            except (TypeError, ValueError):
                raise QuotaError(
                    f"member {name!r} of a group is {member!r}: write it like (limiter, 'openai/gpt-6-luna')"
                ) from None
            limiter.pacer.pools.scheduler(pool)  # an unknown one raises here
        self.members = dict(members)
        clock = next((limiter.pacer.clock for limiter, _ in members.values()), SYSTEM_CLOCK)
        self.choice = Choice(self.members, clock, in_order=in_order, weights=weights, sticky_s=sticky_s)

    def acquire(
        self,
        *,
        sticky: str | None = None,
        timeout: float | None = None,
        lane: str | LaneSpec | None = None,
        name: str | None = None,
        conversation: str | None = None,
        **cost: float,
    ) -> GroupAcquisition:
        """Ask for the right to make one attempt, at any member.

        Args:
            sticky: Requests with the same key go to the same member while it is not much later than the others.
            timeout: Seconds to wait at most, in all.
            lane: As for :meth:`Limiter.acquire <paceline.limiter.limiter.Limiter.acquire>`.
            name: As there.
            conversation: As there. Without a ``sticky`` key the request goes to the member that has its prompt cached,
                while that is not much later than the others.
            **cost: As there.

        Returns:
            An object for ``async with``, ``with`` or ``await``, which give the member's name and the permit.

        Raises:
            QuotaError, TooLargeError: As there.
        """
        options: dict[str, Any] = {"lane": lane, "name": name, "conversation": conversation} | cost
        return GroupAcquisition(self, sticky, timeout, options)

    def ask(self, member: str, timeout: float | None, options: Mapping[str, Any]) -> Acquisition:
        """An acquisition at one member; it joins no queue yet.

        Args:
            member: The name of the member.
            timeout: Seconds to wait at most; ``None``: as long as the limiter's settings allow.
            options: The other arguments of :meth:`Limiter.acquire <paceline.Limiter.acquire>`.
        """
        limiter, pool = self.members[member]
        return limiter.acquire(pool, timeout=timeout, **options)


class GroupAcquisition:
    """A request for a permit of any member: ``async with``, ``with`` and ``await`` wait for it."""

    def __init__(self, group: Group, sticky: str | None, timeout: float | None, options: dict[str, Any]) -> None:
        self._group, self._sticky, self._timeout, self._options = group, sticky, timeout, options
        self._entered: Acquisition | None = None
        for member in group.members:
            group.ask(member, timeout, options)  # invalid arguments raise here

    def wait(self) -> tuple[str, Permit]:
        """Block this thread until a permit is granted.

        Raises:
            AcquireTimeoutError, NeverFitsError, QueueFullError, PoolStoppedError, StoreError: No member can have the
            request;
                the error of the last one that was tried.
        """
        return run_sync(self._wait(Acquisition.wait))

    def __enter__(self) -> tuple[str, Permit]:
        return run_sync(self._wait(Acquisition.__enter__))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        assert self._entered is not None
        self._entered.__exit__(kind, error, tb)

    def __await__(self) -> Generator[Any, None, tuple[str, Permit]]:
        return self._wait(lambda acquisition: acquisition).__await__()

    def __aenter__(self) -> Coroutine[Any, Any, tuple[str, Permit]]:
        return self._wait(Acquisition.__aenter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, tb)

    async def _wait(self, wait: Callable[[Acquisition], Permit | Awaitable[Permit]]) -> tuple[str, Permit]:
        def enter(member: str, timeout: float | None, stays: bool) -> Permit | Awaitable[Permit]:
            earlier, self._entered = self._entered, self._group.ask(member, timeout, self._options)
            if stays and earlier is not None:
                go_on(self._entered, earlier)
            return wait(self._entered)

        choice, timeout = self._group.choice, self._timeout
        until_ns = None if timeout is None else choice.clock.now_ns() + round(timeout * NS)
        return await choice.permit(
            lambda member: self._group.ask(member, None, self._options), enter, until_ns, self._sticky
        )
