"""Who has used what: requests, tokens and dollars that are charged, by name and day, over processes and restarts."""

from __future__ import annotations

import datetime as dt
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final

from paceline.core.queue import LaneSpec
from paceline.core.results import SettingsError, StoreError
from paceline.limiter.limiter import Limiter
from paceline.providers.base import Usage
from paceline.shared.worker import StoreWorker
from paceline.stores.tallies import KEEP_DAYS, Row, Rows, Tallies, added, tallies_beside, today

log = logging.getLogger("paceline")

FIELDS: Final = ("requests", "input_tokens", "cached_tokens", "output_tokens", "usd", "unpriced_requests")
"""What is counted. Cached tokens are a part of the input. The dollars are of the requests whose price is known."""

DAYS: Final = 31
"""The days of a report that names none."""

ROWS_MAX: Final = 50_000
"""How many rows a process remembers, the latest days first: 20 MB, and a year of 100 names."""

ROWS_TOLD: Final = 1_000
"""How many rows are told at once: Redis serves no other client meanwhile, for some milliseconds."""

PART: Final = 100
"""To read what other processes have told takes one part in so many of the time, however much that is."""

WITNESS: Final = "\t"
"""In place of a name in the row that shows whether the place still has what this process has told; no key can have it. No other process tells that row."""

PARTS: Final = ("key", "team", "user")
"""What a name tells of a request, where it tells more than its key; the team and the user may be missing."""

NO_TEAM: Final = "-"

Sums = dict[tuple[int, str], list[float]]
"""Sums by the day, counted from 1970 in UTC, and the name."""

_EPOCH: Final = dt.date(1970, 1, 1)
_BETWEEN: Final = "\t"  # the parts of a name


def counted_name(key: str, team: str = "", user: str = "") -> str:
    """The name under which the requests of a key are counted. A request counts for the team that its key had then."""
    return _BETWEEN.join((key, team, user)).rstrip(_BETWEEN)


def part_of(name: str, by: str) -> str:
    """What a sum by one of :data:`PARTS` calls the requests of ``name``: a user with the key, or the key alone for one client."""
    key, team, user = (*name.split(_BETWEEN), "", "")[:3]
    return {"key": key, "team": team or NO_TEAM, "user": f"{key}/{user}" if user else key}[by]


class Remembered:
    """The rows of this process, and others' as far as they were read: a place that has lost them is told them again.

    Each process has rows of its own in the place where the sums of all are kept, so none counts twice.

    Args:
        place: Where the sums of all processes are.
    """

    def __init__(self, place: Tallies) -> None:
        self._place, self._who = place, os.urandom(8).hex()
        self._rows: Rows = {}
        self._untold: dict[Row, None] = {}  # the rows that the place may not have as they are
        self._told = 0  # how often it was told any
        self._copied_days, self._copy_s = 0, 0.0  # how far back others were read, and when they are read next

    def write(self, news: Sums) -> None:
        """Write what is new, and what the place has lost.

        Raises:
            StoreError: It cannot be written now; the next call tries it again.
        """
        for (day, name), sums in news.items():
            row = day, name, self._who
            self._rows[row] = added(self._rows.get(row), sums)
            self._untold[row] = None
        self._tell()
        if not self._untold and time.monotonic() >= self._copy_s:
            self._copy()
        if not self._told:  # what others have told may be lost, too
            self._tell()

    def _tell(self) -> None:
        """Tell what the place may not have: all that is known, if it has lost what it was told before."""
        witness, again = (today(), WITNESS, self._who), False
        while self._untold or self._rows:
            told = list(islice(self._untold, ROWS_TOLD))
            number = self._told + bool(told) or 1
            had = self._place.tell({witness: [float(number)]} | {row: self._rows[row] for row in told})
            lost, self._told = had[0] < self._told, number
            for row in told:
                del self._untold[row]
            if lost:  # or this is another day
                if again:  # it loses all that it is told: the next call tries it
                    return
                again, self._untold = True, dict.fromkeys(self._rows)
            if not self._untold:
                return

    def _copy(self) -> None:
        """Remember what the place has of others: a part of the days that were not read yet, and what is new."""
        began_s, day = time.monotonic(), today()
        found = self._place.read(day - 1, day)
        if self._copied_days < KEEP_DAYS and len(self._rows) < ROWS_MAX:
            found |= self._place.read(day - self._copied_days - DAYS, day - self._copied_days)
            self._copied_days += DAYS
        for row, sums in found.items():
            if row[1] != WITNESS and (row not in self._rows or self._rows[row][0] < sums[0]):
                self._rows[row] = sums
        if len(self._rows) > ROWS_MAX:  # those to which this process may still add come first
            kept = sorted(self._rows, key=lambda row: (row[2] == self._who and row[0] >= day - 1, row[0]))
            self._rows = {row: self._rows[row] for row in kept[-ROWS_MAX:]}
        now_s = time.monotonic()
        self._copy_s = now_s + PART * (now_s - began_s)


