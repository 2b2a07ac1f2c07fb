"""``paceline keys``: the keys of the gateway's clients."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from paceline.cli.guides import HelpedGroup
from paceline.cli.options import print_table
from paceline.core.results import SettingsError

if TYPE_CHECKING:
    from paceline.gateway.keys import KeyFile

FILE = click.option(
    "--keys", "file", type=click.Path(path_type=Path), help="The file; in this user's folder by default."
)

_NONE: Final[dict[str, tuple[Any, Any]]] = {
    "models": (("all",), ()), "limits": (("none",), ()), "endpoints": (("none",), ()), "team": ("none", ""), "users": ("none", "")
}  # fmt: skip
"""What stands for nothing, by field, and what is kept then."""

_HELP_USERS: Final = (
    "The client serves many people, and names the one who asks in this header, e.g. X-OpenWebUI-User-Id."
)


@click.group(name="keys", cls=HelpedGroup)
def command() -> None:
    """Make and revoke the keys of the gateway's clients.

    A running gateway uses a change within a second.
    """


@command.command()
@click.argument("name")
@click.option("--weight", type=float, default=1.0, show_default=True, help="The share of its lane among busy ones.")
@click.option("--priority", type=int, default=0, show_default=True, help="A higher one goes before all lower ones.")
@click.option(
    "--model", "models", multiple=True, help="A model that it may use, e.g. 'gpt-6*'; repeatable; all by default."
)
@click.option("--limit", "limits", multiple=True, help="E.g. '60 requests/min', over all models; repeatable.")
@click.option(
    "--endpoint",
    "endpoints",
    multiple=True,
    help="An unmetered one that it may use, e.g. 'GET /v1/models' or '/v1/files*'; repeatable; the list of models by default.",
)
@click.option("--may-read", is_flag=True, help="It may read the page, the status and the metrics, too.")
@click.option("--may-resume", is_flag=True, help="It may resume a stopped pool, too.")
@click.option("--team", default="", help='The team whose share and limits it is under; [lanes."team/NAME"] sets these.')
@click.option("--users", metavar="HEADER", default="", help=_HELP_USERS)
@click.option(
    "--secret-file",
    metavar="FILE",
    type=click.File(encoding="utf-8", lazy=True),
    help="Take over the secret in this file, '-' for standard input, or its hash as 'sha256:HEX', in place of making one.",
)
@FILE
def add(*, name: str, secret_file: TextIO | None, file: Path | None, **fields: Any) -> None:
    """Make a key for NAME and print it.

    It is shown once: only its hash is stored. The key is a lane of its own, so that it cannot hold up the others. A client that has a secret of another proxy keeps it with
    --secret-file, and nothing is printed then.
    """
    hashed = "" if secret_file is None else _hash_in(secret_file)
    keys = _keys(file)
    first = not keys
    key = keys.add(name, hashed, **fields)
    if key:
        click.echo(key)
    else:
        click.echo(f"{name} keeps the secret that it has; its SHA-256 is in {keys.file}", err=True)
    if first:
        click.echo("paceline keys: from now on each client of a gateway with this file needs a key", err=True)


@command.command()
@click.argument("name")
@click.option("--weight", type=float, help="The share of its lane among busy ones.")
@click.option("--priority", type=int, help="A higher one goes before all lower ones.")
@click.option("--model", "models", multiple=True, help="In place of the models that it may use; 'all' for all.")
@click.option("--limit", "limits", multiple=True, help="In place of its limits; 'none' for none.")
@click.option("--endpoint", "endpoints", multiple=True, help="In place of its unmetered ones; 'none' for the default.")
@click.option(
    "--may-read/--may-not-read", default=None, help="Whether it may read the page, the status and the metrics."
)
@click.option("--may-resume/--may-not-resume", default=None, help="Whether it may resume a stopped pool.")
@click.option("--team", help="In place of its team; 'none' for none. What it has used stays with the team before.")
@click.option("--users", metavar="HEADER", help=f"{_HELP_USERS} 'none': one client.")
@FILE
def change(*, name: str, file: Path | None, **options: Any) -> None:
    """Change what the key of NAME may do.

    Its secret stays, and so does what is not named here.
    """
    fields = {field: value for field, value in options.items() if value not in (None, ())}
    fields |= {field: kept for field, (word, kept) in _NONE.items() if fields.get(field) == word}
    if not fields:
        raise SettingsError("nothing to change: name at least one option, see `paceline keys change --help`")
    _keys(file).change(name, **fields)


@command.command()
@click.argument("name")
@click.option(
    "--overlap-hours",
    type=click.FloatRange(0, 8_760),
    default=24.0,
    show_default=True,
    help="How long the present secret stays valid.",
)
@FILE
def rotate(*, name: str, overlap_hours: float, file: Path | None) -> None:
    """Make a new secret for the key of NAME.

    Prints it. Its lane, its limits and their use stay.
    """
    click.echo(_keys(file).rotate(name, overlap_hours * 3_600))


@command.command(name="list")
@FILE
def list_(*, file: Path | None) -> None:
    """Show the keys, and what each may do."""
    keys = _keys(file).all()
    header = (
        "name",
        "team",
        "created",
        "weight",
        "priority",
        "models",
        "limits",
        "endpoints",
        "may",
        "users",
        "former secret",
    )
    rows = [
        (
            one.name,
            one.team or "-",
            one.created,
            f"{one.weight:g}",
            str(one.priority),
            ", ".join(one.models) or "all",
            ", ".join(one.limits) or "-",
            ", ".join(("metered", *(one.endpoints or ("the list of models",)))),
            ", ".join(["read"] * one.may_read + ["resume"] * one.may_resume) or "-",
            one.users or "-",
            f"until {one.former_until}" if one.former else "-",
        )
        for one in keys
    ]
    print_table(header, rows, empty="there are no keys")


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
