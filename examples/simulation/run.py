"""500 agents reason in rounds, pass 1 with one model and pass 2 with another, at the models' own limits.

python examples/simulation/run.py                                   # OpenAI, tier 1: about 2 minutes
python examples/simulation/run.py --provider anthropic --speed 20   # three quotas a model; limits times 20
python examples/simulation/run.py --rate-tier 2 --rpm-override 2000
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from contextlib import ExitStack
from typing import Any

from model_limits import MODELS, Setup, set_up
from outcome import Row, rows, table
from population import Model, Population

import paceline
from paceline.integrations.extropy import ExtropyLimiter
from paceline.testing import Emulator

KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}


async def run(options: argparse.Namespace, setup: Setup, **world: Any) -> tuple[list[Row], Population]:
    """Run the simulation; return the rows of the table and the population. ``world``: further settings of the emulator."""
    # An emulated answer takes half a second and 4 ms for each token of output, plus or minus 30 %.
    latency = {"latency_s": 0.5 / options.speed, "latency_per_token_s": 0.004 / options.speed, "jitter": 0.3}
    with ExitStack() as stack:
        settings = {"limits": setup.emulated, "process": True, **latency, **world}
        emulator = None if options.live else stack.enter_context(Emulator(**settings))
        model = Model(setup.limiter, setup.provider, emulator and emulator.base_url)
        roles = ExtropyLimiter(setup.limiter, *(f"{setup.provider}/{name}" for name in (setup.pivotal, setup.routine)))
        population = Population(
            options.agents, model.ask, lambda: max(1, round(roles.max_safe_concurrent / options.speed))
        )
        started_s = time.monotonic()
        await population.run(options.rounds, setup.pivotal, setup.routine)
        took_s = time.monotonic() - started_s
        await model.close()
        tally = emulator and emulator.tally()
    models = {pool: models for pool, (models, _) in setup.pools.items()}
    return rows(models, model.records, tally, took_s), population


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The command line.

    Raises:
        SystemExit: An option is invalid; the message has been printed.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--agents", type=_whole, default=500)
    parser.add_argument("--rounds", type=_whole, default=3)
    parser.add_argument("--provider", choices=(*MODELS, "claude"), help="default: that of the file, or openai")
    parser.add_argument("--pivotal", metavar="MODEL", help=f"pass 1: {' or '.join(own for own, _ in MODELS.values())}")
    parser.add_argument("--routine", metavar="MODEL", help=f"pass 2: {' or '.join(own for _, own in MODELS.values())}")
    parser.add_argument(
        "--rate-tier",
        metavar="TIER",
        help="the account's tier, e.g. 2 or build; default: that of the file, or the lowest",
    )
    parser.add_argument(
        "--rpm-override",
        type=float,
        metavar="N",
        help="requests a minute of the pivotal model; overrides all other settings",
    )
    parser.add_argument(
        "--tpm-override", type=float, metavar="N", help="tokens a minute of the pivotal model, likewise"
    )
    parser.add_argument("--config", metavar="FILE", help="TOML or YAML, as in docs/config.md")
    parser.add_argument("--speed", type=float, default=1.0, help="limits times this, latencies divided by it")
    parser.add_argument("--live", action="store_true", help="the real API: needs its key, and costs money")
    options = parser.parse_args(words)
    if not 0.1 <= options.speed <= 100:
        parser.error(f"--speed is {options.speed:g}: it must be from 0.1 to 100")
    if options.live and options.speed != 1:
        parser.error("--live uses the real limits: leave out --speed")
    return options


def _whole(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 20_000:
        raise argparse.ArgumentTypeError(f"{text} must be from 1 to 20000")
    return number


def main() -> int:
    """Run, and print the table."""
    options = parse()
    try:
        setup = set_up(options)
    except paceline.SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    if options.live and not os.environ.get(KEYS[setup.provider]):
        print(f"--live needs {KEYS[setup.provider]}", file=sys.stderr)
        return 2
    for models, quotas in setup.pools.values():
        print(f"{' + '.join(models)}: {', '.join(map(str, quotas))}")
    made, population = asyncio.run(run(options, setup))
    print(f"\n{options.agents} agents, {options.rounds} rounds, at most {population.peak} agents in flight\n")
    print(table(made))
    for failure in population.failed[:5]:
        print(failure)
    return 1 if population.failed else 0


if __name__ == "__main__":
    sys.exit(main())
