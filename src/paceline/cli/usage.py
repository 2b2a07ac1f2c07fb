"""``paceline usage``: what the keys, teams and users of a gateway have used."""

from __future__ import annotations

import csv
import datetime as dt
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

import click

from paceline.cli import options
from paceline.cli.guides import Helped
from paceline.cli.line import plain
from paceline.cli.pages import ReadError, fetch, gateway_url

COLUMNS: Final = ("requests", "input_tokens", "cached_tokens", "output_tokens", "usd", "unpriced_requests")

FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")
"""What a cell begins with that a spreadsheet computes; users of a front end choose their names."""

_PATH: Final = "/api/v1/usage"


@click.command(cls=Helped, name="usage")
@click.argument("url", required=False)
@options.KEY
@click.option(
    "--by",
    type=click.Choice(["key", "team", "user"]),
    default="key",
    show_default=True,
    help="One row per key, team or user.",
)
@click.option(
    "--month", type=click.DateTime(["%Y-%m"]), metavar="YYYY-MM", help="The month, in UTC. [default: the last 31 days]"
)
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values.")
@options.timeout("The longest wait for the response, in seconds.", 30.0)
def command(
    url: str | None, key: str | None, by: str, month: dt.datetime | None, timeout_s: float, *, as_csv: bool
) -> None:
    """Show what the clients of a gateway have used.

    A row shows requests, tokens and US dollars. URL is http://127.0.0.1:8080 by default. A key with --may-read shows every key, any other key only itself.
    """
    where = gateway_url(url, _PATH)
    asked = {"by": by}
    if month is not None:
        next_one = (month + dt.timedelta(31)).replace(day=1)
        asked |= {"from": f"{month:%Y-%m-%d}", "to": f"{next_one - dt.timedelta(1):%Y-%m-%d}"}
    found = fetch(where.copy_merge_params(asked), key, timeout_s)
    rows = found.get(f"{by}s") if isinstance(found, dict) else None
    if not isinstance(rows, dict):
        raise ReadError(f"{where} answers, but not as a gateway that sums by {by}: is it an older version?")
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow((by, *COLUMNS))
        writer.writerows((_defused(name), *_amounts(row)) for name, row in sorted(rows.items()))
    else:
        shown = [(plain(name), *(_grouped(cell) for cell in _amounts(row))) for name, row in sorted(rows.items())]
        options.print_table((by, *(column.replace("_", " ") for column in COLUMNS)), shown)
    if month is not None and found["from"] > asked["from"]:
        click.echo(f"paceline usage: days before {plain(found['from'])} aren't stored any more", err=True)
    elif not rows:
        click.echo(f"paceline usage: nothing was charged from {plain(found['from'])} to {plain(found['to'])}", err=True)
    if not found.get("priced", True):
        click.echo("paceline usage: the gateway lacks the extra budget, so no price is known", err=True)


def _amounts(row: Mapping[str, Any]) -> Iterator[str]:
    """The amounts of a row: dollars with all digits that are no noise."""
    for column in COLUMNS:
        yield f"{row.get(column, 0):.9f}" if column == "usd" else str(row.get(column, 0))


def _grouped(number: str) -> str:
    return f"{int(number):,}" if number.isdigit() else f"{float(number):,.4f}"


def _defused(cell: str) -> str:
    """A cell that no spreadsheet computes."""
    return f"'{cell}" if len(cell) > 1 and cell.startswith(FORMULAS) else cell
