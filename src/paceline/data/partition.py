"""One partition of a table, in any process of an engine: :func:`partition`."""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from paceline.core.hints import shown_names
from paceline.core.results import SettingsError, StoreError, UnfinishedError
from paceline.data.frames import rows_of
from paceline.data.journal import InvalidKeyError, ItemKeys, SharedJournal
from paceline.data.mapping import Map, Results
from paceline.data.places import SQLITE, open_place
from paceline.http.instrument import instrument
from paceline.limiter.limiter import Limiter
from paceline.pacing.owners import LOOK_S, is_async
from paceline.stores import NO_STORE

KEPT: Final = 8
"""How many limiters and journals a process keeps for its next partition, and how many clients of a limiter."""

ERROR: Final = "error"

TEXT_MAX: Final = 2_000
"""Characters of an unfinished text in the error of a row."""

T = TypeVar("T")


def partition(
    rows: Any,
    function: Callable[..., Any],
    *,
    journal: str,
    key: Callable[[Mapping[str, Any]], object] | str | None = None,
    client: Callable[[], Any] | None = None,
    into: str = "answer",
    again: str | Iterable[str] = (),
    concurrency: int | None = None,
    **settings: Any,
) -> Any:
    """Call ``function`` for each row of a partition, at the pace of quotas that all processes of the job share.

        async def ask(row, client):
            answer = await client.chat.completions.create(model="gpt-6-luna", messages=[{"role": "user", "content": row["text"]}])
            return paceline.finish_of(answer).whole()  # the text, or an UnfinishedError

        answered = paceline.partition(rows, ask, client=openai.AsyncOpenAI, journal="reviews-1", key="id")

    Each value is in the journal before the partition is done. If a partition starts again, after its worker was
    killed or by a second job, you pay again only for the requests in flight. If another process works at a row,
    paceline waits for its value.

    The quotas and the journal are in the store of the environment (``PACELINE_STORE``).

    Args:
        rows: A table of any kind that :func:`~paceline.run` takes, or an iterable of mappings.
        function: Takes a row, a dict, and the client if ``client`` is given; async, or sync, which runs in threads. It returns a text, a
            number, or a dict or list of them.
        journal: A name for the job: the journal is next to the store. Or ``sqlite:PATH``, for the processes of one
            machine.
        key: The column with the identity of a row in the whole job, or a function of the row; by default the hash of its content.
        client: Makes the client, once in each process, e.g. ``openai.AsyncOpenAI``; it is attached to the limiter. Without it, the
            limiter paces every client of the process, as :func:`~paceline.instrument` does.
        into: The new column with the values. ``error`` is the other one.
        again: The states of stored errors whose rows are sent once more, as for :func:`~paceline.map`.
        concurrency: The most calls at a time in this process, as for :func:`~paceline.map`.
        **settings: Settings as for :meth:`Limiter.load <paceline.Limiter.load>`: ``limits={"openai/gpt-6-luna": "500 requests/min"}``,
            ``tier=2``, ``store=...``. They take precedence over the environment and the file. ``on_store_failure`` is
            ``fail_closed`` here.

    Returns:
        A frame or a list of dicts, as ``rows`` is, in the same order, with both columns. If the function raised, the
        value is ``None``, and ``error`` is the type and the text of the exception. Otherwise ``error`` is ``None``.
        For a row without a key, or with the key
        of an earlier row, the function is not called, and ``error`` is ``invalid_row`` with the reason.

    Raises:
        SettingsError: A setting or a column is invalid, or a value cannot be kept as JSON.
        StoreError: No store is set that the processes share, or the journal can't be used for five minutes.
    """
    found, table = rows_of(rows)
    if taken := sorted({into, ERROR} & set().union(*found)):
        raise SettingsError(
            f"the rows have the column {taken[0]!r}, which is one of the new ones: rename or drop it, or give into=..."
        )
    if isinstance(key, str) and found and not any(key in row for row in found):
        raise SettingsError(
            f"the rows have no column {key!r}, which is the key: their columns are {shown_names(found[0])}"
        )

    def calls(call: Callable[[Any], Any], kept: SharedJournal) -> Map[Any, Any]:
        return Map(call, found, kept, ItemKeys(key, strict=False), concurrency, progress=None, again=again)

    values = _process().run(calls, function, journal, client, settings)
    return table(found, {into: list(values), ERROR: [_told(values.errors.get(at)) for at in range(len(found))]})


def _told(error: Exception | None) -> str | None:
    if error is None:
        return None
    if isinstance(error, InvalidKeyError):
        return f"invalid_row: it {error.why}"
    text = error.text[:TEXT_MAX] if isinstance(error, UnfinishedError) else ""
    return f"{type(error).__name__}: {error}" + (f"; its text: {text}" if text else "")


