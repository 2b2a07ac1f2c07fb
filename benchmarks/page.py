"""The report of the comparison with peers: a page with tables and pictures, the raw JSON beside it, and a summary for README.md."""

from __future__ import annotations

import bisect
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.contestants import PEERS
from benchmarks.picture import draw
from benchmarks.worlds import LATENCY_S, SERVERS, WORLDS, Limit, Server, World

PAGE, IMAGES, RAW = "benchmarks_peers.md", "images/peers", "images/peers/report.json"
START, END = "<!-- peers: written by python -m benchmarks --report docs -->", "<!-- /peers -->"
BUSY = 0.15
"""The share of the cores that other processes take in a run at most; above it the run is marked."""
Result = dict[str, Any]


def speed(result: Result) -> str:
    """The share of the ideal speed; of a run that did not answer everything, the part that it did."""
    if "why" in result:
        return "n/a"
    done = 1 - result["missing"] / result["requests"]
    part = f"{done * 100:.{0 if done < 0.995 else 1}f} % done"
    if result["unfinished"]:
        return part
    share = f"{result['share'] or 0.0:.2f}"
    return f"{share} ({part})" if result["missing"] else share


def agree(result: Result) -> bool:
    """Whether the server has counted what the relay has counted."""
    return bool(result.get("counts") == result.get("counts_of_the_server"))


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


FRONT = ("requests bind", "tokens bind", "half the limits")
"""The worlds in the summary of README.md: in the last one the limits are half of those that each limiter is told."""

NAMED = (
    "paceline",
    "async-batch-llm",
    "aiolimiter",
    "LangChain's rate limiter",
    "litellm Router",
    "openai SDK, 8 retries",
)
"""The limiters with a row of their own in it: those that most programs have, and the one with the fewest refusals."""


def summary(results: Sequence[Result], worlds: Collection[str] = (), server: Server | None = None) -> str:
    """One row for each limiter, one column for each world, or each of ``worlds``: refusals, and the share of the ideal speed.

    Args:
        results: The runs.
        worlds: The names of the worlds; all by default.
        server: The server, with the overtaking and the CPU of the first world beside; by default the one of other authors where it can.
    """
    by_key = {(one["world"], one["server"], one["peer"]): one for one in results}
    chosen = [(world, server or _independent(world)) for world in WORLDS if not worlds or world.name in worlds]
    shown = [(w, s) for w, s in chosen if any((w.name, s, peer) in by_key for peer in PEERS)]
    head = [
        "refused · share of the ideal speed",
        *(w.name + ("" if s in ("mocklimit", server) else "*") for w, s in shown),
    ]
    if server:
        head += ["longest overtaking", "CPU of the client"]
    rows = []
    for peer in PEERS:
        found = [by_key.get((w.name, s, peer)) for w, s in shown]
        if any(found):
            texts = ["" if one is None else short(one) + _marks(one) for one in found]
            if server:
                texts += _first(found[0])
            rows.append([f"**{peer}**" if peer == "paceline" else peer, *texts])
    return _markdown(head, rows)


def front(results: Sequence[Result]) -> str:
    """The summary of README.md: the fewest refused and unanswered requests first, and the limiters that are not named in one row."""
    named: list[tuple[str, tuple[int, ...], list[float]]] = []
    others: list[tuple[str, tuple[int, ...], list[float]]] = []
    for peer in PEERS:
        runs = [
            one
            for world in FRONT
            for one in results
            if (one["world"], one["peer"]) == (world, peer) and "why" not in one
        ]
        if len(runs) < len(FRONT):
            continue
        *known, half = runs
        counts = sum(one["refused"] for one in known), half["refused"], sum(one["missing"] for one in runs)
        shares = [one["share"] or 0.0 for one in runs if not one["unfinished"]]
        (named if peer in NAMED else others).append((peer, counts, shares))
    named.sort(key=lambda row: sum(row[1]))
    rows = [[peer, *(f"{count:,}" for count in counts), _range(shares, ".2f")] for peer, counts, shares in named]
    rows[0] = [f"**{cell}**" for cell in rows[0]]
    if others:
        columns = zip(*(counts for _, counts, _ in others), strict=True)
        speeds = [share for _, _, shares in others for share in shares]
        rows.append([f"{len(others)} others", *(_range(column, ",d") for column in columns), _range(speeds, ".2f")])
    head = [
        "",
        "429s if you know your limits",
        "429s if the server allows half of what you set",
        "never answered",
        "share of the ideal speed",
    ]
    return _markdown(head, rows)


