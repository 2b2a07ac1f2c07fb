"""The report of the comparison with peers: a page with tables and pictures, the raw JSON beside it, and a summary for README.md."""

from __future__ import annotations

import bisect
import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
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


def _marked(result: Result) -> str:
    """The result of a run in one cell."""
    if "why" in result:
        return f"n/a: {result['why']}"
    marks = ("" if agree(result) else " †") + (" ‡" if result["others"] > BUSY else "")
    return _short(result) + marks


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def table(results: Sequence[Result]) -> str:
    """The table of one world, with the marks that it needs explained below it; no column of zeros alone."""
    servers = list(dict.fromkeys(one["server"] for one in results))
    of_peer = {peer: [one for one in results if one["peer"] == peer] for peer in PEERS}

    def both(peer: str, show: Callable[[Result], str]) -> str:
        return " / ".join(show(one) if "why" not in one else "n/a" for one in of_peer[peer])

    failed = any(one.get("failed") for one in results)
    head = ["limiter", *servers, "longest overtaking", *(["other errors"] if failed else []), "CPU of the client"]
    rows = [
        [
            f"**{peer}**" if peer == "paceline" else peer,
            *(next((_marked(one) for one in found if one["server"] == server), "") for server in servers),
            both(peer, lambda one: f"{one['overtaking']:,}"),
            *([both(peer, lambda one: f"{one['failed']:,}")] if failed else []),
            both(peer, lambda one: f"{one['cpu_s']:.1f} s" if "cpu_s" in one else "n/a"),
        ]
        for peer, found in of_peer.items()
        if found
    ]
    notes = []
    if not all(map(agree, results)):
        notes.append("† The server's own counts differ from the relay's: the row is not to be trusted.")
    if any(one.get("others", 0) > BUSY for one in results):
        notes.append(
            f"‡ Other processes of the same priority took more than {BUSY * 100:.0f} % of the cores meanwhile."
        )
    return "\n\n".join([_markdown(head, rows), *notes])


FRONT = ("requests bind", "tokens bind", "half the limits")
"""The worlds in the summary of README.md."""


def summary(results: Sequence[Result], worlds: Collection[str] = ()) -> str:
    """One row for each limiter, one column for each world, or each of ``worlds``: refusals, and the share of the ideal speed."""
    by_key = {(one["world"], one["server"], one["peer"]): one for one in results}
    chosen = [(world, _independent(world)) for world in WORLDS if not worlds or world.name in worlds]
    shown = [(w, s) for w, s in chosen if any((w.name, s, peer) in by_key for peer in PEERS)]
    head = ["refused · share of the ideal speed", *(w.name + ("" if s == "mocklimit" else "*") for w, s in shown)]
    rows = []
    for peer in PEERS:
        found = [by_key.get((w.name, s, peer)) for w, s in shown]
        if any(found):
            texts = ["" if one is None else _short(one) for one in found]
            rows.append([f"**{peer}**" if peer == "paceline" else peer, *texts])
    return _markdown(head, rows)


def _short(result: Result) -> str:
    return "n/a" if "why" in result else f"{result['refused']:,} · {speed(result)}"


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
            _short(one).replace(" · ", " refused, "),
            _points(one["admitted"], step_s, one["elapsed_s"], _end_s(one)),
        )
        for one in ordered
    ]
    return draw(f"Admitted requests: {world.name}, {server}", [name for name in PEERS if name != "paceline"], lines)


def _end_s(result: Result) -> float:
    """Until when the line of a run goes: one that was stopped has waited until then."""
    return max(result["elapsed_s"], result.get("seconds", 0.0) if result["unfinished"] else 0.0)


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
words, answers 100 tokens after {LATENCY_S:g} s. Each limiter is configured with the limits per minute that stand above its table, and gets the true cost of
every request where it has a parameter for it. paceline estimates. A relay before the server counts each request and the status of its answer. The
server, the relay and the client are processes of their own, on one machine. Runs follow each other, in the order of the tables.

* **Refused**, the first number of a cell: answers with status 429. They cost the time of a round trip, and some providers count them.
* **Share of the ideal speed**, the second: the shortest time in which the limits allow all admitted requests, over the time from the first to the last admission. The list
  is as long as the limits allow in {ideal_s:g} s at best. A run that did not answer everything shows the part that was answered.
