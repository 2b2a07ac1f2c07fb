"""Which addresses cannot be reached, and why: a line for the user when that changes."""

from __future__ import annotations

import math
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import httpx2

UNREACHED: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError)
"""The errors that mean that there was no connection."""

SAID_EVERY_S: Final = 30.0
"""No address is said to be out of reach more often than that."""

REASON_MAX: Final = 200


@dataclass(slots=True)
class _Place:
    """What is known of one address; instants in seconds of one clock."""

    answered_s: float = -math.inf
    failed_s: float = -math.inf
    said_s: float = -math.inf
    why: str = ""  # it cannot be reached; empty while it can
    said: bool = False
    lost: str = ""  # why a request to it failed for good


class Reach:
    """Tells the user, once, that an address cannot be reached, and when it can be again.

    Args:
        say: Takes a line.
        again: Whether a request that did not reach its address is tried again.
        proxy: The proxy's URL, if there is one; it may hold a password.
    """

    def __init__(self, say: Callable[[str], None], *, again: bool, proxy: str | None = None) -> None:
        self._say, self._again = say, "; trying again" if again else ""
        self._via = f" through the proxy {origin(httpx2.URL(proxy))}" if proxy else ""
        self._places: dict[str, _Place] = {}

    def failed(self, url: httpx2.URL, error: Exception, left_s: float, now_s: float) -> None:
        """An attempt that left at ``left_s`` got no connection; that of others meanwhile says more."""
        place = self._place(url)
        if place.answered_s > left_s:
            return
        place.why, place.failed_s = reason(error), now_s
        if not place.said and now_s - place.said_s >= SAID_EVERY_S:
            place.said, place.said_s = True, now_s
            self._say(f"{self._words(origin(url), place.why)}{self._again}")

    def answered(self, url: httpx2.URL, left_s: float, now_s: float) -> None:
        """An attempt that left at ``left_s`` got an answer: over an older connection it says nothing of new ones."""
        place = self._place(url)
        place.answered_s = now_s
        if place.why and left_s >= place.failed_s:
            place.why = ""
            if place.said:
                place.said = False
                self._say(f"{origin(url)} can be reached again")

    def lose(self, url: httpx2.URL, error: Exception) -> str:
        """A request got no connection and is not tried again; what its record says."""
        self._place(url).lost = reason(error)
        return self._words(origin(url), reason(error))

    def at_end(self) -> list[str]:
        """A line for each address that is out of reach, or because of which requests failed."""
        down = [self._words(name, place.why) for name, place in self._places.items() if place.why]
        was = [(name, place.lost) for name, place in self._places.items() if place.lost and not place.why]
        return down + [f"{name} could not be reached for a while{self._via}: {lost}" for name, lost in was]

    def _words(self, name: str, why: str) -> str:
        return f"cannot reach {name}{self._via}: {why}"

    def _place(self, url: httpx2.URL) -> _Place:
        return self._places.setdefault(origin(url), _Place())


def origin(url: httpx2.URL) -> str:
    """Scheme, host and port, as far as they are said: paths, queries and user names can hold keys."""
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


def reason(error: Exception) -> str:
    """Why there was no connection, in a few words. The libraries wrap what the system said."""
    if isinstance(error, httpx2.ConnectTimeout):
        return "connection timed out"
    inner: BaseException | None = error
    while inner is not None and not (isinstance(inner, OSError) and inner.errno is not None):
        nested = inner.exceptions[0] if isinstance(inner, BaseExceptionGroup) else None
        inner = nested or inner.__cause__ or inner.__context__
    words = str(error) or type(error).__name__
    match inner:
        case ConnectionRefusedError():
            words = "connection refused"
        case socket.gaierror(errno=socket.EAI_NONAME):
            words = "no such host"
        case socket.gaierror():
            words = f"its name cannot be resolved: {inner.strerror}"
        case ssl.SSLCertVerificationError():
            words = f"its certificate is not trusted: {inner.verify_message}"
        case ssl.SSLError():
            words = f"TLS failed: {(inner.reason or str(inner)).replace('_', ' ').lower()}"
        case OSError():
            said = os.strerror(inner.errno or 0)
            words = said[:1].lower() + said[1:]
    return "".join(c for c in words if c.isprintable())[:REASON_MAX]
