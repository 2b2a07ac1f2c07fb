"""``paceline demo``: one batch with and without paceline, live, on this machine alone."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.cli.guides import Helped
from paceline.pacing.lack import raise_files


@click.command(cls=Helped, short_help="one batch with and without paceline, live")
@click.option(
    "--out",
    default=".",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder for the picture.",
)
def command(out: Path) -> None:
    """Send one batch with and without paceline, live.

    500 workers send it to an emulated provider on this machine, first with an SDK alone, then with paceline. The demo takes about 75 s, and ends
    with a table and a picture.
    """
    from paceline.demo.batch import DemoBatch
    from paceline.demo.show import show

    raise_files()  # 500 workers
    out.mkdir(parents=True, exist_ok=True)
    raise SystemExit(show(DemoBatch(), out / "paceline-demo.svg"))
