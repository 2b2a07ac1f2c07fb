"""What is in a store, in the shape of a status: its pools, and the runs that use them."""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import click

from paceline.batch.job import state_file
from paceline.batch.notes import read_runs
from paceline.cli.pages import ReadError
from paceline.core.budget import ALONE
from paceline.core.quota import NS, Rule, ns_per_unit
from paceline.core.results import COOL_DOWN, NOT_QUOTAS, explaining
from paceline.pacing.accounts import DIGEST_BYTES, SHOWN
from paceline.pacing.status import rounded
from paceline.shared.ledger import SharedLedger
from paceline.shared.messages import Message, StoreReply
from paceline.shared.meters import BOUNDLESS, FOUND
from paceline.shared.peers import Seen
from paceline.stores import NO_STORE, StoreError, open_store
from paceline.stores.entries import read_only
from paceline.stores.notes import Notes, notes_beside
from paceline.stores.redis import RedisStore
from paceline.stores.sqlite import ADVICE, APPLICATION_ID, FORMAT, SQLiteStore

_RIGHTS = "it cannot be read: this user needs to read the file, its -wal and its -shm, and to enter its folder"


LOOKS = "paceline status"
"""The name under which a store is read."""

NAMES_S = 10.0
"""How long the names of the pools in a Redis are taken for true."""

_DIGEST = re.compile(rf"(?<=@)[0-9a-f]{{{2 * DIGEST_BYTES}}}(?=/|$)")

KEPT_S = 0.8
"""For how long a reading is shown: a page asks each second."""

PROCESSES_SHOWN = 50
"""How many processes of a pool have a row."""

NAME_SHOWN = 8
"""How many characters are shown of the name of a process that an earlier version has given: it has no machine."""


class Reader:
    """Reads a store again and again; what is not read from a SQLite file is read over one connection.

    Args:
        url: The store; ``None``: the file that `paceline run` uses.
        timeout_s: How long a reading may take.

    Raises:
        click.UsageError: It is no store, or there is none.
    """

    def __init__(self, url: str | None, timeout_s: float) -> None:
        if url == NO_STORE:
            raise click.UsageError(
                "--store memory: is no store, and each process has its own quotas: serve paceline.status_app there, and"
                " give the URL of its page"
            )
        with explaining("--store", kind=click.UsageError, of=StoreError):
            self._store = open_store(url, timeout_s=timeout_s) if url is not None else SQLiteStore(_state_file())
        self._timeout_s = timeout_s
        place = notes_beside(self._store, timeout_s=timeout_s)
        assert place is not None
        self._place = place
        self._names: tuple[float, list[str]] = -math.inf, []
        self._lock, self._until_s = threading.Lock(), -math.inf
        self._kept: dict[str, Any] | ReadError = {}

    def read(self) -> tuple[dict[str, Any], list[str]]:
        """The pools and the runs in the store, and what cannot be shown.

        Raises:
            ReadError: The store cannot be read.
        """
        status, problems = self._found()
        return status | {"pools": _shown(status["pools"])}, problems

    def _found(self) -> tuple[dict[str, Any], list[str]]:
        store = self._store
        if not isinstance(store, RedisStore):
            status = _read(Path(store.url.removeprefix("sqlite:")), self._timeout_s)
            return status, _add_runs(status, self._place)
        status = {"pools": {}}
        try:
            problems = _add_runs(status, self._place, required=True)
            try:
                names = self._pools(store)
            except StoreError as error:  # a user without the right to look at all keys
                return status, [*problems, f"the pools are not shown: {error}"]
            deadline_s, looks = time.monotonic() + self._timeout_s, Message(LOOKS, 0, leaving=True)
            for name in names:
                if time.monotonic() > deadline_s:
                    problems.append(f"not all pools are shown: {store.url} took longer than {self._timeout_s:g} s")
                    break
                status["pools"][name] = _standing(store.exchange(name, looks), store.processes(name))
        except StoreError as error:
            raise ReadError(str(error)) from None
        return status, problems

    def _pools(self, store: RedisStore) -> list[str]:
        """The names of the pools; to find them costs a look at all keys of the server."""
        found_s, names = self._names
        if time.monotonic() - found_s >= NAMES_S:
            names = store.pools()
            self._names = time.monotonic(), names
        return names

    def status(self) -> dict[str, Any]:
        """The pools and the runs in the store, for the page, as of ``KEPT_S`` ago at most: many that look at once are one reading.

        Raises:
            ReadError: The store cannot be read.
        """
        with self._lock:
            if time.monotonic() >= self._until_s:
                try:
                    status, problems = self.read()
                    self._kept = status | {"problems": problems}
                except ReadError as error:
                    self._kept = error
                self._until_s = time.monotonic() + KEPT_S
            if isinstance(self._kept, ReadError):
                raise ReadError(str(self._kept))
            return self._kept

    def close(self) -> None:
        """Close the connection."""
        self._store.close()


