"""``python -m benchmarks [--only NAME] [--quick] [--markdown] [--peers NAMES]``: measure, print the table; ``--report DIR``: the peers."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from importlib import import_module
from pathlib import Path

from benchmarks.table import Row, machine, show

ITEMS = {
    "acquire": "acquire and settle, uncontended",
    "waiters": "ten thousand waiters",
    "imports": "the import",
    "wrapper": "a paced HTTP client",
    "batch": "`paceline run` without a limit that binds",
    "modes": "`paceline run` one by one, in batches, and until a deadline",
    "learned": "known and unknown limits, in virtual time",
    "unknown": "limits that nobody states, and capacity that moves, in virtual time",
    "plan": "`paceline plan` beside `paceline run`",
    "stores": "one quota for many processes: Redis and SQLite",
    "speed": "500 workers under a known limit",
    "gateway": "the gateway beside other gateways",
}


def main() -> None:
    """Measure every item, or one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", choices=ITEMS, help="measure one item")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, shorter runs")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--peers", default="litellm,portkey", help="the gateways beside paceline's; empty for none")
    parser.add_argument("--report", type=Path, metavar="DIR", help="compare with the peers, and write a page to DIR")
    parser.add_argument("--render", action="store_true", help="with --report: measure nothing, write its page again")
    parser.add_argument("--gateways", action="store_true", help="with --report: the gateways alone")
    for name in ("world", "server", "peer"):
        parser.add_argument(
            f"--{name}", action="append", default=[], help=f"with --report: this {name} only; repeatable"
        )
    options = parser.parse_args()
    if options.report:
        only = {name: getattr(options, name) for name in ("world", "server", "peer")}
        given = [word if word != str(options.report) else "DIR" for word in sys.argv[1:]]
        command = shlex.join(["python", "-m", "benchmarks", *given])
        report = import_module("benchmarks.compare").report
        chosen = {"measure": not options.render, "gateways": options.gateways}
        report(options.report, quick=options.quick, only=only, command=command, **chosen)
        return
    print(machine())
    rows: list[Row] = []
    for name, heading in ITEMS.items():
        if options.only in (None, name):
            began = time.monotonic()
            peers = {"peers": options.peers.split(",") if options.peers else []} if name == "gateway" else {}
            rows += import_module(f"benchmarks.{name}").measure(options.quick, **peers)
            print(f"  {heading}: {time.monotonic() - began:.0f} s", flush=True)
    show(rows, markdown=options.markdown)


if __name__ == "__main__":
    main()
