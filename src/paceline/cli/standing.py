"""What is in a store, in the shape of a status: its pools, and the runs that use them."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import click

from paceline.batch.job import state_file
from paceline.batch.notes import read_runs
from paceline.core.quota import NS, Rule
from paceline.shared.ledger import SharedLedger
from paceline.shared.messages import Message, Reply
from paceline.stores import NO_STORE, StoreError, open_store
from paceline.stores.notes import Notes, notes_beside
from paceline.stores.redis import RedisStore
from paceline.stores.sqlite import ADVICE, APPLICATION_ID, FORMAT, SQLiteStore, read_only

_RIGHTS = "it cannot be read: this user needs to read the file, its -wal and its -shm, and to enter its folder"


class ReadError(Exception):
    """There is nothing to show; the message says why."""


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
