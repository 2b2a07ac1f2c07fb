"""What answers have stated of the windows of each account's plan."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypedDict

if TYPE_CHECKING:
    from paceline.providers.plan_headers import PlanReading

WINDOWS_MAX: Final = 32
"""The windows of one account that are kept, the newest: their names are a server's."""

KEPT_MAX: Final = 4_000
"""The accounts whose windows are kept, the latest ones: an answer may come when its account is forgotten."""


class PlanStatus(TypedDict):
    """One window of an account's plan: docs/status.md has the meaning of each field."""

    account: str
    window: str
    used: float | None
    ends_s: float | None
    ends_at: str | None
    status: str | None
    length_s: float | None
    scope: str | None
    stated_ago_s: float


class Plans:
    """The last reading of each window, by account: the name of its provider, ``anthropic@7f3a91``. Nothing of a credential."""

    def __init__(self) -> None:
        self._windows: dict[str, dict[str, PlanReading]] = {}

    def read(self, account: str, readings: Iterable[PlanReading]) -> None:
        """Keep what an answer has stated."""
        windows = self._windows.setdefault(account, {})
        for first in list(self._windows)[:-KEPT_MAX] if len(self._windows) > KEPT_MAX else ():
            self.forget(first)
        for reading in readings:
            windows.pop(reading.window, None)  # the newest one is the last
            windows[reading.window] = reading
        for oldest in list(windows)[:-WINDOWS_MAX]:
            windows.pop(oldest, None)

    def forget(self, account: str) -> None:
        """Drop what is known of an account."""
        self._windows.pop(account, None)

    def status(self, now_s: float) -> list[PlanStatus]:
        """The windows that have not ended, by account and length; of one that has, nothing is known.

        Args:
            now_s: The time in seconds since 1970.
        """
        kept = [(account, reading) for account, rows in list(self._windows.items()) for reading in list(rows.values())]
        kept.sort(key=lambda one: (one[0], one[1].length_s or 0.0, one[1].window))
        return [
            _status(account, reading, now_s)
            for account, reading in kept
            if reading.until_s is None or reading.read_s + reading.until_s > now_s
        ]


def _status(account: str, reading: PlanReading, now_s: float) -> PlanStatus:
    ends_at_s = None if reading.until_s is None else reading.read_s + reading.until_s
    return {
        "account": account,
        "window": reading.window,
        "used": None if reading.used is None else round(reading.used, 4),
        "ends_s": None if ends_at_s is None else round(ends_at_s - now_s, 3),
        "ends_at": None if ends_at_s is None else _utc(ends_at_s),
        "status": reading.status,
        "length_s": reading.length_s,
        "scope": reading.scope,
        "stated_ago_s": round(max(now_s - reading.read_s, 0.0), 3),
    }


def _utc(at_s: float) -> str | None:
    """An instant in UTC, in whole seconds; ``None`` beyond the calendar."""
    try:
        return datetime.fromtimestamp(round(at_s), UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return None
