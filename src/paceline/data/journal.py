"""What the calls of a function have returned, by the keys of their items, so that a killed program goes on where it stopped."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import queue
import threading
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import date, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from itertools import count
from math import inf
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from paceline.core.results import SettingsError, StoreError, UnfinishedError, explaining
from paceline.data.frames import is_missing
from paceline.data.places import CLAIM_S, Claim, JournalPlace
from paceline.data.progress import SAID_S
from paceline.pacing.durable import lock, open_binary, recovered_names
from paceline.pacing.inbox import Inbox
from paceline.stores.entries import EntryFile

TIMEOUT_S = 5.0
"""How long a call waits for other users of the file."""

THREADS = 8
"""How many calls a shared journal is asked at a time: each waits for a round trip, or for the other processes of a file."""

AGAIN_S = 0.5
"""How often a value is looked for that another process pays for."""

START_S, WAIT_S = 30.0, 300.0
"""How long an item waits for a shared journal that cannot be used: before it has answered once, when its address may be wrong, and later."""

FINAL: Final = frozenset({"declined", "blocked"})
"""The states of unfinished answers whose errors are kept, too: the same prompt costs the same and ends the same."""

_ERROR: Final = b"!"  # an entry that begins with it is no JSON, and so no value

log = logging.getLogger("paceline")

T = TypeVar("T")


class Kept(NamedTuple):
    """What a journal has of an item: what the function has returned, or why the model has not finished its answer."""

    value: Any = None
    error: UnfinishedError | None = None


class InvalidKeyError(SettingsError):
    """An item has no key of its own.

    Attributes:
        why: What is wrong with it.
    """

    def __init__(self, index: int, why: str) -> None:
        super().__init__(f"key: item {index} {why}")
        self.why = why


class ItemKeys:
    """The key of each item: its own, or the hash of its content.

    Args:
        key: Returns the key of an item, or the name of a field of items that are mappings; ``None``: the hash. Equal items are told
            apart by their order then.
        strict: Whether an item without a key of its own ends the map; otherwise that is the error of the item.
    """

    def __init__(self, key: Callable[[Any], object] | str | None, *, strict: bool = True) -> None:
        self._key, self.strict = key, strict
        self._seen: Counter[str] = Counter()

    def of(self, index: int, item: object) -> str:
        """The key of the item at ``index``.

        Raises:
            InvalidKeyError: It has none, or an earlier item has it.
            SettingsError: There is no ``key``, and the item is no JSON value.
        """
        key = self._hash(index, item) if self._key is None else self._own(index, item)
        self._seen[key] += 1
        again = self._seen[key] - 1
        if again and self._key is not None:
            raise InvalidKeyError(index, f"has the key {key[:60]!r} of an earlier item; each needs its own")
        return f"{key}/{again}" if again else key

    def _own(self, index: int, item: Any) -> str:
        try:
            key = item[self._key] if isinstance(self._key, str) else self._key(item)  # type: ignore[misc]
        except Exception as error:  # a function of the user may raise any
            raise InvalidKeyError(index, f"has no key: {type(error).__name__}") from error
        if is_missing(key):
            raise InvalidKeyError(index, "has no key")
        key = getattr(key, "item", lambda: key)()  # a number of numpy
        if isinstance(key, float) and key.is_integer():
            key = int(key)  # pandas makes floats of the integers of a column with a missing one
        if not isinstance(key, str | int) or isinstance(key, bool):
            raise InvalidKeyError(index, f"has a {type(key).__name__} as its key; it must be a text or an integer")
        return str(key)

    def _hash(self, index: int, item: object) -> str:
        try:
            text = json.dumps(item, sort_keys=True, default=_plain)
        except (TypeError, ValueError) as error:
            raise SettingsError(
                f"item {index} is a {type(item).__name__}, and no JSON value: give key=, which returns a text for each item"
            ) from error
        return hashlib.sha256(text.encode()).hexdigest()


class _OwnFile(EntryFile):
    """A file of one program: another one at its name is not its own."""

    joins = False


class OwnJournal:
    """The values by key, in a SQLite file. One program at a time uses it.

    Args:
        path: The file. It is made when it is missing.

    Attributes:
        has_kept: Whether it has kept a value: this function returns what it can keep.

    Raises:
        StoreError: The file cannot be used, is another program's, or is in use; or the values are in another one.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path, self.has_kept = os.fspath(path), False
        try:
            self._entries = _OwnFile(self._path, inf, TIMEOUT_S)
        except StoreError:
            self._require_name()
            raise
        with ExitStack() as undo:
            undo.callback(self._entries.close)
            with explaining(f"{self._path}-lock", kind=StoreError):
                self._lock = open_binary(f"{self._path}-lock", os.O_RDWR | os.O_CREAT)
            undo.callback(os.close, self._lock)
            try:
                lock(self._lock)
            except (BlockingIOError, PermissionError):
                raise StoreError(f"the journal {self._path} is in use: wait for the other program, or end it") from None
            except OSError:  # no locks on this file system
                pass
            self._require_name()
            undo.pop_all()

    def _require_name(self) -> None:
        """Refuse to go on while the values of an earlier map are at another name: they would be paid for again."""
        if os.path.exists(aside := next(recovered_names(self._path))):  # noqa: PTH110  (as the rest of the paths)
            raise StoreError(
                f"{aside} has the values of an earlier map, because another program replaced or shortened its journal: move it to {self._path};"
                f" or, if you need those in {self._path}, delete {aside}: items whose values are only there are called again"
            )

    async def begin(self, key: str, again: Collection[str] = ()) -> Kept | None:
        """What there is of an item; ``None`` if its function is to be called now.

        Args:
            key: Its key.
            again: The states of unfinished answers that do not count.

        Raises:
            StoreError: The journal cannot be read, or the value in it is damaged.
        """
        entry = self._entries.look_up([key]).get(key)
        try:
            found = None if entry is None else _read(entry)
            return None if found is not None and _is_again(found, again) else found
        except (ValueError, TypeError) as error:
            raise StoreError(
                f"the journal {self._path} is damaged: the value of {key[:60]!r} is no JSON; delete its row, or name another file"
            ) from error

    async def keep(self, key: str, entry: bytes) -> None:
        """Keep what :func:`encoded` made.

        Raises:
            StoreError: The journal cannot be written to.
        """
        self._entries.write(key, entry)
        self.has_kept |= not entry.startswith(_ERROR)

    def give_up(self, key: str) -> None:
        """The end of an item that was begun; if nothing was kept for it, another process may begin it."""

    def look(self) -> None:
        """Write the file again if another program has deleted it: the calls of a map may take long, and a kill would lose the values."""
        with suppress(StoreError):  # the end tells
            self._entries.settle()

    async def settle(self) -> None:
        """Find out at the end that all values are where the next map looks for them, and put them there if that is needed.

        Raises:
            StoreError: They cannot be there.
        """
        self._entries.settle()

    def close(self) -> None:
        """Close the file, for another program to use."""
        self._entries.close()
        os.close(self._lock)


