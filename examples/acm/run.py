"""One limiter for a whole evaluation program: three components, five providers, seven models, one file of limits.

python examples/acm/run.py                             # against emulated providers, about a minute
python examples/acm/run.py --state acm.db              # what is used is kept: run it twice
python examples/acm/run.py --enforce gpt-6-astra='200 requests/min,100k tokens/min' --outsider 0.2
python examples/acm/run.py --live --documents 5        # the real APIs: needs the five keys, and costs money
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvicorn
from clients import KEYS, PROVIDERS, Clients
from components import GENERATORS, JUDGES, REPORTERS, Evaluation
from plan import Plan
from table import learned, table, used_today

import paceline
from paceline.emulator import SettingsError
from paceline.testing import Emulator

HERE = Path(__file__).parent
DEFAULTS = HERE / "defaults.yaml"
FIRST_S, PER_TOKEN_S = 0.5, 0.004
"""The duration of an emulated answer, plus or minus 30 %, and the assumed duration of a real one."""

DOWN_S = 2.0
"""The duration of an outage: until the breaker has opened."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run.

    Attributes:
        evaluation: The counts of the components.
        forecast_s: The forecast duration in seconds.
        took_s: The duration in seconds.
        status: The limiter's status at the end.
        tallies: The tally of each emulated provider.
    """

    evaluation: Evaluation
    forecast_s: float
    took_s: float
    status: dict[str, Any]
    tallies: dict[str, dict[str, Any]]


def found(limits: Path) -> Path:
    """The file of limits; if it does not exist, the plan's defaults."""
    if limits.exists():
        return limits
    print(f"{limits}: no such file: the limits are those of {DEFAULTS.name}", file=sys.stderr)
    return DEFAULTS


def limiter_of(options: argparse.Namespace) -> paceline.Limiter:
    """The only limiter of the program.

    Raises:
        SettingsError: A setting in the file, the environment or the command line is invalid.
    """
    faster: dict[str, Any] = {}
    if options.speed != 1:
        written = paceline.Limiter.load(found(options.limits)).limits.given
        limits = {name: tuple(_faster(quota, options.speed) for quota in own) for name, own in written.items()}
        faster = {"limits": limits, "headroom_s": 1 / options.speed, "min_interval_s": 0.05 / options.speed}
    store = f"sqlite:{options.state}" if options.state else None
    return paceline.Limiter.load(found(options.limits), store=store, **faster)


async def run(options: argparse.Namespace, **world: Any) -> Outcome:
    """Run the evaluation. ``world``: further settings of every emulated provider."""
    limiter = limiter_of(options)
    plan = Plan(options.documents, FIRST_S / options.speed, PER_TOKEN_S / options.speed)
    with ExitStack() as stack:
        stack.callback(limiter.close)
        emulators = {} if options.live else _emulators(limiter, plan, options, world)
        for emulator in emulators.values():
            stack.enter_context(emulator)
        if options.status:
            _serve(limiter, options.status)
        clients = Clients(limiter, {provider: emulator.base_url for provider, emulator in emulators.items()})
        evaluation = Evaluation(options.documents, clients.ask)
        forecast, total_s = plan.forecast(limiter, {})
        before = limiter.status()
        _say_before(plan, total_s, before)
        started_s = time.monotonic()
        aside = [asyncio.create_task(_progress(limiter, plan, evaluation, max(total_s / 3, 5.0)))]
        if options.down:
            aside.append(asyncio.create_task(_recover(emulators[options.down])))
        await evaluation.run()
        took_s = time.monotonic() - started_s
        for task in aside:
            task.cancel()
        await clients.close()
        after = limiter.status()
        pools = {limiter.acquire(name, tokens=0).pool: name for name in plan.costs}
        times = {pool: forecast.pools[name] for pool, name in pools.items()}
        print(f"\n{table(after, times, {pool: forecast.binds[name] for pool, name in pools.items()})}\n")
        for line in learned(before, after):
            print(f"corrected by answers: {line}")
        tallies = {provider: emulator.tally() for provider, emulator in emulators.items()}
    return Outcome(evaluation, total_s, took_s, after, tallies)


def _faster(quota: paceline.Quota, speed: float) -> paceline.Quota:
    if quota.period_s != 60:
        return quota  # a day is not shortened
    return replace(quota, amount=quota.amount * speed, burst=quota.burst * speed)


def _emulators(
    limiter: paceline.Limiter, plan: Plan, options: argparse.Namespace, world: dict[str, Any]
) -> dict[str, Emulator]:
    """An emulated provider for each real one, with the limits of the file or of ``--enforce``."""
    limits: dict[str, dict[str, Any]] = {provider: {} for provider in PROVIDERS}
    for name in plan.costs:
        provider, _, model = name.partition("/")
        quotas = [_written(quota, provider) for quota in limiter.limits.resolve(name).quotas if quota.period_s]
        limits[provider][model] = options.enforce.get(model, quotas)
    latency = {"latency_s": FIRST_S / options.speed, "latency_per_token_s": PER_TOKEN_S / options.speed, "jitter": 0.3}
    settings = {**latency, "other_users": options.outsider, **world}
    down = {options.down: {"faults": {"503": 1.0}}}
    states = {provider: Path(f"{options.state}.{provider}.json") if options.state else None for provider in PROVIDERS}
    return {
        provider: Emulator(limits[provider], state=states[provider], **(settings | down.get(provider, {})))
        for provider in PROVIDERS
    }


