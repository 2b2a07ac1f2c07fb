"""The paper pipeline, with paceline or without: ``python examples/paper_pipeline/run.py [--speed 3] [--without]``."""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import sys
from contextlib import ExitStack
from typing import Any

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # otherwise litellm fetches its prices at import
os.environ.setdefault("FLATAGENTS_LOG_LEVEL", "CRITICAL")
os.environ.setdefault("FLATAGENTS_METRICS_ENABLED", "false")

try:
    import litellm
    from pipeline import PHASES, Pipeline
    from report import Meter, Waits, seen_by_limiter, seen_by_server, table

    import paceline
    from paceline.integrations.flatmachines import PacelineHooks
    from paceline.testing import Emulator
except ImportError as error:
    if __name__ != "__main__":
        raise
    needs = "pip install '.[emulator,httpx]' -r examples/paper_pipeline/requirements.txt"
    print(f"paper_pipeline: {error}; {needs}", file=sys.stderr)
    sys.exit(2)

litellm.suppress_debug_info = True

LIMITS = {"arcee": 200, "pony": 100}
"""Requests per minute, by the models' names in ``profiles.yml``."""

LANES = [paceline.LaneSpec("prep", weight=1), paceline.LaneSpec("wrap", weight=4)]
"""In proportion to the calls of arcee: each phase has its share for the same number of papers, and neither starves."""

LOW, HIGH = 40, 60
"""The watermarks of the buffer: the papers in prep, prepared, or with pony."""


def per_minute(requests: int, speed: float) -> str:
    """A limit in text; a minute is shorter by the factor ``speed``."""
    return f"{requests} requests/min" if speed == 1 else f"{requests} requests/{60 / speed:g}s"


def limiter(speed: float = 1, *, first_speed: bool = False, **options: Any) -> paceline.Limiter:
    """One pool per model for all workers; only the limiter retries.

    Args:
        speed: The divisor of a minute.
        first_speed: Start with 3/s and 1.5/s until the first answer states the limits.
        **options: Further options of the limiter.
    """
    assumed = {"arcee": 180, "pony": 90} if first_speed else LIMITS
    quotas = {model: per_minute(limit, speed) for model, limit in assumed.items()}
    options = {"learn": "up" if first_speed else True, **options}
    return paceline.Limiter(quotas, lanes=LANES, retry=paceline.RetryPolicy(faults=True), **options)


async def run(options: argparse.Namespace, waits: Waits | None = None, **world: Any) -> tuple[Pipeline, Meter]:
    """Run the pipeline against an emulated provider, unless live.

    Args:
        options: See :func:`parse`.
        waits: A listener for the waits.
        **world: Settings of the emulator.
    """
    speed = options.speed
    pace = None if options.without else limiter(speed, first_speed=options.first_speed, events=waits)
    with ExitStack() as stack:
        if options.live:
            look = functools.partial(seen_by_limiter, pace)
        else:
            limits = {model: per_minute(limit, speed) for model, limit in LIMITS.items()}
            settings = {"latency_s": 1 / speed, "latency_per_token_s": 0.02 / speed, "process": True, **world}
            emulator = stack.enter_context(Emulator(limits=limits, **settings))
            os.environ |= {"OPENAI_BASE_URL": f"{emulator.base_url}/v1", "OPENAI_API_KEY": "any"}
            look = functools.partial(seen_by_server, emulator)
        if pace is not None:
            stack.enter_context(paceline.instrument(pace))
        buffer = None if pace is None else paceline.Buffer(low=LOW, high=HIGH)
        hooks = None if buffer is None else PacelineHooks(PHASES, dict.fromkeys(("prep", "expensive"), buffer))
        pipeline, meter = Pipeline(options.workers, hooks, speed), Meter(look, LIMITS, speed, buffer)
        await pipeline.warm()
        await meter.read()
        reading = asyncio.create_task(meter.run())
        await pipeline.run(options.minutes * 60 / speed)
        reading.cancel()
    return pipeline, meter


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="minutes of the plan; the run takes minutes / speed")
    parser.add_argument("--speed", type=int, default=1, help="the divisor of a minute; it must divide 60")
    parser.add_argument("--workers", type=int, default=500)
    parser.add_argument("--without", action="store_true", help="without paceline: every agent retries by itself")
    parser.add_argument(
        "--first-speed", action="store_true", help="start with 3/s and 1.5/s until an answer states the limits"
    )
    parser.add_argument("--live", action="store_true", help="at $OPENAI_BASE_URL with $OPENAI_API_KEY")
    options = parser.parse_args(words)
    if 60 % options.speed:
        parser.error(f"--speed is {options.speed}: it must divide 60")
    if options.live and (options.without or options.speed != 1):
        parser.error("--live cannot be combined with --without or --speed")
    if options.live and not os.environ.get("OPENAI_API_KEY"):
        parser.error("--live needs OPENAI_API_KEY, and OPENAI_BASE_URL for any provider but OpenAI")
    return options


def main() -> None:
    """Run and print the table."""
    options = parse()
    waits = Waits()
    pipeline, meter = asyncio.run(run(options, waits))
    print(table(pipeline, meter, waits.by_lane))
    for reason, count in pipeline.lost.items():
        print(f"given up {count:>5} x {reason}")


if __name__ == "__main__":
    main()
