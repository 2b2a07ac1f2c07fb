"""Where the books of a pool are kept when many processes share it."""

from __future__ import annotations

from paceline.stores.base import TIMEOUT_S, Prefixed, Store, StoreError

__all__ = ["Prefixed", "Store", "StoreError", "open_store"]


def open_store(url: str, *, timeout_s: float = TIMEOUT_S) -> Store:
    """The store at ``url``; nothing is opened before its first use.

    Args:
        url: ``memory:``, ``sqlite:PATH``, ``redis://HOST:PORT/DB``, ``rediss://``, ``unix://PATH``,
            ``redis+sentinel://HOST:PORT,HOST:PORT/MASTER/DB`` or ``redis+cluster://HOST:PORT,HOST:PORT``.
            ``?prefix=NAME`` keeps apart what uses one server for several accounts.
        timeout_s: How long the store may take to answer before it counts as lost.

    Raises:
        StoreError: The URL cannot be meant; the message says what would be right.
    """
    scheme, _, path = url.partition(":")
    if scheme == "memory":
        from paceline.stores.memory import MemoryStore

        return MemoryStore()
    if scheme == "sqlite":
        from paceline.stores.sqlite import SQLiteStore

        return SQLiteStore(path.removeprefix("//"), timeout_s=timeout_s)
    if scheme in {"redis", "rediss", "unix", "redis+sentinel", "redis+cluster", "rediss+sentinel", "rediss+cluster"}:
        from paceline.stores.redis import RedisStore

        return RedisStore(url, timeout_s=timeout_s)
    raise StoreError(
        f"no store is called {scheme!r}: write 'sqlite:PATH', 'redis://HOST:PORT/DB', 'rediss://HOST', 'unix://PATH',"
        " 'redis+sentinel://HOST:PORT/MASTER' or 'redis+cluster://HOST:PORT'"
    )