* **Longest overtaking**: the most requests from further down the list that were admitted before one request. One that was refused, or failed, is repeated after a pause, and those that are admitted meanwhile count, too.
* **CPU of the client**: of its process, imports excluded.
* **The check**: the relay and the server must have counted the same (mocklimit's `/mocklimit/stats`, the emulator's tally). A run with other counts is marked.

There are two servers, so that no result rests on the project's own: **the emulator** of this project ([its page](emulator.md)), and
**[mocklimit](https://pypi.org/project/mocklimit/)** {mocklimit}, by other authors. mocklimit is configured with OpenAI's headers, and charges a request a
quarter of the bytes of its body, and 100 tokens of output. Its refusals have a `retry-after` in whole seconds. Their text names tokens in every case, and
the time until the bucket is full instead of the wait.

Weaknesses: There is one run for each row. The machine is shared, and 500 workers in Python need a core of it in the first second. A burst of a minute's
worth comes first, so a run of {ideal_s:g} s says little of an hour. A limiter that gets the true costs is measured without its estimates. Answers of a real
provider take longer than {LATENCY_S:g} s. The worlds were chosen by the authors of one of the limiters.
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


def _body(report: Mapping[str, Any]) -> str:
    results: list[Result] = report["results"]
    machine, loads = report["machine"], [one["load"] for one in results if "load" in one]
    quick = "" if not report["quick"] else (
        "**These figures are of short runs, which show that the benchmark works. They are not for comparisons.**\n\n"
    )  # fmt: skip
    parts = [
        "# Comparison with peers",
        "paceline and ten other ways to stay below a rate limit, on the same workloads, in one run.",
        quick + f"`{report['command']}`, {len(results)} runs in {report['minutes']:.0f} minutes. {machine}{_pythons(report['versions'])}, load {min(loads, default=0):.1f} to"
        f" {max(loads, default=0):.1f} before the runs. The figures are in [report.json]({RAW}), with the counts of every half second.",
        "## Summary",
        'Refused requests · share of the ideal speed, against mocklimit, in columns with * against the emulator. "done" is the part that was answered, where the run was stopped or requests failed for good, as after the 8 retries of an SDK.',
        summary(results), _method(report["ideal_s"], report["versions"].get("mocklimit", "").partition(" on ")[0]).strip(), _uses(report["versions"]),
    ]  # fmt: skip
    for world in WORLDS:
        some = [one for one in results if one["world"] == world.name]
        servers = [server for server in SERVERS if any(one["server"] == server for one in some)]
        if not some:
            continue
        told = ", ".join(f"{amount:,} {unit}" for unit, amount in world.told.items())
        sizes = " and ".join(
            f"{max(one.get('requests', 0) for one in some if one['server'] == server):,} requests to {server}"
            for server in servers
        )
        parts += [
            f"## {world.name[0].upper()}{world.name[1:]}",
            f"{world.about} Allowed: {_limits(world.true)}. Told to the limiters: {told} a minute. Sent: {sizes}.",
            table(some),
            *(f"![Admitted requests over time: {world.name}, {server}]({IMAGES}/{_file(world, server)})" for server in servers),
        ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _pythons(versions: Mapping[str, str]) -> str:
    """The interpreters of the peers: some of them need a newer one."""
    found = sorted({text.partition(" on ")[2] for name, text in versions.items() if name != "paceline"} - {""})
    return f" for paceline and the benchmark, {', '.join(found)} for the peers" if found else ""


def _file(world: World, server: str) -> str:
    return f"{world.name.replace(' ', '_')}_{server}.svg"


def write(folder: Path, report: Mapping[str, Any]) -> None:
    """Write the page, its pictures and the raw JSON below ``folder``."""
    images = folder / IMAGES
    images.mkdir(parents=True, exist_ok=True)
    for old in images.glob("*.svg"):
        old.unlink()
    worlds = {world.name: world for world in WORLDS}
    for (name, server), some in groupby(report["results"], lambda one: (one["world"], one["server"])):
        text = picture(worlds[name], server, list(some), report["ideal_s"], report["step_s"])
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
    told = (
        "500 workers before [mocklimit](https://pypi.org/project/mocklimit/), a server that other people wrote. In *half the limits* each limiter is told"
        f" twice what the server allows. {report['date']}: [method, versions and pictures](docs/{PAGE})."
    )  # fmt: skip
    block = f"{START}\n\n{told}\n\n{summary(report['results'], FRONT)}\n\n{END}"
    readme.write_text(re.sub(f"{re.escape(START)}.*?{re.escape(END)}", lambda _: block, text, flags=re.DOTALL), "utf-8")
