"""The group of subcommands."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click

from paceline.cli.commands import COMMANDS, help_text, version_text
from paceline.cli.guides import HelpedGroup
from paceline.core.hints import did_you_mean, why_missing
from paceline.core.results import PacelineError


class LazyGroup(HelpedGroup):
    """A group that imports a subcommand's module when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names, in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import ``paceline.cli.<name>`` and take its ``command``."""
        if cmd_name not in COMMANDS:
            return None
        ctx.invoked_subcommand = cmd_name  # click notes it after the import, which may fail
        command: click.Command = import_module(f"paceline.cli.{cmd_name}").command
        return command

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command line; what click objects to is said in the manner of every other error."""
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
        except click.ClickException as error:
            click.echo(_said(error), err=True)
            sys.exit(error.exit_code)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        """Import and run a subcommand.

        Ctrl-C ends it with exit code 130. A package that does not load, and a :class:`PacelineError`, end it with 2, unless the
        error has an ``exit_code`` of its own.
        """
        try:
            return super().invoke(ctx)
        except ImportError as error:
            name = ctx.invoked_subcommand or ""
            why = why_missing(error, "it", COMMANDS[name].extra)
            click.echo(f"paceline {name}: {why}" + ("" if str(error) in why else f" ({error})"), err=True)
            sys.exit(2)
        except PacelineError as error:
            click.echo(f"paceline {ctx.invoked_subcommand}: {error}", err=True)
            sys.exit(getattr(error, "exit_code", 2))
        except KeyboardInterrupt:
            click.echo(f"paceline {ctx.invoked_subcommand or ''}".rstrip() + ": interrupted", err=True)
            sys.exit(130)

    def get_help(self, ctx: click.Context) -> str:  # noqa: ARG002
        """The text that is printed without click, too; no subcommand is imported for it."""
        return help_text().rstrip()


def _said(error: click.ClickException) -> str:
    """What click objects to: where, what, and what to do."""
    ctx, said = getattr(error, "ctx", None), error.format_message()
    if said.startswith("Usage:"):  # a group without a command: its help
        return said
    if ctx is None:  # an option without its value
        return f"paceline: {_small(said)}"
    listed = "commands" if isinstance(ctx.command, click.Group) else "options"
    if isinstance(error, click.NoSuchOption):
        known = [name for param in ctx.command.get_params(ctx) for name in param.opts if name.startswith("--")]
        said = f"no such option: {error.option_name!r}{did_you_mean(error.option_name, known)}"
    said = _small(said)
    return (
        f"{ctx.command_path}: {said}{'' if said.endswith('?') else '.'} `{ctx.command_path} --help` lists the {listed}"
    )


def _small(said: str) -> str:
    """A sentence of click's as a part of a line; a name in capitals stays."""
    first = said[:1] if said[1:2].isupper() else said[:1].lower()
    return f"{first}{said[1:].rstrip('.')}"


@click.group(cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, help="Show the version and exit.")
@click.option("--verbose", is_flag=True, help="With --version: show the day of the facts about providers, too.")
@click.pass_context
def app(ctx: click.Context, *, version: bool, verbose: bool) -> None:
    """Send many requests to an LLM API at the full speed that the provider allows."""
    if verbose and not version:
        raise click.UsageError("--verbose belongs to --version")
    if version:
        click.echo(version_text(verbose=verbose), nl=False)
        ctx.exit()
    if ctx.invoked_subcommand is None:
        raise click.UsageError("Missing command.")
