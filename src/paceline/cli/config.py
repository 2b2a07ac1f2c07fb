"""``paceline config``: the settings that hold, and the source of each."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from paceline.cli import options
from paceline.cli.guides import Helped

EPILOG = """FILE is TOML or YAML. By default it is $PACELINE_CONFIG, or paceline.toml or paceline.yaml in this folder.
The command line overrides PACELINE_... variables, which override the file, which overrides the published tables.
`paceline limits PROVIDER` lists a table."""


class Documented(Helped):
    """Lists the settings in its help."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the settings, and then the epilog."""
        from paceline.config.settings import reference

        with formatter.section("Settings of a file, or PACELINE_<NAME> in the environment"):
            rows = [(name, f"{text} [{default}]" if default else text) for name, default, text in reference()]
            formatter.write_dl(rows)
        super().format_epilog(ctx, formatter)


@click.command(cls=Documented, epilog=EPILOG)
@click.argument("file", required=False, type=options.FILE)
@click.option("--schema", is_flag=True, help="Print the JSON schema of the settings, for your editor.")
@click.option("--provider", help="The provider.")
@options.TIER
@options.limits
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, file: Path | None, schema: bool, as_json: bool, **given: Any) -> None:
    """Show the settings in effect, and where each comes from.

    It never shows passwords.
    """
    from paceline.config import Config, find_file
    from paceline.config.schema import json_schema
    from paceline.config.show import rows

    if schema:
        click.echo(json.dumps(json_schema(), indent=2))
        return
    config = Config.load(find_file(file), given=given)
    settings = rows(config)
    if as_json:
        click.echo(json.dumps({"settings": [asdict(row) for row in settings]}))
    else:
        click.echo("\n".join(options.aligned([(row.name, _text(row.value), row.source) for row in settings])))


def _text(value: Any) -> str:
    if value is None or value in ([], ()):
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f"{value:,g}" if isinstance(value, float) else str(value)
