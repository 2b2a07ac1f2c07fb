"""Limits and budgets of lanes, which hold over all pools: the callers' own, beside the provider's."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from paceline.core.budget import ALONE, LEAST_USD, BudgetWaiter
from paceline.core.queue import DEFAULT_LANE, LaneSpec, Waiter, line_of
from paceline.core.quota import CONCURRENCY, INPUT_TOKENS, NS, OUTPUT_TOKENS, REQUESTS, TOKENS, USD, Quota
from paceline.core.results import AcquireTimeoutError, BudgetError, QuotaError
from paceline.pacing.forks import reentrant_lock
from paceline.pacing.permit import Acquisition, Permit, adjust, take_place
from paceline.pacing.scheduler import Scheduler
from paceline.pacing.settings import Unpriced
from paceline.providers.base import Call, Usage

if TYPE_CHECKING:
    from paceline.providers.prices import Prices

log = logging.getLogger("paceline")

EVERYONE: Final = ""
"""The name of the allowance of all lanes."""

UNITS: Final = (REQUESTS, TOKENS, INPUT_TOKENS, OUTPUT_TOKENS, USD, CONCURRENCY)
"""What an allowance can limit."""

PATIENCE_S: Final = 600.0
"""How long a request without a timeout of its own waits for the requests before it, near the end of a budget: the
timeout of OpenAI's and Anthropic's SDKs (openai 2.8, anthropic 0.75; 2025-11). A program that does not read a stream to
its end would wait for itself."""

AUDIO_TOKENS_S: Final = 32
"""The most tokens of a second of a recording (Google's guide to audio, 2026; OpenAI's 10)."""

OUTPUT_MAX: Final = 1_000_000
"""The tokens of output that are charged where no maximum is known and the answer reports no usage: no model writes more
in an answer."""

Tally = Callable[[LaneSpec, str, str, "Usage"], None]
"""Called with the lane, the provider, the model and the usage of a request that is charged."""

ACCOUNTS_MAX: Final = 20_000
"""Allowances of one limiter: the names of lanes come from callers, and memory is bounded."""

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
        budget: The one for quotas on US dollars (:class:`~paceline.core.budget.BudgetPool`); ``None`` without any.
    """

    name: str
    quotas: tuple[Quota, ...]
    rates: Scheduler | None = None
    budget: Scheduler | None = None
    warned: dict[int, int] = field(default_factory=dict)  # by the index of a quota, the last period with a warning

    def warn(self) -> None:
        """Log once in each period that most of the budget is spent."""
        assert self.budget is not None
        for spent, quota in self.budget.read(self._newly_spent):
            log.warning("%s: %.4g of %s is spent", self.budget.pool.name, spent, _as_given(str(quota)))

    def least(self, now_ns: int) -> tuple[float, Quota]:
        """The least that is left of a quota in US dollars, and the quota."""
        assert self.budget is not None
        meters = [m for m in self.budget.pool.ledger.meters if m.quota.unit == USD]
        return min(((m.level(now_ns), m.quota) for m in meters), key=itemgetter(0))

    def _newly_spent(self, now_ns: int) -> list[tuple[float, Quota]]:
        assert self.budget is not None
        ledger, found = self.budget.pool.ledger, []
        if not self.budget.pool.capacity.settled:  # a store has yet to give back what was reserved
            return []
        for i, m in enumerate(ledger.meters):
            spent = m.quota.amount - m.level(now_ns) - ledger.in_use(i)
            # In minutes: the clocks of processes with one store differ, and the instant of a restart with them.
            period = (m.restart_ns(now_ns) or 0) // (60 * NS)
            if m.quota.unit == USD and spent >= WARN_AT * m.quota.amount and self.warned.get(i) != period:
                self.warned[i] = period
                found.append((spent, m.quota))
        return found