class SharedJournal:
    """The values by key, in a place that several processes use at once.

    A process claims a key before it calls the function. So the function is called once for it, also where two processes work at the
    same items. The claims of a process that was killed run out after :data:`~paceline.data.places.CLAIM_S`; its calls in flight are
    made again.

    Args:
        place: The place. It is closed with the journal.
        name: Its name, for errors.
    """

    def __init__(self, place: JournalPlace, name: str) -> None:
        self._place, self._name, self.has_kept = place, name, False
        self._who, self._number, self._wait_s = os.urandom(8).hex(), count(1).__next__, START_S
        self._claiming = Patience(4 * AGAIN_S, f"the journal {name} cannot be used")
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="paceline-journal")
        # No locks: a finalizer can end an item anywhere, also while its thread begins another one.
        self._claims: dict[str, str] = {}  # by key the token
        self._given_up: Inbox[tuple[str, str] | None] = Inbox()
        self._closed = False
        # A thread: a function that keeps the event loop busy loses no claim.
        self._keeper = threading.Thread(target=self._look_after_claims, name="paceline-claims", daemon=True)
        self._keeper.start()

    async def begin(self, key: str, again: Collection[str] = ()) -> Kept | None:
        """See :meth:`OwnJournal.begin`. It waits while another process, or another map of this one, pays for the value."""
        token = f"{self._who}-{self._number()}"
        while True:
            found = await self._claimed(key, token)
            if found.entry is not None:
                kept = self._decoded(key, found.entry)
                if not _is_again(kept, again):
                    return kept
                await asyncio.wrap_future(self._threads.submit(self._place.drop, key))
                again = ()  # once: another process may have asked meanwhile
                continue
            if found.ours:
                self._claims[key] = token
                return None
            await asyncio.sleep(AGAIN_S)

    async def keep(self, key: str, entry: bytes) -> None:
        """See :meth:`OwnJournal.keep`."""
        await asyncio.wrap_future(self._threads.submit(self._place.write, key, zlib.compress(entry, 1)))
        self._claims.pop(key, None)
        self.has_kept |= not entry.startswith(_ERROR)

    def give_up(self, key: str) -> None:
        """See :meth:`OwnJournal.give_up`. It waits for nothing: if it fails, the claim runs out by itself."""
        token = self._claims.pop(key, None)
        if token is not None:
            self._given_up.put((key, token))

    async def settle(self) -> None:
        """See :meth:`OwnJournal.settle`."""
        await asyncio.wrap_future(self._threads.submit(self._place.settle))

    def close(self) -> None:
        """Close the place; claims that are left run out."""
        self._closed = True
        self._given_up.put(None)
        with suppress(RuntimeError):  # a finalizer in one of these threads, which does not wait for itself
            self._threads.shutdown(cancel_futures=True)
        with suppress(RuntimeError):
            self._keeper.join()
        self._place.close()

    async def _claimed(self, key: str, token: str) -> Claim:
        """Try to claim a key, again and again while the place cannot be used: nothing is paid for meanwhile."""

        async def claim() -> Claim:
            asked = self._threads.submit(self._place.claim, key, token)
            try:
                return await asyncio.wrap_future(asked)
            except asyncio.CancelledError:  # a thread may have begun
                asked.add_done_callback(lambda _: self._given_up.put((key, token)))
                raise

        found = await self._claiming.call(claim, lambda: self._wait_s)
        self._wait_s = WAIT_S
        return found

    def _look_after_claims(self) -> None:
        """Renew the claims that are held, and release those that are given up."""
        due_s = time.monotonic() + CLAIM_S / 3
        while not self._closed:
            now_s = time.monotonic()
            if now_s >= due_s:
                due_s = now_s + CLAIM_S / 3
                self._renew(list(self._claims.copy().items()))
                continue
            with suppress(queue.Empty, StoreError):
                given_up = self._given_up.get(due_s - now_s)
                if given_up is not None:
                    self._place.release(*given_up)

    def _renew(self, claims: list[tuple[str, str]]) -> None:
        try:
            if claims:
                self._place.renew(claims)
        except StoreError as error:
            log.warning("the claims in the journal %s are not renewed: %s", self._name, error)

    def _decoded(self, key: str, entry: bytes) -> Kept:
        try:
            return _read(zlib.decompress(entry))
        except (ValueError, TypeError, zlib.error) as error:
            raise StoreError(
                f"the journal {self._name}: the value of {key[:60]!r} is damaged, or was written by another program; give another name"
            ) from error


