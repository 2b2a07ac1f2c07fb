"""``paceline exec``: run a program unchanged, with its requests paced."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from paceline.cli import options
from paceline.core.results import PacelineError

USAGE = 2
EPILOG = """The exit code is that of the command; 2 if a setting is invalid, 126 or 127 if the command cannot be started, 125 with --strict."""


@click.command(
    name="exec", epilog=EPILOG, context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False}
)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND [ARGUMENTS]...")
@options.CONFIG
@click.option("--provider", help="The provider, and that of hosts that do not show theirs (a gateway).")
@options.TIER
@options.LIMIT
@options.RPM
@options.TPM
@options.USABLE
@options.STORE
@options.ON_STORE_FAILURE
@click.option("--strict", is_flag=True, help="Exit code 125 in place of 0 if a process could not be paced.")
@click.option("--quiet", is_flag=True, help="No summary on standard error.")
def command(
    *, words: tuple[str, ...], limits: tuple[str, ...], file: Path | None, strict: bool, quiet: bool, **given: Any
) -> None:
    """Run COMMAND with the requests of all its Python processes paced, by quotas that they share."""
    from paceline.config import Config, parse_limit
    from paceline.launcher.command import StartError, run
    from paceline.pacing.lack import raise_files
    from paceline.stores import NO_STORE

    try:
        given["limits"] = dict(parse_limit(text) for text in limits)
        config = Config.load(file, given=given)
        arguments = config.arguments(patient=False)
    except PacelineError as error:
        click.echo(f"paceline exec: {error}", err=True)
        sys.exit(USAGE)
    if arguments["store"] == NO_STORE:
        click.echo("paceline exec: store memory: is no store, and the processes must share one: leave it out", err=True)
        sys.exit(USAGE)
    if (arguments["store"] or "").startswith("sqlite:"):  # the program's processes may be in other folders
        arguments["store"] = f"sqlite:{Path(arguments['store'].removeprefix('sqlite:')).absolute()}"

    def say(line: str) -> None:
        if not quiet:
            with suppress(OSError):  # standard error was closed: the exit code is the program's all the same
                click.echo(f"paceline exec: {line}", err=True)

    raise_files()  # for the command, which inherits it: more of its requests can be in flight than without a limiter
    try:
        code = run(words, arguments, config.provider, say, strict=strict)
    except StartError as error:
        click.echo(f"paceline exec: {error}", err=True)
        code = error.code
    sys.exit(code)