class Allowances:
    """The allowances of a limiter by lane.

    Args:
        make: Makes the scheduler of a pool with this name and these quotas, in place of an earlier one.
        prices: The prices that take precedence over the known ones.
        unpriced: What a budget does with a request whose price is not known: ``count`` or ``refuse``.

    Attributes:
        by_lane: The allowance of each lane that has one.
        tally: Learns of each request what is charged for it; ``None``: nothing does.
    """

    def __init__(
        self,
        make: Callable[[str, tuple[Quota, ...], Scheduler | None], Scheduler],
        prices: Mapping[str, Mapping[str, float]],
        unpriced: Unpriced = "count",
    ) -> None:
        self._make, self._prices, self._unpriced = make, cache(partial(_prices, prices)), unpriced
        self.tally: Tally | None = None
        self.by_lane: dict[str, Allowance] = {}
        self._lock = reentrant_lock()

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
        # A copy: another thread may set an allowance meanwhile.
        return any(allowance.budget is not None for allowance in list(self.by_lane.values()))

    def set(self, lane: str, quotas: Iterable[Quota]) -> None:
        """Give ``lane`` (``EVERYONE``: all traffic) these limits, in place of others.

        Raises:
            QuotaError: A unit is not counted here, prices are missing, or there are too many allowances.
        """
        made = Allowance(lane, tuple(quotas))
        with self._lock:
            known = self.by_lane.get(lane)
            if known is not None and known.quotas == made.quotas:
                return
            check_limits(lane, made.quotas)
            if known is None and made.quotas and len(self.by_lane) >= ACCOUNTS_MAX:
                raise QuotaError(f"more than {ACCOUNTS_MAX:,} lanes with limits: {lane!r} is one too many")
            before = known or Allowance(lane, ())
            if money := tuple(quota for quota in made.quotas if quota.unit == USD):
                self._prices()  # raises, if the package is missing
                made.budget = self._make(f"budget/{lane}" if lane else "budget", money, before.budget)
            if rates := tuple(quota for quota in made.quotas if quota.unit != USD):
                made.rates = self._make(f"lane/{lane}" if lane else "all lanes", rates, before.rates)
            if made.quotas:
                self.by_lane[lane] = made
            else:
                self.by_lane.pop(lane, None)
            for old, new in ((before.budget, made.budget), (before.rates, made.rates)):
                if old is not None and old is not new:
                    old.section.change(old.pool.replace)  # its waiters ask for what is in effect now

    @property
    def schedulers(self) -> list[Scheduler]:
        """The schedulers of all allowances."""
        found = [each for allowance in list(self.by_lane.values()) for each in (allowance.rates, allowance.budget)]
        return [scheduler for scheduler in found if scheduler is not None]

    def of(self, lane: LaneSpec) -> list[tuple[Allowance, LaneSpec]]:
        """The allowances that a request in ``lane`` is charged to, each with the lane in which it waits there.

        Its own come first: a wait for these keeps no other lane from what it shares. The lanes of a parent share its
        limits.
        """
        line = line_of(lane)
        waits = [*zip((one.name for one in line), (lane, *line), strict=False), (EVERYONE, DEFAULT_LANE)]
        return [(found, within) for name, within in waits if (found := self.by_lane.get(name)) is not None]

    def rates(self, lane: LaneSpec) -> list[Scheduler]:
        """The schedulers in which a request in ``lane`` waits for limits on requests and tokens."""
        return [found.rates for found, _ in self.of(lane) if found.rates is not None]

    def bounds_money(self, lane: LaneSpec) -> bool:
        """Whether a request in ``lane`` is charged to a budget."""
        return any(allowance.budget is not None for allowance, _ in self.of(lane))

    def charge(self, lane: LaneSpec, asked: Sequence[Asked]) -> Charge | None:
        """What a request in ``lane`` will hold of the allowances, and be counted as.

        ``None`` if it is charged to nothing.

        Args:
            lane: The lane.
            asked: The request at each server that may answer it.

        Raises:
            BudgetError: Its price is not known, and such a request is refused.
        """
        tally, allowances = None if self.tally is None else partial(self.tally, lane), self.of(lane)
        if not allowances and tally is None:
            return None
        most = list[Most]()
        # Any of them: whether there is one decides, and an error names it.
        budget = next((allowance.budget for allowance, _ in allowances if allowance.budget is not None), None)
        if budget is not None:
            prices = self._prices()
            for one in asked:
                call = one.call
                if self._unpriced == "refuse" and prices.find(call.provider, call.model) is None:
                    unknown = f"no price is known of {call.model} at {call.provider}, and unpriced = 'refuse' is set"
                    raise BudgetError(budget.pool.name, f"{unknown}: give one under [prices]", None)
                most += [_most(prices, call, model, one.expected()) for model in (call.model, *call.others.models)]
        dearest = max(most, key=lambda one: one.usd, default=None)
        # Any of the models may answer, so that one without a bound leaves the request without a bound.
        if dearest is not None and not all(one.known for one in most):
            dearest = dearest._replace(known=False)
        return Charge(allowances, asked[0], dearest, self._prices, tally)


