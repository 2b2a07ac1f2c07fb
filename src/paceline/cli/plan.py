"""``paceline plan``: how long work will take under given limits, what binds it, and what it costs."""

from __future__ import annotations

import gc
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from paceline.batch.requests import BadLineError, RunRequest, keyless
from paceline.cli import options
from paceline.cli.run import GC_THRESHOLD
from paceline.core.quota import Quota, brief
from paceline.core.results import PacelineError, QuotaError, explaining
from paceline.emulator.settings import SettingsError
from paceline.providers.registry import is_provider, maker, provider_named
from paceline.providers.tables import tiers as tiers_of

if TYPE_CHECKING:
    from paceline.batch.forms import Form
    from paceline.config import Config
    from paceline.pacing.pacer import Pacer
    from paceline.planner.plan import Plan, Turns
    from paceline.planner.simulation import Request
    from paceline.planner.workload import Work

LATE = 1
SPEED: Final = {"latency_s": 1.0, "latency_per_token_s": 0.02, "jitter": 0.3}
"""The speed of the simulated provider when nothing states it."""

EPILOG = """SOURCE is a workload file (TOML or YAML), or an input of `paceline run` with its options. With --agents SOURCE is a model: every agent
has a conversation, and the provider caches its prompts. Nothing is sent."""


def _size(name: str, field: str, about: str) -> options.Decorator:
    """The option for a number of tokens."""
    return click.option(name, field, callback=options.tokens, metavar="TOKENS", help=about)


