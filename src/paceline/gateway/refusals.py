"""The last refusal of a client's own credential, as the server gave it: the client knows its form, and tells its user of it."""

from __future__ import annotations

import math
import re
import time
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from paceline.core.results import Refusal, RefusalScope
from paceline.gateway.connection import Headers
from paceline.pacing.accounts import Account
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
class KeptRefusal:
    """A refusal as it came, with the digest of the credential that it is about, and the wait that it asks for."""

    credential: bytes
    status: int
    headers: Headers
    body: bytes
    wait_s: float | None
    at_s: float

    def instead(
        self, word: str, wait_s: str | None, *, while_it_waits: bool = False
    ) -> tuple[int, Headers, bytes] | None:
        """The refusal in place of one of paceline's own, with what is left of its wait; ``None`` where that has another cause.

        Args:
            word: What paceline's own is called.
            wait_s: The wait that it states, for a refusal without one.
            while_it_waits: Whether a request that was not refused itself waits for the same end only until that has come.
        """
        passed_s = time.monotonic() - self.at_s
        left_s = (self.wait_s or 0.0) - passed_s
        if word not in _CAUSED and (word not in _AFTER or (while_it_waits and left_s <= 0)):
            return None
        if left_s > 0:
            wait_s = str(math.ceil(left_s))
        headers = [(name, _left(name, value, int(passed_s))) for name, value in self.headers]
        headers += [(b"x-should-retry", b"false"), (b"x-paceline", word.encode())]
        if wait_s is not None:
            headers.append((b"retry-after", wait_s.encode()))
        body = _LEFT.sub(lambda found: found[1] + b"%d" % max(int(found[2]) - int(passed_s), 0), self.body)
        return self.status, [*headers, (b"content-length", b"%d" % len(body))], body


def _left(name: bytes, value: bytes, passed_s: int) -> bytes:
    """A header that counts the seconds to an instant, as it is after some of them (``x-codex-primary-reset-after-seconds``)."""
    return b"%d" % max(int(value) - passed_s, 0) if name.endswith(b"-after-seconds") and value.isdigit() else value


Refusals = WeakKeyDictionary[Scheduler | Account, KeptRefusal]
"""The last refusal at each pool, and of each account, of whichever credential; an answer to that one ends it.

An account has several credentials by what its clients claim, which is not checked.
"""


class RequestRefusals:
    """The last refusal of one request, and of any with the same credential.

    Args:
        last: The last ones of all requests.
        about: Its pool, and its account, about all that it sends; none without a credential.
        credential: The digest of its credential.
    """

    __slots__ = ("_about", "_credential", "_last", "_own")

    def __init__(
        self,
        last: MutableMapping[Scheduler | Account, KeptRefusal],
        about: tuple[Scheduler | Account, ...] = (),
        credential: bytes = b"",
    ) -> None:
        self._last, self._about, self._credential = last, about, credential
        self._own: KeptRefusal | None = None

    def keep(self, status: int, headers: Headers, body: bytes, refusal: Refusal) -> None:
        """Keep a refusal of the request."""
        kept = [pair for pair in headers if pair[0] not in _DROPPED]
        self._own = KeptRefusal(self._credential, status, kept, body, refusal.retry_after_s, time.monotonic())
        # The pool; and the account after it, if all that it sends is refused.
        about = self._about[: 1 + refusal.of_account] if refusal.scope is RefusalScope.POOL else ()
        self._last.update(dict.fromkeys(about, self._own))

    def _others(self) -> list[Scheduler | Account]:
        last = self._last
        return [one for one in self._about if one in last and last[one].credential == self._credential]

    def clear(self) -> None:
        """The request was answered."""
        for one in self._others():
            del self._last[one]

    def instead(self, word: str, wait_s: str | None) -> tuple[int, Headers, bytes] | None:
        """See :meth:`KeptRefusal.instead`: by the refusal of this request, or else by another one."""
        own = self._own and self._own.instead(word, wait_s)
        others = (self._last[one].instead(word, wait_s, while_it_waits=True) for one in self._others())
        return own or next(filter(None, others), None)
