"""The ``paceline`` command. Each subcommand is a module that is imported when it is called."""

from __future__ import annotations

import io
import signal
import sys

from paceline.core.hints import why_missing


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
        try:
            import click  # noqa: F401
        except ImportError as error:
            remedy = "the command line needs the extra 'cli': pip install 'paceline[cli]'"
            sys.exit(f"paceline: {why_missing(error, remedy)}")
        from paceline.cli.app import app

        if sys.platform == "win32" and isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.isatty():
            sys.stdout.reconfigure(encoding="utf-8")  # as files: the system's encoding lacks most characters
        app(prog_name="paceline")
    except KeyboardInterrupt:  # while a module was imported
        print("paceline: interrupted", file=sys.stderr)
        sys.exit(130)
