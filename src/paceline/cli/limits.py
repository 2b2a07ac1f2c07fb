"""``paceline limits``: the published limits, and where they come from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any, Final

import click

from paceline.cli.options import print_table
from paceline.core.results import QuotaError, SourceKind

if TYPE_CHECKING:
    from paceline.providers.tables import Published

OLD_DAYS: Final = 120
"""The age from which a row is shown with it."""


@click.command(name="limits")
@click.argument("provider", required=False)
@click.argument("model", required=False)
@click.option("--tier", help="The account's tier, e.g. 2 or build; the lowest when not given.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def command(provider: str | None, model: str | None, tier: str | None, *, as_json: bool) -> None:
    """Show the limits that are used until the first answer corrects them, with source and date.

    Without PROVIDER: every provider that has a table. With PROVIDER: every model of its table. With MODEL: the limits
    of that model. PROVIDER can be PROVIDER/MODEL, or a model alone: then every provider is shown that lists it.
    """
    from rich.console import Console

    from paceline.providers.registry import maker
    from paceline.providers.tables import tiers

    asked = _asked(provider, model)
    if tier is not None and len(asked) > 1:
        asked = [one for one in asked if one[0] == maker(one[1] or "")]  # a model alone: its maker's tier
    if not asked:
        raise click.UsageError("--tier needs a PROVIDER: each provider has its own tiers")
    rows = [row for name, one in asked for row in _rows(name, one, tier)]
    today = date.today()  # noqa: DTZ011  (the age in days needs no zone)
    if as_json:
        for name, published in rows:
            click.echo(json.dumps(_record(name, published, today)))
        return
    console = Console()
    if console.is_terminal:
        _show(rows, today, console.width)
    else:
        cells = [
            (name, row.tier, ", ".join(map(str, row.quotas)), row.pool, row.confidence, _as_of(row, today), row.source)
            for name, row in rows
        ]
        print_table(("model", "tier", "limits", "pool", "confidence", "as of", "source"), cells)
    assumed = [name for name, row in rows if _kind(row) is SourceKind.ASSUMED]
    if assumed:
        lowest = tier is None and any(len(tiers(name.partition("/")[0])) > 1 for name in assumed)
        which = assumed[0] if len(assumed) == 1 else "MODEL"
        why = "no --tier was named, so the lowest is assumed; " if lowest else ""
        click.echo(f"{why}`paceline check {which}` asks the provider for the limits of your key", err=True)


def _show(rows: Sequence[tuple[str, Published]], today: date, width: int) -> None:
    """A table that fits a terminal of 80 columns: what all rows share stands above it once, where they come from below it."""
    origins = [f"{row.confidence}, {_as_of(row, today)}: {row.source}" for _, row in rows]
    notes = {origin: number for number, origin in enumerate(dict.fromkeys(origins), 1)}
    providers, tiers = {name.partition("/")[0] for name, _ in rows}, {row.tier for _, row in rows}
    cells = []
    for (name, row), origin in zip(rows, origins, strict=True):
        model = name.partition("/")[2]
        shown = f"{name if len(providers) > 1 else model}{'' if row.pool == model else f' (of {row.pool})'}"
        tier = [row.tier] if len(tiers) > 1 else []
        cells.append((shown, *tier, ", ".join(map(str, row.quotas)), f"[{notes[origin]}]"))
    if len(providers) == 1:
        click.echo(", ".join([*providers, *(tiers if len(tiers) == 1 else [])]))
    print_table(("model", *(["tier"] if len(tiers) > 1 else []), "limits", "from"), cells)
    click.echo()
    wrapper = TextWrapper(width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)  # whole URLs
    for origin, number in notes.items():
        click.echo(wrapper.fill(f"[{number}] {origin}"))
    click.echo("Answers correct these limits while a program runs.")


def _asked(provider: str | None, model: str | None) -> list[tuple[str, str | None]]:
    """The providers and models that the arguments name; no model for a whole table."""
    from paceline.providers.registry import ALIASES, PROVIDERS, is_provider, provider_named, suggest
    from paceline.providers.tables import DEFAULT, known_providers, listing

    known = known_providers()
    if provider is None:
        return [(name, DEFAULT) for name in known]
    prefix, _, rest = provider.partition("/")
    if model is None and rest and is_provider(prefix):
        provider, model = prefix, rest
    name = provider_named(provider).name
    if name in known:
        prefix, _, rest = (model or "").partition("/")
        return [(name, rest if rest and provider_named(prefix).name == name else model)]
    if is_provider(provider):
        raise click.UsageError(f"no published limits of {name} are known: its rate is measured")
    found = [] if model is not None else listing(provider)
    if found:
        return list(found)
    hint = suggest(name, [*PROVIDERS, *ALIASES, *_all_models()])
    raise click.UsageError(
        f"{provider!r} is no provider (known: {', '.join(known)}), and no table lists such a model{hint}"
    )


def _all_models() -> list[str]:
    from paceline.providers.tables import DEFAULT, known_providers, models

    names = dict.fromkeys(model for provider in known_providers() for model in models(provider))
    return [name for name in names if "*" not in name and name != DEFAULT]  # no patterns


def _rows(provider: str, model: str | None, tier: str | None) -> list[tuple[str, Published]]:
    from paceline.providers.registry import suggest
    from paceline.providers.tables import DEFAULT, lookup, models, stated_tiers

    try:
        shown = models(provider) if model is None else [model]
        rows = [(f"{provider}/{shown_model}", lookup(provider, shown_model, tier)) for shown_model in shown]
    except QuotaError as error:
        raise click.UsageError(str(error)) from None
    if model is not None and rows[0][1].matched == DEFAULT and model != DEFAULT:
        others = ", ".join(stated_tiers(provider, model))
        why = f" in {rows[0][1].tier}: name a tier that has one ({others})" if others else ""
        hint = "" if others else suggest(model, [name for name in models(provider) if "*" not in name])
        click.echo(f"{provider}: no row for {model!r}{why}; the default is used{hint}", err=True)
    return rows


def _kind(published: Published) -> SourceKind:
    """Published if every quota is."""
    kinds = {source.kind for source in published.sources.values()}
    return SourceKind.PUBLISHED if kinds == {SourceKind.PUBLISHED} else SourceKind.ASSUMED


def _age_days(published: Published, today: date) -> int:
    """The age of a row in days, from the first day of its date: ``2026`` counts from January."""
    year, month, day = map(int, f"{published.as_of}-1-1".split("-")[:3])
    return (today - date(year, month, day)).days


def _as_of(published: Published, today: date) -> str:
    days = _age_days(published, today)
    if days <= OLD_DAYS:
        return published.as_of
    return f"{published.as_of} ({'' if published.as_of.count('-') == 2 else 'up to '}{days} days old)"


def _record(name: str, published: Published, today: date) -> dict[str, Any]:
    provider = name.partition("/")[0]
    return {
        "model": name,
        "pool": f"{provider}/{published.pool}",
        "tier": published.tier,
        "quotas": [str(quota) for quota in published.quotas],
        "kind": _kind(published),
        "matched": published.matched,
        "confidence": published.confidence,
        "as_of": published.as_of,
        "age_days": _age_days(published, today),
        "source": published.source,
    }
