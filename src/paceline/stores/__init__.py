"""Where the quotas of a pool are kept when many processes share it."""

from __future__ import annotations

import os
import re
from difflib import get_close_matches

from paceline.stores.base import FILE_TIMEOUT_S, TIMEOUT_S, Prefixed, Store, StoreError

__all__ = ["NO_STORE", "Prefixed", "Store", "StoreError", "as_store", "open_store"]

NO_STORE = "memory:"
"""In place of a URL: no store, wherever another one is the default."""

_REDIS = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster", "rediss+sentinel", "rediss+cluster")
_ALL = (
    "write 'memory:', 'sqlite:PATH', 'redis://HOST:PORT/DB', 'rediss://HOST', 'unix://PATH',"
    " 'redis+sentinel://HOST:PORT/MASTER' or 'redis+cluster://HOST:PORT'"
)


def open_store(url: str, *, timeout_s: float | None = None) -> Store:
    """The store at ``url``; nothing is opened before its first use.

    Args:
        url: ``sqlite:PATH``, ``redis://HOST:PORT/DB``, ``rediss://``, ``unix://PATH``,
            ``redis+sentinel://HOST:PORT,HOST:PORT/MASTER/DB`` or ``redis+cluster://HOST:PORT,HOST:PORT``. The URLs of
            Redis take the options of redis-py, ``sentinel_username`` and ``sentinel_password`` for Sentinels, and
            ``prefix=NAME``, which separates several accounts on one server.
        timeout_s: How long the store may take to answer before it counts as lost; ``None``: 5 s for SQLite, 1 s for Redis.

    Raises:
        StoreError: The URL is invalid, or stands for no store (``memory:``); the message shows no password.
    """
    scheme, _, rest = url.partition(":")
    if url == NO_STORE:
        raise StoreError("memory: is no store: each process has its own quotas")
    if scheme.strip().lower() == "memory":
        raise StoreError("did you mean 'memory:', which is no store?")
    if scheme == "sqlite":
        from paceline.stores.sqlite import SQLiteStore

        return SQLiteStore(_path(rest.removeprefix("//")), timeout_s=FILE_TIMEOUT_S if timeout_s is None else timeout_s)
    if scheme in _REDIS:
        from paceline.stores.redis import RedisStore

        return RedisStore(url, timeout_s=TIMEOUT_S if timeout_s is None else timeout_s)
    raise StoreError(_unknown(url))


def as_store(store: object) -> Store | None:
    """``store`` itself; or the store at a URL, or in the Redis of a client of redis-py; ``None`` for ``memory:``.

    Raises:
        StoreError: It is none of these; the message says what to give.
    """
    if isinstance(store, str):
        return None if store == NO_STORE else open_store(store)
    if isinstance(store, os.PathLike):
        raise StoreError(f"store is a path: write store={f'sqlite:{os.fspath(store)}'!r}")
    if isinstance(store, type):
        raise StoreError(f"store is the class {store.__name__}: write store={store.__name__}(...)")
    lacks = [] if isinstance(getattr(store, "url", None), str) else ["url (a str)"]
    lacks += [f"{name}()" for name in ("exchange", "after_fork", "close") if not callable(getattr(store, name, None))]
    if not lacks:
        return store  # type: ignore[return-value]  # as far as can be told
    if callable(getattr(store, "execute_command", None)):  # a client of Redis
        from paceline.stores.redis import RedisStore

        return RedisStore(store)  # type: ignore[arg-type]  # it checks
    raise StoreError(
        f"store is of the type {type(store).__name__}, which has no {', '.join(lacks)}: give a URL like 'sqlite:PATH' or"
        " 'redis://HOST:PORT/DB', a client of redis-py, or an object like paceline.stores.Store"
    )


def _path(path: str) -> str:
    """What follows ``sqlite:``."""
    if path.lstrip("/") == ":memory:":
        raise StoreError("sqlite::memory: would be a file of that name: write 'memory:' for no store")
    if "?" in path:
        raise StoreError(
            "a SQLite URL has no options: write 'sqlite:PATH'; on_store_failure and lease_s are arguments of Limiter, and a prefix"
            " is given with Prefixed(open_store('sqlite:PATH'), NAME)"
        )
    return path


def _unknown(url: str) -> str:
    """The error for a URL of no store; what could be a password is not shown."""
    scheme, colon, _ = url.partition(":")
    if not colon and re.fullmatch(r"[^@\s]*[./][^@\s]*", url):
        return f"a store is given by its URL: did you mean {f'sqlite:{url}'!r}?"
    if not colon or not re.fullmatch(r"[A-Za-z+]{1,20}", scheme):
        return f"a store is given by its URL: {_ALL}"
    known = {name: name for name in ("memory", "sqlite", *_REDIS)} | {"valkey": "redis", "valkeys": "rediss"}
    near = get_close_matches(scheme.lower(), known, 1)
    hint = f"did you mean {known[near[0]]!r}?" if near else _ALL
    return f"no store is called {scheme!r}: {hint}"