class Patience:
    """Calls of a journal, made again while they fail. All of them together log one warning a minute.

    Args:
        every_s: How often a call is made again.
        what: What has failed, for the log.
    """

    def __init__(self, every_s: float, what: str) -> None:
        self._every_s, self._what, self._said_s = every_s, what, -inf

    async def call(self, call: Callable[[], Awaitable[T]], most_s: Callable[[], float]) -> T:
        """Make a call, again and again while it fails, for as long as ``most_s`` says then.

        Raises:
            StoreError: It failed for too long.
        """
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        while True:
            try:
                return await call()
            except StoreError as error:
                now_s = loop.time()
                if now_s - begun_s >= most_s():
                    raise
                if now_s - self._said_s >= SAID_S:
                    self._said_s = now_s
                    log.warning("%s, trying again: %s", self._what, error)
                await asyncio.sleep(self._every_s)


Journal = OwnJournal | SharedJournal
"""The values by key, as a map uses them, and the errors of answers that would end the same."""


def _read(entry: bytes) -> Kept:
    """What an entry has.

    Raises:
        ValueError, TypeError: It is damaged.
    """
    if entry[:1] != _ERROR:
        return Kept(json.loads(entry))
    state, problem, text = json.loads(entry[1:])
    return Kept(error=UnfinishedError(state, problem, text))


def _is_again(kept: Kept, again: Collection[str]) -> bool:
    return kept.error is not None and kept.error.state in again


def encoded(value: object, index: int) -> bytes:
    """The entry of the value of the item at ``index``, in JSON; or of an error.

    Raises:
        SettingsError: The value does not come back as it is.
    """
    if isinstance(value, UnfinishedError):
        problem = str(value).removeprefix(f"{value.state}: ")
        return _ERROR + json.dumps([value.state, problem, value.text]).encode()
    try:
        text = json.dumps(value, allow_nan=False)
        comes_back = json.loads(text) == value
    except (TypeError, ValueError):
        comes_back = False
    if not comes_back:
        raise SettingsError(
            f"the function returned a {type(value).__name__} for item {index}, which a journal cannot keep as it is: "
            "return a text, a number, or a dict or list of them (of an SDK's answer: answer.model_dump(mode='json'))"
        )
    return text.encode()


def _plain(value: Any) -> object:
    """A value of a table as one of JSON: numbers of numpy, dates, decimals, and missing values."""
    if is_missing(value):
        return None
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, date | time_of_day | timedelta | Decimal | UUID | bytes):
        return str(value)
    raise TypeError
