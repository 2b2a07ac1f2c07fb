"""The group of subcommands."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click

from paceline.cli.commands import COMMANDS, VERSION, help_text
from paceline.core.hints import why_missing


class LazyGroup(click.Group):
    """A group that imports a subcommand's module when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names, in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import ``paceline.cli.<name>`` and take its ``command``."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"paceline.cli.{cmd_name}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Import and run a subcommand; Ctrl-C ends it with exit code 130, and a package that does not load with 2."""
        try:
            return super().invoke(ctx)
        except ImportError as error:
            name = ctx.invoked_subcommand or ""
            why = why_missing(error, "it", COMMANDS[name].extra)
            click.echo(f"paceline {name}: {why}" + ("" if str(error) in why else f" ({error})"), err=True)
            sys.exit(2)
        except KeyboardInterrupt:
            click.echo(f"paceline {ctx.invoked_subcommand or ''}".rstrip() + ": interrupted", err=True)
            sys.exit(130)

    def get_help(self, ctx: click.Context) -> str:  # noqa: ARG002
        """The text that is printed without click, too; no subcommand is imported for it."""
        return help_text().rstrip()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="paceline")
def app() -> None:
    """Send many requests to an LLM API at the full speed that the provider allows."""
