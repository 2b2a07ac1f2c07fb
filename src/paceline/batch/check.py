"""Every problem of the input with its line, and the estimated cost: before the first request, or as the lines are sent."""

from __future__ import annotations

import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from paceline.batch.index import Index
from paceline.batch.packs import bounds_of, part_of
from paceline.batch.requests import BadLineError, RunRequest, Source, decode, keyless
from paceline.config.servers import Server
from paceline.core.quota import INPUT_TOKENS, REQUESTS, Rule
from paceline.core.results import GIVEN, NeverFits, PacelineError, PacelineWarning, SettingsError
from paceline.http.describe import Metered, metered
from paceline.limiter.limiter import Limiter
from paceline.pacing.scheduler import Scheduler
from paceline.providers.base import Provider
from paceline.providers.registry import base_of
from paceline.providers.tables import DEFAULT, ending, lookup

SHOWN: Final = 20
"""How many problems a message lists."""

MODELS_MAX: Final = 100_000
"""How many models of an input are remembered."""

TICK: Final = 200_000
"""Requests between two calls of ``tick``."""


class InputError(PacelineError):
    """The input has problems, and nothing has been sent."""


@dataclass(slots=True)
class PoolWork:
    """The part of the input that is charged to one pool.

    Attributes:
        requests: How many they are; of rows that share one, the parts of it that they fill.
        cost: The estimated cost of the requests, per unit.
        model: The first model that is charged to the pool, with its provider: ``openai/gpt-6-luna``.
        passes: The names of the pools that its requests pass, too: joint limits, the spacing of starts, the limits of the lane.
    """

    requests: float = 0
    cost: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    model: str = ""
    passes: Sequence[str] = ()


@dataclass(slots=True)
class InputPlan:
    """The content of the input, as far as it has been read.

    Attributes:
        last_line: The number of the last line that is a request.
        end: How many bytes have been read.
        shares: The part of the input that is charged to each pool.
        warnings: Shown to the user before the run starts.
        refused: How many of the rows cannot be sent; they are not among the requests.
    """

    requests: int = 0
    last_line: int = 0
    end: int = 0
    shares: dict[str, PoolWork] = field(default_factory=dict)
    providers: dict[str, Provider] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    refused: int = 0

    @property
    def per_row(self) -> float:
        """How many requests are sent for each of the input's: less than one if rows share them."""
        return sum(share.requests for share in self.shares.values()) / self.requests if self.requests else 1.0


def check(
    source: Source, checker: Checker, *, most: int | None = None, tick: Callable[[int], None] = lambda _: None
) -> InputPlan:
    """Read ``source`` and add its lines to the plan of ``checker``.

    Args:
        source: The input; it is read from its beginning to its end, one line in memory at a time.
        checker: Finds the lines that cannot be sent.
        most: How many lines are read; all when not given.
        tick: Called every ``TICK`` requests with the number of requests so far.

    Raises:
        InputError: Some lines cannot be sent.
    """
    plan, problems, count, file = checker.plan, [], 0, source.file
    for line, raw in islice(source.lines(), most):
        try:
            checker.add(source.read(line, raw))
        except BadLineError as error:
            if raw is not None and not raw.endswith(b"\n") and file.read(1):
                file.seek(-1, os.SEEK_CUR)  # its writer goes on: the next run sends it
                break
            count += 1
            if count <= SHOWN:
                problems.append(f"{source.unit} {line}: {error}")
            if not source.strict:
                plan.last_line = line
                checker.refuse(line, raw, str(error))
        else:
            plan.last_line = line
            if plan.requests % TICK == 0:
                tick(plan.requests)
    plan.end = file.tell()
    if count > SHOWN:
        problems.append(f"and {count - SHOWN:,} more")
    if problems and source.strict:
        raise InputError("\n".join([*problems, "nothing has been sent"]))
    plan.refused = count
    return plan


class PoolPart(NamedTuple):
    """A pool that takes requests of one model, and what the plan charges to it; ``speed``: in requests per second."""

    scheduler: Scheduler
    share: PoolWork
    speed: float


