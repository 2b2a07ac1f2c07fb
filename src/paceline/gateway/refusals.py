"""The last refusal of a client's own credential, as the server gave it: the client knows its form, and tells its user of it."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from paceline.core.results import Refusal, RefusalScope
from paceline.gateway.connection import Headers
from paceline.pacing.accounts import Account, Payer
from paceline.pacing.scheduler import Scheduler

KEPT_MAX: Final = 16_384
"""Bytes in the body of a refusal that is kept; providers send some hundred."""

_CAUSED: Final = frozenset({"gave_up", "stopped", "never_fits"})
"""The words of refusals of paceline's own that always have one of the server as their cause."""

_AFTER: Final = frozenset({"timeout", "queue_full"})
"""The words of those that have it while the server asks to wait."""

_DROPPED: Final = frozenset({
    b"retry-after", b"retry-after-ms", b"x-ms-retry-after-ms", b"x-should-retry", b"content-length",
    b"content-encoding", b"set-cookie", b"transfer-encoding", b"connection", b"keep-alive", b"date",
})  # fmt: skip
"""The headers that are about another message, or are stated anew."""

_LEFT: Final = re.compile(rb'("resets_in_seconds"\s*:\s*)(\d+)')
"""The seconds to the end of a window in the body of ChatGPT's refusals, which pass while they are kept."""


@dataclass(frozen=True, slots=True)
class _Kept:
    status: int
    headers: Headers
    body: bytes
    at_s: float
    wait_s: float | None


class LastRefusal:
    """The last refusal of one request, or of one credential at one pool; an answer ends it.

    Args:
        credential: The digest of the credential; empty for a refusal of one request.
    """

    __slots__ = ("_kept", "credential")

    def __init__(self, credential: bytes = b"") -> None:
        self._kept: _Kept | None = None
        self.credential = credential

    def keep(self, status: int, headers: Headers, body: bytes, wait_s: float | None) -> None:
        """Keep a refusal, which has asked for a wait of ``wait_s`` or for none."""
        kept = [pair for pair in headers if pair[0] not in _DROPPED]
        self._kept = _Kept(status, kept, body, time.monotonic(), wait_s)

    def clear(self) -> None:
        """A request was answered."""
        self._kept = None

    def instead(
        self, word: str, wait_s: str | None, *, while_it_waits: bool = False
    ) -> tuple[int, Headers, bytes] | None:
        """The refusal in place of one of paceline's own, with what is left of its wait; ``None`` where that has another cause.

        Args:
            word: What paceline's own is called.
            wait_s: The wait that it states, for a refusal without one.
            while_it_waits: Whether a request that was not refused itself waits for the same end only until that has come.
        """
        kept = self._kept
        if kept is None:
            return None
        passed_s = time.monotonic() - kept.at_s
        left_s = (kept.wait_s or 0.0) - passed_s
        if word not in _CAUSED and (word not in _AFTER or (while_it_waits and left_s <= 0)):
            return None
        if left_s > 0:
            wait_s = str(math.ceil(left_s))
        headers = [(name, _left(name, value, int(passed_s))) for name, value in kept.headers]
        headers += [(b"x-should-retry", b"false"), (b"x-paceline", word.encode())]
        if wait_s is not None:
            headers.append((b"retry-after", wait_s.encode()))
        body = _LEFT.sub(lambda found: found[1] + b"%d" % max(int(found[2]) - int(passed_s), 0), kept.body)
        return kept.status, [*headers, (b"content-length", b"%d" % len(body))], body


def _left(name: bytes, value: bytes, passed_s: int) -> bytes:
    """A header that counts the seconds to an instant, as it is after some of them (``x-codex-primary-reset-after-seconds``)."""
    return b"%d" % max(int(value) - passed_s, 0) if name.endswith(b"-after-seconds") and value.isdigit() else value


class RequestRefusals:
    """The last refusal of one request, and of any with the same credential.

    Args:
        others: The last one of any to the same pool, and of any to the same account, about all that it sends; none without a credential.
    """

    __slots__ = ("_last", "_own")

    def __init__(self, *others: LastRefusal) -> None:
        self._own, self._last = LastRefusal(), others

    def keep(self, status: int, headers: Headers, body: bytes, refusal: Refusal) -> None:
        """Keep a refusal of the request."""
        about = self._last[: 1 + refusal.of_account] if refusal.scope is RefusalScope.POOL else ()
        for one in (self._own, *about):
            one.keep(status, headers, body, refusal.retry_after_s)

    def clear(self) -> None:
        """The request was answered."""
        for one in self._last:
            one.clear()

    def instead(self, word: str, wait_s: str | None) -> tuple[int, Headers, bytes] | None:
        """See :meth:`LastRefusal.instead`: by the refusal of this request, or else by another one."""
        others = (one.instead(word, wait_s, while_it_waits=True) for one in self._last)
        return self._own.instead(word, wait_s) or next(filter(None, others), None)


class CredentialRefusals:
    """The last refusals of clients' own credentials. An account has several by what its clients claim, which is not checked."""

    def __init__(self) -> None:
        self._last: WeakKeyDictionary[Scheduler | Account, LastRefusal] = WeakKeyDictionary()

    def of(self, scheduler: Scheduler, payer: Payer) -> RequestRefusals:
        """The last ones for a request to a pool."""
        return RequestRefusals(*(self._about(one, payer.credential) for one in (scheduler, payer.account)))

    def _about(self, which: Scheduler | Account, credential: bytes) -> LastRefusal:
        last = self._last.get(which)
        if last is None or last.credential != credential:
            last = self._last[which] = LastRefusal(credential)
        return last
