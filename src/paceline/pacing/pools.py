"""The pools of one key by name, each made at its first use."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any

from paceline.core.allowance import Shut
from paceline.core.plan import Held, Plan, PlanCapacity, Window
from paceline.core.pool import Pool
from paceline.core.quota import KNOWN_UNITS, NS, REQUESTS, USD, Quota, Rule
from paceline.core.results import GIVEN, QuotaError, Refusal
from paceline.pacing.breaker import Health
from paceline.pacing.chain import ChainedScheduler
from paceline.pacing.events import Event
from paceline.pacing.forks import reentrant_lock
from paceline.pacing.limits import Limits, Resolved
from paceline.pacing.maker import PoolMaker
from paceline.pacing.plan_use import UNNAMED, Client
from paceline.pacing.plans import Plans, PlanStatus
from paceline.pacing.scheduler import Scheduler, Worker
from paceline.pacing.settings import PacingSettings
from paceline.pacing.status import PoolStatus, report
from paceline.providers.base import Usage

if TYPE_CHECKING:
    from paceline.providers.plan_headers import PlanReading

POOLS_MAX = 10_000
"""How many pools one limiter keeps: the names of models come from callers, and memory is bounded."""


class Pools:
    """The pools of a limiter by name, each made at its first use.

    Args:
        settings: The settings of the limiter.
        limits: The quotas of each model.
        worker: As for :class:`PoolMaker`, like the next two.
        notify: Called with every event of a permit.
        health: The hosts that fail.

    Attributes:
        named: The schedulers by the names in calls. Several names can have one pool.
        uncharged: By pool the given quotas on dollars and on units of the user's own, which may never be charged: until
            the first request of a client.
        stored_as: By account what it is called in the store, with all digits of its digest: what is shown of it is no
            identity.
        maker: Makes them.
        plans: The windows of the plans of accounts.
    """

    used = False
    """Whether any pool of this process was used: before, all that it sends goes past its limiters."""

    def __init__(
        self,
        settings: PacingSettings,
        limits: Limits,
        worker: Worker | None,
        notify: Callable[[Event], None] | None,
        health: Health,
    ) -> None:
        self.limits = limits
        self.maker = PoolMaker(settings, worker, notify, health, self._is_used)
        self.named: dict[str, Scheduler] = {}
        self.uncharged: dict[str, list[Quota]] = {}
        self.stored_as: dict[str, str] = {}
        self.plans = Plans()
        # Reentrant: to make a pool may open its account. Names are looked up without it, as one step of a dict.
        self._lock = reentrant_lock()
        self._made: dict[str, Scheduler] = {}  # by pool
        self._of_account: dict[str, tuple[Scheduler, ...]] = {}  # the same by account
        self._names: dict[str, set[str]] = {}  # in calls, by pool
        self._further: dict[str, Scheduler] = {}  # joint limits, start spacing and providers' slots, by pool

    @property
    def worker(self) -> Worker | None:
        """What makes the exchanges with the store of shared quotas; ``None``: the quotas are in this process."""
        return self.maker.worker

    def scheduler(self, pool: str) -> Scheduler:
        """The scheduler of a pool.

        Raises:
            QuotaError: The pool is unknown, or there are too many.
        """
        scheduler = self.named.get(pool)
        return scheduler if scheduler is not None else self._make(pool, self.limits.resolve(pool))

    def of_model(self, provider: str, model: str) -> Scheduler:
        """The scheduler of the pool that ``provider`` charges for ``model``."""
        name = f"{provider}/{model}"
        scheduler = self.named.get(name)
        return scheduler if scheduler is not None else self._make(name, self.limits.model(provider, model))

    @property
    def in_use(self) -> list[Scheduler]:
        """The schedulers of all pools in use."""
        with self._lock:
            return list(self._made.values())

    def _is_used(self) -> bool:
        """Whether a permit has been granted; without the lock, which another thread may hold at a fork."""
        return any(scheduler.pool.record.counts.get("granted") for scheduler in list(self._made.values()))

    def forget(self, *schedulers: Scheduler, unserved: bool = False) -> bool:
        """Forget these pools, as if they had not been used.

        False, and none is forgotten, while one has requests, a pause, a stop or a quota that is not full.
        ``unserved``: no request was answered, so that what is missing of quotas is nothing.
        """
        with self._lock:
            # With the pool of the account, where requests may wait for its plan.
            accounts = {self._further.get(of_plan(one.pool.name.partition("/")[0])) for one in schedulers} - {None}
            for one in (*schedulers, *accounts):
                if one is not None and one.read(_in_use, one.pool, unserved):
                    return False
            # WEAK: a request that has looked up its scheduler, and has not joined its queue yet, goes by the forgotten
            # pool. That one and the next grant as if each were alone.
            for scheduler in schedulers:
                name = scheduler.pool.name
                if self._made.pop(name, None) is not None:
                    self._left(scheduler)
                for called in self._names.pop(name, ()):
                    self.named.pop(called, None)
                self.uncharged.pop(name, None)
                self.maker.health.drop(scheduler)
                for one in scheduler.beside:  # the plan, the slots and the spacing of an account of its own
                    if "@" in one.pool.name and not self.of_account(one.pool.name.partition("/")[0]):
                        self._further.pop(one.pool.name, None)
        return True

    def of_account(self, name: str) -> tuple[Scheduler, ...]:
        """The schedulers of the pools of an account, such as ``openai@eu``; without the lock."""
        return self._of_account.get(name, ())

    def by_account(self) -> dict[str, tuple[Scheduler, ...]]:
        """The schedulers of all pools in use, by their accounts."""
        with self._lock:
            return dict(self._of_account)

    def _left(self, scheduler: Scheduler) -> None:
        """Take a forgotten pool from the pools of its account."""
        account = scheduler.pool.name.partition("/")[0]
        if rest := tuple(one for one in self._of_account[account] if one is not scheduler):
            self._of_account[account] = rest
        else:
            del self._of_account[account]

    def read_plan(
        self, account: str, readings: Iterable[PlanReading], *, served: bool = False, sent_s: float = inf
    ) -> None:
        """Keep what an answer states of the windows of an account, as :meth:`Plans.read`.

        If the user has asked for that, it holds requests of the account back. The processes that share a store are
        told.
        """
        new = self.plans.read(account, readings, served=served, sent_s=sent_s)
        # Else the windows are shown alone, and no pool of the account is needed.
        if not (self.maker.settings.plans.holds or self.worker) or self.maker.settings.shadow is not None:
            return
        windows = {one.name: one for reading in new if (one := _window(reading)) is not None}
        notes = {} if self.worker is None else self.plans.news(account, new)
        if windows or notes:
            scheduler = self._further.get(of_plan(account)) or self.open_account(account)
            scheduler.read_plan(windows.values(), notes, self.plans.weighed(account))

    def charge_plan(self, account: str, windows: Collection[str], usage: Usage, client: Client) -> None:
        """Count a request that has ended in the windows that its answer has stated: another one may go now."""
        self.plans.charge(account, windows, usage, client)
        scheduler = self._further.get(of_plan(account))
        if scheduler is not None and self.maker.settings.plans.holds:
            scheduler.read_plan((), {}, self.plans.weighed(account))

    def _hear_plan(
        self, account: str, headers: Mapping[str, str], refusal: Refusal | None, usage: Usage | None, sent_s: float
    ) -> None:
        """Keep what an answer by hand states of the plan of an account; see ``HearPlan``."""
        from paceline.providers.plan_headers import plan_readings

        now_s = self.maker.settings.clock.now_ns() / NS
        found = plan_readings(headers, now_s, None if refusal is None else refusal.window)
        if found:
            self.read_plan(account, found, served=refusal is None, sent_s=sent_s)
            if usage is not None:
                self.charge_plan(account, [one.window for one in found], usage, UNNAMED)

    def shut(self) -> list[tuple[str, str | None, Shut]]:
        """The allowances that are used up: the account, the model (``None``: all of them), and the state."""
        with self._lock:
            further = {name: one for name, one in self._further.items() if _is_of_plan(one.pool)}
            schedulers = self._made | further
        found = []
        for name, scheduler in schedulers.items():
            # The first condition needs no lock, and spares most pools the second one.
            if scheduler.pool.opens_at_heads and (shut := scheduler.read(lambda _, pool: pool.shut, scheduler.pool)):
                account, _, model = name.partition("/")
                found.append((account, None if name in further else model, shut))
        return found

    def plan_status(self, now_ns: int) -> list[PlanStatus]:
        """The windows of all accounts, and who waits for what is shut, or for a share that is left to others."""
        with self._lock:
            accounts = {name.partition("/")[0]: one for name, one in self._further.items() if _is_of_plan(one.pool)}
        held = {account: one.read(_held, one.pool) for account, one in accounts.items()}
        return self.plans.status(now_ns, self.shut(), [(account, one) for account, one in held.items() if one])

    def override(self, pool: str, **own: Any) -> None:
        """Set the tier and the overrides of one model; see :meth:`Limits.override`."""
        with self._lock:
            self.limits.override(pool, **own, used=self._made.keys())

    def status(self, queue: int) -> dict[str, PoolStatus]:
        """The state of every pool by its name; see :meth:`Limiter.status <paceline.limiter.limiter.Limiter.status>`."""
        with self._lock:
            schedulers, further = dict(self._made), dict(self._further)
        pools = {name: scheduler.status(queue) for name, scheduler in (schedulers | further).items()}
        # A limit that no request has used yet is shown by a pool that is made for it here, and dropped.
        now_ns, models = self.maker.settings.clock.now_ns(), {name.partition("/")[2] for name in schedulers}
        for name in islice(self.limits.given, POOLS_MAX):
            if "*" not in name and name not in models:  # a model in use has its provider in the name
                resolved = self.limits.resolve(name)
                for one in (resolved, *_provider_wide(resolved)):
                    if one.pool not in pools:
                        pools[one.pool] = report(self.maker.pool(one, now_ns)[0], now_ns)
        for joint in self.maker.joint:
            if joint.resolved.pool not in pools:
                pools[joint.resolved.pool] = report(self.maker.pool(joint.resolved, now_ns)[0], now_ns)
        return pools

    def warn_of_unmetered(self, pool: str, units: set[str]) -> None:
        """Warn of each given quota of ``pool`` on a unit that clients' calls never have, at the first call."""
        for quota in self.uncharged.pop(pool, ()):
            if quota.unit not in units:
                self.limits.warn(
                    f"{quota.unit} at {pool.partition('/')[0]}",
                    f"{pool}: the limit '{quota}' delays no call of a client, because paceline counts calls in"
                    f" {', '.join(sorted(units))}, and not in {quota.unit!r}: give a limit in one of these units, or"
                    + (
                        " a budget, which counts what clients spend: Limiter(budget='5 usd/day')"
                        if quota.unit == USD
                        else f" charge it by hand: limiter.acquire({pool!r}, {quota.unit}=1)"
                    ),
                )

    def _make(self, name: str, resolved: Resolved) -> Scheduler:
        with self._lock:
            scheduler = self._made.get(resolved.pool)
            if scheduler is None:
                if len(self._made) >= POOLS_MAX:
                    raise QuotaError(
                        f"more than {POOLS_MAX:,} pools in one limiter: {name!r} is one too many; use a second limiter"
                    )
                scheduler = self._open(resolved)
                self.maker.fit(scheduler, resolved)
                quotas = zip(resolved.quotas, resolved.sources, strict=True)
                known = set(KNOWN_UNITS) - {USD}
                other = [quota for quota, source in quotas if source == GIVEN and quota.unit not in known]
                if other:
                    self.uncharged[resolved.pool] = other
                self._made[resolved.pool] = scheduler
                Pools.used = True
                account = resolved.pool.partition("/")[0]
                if resolved.is_model:
                    scheduler.by_hand.hear_plan = partial(self._hear_plan, account)
                # A new tuple, because readers take no lock.
                self._of_account[account] = (*self.of_account(account), scheduler)
            # Beyond that many names, each call looks up its pool again: names come from callers, and memory is bounded.
            if len(self.named) < 10 * POOLS_MAX:
                self.named[name] = scheduler  # last: from here on others find it without the lock
                self._names.setdefault(resolved.pool, set()).add(name)
            return scheduler

    def _open(self, resolved: Resolved) -> Scheduler:
        account, slash, model = resolved.pool.partition("/")
        names = {resolved.pool, self.base(account) + slash + model}  # what is limited together holds for both
        further, joint = [], [each.resolved for each in self.maker.joint if any(map(each.holds_for, names))]
        for one in (*joint, *_provider_wide(resolved)):
            if one.pool not in self._further:
                self._further[one.pool] = self.maker.scheduler(one, Scheduler)
            further.append(self._further[one.pool])
        # The pool of a model may get an account later, at a refusal that is about all that the account sends.
        if not (further or resolved.is_model):
            return self.maker.scheduler(resolved, Scheduler)
        opens = partial(self.open_account, account) if resolved.is_model else None
        others = partial(self.of_account, account) if account in self.limits.untabled else None
        chained = partial(ChainedScheduler, further=further, opens=opens, others=others)
        scheduler = self.maker.scheduler(resolved, chained)
        scheduler.account = self._further.get(of_plan(account))
        if others is not None and self.worker is not None:  # another process may know that it is shut
            scheduler.account = self.open_account(account)
        scheduler.holds = self.maker.settings.plans.when_shut == "hold"
        return scheduler

    def open_account(self, account: str) -> Scheduler:
        """The scheduler that the requests of all pools of an account pass from now on.

        A window of its plan is used up.
        """
        name = of_plan(account)
        with self._lock:
            if name not in self._further:
                plan = Plan(self.maker.settings.plans)
                heard, in_flight = partial(self._hear, account, plan), partial(self._in_flight, account)
                self._further[name] = self.maker.of_plan(name, plan, heard, in_flight)
            for scheduler in self.of_account(account):  # which were made before it
                if isinstance(scheduler, ChainedScheduler):
                    scheduler.account = self._further[name]
            return self._further[name]

    def _in_flight(self, account: str) -> int:
        return sum(one.pool.ledger.in_flight for one in self.of_account(account))

    def _hear(self, account: str, plan: Plan, name: str, text: str, age_ns: int) -> None:
        """Take what another process has noted of a window."""
        reading = self.plans.hear(account, name, text, self.maker.settings.clock.now_ns() - age_ns)
        if (window := _window(reading)) is not None:
            plan.windows = plan.windows | {name: window}  # a new dict: readers take no lock

    def base(self, account: str) -> str:
        """The provider of an account that was found by its credential; ``account`` for any other one."""
        return account.partition("@")[0] if account in self.stored_as else account


