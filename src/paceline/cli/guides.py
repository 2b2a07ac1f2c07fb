"""The help of every command beyond the words of its options: groups, examples and exit codes, from the table beside this file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

import click
from click.formatting import wrap_text

from paceline.core.hints import did_you_mean
from paceline.facts import Lazy
from paceline.responses.values import table_beside


class Guide(NamedTuple):
    """What the help of a command says.

    Attributes:
        groups: The names of options by the title of their group.
        examples: Commands that work as they are printed.
        exits: The meaning of each exit code.
    """

    groups: Mapping[str, str]
    examples: Sequence[str]
    exits: str


@cache
def _guides() -> dict[str, Guide]:
    table, found = table_beside(__file__, "guides"), {}
    for name, row in table["commands"].items():
        groups = {title: table["groups"][title] if names is True else names for title, names in row["groups"].items()}
        found[name] = Guide(groups, row["examples"], row["exits"])
    return found


GUIDES: Final = Lazy(_guides)
"""By the words of a command after ``paceline``."""


def guide_of(command: click.Command) -> Guide:
    """The guide of a command, which is found by its module: a command may be called outside of its group."""
    group = getattr(command.callback, "__module__", "").rpartition(".")[2]
    return GUIDES[group] if group in GUIDES else GUIDES[f"{group} {command.name}"]


class Helped(click.Command):
    """A command whose help has groups of options, examples and exit codes."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each group of options, and then those without one."""
        titles = guide_of(self).groups
        title_of = {name: title for title, names in titles.items() for name in names.split()}
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in (*titles, "Help")}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                name = max(param.opts, key=len).removeprefix("--")
                groups[title_of.get(name, "Help")].append(record)
        for title, rows in groups.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the remarks, the examples and the exit codes."""
        super().format_epilog(ctx, formatter)
        guide = guide_of(self)
        with formatter.section("Examples"):
            formatter.write("".join(f"  {example}\n" for example in guide.examples))
        formatter.write(f"\n{wrap_text(f'Exit codes: {guide.exits}', formatter.width)}\n")


class HelpedGroup(click.Group):
    """A group of such commands, which suggests a name for a misspelled one."""

    command_class = Helped

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that ``args`` begin with.

        Raises:
            click.UsageError: There is none of that name.
        """
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing and not args[0].startswith("-"):
            raise click.UsageError(f"no such command: {args[0]!r}{did_you_mean(args[0], self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)
