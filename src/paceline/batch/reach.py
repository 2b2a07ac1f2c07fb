"""Which addresses cannot be reached, told once, and the reason in a few words."""

from __future__ import annotations

import errno
import math
import os
import socket
import ssl
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from paceline.core.results import SettingsError

REPORT_EVERY_S: Final = 30.0
"""The least time between two messages that one address cannot be reached."""

UNTRUSTED_MAX: Final = 10
"""How many certificates in a row show that an address which was trusted will not be trusted again: one of several servers may be wrong."""

REASON_MAX: Final = 200

SOCKETS: Final = 10_000
"""The first error number of Windows' sockets. os.strerror has no words for them."""

UNTRUSTED: Final = "its certificate is not trusted"

NO_TLS: Final = "WRONG_VERSION_NUMBER"
"""What OpenSSL says of a server that answers a handshake with something else, such as plain HTTP."""


@dataclass(slots=True)
class _Address:
    """The state of one address; instants in seconds of one clock."""

    answered_s: float = -math.inf
    connected_s: float = -math.inf
    failed_s: float = -math.inf
    reported_s: float = -math.inf
    reported: bool = False  # as an address that cannot be reached
    why: str = ""  # why it cannot be reached; empty while it can
    untrusted: int = 0  # how many connections in a row had a certificate that is not trusted


class Reach:
    """Reports, once, that an address cannot be reached, and when it can be reached again.

    Args:
        say: Takes a line for the user.
        again: Whether a request without a connection is retried.
        proxy: The proxy's URL, if there is one; it may hold a password.
    """

    def __init__(self, say: Callable[[str], None], *, again: bool, proxy: str | None = None) -> None:
        self._say, self._again = say, "; trying again" if again else ""
        self._via = f" through the proxy {origin(proxy)}" if proxy else ""
        self._addresses = defaultdict[str, _Address](_Address)

    def failed(self, name: str, error: BaseException, sent_s: float, now_s: float) -> None:
        """An attempt sent at ``sent_s`` to the address ``name`` got no connection; ignored if another was answered since."""
        address, is_untrusted = self._addresses[name], _is_untrusted(error)
        if (address.connected_s if is_untrusted else address.answered_s) > sent_s:
            return
        address.why, address.failed_s = reason(error), now_s
        address.untrusted = address.untrusted + 1 if is_untrusted else 0
        if not address.reported and now_s - address.reported_s >= REPORT_EVERY_S:
            address.reported, address.reported_s = True, now_s
            self._say(f"{self._unreached(name, address.why)}{'' if self.distrusts(name) else self._again}")

    def connected(self, name: str, now_s: float) -> None:
        """A new connection to the address is open: its certificate is trusted, as answers over older connections do not show."""
        address = self._addresses[name]
        address.connected_s, address.untrusted = now_s, 0

    def answered(self, name: str, sent_s: float, now_s: float) -> None:
        """An attempt sent at ``sent_s`` was answered; over an older connection that says nothing of new ones."""
        address = self._addresses[name]
        address.answered_s = now_s
        if address.why and sent_s >= address.failed_s and not address.untrusted:
            address.why = ""
            if address.reported:
                address.reported = False
                self._say(f"{name} can be reached again")

    def distrusts(self, name: str) -> bool:
        """Whether no certificate of an address will be trusted: its first one was not, or many in a row were not."""
        address = self._addresses[name]
        return address.untrusted >= (1 if address.connected_s == -math.inf else UNTRUSTED_MAX)

    def lose(self, name: str, error: BaseException) -> str:
        """The message for the record of a request that got no connection and is not retried."""
        return self._unreached(name, reason(error))

    def at_end(self) -> list[str]:
        """A line for each address that cannot be reached now."""
        return [self._unreached(name, one.why) for name, one in self._addresses.items() if one.why]

    def _unreached(self, name: str, why: str) -> str:
        return f"cannot reach {name}{self._via}: {why}"


def origin(url: str) -> str:
    """Scheme, host and port of a URL, the name of an address: paths, queries and user names can hold keys."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _is_untrusted(error: BaseException) -> bool:
    """Whether an address will not be trusted by another attempt either: by its certificate, or because it does not speak TLS."""
    system = getattr(error, "os_error", None)
    plain = isinstance(system, ssl.SSLError) and system.reason == NO_TLS
    return plain or isinstance(getattr(error, "certificate_error", None), ssl.SSLCertVerificationError)


def _system_error(error: BaseException | None) -> OSError | None:
    """The system's error inside the library's; ``None`` for none."""
    while error is not None and not (isinstance(error, OSError) and error.errno is not None):
        nested = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else None
        error = nested or error.__cause__ or error.__context__
    return error


def _unresolved(error: socket.gaierror) -> str:
    return "no such host" if error.errno == socket.EAI_NONAME else f"its name cannot be resolved: {error.strerror}"


def _without_tls(error: ssl.SSLError) -> str:
    if error.reason == NO_TLS:
        return "this port does not speak TLS: try http://"
    return f"TLS failed: {(error.reason or str(error)).replace('_', ' ').lower()}"


_REASONS: Final[tuple[tuple[type[OSError], Callable[[Any], str]], ...]] = (
    (ConnectionRefusedError, lambda _: "connection refused"),
    (socket.gaierror, _unresolved),
    (ssl.SSLCertVerificationError, lambda error: f"{UNTRUSTED}: {error.verify_message.rstrip('.')}"),
    (ssl.SSLError, _without_tls),
    (OSError, lambda error: system_words(error)[:1].lower() + system_words(error)[1:]),
)
"""Why there was no connection, by the kind of the system's error: the first that it is."""


def certificates() -> ssl.SSLContext | bool:
    """The certificates in the file that the user names, which each session reads; ``True``, the usual ones, if no file is named.

    Raises:
        SettingsError: It cannot be read.
    """
    path = os.environ.get("SSL_CERT_FILE")
    if not path:
        return True
    try:
        return ssl.create_default_context(cafile=path)
    except ssl.SSLError:
        raise SettingsError(f"SSL_CERT_FILE={path}: no certificates in PEM format are in it") from None
    except OSError as error:
        raise SettingsError(f"SSL_CERT_FILE={path}: cannot be read: {error.strerror}") from None


def reason(error: BaseException) -> str:
    """Why there was no connection, in a few words, from the system's error inside the library's."""
    if isinstance(error, TimeoutError) or type(error).__name__ == "ConnectTimeout":  # of aiohttp; of httpx2
        return "connection timed out"
    error = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error  # aiohttp's
    inner = _system_error(error)
    status = getattr(error, "status", None)  # of a proxy; the error's own text has the URL
    words = f"{status} {getattr(error, 'message', '')}" if status else str(error) or type(error).__name__
    if inner is not None:
        words = next(told(inner) for kind, told in _REASONS if isinstance(inner, kind))
    return "".join(c for c in words if c.isprintable())[:REASON_MAX]


def system_words(error: OSError) -> str:
    """What the system says of an error: without the text of a library, which may have the URL."""
    number = error.errno or 0
    reset = isinstance(error, ConnectionResetError) or isinstance(error.__cause__, ConnectionResetError)
    if reset or number == errno.ECONNRESET:
        return "Connection reset by peer"  # Windows has two numbers for it
    if sys.platform == "win32" and (error.winerror or number >= SOCKETS):
        from ctypes import FormatError

        return FormatError(error.winerror or number).strip().rstrip(".")
    return os.strerror(number)
