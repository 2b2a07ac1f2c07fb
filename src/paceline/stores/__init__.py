"""Where the books of a pool are kept when many processes share it."""

from __future__ import annotations

import os
import re
from difflib import get_close_matches

from paceline.stores.base import TIMEOUT_S, Prefixed, Store, StoreError, misplaced

__all__ = ["Prefixed", "Store", "StoreError", "as_store", "open_store"]

_REDIS = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster", "rediss+sentinel", "rediss+cluster")
_ALL = (
    "write 'memory:', 'sqlite:PATH', 'redis://HOST:PORT/DB', 'rediss://HOST', 'unix://PATH',"
    " 'redis+sentinel://HOST:PORT/MASTER' or 'redis+cluster://HOST:PORT'"
)


def open_store(url: str, *, timeout_s: float = TIMEOUT_S) -> Store:
    """The store at ``url``; nothing is opened before its first use.

    Args:
        url: ``memory:``, ``sqlite:PATH``, ``redis://HOST:PORT/DB``, ``rediss://``, ``unix://PATH``,
            ``redis+sentinel://HOST:PORT,HOST:PORT/MASTER/DB`` or ``redis+cluster://HOST:PORT,HOST:PORT``.
            ``?prefix=NAME``, in Redis, keeps apart what uses one server for several accounts.
        timeout_s: How long the store may take to answer before it counts as lost.

    Raises:
        StoreError: The URL cannot be meant; the message says what would be right, and shows no password.
    """
    scheme, _, rest = url.partition(":")
    if scheme == "memory":
        from paceline.stores.memory import MemoryStore

        return MemoryStore()
    if scheme == "sqlite":
        from paceline.stores.sqlite import SQLiteStore

        return SQLiteStore(_path(rest.removeprefix("//")), timeout_s=timeout_s)
    if scheme in _REDIS:
        from paceline.stores.redis import RedisStore

        return RedisStore(url, timeout_s=timeout_s)
    raise StoreError(_unknown(url))


def as_store(store: object) -> Store:
    """``store``, or the store at it, if it is a URL.

    Raises:
        StoreError: It is neither; the message says what would be right.
    """
    if isinstance(store, str):
        return open_store(store)
    if isinstance(store, os.PathLike):
        raise StoreError(f"store is a path: write store={f'sqlite:{os.fspath(store)}'!r}")
    if isinstance(store, type):
        raise StoreError(f"store is the class {store.__name__}: write store={store.__name__}(...)")
    lacks = [] if isinstance(getattr(store, "url", None), str) else ["url (a text)"]
    lacks += [f"{name}()" for name in ("exchange", "after_fork", "close") if not callable(getattr(store, name, None))]
    if lacks:
        raise StoreError(
            f"this is no store, it has no {', '.join(lacks)}: {type(store).__name__}; give a URL like 'sqlite:PATH'"
            " or 'redis://HOST:PORT/DB', or what paceline.stores.Store describes"
        )
    return store  # type: ignore[return-value]  # as far as can be told


def _path(path: str) -> str:
    """What stands behind ``sqlite:``."""
    if path.lstrip("/") == ":memory:":
        raise StoreError("sqlite::memory: would be a file of that name: write 'memory:' for a store in this process")
    _, asked, options = path.partition("?")
    if asked:
        name = re.match(r"\w{0,30}", options)[0]  # type: ignore[index]  # it matches anything
        advice = misplaced(name) or "write 'sqlite:PATH'"
        if name == "prefix":
            advice = "write store=Prefixed(open_store('sqlite:PATH'), NAME), of paceline.stores"
        raise StoreError(f"a SQLite URL has no options: {advice}")
    return path


def _unknown(url: str) -> str:
    """What to say of a URL that is none; what could be a password is not shown."""
    scheme, colon, _ = url.partition(":")
    if not colon:
        hint = f"did you mean {f'sqlite:{url}'!r}?" if re.fullmatch(r"[^@\s]*[./][^@\s]*", url) else _ALL
        return f"a store is given by its URL: {hint}"
    if not re.fullmatch(r"[A-Za-z+]{1,20}", scheme):
        return f"this is no store's URL: {_ALL}"
    if scheme.lower() in ("valkey", "valkeys"):
        return f"a Valkey has the URL of a Redis: write {'redis' if scheme.lower() == 'valkey' else 'rediss'}://..."
    near = get_close_matches(scheme.lower(), ("memory", "sqlite", *_REDIS), 1)
    hint = f"did you mean {near[0]!r}?" if near else _ALL
    return f"no store is called {scheme!r}: {hint}"
