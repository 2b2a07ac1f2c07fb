"""The group of subcommands."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import version
from typing import Any

import click

COMMANDS = {
    "run": "send a file of requests and write a file of answers",
    "plan": "say how long work will take, what binds it and what it costs",
    "replay": "show recorded traffic under other limits",
    "merge": "join the outputs of shards, and check that each request has its answer",
    "exec": "run a program unchanged, with its requests paced",
    "serve": "serve the APIs of providers, with every request in a queue",
    "keys": "make and revoke the keys of the gateway's clients",
    "init": "write a configuration to begin with, or convert a litellm proxy's",
    "check": "ask a provider for the limits of a key, and compare",
    "status": "show the pools of a running program, or of a store",
    "top": "the pools of a gateway or a program, live in the terminal",
    "config": "show the settings that hold, and where each comes from",
    "doctor": "print one page for a bug report, without secrets",
    "limits": "show the published limits, and where they come from",
    "emulate": "serve an API that limits like a provider",
    "demo": "one batch with and without paceline, live",
}


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
        """Import and run a subcommand; Ctrl-C ends it with exit code 130."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo(f"paceline {ctx.invoked_subcommand or ''}".rstrip() + ": interrupted", err=True)
            sys.exit(130)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the subcommands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("paceline"), prog_name="paceline")
def app() -> None:
    """Send many requests to an LLM API at the full speed that the provider allows."""
