"""``paceline limits``: the limits that would be used, and where they come from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from paceline.core.results import QuotaError

if TYPE_CHECKING:
    from paceline.providers.tables import Published


@click.command(name="limits")
@click.argument("provider", required=False)
@click.argument("model", required=False)
@click.option("--tier", help="The account's tier, e.g. 2 or build; the lowest when not given.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def command(provider: str | None, model: str | None, tier: str | None, *, as_json: bool) -> None:
    """Show the limits that would be used before the first answer corrects them, with source and date.

    Without PROVIDER: every provider that has a table. With PROVIDER: every model of its table. With MODEL: what holds
    for that one.
    """
    rows = _rows(provider, model, tier)
    if as_json:
        for name, published in rows:
            click.echo(json.dumps(_record(name, published)))
    else:
        _print(rows)


def _rows(provider: str | None, model: str | None, tier: str | None) -> list[tuple[str, Published]]:
    from paceline.providers.registry import ALIASES, provider_named, suggest
    from paceline.providers.tables import DEFAULT, known_providers, lookup, models

    if provider is None:
        if tier is not None:
            raise click.UsageError("--tier needs a PROVIDER: each has tiers of its own")
        return [(f"{name}/{DEFAULT}", lookup(name, DEFAULT)) for name in known_providers()]
    name = provider_named(provider).name
    known = known_providers()
    if name not in known:
        hint = suggest(name, [*known, *ALIASES])
        raise click.UsageError(f"no limits are known for provider {provider!r} (known: {', '.join(known)}){hint}")
    try:
        shown = [model] if model else models(name)
        rows = [(f"{name}/{shown_model}", lookup(name, shown_model, tier)) for shown_model in shown]
    except QuotaError as error:
        raise click.UsageError(str(error)) from None
    if model and rows[0][1].matched == DEFAULT and model != DEFAULT:
        hint = suggest(model, models(name))
        click.echo(f"{name}: no row for {model!r}, so the default holds{hint}", err=True)
    return rows


def _record(name: str, published: Published) -> dict[str, Any]:
    provider = name.partition("/")[0]
    return {
        "model": name,
        "pool": f"{provider}/{published.pool}",
        "tier": published.tier,
        "quotas": [str(quota) for quota in published.quotas],
        "matched": published.matched,
        "confidence": published.confidence,
        "as_of": published.as_of,
        "source": published.source,
    }


def _print(rows: list[tuple[str, Published]]) -> None:
    """A table on a terminal; elsewhere one tab-separated line a row."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    header = ("model", "tier", "limits", "pool", "confidence", "as of", "source")
    cells = [
        (
            name,
            published.tier,
            ", ".join(str(quota) for quota in published.quotas),
            published.pool,
            published.confidence,
            published.as_of,
            published.source,
        )
        for name, published in rows
    ]
    if not console.is_terminal:
        for line in (header, *cells):
            click.echo("\t".join(line))
        return
    table = Table(*header, box=None, pad_edge=False, header_style="bold")
    for line in cells:
        table.add_row(*line)
    console.print(table)
    console.print("Answers correct these while it runs.", style="dim")
