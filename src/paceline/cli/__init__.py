"""The ``paceline`` command. Each subcommand is a module that is imported when it is called."""

from __future__ import annotations

import io
import signal
import sys
import warnings
from typing import Any, NoReturn

from paceline.cli.commands import COMMANDS, objection, plain
from paceline.core.results import PacelineWarning


def main() -> None:
    """Run the command line. SIGTERM and SIGHUP end it as Ctrl-C does, but SIGHUP not ``paceline serve``."""
    if sys.argv[1:2] == ["serve"]:
        from paceline.gateway.signals import note_early

        note_early()
    for name in ("SIGTERM", "SIGHUP", "SIGBREAK"):  # the last one is of Windows
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    try:
        _run(sys.argv[1:] or ["--help"])
    except KeyboardInterrupt:  # while a module was imported
        print("paceline: interrupted", file=sys.stderr)
        sys.exit(130)


def _run(arguments: list[str]) -> None:
    """Run the command that ``arguments`` begin with, or say why that is impossible."""
    first = arguments[0]
    why = objection(first)
    if why is not None:
        _refuse(why)
    if sys.platform == "win32" and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as files and consoles: the system's encoding lacks most characters
    try:
        from paceline.cli.app import app
    except ImportError as error:
        if first in COMMANDS:  # its packages are there
            _refuse(f"{error.name} is installed and does not load: {error}")
        try:
            print(plain(first), end="")
        except ValueError as unknown:
            _refuse(str(unknown))
        return
    warnings.showwarning = _warn
    app(arguments, prog_name="paceline")


_show = warnings.showwarning


def _warn(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """Show a warning of paceline as a message: no line of the user's program has called it."""
    if issubclass(category, PacelineWarning):
        print(f"paceline: {message}", file=sys.stderr)
    else:
        _show(message, category, *place, **more)


def _refuse(why: str) -> NoReturn:
    print(f"paceline: {why}", file=sys.stderr)
    sys.exit(2)
