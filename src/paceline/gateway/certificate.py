"""The certificate of the gateway, which is read again while it serves."""

from __future__ import annotations

import json
import logging
import ssl
from functools import partial
from pathlib import Path
from typing import Any, Final

from paceline.core.results import SettingsError
from paceline.gateway.errors import own_value
from paceline.gateway.stamps import Watched

log = logging.getLogger("paceline.gateway")

_WITHOUT = own_value(400, "no_tls", "this port speaks TLS: write https:// in the address, not http://")
_BODY = json.dumps(_WITHOUT).encode()
ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\nx-paceline: no_tls\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
    % (len(_BODY), _BODY)
)
"""What a client gets that speaks HTTP without TLS."""

WHAT: Final = "it must have the certificate and its chain in PEM, and the key of --tls-key, which must not be encrypted"


class Certificate:
    """A certificate in a file, and its key in the same or another one.

    Args:
        chain: The file of the certificate and its chain.
        key: The file of the key; ``None``: the same one.
    """

    def __init__(self, chain: Path, key: Path | None) -> None:
        self._chain, self._key = chain, key
        files = (chain,) if key is None else (chain, key)
        self._watched = Watched("the earlier certificate stays in use", *files)
        self._used = False

    def check(self) -> None:
        """Refuse files that no connection could use.

        Raises:
            SettingsError: A file cannot be read, or the two do not belong together.
        """
        self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    def context(self) -> ssl.SSLContext:
        """What a server opens connections with.

        Raises:
            SettingsError: See :meth:`check`.
        """
        context = _Context(ssl.PROTOCOL_TLS_SERVER)
        self._load(context)
        return context

    def look(self, context: ssl.SSLContext) -> None:
        """Let ``context`` use what the files have now, if they have changed; new connections are opened with that.

        A key that does not belong to its certificate yet leaves both as they were, and is logged once.
        """
        self._watched.look(partial(self._use, context))

    def _use(self, context: ssl.SSLContext) -> None:
        # In another context first, because a chain without its key would leave this one half changed.
        # WEAK: files that change between these two lines do so.
        self.check()
        self._load(context)
        if self._used:
            log.warning("%s has changed, and is used for new connections", self._chain)
        self._used = True

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self._chain, self._key, password=_refuse)
        except ssl.SSLError as error:
            raise SettingsError(f"--tls-cert {self._chain}: {error.reason or error}: {WHAT}") from None
        except OSError as error:
            raise SettingsError(f"--tls-cert {self._chain}, --tls-key {self._key}: {error.strerror}") from None


class _Connection(ssl.SSLObject):
    """Of a client that speaks HTTP without TLS: answers it, where the connection would be closed without a word.

    The client closes the connection then, or the time for the handshake runs out.
    """

    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    _plain: bool | None = None  # by the first byte

    def do_handshake(self) -> None:
        if self._plain is None and (first := self.incoming.read()):
            self._plain = first[:1].isalpha()  # of a method; TLS begins with no letter
            if self._plain:
                self.outgoing.write(ANSWER)
            else:
                self.incoming.write(first)
        if not self._plain:
            super().do_handshake()
            return
        self.incoming.read()  # the rest of the request
        raise ssl.SSLWantReadError


class _Context(ssl.SSLContext):
    sslobject_class = _Connection

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **given: Any) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, *args, **given)
        assert isinstance(made, _Connection)
        made.incoming, made.outgoing = incoming, outgoing
        return made


def _refuse() -> str:
    """The password of an encrypted key: a server has no terminal."""
    raise SettingsError(f"--tls-key: {WHAT}")