class Tally:
    """Counts what is charged for the requests of a limiter.

    Args:
        limiter: The limiter.
        name_of: Returns the name under which the requests of a lane are counted, as :func:`counted_name` makes it.
        kept: Where the sums of all processes are; by default beside the store of the limiter.
    """

    def __init__(self, limiter: Limiter, name_of: Callable[[LaneSpec], str], kept: Tallies | None = None) -> None:
        worker = limiter.pacer.pools.worker
        self._kept = kept or tallies_beside(worker.store if isinstance(worker, StoreWorker) else None)
        self._allowances, self._name_of = limiter.pacer.allowances, name_of
        self._lock, self._writing = threading.RLock(), threading.Lock()  # a finalizer may end a request within a count
        self._own: dict[str, list[float]] = {}  # of this process, since its start
        self._news: Sums = {}  # since the last writing
        self._remembered = Remembered(self._kept)
        self._priced = True

    def begin(self) -> None:
        """Count from now on. It may take a second, in which the prices are read."""
        try:
            self._allowances.price("", "", Usage())
        except SettingsError:  # the extra `budget` is not installed
            self._priced = False
        self._allowances.tally = self.count

    def count(self, lane: LaneSpec, provider: str, model: str, usage: Usage) -> None:
        """Count a request that is charged."""
        usd = self._allowances.price(provider, model, usage) if self._priced else usage.usd
        day, name = today(), self._name_of(lane)
        tokens = usage.input_tokens, usage.cached_tokens, usage.output_tokens
        amounts = 1, *tokens, 0 if usd is None else usd, int(usd is None)
        with self._lock:
            for sums in (
                self._news.setdefault((day, name), [0] * len(FIELDS)),
                self._own.setdefault(name, [0] * len(FIELDS)),
            ):
                for number, amount in enumerate(amounts):
                    sums[number] += amount

    def since_start(self, by: str = "key") -> dict[str, dict[str, float]]:
        """The sums of this process by one of :data:`PARTS`, in the order of the first requests."""
        found: dict[str, list[float]] = {}
        with self._lock:
            for name, sums in list(self._own.items()):
                found[part_of(name, by)] = added(found.get(part_of(name, by)), sums)
        return {name: _row(sums) for name, sums in found.items()}

    def flush(self) -> None:
        """Write what is new, and what the place has lost.

        Raises:
            StoreError: It cannot be written now; the next call tries it again.
        """
        with self._writing:
            with self._lock:
                news, self._news = self._news, {}
            self._remembered.write(news)

    def end(self) -> None:
        """Write what is left."""
        try:
            self.flush()
        except StoreError as error:
            log.warning("the latest usage is not stored: %s", error)

    def report(
        self, key: str | None, first: dt.date | None = None, last: dt.date | None = None, by: str = "key"
    ) -> dict[str, Any]:
        """The sums of all processes and of those before, by key, team or user, and day.

        Args:
            key: The key whose requests they are; ``None``: all.
            first: The first day, in UTC; ``None``: ``DAYS`` in all.
            last: The last one; ``None``: today.
            by: One of :data:`PARTS`.

        Raises:
            StoreError: They cannot be read now.
        """
        end = today() if last is None else (last - _EPOCH).days
        begin = max(end - DAYS + 1 if first is None else (first - _EPOCH).days, today() - KEEP_DAYS)
        self.flush()
        none = {**dict.fromkeys(FIELDS, 0)}
        names: dict[str, Any] = {} if key is None or by != "key" else {key: {**none, "days": {}}}
        found: Sums = {}
        for (day, name, _), sums in self._kept.read(begin, end).items():
            if name != WITNESS and key in (None, part_of(name, "key")):
                where = day, part_of(name, by)
                found[where] = added(found.get(where), sums)
        for (day, name), sums in sorted(found.items()):
            row = _row(sums)
            total = names.setdefault(name, {**none, "days": {}})
            total |= _row([total[field] + row[field] for field in FIELDS])
            total["days"][_text(day)] = row
        return {"from": _text(begin), "to": _text(end), "priced": self._priced, f"{by}s": names}


def _row(sums: Sequence[float]) -> dict[str, float]:
    """Sums by field: whole numbers, and dollars without the last digits, which are noise."""
    return {
        field: round(amount, 9) if field == "usd" else round(amount) for field, amount in zip(FIELDS, sums, strict=True)
    }


def _text(day: int) -> str:
    return (_EPOCH + dt.timedelta(day)).isoformat()
