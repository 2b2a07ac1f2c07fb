"""A request that any of several accounts can answer: each attempt goes to the one where it can go soonest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from paceline.core.results import Refusal, RefusalScope
from paceline.http.binding import Binding
from paceline.http.exchange import Exchange, Way
from paceline.pacing.group import ASIDE_S, Choice
from paceline.pacing.pacer import Pacer
from paceline.pacing.permit import Permit, go_on
from paceline.providers.refusals import refuses_key
from paceline.providers.verdict import Judged

log = logging.getLogger("paceline.http")


class RoutedExchange(Exchange):
    """The life of a request to a group. What a member cannot answer goes to each of the others once, at once.

    Args:
        pacer: The pacer whose pools are charged.
        ways: The way to each member, by its name.
        choice: Chooses among them.
        sticky: See :meth:`Group.acquire <paceline.Group.acquire>`; ``None``: the member that has the prompt in its cache.
        timeout_s: See :class:`~paceline.http.exchange.Exchange`.
        name: As there.
        seen: As there.

    Attributes:
        member: The member of the last attempt.
        model: The name by which members are left out: the model of the first way, if its maker sets no other.
    """

    def __init__(
        self,
        pacer: Pacer,
        ways: Mapping[str, Way],
        choice: Choice,
        *,
        sticky: str | None = None,
        timeout_s: float | None = None,
        name: str | None = None,
        seen: Callable[[Judged, Binding], bool] | None = None,
    ) -> None:
        first = next(iter(ways.values()))
        super().__init__(pacer, *first, timeout_s=timeout_s, name=name, seen=seen)
        self.member = ""
        self._ways, self._choice, self._sticky = ways, choice, sticky
        self.model = self.metered.call.model
        self._failed_at: set[str] = set()

    def ways(self) -> list[Way]:
        """See :class:`~paceline.http.exchange.Exchange`."""
        return [*self._ways.values()]

    async def _acquire(self, last: Permit | None) -> Permit:
        if self.began_ns is None:  # the waits at members that it has left count, too
            self.began_ns = self.pacer.clock.now_ns()

        async def wait(member: str, timeout_s: float | None, stays: bool) -> Permit:
            nonlocal last
            # Only the first one follows the last permit, which may be followed once: not at another member.
            metered = self._ways[member].metered
            before = last if metered.scheduler is self.metered.scheduler else None
            earlier, self.acquisition, last = self.acquisition, self._ask(metered, timeout_s, before), None
            if stays and earlier is not None:
                go_on(self.acquisition, earlier)
            return await self.acquisition if self.http.is_async else self.acquisition.wait()

        self.member, permit = await self._choice.permit(
            lambda member: self._ask(self._ways[member].metered, None, None),
            wait,
            self._until_ns,
            self._sticky,
            model=self.model,
            failed=self._failed_at,
        )
        self.http, self.metered = self._ways[self.member]
        self.record.pool = self.metered.scheduler.pool.name
        self._granted(permit)
        return permit

    def _elsewhere(self, refusal: Refusal | None) -> bool:
        if refusal is not None and refusal.scope is RefusalScope.REQUEST:
            return False
        self._failed_at.add(self.member)
        return self._may_follow(self._failed_at.union(self._choice.left_aside(self.model)), refusal)

    def _may_follow(self, without: Collection[str], refusal: Refusal | None = None) -> bool:
        """Whether another attempt may be made, and not only at these members. The last one is counted, as refusals are."""
        if len(without) == len(self._ways):
            return False
        return self.tries.spoiled() if refusal is None else self.tries.left

    async def _failed(self, response: Any, judged: Judged, permit: Permit, *, ends: bool) -> Any | None:
        status = judged.status
        here = status != 404 and not refuses_key(status, judged.error)  # else its key or its deployments are others
        if here:
            return await super()._failed(response, judged, permit, ends=ends)
        first = self._choice.put_aside(self.member, self.model)
        self._failed_at.add(self.member)
        # Also at a member that has only failed before: that may answer the next attempt.
        if not (self._may_follow(self._failed_at) or self._may_follow(self._choice.left_aside(self.model))):
            return await super()._failed(response, judged, permit, ends=ends)
        permit.settle()
        await self.http.close(response)
        if first:
            text = "%s answers %d to requests for %s: left out for %d s while other members of its group can answer"
            log.warning(text, self.member, status, self.model[:100], ASIDE_S)
        return None
