"""How the pools of a limiter and their schedulers are made, by its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import TypeVar

from paceline.core.budget import THE_SLOT, BudgetPool
from paceline.core.capacity import Capacity
from paceline.core.learning.tracker import HEADROOM_S
from paceline.core.ledger import Ledger
from paceline.core.local import LocalCapacity
from paceline.core.plan import Plan, PlanCapacity
from paceline.core.pool import Pool
from paceline.core.queue import Queue
from paceline.core.quota import OWN_RULES, USD, Quota
from paceline.core.results import GIVEN
from paceline.estimation.prefixes import Prefixes, PromptCache
from paceline.pacing.breaker import Health, HealthByHand
from paceline.pacing.events import Event
from paceline.pacing.forks import Kin
from paceline.pacing.joint import joint_limits
from paceline.pacing.limits import Resolved
from paceline.pacing.periods import in_days, periods
from paceline.pacing.scheduler import Scheduler, Worker
from paceline.pacing.settings import PacingSettings

BUDGET_TTL_S = 86_400.0
"""How long a price stays reserved: answers made in the background may take hours, and are charged when they are asked
for."""


S = TypeVar("S", bound=Scheduler)


class PoolMaker:
    """Makes the pools of a limiter and their schedulers.

    Args:
        settings: The settings of the limiter.
        worker: Makes the exchanges with the store of shared quotas; ``None``: the quotas are in this process.
        notify: Called with every event of a permit; ``None`` for none.
        health: The hosts that fail.
        is_used: Whether a permit has been granted, which is asked at a fork.

    Attributes:
        joint: The quotas that several pools share.
        made: Called with the name of each pool of a provider's model, when it is made.
    """

    def __init__(
        self,
        settings: PacingSettings,
        worker: Worker | None,
        notify: Callable[[Event], None] | None,
        health: Health,
        is_used: Callable[[], bool],
    ) -> None:
        self.settings, self.worker = settings, worker
        self.made: Callable[[str], None] | None = None
        self.joint = joint_limits(settings.joint_limits or {}, gentle=bool(settings.learn))
        self._notify, self.health, self._prefixes = notify, health, Prefixes()
        self._kin = Kin(is_used) if worker is None and settings.shadow is None else None
        # One order of arrival for all pools: a further attempt keeps its place before joint limits, too.
        self._next_number = count(1).__next__

    def scheduler(self, resolved: Resolved, kind: Callable[..., S], *, own: bool = False) -> S:
        """The scheduler of a pool, of this kind; see :meth:`pool`."""
        pool, worker = self.pool(resolved, self.settings.clock.now_ns(), own=own)
        return kind(pool, self.settings.clock, worker)

    def allowance(self, name: str, quotas: tuple[Quota, ...], before: Scheduler | None = None) -> Scheduler:
        """The scheduler of an allowance: its limits are the user's own, and used to the last.

        What was used of those ``before`` stays used, as in a store.
        """
        quotas = in_days(quotas)
        if quotas[0].unit == USD:
            quotas += (THE_SLOT,)
        kept = before if before is not None and isinstance(before.pool.capacity, LocalCapacity) else None
        if kept is not None and kept.pool.ledger.counts(quotas):
            kept.section.change(kept.pool.ledger.give, quotas)
            return kept
        made = self.scheduler(Resolved(name, quotas, (GIVEN,) * len(quotas)), Scheduler, own=True)
        if kept is not None:
            made.section.change(made.pool.ledger.use, kept.read(kept.pool.ledger.lacks))
        return made

    def fit(self, scheduler: Scheduler, resolved: Resolved) -> None:
        """Give the scheduler of a pool in calls what its requests need beside the pool."""
        if resolved.is_model and self.made is not None:
            self.made(resolved.pool)
        scheduler.events, scheduler.section.kin = self._notify, self._kin
        if self.settings.prompt_cache:
            scheduler.prompt_cache = PromptCache(self._prefixes, resolved.pool)
        scheduler.by_hand = HealthByHand(self.health, scheduler, is_model=resolved.is_model)
        scheduler.periods = periods(resolved.quotas)

    def of_plan(
        self, name: str, plan: Plan, heard: Callable[[str, str, int], None], of_pools: Callable[[], int]
    ) -> Scheduler:
        """The scheduler of the pool that all requests of an account pass; see :class:`PlanCapacity`."""
        settings, worker, queue = self.settings, self.worker, self._queue()
        now_ns = settings.clock.now_ns()
        ledger = Ledger((), now_ns, ttl_s=settings.ttl_s)
        capacity = PlanCapacity(plan, ledger) if worker is None else worker.plan(plan, ledger, queue, now_ns)
        pool = Pool(name, capacity, queue, waiting_max=settings.waiting_max, served=False)
        capacity.notices, capacity.allowance = pool.notices, pool.progress.allowance
        capacity.heard, capacity.of_pools = heard, of_pools
        return Scheduler(pool, settings.clock, worker)

    def _queue(self) -> Queue:
        queue = Queue()
        queue.next_number = self._next_number
        return queue

    def _ledger(self, resolved: Resolved, now_ns: int, *, own: bool, alone: bool) -> Ledger:
        """The ledger of a pool; see :meth:`pool`. ``alone``: no store shares it."""
        settings = self.settings
        headroom_s = 0.0 if own else settings.headroom_s
        if headroom_s is None:
            counted_here = resolved.quotas and all(quota.rule in OWN_RULES for quota in resolved.quotas)
            headroom_s = 0.0 if counted_here else HEADROOM_S
        return Ledger(
            resolved.quotas,
            now_ns,
            usable=1.0 if own else settings.usable,
            sources=resolved.sources,
            charged_after=resolved.charged_after if alone else (),  # a store counts it at admission
            headroom_s=headroom_s,
            ttl_s=max(settings.ttl_s, BUDGET_TTL_S) if own and _is_of_money(resolved) else settings.ttl_s,
            gentle=resolved.gentle,
            own=own,
        )

    def pool(self, resolved: Resolved, now_ns: int, *, own: bool = False) -> tuple[Pool, Worker | None]:
        """A pool, and the worker that shares it; one with a quota that no provider counts is kept in this process.

        Of an ``own`` one nothing is left unused, because no request is on its way to a provider that counts it. Where
        no provider counts any quota, a headroom is left if the settings have one.
        """
        settings, learns, worker = self.settings, resolved.learns, self.worker
        if settings.shadow is not None:  # nothing is held
            return Pool(resolved.pool, LocalCapacity.of((), now_ns), waiting_max=settings.waiting_max), None
        if any(quota.rule in OWN_RULES for quota in resolved.quotas):
            worker = None
        measures = bool(learns) and resolved.is_unstated
        counted = replace(resolved, quotas=(), sources=()) if measures else resolved
        ledger = self._ledger(counted, now_ns, own=own, alone=worker is None)
        queue = self._queue()
        capacity: Capacity
        if worker is None:
            adapts = settings.headroom_s is None and not own
            capacity = LocalCapacity(ledger, learns=learns, adapts=adapts)
        else:
            capacity = worker.capacity(ledger, queue, now_ns, learns=learns)
        if capacity.learning is not None and (measures or resolved.lacks_requests):
            capacity.learning.measure(now_ns)
        made = BudgetPool if own and _is_of_money(resolved) else Pool
        # The requests of a lane go to any server: when one does not answer, its own pool is silent, and not the lane.
        return made(resolved.pool, capacity, queue, waiting_max=settings.waiting_max, served=not own), worker


def _is_of_money(resolved: Resolved) -> bool:
    return resolved.quotas[0].unit == USD
