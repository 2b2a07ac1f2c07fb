"""``paceline check``: ask a provider, with one small request a model, what it really allows."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.core.results import PacelineError

if TYPE_CHECKING:
    from paceline.check.probe import Checked
    from paceline.check.target import Target
    from paceline.config import Config

REFUSED, USAGE = 1, 2
EPILOG = """Exit codes: 0 every model answered, 1 a provider refused or did not answer, 2 nothing was sent."""


@click.command(epilog=EPILOG)
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--provider", help="Whose API it is; by address or model when not given.")
@click.option("--tier", help="Your tier there, e.g. 2.")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="TEXT",
    help="E.g. 'gpt-5=500 requests/min,400k tokens/min'; repeatable.",
)
@click.option("--config", "file", type=click.Path(path_type=Path), help="Settings as TOML.")
@click.option("--base-url", help="The server's root, with or without /v1.")
@click.option("--yes", is_flag=True, help="Send without asking.")
@click.option("--json", "as_json", is_flag=True, help="The findings as JSON on standard output.")
def command(
    *, models: tuple[str, ...], limits: tuple[str, ...], file: Path | None, yes: bool, as_json: bool, **given: Any
) -> None:
    """Send one tiny request for each MODEL and compare what the answers say about limits with what is configured.

    Without MODEL: every model that the configuration has limits for. It asks before it sends.
    """
    from paceline.check.probe import probe
    from paceline.check.target import target
    from paceline.config import Config, parse_limit

    try:
        given["limits"] = dict(parse_limit(text) for text in limits)
        config = Config.load(file, given=given)
        names = models or tuple(name for name in config.limits if not name.endswith("*"))
        if not names:
            raise click.UsageError("name a model, e.g. 'paceline check gpt-5'")
        targets = [target(name, config, os.environ) for name in dict.fromkeys(names)]
        if not yes and not _agreed(targets):
            click.echo("paceline check: nothing has been sent", err=True)
            sys.exit(USAGE)
        checked = [probe(one, config) for one in targets]
    except PacelineError as error:
        click.echo(f"paceline check: {error}", err=True)
        sys.exit(USAGE)
    toml = _toml(checked, config)
    if as_json:
        click.echo(json.dumps({"models": [one.record() for one in checked], "config": toml}))
    else:
        _print(checked, toml)
    sys.exit(REFUSED if any(one.problem for one in checked) else 0)


def _agreed(targets: Sequence[Target]) -> bool:
    """Show what will be sent, and ask."""
    from paceline.check.target import MAX_OUTPUT_TOKENS, TEXT

    click.echo(
        f"This sends one request ({TEXT!r}, at most {MAX_OUTPUT_TOKENS} tokens of output) for each of:", err=True
    )
    for one in targets:
        click.echo(f"  {one.model}: {one.url}", err=True)
    try:
        return click.confirm("It costs a fraction of a cent. Send?", err=True)
    except click.Abort:
        click.echo(err=True)
        return False


def _toml(checked: Sequence[Checked], config: Config) -> str:
    """The configuration to use."""
    from paceline.check.verdict import to_toml

    providers = {one.model.partition("/")[0] for one in checked}
    provider = providers.pop() if len(providers) == 1 else None
    return to_toml(provider, config.base_url, [(one.model, one.findings) for one in checked])


def _print(checked: Sequence[Checked], toml: str) -> None:
    for one in checked:
        click.echo(f"{one.model}  (pool {one.pool})")
        for line in _table(one):
            click.echo(f"  {line}")
        if one.problem:
            click.echo(f"  {one.problem}")
        if not one.told:
            click.echo("  the answer says nothing about limits" if one.status else "  nothing was learned")
        click.echo()
    click.echo("# the configuration to use\n" + toml, nl=False)


def _table(one: Checked) -> list[str]:
    rows = [("quota", "source", "stated", "remaining", "verdict")]
    for finding in one.findings:
        said = finding.reading
        rows.append(
            (
                str(finding.configured or finding.use),
                one.source if finding.configured else "the answer",
                _amount(said.limit if said else None),
                _amount(said.remaining if said else None),
                finding.verdict.value,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _amount(amount: float | None) -> str:
    return "-" if amount is None else f"{amount:,.0f}"
