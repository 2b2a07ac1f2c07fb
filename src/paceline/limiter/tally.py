"""Who has used what: requests, tokens and dollars that are charged, by name and day, over processes and restarts."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from paceline.core.results import QuotaError, StoreError
from paceline.limiter.limiter import Limiter
from paceline.providers.base import Usage
from paceline.shared.worker import StoreWorker
from paceline.stores.tallies import KEEP_DAYS, Sums, Tallies, added, tallies_beside, today

log = logging.getLogger("paceline")

FIELDS: Final = ("requests", "input_tokens", "cached_tokens", "output_tokens", "usd", "unpriced_requests")
"""What is counted. Cached tokens are a part of the input. The dollars are of the requests whose price is known."""

DAYS: Final = 31
"""The days of a report that names none."""

_EPOCH: Final = dt.date(1970, 1, 1)


class Tally:
    """Counts what is charged for the requests of a limiter.

    Args:
        limiter: The limiter.
        name_of: Returns the name under which the requests of a lane are counted.
        kept: Where the sums of all processes are; by default beside the store of the limiter.
    """

    def __init__(self, limiter: Limiter, name_of: Callable[[str], str], kept: Tallies | None = None) -> None:
        worker = limiter.pacer.pools.worker
        self._kept = kept or tallies_beside(worker.store if isinstance(worker, StoreWorker) else None)
        self._allowances, self._name_of = limiter.pacer.allowances, name_of
        self._lock, self._writing = threading.RLock(), threading.Lock()  # a finalizer may end a request within a count
        self._own: dict[str, list[float]] = {}  # of this process, since its start, up to the last writing
        self._news: Sums = {}  # since then
        self._unsure: Sums = {}  # that may be written
        self._number = 0  # of those
        self._priced = True

    def begin(self) -> None:
        """Count from now on. It may take a second, in which the prices are read."""
        try:
            self._allowances.price("", "", Usage())
        except QuotaError:  # the extra `budget` is not installed
            self._priced = False
        self._allowances.tally = self.count

    def count(self, lane: str, provider: str, model: str, usage: Usage) -> None:
        """Count a request that is charged."""
        usd = self._allowances.price(provider, model, usage) if self._priced else usage.usd
        where = today(), self._name_of(lane)
        with self._lock:
            sums = self._news.setdefault(where, [0] * len(FIELDS))
            sums[0] += 1
            sums[1] += usage.input_tokens
            sums[2] += usage.cached_tokens
            sums[3] += usage.output_tokens
            if usd is None:
                sums[5] += 1
            else:
                sums[4] += usd

    def since_start(self) -> dict[str, dict[str, float]]:
        """The sums of this process by name, in the order of the first requests."""
        with self._lock:
            return {name: _row(sums) for name, sums in _with(self._own, dict(self._news)).items()}

    def flush(self) -> None:
        """Write what is new.

        Raises:
            StoreError: It cannot be written now; the next call tries it again.
        """
        with self._writing:
            if not self._unsure:
                with self._lock:
                    self._unsure, self._news = self._news, {}
                    self._own = _with(self._own, self._unsure)
                self._number += 1
            if self._unsure:
                self._kept.add(self._unsure, self._number)
                self._unsure = {}

    def end(self) -> None:
        """Write what is left."""
        try:
            self.flush()  # what was tried before
            self.flush()
        except StoreError as error:
            log.warning("what was used last is not kept: %s", error)

    def report(self, name: str | None, first: dt.date | None = None, last: dt.date | None = None) -> dict[str, Any]:
        """The sums of all processes and of those before, by name and day.

        Args:
            name: The name; ``None``: all.
            first: The first day, in UTC; ``None``: ``DAYS`` in all.
            last: The last one; ``None``: today.

        Raises:
            StoreError: They cannot be read now.
        """
        end = today() if last is None else (last - _EPOCH).days
        begin = max(end - DAYS + 1 if first is None else (first - _EPOCH).days, today() - KEEP_DAYS)
        self.flush()
        names: dict[str, Any] = {} if name is None else {name: {**dict.fromkeys(FIELDS, 0), "days": {}}}
        for (day, key), sums in sorted(self._kept.read(begin, end).items()):
            if name in (None, key):
                row = _row(sums)
                total = names.setdefault(key, {**dict.fromkeys(FIELDS, 0), "days": {}})
                total |= _row([total[field] + row[field] for field in FIELDS])
                total["days"][_text(day)] = row
        return {"from": _text(begin), "to": _text(end), "priced": self._priced, "keys": names}


def _with(own: dict[str, list[float]], news: Sums) -> dict[str, list[float]]:
    found = dict(own)
    for (_, name), sums in news.items():
        found[name] = added(found.get(name), sums)
    return found


def _row(sums: Sequence[float]) -> dict[str, float]:
    """Sums by field: whole numbers, and dollars without the last digits, which are noise."""
    return {
        field: round(amount, 9) if field == "usd" else round(amount) for field, amount in zip(FIELDS, sums, strict=True)
    }


def _text(day: int) -> str:
    return (_EPOCH + dt.timedelta(day)).isoformat()