class Asked(NamedTuple):
    """A request at a server.

    Attributes:
        call: Its description.
        expected: Estimates what it uses: where something is held, now, and else where its answer does not tell.
    """

    call: Call
    expected: Callable[[], Usage]


class Most(NamedTuple):
    """What a request can use and cost at most.

    Attributes:
        usage: The usage.
        usd: Its price.
        known: Whether that is a bound; else it is what an answer without usage is charged.
    """

    usage: Usage
    usd: float
    known: bool


def _most(prices: Prices, call: Call, model: str, expected: Usage) -> Most:
    """What ``call`` can use and cost at most, if ``model`` answers."""
    output = _most_output(prices, call, model)
    input_tokens = expected.input_tokens + math.ceil(call.audio_s * AUDIO_TOKENS_S)
    usage = replace(expected, input_tokens=input_tokens, output_tokens=OUTPUT_MAX if output is None else output)
    usd = prices.most_usd(call.provider, model, usage)
    # Output without a price needs no maximum.
    free = output is None and usd == prices.most_usd(call.provider, model, replace(usage, output_tokens=0))
    # What other models write beside it is bounded by no maximum of the request.
    return Most(usage, usd, known=(output is not None and not call.others.beside) or free)


def _most_output(prices: Prices, call: Call, model: str) -> int | None:
    """The most output of ``call`` that is billed, if ``model`` answers, with one answer of each model beside it.

    ``None``: not known.
    """
    stated = call.max_output_tokens or call.billed_max
    if call.others.beside:
        own = [_most_output(prices, replace(call, others=call.others._replace(beside=False)), model)]
        outputs = own + [prices.output_max(call.provider, other) for other in call.others.models]
        return None if None in outputs else sum(filter(None, outputs))
    if stated or not call.writes:
        return stated or 0
    if call.max_output_tokens == 0 and prices.find(call.provider, model) is None:
        return 0  # pictures and recordings that are sold by the piece, which is not counted
    of_one = prices.output_max(call.provider, model)
    return None if of_one is None else of_one * call.choices


