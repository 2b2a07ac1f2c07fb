"""Options and tables that several subcommands share."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from paceline.cli.guides import Helped
from paceline.pacing.settings import PlainSettings, declared

if TYPE_CHECKING:
    from paceline.batch.forms import Form
    from paceline.config import Config

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_TEXTS: Final = declared(PlainSettings)


def several(name: str, about: str, **more: Any) -> Decorator:
    """An option that can be given again and again. Its parameter is in the plural: ``limits`` of ``--limit``."""
    return click.option(name, f"{name.removeprefix('--')}s", multiple=True, help=about, **more)


def _by_model(_: click.Context, __: click.Parameter, texts: Sequence[str]) -> dict[str, Any]:
    """The limits of each model in options like ``gpt-6-luna=500 requests/min``."""
    from paceline.config import parse_limit

    return dict(map(parse_limit, texts))


FILE: Final = click.Path(path_type=Path)
FOUND: Final = click.Path(path_type=Path, exists=True)
"""A file, and one that must exist."""

LIMIT: Decorator = several(
    "--limit", "The limits of a model: 'gpt-6-luna=500 requests/min,400k tokens/min'. Repeatable.", callback=_by_model
)
TIER: Decorator = click.option("--tier", help=f"{_TEXTS['tier'].brief}.")
BASE_URL: Decorator = click.option(
    "--base-url", help="The server's address, with or without /v1. [default: the provider's]"
)
CONFIG: Decorator = click.option(
    "--config",
    "file",
    type=FILE,
    help="The settings, TOML or YAML. [default: $PACELINE_CONFIG, or paceline.toml or paceline.yaml in this folder]",
)
KEY: Decorator = click.option(
    "--key", envvar="PACELINE_KEY", help="A key of the gateway or of the status page. [default: $PACELINE_KEY]"
)
STORE: Decorator = click.option(
    "--store", help="The store of the quotas: sqlite:PATH, redis://HOST, ..., or memory: for none."
)
ON_STORE_FAILURE: Decorator = click.option(
    "--on-store-failure", metavar="fail_safe|fail_closed|fail_open", help=f"{_TEXTS['on_store_failure'].brief}."
)

PORT: Decorator = click.option(
    "--port", default=8080, show_default=True, type=click.IntRange(0, 65_535), help="The port. 0: any free port."
)

TIERS: Decorator = several("--tier", "Your tier at the provider, or all for every tier. Repeatable.")
PICTURE: Decorator = click.option("--picture", type=FILE, help="Draw the use of the quotas over time in this SVG file.")

_ROWS: Final[tuple[Decorator, ...]] = (
    click.option("--model", help="The model of rows that don't name one."),
    click.option("--column", help="The column of the prompts. [default: prompt or messages]"),
    click.option("--template", metavar="TEXT", help="The prompt, with columns in braces: 'Translate: {text}'."),
    click.option("--key", help="The column that identifies a row. [default: custom_id, id or key]"),
    click.option(
        "--files", metavar="NAME", multiple=True, help="A column with paths of images or PDF files. Repeatable."
    ),
    click.option("--no-header", is_flag=True, help="The table has no header. Its columns are column1, column2, ..."),
    click.option(
        "--task",
        type=click.Choice(["embed", "chat"]),
        help="embed: one vector per row. chat: one answer per row. [default: by the model]",
    ),
    click.option("--lines", is_flag=True, help="Every line of the input is a prompt."),
    click.option("--max-tokens", type=click.IntRange(1), help="The most output tokens of an answer."),
    click.option("--schema", metavar="FILE", help="A file with the JSON schema that answers must match."),
)


_WORDS: Final = "paceline.words"


class Told(Helped):
    """A command whose messages repeat the words that it was given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note the words."""
        ctx.meta[_WORDS] = tuple(args)
        return super().parse_args(ctx, args)


def limits(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that replace limits, or use a share of them."""
    for name in ("usable", "tpm_override", "rpm_override"):
        command = click.option(f"--{name.replace('_', '-')}", type=float, help=f"{_TEXTS[name].brief}.")(command)
    return LIMIT(command)


