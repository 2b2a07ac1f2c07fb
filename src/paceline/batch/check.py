"""The pass over the whole input before the first request: every problem with its line, and what it all will cost."""

from __future__ import annotations

import warnings
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from paceline.batch.index import Index
from paceline.batch.requests import BadLineError, Request, read_lines, read_request
from paceline.core.quota import Cost
from paceline.core.results import NeverFits, PacelineError, PacelineWarning, QuotaError
from paceline.limiter.limiter import Limiter
from paceline.pacing.scheduler import Scheduler
from paceline.providers.base import Provider
from paceline.providers.tables import DEFAULT, lookup

SHOWN: Final = 20
"""How many problems are told one by one."""

TICK: Final = 20_000
"""Lines between two calls of ``tick``."""


class InputError(PacelineError):
    """The input has problems, and nothing has been sent."""

    def __init__(self, problems: Problems) -> None:
        super().__init__("\n".join(problems.lines()))


class Problems:
    """Problems by line; the first ones are kept, all are counted."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[tuple[int, str]] = []

    def add(self, line: int, message: str) -> None:
        """One more."""
        self.count += 1
        insort(self._first, (line, message))
        del self._first[SHOWN:]

    def lines(self) -> list[str]:
        """What a person reads."""
        more = self.count - len(self._first)
        shown = [f"line {line}: {message}" for line, message in self._first]
        return [*shown, *([f"and {more:,} more"] if more else []), "nothing has been sent"]


@dataclass(slots=True)
class Share:
    """What a pool will have to carry.

    Attributes:
        requests: How many requests are charged to it.
        cost: Their estimated cost, per unit.
        model: One whose requests are charged to it, with its provider: ``openai/gpt-5``.
    """

    requests: int = 0
    cost: Cost = field(default_factory=dict)
    model: str = ""

    def add(self, cost: Cost) -> None:
        """One request more."""
        self.requests += 1
        for unit, amount in cost.items():
            self.cost[unit] = self.cost.get(unit, 0.0) + amount


@dataclass(slots=True)
class Plan:
    """What the input asks for.

    Attributes:
        requests: How many requests there are.
        last_line: The last line that was read.
        shares: What each pool will have to carry.
        pages: The providers that requests go to, by name.
        warnings: What the user should know before it starts.
    """

    requests: int = 0
    last_line: int = 0
    shares: dict[str, Share] = field(default_factory=dict)
    pages: dict[str, Provider] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def check(
    file: BinaryIO,
    limiter: Limiter,
    index: Index,
    *,
    provider: str | None = None,
    tick: Callable[[int], None] = lambda _: None,
) -> Plan:
    """Read all of ``file`` and put its ids into ``index``.

    Args:
        file: The input; it is read from where it is to its end, one line in memory at a time.
        limiter: Whose limits hold.
        index: Where the ids go.
        provider: Whose dialect every line speaks; by each line's format when not given.
        tick: Called now and then with the number of requests so far.

    Raises:
        InputError: Some lines cannot be sent.
    """
    problems, plan = Problems(), Plan()
    checker = _Checker(limiter, plan)
    for line, raw in read_lines(file):
        plan.last_line = line
        try:
            request = read_request(line, raw, provider)
            checker.take(request)
        except BadLineError as error:
            problems.add(line, str(error))
            continue
        for second, first in index.add(request.custom_id, line):
            problems.add(second, f"custom_id is that of line {first}: each must be there once")
        if plan.requests % TICK == 0:
            tick(plan.requests)
    for second, first in index.flush():
        problems.add(second, f"custom_id is that of line {first}: each must be there once")
    if problems.count:
        raise InputError(problems)
    return plan


class _Checker:
    """Whether a request can be sent, and what it will cost."""

    def __init__(self, limiter: Limiter, plan: Plan) -> None:
        self._limiter, self._plan = limiter, plan
        self._schedulers: dict[tuple[str, str], tuple[Scheduler, Share]] = {}

    def take(self, request: Request) -> None:
        """Add ``request`` to the plan.

        Raises:
            BadLineError: It can never be sent.
        """
        call = request.page.describe(request.path, request.body)
        if call is None:
            raise BadLineError(
                f"url is {request.path!r}, which {request.page.name} does not pace; known are /v1/chat/completions,"
                " /v1/responses, /v1/embeddings and /v1/completions, and /v1/messages of Anthropic"
            )
        try:
            scheduler, share = self._schedulers.get((request.page.name, call.model)) or self._meet(
                request.page, call.model
            )
        except QuotaError as error:
            raise BadLineError(str(error)) from None
        lessons = self._limiter.calibrations.of(call.provider, call.model, call.endpoint)
        cost = request.page.held(
            call, lessons.input.apply(call.input_tokens), lessons.expected_output(call.max_output_tokens)
        )
        ledger = scheduler.pool.ledger
        never = ledger.never(ledger.amounts(cost))
        if never is not None:
            raise BadLineError(_too_large(request, never))
        share.add(cost)
        self._plan.requests += 1

    def _meet(self, page: Provider, model: str) -> tuple[Scheduler, Share]:
        """The first request for a model."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PacelineWarning)  # we say it ourselves, with what the command line offers
            scheduler = self._limiter.scheduler_for(page.name, model)
            limits = self._limiter.limits
            given = limits.model(page.name, model).source == "given"
            tier = limits.tier if page.name == limits.provider else None
            if not given and lookup(page.name, model, tier).matched == DEFAULT:
                quotas = ", ".join(scheduler.pool.ledger.names)
                self._plan.warnings.append(
                    f"no table knows {page.name}'s model {model!r}: {quotas} will be used until answers say otherwise;"
                    f" set the real limits with --limit '{model}=500 requests/min,400k tokens/min'"
                )
        found = scheduler, self._plan.shares.setdefault(scheduler.pool.name, Share(model=f"{page.name}/{model}"))
        if len(self._schedulers) < 100_000:
            self._schedulers[page.name, model] = found
        self._plan.pages[page.name] = page
        return found


def _too_large(request: Request, never: NeverFits) -> str:
    return (
        f"it would cost about {never.cost:,.0f} {never.unit}, and the limit of {request.model[:100]} is"
        f" {never.most:,.0f} at once: it can never be sent; make it smaller (max_tokens counts, too), or set the real"
        " limit with --limit"
    )
