"""``paceline replay``: recorded traffic under other limits."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from paceline.cli import options
from paceline.cli.guides import Helped

EPILOG = """LOG is the file of the setting traffic_log or shadow, an export of OpenTelemetry
(OTLP JSON), Langfuse, LangSmith, Helicone, litellm or OpenAI's usage, or CSV with the columns start, model, input_tokens and
output_tokens. Its form is lines or an array of JSON, CSV, TSV or Parquet, also compressed (gzip, zstd). Nothing is sent."""


@click.command(cls=Helped, epilog=EPILOG)
@click.argument("source", metavar="LOG", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--provider", help="The provider. [default: by the model]")
@options.TIERS
@options.limits
@options.CONFIG
@options.PICTURE
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON on standard output.")
def command(
    *,
    source: Path,
    tiers: tuple[str, ...],
    picture: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Show how recorded traffic would wait under other limits."""
    from paceline.batch.reading import read_rows
    from paceline.cli import plan
    from paceline.planner.logs import OWN, read_log, work_of
    from paceline.planner.workload import CALLS_MAX

    config = options.settings(given)
    with read_rows(str(source), cut=OWN) as rows:
        read = read_log(rows, str(source))
    log = read.requests
    again = partial(work_of, log)
    plans = dict(plan.plans({"": again}, config, tiers=tiers, limits=given["limits"], start_s=log[0].start_s))
    if picture is not None:
        plan.draw_to(plans, picture)
    refused, failed = sum(one.refused for one in log), sum(one.failed for one in log)
    took_s = log[-1].start_s - log[0].start_s
    if as_json:
        recorded = {"form": read.form, "requests": len(log), "refused": refused, "failed": failed, "seconds": took_s}
        click.echo(plan.to_json("replays", plans, log={**recorded, "notes": read.notes}))
        return
    said = f"{read.form}: {len(log):,} in {plan.in_words(took_s)}, {refused:,} refused by the provider and {failed:,} failed"
    if len(log) == CALLS_MAX:
        said += f"; no more than {CALLS_MAX:,} are replayed, the first ones of the file"
    click.echo("\n".join([said, *read.notes]), err=True)
    plan.show(plans, tiers=bool(tiers or config.tier))
