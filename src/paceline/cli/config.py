"""``paceline config``: what holds, and where each value comes from."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.core.results import PacelineError

if TYPE_CHECKING:
    from paceline.config.show import Row

EPILOG = """FILE is TOML or YAML; without it $PACELINE_CONFIG, or paceline.toml or paceline.yaml in the current folder.
The command line beats PACELINE_... variables, which beat the file, which beats the published tables. `paceline limits
PROVIDER` lists a table. Exit codes: 0, and 2 when something cannot be meant: everything that is wrong is told."""


@click.command(epilog=EPILOG)
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--show", is_flag=True, help="Print every setting and its source; this is what it does anyway.")
@click.option("--provider", help="Whose API it is.")
@click.option("--tier", help="Your tier there, e.g. 2.")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="TEXT",
    help="E.g. 'gpt-5=500 requests/min,400k tokens/min'; repeatable.",
)
@click.option("--rpm-override", type=float, help="Requests a minute, for every model.")
@click.option("--tpm-override", type=float, help="Tokens a minute, in and out together, for every model.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(*, file: Path | None, show: bool, limits: tuple[str, ...], as_json: bool, **given: Any) -> None:  # noqa: ARG001
    """Show what holds, and where each value comes from. Passwords are left out."""
    from paceline.config import Config, find_file, parse_limit
    from paceline.config.show import rows

    try:
        given["limits"] = dict(parse_limit(text) for text in limits)
        config = Config.load(find_file(file), given=given)
        settings = rows(config)
    except PacelineError as error:
        click.echo(f"paceline config: {error}", err=True)
        sys.exit(2)
    if as_json:
        click.echo(json.dumps({"settings": [asdict(row) for row in settings]}))
    else:
        _print(settings)


def _print(settings: list[Row]) -> None:
    shown = [(row.name, _text(row.value), row.source) for row in settings]
    widths = [max(len(row[column]) for row in shown) for column in range(2)]
    for name, value, source in shown:
        click.echo(f"{name:{widths[0]}}  {value:{widths[1]}}  {source}")


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(value) if isinstance(value, list) else f"{value:,g}" if isinstance(value, float) else str(value)
