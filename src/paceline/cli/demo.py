"""``paceline demo``: one batch with and without paceline, live, on this machine alone."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from paceline.demo.batch import Batch, Half
    from paceline.emulator import Emulator


@click.command(short_help="one batch with and without paceline, live")
@click.option(
    "--out",
    default=".",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the picture goes.",
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
    """Send one batch twice to an emulated provider on this machine, with 500 workers: first as an SDK does it by
    itself, then at the pace of a limiter. It takes about 75 s and ends with a table and a picture.
    """  # noqa: D205  (click prints this as it stands)
    try:
        import matplotlib as _matplotlib  # noqa: F401, ICN001
        import plotext as _plotext  # noqa: F401
        from rich.console import Console

        from paceline.demo.batch import Batch
        from paceline.emulator import Emulator  # noqa: F401
        from paceline.emulator.server import Emulator as _Server  # noqa: F401
    except ImportError as error:
        raise click.ClickException(f"{error.name} is missing: pip install 'paceline[demo]'") from None
    out.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    batch = Batch(**{name: value for name, value in given.items() if value is not None})
    try:
        halves = _run(batch, console)
    except KeyboardInterrupt:
        console.print("stopped; nothing was written")
        raise SystemExit(130) from None
    _finish(halves, batch, out, console)


def _run(batch: Batch, console: Console) -> tuple[Half, Half]:
    from paceline.demo.batch import MODEL
    from paceline.emulator import Emulator

    console.print(
        f"{batch.requests:,} requests, {batch.workers:,} workers; an emulated provider on this machine allows "
        f"{batch.requests_per_min:,} requests and {batch.tokens_per_min:,} tokens a minute"
    )
    emulator = Emulator({MODEL: batch.limits}, process=True, latency_s=batch.latency_s)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the child inherits it: Ctrl-C is for us to handle
    try:
        emulator.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return asyncio.run(_halves(batch, emulator, console))
    finally:
        emulator.stop()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


async def _halves(batch: Batch, emulator: Emulator, console: Console) -> tuple[Half, Half]:
    """Both halves, one after the other; the screen shows them together."""
    import openai

    from paceline.demo.batch import MODEL, Half, ask, plain, run_half
    from paceline.demo.live import Screen
    from paceline.limiter.limiter import Limiter

    first, second = Half("SDK alone", batch.requests), Half("with paceline", batch.requests)
    url = f"{emulator.base_url}/v1"
    with Screen(console, (first, second), batch.requests_per_min / 60) as screen:
        async with openai.AsyncOpenAI(api_key="none", base_url=url) as client:
            emulator.reset()
            await run_half(first, emulator, batch, plain(client), screen.tick, cut_s=batch.cut_s)
        async with openai.AsyncOpenAI(api_key="none", base_url=url) as client:
            limiter = Limiter({f"openai/{MODEL}": batch.limits}, headroom_s=batch.headroom_s)
            limiter.attach(client, provider="openai")
            emulator.reset()
            await run_half(second, emulator, batch, lambda prompt: ask(client, prompt), screen.tick)
    return first, second


def _finish(halves: tuple[Half, Half], batch: Batch, out: Path, console: Console) -> None:
    """Say how it went, draw it, and end with 1 if paceline did not keep its promise."""
    from paceline.demo.batch import RETRY_PAUSES_S
    from paceline.demo.picture import draw
    from paceline.demo.report import plot, table, verdict

    rate = batch.requests_per_min / 60
    console.print(plot(halves, rate, console))
    console.print(table(halves))
    pauses = ", ".join(f"{pause_s:g}" for pause_s in RETRY_PAUSES_S)
    console.print(
        f"SDK alone: openai's AsyncOpenAI with its own 2 retries (they honour retry-after), inside a loop that sleeps {pauses} s "
        f"after a RateLimitError, then gives up; stopped after {batch.cut_s:g} s. With paceline: limiter.attach(client), "
        f"no loop, headroom {batch.headroom_s:g} s. In both, the workers start one after another over "
        f"{batch.start_s:g} s. Refusals and speed are the server's count.",
        style="dim",
    )
    for file in draw(halves, rate, out / "paceline-demo"):
        console.print(f"written: {file}")
    faults = verdict(halves[1])
    for fault in faults:
        console.print(f"not as promised: {fault}", style="bold red")
    if faults:
        raise SystemExit(1)
