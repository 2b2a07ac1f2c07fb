"""``paceline status``: the pools of a running program, or of the store in which several programs share quotas."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, Final

import click

from paceline.cli import plan_words
from paceline.cli.guides import Helped
from paceline.cli.line import GATEWAY, plain, show, text
from paceline.cli.options import KEY, print_table, timeout
from paceline.cli.pages import ReadError, fetch, page_url
from paceline.core.hints import counted
from paceline.core.quota import brief
from paceline.core.results import NO_ANSWER

RUNS_SHOWN: Final = 20
SHARDS_SHOWN: Final = 5
"""The rows of runs, and the numbers of shards in one of them."""

PAGE: Final = 8000
"""The port of the page."""


@click.command(cls=Helped, name="status")
@click.argument("url", required=False)
@KEY
@click.option("--store", metavar="URL", help="Read this store instead: sqlite:quotas.db, redis://HOST, ...")
@click.option(
    "--page",
    is_flag=False,
    flag_value=PAGE,
    type=click.IntRange(0, 65_535),
    metavar="[PORT]",
    help=f"Serve the store as a live page, at this port of this machine ({PAGE}), until Ctrl-C.",
)
@timeout("The longest wait for the response, in seconds. [default: 5, with --line 1]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every shard of a run.")
@click.option(
    "--line", is_flag=True, help="Print the windows of plans in one line, for a status line. The exit code is 0."
)
def command(
    url: str | None,
    key: str | None,
    store: str | None,
    page: int | None,
    timeout_s: float | None,
    *,
    as_json: bool,
    line: bool,
) -> None:
    """Show what is left of the quotas, and what waits.

    URL is a gateway, or a program that serves its status (paceline.status_app). --store shows the pools in a store, and the progress of every
    `paceline run` that uses it, with all of its shards. If you give neither: the gateway of the `paceline exec` around this command. If there is
    none: the quotas of this user's runs, or with --line the gateway at 127.0.0.1:8080.
    """
    _refuse_pairs(url, store, page, as_json=as_json, line=line)
    if line:
        show(text(url, key, 1.0 if timeout_s is None else timeout_s))
        return
    timeout_s = 5.0 if timeout_s is None else timeout_s
    if page is not None:
        _serve(store, timeout_s, page)
        return
    from paceline.cli.standing import read_store

    if url is None and store is None:
        url = os.environ.get(GATEWAY) or None
    status, problems = (_fetch(url, key, timeout_s), []) if url is not None else read_store(store, timeout_s)
    if as_json:
        click.echo(json.dumps(status, indent=2))
    else:
        _print(status)
    for problem in problems:
        click.echo(f"paceline status: {plain(problem)}", err=True)


def _refuse_pairs(url: str | None, store: str | None, page: int | None, *, as_json: bool, line: bool) -> None:
    """Refuse options that exclude each other."""
    if line and (store is not None or page is not None or as_json):
        raise click.UsageError("--line shows the plans of a gateway or a program: give its URL, or nothing else")
    if url is not None and store is not None:
        raise click.UsageError("give a URL or --store, not both")
    if page is not None and (url is not None or as_json):
        raise click.UsageError("--page shows a store: give no URL, which has a page of its own, and no --json")


def _serve(store: str | None, timeout_s: float, port: int) -> None:
    """Serve the page over a store until the user ends it."""
    from paceline.cli.standing import Reader
    from paceline.telemetry.server import StatusServer

    with closing(Reader(store, timeout_s)) as reader:
        try:
            reader.status()
            server = StatusServer(reader, "127.0.0.1", port, None)
        except ImportError as error:
            raise click.UsageError(f"--page: {error}") from None
        except OSError as error:
            raise click.UsageError(f"--page {port}: the port cannot be used: {error.strerror}") from None
        click.echo(f"paceline status: page at {server.url} (Ctrl-C ends it)", err=True)
        with suppress(KeyboardInterrupt):
            while True:
                time.sleep(1.0)
        server.close()


def _print(status: Mapping[str, Any]) -> None:
    """Print the pools, and the windows of plans and the runs if there are any."""
    header = ("pool", "quota", "left", "spent", "waiting", "in flight", "state")
    rows = [row for name, pool in status["pools"].items() for row in _rows(name, pool)]
    plans = status.get("plans")
    if rows or not plans:
        print_table(header, rows, empty="no pool has been used yet", group=4)
    if plans:
        if rows:
            click.echo()
        _print_plans(plans)
    for remark in _remarks(status):
        click.echo(plain(remark), err=True)
    if runs := status.get("runs"):
        click.echo()
        header = ("run", "done", "failed", "429", "requests/min", "time left", "shards")
        print_table(header, [_run(run) for run in runs[:RUNS_SHOWN]])
        if len(runs) > RUNS_SHOWN:
            click.echo(f"{len(runs) - RUNS_SHOWN:,} runs that reported earlier are listed with --json", err=True)


def _remarks(status: Mapping[str, Any]) -> Iterator[str]:
    """What is to be done: about answers, about requests that are not paced, about the data set."""
    for row in status.get("answers") or ():
        if row["remedy"]:
            yield f"{row['pool']} at {row['upstream']}: {row['remedy']} ({counted(row['count'], 'time')})"
    for row in status.get("unpaced") or ():
        yield f"not paced: {row['kind']} at {row['host'] or '-'}, {row['count']:,}: {row['remedy']}"
    if remark := (status.get("facts") or {}).get("remark"):
        yield remark


def _fetch(url: str, key: str | None, timeout_s: float) -> Mapping[str, Any]:
    """Read the status page at ``url``."""
    where = page_url(url)
    page = fetch(where, key, timeout_s)
    if isinstance(page, dict) and isinstance(page.get("quotas"), list):  # the page of a single pool
        page = {"pools": {where.path.partition("/status/")[2]: page}}
    is_tally = isinstance(page, dict) and isinstance(page.get("answers"), dict)  # an emulator's, which has pools, too
    if is_tally or not isinstance(page, dict) or not isinstance(page.get("pools"), dict):
        raise ReadError(f"{where} answers, but not as paceline.status_app does")
    return page


def _rows(name: str, pool: Any) -> Iterator[tuple[str, ...]]:
    """A row for each quota, or one for a pool without any that has something to say."""
    if not isinstance(pool, dict):
        return
    state = _state(pool)
    of_pool = (plain(pool.get("waiting", "-")), plain(pool.get("in_flight", "-")), plain(state))
    for quota in pool.get("quotas") or ([] if state == "-" else [{}]):
        if isinstance(quota, dict):
            left, spent = _amount(quota.get("remaining")), _amount(quota.get("spent"))
            yield (plain(name), plain(brief(str(quota.get("quota", "-")))), left, spent, *of_pool)


def _state(pool: Mapping[str, Any]) -> str:
    """Why requests wait, the most important reason first."""
    if pool.get("stopped"):
        return f"stopped: {pool['stopped']}"
    silent = pool.get("binds") == NO_ANSWER  # its pauses are its own, one for each probe, and no wish of the provider's
    parts = [NO_ANSWER] if silent else []
    if pool.get("cool_down_s") and not silent:
        parts.append(f"cool-down {pool['cool_down_s']:g} s {pool.get('paused') or ''}".rstrip())
    if share := pool.get("by_chance"):
        parts.append(f"about {share:.0%} refused by chance")
    parts += _processes(pool)
    if pool.get("binds") and not pool.get("cool_down_s") and not silent:
        parts.append(f"limited by {brief(pool['binds'])}")
    return ", ".join(parts) or "-"


def _processes(pool: Mapping[str, Any]) -> Iterator[str]:
    """What a store says of the processes that share a pool."""
    store = pool.get("store") or {}
    if store.get("state") == "lost":
        yield f"store lost: {store.get('mode')}"
    elif store:
        yield f"processes: {store.get('peers')}"
        if lost := (pool.get("processes") or {}).get("silent"):
            yield f"silent: {lost}"


def _print_plans(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the windows of plans, and who has used them."""
    now_s = time.time()
    cells = [
        (
            plain(row["account"]),
            plain(plan_words.name(row)),
            plan_words.share(row["used"]),
            plan_words.share(row.get("own")),
            plan_words.ends(row, now_s),
            plan_words.left(row, now_s),
        )
        for row in rows
    ]
    print_table(("account", "window", "used", "here", "ends", "left"), cells, group=6)
    for row in plan_words.by_account(rows):
        click.echo(plain(f"{row['account']}, of {plan_words.name(row)} by session: {plan_words.sessions(row)}"))