def rows(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how the rows of a table become requests; :func:`form` reads them."""
    for option in reversed(_ROWS):
        command = option(command)
    return command


def form(given: dict[str, Any]) -> Form:
    """Take the options of :func:`rows` out of ``given``.

    Raises:
        SettingsError: They exclude each other, or the file of the schema cannot be used.
    """
    from paceline.batch.caller import Command
    from paceline.batch.forms import Form, schema_at

    told = taken(given, "model", "column", "template", "key", "max_tokens", "task", "lines")
    schema, files, no_header = given.pop("schema"), given.pop("files"), given.pop("no_header")
    context = click.get_current_context()
    caller = Command(context.meta.get(_WORDS, ()), context.info_name or "run")
    return Form(**told, schema=schema_at(schema), files=files, header=not no_header, caller=caller)


def number(*names: str, between: tuple[float, float], about: str, default: float | None = None) -> Decorator:
    """An option for a number within bounds; its default is shown if there is one."""
    kind, shown = click.FloatRange(*between), default is not None
    return click.option(*names, type=kind, default=default, show_default=shown, help=about)


def timeout(about: str, default_s: float | None = None) -> Decorator:
    """The option for the longest wait, in seconds."""
    return number("--timeout", "timeout_s", between=(0.1, 600), about=about, default=default_s)


def duration(_: click.Context, __: click.Parameter, text: str | None) -> float | None:
    """The seconds of an option like ``6h``, ``90min``, ``45s`` or ``1d``."""
    from paceline.planner.workload import seconds_of

    try:
        return None if text is None else seconds_of(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def span(name: str, about: str) -> Decorator:
    """An option for a duration. Its parameter has the unit: ``within_s`` of ``--within``."""
    return click.option(name, f"{name.removeprefix('--')}_s", metavar="TIME", callback=duration, help=about)


_TOKENS = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([kM]?)", re.ASCII)


def tokens(_: click.Context, __: click.Parameter, text: str | None) -> int | None:
    """The number in an option like ``500``, ``20k`` or ``1.5M``."""
    match = None if text is None else _TOKENS.fullmatch(text)
    if text is not None and match is None:
        raise click.BadParameter(f"{text!r}: write it like '500', '20k' or '1.5M'")
    return None if match is None else round(float(match[1]) * {"": 1, "k": 1_000, "M": 1_000_000}[match[2]])


def cannot_listen(host: str, port: int, error: OSError) -> str:
    """Why a server cannot listen, and what to do where that is known."""
    why = (error.strerror or str(error)).partition(" (while ")[0]  # it would name the address again
    taken = error.errno == errno.EADDRINUSE
    remedy = ": end the program that listens there, or give another --port" if taken else ""
    return f"cannot listen on {host}:{port}: {why}{remedy}"


def aligned(rows: Sequence[Sequence[str]], *, right: bool = False) -> list[str]:
    """Rows as lines with columns of equal width; ``right``: all columns but the first are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shift = str.rjust if right else str.ljust
    return ["  ".join([row[0].ljust(widths[0]), *map(shift, row[1:], widths[1:])]).rstrip() for row in rows]


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str = "", group: int = 0) -> None:
    """Print a table on a terminal, and tab-separated lines elsewhere.

    Args:
        header: The names of the columns.
        rows: The cells.
        empty: Printed on a terminal when there are no rows.
        group: On a terminal, the first cell and those from this one on are empty where they repeat the row before.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, before = Console(), ""
    if not console.is_terminal:
        click.echo("\n".join("\t".join(row) for row in (header, *rows)))
        return
    table = Table(*header, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*map(Text, ("", *row[1:group]) if group and row[0] == before else row))
        before = row[0]
    console.print(table if rows or not empty else empty)


def taken(given: dict[str, Any], *names: str) -> dict[str, Any]:
    """Take these options out of ``given``."""
    return {name: given.pop(name) for name in names}


def settings(given: dict[str, Any]) -> Config:
    """The settings of a command that sends or plans: the file's and the environment's, and before them its options.

    Args:
        given: The options that are settings, and :data:`CONFIG`, which is taken out: without it the file is found, as
            :func:`~paceline.config.find_file` does.

    Raises:
        SettingsError: A setting is invalid, or a file that was found leads keys to a foreign address.
    """
    from paceline.config import Config, find_file
    from paceline.config.servers import check_address

    file = given.pop("file")
    config = Config.load(find_file(file), given=given, named=file is not None)
    check_address(config)
    return config
