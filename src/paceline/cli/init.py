"""``paceline init``: a configuration to begin with."""

from __future__ import annotations

import os
from pathlib import Path

import click

from paceline.cli.guides import Helped
from paceline.core.results import SettingsError, explaining

EPILOG = """Nothing is sent, and a file that exists is not overwritten."""


@click.command(cls=Helped, epilog=EPILOG)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    default=Path("paceline.toml"),
    show_default=True,
    help="Write the settings here. -: print them.",
)
@click.option(
    "--from",
    "source",
    metavar="LITELLM.YAML",
    type=click.Path(path_type=Path),
    help="Convert this config.yaml of a litellm proxy, and list the settings without a counterpart.",
)
def command(*, output: Path, source: Path | None) -> None:
    """Write a first configuration, with comments.

    The file is for the providers whose keys are in the environment, or comes from a litellm proxy's file. It names keys, and never contains them.
    """
    from paceline.config.starter import of_environment, providers_of

    _check_free(output)
    if source is not None:
        text = _converted(source)
    else:
        text = of_environment(os.environ)
        found = providers_of(os.environ)
        said = ", ".join(f"{name} ({', '.join(variables)})" for name, variables in found.items())
        click.echo(f"found: {said or 'no key of a provider in the environment'}", err=True)
    _write(text, output)


def _check_free(output: Path) -> None:
    """Refuse to overwrite a file, or to hide one that is read in its place."""
    from paceline.config.sources import FILES

    if str(output) == "-":
        return
    others = [output.parent / name for name in FILES] if output.name in FILES else []
    for file in (output, *others):
        if file.exists():
            raise SettingsError(
                f"{file} exists, and is left as it is: name another file with --output, or '-' to print"
            )


def _converted(source: Path) -> str:
    from paceline.config import Config
    from paceline.config.litellm import convert
    from paceline.config.sources import Problems, read_file
    from paceline.config.starter import of_settings

    problems = Problems()
    read = read_file(source, problems)
    problems.check()
    with explaining(f"{source}", of=SettingsError):
        made = convert(read.values, os.environ, read.lines)
    Config.load(given=made.settings, environ={}, where=str(source))
    tables = {name: len(made.settings.get(name, {})) for name in ("limits", "upstreams", "groups", "models")}
    counts = ", ".join(f"{count} {name if count != 1 else name[:-1]}" for name, count in tables.items())
    click.echo(f"{source}: {made.deployments} deployments became {counts}", err=True)
    if made.variables:
        click.echo(f"  the keys that it needs: {', '.join(made.variables)}", err=True)
    for one in made.lost:
        click.echo(f"  note: {one}", err=True)
    return of_settings(made.settings, source.name, made.lost, made.variables)


def _write(text: str, output: Path) -> None:
    if str(output) == "-":
        click.echo(text, nl=False)
        return
    # Another process may have made it meanwhile.
    with explaining(f"{output} cannot be written"), output.open("x", encoding="utf-8") as file:
        file.write(text)
    click.echo(f"written: {output}; `paceline config {output}` shows the settings in effect", err=True)
