"""``paceline demo``: one batch with and without paceline, live, on this machine alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paceline.cli.guides import Helped


@click.command(cls=Helped, short_help="one batch with and without paceline, live")
@click.option(
    "--out",
    default=".",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder for the picture.",
)
@click.option("--requests", type=click.IntRange(1), hidden=True)
@click.option("--workers", type=click.IntRange(1), hidden=True)
@click.option("--requests-per-min", type=click.IntRange(1), hidden=True)
@click.option("--tokens-per-min", type=click.IntRange(10_000), hidden=True)
@click.option("--latency", "latency_s", type=click.FloatRange(0), hidden=True)
@click.option("--cut", "cut_s", type=click.FloatRange(1), hidden=True)
@click.option("--start", "start_s", type=click.FloatRange(0), hidden=True)
@click.option("--headroom", "headroom_s", type=click.FloatRange(0), hidden=True)
def command(out: Path, **given: Any) -> None:
    """Send one batch with and without paceline, live.

    500 workers send it to an emulated provider on this machine, first with an SDK alone, then with paceline. The demo takes about 75 s, and ends
    with a table and a picture.
    """
    from paceline.demo.batch import DemoBatch
    from paceline.demo.show import show
    from paceline.pacing.lack import raise_files

    raise_files()  # 500 workers
    out.mkdir(parents=True, exist_ok=True)
    batch = DemoBatch(**{name: value for name, value in given.items() if value is not None})
    raise SystemExit(show(batch, out / "paceline-demo"))