@click.command(cls=options.Told, epilog=EPILOG)
@click.argument("source", metavar="SOURCE")
@options.BASE_URL
@click.option("--provider", help="The provider. [default: by the address, the model or the format]")
@options.TIERS
@options.rows
@click.option("--workers", multiple=True, type=click.IntRange(1, 1_000_000), help="Items at once. Repeatable.")
@click.option(
    "--agents",
    multiple=True,
    type=click.IntRange(1, 1_000_000),
    help="Agents at once. SOURCE is their model. Repeatable.",
)
@click.option("--turns", "calls", type=click.IntRange(1, 1_000), help="Turns per agent. [default: 10]")
@_size("--prompt", "input_tokens", "The first prompt of an agent. [default: 20k]")
@_size("--shared", "shared_tokens", "The beginning of the prompt that all agents share. [default: 0]")
@_size("--grows", "grows", "Tokens that a turn adds to the prompt, with its answer. [default: 500]")
@_size("--answer", "output_tokens", "The output of a turn. [default: 100]")
@options.span("--think", "The mean time from an answer to the next turn. [default: 10s]")
@options.number(
    "--cache-misses", between=(0, 1), about="The share of turns that find nothing in the cache. [default: 0]"
)
@options.limits
@options.CONFIG
@options.span("--within", "Say which variants end within this time, such as 6h or 90min.")
@options.number("--latency-s", between=(0, 1e5), about="Seconds until an answer starts. [default: 1]")
@options.number("--latency-per-token-s", between=(0, 1e3), about="Further seconds per output token. [default: 0.02]")
@click.option("--seed", type=int, default=0, help="The seed of the random latencies. [default: 0]")
@options.PICTURE
@click.option("--json", "as_json", is_flag=True, help="Print the plans as JSON on standard output.")
def command(
    *,
    source: str,
    tiers: tuple[str, ...],
    workers: tuple[int, ...],
    agents: tuple[int, ...],
    within_s: float | None,
    seed: int,
    picture: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Show how long work will take, and its cost."""
    if agents and workers:
        raise click.UsageError("--agents and --workers exclude each other: give one")
    talk, speed = _set(given, *TALK), _set(given, "latency_s", "latency_per_token_s", "cache_misses")
    form = options.form(given)
    _check_source(source, form, of_agents=bool(agents), is_talk=bool(talk) or "cache_misses" in speed)
    config = options.settings(given)
    works = {f"{count:,} agents": partial(_agents, source, count, talk, speed) for count in agents}
    if not agents:
        work = _work(Path(source), form, config, speed)
        works = {f"{count:,} workers": partial(work, count) for count in workers} or {"": partial(work, None)}
    found = dict(plans(works, config, tiers=tiers, limits=given["limits"], every=within_s is not None, seed=seed))
    if picture is not None:
        draw_to(found, picture)
    if as_json:
        click.echo(to_json("plans", found))
    else:
        show(found, tiers=bool(within_s is not None or tiers or config.tier))
    if within_s is not None:
        _judge(found, within_s)


def _home(config: Config, owners: Collection[str], tiers: Sequence[str]) -> str | None:
    """The provider of the tiers: the one that is set, or the only one of the models."""
    home = config.provider or config.home or (next(iter(owners)) if len(owners) == 1 else None)
    if tiers and (len(owners) > 1 if home is None else owners and home not in owners):
        raise PacelineError(
            f"--tier: a tier is of one provider, and the models are of {' and '.join(sorted(owners))}: name it with --provider,"
            " or give limits with --limit"
        )
    return home


def _set(given: dict[str, Any], *names: str) -> dict[str, Any]:
    """The options with these names that are set, taken out of ``given``."""
    return {name: value for name, value in options.taken(given, *names).items() if value is not None}


def _check_source(source: str, form: Form, *, of_agents: bool, is_talk: bool) -> None:
    """Refuse options of another kind of work."""
    if is_talk and not of_agents:
        raise click.UsageError(
            "--turns, --prompt, --shared, --grows, --answer, --think and --cache-misses are of agents: give --agents"
        )
    if not of_agents and not Path(source).is_file():
        raise click.UsageError(
            f"SOURCE is {source!r}: there is no such file; if it is a model, give the number of agents with --agents"
        )
    if not form.is_plain and (of_agents or Path(source).suffix in WORKLOADS):
        raise PacelineError(
            "--model, --column, --template, --key, --task, --max-tokens, --schema, --files, --no-header and --lines are of a table"
        )


def plans(
    works: Mapping[str, Callable[[], Work]],
    config: Config,
    *,
    tiers: Sequence[str] = (),
    limits: Collection[str] = (),
    every: bool = False,
    start_s: float | None = None,
    **options: Any,
) -> Iterator[tuple[str, Plan]]:
    """The plans of each tier with each work, and their titles.

    Args:
        works: By the title of the work what makes it, once for each plan.
        config: The settings.
        tiers: The tiers; ``all`` for all of the provider.
        limits: The names in the options ``--limit``.
        every: Whether all tiers are meant where none is named.
        start_s: When the work starts, in seconds since the Unix epoch; now when not given.
        **options: Further arguments of :func:`~paceline.planner.plan.plan`.

    Raises:
        PacelineError: The provider or a limit is unknown.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from paceline.planner.plan import plan

    work = next(iter(works.values()))()
    if every and work.duration_s is not None:
        raise PacelineError("--within needs work that ends: with a duration, a plan ends although items are left")
    owners = _makers(work)
    home = _home(config, owners, tiers)
    for name in _unmatched(limits, work.models):
        click.echo(f"--limit {name}: no model of the work has this name", err=True)
    for tier in _tiers(home, config, tiers, every=every):
        for of, again in works.items():
            work = again()
            own = replace(config, tier=tier).arguments(home)
            if work.limits:
                own["quotas"] = {**work.limits, **own["quotas"]}
            named = tier and f"{f'{home} ' if len(owners) > 1 else ''}{'tier ' if tier[0].isdigit() else ''}{tier}"
            title = ", ".join(filter(None, [named, of])) or "plan"
            terminal = Console(stderr=True)
            shown = Text(f"{title}: simulating")
            with _undisturbed(), Live(shown, console=terminal, auto_refresh=False, transient=True):
                made = plan(work, own, start_s=time.time() if start_s is None else start_s, **options)
            yield title, made


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Log nothing, because what happens in a simulation is in its result; and collect garbage rarely: little of it has cycles.

    Raises:
        QuotaError: A setting of the simulated provider is invalid.
    """
    log = logging.getLogger("paceline")
    level, threshold = log.level, gc.get_threshold()
    log.setLevel(logging.CRITICAL)
    gc.set_threshold(*GC_THRESHOLD)
    try:
        yield
    except SettingsError as error:
        raise QuotaError(str(error)) from None
    finally:
        log.setLevel(level)
        gc.set_threshold(*threshold)


def _makers(work: Work) -> set[str]:
    """The providers of the models of ``work``, as far as they are known."""
    owners = {name.partition("/")[0] if "/" in name else maker(name) for name in work.models}
    return {owner for owner in owners if owner is not None and is_provider(owner)}


def _unmatched(limits: Collection[str], models: Iterable[str]) -> list[str]:
    """The names of ``limits`` that no model has."""
    full = {name if "/" in name else f"{maker(name)}/{name}" for name in models}
    known = {
        "*",
        *models,
        *full,
        *(name.partition("/")[2] for name in full),
        *(f"{name.partition('/')[0]}/*" for name in full),
    }
    return [name for name in limits if name not in known]


def _tiers(home: str | None, config: Config, tiers: Sequence[str], *, every: bool) -> Sequence[str | None]:
    """The tiers that are compared: those that are named, or every tier of the provider ``home``."""
    if "all" not in tiers and (tiers or not every or config.limits or config.tier):
        return tiers or [config.tier if config.tier is None else str(config.tier)]
    found = tiers_of(provider_named(home).name) if home is not None else ()
    if not found and "all" in tiers:
        raise PacelineError(f"--tier all: no tiers of {home or 'these models'} are known; name limits with --limit")
    return list(found) or [None]


WORKLOADS: Final = (".toml", ".yaml", ".yml")


TALK: Final = {
    "calls": 10, "input_tokens": 20_000, "shared_tokens": 0, "grows": 500, "output_tokens": 100, "think_s": 10.0,
}  # fmt: skip
"""The conversations of agents where nothing else is given."""


def _agents(model: str, count: int, talk: Mapping[str, Any], speed: Mapping[str, float]) -> Work:
    """Agents that all start at once; each thinks between half of the mean time and one and a half times as long.

    Raises:
        PacelineError: The sizes make no sense.
    """
    from paceline.planner.workload import Workload, WorkPhase

    fields: dict[str, Any] = {**TALK, **talk}
    fields["think_s"] = [0.5 * fields["think_s"], 1.5 * fields["think_s"]]
    with explaining("--agents", kind=PacelineError, of=ValueError):
        phase = WorkPhase(name="agents", models=model, **fields)
    return Workload(phases=[phase], items=count, provider={**SPEED, **speed}).work()


def _work(source: Path, form: Form, config: Config, speed: Mapping[str, float]) -> Callable[[int | None], Work]:
    """What makes the work of a file for each plan, with another number of workers if one is given."""
    from paceline.planner.workload import of_calls, read_workload

    calls = None if source.suffix in WORKLOADS else of_calls(_calls(source, form, config), workers=config.workers)

    def again(workers: int | None) -> Work:
        work = read_workload(source) if calls is None else calls
        return replace(work, workers=workers or work.workers, provider={**SPEED, **work.provider, **speed})

    return again


def _calls(source: Path, form: Form, config: Config) -> Iterator[Request]:
    """The requests of an input, as they are estimated before the first answer.

    Raises:
        PacelineError: A line is not a valid request.
    """
    from paceline.batch.address import at_home, goes_anywhere, placing
    from paceline.batch.forms import as_lines
    from paceline.limiter.limiter import Limiter

    limiter, left_out = Limiter(**config.arguments()), 0
    pacer, place = limiter.pacer, placing(config, limiter.limits, os.environ)
    form = at_home(form, config)
    with source.open("rb") as file:
        anywhere = not form.provider and goes_anywhere(config)
        given = replace(as_lines(file, str(source), form), anywhere=anywhere)
        with given.file:
            for line, raw in given.lines():
                try:
                    request = given.read(line, raw)
                    at = place(request.provider, request.model)
                    if not is_provider(at.name):
                        raise PacelineError(
                            f"{source}: no published limits apply at {at.name}: give the limits of {request.model[:100]}, e.g. --limit"
                            f" '{request.model[:100]}=500 requests/min,400k tokens/min', or name the provider with --provider"
                        )
                    yield _call(replace(request, provider=at), pacer)
                except BadLineError as error:
                    if given.strict:
                        raise PacelineError(f"{source}: {given.unit} {line}: {error}") from None
                    left_out += 1
                    if left_out == 1:
                        click.echo(f"{source}: row {line}: {error}; it is left out", err=True)
    if left_out > 1:
        click.echo(f"{source}: {left_out:,} rows that cannot be sent are left out", err=True)


def _call(request: RunRequest, pacer: Pacer) -> Request:
    """A request as it is estimated.

    Raises:
        BadLineError: It is not paced.
    """
    from paceline.http.describe import describe
    from paceline.planner.simulation import Request

    metered = describe(pacer, request.provider, request.path, request.content(), body=request.body)
    if metered is None:
        raise BadLineError(f"url is {keyless(request.path)!r}, which is not paced")
    _, output = metered.tokens()
    call, most = metered.call, metered.call.max_output_tokens
    model = f"{call.provider}/{call.model}" if "/" in metered.scheduler.pool.name else metered.scheduler.pool.name
    return Request(model, call.input_tokens, round(min(output, most or math.inf)), most)


def to_json(name: str, plans: Mapping[str, Plan], **more: Any) -> str:
    """``plans`` as JSON, in a list called ``name``; a duration that is infinite is ``null``."""
    listed = [
        {"variant": title, **_plain(plan), "binds": plan.binds}
        | {"seconds": plan.seconds if math.isfinite(plan.seconds) else None}
        for title, plan in plans.items()
    ]
    return json.dumps({**more, name: listed}, default=_plain)


def _plain(value: Any) -> Any:
    """A part of a plan for JSON: the notation of a quota, the fields of anything else."""
    return str(value) if isinstance(value, Quota) else {one.name: getattr(value, one.name) for one in fields(value)}


def in_words(seconds: float) -> str:
    """A duration as text; ``never`` for an infinite one."""
    from paceline.batch.summary import in_time

    return in_time(seconds) if math.isfinite(seconds) else "never"


def show(plans: Mapping[str, Plan], *, tiers: bool) -> None:
    """Print plans as a table; of a single one also the use of each quota and the waits of each lane.

    Args:
        plans: The plans, by title.
        tiers: Whether the tiers are known: they were named, or all are compared.
    """
    header = ("", "duration", "items/min", "calls", "refused", "binds", "USD")
    rows = [
        (
            name, ("about " if plan.extended else "") + in_words(plan.seconds), f"{plan.items_per_min:,.1f}", f"{plan.calls:,}",
            f"{plan.refused:,}", brief(plan.binds), "unknown" if plan.usd is None else f"{plan.usd:,.2f}",
        )
        for name, plan in plans.items()
    ]  # fmt: skip
    options.print_table(header, rows)
    talks = [(name, *_talk(plan, plan.turns)) for name, plan in plans.items() if plan.turns is not None]
    if talks:
        click.echo()
        options.print_table(("", "turns/h", "cached", "written again", "conversation", "95 %", "carries"), talks)
    if len(plans) == 1:
        _show_uses(*plans.values())
    for pool, source in {pool: source for plan in plans.values() for pool, source in plan.assumed.items()}.items():
        tier = "" if tiers else "name the tier with --tier, or "
        click.echo(f"the limits of {pool} are {source}; {tier}give the limits with --limit", err=True)
    for name, plan in plans.items():
        for reason, number in sorted(plan.failed.items(), key=lambda found: -found[1])[:3]:
            click.echo(f"{name}: {number:,} calls fail: {reason}", err=True)


def _show_uses(plan: Plan) -> None:
    """Print the use of each quota, and the waits of each lane."""
    uses = [
        (name, brief(str(use.quota)), f"{use.share:.0%}") for name, pool in plan.pools.items() for use in pool.quotas
    ]
    waits = [
        (name, f"{one.calls:,}", *(f"{wait_s:,.1f} s" for wait_s in (one.median_s, one.p95_s, one.longest_s)))
        for name, one in plan.lanes.items()
    ]
    click.echo()
    options.print_table(("pool", "quota", "used"), uses, group=1)
    click.echo()
    options.print_table(("lane", "calls", "median wait", "95 %", "longest"), waits)


def _talk(plan: Plan, turns: Turns) -> tuple[str, ...]:
    """What became of the conversations of a plan, as cells."""
    took = map(in_words, plan.items_s) if plan.items_s else ("never", "never")
    most = turns.carried
    carried = "any number" if most is None else f"{most:,.{0 if most >= 10 else 1}f} at once"
    return f"{turns.an_hour:,.0f}", f"{turns.cached:.0%}", f"{turns.again:,}", *took, carried


def _judge(plans: Mapping[str, Plan], within_s: float) -> None:
    """Name the first variant that ends in time, on standard error."""
    found = next((name for name, plan in plans.items() if plan.seconds <= within_s and not plan.failed), None)
    if found is None:
        whole = [plan.seconds for plan in plans.values() if not plan.failed]
        why = f"the shortest takes {in_words(min(whole))}" if whole else "in each of them calls fail"
        click.echo(f"no variant ends within {in_words(within_s)}: {why}", err=True)
        sys.exit(LATE)
    click.echo(f"{found}: it ends in {in_words(plans[found].seconds)}; there are {in_words(within_s)}", err=True)


def draw_to(plans: Mapping[str, Plan], file: Path) -> None:
    """Write the picture of plans.

    Raises:
        PacelineError: It cannot be written.
    """
    from paceline.planner.picture import of_plans

    try:
        file.write_text(of_plans({name: plan for name, plan in plans.items() if math.isfinite(plan.seconds)}), "utf-8")
    except OSError as error:
        raise PacelineError(f"--picture {file}: {error}") from None
    click.echo(f"the picture is in {file}", err=True)