def _range(values: Collection[float], form: str) -> str:
    """The least and the most; one number if they are the same."""
    return (
        "\N{EN DASH}".join(dict.fromkeys(format(value, form) for value in (min(values), max(values))))
        if values
        else "n/a"
    )


def _first(result: Result | None) -> list[str]:
    """The overtaking and the CPU of a run."""
    if result is None or "overtaking" not in result:
        return ["n/a", "n/a"]
    return [f"{result['overtaking']:,}", f"{result['cpu_s']:.1f} s" if "cpu_s" in result else "n/a"]


def _marks(result: Result) -> str:
    if "why" in result:
        return ""
    return ("" if agree(result) else " †") + (" ‡" if result.get("others", 0) > BUSY else "")


def short(result: Result) -> str:
    """A run as a cell of a table."""
    return f"n/a: {result['why']}" if "why" in result else f"{result['refused']:,} · {speed(result)}"


def _independent(world: World) -> Server:
    return "mocklimit" if "mocklimit" in world.servers else "emulator"


def picture(world: World, server: Server, results: Sequence[Result], ideal_s: float, step_s: float) -> str:
    """The SVG of one world and server; in the legend the limiters that admitted most, and soonest, stand first."""
    some = [one for one in results if one.get("admitted")]
    best = world.best(server, ideal_s)
    at_first = bisect.bisect_right(best, 0.0)
    every = [bisect.bisect_right(best, (step + 1) * step_s) for step in range(math.ceil(best[-1] / step_s))]
    lines = [
        ("ideal", "the most that the limits allow", [(0.0, 0.0), (0.0, float(at_first)), *_points(every, step_s)[1:]])
    ]
    ordered = sorted(some, key=lambda one: (one["peer"] != "paceline", one["missing"], one["elapsed_s"]))
    lines += [
        (
            one["peer"],
            short(one).replace(" · ", " refused, "),
            _points(one["admitted"], step_s, one["elapsed_s"], _end_s(one)),
        )
        for one in ordered
    ]
    return draw(f"Admitted requests: {world.name}, {server}", [name for name in PEERS if name != "paceline"], lines)


def _end_s(result: Result) -> float:
    """Until when the line of a run goes: one that was stopped has waited until then."""
    end_s: float = max(result["elapsed_s"], result.get("seconds", 0.0) if result["unfinished"] else 0.0)
    return end_s


def _points(
    counts: Sequence[int], step_s: float, last_s: float = math.inf, end_s: float = 0.0
) -> list[tuple[float, float]]:
    """Counts at the end of each step as points; those without a change on either side are left out."""
    points = [(0.0, 0.0), *((min((i + 1) * step_s, last_s), float(n)) for i, n in enumerate(counts))]
    if end_s > points[-1][0]:
        points.append((end_s, points[-1][1]))
    inner = [b for a, b, c in zip(points, points[1:], points[2:], strict=False) if not a[1] == b[1] == c[1]]
    return [points[0], *inner, points[-1]]


# --- the page --------------------------------------------------------------------------------------------------------


def _limits(limits: Mapping[str, Limit]) -> str:
    named = {60: "minute", 10: "ten seconds"}
    rules = {"bucket": "", "sliding": " in any trailing {}", "window": " in windows of {} that restart"}
    return ", ".join(
        f"{limit.amount:,} {unit}" + (rules[limit.rule].format(named[limit.period_s]) or f" a {named[limit.period_s]}")
        for unit, limit in limits.items()
    ).replace("windows of minute", "windows of a minute")


