"""The ``paceline`` command. Each subcommand is a module that is imported when it is called."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        try:
            import click  # noqa: F401
        except ImportError:
            sys.exit("paceline: the command line needs the extra 'cli': pip install 'paceline[cli]'")
        from paceline.cli.app import app

        app(prog_name="paceline")
    except KeyboardInterrupt:  # while a module was imported
        print("paceline: interrupted", file=sys.stderr)
        sys.exit(130)
