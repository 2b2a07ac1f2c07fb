"""What answers have stated of the windows of each account's plan."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Final, TypedDict

from paceline.core.allowance import Shut
from paceline.core.plan import Held, Weighed
from paceline.core.quota import NS
from paceline.pacing.forks import reentrant_lock
from paceline.pacing.plan_use import UNNAMED, Client, SessionStatus, WindowUse, amount_of
from paceline.providers.base import Usage

if TYPE_CHECKING:
    from paceline.providers.plan_headers import PlanReading

log = logging.getLogger("paceline")

WINDOWS_MAX: Final = 32
"""The windows of one account that are kept, the newest: their names are a server's."""

KEPT_MAX: Final = 4_000
"""The accounts whose windows are kept, the latest ones: an answer may come when its account is forgotten."""


class PlanStatus(TypedDict):
    """One window of an account's plan: docs/status.md has the meaning of each field."""

    account: Annotated[str, "Its provider, with the digits of its account."]
    window: Annotated[str, "By its length and family, e.g. `5h` or `codex 7d`."]
    used: Annotated[float | None, "The share of it that is used, 0 to 1."]
    ends_s: Annotated[float | None, "Seconds until it ends."]
    ends_at: Annotated[str | None, "When it ends, in UTC."]
    status: Annotated[str | None, "In the provider's words: `allowed`, `rejected`."]
    length_s: float | None
    scope: Annotated[str | None, "What it is about, if not all of the account."]
    stated_ago_s: float
    state: Annotated[str, "`open`, `held`, `shut`, `probing` or `opening`."]
    test_s: Annotated[float | None, "Seconds until a waiting request goes."]
    waiting: Annotated[int, "The requests that wait for it."]
    own: Annotated[float | None, "The share of it that went through this process."]
    requests_left: Annotated[int | None, "How many similar requests are left, if that is known."]
    sessions: Annotated[list[SessionStatus], "Who has used `own`, as the clients claim."]


UNNAMED_WINDOW: Final = "unnamed"
"""The window of refusals that name none, and state an end that is too far for a rate."""


def is_shut(row: Mapping[str, Any]) -> bool:
    """Whether a window refuses requests, by its row in the status."""
    return row["state"] in ("shut", "probing")