def _method(ideal_s: float, mocklimit: str) -> str:
    return f"""## How it is measured

500 workers send one list of chat requests through one limiter, until every request is answered or {2 * ideal_s + 5:.0f} s have passed. Prompts have 30 to 900
words, answers 100 tokens after {LATENCY_S:g} s. Each limiter is told the limits of its world, and gets the true cost of every request where it has a parameter
for it. paceline estimates. A relay before the server counts each request and the status of its answer. Server, relay and client are processes of their own.

* **Refused**, the first number of a cell: answers with status 429.
* **Share of the ideal speed**, the second: the shortest time in which the limits allow all admitted requests, over the time from the first to the last admission. The list
  is as long as the limits allow in {ideal_s:g} s. "done" is the part that was answered, where the run was stopped or requests failed for good, as after the 8
  retries of an SDK.
* **Longest overtaking** in the first world: the most requests from further down the list that were admitted before one request. **CPU of the client** in it: of its
  process, imports excluded.
* † The server's own counts differ from the relay's: the run is not to be trusted. ‡ Other processes of the same priority took more than {BUSY * 100:.0f} % of the cores.

There are two servers, so that no result rests on the project's own: **the emulator** of this project ([its page](emulator.md)), and
**mocklimit** {mocklimit}, by other authors, with OpenAI's headers. Its refusals have a `retry-after` in whole seconds, and
their text names tokens in every case.

Weaknesses: one run for each cell, on a shared machine. 500 workers in Python need a core of it in the first second. A burst of a minute's worth comes first, so a
run of {ideal_s:g} s says little of an hour. The worlds were chosen by the authors of one of the limiters.
"""


def _uses(versions: Mapping[str, str]) -> str:
    rows = [
        [name, versions.get(peer.package or "paceline", "").partition(" on ")[0], peer.about]
        for name, peer in PEERS.items()
    ]
    return (
        "## How each limiter is used\n\nAs its own documentation advises for such a run. Where it has a number of retries, it gets 8, and where it"
        " has a number of requests at a time, the 500 of the workers. Limiters that only admit stand before an httpx2 client, whose worker waits"
        " after a 429 as long as `retry-after` says, after a 5xx as OpenAI's SDK does, and passes the limiter again.\n\n"
        + _markdown(["limiter", "version", "use"], rows)
    )  # fmt: skip


def _dates(results: Sequence[Result]) -> str:
    """The first and the last day of the runs, and whose are all of the last day where others are older."""
    last = max(one["date"] for one in results)
    newest = [peer for peer in PEERS if {one["date"] for one in results if one["peer"] == peer} == {last}]
    rest = sorted({one["date"] for one in results if one["peer"] not in newest})
    days = " to ".join(dict.fromkeys([*rest[:1], *rest[-1:]]))
    return f"{days}, and {last} for {', '.join(newest)}" if days and newest else days or last


