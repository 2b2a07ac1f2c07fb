"""Limits and budgets of lanes, which hold over all pools: the callers' own, beside the provider's."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Literal

from paceline.core.queue import DEFAULT_LANE, LaneSpec, Waiter
from paceline.core.quota import CONCURRENCY, INPUT_TOKENS, NS, OUTPUT_TOKENS, REQUESTS, TOKENS, USD, Cost, Quota
from paceline.core.results import AcquireTimeoutError, BudgetError, NeverFitsError, QuotaError
from paceline.pacing.permit import Acquisition, Permit
from paceline.pacing.scheduler import Scheduler

if TYPE_CHECKING:
    from paceline.providers.base import Usage

log = logging.getLogger("paceline")

EVERYONE: Final = ""
"""The name of the allowance of all lanes."""

UNITS: Final = (REQUESTS, TOKENS, INPUT_TOKENS, OUTPUT_TOKENS, USD, CONCURRENCY)
"""What an allowance can limit."""

Unpriced = Literal["count", "refuse"]
"""What a budget does with a request whose price is not known."""

PATIENCE_S: Final = 5.0
"""How long a request may wait for a budget, for example for the answer of its store."""

Tally = Callable[[str, str, str, "Usage"], None]
"""Called with the lane, the provider, the model and the usage of a request that is charged."""

ACCOUNTS_MAX: Final = 20_000
"""Allowances of one limiter."""

WARN_AT: Final = 0.8
"""The share of a budget at which a warning is logged."""


def check_budget(quotas: tuple[Quota, ...]) -> tuple[Quota, ...]:
    """Refuse what is no budget.

    Raises:
        QuotaError: A quota is not in US dollars.
    """
    for quota in quotas:
        if quota.unit != USD:
            raise QuotaError(f"budget {str(quota)!r}: its unit must be usd, e.g. '100 usd/day'")
    return quotas


def check_limits(lane: str, quotas: Iterable[Quota]) -> None:
    """Refuse limits that cannot be counted here.

    Raises:
        QuotaError: A unit is another one.
    """
    for quota in quotas:
        if quota.unit not in UNITS:
            raise QuotaError(
                f"limit of {lane or 'all lanes'}: {str(quota)!r}: its unit must be one of {', '.join(UNITS)}"
            )


@dataclass(slots=True)
class Allowance:
    """The limits of a lane.

    Attributes:
        rates: The queue for quotas on requests and tokens, in which requests wait; ``None`` without any.
        budget: The one for quotas on US dollars, in which none waits; ``None`` without any.
        lane: In which its requests wait, so that the waits for its own limits are told as its own.
    """

    name: str
    quotas: tuple[Quota, ...]
    rates: Scheduler | None
    budget: Scheduler | None
    warned: bool = False
    lane: LaneSpec = field(init=False)

    def __post_init__(self) -> None:
        self.lane = LaneSpec(self.name) if self.name else DEFAULT_LANE

    def warn(self) -> None:
        """Log once that most of the budget is spent."""
        assert self.budget is not None
        for m in self.budget.pool.ledger.meters:
            spent = m.quota.amount - m.level(self.budget.now_ns())
            if spent >= WARN_AT * m.quota.amount:
                if not self.warned:
                    name, whole = self.budget.pool.name, _as_given(str(m.quota))
                    log.warning("%s: %.4g of %s is spent or reserved", name, spent, whole)
                self.warned = True
                return
        self.warned = False


class Allowances:
    """The allowances of a limiter by lane.

    Args:
        make: Makes the scheduler of a pool with this name and these quotas.
        prices: The prices that take precedence over the known ones.
        unpriced: What a budget does with a request whose price is not known: ``count`` or ``refuse``.

    Attributes:
        tally: Learns of each request what is charged for it; ``None``: nothing does.
    """

    def __init__(
        self,
        make: Callable[[str, tuple[Quota, ...]], Scheduler],
        prices: Mapping[str, Mapping[str, float]],
        unpriced: Unpriced = "count",
    ) -> None:
        self._make, self._prices, self._unpriced = make, cache(partial(_prices, prices)), unpriced
        self.tally: Tally | None = None
        self._by_lane: dict[str, Allowance] = {}
        self._lock = threading.RLock()

    def __bool__(self) -> bool:
        """Whether requests are charged to anything."""
        return bool(self._by_lane) or self.tally is not None

    def price(self, provider: str, model: str, usage: Usage) -> float | None:
        """What a request costs, in US dollars; ``None`` if no price is known.

        Raises:
            QuotaError: Prices are missing.
        """
        prices = self._prices()
        if usage.usd is not None:
            return usage.usd
        found = prices.find(provider, model, usage.tier, usage.input_tokens)
        return None if found is None else float(found.of(usage))

    @property
    def has_budget(self) -> bool:
        """Whether there is any budget."""
        return any(allowance.budget is not None for allowance in list(self._by_lane.values()))

    def set(self, lane: str, quotas: Iterable[Quota]) -> None:
        """Give ``lane`` (``EVERYONE``: all traffic) these limits, in place of others.

        Raises:
            QuotaError: A unit is not counted here, prices are missing, or there are too many allowances.
        """
        with self._lock:
            self._set(lane, tuple(quotas))

    def _set(self, lane: str, quotas: tuple[Quota, ...]) -> None:
        known = self._by_lane.get(lane)
        if known is not None and known.quotas == quotas:
            return
        check_limits(lane, quotas)
        if not quotas:
            self._by_lane.pop(lane, None)
            return
        if known is None and len(self._by_lane) >= ACCOUNTS_MAX:
            raise QuotaError(f"more than {ACCOUNTS_MAX:,} lanes with limits: {lane!r} is one too many")
        rates = tuple(quota for quota in quotas if quota.unit != USD)
        money = tuple(quota for quota in quotas if quota.unit == USD)
        if money:
            self._prices()  # raises, if the package is missing
        self._by_lane[lane] = Allowance(
            lane,
            quotas,
            self._make(f"lane/{lane}" if lane else "all lanes", rates) if rates else None,
            self._make(f"budget/{lane}" if lane else "budget", money) if money else None,
        )

    @property
    def schedulers(self) -> list[Scheduler]:
        """The schedulers of all allowances."""
        found = [each for allowance in list(self._by_lane.values()) for each in (allowance.rates, allowance.budget)]
        return [scheduler for scheduler in found if scheduler is not None]

    def of(self, lane: str) -> list[Allowance]:
        """The allowances that a request in ``lane`` is charged to."""
        return [allowance for name in (EVERYONE, lane) if (allowance := self._by_lane.get(name)) is not None]

    def charge(
        self, lane: str, provider: str, model: str, expected: Callable[[], Usage], timeout_s: float | None
    ) -> Charge | None:
        """What a request in ``lane`` will hold of the allowances, and be counted as; ``None`` if it is charged to nothing.

        Args:
            lane: The lane.
            provider: The provider of the request.
            model: The model.
            expected: Estimates what it uses: where something is held, now, and else where its answer does not tell.
            timeout_s: The longest wait.

        Raises:
            BudgetError: Its price is not known, and such a request is refused.
        """
        tally, of = None if self.tally is None else partial(self.tally, lane), (provider, model)
        allowances = self.of(lane)
        if not allowances:
            return None if tally is None else Charge([], expected, 0.0, self._prices, timeout_s, tally, of)
        usage, usd = expected(), 0.0
        budget = next((allowance.budget for allowance in allowances if allowance.budget is not None), None)
        if budget is not None:
            prices = self._prices()
            if self._unpriced == "refuse" and prices.find(provider, model) is None:
                unknown = f"no price is known of {model} at {provider}, and unpriced = 'refuse' is set: give one under [prices]"
                raise BudgetError(budget.pool.name, unknown, None)
            usd = prices.usd(provider, model, usage)
        return Charge(allowances, lambda: usage, usd, self._prices, timeout_s, tally, of)


class Charge:
    """What one request holds of its allowances, from before its first attempt to its end.

    Args:
        allowances: The allowances.
        expected: Estimates what it uses.
        usd: The price of that.
        prices: Returns the prices (:class:`~paceline.providers.prices.Prices`).
        timeout_s: The longest wait in each, in seconds; ``None``: no bound.
        tally: Called once with what is charged; ``None``: nothing is.
        of: The provider and the model that the estimate is of.

    Attributes:
        settles: Whether an answer was accepted, whose end settles it.
    """

    def __init__(
        self,
        allowances: list[Allowance],
        expected: Callable[[], Usage],
        usd: float,
        prices: Callable[[], Any],
        timeout_s: float | None,
        tally: Callable[[str, str, Usage], None] | None = None,
        of: tuple[str, str] = ("", ""),
    ) -> None:
        self._expected, self._tally, self._of = expected, tally, of
        self._allowances, self._usd, self._timeout_s, self._prices = allowances, usd, timeout_s, prices
        self._permits: list[Permit] = []
        self.settles = False

    def steps(self) -> Iterable[tuple[Acquisition, Allowance | None]]:
        """The acquisitions to be made one after another, each with its allowance if it is one of a budget."""
        for allowance in self._allowances:
            if allowance.budget is not None:
                yield _ask(allowance.budget, allowance.lane, {USD: self._usd}, PATIENCE_S), allowance
        for allowance in self._allowances:
            if allowance.rates is not None:
                usage = self._expected()
                cost: Cost = {INPUT_TOKENS: float(usage.input_tokens), OUTPUT_TOKENS: float(usage.output_tokens)}
                yield _ask(allowance.rates, allowance.lane, cost, self._timeout_s), None

    def hold(self, permit: Permit) -> None:
        """Keep the permit of a step."""
        self._permits.append(permit)

    def fail(self, error: Exception, allowance: Allowance | None) -> Exception:
        """Give everything back, because a step has failed; the exception for the caller."""
        self.cancel()
        if allowance is None or allowance.budget is None:
            return error
        where = f"the budget of {allowance.name}" if allowance.name else "the budget"
        if isinstance(error, NeverFitsError):
            most = f"the request is estimated at {error.cost:.4g} USD, and {where} is {error.most:.4g} USD: it is never sent"
            return BudgetError(allowance.budget.pool.name, most, None)
        if isinstance(error, AcquireTimeoutError):
            left = f"not enough is left of {where}, {_as_given(error.quota)},"
            spent = f"{left} for this request of about {self._usd:.4g} USD"
            return BudgetError(allowance.budget.pool.name, spent, error.retry_after_s)
        return error

    def settle(self, usage: Usage | None, provider: str, model: str) -> None:
        """Charge what the answer reports; ``None``: as estimated."""
        for permit in self._permits:
            if usage is None:
                permit.settle()
            elif USD in permit.cost:
                permit.settle(usd=self._prices().usd(provider, model, usage))
            else:
                permit.settle(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
        for allowance in self._allowances:
            if allowance.budget is not None:
                allowance.warn()
        self._count(usage, provider, model)

    def _count(self, usage: Usage | None, provider: str, model: str) -> None:
        tally, self._tally = self._tally, None
        if tally is not None:
            tally(provider, model, usage or self._expected())

    def cancel(self) -> None:
        """Give everything back: nothing was charged."""
        self._tally = None
        for permit in self._permits:
            permit.cancel()

    def end(self) -> None:
        """Close what is open, as estimated: the provider may have charged it."""
        for permit in self._permits:
            permit.close()
        self._count(None, *self._of)


def _prices(given: Mapping[str, Mapping[str, float]]) -> Any:
    from paceline.providers.prices import Prices

    return Prices(given)


def _as_given(quota: str) -> str:
    """A quota of a budget as the user gives it: the days of budgets restart at midnight UTC without being told."""
    return quota.removesuffix(" window utc")


def _ask(scheduler: Scheduler, lane: LaneSpec, cost: Cost, timeout_s: float | None) -> Acquisition:
    deadline_ns = None if timeout_s is None else scheduler.now_ns() + round(timeout_s * NS)
    return Acquisition(scheduler, Waiter({REQUESTS: 1, **cost}, lane, deadline_ns))
