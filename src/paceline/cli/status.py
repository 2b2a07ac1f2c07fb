"""``paceline status``: the pools of a running program, or of the store in which several programs share quotas."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import click
import httpx2

from paceline.batch.job import state_file
from paceline.batch.notes import FINISHED, RUNNING, read_runs
from paceline.batch.reach import reason
from paceline.batch.summary import in_time
from paceline.cli.options import KEY, print_table
from paceline.core.quota import NS, Rule
from paceline.shared.ledger import SharedLedger
from paceline.shared.messages import Message, Reply
from paceline.stores import NO_STORE, StoreError, open_store
from paceline.stores.notes import Notes, notes_beside
from paceline.stores.redis import RedisStore
from paceline.stores.sqlite import ADVICE, APPLICATION_ID, FORMAT, SQLiteStore, read_only

BYTES_MAX: Final = 64 * 2**20
"""A status page of ten thousand pools has a tenth of this."""

RUNS_SHOWN: Final = 20
SHARDS_SHOWN: Final = 5
"""The rows of runs, and the numbers of shards in one of them."""

UNREACHED = 1
_RIGHTS = "it cannot be read: this user needs to read the file, its -wal and its -shm, and to enter its folder"
EPILOG = "Exit codes: 0 shown, 1 nothing could be read there, 2 a wrong option."


class ReadError(Exception):
    """There is nothing to show; the message says why."""


@click.command(name="status", epilog=EPILOG)
@click.argument("url", required=False)
@KEY
@click.option("--store", metavar="URL", help="Read this store instead, e.g. sqlite:quotas.db or redis://HOST.")
@click.option("--timeout", "timeout_s", default=5.0, type=click.FloatRange(0.1, 600), help="Seconds, in all.")
@click.option("--json", "as_json", is_flag=True, help="The same as JSON on standard output, with each shard of a run.")
def command(url: str | None, key: str | None, store: str | None, timeout_s: float, *, as_json: bool) -> None:
    """Show the pools of the program whose status page (paceline.status_app) is at URL: what is left, how many requests
    wait, and which limit binds.

    With --store: the pools in a store, and the progress of each `paceline run` that uses it, with all of its shards.
    Without both: the same for the file in which `paceline run` keeps this user's quotas.
    """  # noqa: D205  (click prints this as it stands)
    if url is not None and store is not None:
        raise click.UsageError("give a URL or --store, not both")
    try:
        status, problems = (_fetch(url, key, timeout_s), []) if url is not None else read_store(store, timeout_s)
    except ReadError as error:
        click.echo(f"paceline status: {error}", err=True)
        raise SystemExit(UNREACHED) from None
    if as_json:
        click.echo(json.dumps(status, indent=2))
    else:
        _print(status)
    for problem in problems:
        click.echo(f"paceline status: {plain(problem)}", err=True)


def _print(status: Mapping[str, Any]) -> None:
    """Print the pools, and the runs if there are any."""
    header = ("pool", "quota", "left", "spent", "waiting", "in flight", "state")
    rows = [row for name, pool in status["pools"].items() for row in _rows(name, pool)]
    print_table(header, rows, empty="no pool has been used yet", group=4)
    for row in status.get("unpaced") or ():
        click.echo(
            plain(f"not paced: {row['kind']} at {row['host'] or '-'}, {row['count']:,}: {row['remedy']}"), err=True
        )
    if runs := status.get("runs"):
        click.echo()
        print_table(
            ("run", "done", "failed", "429", "requests/min", "time left", "shards"), list(map(_run, runs[:RUNS_SHOWN]))
        )
        if len(runs) > RUNS_SHOWN:
            click.echo(f"{len(runs) - RUNS_SHOWN:,} runs that reported earlier are listed with --json", err=True)


def page_url(url: str) -> httpx2.URL:
    """The address of a page, without a password and a query.

    Raises:
        click.UsageError: It is no address.
    """
    try:
        parts = httpx2.URL(url if "://" in url else f"http://{url}")
        where = parts.copy_with(userinfo=b"", query=None, fragment=None)
    except httpx2.InvalidURL:
        parts = where = httpx2.URL()
    if not parts.host or parts.scheme not in ("http", "https"):
        raise click.UsageError(f"{url!r}: write an address like 'http://127.0.0.1:8000/status'")
    return where


def _fetch(url: str, key: str | None, timeout_s: float) -> Mapping[str, Any]:
    """Read the status page at ``url``."""
    where = page_url(url)
    try:
        code, body = asyncio.run(_get(where, key, timeout_s))
    except TimeoutError:
        raise ReadError(f"{where} did not answer within {timeout_s:g} s") from None
    except httpx2.HTTPError as error:
        raise ReadError(
            f"{where} cannot be read ({reason(error)}): is the program running, and is this its page?"
        ) from None
    try:
        page = json.loads(body)
    except ValueError:
        page = None
    if code != 200:
        message = page.get("error") if isinstance(page, dict) else None
        if isinstance(message, dict):  # the gateway's form
            message = message.get("message")
        if code in (401, 403):
            message = f"{message or 'it needs a key'} (give one with --key, or in PACELINE_KEY)"
        raise ReadError(f"{where} answers {code}" + (f": {plain(message)}" if message else ": is this a status page?"))
    if isinstance(page, dict) and isinstance(page.get("quotas"), list):  # the page of a single pool
        page = {"pools": {where.path.partition("/status/")[2]: page}}
    if not isinstance(page, dict) or not isinstance(page.get("pools"), dict):
        raise ReadError(f"{where} answers, but not as paceline.status_app does")
    return page


async def _get(url: httpx2.URL, key: str | None, timeout_s: float) -> tuple[int, bytes]:
    """The status code and the body; ``timeout_s`` is for all of it, however slowly the answer comes."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    client = httpx2.AsyncClient(timeout=None, trust_env=False, follow_redirects=True, headers=headers)
    async with asyncio.timeout(timeout_s), client, client.stream("GET", url) as response:
        body = bytearray()
        async for part in response.aiter_bytes():
            body += part
            if len(body) > BYTES_MAX:
                raise httpx2.ReadError(f"more than {BYTES_MAX // 2**20} MB")
        return response.status_code, bytes(body)


def read_store(url: str | None, timeout_s: float) -> tuple[dict[str, Any], list[str]]:
    """The pools and the runs in the store at ``url``, or in the file that `paceline run` uses; and what cannot be shown."""
    if url == NO_STORE:
        raise click.UsageError(
            "--store memory: is no store, and each process has its own quotas: serve paceline.status_app there, and give"
            " the URL of its page"
        )
    try:
        store = open_store(url, timeout_s=timeout_s) if url is not None else SQLiteStore(_state_file())
    except StoreError as error:
        raise click.UsageError(f"--store: {error}") from None
    place = notes_beside(store, timeout_s=timeout_s)
    assert place is not None
    if not isinstance(store, RedisStore):
        status = _read(Path(store.url.removeprefix("sqlite:")), timeout_s)
        return status, _add_runs(status, place)
    status = {"pools": {}}
    try:
        problems = _add_runs(status, place, required=True)
        try:
            names = store.pools()
        except StoreError as error:  # a user without the right to look at all keys
            return status, [*problems, f"the pools are not shown: {error}"]
        deadline_s, looks = time.monotonic() + timeout_s, Message("paceline status", 0, leaving=True)
        for name in names:
            if time.monotonic() > deadline_s:
                return status, [*problems, f"not all pools are shown: {store.url} took longer than {timeout_s:g} s"]
            status["pools"][name] = _standing(store.exchange(name, looks))
    except StoreError as error:
        raise ReadError(str(error)) from None
    finally:
        store.close()
    return status, problems


def _add_runs(status: dict[str, Any], place: Notes, *, required: bool = False) -> list[str]:
    """Add the runs to ``status``, if there are any; return what cannot be shown."""
    try:
        runs, unreadable = read_runs(place)
    except StoreError as error:
        if required:
            raise
        return [f"the runs are not shown: {error}"]
    if runs:
        status["runs"] = runs
    return [f"notes of runs that cannot be read: {unreadable:,}; were they written by paceline?"] if unreadable else []


def _state_file() -> Path:
    """The file that `paceline run` uses."""
    try:
        file = state_file(os.environ).expanduser()
    except RuntimeError:
        raise click.UsageError("give a program's URL, or --store (this user has no home folder)") from None
    if not os.path.exists(file):  # noqa: PTH110  (Path's own raises where the folder may not be entered)
        raise click.UsageError(f"give a program's URL, or --store (`paceline run` has kept nothing in {file} yet)")
    return file


def _read(file: Path, timeout_s: float) -> dict[str, Any]:
    """The pools in a SQLite store; nothing is written."""
    name = f"sqlite:{file}"
    with suppress(PermissionError):
        if not file.exists():
            raise ReadError(f"{name}: there is no such file")
        if file.is_dir():
            raise ReadError(f"{name}: this is a folder: give the path of a file in it")
    if not os.access(file, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        raise ReadError(f"{name}: {_RIGHTS}")
    try:
        with closing(read_only(file, timeout_s)) as database:
            if database.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
                raise ReadError(f"{name}: this is another program's database: give another path")
            rows = database.execute("SELECT name, format, state FROM pools ORDER BY name").fetchall()
        if any(form > FORMAT for _, form, _ in rows):
            raise ReadError(f"{name}: written by a newer paceline: update this one")
        now_ns, message = time.time_ns(), Message("paceline status", 0)  # for a copy that is not written back
        ledgers = {pool: SharedLedger.load(json.loads(state)) for pool, _, state in rows}
        return {"pools": {pool: _standing(ledger.apply(now_ns, message)) for pool, ledger in ledgers.items()}}
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        advice = ADVICE.get(code, "it cannot be read")
        if code == sqlite3.SQLITE_BUSY:
            advice = f"it is locked by another process for longer than {timeout_s:g} s"
        elif code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            advice = _RIGHTS
        raise ReadError(f"{name}: {advice} ({error})") from None
    except (LookupError, TypeError, ValueError, AttributeError):
        raise ReadError(f"{name}: the quotas in it cannot be read: was it written by paceline?") from None


def _standing(reply: Reply) -> dict[str, Any]:
    """A pool in its store, in the shape of :meth:`Limiter.status`; the store does not know the waiting requests."""
    quotas = []
    for standing in reply.standings:
        learned = standing.learned
        assert learned is not None  # a process without a version gets all of it
        quota = learned.quota
        left = quota.amount - standing.used
        if quota.rule is Rule.BUCKET and not learned.spread:
            left = quota.burst - standing.lack_ns * learned.ceiling / quota.ns_per_unit
        shown = {"quota": str(quota), "unit": quota.unit, "limit": quota.amount}
        quotas.append(shown | {"remaining": round(left, 3), "spent": round(standing.spent, 3)})
    store = {"state": "read", "peers": reply.peers - 1}  # without this process
    return {"quotas": quotas, "cool_down_s": round(reply.pause_ns / NS, 3), "store": store}


def _rows(name: str, pool: Any) -> Iterator[tuple[str, ...]]:
    """A row for each quota."""
    if not isinstance(pool, dict):
        return
    of_pool = (plain(pool.get("waiting", "-")), plain(pool.get("in_flight", "-")), plain(_state(pool)))
    for quota in pool.get("quotas", ()):
        if isinstance(quota, dict):
            left, spent = _amount(quota.get("remaining")), _amount(quota.get("spent"))
            yield (plain(name), plain(quota.get("quota", "-")), left, spent, *of_pool)


def _state(pool: Mapping[str, Any]) -> str:
    """Why requests wait, the most important reason first."""
    store = pool.get("store") or {}
    if pool.get("stopped"):
        return f"stopped: {pool['stopped']}"
    parts = [f"cool-down {pool['cool_down_s']:g} s"] if pool.get("cool_down_s") else []
    if store.get("state") == "lost":
        parts.append(f"store lost: {store.get('mode')}")
    elif store:
        parts.append(f"processes: {store.get('peers')}")
    if pool.get("binds") and not pool.get("cool_down_s"):
        parts.append(f"limited by {pool['binds']}")
    return ", ".join(parts) or "-"


def _run(run: Mapping[str, Any]) -> tuple[str, ...]:
    """The row of a run."""
    about = "about " if run["about"] else ""
    done = f"{_amount(run['done'])}/{about}{_amount(run['requests'])}"
    left = "-" if run["left_s"] is None else in_time(run["left_s"])
    counts = (_amount(run["failed"]), _amount(run["refused"]), f"{run['per_min']:,.0f}", left)
    return (plain(run["input"]), done, *counts, _shards(run))


def _shards(run: Mapping[str, Any]) -> str:
    """How many shards of a run are in each state, with the numbers of those that need a look."""
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
    return f"{amount:,.3f}".rstrip("0").rstrip(".") if isinstance(amount, int | float) else "-"


def plain(value: object) -> str:
    """A value from another program, without characters that control a terminal."""
    return "".join(char if char.isprintable() else "?" for char in str(value)[:500])
