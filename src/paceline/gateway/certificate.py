"""The certificate of the gateway, which is read again while it serves."""

from __future__ import annotations

import logging
import ssl
from functools import partial
from pathlib import Path
from typing import Final

from paceline.core.results import SettingsError
from paceline.gateway.stamps import Watched

log = logging.getLogger("paceline.gateway")

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
        self.context()

    def context(self) -> ssl.SSLContext:
        """What a server opens connections with.

        Raises:
            SettingsError: See :meth:`check`.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
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


def _refuse() -> str:
    """The password of an encrypted key: a server has no terminal."""
    raise SettingsError(f"--tls-key: {WHAT}")