def read_store(url: str | None, timeout_s: float) -> tuple[dict[str, Any], list[str]]:
    """The pools and the runs in the store at ``url``, or in the file that `paceline run` uses; and what cannot be shown."""
    with closing(Reader(url, timeout_s)) as reader:
        return reader.read()


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
        raise click.UsageError(f"give a program's URL, or --store (`paceline run` has stored nothing in {file} yet)")
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
        now_ns, message = time.time_ns(), Message(LOOKS, 0)  # for a copy that is not written back
        pools: dict[str, Any] = {}
        for pool, _, state in rows:
            ledger = SharedLedger.load(json.loads(state))
            pools[pool] = _standing(ledger.apply(now_ns, message), ledger.processes(now_ns))
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
    return {"pools": pools}


def _shown(pools: dict[str, Any]) -> dict[str, Any]:
    """The pools, with six digits of the digests of accounts in their names; with more where two would be the same."""
    digests = {digest for name in pools for digest in _DIGEST.findall(name)}
    shown = next(n for n in range(SHOWN, 2 * DIGEST_BYTES + 1) if len({one[:n] for one in digests}) == len(digests))
    return {_DIGEST.sub(lambda one: one[0][:shown], name): pool for name, pool in pools.items()}


def _standing(reply: StoreReply, seen: Iterable[Seen]) -> dict[str, Any]:
    """A pool in its store, in the shape of :meth:`Limiter.status`; the store does not know the waiting requests."""
    quotas = []
    for standing in reply.standings:
        learned = standing.learned
        assert learned is not None  # a process without a version gets all of it
        quota = learned.quota
        # Of a budget, and of a limit that was not found yet: these bound nothing that the user knows.
        if quota.unit == ALONE or (quota.unit.startswith(FOUND) and quota.amount >= BOUNDLESS):
            continue
        left, reset_s = quota.amount - standing.used, None
        if quota.rule is Rule.BUCKET and not learned.spread:
            left = quota.burst - standing.lack_ns * learned.ceiling / ns_per_unit(quota)
            reset_s = round(standing.lack_ns / NS, 3)
        status = {
            "quota": str(quota),
            "unit": quota.unit,
            "limit": quota.amount,
            "remaining": rounded(quota.unit, left),
            "reset_s": reset_s,
            "period_s": quota.period_s,
            "rule": quota.rule.value,
            "spent": rounded(quota.unit, standing.spent),
            "refused": rounded(quota.unit, learned.refused),
            "learned": learned.epoch > 0,
        }
        quotas.append(status)
    store = {"state": "read", "peers": reply.peers - 1}  # without this process
    pause_s = round(reply.pause_ns / NS, 3)
    paused = NOT_QUOTAS[COOL_DOWN].paused if pause_s else None  # a store knows of refusals only
    return {"quotas": quotas, "cool_down_s": pause_s, "paused": paused, "store": store, "processes": _processes(seen)}


_ORDER = ("silent", "alive", "idle", "left")


def _processes(seen: Iterable[Seen]) -> dict[str, Any]:
    """The processes of a pool: their numbers, and the first, those that need a look before the others."""
    found = [one for one in seen if one.who != LOOKS]
    counts = {state: sum(one.state == state for one in found) for state in _ORDER}
    found.sort(key=lambda one: (_ORDER.index(one.state), not one.waits, one.ago_s))
    each = [
        {
            "name": one.who.rpartition(":")[0] or one.who[:NAME_SHOWN],
            "state": one.state,
            "seen_ago_s": round(one.ago_s, 3),
            "part": round(one.part, 4),
            "waits": one.waits,
        }
        for one in found[:PROCESSES_SHOWN]
    ]
    waiting = sum(one.waits and one.state == "alive" for one in found)
    return {"count": len(found), **counts, "waiting": waiting, "each": each}