class _Paced:
    """A limiter, and the clients that are attached to it."""

    instrumented: ClassVar[Limiter | None] = None
    """The one that paces the clients of the whole process."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._limiter = Limiter(**arguments)
        self._clients: dict[Callable[[], Any], Any] = {}

    def called(self, function: Callable[..., Any], client: Callable[[], Any] | None) -> Callable[[Any], Any]:
        """``function`` of a row alone, paced. In the event loop that the client belongs to."""
        if client is None:
            if _Paced.instrumented is not self._limiter:
                _Paced.instrumented = self._limiter
                instrument(self._limiter)
            return function
        made = self._clients.get(client)
        if made is None:
            made = self._clients[client] = self._limiter.attach(client())
            while len(self._clients) > KEPT:
                del self._clients[next(iter(self._clients))]

        def call(row: Any) -> Any:
            return function(row, made)

        async def call_async(row: Any) -> Any:
            return await function(row, made)

        return functools.wraps(function)(call_async if is_async(function) else call)

    def close(self) -> None:
        """Close the limiter."""
        self._limiter.close()


class _Kept:
    """Objects by what they are made of, for the next partition: the last :data:`KEPT`, and those in use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[Any, tuple[Any, list[object]]] = {}  # with their users, the newest last

    @contextmanager
    def one(self, key: Any, make: Callable[[], T]) -> Iterator[T]:
        """The object for ``key``, which is used in the block."""
        user = object()
        with self._lock:
            made, users = self._all.pop(key, None) or (make(), [])
            self._all[key] = made, users
            users.append(user)
            unused = [old for old, (_, others) in self._all.items() if not others]
            for old in unused[: max(0, len(self._all) - KEPT)]:
                self._all.pop(old)[0].close()
        try:
            yield made
        finally:
            with self._lock:
                users.remove(user)

    def close(self) -> None:
        """Close all."""
        for made, _ in self._all.values():
            made.close()


class _Process:
    """What the partitions of one process share, and the event loop in which all of them run: clients are bound to one."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._paced, self._journals = _Kept(), _Kept()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="paceline-partitions", daemon=True)

    def start(self) -> None:
        """Run the loop; what was submitted before waits for it."""
        self._thread.start()

    def run(
        self,
        calls: Callable[[Callable[[Any], Any], SharedJournal], Map[Any, Any]],
        function: Callable[..., Any],
        name: str,
        client: Callable[[], Any] | None,
        settings: dict[str, Any],
    ) -> Results[Any]:
        """The results of one partition: of the ``calls`` of a paced ``function`` with the journal ``name``."""
        from paceline.config import ENV_PREFIX, load_arguments  # which needs an extra

        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "partition() in an async function of a partition would wait for itself: await paceline.map()"
            )
        arguments = load_arguments(**{"on_store_failure": "fail_closed", **settings})
        store = _checked(
            arguments["store"],
            "the store",
            "set PACELINE_STORE to 'redis://HOST:PORT/DB', or to 'sqlite:/FOLDER/quotas.db'",
        )
        _checked(name, "the journal", "write 'sqlite:/FOLDER/NAME.db', or a name")
        known = (
            json.dumps(settings, sort_keys=True, default=repr),
            sorted(item for item in os.environ.items() if item[0].startswith(ENV_PREFIX)),
        )
        with (
            self._paced.one(repr(known), lambda: _Paced(arguments)) as paced,
            self._journals.one((name, store), lambda: SharedJournal(open_place(name, store), name)) as journal,
        ):

            async def results() -> Results[Any]:
                return await calls(paced.called(function, client), journal)

            running = asyncio.run_coroutine_threadsafe(results(), self._loop)
            try:
                while True:
                    try:
                        return running.result(LOOK_S)  # an interrupt ends no longer wait on Windows
                    except TimeoutError:
                        if running.done():
                            raise
            finally:
                running.cancel()

    def close(self) -> None:
        """End the loop, and close what is kept."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._journals.close()
        self._paced.close()


def _checked(place: object, what: str, write: str) -> str:
    """Refuse a place that the processes of an engine do not share.

    Raises:
        StoreError: It is none, or depends on the folder of the process.
    """
    if not isinstance(place, str) or place == NO_STORE:
        raise StoreError(f"{what} is {place!r}, which the processes of a job do not share: {write}")
    path = place.removeprefix(SQLITE).removeprefix("//")
    if place.startswith(SQLITE) and not Path(path).expanduser().is_absolute():
        raise StoreError(f"{what} is {place!r}: an engine runs each process in a folder of its own: {write}")
    return place


_current: list[_Process] = []
"""The last one is this process's. The parents' stay as they are, because their connections are the parents'."""
_making = threading.Lock()


def _process() -> _Process:
    with _making:
        found = _current[-1] if _current and _current[-1].pid == os.getpid() else None
        if found is not None:
            return found
        _current.append(made := _Process())
    made.start()  # without the lock: under gevent others continue here, and a lock that is older than its patch would stop them all
    return made


@atexit.register
def _at_exit() -> None:
    if _current and _current[-1].pid == os.getpid():
        _current[-1].close()


def _after_fork() -> None:
    global _making  # noqa: PLW0603
    _making = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