class Plans:
    """The windows by account: the name of its provider, ``anthropic@7f3a91``. Nothing of a credential."""

    def __init__(self) -> None:
        self._windows: dict[str, dict[str, WindowUse]] = {}
        self._told: set[str] = set()
        self._lock = reentrant_lock()  # a finalizer may end a request within a charge

    def read(
        self, account: str, readings: Iterable[PlanReading], *, served: bool = False, sent_s: float = inf
    ) -> list[PlanReading]:
        """Keep what an answer has stated; the readings that are news.

        Args:
            account: The account.
            readings: What was stated.
            served: It is no refusal; the first one that states that it costs money is told.
            sent_s: When its request was sent, since 1970.
        """
        with self._lock:
            windows = self._windows.setdefault(account, {})
            if len(self._windows) > KEPT_MAX:
                for first in list(self._windows)[:-KEPT_MAX]:
                    self.forget(first)
            new = []
            for reading in readings:
                use = windows.get(reading.window) or WindowUse()
                if not use.read(reading, sent_s):
                    continue
                windows.pop(reading.window, None)  # the newest one is the last
                windows[reading.window] = use
                new.append(reading)
                if served and reading.paid and account not in self._told:
                    self._told.add(account)
                    log.warning(
                        "%s: requests cost money, as the provider states: a window is used up; with overage = 'wait' in"
                        " [plans] they wait for the next window",
                        account,
                    )
            for oldest in list(windows)[:-WINDOWS_MAX]:
                del windows[oldest]
            return new

    def charge(self, account: str, windows: Collection[str], usage: Usage, client: Client = UNNAMED) -> None:
        """Count a request, by what its answer has used, in the windows that the answer has stated."""
        amount = amount_of(usage)
        with self._lock:
            known = self._windows.get(account, {})
            for window in windows:
                if (use := known.get(window)) is not None:
                    use.charge(client, amount)

    def weighed(self, account: str) -> dict[str, Weighed]:
        """By window what requests use of it, 0 while that is not known."""
        with self._lock:
            return {window: use.weighed for window, use in self._windows.get(account, {}).items()}

    def news(self, account: str, readings: Iterable[PlanReading]) -> dict[str, str]:
        """By window what other processes are to be told of those readings that were kept."""
        with self._lock:
            windows = self._windows.get(account, {})
            return {
                one.window: json.dumps([one.used, one.until_s, one.length_s, one.status, one.scope, one.paid])
                for one in readings
                if one.window in windows and windows[one.window].note(one)
            }

    def hear(self, account: str, window: str, text: str, at_ns: int) -> PlanReading:
        """Keep what another process has noted at ``at_ns``, and return it.

        Raises:
            ValueError, TypeError: It is of another version.
        """
        from paceline.providers.plan_headers import PlanReading

        used, until_s, length_s, status, scope, paid = json.loads(text)
        reading = PlanReading(window, used, until_s, status, length_s, scope, at_ns / NS, paid)
        with self._lock:
            self.read(account, [reading])
            self._windows[account][window].note(reading)
        return reading

    def forget(self, account: str) -> None:
        """Drop what is known of an account."""
        with self._lock:
            self._windows.pop(account, None)
            self._told.discard(account)

    def status(
        self, now_ns: int, shut: Iterable[tuple[str, str | None, Shut]] = (), held: Iterable[tuple[str, Held]] = ()
    ) -> list[PlanStatus]:
        """The windows that have not ended, by account and length, and those that are used up.

        Of another one nothing is known.

        Args:
            now_ns: The present, since 1970.
            shut: Those that are used up: the account, the model (``None``: all of them), and the state.
            held: The windows with a share that is left to others: the account, and who waits.
        """
        from paceline.providers.plan_headers import SCOPE_MAX, PlanReading

        now_s = now_ns / NS
        with self._lock:
            kept = [(account, use) for account, uses in self._windows.items() for use in uses.values()]
            kept.sort(key=lambda one: (one[0], one[1].reading.length_s or inf, one[1].reading.window))
            rows: dict[tuple[str, ...], PlanStatus] = {
                (account, use.reading.window): _status(account, use.reading, use, now_s) for account, use in kept
            }
        models_of: dict[tuple[str, ...], list[str]] = {}
        for account, model, one in shut:
            window = one.window or UNNAMED_WINDOW
            name = (account, window) if one.window else (account, window, model or "")
            unread = PlanReading(window, scope=model)  # no header has stated it
            # At the instant 0, so that it was stated 0 s ago: ``_close`` puts the age of the refusal there.
            row = rows.setdefault(name, _status(account, unread, WindowUse(), 0.0))
            if model is not None and row["scope"] is not None:  # what its name is taken to mean may be wrong
                models = models_of.setdefault(name, [])
                models.append(model)
                row["scope"] = ", ".join(models)[:SCOPE_MAX]
            _close(row, one, now_ns)
        for account, waits in held:
            if (open_row := rows.get((account, waits.window))) is not None and open_row["state"] == "open":
                open_row["state"], open_row["waiting"] = "held", waits.waiting
                open_row["test_s"] = round((waits.until_ns - now_ns) / NS, 3)
        return [row for row in rows.values() if row["state"] != "open" or _is_told(row)]


def _is_told(row: PlanStatus) -> bool:
    """Whether the row of a window that is open says something: its share, or an end to come."""
    return row["used"] is not None if row["ends_s"] is None else row["ends_s"] > 0


def _status(account: str, reading: PlanReading, use: WindowUse, now_s: float) -> PlanStatus:
    ends_at_s = None if reading.until_s is None else reading.read_s + reading.until_s
    if ends_at_s is not None and ends_at_s <= now_s:
        use = WindowUse()  # of the window that follows nothing is known
    return {
        "account": account,
        "window": reading.window,
        "used": None if reading.used is None else round(reading.used, 4),
        "ends_s": None if ends_at_s is None else round(ends_at_s - now_s, 3),
        "ends_at": None if ends_at_s is None else utc(ends_at_s),
        "status": reading.status,
        "length_s": reading.length_s,
        "scope": reading.scope,
        "stated_ago_s": round(max(now_s - reading.read_s, 0.0), 3),
        "state": "open",
        "test_s": None,
        "waiting": 0,
        "own": use.own,
        "requests_left": use.requests_left,
        "sessions": use.sessions(),
    }


def _close(row: PlanStatus, shut: Shut, now_ns: int) -> None:
    """Say in the row of a window that it is used up. Several models may share one, each with waiters of its own."""
    row["state"], row["waiting"] = shut.state, row["waiting"] + shut.waiting
    if shut.state == "shut" and shut.waiting:  # one of them is the test
        test_s = round(max(shut.test_ns - now_ns, 0) / NS, 3)
        row["test_s"] = test_s if row["test_s"] is None else min(test_s, row["test_s"])
    if shut.began_ns:
        row["stated_ago_s"] = min(row["stated_ago_s"] or inf, round((now_ns - shut.began_ns) / NS, 3))
    if shut.ends_ns:
        row["ends_s"], row["ends_at"] = round((shut.ends_ns - now_ns) / NS, 3), utc(shut.ends_ns / NS)


def utc(at_s: float) -> str | None:
    """An instant in UTC, in whole seconds; ``None`` beyond the calendar."""
    try:
        return datetime.fromtimestamp(round(at_s), UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return None
