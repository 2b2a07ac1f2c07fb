"""``paceline keys``: the keys of the gateway's clients."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from paceline.cli.guides import HelpedGroup
from paceline.cli.options import number, print_table, several
from paceline.core.results import SettingsError

if TYPE_CHECKING:
    from paceline.gateway.keys import ClientKey, KeyFile

FILE = click.option(
    "--keys",
    "file",
    type=click.Path(path_type=Path),
    help="The file of keys. [default: $PACELINE_KEYS, or keys.json in this user's settings]",
)

_NONE: Final[dict[str, tuple[Any, Any]]] = {
    "models": (("all",), ()), "limits": (("none",), ()), "endpoints": (("none",), ()), "team": ("none", ""), "users": ("none", "")
}  # fmt: skip
"""What stands for nothing, by field, and what is kept then."""

_HELP_USERS: Final = (
    "The header that names the person who asks, such as X-OpenWebUI-User-Id, if the client serves many people."
)


@click.group(name="keys", cls=HelpedGroup)
def command() -> None:
    """Make and revoke the keys of the gateway's clients.

    A running gateway uses a change within a second.
    """


@command.command()
@click.argument("name")
@click.option(
    "--weight", type=float, default=1.0, show_default=True, help="The weight of its lane among the lanes that wait."
)
@click.option("--priority", type=int, default=0, show_default=True, help="The priority of its lane. Higher goes first.")
@several("--model", "A model that the key can use, such as 'gpt-6*'. Repeatable. [default: all]")
@several("--limit", "A limit or budget over all models, such as '60 requests/min' or '10 usd/day'. Repeatable.")
@several(
    "--endpoint",
    "An unmetered endpoint that the key can use, such as '/v1/files*'. Repeatable. [default: GET /v1/models]",
)
@click.option("--may-read", is_flag=True, help="Let it read the page, the status and the metrics.")
@click.option("--may-resume", is_flag=True, help="Let it resume stopped pools.")
@click.option("--team", default="", help='Its team. [lanes."team/NAME"] sets the share and the limits.')
@click.option("--users", metavar="HEADER", default="", help=_HELP_USERS)
@click.option(
    "--secret-file",
    metavar="FILE",
    type=click.File(encoding="utf-8", lazy=True),
    help="Use the secret in this file (- for standard input), or its hash as sha256:HEX, instead of a new one.",
)
@FILE
def add(*, name: str, secret_file: TextIO | None, file: Path | None, **fields: Any) -> None:
    """Make a key for NAME and print it.

    paceline prints the key once and stores only its hash. The key is a lane of its own, so that its requests never delay other keys. If the client has a
    secret of another proxy, take it over with --secret-file: nothing is printed then.
    """
    hashed = "" if secret_file is None else _hash_in(secret_file)
    keys = _keys(file)
    first = not keys
    key = keys.add(name, hashed, **fields)
    if key:
        click.echo(key)
    else:
        click.echo(f"{name} can use its secret: its SHA-256 is in {keys.file}", err=True)
    if first:
        click.echo(f"paceline keys: every client of a gateway with {keys.file} now needs a key", err=True)


@command.command()
@click.argument("name")
@click.option("--weight", type=float, help="The weight of its lane among the lanes that wait.")
@click.option("--priority", type=int, help="The priority of its lane. Higher goes first.")
@several("--model", "The models that the key can use from now on. all: every model. Repeatable.")
@several("--limit", "Its limits from now on. none: no limit. Repeatable.")
@several("--endpoint", "Its unmetered endpoints from now on. none: the default. Repeatable.")
@click.option(
    "--may-read/--may-not-read", default=None, help="Whether it can read the page, the status and the metrics."
)
@click.option("--may-resume/--may-not-resume", default=None, help="Whether it can resume stopped pools.")
@click.option("--team", help="Its team from now on. none: no team. Its usage so far stays with the old team.")
@click.option("--users", metavar="HEADER", help=f"{_HELP_USERS} none: the client is one person.")
@FILE
def change(*, name: str, file: Path | None, **options: Any) -> None:
    """Change the rights of the key of NAME.

    Its secret stays, and so does every right that you don't name.
    """
    fields = {field: value for field, value in options.items() if value not in (None, ())}
    fields |= {field: kept for field, (word, kept) in _NONE.items() if fields.get(field) == word}
    if not fields:
        raise SettingsError("nothing to change: name at least one option, see `paceline keys change --help`")
    _keys(file).change(name, **fields)


@command.command()
@click.argument("name")
@number(
    "--overlap-hours",
    between=(0, 8_760),
    default=24.0,
    about="How many hours the old secret stays valid.",
)
@FILE
def rotate(*, name: str, overlap_hours: float, file: Path | None) -> None:
    """Make a new secret for the key of NAME.

    paceline prints the secret once. The lane, the limits and their use stay.
    """
    click.echo(_keys(file).rotate(name, overlap_hours * 3_600))


@command.command(name="list")
@FILE
def list_(*, file: Path | None) -> None:
    """Show the keys and their rights."""
    rows = [[cell(one) for cell in _COLUMNS.values()] for one in _keys(file).all()]
    print_table([*_COLUMNS], rows, empty="there are no keys")


_COLUMNS: Final[dict[str, Callable[[ClientKey], str]]] = {
    "name": lambda one: one.name,
    "team": lambda one: one.team or "-",
    "created": lambda one: one.created,
    "weight": lambda one: f"{one.weight:g}",
    "priority": lambda one: str(one.priority),
    "models": lambda one: ", ".join(one.models) or "all",
    "limits": lambda one: ", ".join(one.limits) or "-",
    "endpoints": lambda one: ", ".join(("metered", *(one.endpoints or ("the list of models",)))),
    "may": lambda one: ", ".join(["read"] * one.may_read + ["resume"] * one.may_resume) or "-",
    "users": lambda one: one.users or "-",
    "former secret": lambda one: f"until {one.secret.former_until}" if one.secret.former else "-",
}


@command.command()
@click.argument("name")
@FILE
def revoke(*, name: str, file: Path | None) -> None:
    """Remove the key of NAME."""
    _keys(file).revoke(name)


def _keys(file: Path | None) -> KeyFile:
    from paceline.gateway.keys import KeyFile, keys_file

    return KeyFile(file or keys_file(os.environ))


def _hash_in(secret_file: TextIO) -> str:
    from paceline.gateway.keys import taken_over

    try:
        return taken_over(secret_file.read(10_000))
    except (SettingsError, UnicodeDecodeError) as error:
        why = error if isinstance(error, SettingsError) else "it is not UTF-8"
        raise SettingsError(f"--secret-file {secret_file.name}: {why}") from None