def _run(run: Mapping[str, Any]) -> tuple[str, ...]:
    """The row of a run."""
    from paceline.batch.summary import in_time

    about = "about " if run["about"] else ""
    done = f"{_amount(run['done'])}/{about}{_amount(run['requests'])}"
    left = "-" if run["left_s"] is None else in_time(run["left_s"])
    counts = (_amount(run["failed"]), _amount(run["refused"]), f"{run['per_min']:,.0f}", left)
    return (plain(run["input"]), done, *counts, _shards(run))


def _shards(run: Mapping[str, Any]) -> str:
    """How many shards of a run are in each state, with the numbers of those that need a look."""
    from paceline.batch.notes import FINISHED, RUNNING

    reported = f"{run['reported']:,} of {run['shards']:,} reported"
    parts = []
    for state, count in run["states"].items():
        numbers = [f"{each['shard']}" for each in run["each"] if each["state"] == state][: SHARDS_SHOWN + 1]
        if len(numbers) > SHARDS_SHOWN:
            numbers[-1] = "..."
        named = f" ({', '.join(numbers)})" if state not in (RUNNING, FINISHED) and run["shards"] > 1 else ""
        parts += [f"{count:,} {state}{named}"] if count else []
    return f"{reported}: {', '.join(parts)}"


def _amount(amount: object) -> str:
    # The status has rounded it, by its unit: dollars to six digits.
    return f"{amount:,.6f}".rstrip("0").rstrip(".") if isinstance(amount, int | float) else "-"
