"""What each client key has used, as the gateway tells it."""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs

from paceline.core.results import StoreError, explaining
from paceline.gateway.errors import RequestError
from paceline.limiter.tally import NO_TEAM, PARTS, Tally

USAGE: Final = "/api/v1/usage"
"""The path of the report."""

FLUSH_S: Final = 5.0
"""The time between two writings: so much is lost when a process is killed."""

NO_KEY: Final = "-"
"""The name of all clients together, as long as they need no key; no key can have it."""


def report(tally: Tally, name: str | None, query: str) -> dict[str, Any]:
    """The answer to a request for what a key has used, or all (``None``).

    Args:
        tally: Counts.
        name: The name of the key.
        query: The query of the request: ``from`` and ``to`` are the first and the last day, ``by`` is ``key``, ``team`` or ``user``.

    Raises:
        RequestError: An option is invalid, or the sums cannot be read now.
    """
    first, last, by = _day(query, "from"), _day(query, "to"), parse_qs(query).get("by", ["key"])[0]
    if by not in PARTS:
        raise RequestError(400, "option", f"by must be one of {', '.join(PARTS)}")
    with explaining("the usage cannot be read now", kind=partial(RequestError, 503, "store"), of=StoreError):
        return tally.report(name, first, last, by)


def _day(query: str, name: str) -> dt.date | None:
    given = parse_qs(query).get(name)
    try:
        return dt.date.fromisoformat(given[0]) if given else None
    except ValueError:
        raise RequestError(400, "option", f"{name} must be a day such as 2026-11-01") from None


def sums_of(tally: Tally) -> dict[str, Any]:
    """What each key has used in this process, and each team, if there is one."""
    teams = tally.since_start("team")
    return {"keys": tally.since_start()} | ({"teams": teams} if teams.keys() - {NO_TEAM} else {})
