"""What the calls of a function have returned, by the keys of their items, so that a killed program goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Any

from paceline.core.results import QuotaError, StoreError
from paceline.pacing.durable import lock, open_binary
from paceline.stores.entries import EntryFile

TIMEOUT_S = 5.0
"""How long a call waits for other users of the file."""


class Keys:
    """The key of each item: its own, or the hash of its content.

    Args:
        key: Returns the key of an item, or the name of a field of items that are mappings; ``None``: the hash. Equal items are told
            apart by their order then.
    """

    def __init__(self, key: Callable[[Any], object] | str | None) -> None:
        self._key = key
        self._seen: Counter[str] = Counter()

    def of(self, index: int, item: object) -> str:
        """The key of the item at ``index``.

        Raises:
            QuotaError: It has none, an earlier item has it, or there is no ``key`` and the item is no JSON value.
        """
        key = self._hash(index, item) if self._key is None else self._own(index, item)
        self._seen[key] += 1
        again = self._seen[key] - 1
        if again and self._key is not None:
            raise QuotaError(f"key: item {index} has the key {key[:60]!r} of an earlier item; each needs its own")
        return f"{key}/{again}" if again else key

    def _own(self, index: int, item: Any) -> str:
        try:
            key = item[self._key] if isinstance(self._key, str) else self._key(item)  # type: ignore[misc]
        except (KeyError, TypeError, IndexError) as error:
            raise QuotaError(f"key: item {index} has none: {type(error).__name__}") from error
        key = getattr(key, "item", lambda: key)()  # a number of numpy
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise QuotaError(f"key: the key of item {index} is a {type(key).__name__}; it must be a text or an integer")
        return str(key)

    def _hash(self, index: int, item: object) -> str:
        try:
            text = json.dumps(item, sort_keys=True, allow_nan=False, default=_plain)
        except (TypeError, ValueError) as error:
            raise QuotaError(
                f"item {index} is a {type(item).__name__}, and no JSON value: give key=, which returns a text for each item"
            ) from error
        return hashlib.sha256(text.encode()).hexdigest()


class Journal:
    """The values by key, in a SQLite file. One program at a time uses it.

    Args:
        path: The file. It is made when it is missing.

    Raises:
        StoreError: The file cannot be used, is another program's, or is in use.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._entries = EntryFile(self._path, inf, TIMEOUT_S)
        try:
            self._lock = open_binary(f"{self._path}-lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            self._entries.close()
            raise StoreError(f"{self._path}-lock: {error.strerror}") from error
        try:
            lock(self._lock)
        except (BlockingIOError, PermissionError):
            self.close()
            raise StoreError(f"the journal {self._path} is in use: wait for the other program, or end it") from None
        except OSError:  # no locks on this file system
            pass

    def find(self, key: str) -> tuple[Any] | None:
        """The value of an item, or ``None``.

        Raises:
            StoreError: The file cannot be read, or the value in it is damaged.
        """
        entry = self._entries.look_up([key]).get(key)
        try:
            return None if entry is None else (json.loads(entry),)
        except ValueError as error:
            raise StoreError(
                f"the journal {self._path} is damaged: the value of {key[:60]!r} is no JSON; delete its row, or name another file"
            ) from error

    def keep(self, key: str, value: object, index: int) -> None:
        """Keep the value of the item at ``index``.

        Raises:
            QuotaError: The value does not come back as it is.
            StoreError: The file cannot be written to.
        """
        try:
            text = json.dumps(value, allow_nan=False)
            comes_back = json.loads(text) == value
        except (TypeError, ValueError):
            comes_back = False
        if not comes_back:
            raise QuotaError(
                f"the function returned a {type(value).__name__} for item {index}, which a journal cannot keep as it is: "
                "return a text, a number, or a dict or list of them (of an SDK's answer: answer.model_dump(mode='json'))"
            )
        self._entries.write(key, text.encode())

    def close(self) -> None:
        """Close the file, for another program to use."""
        self._entries.close()
        os.close(self._lock)


def _plain(value: Any) -> object:
    """A number of numpy as one of Python."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError
