"""``paceline status``: the pools of a running program, or of the store that keeps the quotas of many."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import click

from paceline.shared.ledger import SharedLedger

if TYPE_CHECKING:
    from paceline.shared.messages import Reply

BYTES_MAX = 64 * 1024 * 1024
"""A page of ten thousand pools has a tenth of this."""

UNREACHED = 1
_RIGHTS = "this user needs to read the file, its -wal and its -shm, and to enter its folder"
EPILOG = "Exit codes: 0 shown, 1 nothing could be read there, 2 a wrong option."

Pools = dict[str, Any]


class _ReadError(Exception):
    """There is nothing to show; the message says why."""


@click.command(name="status", epilog=EPILOG)
@click.argument("url", required=False)
@click.option("--store", metavar="URL", help="Read the store instead, e.g. sqlite:quotas.db.")
@click.option("--timeout", "timeout_s", default=5.0, type=click.FloatRange(0.1, 600), help="Seconds, in all.")
@click.option("--json", "as_json", is_flag=True, help="The same as JSON on standard output.")
def command(url: str | None, store: str | None, timeout_s: float, *, as_json: bool) -> None:
    """Show the pools of the program whose status page (paceline.status_app) is at URL: what is left, who waits, what binds.

    Without URL and --store: what `paceline run` keeps in this user's state file.
    """
    if url is not None and store is not None:
        raise click.UsageError("give a URL or --store, not both")
    try:
        status = _fetch(url, timeout_s) if url is not None else _read(_file(store), timeout_s)
    except _ReadError as error:
        click.echo(f"paceline status: {error}", err=True)
        raise SystemExit(UNREACHED) from None
    if as_json:
        click.echo(json.dumps(status, indent=2))
    else:
        _print(status["pools"])


def _fetch(url: str, timeout_s: float) -> Mapping[str, Any]:
    """What the status page at ``url`` says."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or parts.scheme not in ("http", "https"):
        raise click.UsageError(f"{url!r}: write an address like 'http://127.0.0.1:8000/status'")
    where = f"{parts.scheme}://{host}{f':{port}' if port else ''}{parts.path}"  # no user, no password
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    path = quote(parts.path or "/", safe="/%:")
    try:
        code, body = _get(kind(host, port, timeout=timeout_s), path, timeout_s)
        if code in _MOVED and not path.endswith("/"):  # where it is mounted, some servers want the slash
            code, body = _get(kind(host, port, timeout=timeout_s), f"{path}/", timeout_s)
    except TimeoutError:
        raise _ReadError(f"{where} did not answer within {timeout_s:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise _ReadError(f"{where} cannot be read ({reason}): is the program running, and is this its page?") from None
    return _page(where, code, body)


_MOVED = {301, 302, 307, 308}


def _get(connection: http.client.HTTPConnection, path: str, timeout_s: float) -> tuple[int, bytes]:
    """GET ``path``; hang up after ``timeout_s``, however slowly the answer trickles in."""
    late = threading.Event()

    def hang_up() -> None:
        late.set()
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    with closing(connection):
        connection.connect()
        sock = connection.sock
        timer = threading.Timer(timeout_s, hang_up)
        timer.start()
        try:
            connection.request("GET", path, headers={"Accept": "application/json"})
            response = connection.getresponse()
            body = response.read(BYTES_MAX + 1)
        except (OSError, http.client.HTTPException, ValueError):
            if late.is_set():
                raise TimeoutError from None
            raise
        finally:
            timer.cancel()
    if late.is_set():
        raise TimeoutError
    if len(body) > BYTES_MAX:
        raise http.client.HTTPException
    return response.status, body


def _page(where: str, code: int, body: bytes) -> Mapping[str, Any]:
    try:
        page = json.loads(body)
    except ValueError:
        page = None
    if code != 200:
        said = page.get("error") if isinstance(page, dict) else None
        raise _ReadError(f"{where} answers {code}" + (f": {_plain(said)}" if said else ": is this a status page?"))
    if isinstance(page, dict) and isinstance(page.get("quotas"), list):  # a single pool's
        page = {"pools": {where.partition("/status/")[2]: page}}
    if not isinstance(page, dict) or not isinstance(page.get("pools"), dict):
        raise _ReadError(f"{where} answers, but not as paceline.status_app does")
    return page


def _file(store: str | None) -> Path:
    """The file of the store that was asked for, or that `paceline run` uses."""
    from paceline.stores import StoreError, open_store

    if store is not None:
        kind = store.partition(":")[0].partition("+")[0]
        if kind in ("redis", "rediss", "unix", "valkey", "memory"):  # the rest can be a password
            raise click.UsageError(
                f"--store reads 'sqlite:PATH' only: for {kind}: serve paceline.status_app in a program that shares the"
                " store, and give the URL of its page"
            )
        try:
            return Path(open_store(store).url.removeprefix("sqlite:"))
        except StoreError as error:
            raise click.UsageError(f"--store reads 'sqlite:PATH' only: {error}") from None
    from paceline.batch.job import state_file

    try:
        file = state_file(os.environ).expanduser()
    except RuntimeError:
        raise click.UsageError("give a program's URL, or --store (this user has no home folder)") from None
    if not os.path.exists(file):  # noqa: PTH110  (Path's own raises where the folder may not be entered)
        raise click.UsageError(f"give a program's URL, or --store (`paceline run` has kept nothing in {file} yet)")
    return file


def _read(file: Path, timeout_s: float) -> Mapping[str, Any]:
    """The pools in a SQLite store, without taking part: nothing is written."""
    import sqlite3

    from paceline.shared.messages import Message
    from paceline.stores.sqlite import ADVICE, APPLICATION_ID, FORMAT

    with suppress(PermissionError):
        if not file.exists():
            raise _ReadError(f"sqlite:{file}: there is no such file")
        if file.is_dir():
            raise _ReadError(f"sqlite:{file}: this is a folder: give the path of a file in it")
    if not os.access(file, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        raise _ReadError(f"sqlite:{file}: it cannot be read: {_RIGHTS}")
    pools: Pools = {}
    # Nobody has it open where there is no log: then not even SQLite's own files need be made beside it.
    how = "mode=ro" if file.with_name(f"{file.name}-wal").exists() else "mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?{how}", uri=True, timeout=timeout_s)) as database:
            if database.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
                raise _ReadError(f"sqlite:{file}: this is another program's database: give another path")
            rows = database.execute("SELECT name, format, state FROM pools ORDER BY name").fetchall()
        now_ns = time.time_ns()
        for name, form, state in rows:
            if form > FORMAT:
                raise _ReadError(f"sqlite:{file}: written by a newer paceline: update this one")
            asked = Message("paceline status", 0)  # of a copy that nobody keeps
            pools[name] = _standing(SharedLedger.load(json.loads(state)).apply(now_ns, asked))
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        advice = {
            sqlite3.SQLITE_BUSY: f"it is locked by another process for longer than {timeout_s:g} s",
            sqlite3.SQLITE_READONLY: f"it cannot be read: {_RIGHTS}",
            sqlite3.SQLITE_CANTOPEN: f"it cannot be read: {_RIGHTS}",
        }.get(code, ADVICE.get(code, "it cannot be read"))
        raise _ReadError(f"sqlite:{file}: {advice} ({error})") from None
    except (LookupError, TypeError, ValueError, AttributeError):
        raise _ReadError(f"sqlite:{file}: books in it cannot be read: was it written by paceline?") from None
    return {"pools": pools}


def _standing(reply: Reply) -> dict[str, Any]:
    """A pool as its store has it, in the shape of :meth:`Limiter.status`; who waits is not written there."""
    from paceline.core.quota import NS, Rule

    quotas = []
    for standing in reply.standings:
        lesson = standing.learned
        assert lesson is not None  # all is told to who knows nothing
        quota = lesson.quota
        left = quota.amount - standing.used
        if quota.rule is Rule.BUCKET and not lesson.spread:
            left = quota.burst - standing.room_ns * lesson.ceiling / quota.ns_per_unit
        quotas.append(
            {"quota": str(quota), "unit": quota.unit, "limit": quota.amount, "remaining": round(left, 3)}
            | {"spent": round(standing.spent, 3)}
        )
    return {
        "quotas": quotas,
        "cool_down_s": round(reply.pause_ns / NS, 3),
        "store": {"state": "read", "peers": reply.peers - 1},  # but for us
    }


def _print(pools: Pools) -> None:
    """A table on a terminal, a row for each quota; elsewhere one tab-separated line a row."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    header = ("pool", "quota", "left", "spent", "waiting", "in flight", "state")
    rows = [row for name, pool in pools.items() for row in _rows(name, pool)]
    if not console.is_terminal:
        for line in (header, *rows):
            click.echo("\t".join(line))
        return
    table = Table(*header, box=None, pad_edge=False, header_style="bold")
    before = ""
    for row in rows:  # what is the pool's stands in its first row
        table.add_row(*(Text(cell) for cell in (row if row[0] != before else ("", *row[1:4]))))
        before = row[0]
    console.print(table if rows else "no pool has been used yet")


def _rows(name: str, pool: Any) -> list[tuple[str, ...]]:
    if not isinstance(pool, dict):
        return []
    quotas = [quota for quota in pool.get("quotas", ()) if isinstance(quota, dict)]
    of_pool = (_plain(pool.get("waiting", "-")), _plain(pool.get("in_flight", "-")), _plain(_state(pool)))
    rows: list[tuple[str, ...]] = []
    for quota in quotas:
        left, spent = _amount(quota.get("remaining")), _amount(quota.get("spent"))
        rows.append((_plain(name), _plain(quota.get("quota", "-")), left, spent, *of_pool))
    return rows


def _state(pool: Mapping[str, Any]) -> str:
    """What somebody who asks why nothing moves wants to know first."""
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


def _amount(amount: object) -> str:
    return f"{amount:,.3f}".rstrip("0").rstrip(".") if isinstance(amount, int | float) else "-"


def _plain(value: object) -> str:
    """What came from elsewhere, without what could steer a terminal."""
    return "".join(char if char.isprintable() else "?" for char in str(value)[:500])
