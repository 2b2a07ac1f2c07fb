"""The windows of plans in words, for a terminal. It imports next to nothing: a status line starts anew each second."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from paceline.core.hints import counted

SESSIONS_SHOWN: Final = 10
DAY_S: Final = 86_400

Row = Mapping[str, Any]
"""One window, as the status has it."""


def name(row: Row) -> str:
    """``5 h``, ``7 d, Fable``."""
    family = r"(?:_\w+)?" if row["scope"] else r"\b"
    named = re.sub(rf"(\d+)([dhm]){family}", r"\1 \2", str(row["window"]), count=1)
    return f"{named}, {row['scope']}" if row["scope"] else named


def share(value: float | None) -> str:
    """A share in percent; ``-`` for an unknown one."""
    return "-" if value is None else f"{100 * value:.0f}%"


def is_shut(row: Row) -> bool:
    """Whether the window refuses requests: as :func:`paceline.pacing.plans.is_shut`, which takes longer to import."""
    state = row.get("state")
    return bool(row["status"] == "rejected" if state is None else state in ("shut", "probing"))


def clock(ends_s: float, now_s: float) -> str:
    """When a window ends, by the clock of this machine: ``11:40``, ``Thu 09:00``, ``3 Dec 09:00``."""
    at = time.localtime(now_s + ends_s)
    if at.tm_yday == time.localtime(now_s).tm_yday:
        return time.strftime("%H:%M", at)
    return f"{time.strftime('%a', at) if ends_s < 6 * DAY_S else time.strftime('%d %b', at).lstrip('0')} {time.strftime('%H:%M', at)}"


def span(seconds: float) -> str:
    """``2 h 31 min``, ``40 s``."""
    if seconds < 59.5:
        return f"{max(round(seconds), 1)} s"
    minutes = max(round(seconds / 60), 1)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 2_880:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1_440} d {minutes % 1_440 // 60} h"


def ends(row: Row, now_s: float) -> str:
    """``11:40, in 1 h 12 min``; ``11:40, past`` if it refuses still; ``-`` for an unknown end."""
    if row["ends_s"] is None:
        return "-"
    try:
        at = clock(row["ends_s"], now_s)
    except (OverflowError, ValueError, OSError):  # beyond the calendar
        return "-"
    if row["ends_s"] <= 0:
        return f"{at}, past"
    return f"{at}, in {span(row['ends_s'])}" if row["ends_s"] < DAY_S else at


def is_ahead(row: Row) -> bool:
    """Whether a window has an end that is known, and still to come: one may refuse beyond its end."""
    return row["ends_s"] is not None and row["ends_s"] > 0


def left(row: Row, now_s: float) -> str:
    """What is left; of a window that is used up, who waits, and when the next test goes."""
    if is_shut(row):
        who = f": {waiting(row['waiting'])}" if row.get("waiting") else ""
        test = f", tested next at {clock(row['test_s'], now_s)}" if who and row.get("test_s") is not None else ""
        return f"used up{who}{tested_now(row) or test}"
    if row.get("state") == "held" and row["waiting"]:
        return f"{waiting(row['waiting'])}{until_test(row, now_s)}, as [plans] says"
    count = row.get("requests_left")
    return "-" if count is None else f"about {counted(count, 'request')} like these"


def until_test(row: Row, now_s: float) -> str:
    """`` until 11:40``, when a waiting request goes; empty where that is not known."""
    return "" if row.get("test_s") is None else f" until {clock(row['test_s'], now_s)}"


def tested_now(row: Row) -> str:
    """That a request is under way which shows whether a window is used up still; empty where there is none."""
    return ", tested now" if row.get("state") == "probing" else ""


def waiting(count: int) -> str:
    """``3 requests wait``."""
    return f"{counted(count, 'request')} wait{'s' * (count == 1)}"


def used_up(row: Row, now_s: float) -> str:
    """``anthropic@7f3a91: 5 h used up, 3 requests wait until 11:40 (2 h 31 min)``."""
    until = ""
    if is_ahead(row):
        until = f" until {ends(row, now_s).partition(',')[0]} ({span(row['ends_s'])})"
    who = f", {waiting(row['waiting'])}" if row.get("waiting") else ""
    return f"{row['account']}: {name(row)} used up{who}{until}"


def sessions(row: Row) -> str:
    """Who has used what went through here: ``19778304 (claude) 18%, its 142 subagents 21%; 01a2203c (codex) 2%``."""
    parts = []
    for one in row["sessions"][:SESSIONS_SHOWN]:
        agents, who = one["subagents"], f"{one['session']} ({one['program']})" if one["session"] else "others"
        its = f", its {counted(agents, 'subagent')} {share(one['subagents_own'])}" if agents else ""
        parts.append(f"{who} {share(one['own'])}{its}")
    more = len(row["sessions"]) - len(parts)
    return "; ".join([*parts, f"{more:,} more"] if more > 0 else parts)


def by_account(rows: Sequence[Row]) -> list[Row]:
    """Of each account the first window that has sessions that have used some of it, and is about all of it."""
    found: dict[str, Row] = {}
    for row in rows:
        shown = (one["session"] and (one["own"] or one["subagents_own"]) for one in row.get("sessions", ()))
        if not row["scope"] and any(shown):
            found.setdefault(row["account"], row)
    return list(found.values())


def line(rows: Sequence[Row], now_s: float, most: int = 500) -> str:
    """All windows in one line, those that are used up first: ``5 h 62% (41% here) until 11:40 · 7 d 31%``.

    Args:
        rows: The windows.
        now_s: The present, since 1970.
        most: The characters that it may have: the last windows are left out, and counted.
    """
    several, parts = len({row["account"] for row in rows}) > 1, []
    for row in sorted(rows, key=lambda one: not is_shut(one)):
        here = f" ({share(row['own'])} here)" if row.get("own") else ""
        until = "" if not is_ahead(row) else f" until {ends(row, now_s).partition(',')[0]}"
        if is_shut(row):
            who = f", {row['waiting']:,} wait" if row.get("waiting") else ""
            text = f"{name(row)} used up{here}{who}{tested_now(row) or until}"
        else:
            text = f"{name(row)} {share(row['used'])}{here}"
            if row.get("state") == "held":
                text += f", {row['waiting']:,} held back{until_test(row, now_s)}"
            elif row["ends_s"] is not None and row["ends_s"] < DAY_S:
                text += until
        parts.append(f"{row['account']} {text}" if several else text)
    for shown in range(len(parts), 0, -1):
        more = [f"and {len(parts) - shown:,} more"] if shown < len(parts) else []
        if len(found := " · ".join(parts[:shown] + more)) <= most:
            return found
    return f"{len(parts):,} windows"
