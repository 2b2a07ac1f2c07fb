"""``paceline exec``: run a program unchanged, with its requests paced."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline.cli import options
from paceline.cli.guides import Helped
from paceline.core.hints import why_missing
from paceline.core.results import PacelineError, SettingsError
from paceline.launcher.kind import is_python, program_at
from paceline.pacing.events import Event
from paceline.pacing.lack import raise_files
from paceline.providers.registry import PROVIDERS
from paceline.stores import NO_STORE

if TYPE_CHECKING:
    from paceline.config import Config
    from paceline.launcher.command import Gateway, Led

NO_MODEL = "-"
"""The only model that the key of the page may use, so that it may read alone: no model has this name."""
LINES_MAX = 1_000
"""Of the log, that are kept while the program runs; more are shown at once."""


@click.command(
    cls=Helped, name="exec", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False}
)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND [ARGUMENTS]...")
@options.CONFIG
@click.option("--provider", help="The provider, also at hosts that paceline doesn't know (a gateway).")
@options.TIER
@options.limits
@options.STORE
@options.ON_STORE_FAILURE
@click.option(
    "--gateway/--no-gateway",
    default=None,
    help="Whether to pace the program through a gateway. [default: if it isn't Python]",
)
@click.option(
    "--login", is_flag=True, help="Pass on the program's own login to a plan (Claude Code, or Codex with ChatGPT)."
)
@click.option("--strict", is_flag=True, help="End with code 125 instead of 0 if a process or a program wasn't paced.")
@click.option("--quiet", is_flag=True, help="Print no summary.")
def command(
    *, words: tuple[str, ...], gateway: bool | None, login: bool, strict: bool, quiet: bool, **given: Any
) -> None:
    """Run a program with its requests paced.

    paceline paces all Python processes of COMMAND, and other programs through a gateway.
    """
    from paceline.config.servers import UnnamedError
    from paceline.launcher.command import FORCE, run

    config = options.settings(given)
    arguments = config.arguments(patient=False)
    if arguments["store"] == NO_STORE:
        raise SettingsError("store memory: is no store, and the processes must share one: leave it out")
    if (arguments["store"] or "").startswith("sqlite:"):  # the program's processes may be in other folders
        arguments["store"] = f"sqlite:{Path(arguments['store'].removeprefix('sqlite:')).absolute()}"

    def say(line: str) -> None:
        if not quiet:
            with suppress(OSError):  # standard error was closed: the exit code is the program's all the same
                click.echo(f"paceline exec: {line}", err=True)

    if login and gateway is False:
        raise SettingsError("--login and --no-gateway exclude each other: a gateway passes the login on")
    started, hint = None, FORCE
    if gateway if gateway is not None else login or not is_python(words):
        try:
            started, told = _gateway(config, words, say, login=login)
            for line in told:
                click.echo(f"paceline exec: {line}", err=True)
        except PacelineError as error:
            if gateway or strict or login or isinstance(error, UnnamedError):
                raise
            hint = f"no gateway for programs that are not Python was started: {error}"
    raise_files()  # for the command, which inherits it: more of its requests can be in flight than without a limiter
    sys.exit(run(words, arguments, config.provider, say, strict=strict, gateway=started, hint=hint))


def _gateway(
    config: Config, words: Sequence[str], say: Callable[[str], None], *, login: bool
) -> tuple[Gateway, tuple[str, ...]]:
    """What runs a gateway for the command ``words``, and what the user is told before.

    Args:
        config: The settings.
        words: The command.
        say: Takes a line for the user.
        login: Whether the program's own login passes.

    Raises:
        PacelineError: A package is missing, a setting is invalid, or there is no server for the gateway.
    """
    program = Path(words[program_at(words)]).stem.lower()
    try:
        from paceline.gateway.keys import KeyFile
        from paceline.gateway.private import ADDRESS, HOST, KEY, LOGINS, NAMES, find_login, find_way, private_gateway
        from paceline.gateway.server import ProcessSettings
    except ImportError as error:
        raise PacelineError(why_missing(error, f"pacing {program}", "gateway")) from None
    from paceline.cli.exec_windows import WindowWatch, fills_terminal
    from paceline.launcher.command import Led

    way = (find_login if login else find_way)(config, os.environ, program)
    if not (way.paths or way.placed):
        known = ", ".join(PROVIDERS[name].key_env for name in list(NAMES)[:3])
        plan = (
            f"; to pace the login that {program} has: `paceline exec --login -- {program}`" if program in LOGINS else ""
        )
        raise SettingsError(
            f"no key is set: set one of a provider whose address programs read from a variable ({known}, ...){plan}"
        )

    @contextmanager
    def start(home: Path, store: str, events: Callable[[Event], None]) -> Iterator[Led]:
        settings = ProcessSettings(config=config, keys=home / "keys", host=HOST, store=store)
        page = KeyFile(settings.keys).add("page", may_read=True, models=(NO_MODEL,))
        on_terminal = sys.stderr is not None and sys.stderr.isatty()  # it may be closed
        watch = WindowWatch(say, at_once=on_terminal and not fills_terminal(words))

        def seen(event: Event) -> None:
            events(event)
            watch.seen(event)

        with _log_at_the_end(), private_gateway(settings, way, seen) as environ:
            watch.begin(environ[ADDRESS], environ[KEY])
            say(f"page at {environ[ADDRESS]}/" + (f"#{page}" if on_terminal else ""))
            try:
                yield Led(environ, way.options(environ))
            finally:
                watch.end()

    return start, way.told


@contextmanager
def _log_at_the_end() -> Iterator[None]:
    """Keep warnings until the program has left the terminal, which it may fill."""
    shown = logging.StreamHandler()
    shown.setFormatter(logging.Formatter("paceline exec: %(message)s"))
    kept = MemoryHandler(LINES_MAX, flushLevel=logging.CRITICAL + 1, target=shown)
    logging.basicConfig(handlers=[kept], level=logging.WARNING)
    try:
        yield
    finally:
        kept.close()
