"""The answers that a job has paid for, by request, so that no other process of the job pays for them again.

Two places: the Redis of the shared quotas, for the actors of any machines, and a SQLite file, for those of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from paceline.core.results import StoreError
from paceline.stores.entries import EntryFile
from paceline.stores.redis import explain
from paceline.stores.redis_address import library, read_url

TIMEOUT_S: Final = 5.0
"""How long the place may take for one call; an answer of megabytes takes longer than an exchange with the store."""

SQLITE: Final = "sqlite:"


class Journal(Protocol):
    """Entries by key; each call is for any thread, and raises :class:`StoreError` if the place cannot be used now."""

    def look_up(self, keys: Sequence[str]) -> dict[str, bytes]:
        """The entries that there are."""

    def write(self, key: str, entry: bytes) -> None:
        """Keep an entry; on return it outlives this process."""

    def close(self) -> None:
        """Close the connections."""


def open_journal(name: str, store_url: str, keep_s: float) -> Journal:
    """The journal ``name``.

    Args:
        name: A name, for one in the Redis at ``store_url``, or ``sqlite:PATH``.
        store_url: The store of the shared quotas.
        keep_s: How long an entry is kept.

    Raises:
        StoreError: The name needs a Redis, and the store is none, or cannot be used.
    """
    if name.startswith(SQLITE):
        return EntryFile(name.removeprefix(SQLITE), keep_s, TIMEOUT_S)
    if store_url.startswith(("redis", "unix:")):
        return RedisJournal(name, store_url, keep_s)
    kind = store_url.partition(":")[0]
    raise StoreError(
        f"the journal {name!r} would be in the Redis of the store, and the store is {kind}: write 'sqlite:PATH'"
    )


class RedisJournal:
    """Entries in Redis, each with a key of its own that expires: on servers before 7.4, fields of a hash cannot."""

    def __init__(self, name: str, url: str, keep_s: float) -> None:
        address = read_url(url)
        self._prefix, self._keep_s, self._url = f"paceline:journal:{address.prefix}/{name}/", round(keep_s), address.url
        try:
            self._client = address.client(TIMEOUT_S)
        except library().RedisError as error:  # a cluster is asked for its nodes here
            raise StoreError(f"{self._url}: {explain(error)}") from error

    def look_up(self, keys: Sequence[str]) -> dict[str, bytes]:
        """See :meth:`Journal.look_up`."""
        try:
            with self._client.pipeline(transaction=False) as calls:
                for key in keys:
                    calls.get(self._prefix + key)
                found = calls.execute()
        except Exception as error:
            raise StoreError(f"{self._url}: {explain(error)}") from error
        return {key: entry for key, entry in zip(keys, found, strict=True) if entry is not None}

    def write(self, key: str, entry: bytes) -> None:
        """See :meth:`Journal.write`."""
        try:
            self._client.set(self._prefix + key, entry, ex=self._keep_s)
        except Exception as error:
            raise StoreError(f"{self._url}: {explain(error)}") from error

    def close(self) -> None:
        """See :meth:`Journal.close`."""
        self._client.close()
