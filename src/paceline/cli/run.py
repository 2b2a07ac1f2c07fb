"""``paceline run``: send a file of requests and write a file of answers."""

from __future__ import annotations

import gc
import json
import os
import sys
from dataclasses import replace
from typing import Any

import click

from paceline.cli import options
from paceline.pacing.lack import raise_files

GC_THRESHOLD = 50_000, 20, 100
"""Of the garbage collector; with Python's own threshold a run takes about a tenth longer."""

OF_JOB, OF_BATCHING = ("source", "page", "strict"), ("mode", "deadline_s", "batch_lines", "batch_queue")
"""The options that a :class:`~paceline.batch.job.Job` and its :class:`~paceline.batch.offline.Batching` have by the same name."""

EPILOG = """INPUT is JSONL in OpenAI's batch format, Anthropic's or Gemini's; or rows of prompts as CSV, JSONL, a JSON array or Parquet, with
--model; or - for standard input. The same command again
sends the requests that have no answer yet."""


@click.command(cls=options.Told, epilog=EPILOG)
@click.argument("source", metavar="INPUT")
@click.option(
    "-o",
    "--output",
    help="Write the answers here, - for standard output. .csv, .tsv or .parquet: the rows with their answers, at "
    "the end. [default: INPUT.results.jsonl]",
)
@options.BASE_URL
@click.option("--provider", help="The provider. [default: by the address or the format]")
@click.option("--group", help="A group of the configuration: each request goes to the server that can take it soonest.")
@options.TIER
@options.limits
@options.CONFIG
@click.option("--workers", type=int, help="Requests that wait or are in flight at once. [default: 500]")
@options.rows
@click.option("--into", default="answer", help="The column for answers in a table. [default: answer]")
@click.option(
    "--cut-off",
    metavar="keep|raise|TOKENS",
    help="If an answer reaches its maximum of tokens: keep it, or send the request once more with four times the "
    "maximum (raise) or with TOKENS. [default: an error]",
)
@click.option(
    "--again",
    metavar="NAMES",
    help="Send requests with these final errors of earlier runs once more: declined, blocked, cut_off, paused, "
    "and after two runs empty, invalid. Separate names with commas.",
)
@click.option(
    "--max-attempts", type=int, help="The most failed attempts per request. Refusals for rate don't count. [default: 6]"
)
@click.option("--timeout", "timeout_s", type=float, help="The longest HTTP attempt, in seconds. [default: 600]")
@click.option(
    "--shard",
    metavar="I/N",
    help="Send lines I, I+N, I+2N, ... only. Give every one of N processes its own I, from 1 to N.",
)
@options.STORE
@options.ON_STORE_FAILURE
@click.option(
    "--check",
    "checked",
    type=click.Choice(["auto", "first"]),
    default="auto",
    help="When to check the input. first: all of it before the first request. auto: the same up to 16 MB or if "
    "the output contains answers, otherwise each line when it is sent. [default: auto]",
)
@click.option(
    "--mode",
    type=click.Choice(["sync", "batch", "auto"]),
    default="sync",
    help="batch: send through the Batch API, within a day, at its lower price (OpenAI, Azure, Groq, Mistral, "
    "Together, Anthropic, Gemini). auto: the same, as long as single requests can still meet the --deadline. "
    "[default: sync]",
)
@options.span("--deadline", "With --mode auto: the time since the first start, such as 6h or 90min.")
@click.option("--batch-lines", type=click.IntRange(1, 100_000), help="The most requests in one batch.")
@click.option(
    "--batch-queue", type=click.IntRange(1), help="The limit of enqueued input tokens per model, if you know it."
)
@click.option("--strict", is_flag=True, help="Send nothing if a row of the input can't be sent.")
@click.option("--restart", is_flag=True, help="Send everything again, and save the old answers as .bak.")
@click.option("--repair", is_flag=True, help="Move corrupt lines of the output aside, and send their requests again.")
@click.option(
    "--page",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Serve the live page at this port while the run lasts.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON on standard output.")
@click.option("--quiet", is_flag=True, help="Print no progress and no summary.")
def command(
    *,
    checked: str,
    shard: str | None,
    cut_off: str | None,
    again: str | None,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Send a file of prompts and write the answers."""
    from paceline.batch.acceptance import Acceptance
    from paceline.batch.job import Job, Output
    from paceline.batch.offline import Batching
    from paceline.batch.progress import view
    from paceline.batch.requests import WHOLE, Shard
    from paceline.batch.runner import INTERRUPTED

    batching = Batching(**options.taken(given, *OF_BATCHING))
    job = Job(**options.taken(given, *OF_JOB), batching=batching)
    output = Output(given.pop("output"), **options.taken(given, "restart", "repair", "into"))
    if batching.mode == "sync" and (batching.batch_lines is not None or batching.batch_queue is not None):
        raise click.UsageError("--batch-lines and --batch-queue need --mode batch")
    if (batching.mode == "auto") != (batching.deadline_s is not None):
        raise click.UsageError("--mode auto and --deadline need each other: --mode auto --deadline 6h")
    if batching.mode != "sync" and job.page is not None:
        raise click.UsageError("--page shows the quotas of requests that are sent one by one: it needs --mode sync")
    if as_json and output.path == "-":
        raise click.UsageError("--json and -o - both use standard output: choose one")
    try:
        form = options.form(given)
        job = replace(
            job,
            config=options.settings(given),
            check_first=checked == "first",
            shard=Shard.parse(shard) if shard is not None else WHOLE,
            form=form,
            output=replace(output, acceptance=Acceptance.parse(form.schema, cut_off, again)),
        )
        raise_files()
        gc.freeze()  # what is imported stays; most of the rest is freed by its last reference
        gc.set_threshold(*GC_THRESHOLD)
        code, report = job.run(view(quiet=quiet))
    except KeyboardInterrupt:
        click.echo("paceline run: interrupted; the same command again sends the rest", err=True)
        sys.exit(INTERRUPTED)
    try:
        sys.stderr.flush()
    except OSError:  # the terminal was closed: text that is left in the buffer would change the exit code
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    if as_json:
        click.echo(json.dumps(report))
    sys.exit(code)