def of_plan(account: str) -> str:
    """The name of the pool that all requests of an account pass."""
    return f"{account}/plan"


def _is_of_plan(pool: Pool) -> bool:
    return isinstance(pool.capacity, PlanCapacity)


def _window(reading: PlanReading) -> Window | None:
    """What the policy of a plan needs of a reading.

    ``None``: it is not about all that the account sends, or states too little.
    """
    share = reading.share
    if reading.scope is not None or share is None or reading.until_s is None:
        return None
    ends_ns = round((reading.read_s + reading.until_s) * NS)
    return Window(reading.window, share, ends_ns, round((reading.length_s or 0.0) * NS))


def _held(now_ns: int, pool: Pool) -> Held | None:
    capacity = pool.capacity
    assert isinstance(capacity, PlanCapacity)
    if not capacity.holds or capacity.held_ns <= now_ns or not pool.queue.length or pool.shut:
        return None
    return Held(capacity.holds, pool.queue.length, capacity.held_ns)


def _in_use(now_ns: int, pool: Pool, unserved: bool) -> bool:
    """Whether a new pool in the place of this one could grant more, or would lose requests."""
    return (
        pool.queue.length > 0
        or pool.ledger.in_flight > 0
        or pool.stopped is not None
        or pool.cool_down_ns(now_ns) > 0
        or (not unserved and any(meter.lack(now_ns) > 0 for meter in pool.ledger.meters))
    )


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
