"""``paceline limits``: the published limits, and where they come from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from paceline.cli.options import print_table
from paceline.core.results import QuotaError

if TYPE_CHECKING:
    from paceline.providers.tables import Published


@click.command(name="limits")
@click.argument("provider", required=False)
@click.argument("model", required=False)
@click.option("--tier", help="The account's tier, e.g. 2 or build; the lowest when not given.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def command(provider: str | None, model: str | None, tier: str | None, *, as_json: bool) -> None:
    """Show the limits that are used until the first answer corrects them, with source and date.

    Without PROVIDER: every provider that has a table. With PROVIDER: every model of its table. With MODEL: the limits
    of that model.
    """
    rows = _rows(provider, model, tier)
    if as_json:
        for name, published in rows:
            click.echo(json.dumps(_record(name, published)))
        return
    header = ("model", "tier", "limits", "pool", "confidence", "as of", "source")
    cells = [
        (name, row.tier, ", ".join(map(str, row.quotas)), row.pool, row.confidence, row.as_of, row.source)
        for name, row in rows
    ]
    if print_table(header, cells):
        click.echo("Answers correct these limits while a program runs.")


def _rows(provider: str | None, model: str | None, tier: str | None) -> list[tuple[str, Published]]:
    from paceline.providers.registry import ALIASES, provider_named, suggest
    from paceline.providers.tables import DEFAULT, known_providers, lookup, models

    if provider is None:
        if tier is not None:
            raise click.UsageError("--tier needs a PROVIDER: each provider has its own tiers")
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
        click.echo(f"{name}: no row for {model!r}; the default is used{hint}", err=True)
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
