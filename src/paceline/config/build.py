"""From settings to a limiter, with what a limiter's own arguments do not say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from paceline.config.in_flight import with_schedulers
from paceline.config.schema import ANY, RUN_S
from paceline.core.pool import Pool
from paceline.core.queue import LaneSpec, Waiter
from paceline.core.quota import CONCURRENCY, REQUESTS, TOKENS, Cost, Quota, Rule
from paceline.estimation.calibration import Calibrations
from paceline.limiter.limiter import Limiter
from paceline.pacing.clock import Clock
from paceline.pacing.limits import Limits, Resolved
from paceline.pacing.permit import Permit
from paceline.pacing.retry import RetryPolicy
from paceline.pacing.scheduler import Scheduler
from paceline.providers.registry import is_provider, provider_named
from paceline.providers.tables import DEFAULT, lookup
from paceline.stores import Store

if TYPE_CHECKING:
    from paceline.config import Config

PATIENT = {"max_elapsed_s": RUN_S, "max_retry_after_s": RUN_S, "faults": True}
"""How a batch tries again unless it is told otherwise: its attempts are bounded, and it has time."""


def build(
    config: Config, provider: str | None, store: Store | None, *, patient: bool, clock: Clock, **options: Any
) -> Limiter:
    """See :meth:`paceline.config.Config.limiter`."""
    name = config.provider or provider
    page = provider_named(name).name if name else None
    if page and config.tier is not None:
        lookup(page, DEFAULT, config.tier)  # an unknown tier is said now, not at the first request
    retry = {**(PATIENT if patient else {}), "max_attempts": config.max_attempts, **config.retry}
    limiter = _Configured(
        headroom_s=config.headroom_s,
        ttl_s=config.ttl_s or (max(900.0, 2 * config.timeout_s) if patient else 900.0),
        waiting_max=config.waiting_max,
        retry=RetryPolicy(**retry),
        breaker=config.breaker,
        lanes=config.lanes.values(),
        store=store if store is not None or patient else config.store,
        lost=config.lost,
        lease_s=config.lease_s,
        clock=clock,
        **options,
    )
    limiter.limits = _Limits(config, page)
    limiter.timeout_s = None if patient else config.acquire_timeout_s
    if config.estimate_factor is not None:
        limiter.calibrations = Calibrations(config.estimate_factor)
    return limiter


class _Configured(Limiter):
    """A limiter with a default timeout, and more schedulers than one before a provider."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.timeout_s: float | None = None
        self._further: dict[str, Scheduler] = {}  # by pool

    def status(self) -> dict[str, Any]:
        status = super().status()
        with self._lock:
            further = dict(self._further)
        status["pools"] |= {name: scheduler.status() for name, scheduler in further.items()}
        return status

    def _waiter(
        self, scheduler: Scheduler, cost: Cost, timeout: float | None, lane: str | LaneSpec | None, again: Permit | None
    ) -> Waiter:
        return super()._waiter(scheduler, cost, self.timeout_s if timeout is None else timeout, lane, again)

    def _open(self, resolved: Resolved, now_ns: int, options: dict[str, Any]) -> Scheduler:
        scheduler = super()._open(resolved, now_ns, options)
        if not isinstance(resolved, _AtProvider):
            return scheduler
        further, own = [], {**options, "gentle": False, "source": "given"}
        if resolved.interval_s:
            spacing = Quota(REQUESTS, 1.0, resolved.interval_s)
            pool = Pool(f"{resolved.pool}/spacing", [spacing], now_ns, **{**own, "headroom_s": 0.0})
            further.append(self._further.setdefault(pool.name, Scheduler(pool, self.clock)))
        if resolved.slots is not None:
            name = f"{resolved.pool.partition('/')[0]}/in flight"
            if name not in self._further:
                self._further[name] = super()._open(Resolved(name, (resolved.slots,), "given"), now_ns, own)
            further.append(self._further[name])
        return with_schedulers(scheduler, further) if further else scheduler


def rates(config: Config) -> dict[str, float]:
    """Amounts a minute by unit that hold for every model, whatever else is said."""
    said = {REQUESTS: config.rpm_override, TOKENS: config.tpm_override}
    return {unit: rate for unit, rate in said.items() if rate}


def overridden(config: Config, quotas: tuple[Quota, ...]) -> tuple[Quota, ...]:
    """A model's ``quotas`` with :func:`rates` in place of its own a minute."""
    given = rates(config)
    kept = (quota for quota in quotas if quota.unit not in given or quota.period_s != 60)
    return (*kept, *(Quota(unit, rate) for unit, rate in given.items()))


@dataclass(frozen=True, slots=True)
class _AtProvider(Resolved):
    """A pool whose requests take a slot of their provider's, too, or keep their distance."""

    slots: Quota | None = None
    interval_s: float = 0.0


class _Limits(Limits):
    """Limits with what settings say of every model: rates of the command line, slots, distance, learning or not."""

    def __init__(self, config: Config, provider: str | None) -> None:
        super().__init__(config.limits, provider=provider, tier=config.tier)
        self._config = config
        self._overridden = bool(rates(config))

    def resolve(self, name: str) -> Resolved:
        provider, slash, model = name.partition("/")
        meant = f"{provider}/*" in self.given or ANY in self.given
        if slash and model and meant and name not in self.given and not is_provider(provider):
            return self.model(provider, model)  # of a provider that has no page here
        return super().resolve(name)

    def model(self, provider: str, model: str) -> Resolved:
        config, resolved = self._config, super().model(provider, model)
        quotas = resolved.quotas
        if self._overridden:
            quotas = overridden(config, quotas)
            resolved = replace(resolved, source="given")
        slots = self._slots(resolved.pool.partition("/")[0])
        if slots is not None:  # the model's own are no more
            own = [quota for quota in quotas if (quota.unit, quota.rule) == (CONCURRENCY, Rule.SLOTS)]
            fewest = min([slots, *own], key=lambda quota: quota.amount)
            quotas = (*(quota for quota in quotas if quota not in own), fewest)
        remote = resolved.remote and config.learn
        return _AtProvider(resolved.pool, quotas, resolved.source, remote, slots, config.min_interval_s)

    def _slots(self, provider: str) -> Quota | None:
        most = self._config.concurrency.get(provider, self._config.concurrency.get(ANY))
        return None if most is None else Quota(CONCURRENCY, float(most), 0.0, rule=Rule.SLOTS)