class Charge:
    """What a request holds of its allowances, from before its first attempt to its end, or until an attempt breaks.

    Args:
        allowances: The allowances, each with the lane in which it waits there.
        asked: The request.
        most: What it costs at most; ``None`` where there is no budget.
        prices: Returns the prices.
        tally: Called once with what is charged; ``None``: nothing is.

    Attributes:
        settles: Whether an answer was accepted, whose end settles it.
    """

    def __init__(
        self,
        allowances: list[tuple[Allowance, LaneSpec]],
        asked: Asked,
        most: Most | None,
        prices: Callable[[], Prices],
        tally: Callable[[str, str, Usage], None] | None = None,
    ) -> None:
        self._tally, self._asked, self._most = tally, asked, most
        self._allowances, self._prices = allowances, prices
        self._expected = asked.expected() if allowances else None
        self._permits: list[Permit] = []
        self.settles = False

    def steps(self, until_ns: int | None) -> Iterable[tuple[Acquisition, Allowance | None]]:
        """The acquisitions to be made one after another, each with its allowance if it is one of a budget.

        After :meth:`give_back` they are made again, at the front of their lanes. ``until_ns``: when the request ends if
        it still waits; ``None``: it waits on.
        """
        before, self._permits = iter(self._permits), []
        for allowance, lane in self._allowances:
            if allowance.budget is not None:
                assert self._most is not None
                usd = self._most.usd if self._most.known else None
                patient_ns = allowance.budget.now_ns() + round(PATIENCE_S * NS)
                waiter: Waiter = BudgetWaiter(usd, lane, patient_ns if until_ns is None else until_ns)
                take_place(waiter, next(before, None))
                yield Acquisition(allowance.budget, waiter), allowance
        # Rates come last: near the end of a budget a request waits for minutes, and would hold a part of them.
        for allowance, lane in self._allowances:
            if allowance.rates is not None:
                usage = self._estimate()
                tokens = {INPUT_TOKENS: float(usage.input_tokens), OUTPUT_TOKENS: float(usage.output_tokens)}
                waiter = Waiter({REQUESTS: 1, **tokens}, lane, until_ns)
                take_place(waiter, next(before, None))
                yield Acquisition(allowance.rates, waiter), None

    def _estimate(self) -> Usage:
        return self._expected or self._asked.expected()

    def hold(self, permit: Permit) -> None:
        """Keep the permit of a step."""
        self._permits.append(permit)

    def fail(self, error: Exception, allowance: Allowance | None) -> Exception:
        """Give everything back, because a step has failed; the exception for the caller."""
        self.cancel()
        self._warn()
        if allowance is None or allowance.budget is None or not isinstance(error, AcquireTimeoutError):
            return error
        where, pool = allowance.name, allowance.budget.pool
        left_usd, quota = allowance.budget.read(allowance.least)
        budget = f"the budget{where and f' of {where}'}, {_as_given(str(quota))}"
        if left_usd < LEAST_USD:
            return BudgetError(pool.name, f"nothing is left of {budget}", error.retry_after_s)
        assert self._most is not None
        most = f"can cost {self._most.usd:.4g} USD" if self._most.known else "has no known maximum: set its max_tokens"
        left = f"{left_usd:.4g} USD are left of {budget}, and this request {most}"
        return BudgetError(
            pool.name, f"{left}: it waited for other requests to end, which took too long", error.retry_after_s
        )

    def begun(self, usage: Usage, call: Call) -> None:
        """The answer to ``call`` has reported its input: reserve no more than it can still cost."""
        if self._most is not None and self._most.known:
            usd = self._usd(usage, call)
            for permit in self._permits:
                if permit.cost.get(USD, 0.0) > usd and ALONE not in permit.cost:
                    adjust(permit, {USD: usd})

    def settle(self, usage: Usage | None, call: Call) -> None:
        """Charge what the answer to ``call`` reports.

        What it does not report is charged as the most where there is a budget, and else as estimated.
        """
        # Before, too: with a store, what is spent is known only while nothing is on its way back to it.
        self._warn()
        for permit in self._permits:
            if USD in permit.cost:
                permit.settle(usd=self._usd(usage, call))
            elif usage is None:
                permit.settle()
            else:
                counted = self._counted(usage)
                permit.settle(input_tokens=counted.input_tokens, output_tokens=counted.output_tokens)
        self._warn()
        self._count(usage, call)

    def _warn(self) -> None:
        for allowance, _ in self._allowances:
            if allowance.budget is not None:
                allowance.warn()

    def _usd(self, usage: Usage | None, call: Call) -> float:
        """What an answer with this usage costs if its dearest model has answered."""
        assert self._most is not None
        if usage is None:
            return self._most.usd
        counted = self._counted(usage)
        return self._prices().usd(call.provider, self._dearest(counted, call), counted)

    def _dearest(self, usage: Usage, call: Call) -> str:
        """The model that this usage costs the most with, of those that it or ``call`` names, if there is a budget."""
        if self._most is None or not call.others.models:
            return call.model
        prices, models = self._prices(), usage.models or (call.model, *call.others.models)
        return max(models, key=lambda model: prices.usd(call.provider, model, usage))

    def _counted(self, usage: Usage | None) -> Usage:
        """``usage``, and what it leaves open as the most, or as estimated: hidden tokens are not in the text."""
        if usage is not None and not usage.partial:
            return usage
        other = self._estimate() if self._most is None else self._most.usage
        if usage is None:
            return other
        output = max(usage.output_tokens, other.output_tokens)
        # A cost that is stated so far is no cost of the answer.
        usd = None if usage.usd is None or self._most is None else max(usage.usd, self._most.usd)
        return replace(
            usage, input_tokens=usage.input_tokens or other.input_tokens, output_tokens=output, usd=usd, partial=False
        )

    def _count(self, usage: Usage | None, call: Call) -> None:
        tally, self._tally = self._tally, None  # once, also if the charge ends again
        if tally is not None:
            counted = self._counted(usage)
            tally(call.provider, self._dearest(counted, call), counted)

    def cancel(self) -> None:
        """Give everything back: nothing was charged."""
        self._tally = None
        self.give_back()

    def give_back(self) -> None:
        """Give everything back, until the steps are made again."""
        for permit in self._permits:
            permit.cancel()

    def end(self) -> None:
        """Close what is open: the provider may have charged it."""
        if any(permit.open for permit in self._permits) or self._tally is not None:
            self.settle(None, self._asked.call)


def _prices(given: Mapping[str, Mapping[str, float]]) -> Any:
    # Imported here, because only budgets and sums need prices.
    from paceline.providers.prices import Prices

    return Prices(given)


def _as_given(quota: str) -> str:
    """A quota of a budget as the user gives it: the days of budgets restart at midnight UTC without being told."""
    return quota.removesuffix(" window utc")
