"""``paceline run``: send a file of requests and write a file of answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from paceline.core.results import PacelineError

EPILOG = """INPUT is JSONL in OpenAI's batch format or Anthropic's, or - for standard input. The same command again
sends what has no answer yet. Exit codes: 0 all answered, 1 some failed, 2 nothing could be sent, 130 interrupted."""


@click.command(epilog=EPILOG)
@click.argument("source", metavar="INPUT")
@click.option("-o", "--output", help="Where answers go; INPUT with .results.jsonl by default, - for standard output.")
@click.option("--base-url", help="The server's root, with or without /v1.")
@click.option("--provider", help="Whose API it is; by address or format when not given.")
@click.option("--tier", help="Your tier there, e.g. 2.")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="TEXT",
    help="E.g. 'gpt-5=500 requests/min,400k tokens/min'; repeatable.",
)
@click.option("--rpm-override", type=float, help="Requests a minute, for every model.")
@click.option("--tpm-override", type=float, help="Tokens a minute, in and out together, for every model.")
@click.option("--config", "file", type=click.Path(path_type=Path), help="Settings as TOML.")
@click.option("--workers", type=int, help="Requests that wait or are in flight at once; 500 by default.")
@click.option("--max-attempts", type=int, help="HTTP attempts for one request; 6 by default.")
@click.option("--timeout", "timeout_s", type=float, help="Seconds for one HTTP answer; 600 by default.")
@click.option("--store", help="Where quotas are kept: sqlite:PATH, redis://HOST, ..., or memory: for this run alone.")
@click.option("--lost", metavar="safe|closed|open", help="What to do while the store does not answer; safe by default.")
@click.option("--restart", is_flag=True, help="Send everything again; the old answers are kept as .bak.")
@click.option("--json", "as_json", is_flag=True, help="The summary as JSON on standard output.")
@click.option("--quiet", is_flag=True, help="No progress and no summary on standard error.")
def command(
    *,
    source: str,
    output: str | None,
    limits: tuple[str, ...],
    file: Path | None,
    restart: bool,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Send a file of requests at the full speed that the limits allow, and write a file of answers."""
    from paceline.batch.job import Job
    from paceline.batch.progress import view
    from paceline.batch.runner import INTERRUPTED, USAGE
    from paceline.config import Config, parse_limit

    if as_json and output == "-":
        raise click.UsageError("--json and -o - both want standard output: choose one")
    try:
        given["limits"] = dict(parse_limit(text) for text in limits)
        config = Config.load(file, given=given)
        code, report = Job(source, output, config, restart).run(view(quiet=quiet))
    except PacelineError as error:
        click.echo(f"paceline run: {error}", err=True)
        sys.exit(USAGE)
    except KeyboardInterrupt:
        click.echo("paceline run: interrupted; nothing has been sent", err=True)
        sys.exit(INTERRUPTED)
    if as_json:
        click.echo(json.dumps(report))
    sys.exit(code)