def _written(quota: paceline.Quota, provider: str) -> str:
    if provider == "azure" and quota.unit == "requests" and quota.period_s == 60:
        return f"{quota.amount / 6:f} requests/10s"  # Azure counts a minute's requests over ten seconds
    return f"{quota.amount:f} {quota.unit}/{quota.period_s:.0f}s"


def _say_before(plan: Plan, total_s: float, status: dict[str, Any]) -> None:
    for line in used_today(status):
        print(f"used today: {line}")
    print(f"{plan.calls} calls: about {total_s:.0f} s")


async def _recover(emulator: Emulator) -> None:
    """End the outage; the breaker is open by then, and closes after its probe."""
    await asyncio.sleep(DOWN_S)
    await asyncio.to_thread(emulator.reset, faults={})


async def _progress(limiter: paceline.Limiter, plan: Plan, evaluation: Evaluation, every_s: float) -> None:
    """Print the progress at intervals; the forecast uses the limits that answers have corrected."""
    started_s = time.monotonic()
    while True:
        await asyncio.sleep(every_s)
        _, left_s = plan.forecast(limiter, evaluation.asked)
        passed_s = time.monotonic() - started_s
        print(f"after {passed_s:.0f} s: {evaluation.answered} of {plan.calls} answered, about {left_s:.0f} s to go")


def _serve(limiter: paceline.Limiter, port: int) -> None:
    listener = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(paceline.status_app(limiter), log_config=None, log_level="critical")
    threading.Thread(target=uvicorn.Server(config).run, kwargs={"sockets": [listener]}, daemon=True).start()
    print(f"every pool: http://127.0.0.1:{port}/ or: paceline status 127.0.0.1:{port}")


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The command line.

    Raises:
        SystemExit: An option is invalid; the message has been printed.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--documents", type=int, default=75)
    parser.add_argument("--limits", type=Path, default=HERE / "limits.yaml", metavar="FILE")
    parser.add_argument(
        "--state",
        type=Path,
        metavar="FILE",
        help="the SQLite file that keeps what is used; beside it, each emulated provider keeps its own count",
    )
    parser.add_argument("--status", type=int, metavar="PORT", help="serve the status page on this port")
    parser.add_argument("--log", action="store_true", help="log every permit acquired and settled, and every refusal")
    parser.add_argument(
        "--speed", type=float, default=1.0, help="limits of a minute times this, latencies divided by it"
    )
    parser.add_argument(
        "--enforce",
        action="append",
        default=[],
        metavar="MODEL=LIMITS",
        help="the limits that the emulator enforces, if other than the file's",
    )
    parser.add_argument("--outsider", type=float, default=0.0, help="the share of every rate that other users take")
    parser.add_argument(
        "--down", choices=PROVIDERS, help="a provider that answers 503 at first, until its breaker opens"
    )
    parser.add_argument("--live", action="store_true", help=f"the real APIs: needs {', '.join(KEYS.values())}")
    options = parser.parse_args(words)
    if not 1 <= options.documents <= 10_000:
        parser.error(f"--documents is {options.documents}: it must be from 1 to 10000")
    if not 0.1 <= options.speed <= 100:
        parser.error(f"--speed is {options.speed:g}: it must be from 0.1 to 100")
    if not 0 <= options.outsider < 1:
        parser.error(f"--outsider is {options.outsider:g}: it must be from 0 to below 1")
    options.enforce = {model: limits for model, _, limits in (pair.partition("=") for pair in options.enforce)}
    models = {call.model for call in (*GENERATORS, *REPORTERS, *JUDGES)}
    if not options.enforce.keys() <= models:
        parser.error(f"--enforce {', '.join(options.enforce)}: write MODEL=LIMITS; models: {', '.join(sorted(models))}")
    if options.live and (options.speed != 1 or options.enforce or options.outsider or options.down):
        parser.error("--live cannot be combined with --speed, --enforce, --outsider or --down")
    needed = [*KEYS.values(), "AZURE_OPENAI_ENDPOINT"]
    if options.live and (missing := [name for name in needed if not os.environ.get(name)]):
        parser.error(f"--live needs {', '.join(missing)}")
    return options


def main() -> int:
    """Run, and print the result."""
    options = parse()
    if options.log:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
        logging.getLogger("paceline.rate_limit").setLevel(logging.DEBUG)
    try:
        outcome = asyncio.run(run(options))
    except (paceline.PacelineError, SettingsError) as error:
        print(error, file=sys.stderr)
        return 2
    for provider, tally in outcome.tallies.items():
        print(
            f"{provider} saw {tally['admitted']} requests, refused {tally['refused_total']},"
            f" at most {tally['in_flight_peak']} in flight"
        )
    off = outcome.took_s / outcome.forecast_s - 1
    print(f"took {outcome.took_s:.0f} s; forecast {outcome.forecast_s:.0f} s ({off:+.0%})")
    for failure in outcome.evaluation.failed[:5]:
        print(failure)
    return 1 if outcome.evaluation.failed else 0


if __name__ == "__main__":
    sys.exit(main())