def _body(report: Mapping[str, Any]) -> str:
    results: list[Result] = report["results"]
    machine, loads = report["machine"], [one["load"] for one in results if "load" in one]
    quick = "" if not report["quick"] else (
        "**These figures are of short runs, which show that the benchmark works. They are not for comparisons.**\n\n"
    )  # fmt: skip
    versions = report["versions"]
    parts = [
        "# Comparison with peers",
        "paceline and ten other ways to stay below a rate limit, on the same workloads; and its gateway beside two others.",
        quick + f"`{report['command']}` on {_dates(results)}: {len(results)} runs in {report['minutes']:.0f} minutes. {machine}{_pythons(versions)}, load {min(loads, default=0):.1f} to"
        f" {max(loads, default=0):.1f} before the runs. Each run is in [report.json]({RAW}), with its day and the counts of every half second.",
        "## Summary",
        "Refused requests · share of the ideal speed, against mocklimit, in columns with * against the emulator.",
        summary(results),
        *(["Against the emulator:", summary(results, server="emulator")] if any(one["server"] == "emulator" for one in results) else []),
        *_gateways(report.get("gateways") or {}),
        _method(report["ideal_s"], versions.get("mocklimit", "").partition(" on ")[0]).strip(), _uses(versions), "## The worlds",
    ]  # fmt: skip
    for world in WORLDS:
        some = [one for one in results if one["world"] == world.name]
        if not some:
            continue
        told = ", ".join(f"{amount:,} {unit}" for unit, amount in world.told.items())
        server = _shown(some)
        sent = max(one.get("requests", 0) for one in some if one["server"] == server)
        parts += [
            f"**{world.name[0].upper()}{world.name[1:]}.** {world.about} Allowed: {_limits(world.true)}. Told: {told} a minute. Sent: {sent:,} requests to {server}.",
            f"![Admitted requests over time: {world.name}, {server}]({IMAGES}/{_file(world, server)})",
        ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _shown(results: Sequence[Result]) -> Server:
    """The server of the picture: the one of other authors, where there are runs against it."""
    servers = [server for server in SERVERS if any(one["server"] == server for one in results)]
    return "mocklimit" if "mocklimit" in servers else servers[0]


def _gateways(measured: Mapping[str, Any]) -> list[str]:
    """The section about gateways; nothing if none was measured."""
    if not measured:
        return []
    low, high = measured["load"]
    rows = [
        [
            f"**{name}**" if name == "paceline" else f"`{name}`" if name.startswith("paceline") else name,
            *(
                f"{one['us']:,} us" + ("" if name == "paceline" else f", {one['ratio']:g} times ({one['least']:g} to {one['most']:g})")
                for one in (figures["request"], figures["stream"])
            ),
            f"{figures['mb'][0]:,} to {figures['mb'][1]:,} MB",
        ]
        for name, figures in measured["gateways"].items()
    ]  # fmt: skip
    missing = [f"{name}: {why}." for name, why in measured["missing"].items()]
    return [
        "## Gateways",
        (f"`{measured['command']}` on {measured['date']}, {measured['rounds']} rounds, load {low:g} to {high:g}. All gateways run at the same time, one process each, and have"
        " their turns before one server that answers at once. CPU is measured of the process and its children, so that other work on the machine changes the"
        " figures in us more than the ratios. Each ratio is a median over the rounds, with the least and the most: the CPU of a gateway over paceline's in the same round."),
        _markdown(["gateway", "CPU of a request", "CPU of a stream of 20 events", "memory, start to end"], rows), *missing,
        ("paceline runs with `--limit '*=10M requests/min'`: it reads, estimates, queues and settles each request, and no limit binds. LiteLLM has one worker, one model, no"
        " database, no keys, no callbacks, `LITELLM_LOG=ERROR`, `LITELLM_MODE=PRODUCTION`. Portkey runs with `NODE_ENV=production` and the `@hono/node-server` of its own"
        " lock file, 1.13.5: with the newest one it answers 500 to each stream ([its issue 1389](https://github.com/Portkey-AI/gateway/issues/1389)). Neither waits for rate"
        " limits in these set-ups. `python -m benchmarks --only gateway` also measures latencies and idle streams, and needs a quiet machine."),
    ]  # fmt: skip


def _pythons(versions: Mapping[str, str]) -> str:
    """The interpreters of the peers: some of them need a newer one."""
    found = sorted({text.partition(" on ")[2] for name, text in versions.items() if name != "paceline"} - {""})
    return f" for paceline and the benchmark, {', '.join(found)} for the peers" if found else ""


def _file(world: World, server: Server) -> str:
    return f"{world.name.replace(' ', '_')}_{server}.svg"


def write(folder: Path, report: Mapping[str, Any]) -> None:
    """Write the page, its pictures and the raw JSON below ``folder``."""
    images = folder / IMAGES
    images.mkdir(parents=True, exist_ok=True)
    for old in images.glob("*.svg"):
        old.unlink()
    worlds = {world.name: world for world in WORLDS}
    for name, grouped in groupby(report["results"], lambda one: one["world"]):
        results = list(grouped)
        server = _shown(results)
        some = [one for one in results if one["server"] == server]
        text = picture(worlds[name], server, some, report["ideal_s"], report["step_s"])
        (images / _file(worlds[name], server)).write_text(text, "utf-8")
    (folder / PAGE).write_text(_body(report), "utf-8")
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in report["results"])
    head = json.dumps({key: value for key, value in report.items() if key != "results"}, indent=1)
    (folder / RAW).write_text(f'{head[:-2]},\n "results": [\n{lines}\n]}}\n', "utf-8")


def write_summary(readme: Path, report: Mapping[str, Any]) -> None:
    """Replace what stands between the two markers of README.md."""
    text = readme.read_text("utf-8")
    if START not in text:
        return
    shown = [one for one in report["results"] if one["world"] in FRONT and one["server"] == "mocklimit"]
    sent = sum(max((one.get("requests", 0) for one in shown if one["world"] == world), default=0) for world in FRONT)
    told = (
        f"500 workers send {sent:,} requests through each limiter to mocklimit, a server by other"
        " authors, in three runs: requests bind, tokens bind, and the server allows half of what the limiter is told."
        f" {_dates(shown)}: [method, versions, and where paceline loses](docs/{PAGE})."
    )  # fmt: skip
    block = f"{START}\n{told}\n\n{front(shown)}\n\n{END}"
    readme.write_text(re.sub(f"{re.escape(START)}.*?{re.escape(END)}", lambda _: block, text, flags=re.DOTALL), "utf-8")
