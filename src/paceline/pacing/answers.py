"""What came of each attempt: counts by server, pool, status and cause, and what to do about the last trouble."""

from __future__ import annotations

from typing import Annotated, Final, TypedDict

from paceline.pacing.faults import Fault, fault_of, is_timeout
from paceline.pacing.forks import reentrant_lock

ROWS_MAX: Final = 1_000
"""The kinds of answers that are told apart; of a further one the server and the pool are ``other``: the names of models
are callers'."""

OTHER: Final = "other"

RECENT_S: Final = 900.0
"""How long a trouble is told if nothing is sent after it."""

ANSWERED, TIMEOUT, UNREADABLE = "answered", "timeout", "unreadable"

REMEDIES: Final = {
    "unreachable": "the server cannot be reached: check its address, that it runs, and proxies and firewalls on the"
    " way",
    "broken": "connections break before the end of an answer: check the server's log, and proxies and firewalls on the"
    " way",
    TIMEOUT: "the server does not answer in time: check its status page, or raise the timeout",
    "key": "the key is refused, or is not allowed to do this: check that it is the right key and has not expired",
    "money": "no money is left: top up, or raise the limit of the account",
    "capacity": "the servers are full: paceline tries again, and another region or model may have room",
    UNREADABLE: "the answers are not from this API: check that the address leads to the API, and not to a page or"
    " another service",
    "server": "the server fails: check the provider's status page",
}
"""What to do, by cause."""

PASSED: Final = frozenset({"rate", "growth", "never_fits", "request"})
"""Causes that say nothing of the server: paceline slows down, or the request itself is wrong."""


_BY_STATUS: Final = {401: "key", 403: "key", 429: "rate", 503: "capacity", 529: "capacity"}
_BY_FAULT: Final = {Fault.UNREACHED: "unreachable", Fault.BROKEN: "broken"}


def cause_of_status(status: int) -> str:
    """The cause of an answer by its status alone."""
    if status < 400:
        return ANSWERED
    return _BY_STATUS.get(status, "server" if status >= 500 else "request")


def cause_of_error(error: BaseException) -> str | None:
    """Why there is no answer; ``None`` where that says nothing of the server."""
    fault = fault_of(error)
    return TIMEOUT if fault is Fault.BROKEN and is_timeout(error) else None if fault is None else _BY_FAULT.get(fault)


class AnswerStatus(TypedDict):
    """The answers of one kind: docs/status.md has the meaning of each field."""

    upstream: Annotated[str, "The address of the server."]
    pool: str
    status: Annotated[int, "The status of the answers; 0: there was none."]
    cause: Annotated[str, "`answered`, a kind of refusal, `request`, `unreachable`, `key`, ..."]
    count: int
    last_ago_s: float
    remedy: Annotated[str | None, "What to do, until the server gives another response."]


class Answers:
    """Counts the answers of a limiter's attempts."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, int, str], tuple[int, float]] = {}  # how often, and when last
        self._lock = reentrant_lock()  # reentrant: a signal handler may send a request while this thread counts

    def count(self, upstream: str, pool: str, status: int, cause: str, now_s: float) -> None:
        """Count an answer, or that there was none.

        Args:
            upstream: The address of the server.
            pool: The pool that was charged, or its provider alone.
            status: The status of the answer; 0 for none.
            cause: What it is: ``answered``, a kind of refusal, ``request`` (the request is wrong), or a key of
                ``REMEDIES``.
            now_s: The time in seconds since 1970.
        """
        key = upstream.rpartition("://")[2], pool, status, cause
        with self._lock:
            if key not in self._seen and len(self._seen) >= ROWS_MAX:
                key = OTHER, OTHER, status, cause
            count, _ = self._seen.get(key, (0, now_s))
            self._seen[key] = count + 1, now_s

    def rows(self, now_s: float) -> list[AnswerStatus]:
        """All counts. A trouble has its remedy until another answer of the same server and pool is there."""
        with self._lock:
            seen = dict(self._seen)
        newest: dict[tuple[str, str], float] = {}
        for (upstream, pool, _, cause), (_, last_s) in seen.items():
            if cause not in PASSED:
                newest[upstream, pool] = max(last_s, newest.get((upstream, pool), last_s))
        return [
            {
                "upstream": upstream,
                "pool": pool,
                "status": status,
                "cause": cause,
                "count": count,
                "last_ago_s": round(max(now_s - last_s, 0.0), 3),
                "remedy": REMEDIES.get(cause)
                if last_s >= max(newest.get((upstream, pool), 0.0), now_s - RECENT_S)
                else None,
            }
            for (upstream, pool, status, cause), (count, last_s) in seen.items()
        ]