@dataclass(eq=False, repr=False)
class Checker:
    """Adds requests to a plan, and finds those that can never be sent.

    Attributes:
        limiter: The limits that hold.
        index: Receives the ids.
        group: The members of the group that answers all requests, if there is one.
        place: The provider whose limits hold for a model, of requests in the form of a provider; that one by default.
        plan: The plan.
    """

    limiter: Limiter
    index: Index
    group: Sequence[Server] = ()
    place: Callable[[Provider, str], Provider] = lambda provider, _: provider
    plan: InputPlan = field(default_factory=InputPlan)

    def __post_init__(self) -> None:
        self._placed: dict[tuple[str, str], Provider] = {}
        self._pools: dict[tuple[str, str], list[PoolPart]] = {}

    def add(self, request: RunRequest) -> Metered:
        """Add ``request`` to the plan; return what it costs.

        Raises:
            BadLineError: It can never be sent.
        """
        metered, parts = self._described(request)
        cost = metered.cost()
        ledgers = [part.scheduler.pool.ledger for part in parts]
        nevers = [never for ledger in ledgers if (never := ledger.never(ledger.amounts(cost))) is not None]
        if len(nevers) == len(parts):
            raise BadLineError(_too_large(request, nevers[-1]))
        share = parts[0].share
        if len(parts) > 1:  # the one whose requests take the least time
            share = min(parts, key=lambda part: part.share.requests / part.speed).share
        if (first := self.index.add(request.custom_id, request.line, number=request.number)) is not None:
            raise BadLineError(f"custom_id is already in {request.unit} {first}: it must be unique")
        self.plan.requests += 1
        fills = part_of(request, cost.get(INPUT_TOKENS, 0.0))
        share.requests += fills
        for unit, amount in cost.items():
            alone = unit == REQUESTS and not (request.shares and bounds_of(request).counted)
            share.cost[unit] += amount * fills if alone else amount
        return metered

    def refuse(self, line: int, raw: bytes | None, why: str) -> None:
        """Note a row that cannot be sent."""
        custom_id = decode(raw or b"")["custom_id"]
        self.index.refuse(str(custom_id), line, why, number=isinstance(custom_id, int))

    def describe(self, request: RunRequest) -> Metered:
        """What a ``request`` of the plan costs, by what the answers have shown so far.

        Raises:
            BadLineError: Its path is not paced.
        """
        return self._described(request)[0]

    def _described(self, request: RunRequest) -> tuple[Metered, list[PoolPart]]:
        kind = request.provider.name, request.model
        provider = self._placed.get(kind) or self.place(request.provider, request.model)
        if len(self._placed) < MODELS_MAX:
            self._placed[kind] = provider
        call = provider.describe(request.path, request.body)
        if call is None:
            raise BadLineError(
                f"url is {keyless(request.path)!r}, which is not paced for {request.provider.name}; use /v1/chat/completions,"
                " /v1/responses, /v1/embeddings or /v1/completions, or /v1/messages for Anthropic"
            )
        known = self._pools.get((provider.name, call.model))
        try:
            parts = known or self._first_of(request, provider, call.model)
        except SettingsError as error:
            raise BadLineError(str(error)) from None
        pacer, body = self.limiter.pacer, request.body
        return metered(pacer, provider, call, body, lambda: body, scheduler=parts[0].scheduler), parts

    def _first_of(self, request: RunRequest, provider: Provider, model: str) -> list[PoolPart]:
        """The pools of a model that has not occurred before: one, or one for each member of a group."""
        places = [(provider, model)]
        if self.group:
            places = [(one.provider, one.model(request.path, request.body) or model) for one in self.group]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PacelineWarning)  # the warnings below name the command line's option
            parts = [self._part(*place) for place in places]
        if len(self._pools) < MODELS_MAX:
            self._pools[provider.name, model] = parts
        self.plan.providers[request.provider.name] = request.provider
        return parts

    def _part(self, provider: Provider, model: str) -> PoolPart:
        scheduler = self.limiter.pacer.pools.of_model(provider.name, model)
        limits = self.limiter.limits
        resolved = limits.model(provider.name, model)
        tier = limits.settings.tier if base_of(provider.name) == limits.provider else None
        if GIVEN not in resolved.sources and lookup(provider.name, model, tier).matched == DEFAULT:
            stated = [one.name for one in scheduler.pool.ledger.entries if one.meter.quota.rule is not Rule.MEASURED]
            used = f"{', '.join(stated)} are used" if stated else "the rate is measured"
            self.plan.warnings.append(
                f"no published limits for {provider.name}'s model {model!r}: {used} until answers state the limits;"
                f" set the real ones with --limit '{model}=500 requests/min,400k tokens/min' (in Python: limits=)"
            )
        if ended := ending(provider.name, model):
            self.plan.warnings.append(f"{provider.name}'s model {model!r} {ended}")
        pacer = self.limiter.pacer
        passes = [each.pool.name for each in (*pacer.allowances.rates(pacer.lanes.of()), *scheduler.further)]
        work = PoolWork(model=f"{provider.name}/{model}", passes=passes)
        share = self.plan.shares.setdefault(scheduler.pool.name, work)
        return PoolPart(scheduler, share, min((quota.rate for quota in resolved.quotas if quota.period_s), default=1.0))


def _too_large(request: RunRequest, never: NeverFits) -> str:
    return (
        f"its estimated cost is {never.cost:,.0f} {never.unit}, and the limit of {request.model[:100]} is"
        f" {never.most:,.0f} at once: it can never be sent; make it smaller (max_tokens counts, too), or set the real"
        " limit with --limit (in Python: limits=)"
    )
