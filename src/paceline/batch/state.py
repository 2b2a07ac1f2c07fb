"""Where a run keeps its quotas: in the store that was asked for, in a file of this user's, or in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from paceline.config import Config
from paceline.limiter.limiter import Limiter
from paceline.pacing.permit import Permit
from paceline.providers.registry import is_loopback
from paceline.shared.messages import Message, Reply
from paceline.stores import Store, StoreError, open_store
from paceline.stores.base import Prefixed
from paceline.stores.memory import MemoryStore
from paceline.stores.sqlite import SQLiteStore


class Attempted:
    """A store that nobody asked for by name: if it cannot be used from the start, memory does instead.

    Attributes:
        fault: Why it cannot be used.
        proven: Whether it has shown that it can: from then on it can only be lost.
    """

    def __init__(self, store: Store) -> None:
        self.url = store.url
        self.fault: str | None = None
        self.proven = False
        self._store = store

    def exchange(self, pool: str, message: Message) -> Reply:
        """See :meth:`Store.exchange`."""
        try:
            return self._store.exchange(pool, message)
        except StoreError as error:
            if self.proven:
                raise
            self.fault = str(error)
            self._store.close()
            self._store = MemoryStore()
            return self._store.exchange(pool, message)

    def after_fork(self) -> None:
        """See :meth:`Store.after_fork`."""
        self._store.after_fork()

    def close(self) -> None:
        """See :meth:`Store.close`."""
        self._store.close()


class State:
    """Where this run's quotas are.

    Args:
        config: Whether a store was asked for, and whose server it is.
        environ: Where the user's state folder is.
        account: Given a pool, whose it is: pools of two accounts do not mix.

    Attributes:
        store: For the limiter; ``None``: in this process.

    Raises:
        StoreError: The store's URL cannot be meant.
    """

    def __init__(self, config: Config, environ: Mapping[str, str], account: Callable[[str], str]) -> None:
        self._attempted: Attempted | None = None
        self._homeless = False
        store: Store | None = None
        if config.store is not None:
            store = None if config.store.startswith("memory:") else open_store(config.store)
        elif not is_loopback(urlsplit(config.base_url or "").hostname or ""):  # a server on this machine is a test's
            try:
                store = self._attempted = Attempted(SQLiteStore(state_file(environ)))
            except StoreError:
                self._homeless = True
        self.store = None if store is None else Prefixed(store, account)

    @property
    def url(self) -> str | None:
        """Where they are, without a password; ``None``: in this process."""
        return None if self.store is None or self._fault else self.store.url

    @property
    def _fault(self) -> str | None:
        """Why memory does instead."""
        if self._homeless:
            return "this user has no home folder, and XDG_STATE_HOME is not set"
        return self._attempted.fault if self._attempted else None

    def join(self, limiter: Limiter, models: Iterable[str]) -> str | None:
        """Ask the store how the pools of ``models`` stand, before anything is sent.

        Returns:
            A warning, if it cannot be used and memory does instead.

        Raises:
            StoreError: It was asked for by name, and cannot be used.
        """
        if self.store is not None:
            for model in models:
                self._ask(limiter, model)
            for pool in limiter.status()["pools"].values():
                if pool["store"]["state"] == "lost":  # 'open' is for a store that was there
                    raise StoreError(f"{pool['store']['reason']}; nothing has been sent")
        if self._attempted is not None:
            self._attempted.proven = True
        return self._fault and (
            f"{self._fault}; so this run keeps its quotas in memory: what it uses of a day is not remembered, and not"
            " shared with other runs (--store names another place, --store memory: none)"
        )

    @staticmethod
    def _ask(limiter: Limiter, model: str) -> None:
        try:
            permit = limiter.try_acquire(model, requests=0, concurrency=0)
        except StoreError as error:
            raise StoreError(f"{error}; nothing has been sent") from None
        if isinstance(permit, Permit):
            permit.cancel()


def account(root: str, key: str) -> str:
    """A name for the account behind ``key`` at the server ``root``, from which nobody gets the key."""
    return f"{urlsplit(root).netloc.lower()}:{sha256(key.encode()).hexdigest()[:12]}"


def state_file(environ: Mapping[str, str]) -> Path:
    """Where a user's programs keep what they remember, by the XDG base directory specification."""
    home = Path(environ.get("XDG_STATE_HOME", ""))
    return (home if home.is_absolute() else Path("~/.local/state")) / "paceline" / "state.db"
