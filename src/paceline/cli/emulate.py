"""``paceline emulate``: serve an API that limits like a provider."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import click

from paceline.cli.guides import Helped
from paceline.cli.options import PORT, aligned, cannot_listen, several
from paceline.core.results import PacelineError
from paceline.emulator.scenario import load, scenarios
from paceline.emulator.settings import Settings, SettingsError
from paceline.pacing.lack import raise_files

EXAMPLES: Final = {"--faults": "503=0.02", "--batches": "turnaround_s=420"}
"""The options that set several values by name."""


def _list(_: click.Context, __: click.Parameter, asked: bool) -> None:
    """Print the shipped scenarios and exit."""
    if not asked:
        return
    for name in scenarios():
        click.echo(f"{name:24}{load(name).summary}")
    raise click.exceptions.Exit


def _named(_: click.Context, option: click.Parameter, text: str | None) -> dict[str, Any] | None:
    """The values in an option like ``500=0.02,529=0.01``, by name."""
    if text is None:
        return None
    parts = [part for part in text.split(",") if part.strip()]
    return dict(_value(option.opts[0], part) for part in parts)


def _value(option: str, part: str) -> tuple[str, Any]:
    """A name and its value: a number, also with k, M or B, ``true``, ``false`` or a name."""
    name, _, text = map(str.strip, part.partition("="))
    if not text:
        raise click.UsageError(f"{option} {part!r}: write it like {EXAMPLES[option]!r}")
    if name == "queue_full":
        return name, text
    if text in ("true", "false"):
        return name, text == "true"
    scale = {"k": 1_000, "m": 1_000_000, "b": 1_000_000_000}.get(text[-1].lower(), 1)
    try:
        number = float(text if scale == 1 else text[:-1]) * scale
    except ValueError:
        raise click.UsageError(f"{option} {part!r}: {text!r} is no number") from None
    return name, int(number) if number.is_integer() else number


@click.command(cls=Helped, short_help="serve an API that limits like a provider")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@PORT
@several(
    "--limit",
    "The limits of a model: 'gpt-6-luna=500 requests/min,400k tokens/min'. '*' is every other model. Repeatable.",
    metavar="MODEL=LIMITS",
)
@click.option("--rule", metavar="RULE", help="How limits count: bucket, quantised, window or sliding.")
@click.option("--quantum", "quantum_s", type=float, help="The size of a quantised bucket, in seconds of its rate.")
@click.option("--latency", "latency_s", type=float, help="Seconds until an answer begins.")
@click.option(
    "--faults",
    metavar="KIND=P,...",
    callback=_named,
    help="The share of requests with a fault: '500=0.02,529=0.01'. Also 429, drop, slow, growth, stream.",
)
@click.option(
    "--batches",
    metavar="NAME=VALUE,...",
    callback=_named,
    help="Serve the Batch APIs: 'turnaround_s=420,cancel_s=60,enqueued_tokens=2M'.",
)
@click.option("--cache", is_flag=True, default=None, help="Cache prompts for 5 min, as Anthropic and OpenAI do.")
@click.option("--valid-key", help="The only API key to accept.")
@click.option("--seed", type=int, help="The seed of all random choices.")
@click.option("--dialect", metavar="NAME", help="The API at OpenAI's paths: openai, azure, groq, together or plain.")
@click.option("--scenario", metavar="NAME|FILE", help="A scenario of --scenarios, or a TOML file.")
@click.option(
    "--scenarios", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="List the scenarios."
)
def command(host: str, port: int, scenario: str | None, **given: Any) -> None:
    """Serve an API that limits like a provider.

    The emulator has the APIs of OpenAI, Anthropic, Gemini, Azure OpenAI and Groq, with their limits, headers and refusals. Nothing leaves this
    machine, and every API key works. GET /emulator/tally counts the requests. Ctrl-C stops the emulator.
    """
    from paceline.emulator.app import App
    from paceline.emulator.server import listen, make_server
    from paceline.gateway.signals import end_by_signals

    app = App(_settings(scenario, given))
    try:
        listener = listen(host, port)
    except OSError as error:
        raise PacelineError(cannot_listen(host, port, error)) from None
    address = f"http://{host}:{listener.getsockname()[1]}"
    server = make_server(app)
    end_by_signals(server)
    for line in _greeting(address, scenario):
        click.echo(line)
    raise_files()
    with suppress(KeyboardInterrupt):  # SIGHUP
        server.run(sockets=[listener])
    click.echo()
    click.echo(_table(app.tally()))


def _greeting(address: str, scenario: str | None) -> Iterator[str]:
    """The addresses of the APIs, and the scenario."""
    yield (
        f"emulating OpenAI at {address}/v1, Anthropic, Gemini and Azure at {address}, Groq at {address}/openai/v1"
        f"  (tally: {address}/emulator/tally)"
    )
    if scenario is not None:
        world = load(scenario)
        yield from (f"{world.name}: {world.summary}",) if world.summary else ()
        yield from (f"limits for your limiter: {world.client_limits}",) if world.client_limits else ()


def _settings(scenario: str | None, given: dict[str, Any]) -> Settings:
    """The scenario's settings, overridden by the command line."""
    try:
        values = dict(load(scenario).settings) if scenario else {}
        given = {name: value for name, value in given.items() if value not in (None, ())}
        if "batches" in given:
            given["batches"] = values.get("batches", {}) | given["batches"]
        return Settings.of(values | given)
    except SettingsError as error:
        raise click.UsageError(str(error)) from None


def _table(tally: dict[str, Any]) -> str:
    """The tally as a table with a row for each pool."""
    rows = [["", "admitted", "refused", "faults", "in flight", "seconds", "of ideal"]]
    for name, pool in [*tally["pools"].items(), ("total", tally)]:
        speed, counts = pool["speed_vs_ideal"], (pool["admitted"], pool["refused_total"], sum(pool["faults"].values()))
        row = [name, *(f"{count:,}" for count in (*counts, pool["in_flight_peak"])), f"{pool['elapsed_s']:,.1f}"]
        rows.append([*row, "-" if speed is None else f"{speed:.3f}"])
    lines, batches = aligned(rows, right=True), tally["batches"]
    refused, states = (
        ", ".join(f"{count:,} {name}" for name, count in counts.items())
        for counts in (tally["refused"], batches["states"])
    )
    if refused:
        lines.append(f"refused: {refused}")
    if states:
        lines.append(f"batches: {states}; {batches['paid']:,} of {batches['requests']:,} requests answered")
    return "\n".join(lines)
