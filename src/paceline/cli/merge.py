"""``paceline merge``: join the outputs of shards, and check them."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from paceline.cli.guides import Helped
from paceline.core.results import PacelineError

INCOMPLETE, USAGE = 1, 2


@click.command(cls=Helped)
@click.argument("source", metavar="INPUT")
@click.argument("outputs", metavar="OUTPUT...", nargs=-1, required=True)
@click.option("-o", "--output", "target", help="Write the result here. [default: INPUT.results.jsonl]")
@click.option("--overwrite", is_flag=True, help="Replace an existing result.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON on standard output.")
def command(*, source: str, outputs: tuple[str, ...], target: str | None, overwrite: bool, as_json: bool) -> None:
    """Join the outputs of shards, in the order of INPUT.

    Checks that every request is there once.
    """
    import json

    from paceline.batch.merge import in_words, merge

    target = target or source.removesuffix(".jsonl") + ".results.jsonl"
    try:
        merged = merge(source, outputs, target, overwrite=overwrite)
    except PacelineError as error:
        click.echo(f"paceline merge: {error}; nothing has been written", err=True)
        sys.exit(USAGE)
    for line in in_words(merged, source, target):
        click.echo(line, err=True)
    if as_json:
        click.echo(json.dumps(asdict(merged)))
    sys.exit(0 if merged.complete else INCOMPLETE)
