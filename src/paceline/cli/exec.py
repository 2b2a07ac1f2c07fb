"""``paceline exec``: run a program unchanged, with its requests paced."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from paceline.cli import options, plan_words
from paceline.cli.guides import Helped
from paceline.cli.line import plain, read
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

LOOK_S: Final = 2.0
"""From a refusal until the look at who waits: those that were on their way are refused until then."""

READ_S: Final = 2.0

ANOTHER_S: Final = 60.0
"""An end that is so much later is another window: the last tests of a window come a moment after its end, which is rounded."""

PRINT: Final = {
    "claude": frozenset({"-p", "--print"}),
    "codex": frozenset({"exec", "e", "review"}),
    "gemini": frozenset({"-p", "--prompt"}),
    "opencode": frozenset({"run", "serve"}),
}
"""Programs that fill the terminal, unless they get one of these words (2026-11)."""


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


def fills_terminal(words: Sequence[str]) -> bool:
    """Whether a command draws over the whole terminal: a line of ours would be lost in it."""
    at = program_at(words)
    prints = PRINT.get(Path(words[at]).stem.lower())
    return prints is not None and not prints & set(words[at + 1 :])


class WindowWatch:
    """Looks at the windows that refuse.

    Args:
        say: Takes a line for the user.
        at_once: Whether a line is said at once, else at the end.
    """

    def __init__(self, say: Callable[[str], None], *, at_once: bool) -> None:
        self._say, self._at_once = say, at_once
        self._address, self._key = "", ""
        self._ends_s: dict[tuple[str, str], float] = {}  # by account and window: the end that was told
        self._pending: dict[tuple[str, str], threading.Timer] = {}
        self._lines: list[str] = []
        self._lock = threading.RLock()

    def begin(self, address: str, key: str) -> None:
        """The gateway of the program is at ``address``."""
        self._address, self._key = address, key

    def seen(self, event: Event) -> None:
        """An event of a permit."""
        window = event.refusal.window if event.kind == "refused" and event.refusal is not None else None
        if not window:
            return
        about = event.pool.partition("/")[0], window
        with self._lock:
            if about not in self._pending and time.time() >= self._ends_s.get(about, 0.0):
                timer = self._pending[about] = threading.Timer(LOOK_S, self._look, about)
                timer.daemon = True
                timer.start()

    def end(self) -> None:
        """The program has ended, and its gateway is about to."""
        for about, timer in list(self._pending.items()):
            timer.cancel()
            self._look(*about)
        for line in self._lines:
            self._say(line)

    def _look(self, account: str, window: str) -> None:
        with self._lock:
            if self._pending.pop((account, window), None) is None:  # looked at meanwhile
                return
        now_s = time.time()
        try:
            rows = read(self._address, self._key, READ_S)
        except Exception:  # noqa: BLE001  (the gateway ends: there is nothing to say)
            return
        row = next((one for one in rows if (one["account"], one["window"]) == (account, window)), None)
        if row is None:
            return
        ends_s = now_s + (float("inf") if row["ends_s"] is None else row["ends_s"])
        if ends_s <= self._ends_s.get((account, window), -float("inf")) + ANOTHER_S:
            return
        self._ends_s[account, window] = ends_s
        if self._at_once:
            self._say(plain(plan_words.used_up(row, now_s)))
        else:
            until = f", until {plan_words.ends(row, now_s).partition(',')[0]}" if plan_words.is_ahead(row) else ""
            at = time.strftime("%H:%M", time.localtime(now_s))
            self._lines.append(plain(f"{account}: {plan_words.name(row)} was used up at {at}{until}"))
