"""One function over many items: :func:`map`, for programs with an event loop, and :func:`map_sync`."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
    Sized,
)
from concurrent.futures import Future
from contextlib import ExitStack, aclosing, closing, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Generic, TypeVar, cast, overload

from paceline.core.hints import counted
from paceline.core.results import SettingsError, StoreError, UnfinishedError, warn
from paceline.data.crowd import AHEAD, CallEndedError, Crowd, CrowdPlace
from paceline.data.frames import is_table
from paceline.data.journal import FINAL, InvalidKeyError, ItemKeys, Journal, OwnJournal, Patience, encoded
from paceline.data.progress import EVERY_S, SAID_S, Bar, bar
from paceline.pacing.durable import LOOK_S
from paceline.pacing.owners import in_a_loop, in_a_thread, is_async
from paceline.pacing.permit import around_waits

T = TypeVar("T")
R = TypeVar("R")

MOST, MOST_THREADS = 5_000, 512
"""How many calls run at most by default: of an async function, and of a sync one, which needs a thread for each."""

JOURNAL_WAIT_S, JOURNAL_AGAIN_S = 60.0, 1.0
"""While the journal cannot be written to, a value is written again for so long, and so often. It is paid for already."""


@dataclass(frozen=True, slots=True)
class Done(Generic[T, R]):
    """What came of one item.

    Attributes:
        index: The place of the item, from 0.
        item: The item.
        value: What the function has returned; ``None`` if it has raised.
        error: What it has raised; ``None`` if it has returned.
    """

    index: int
    item: T
    value: R | None
    error: Exception | None


class Results(list[R | None]):
    """The values in the order of the items, with ``None`` where the function has raised.

    Attributes:
        errors: What it has raised, by the place of the item.
    """

    def __init__(self, dones: Iterable[Done[Any, R]]) -> None:
        ordered = sorted(dones, key=lambda done: done.index)
        super().__init__(done.value for done in ordered)
        self.errors: dict[int, Exception] = {done.index: done.error for done in ordered if done.error is not None}


def _check(
    function: object,
    items: object,
    journal: str | os.PathLike[str] | Journal | None,
    key: object,
    concurrency: object,
) -> None:
    """Refuse what :func:`map` cannot take."""
    if not callable(function):
        raise TypeError(f"map() takes a function and items, not a {type(function).__name__} first")
    if isinstance(items, str | bytes | Mapping) or is_table(items):
        raise TypeError(
            f"items is a {type(items).__name__}: give its rows, e.g. table.to_dict('records') with pandas, table.to_dicts() "
            "with polars, table.to_pylist() with pyarrow, or one of its columns"
        )
    if not isinstance(items, Iterable | AsyncIterable):
        raise TypeError(f"items is a {type(items).__name__}, which cannot be iterated over")
    if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
        raise SettingsError(f"concurrency is {concurrency!r}: it must be an integer, 1 or more, or None")
    if isinstance(journal, str | os.PathLike) and not os.fspath(journal):
        raise SettingsError("journal is an empty text: name a file, or leave journal out")
    if key is not None and journal is None:
        raise SettingsError("key names the items in a journal: give journal='FILE.db', too, or leave key out")


class Map(Coroutine[Any, Any, "Results[R]"], Generic[T, R]):
    """The calls of :func:`map`: ``await`` gives all results in order, ``async for`` each one as it comes.

    It is a coroutine for all results, so that ``asyncio.run`` and ``asyncio.create_task`` take it.
    """

    def __init__(
        self,
        function: Callable[[T], Any],
        items: Iterable[T] | AsyncIterable[T],
        journal: str | os.PathLike[str] | Journal | None,
        key: Callable[[T], object] | str | ItemKeys | None,
        concurrency: int | None,
        progress: bool | None,
        again: str | Iterable[str] = (),
    ) -> None:
        _check(function, items, journal, key, concurrency)
        self._again = states_in(again)
        if self._again and journal is None:
            raise SettingsError("again names what a journal keeps: give journal='FILE.db', too, or leave again out")
        self._function, self._items = function, items
        self._journal, self._keys = journal, key if isinstance(key, ItemKeys) else ItemKeys(key)
        self._in_threads = not is_async(function)
        self._most = concurrency or (MOST_THREADS if self._in_threads else MOST)
        self._progress = progress
        self._begun = False

    def __await__(self) -> Generator[Any, None, Results[R]]:
        return self._collected().__await__()

    def send(self, value: Any) -> Any:
        """See :class:`collections.abc.Coroutine`."""
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """See :class:`collections.abc.Coroutine`."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """See :class:`collections.abc.Coroutine`."""
        self._coroutine.close()

    @cached_property
    def _coroutine(self) -> Coroutine[Any, Any, Results[R]]:
        """All results, for an event loop that runs this object itself."""
        return self._collected()

    async def _collected(self) -> Results[R]:
        async with aclosing(self._each()) as dones:
            return Results([done async for done in dones])

    def __aiter__(self) -> AsyncIterator[Done[T, R]]:
        return self._each()

    async def _each(self) -> AsyncGenerator[Done[T, R], None]:
        """What comes of each item, as it comes."""
        if self._begun:
            raise RuntimeError("a map can be iterated once: call map() again")
        self._begun = True
        errors: dict[int, Exception] = {}
        with ExitStack() as stack:
            journal = self._journal
            if isinstance(journal, str | os.PathLike):
                own = journal = stack.enter_context(closing(OwnJournal(journal)))
                stack.enter_context(_every(LOOK_S, own.look))
            total = len(self._items) if isinstance(self._items, Sized) else None
            shown = stack.enter_context(bar(total, self._progress))
            crowd = Crowd(self._most)
            around_waits.append(crowd.around_wait)
            stack.callback(around_waits.remove, crowd.around_wait)
            stack.enter_context(_watched(crowd, shown))
            calls: _Calls[T, R] = _Calls(crowd, self._function, self._in_threads, journal, self._keys, self._again)
            async with aclosing(calls.each(self._items)) as dones:
                async for done in dones:
                    if done.error is not None:
                        errors[done.index] = done.error
                    shown.advance(len(errors))
                    if crowd.called >= AHEAD and not crowd.is_paced:
                        crowd.is_paced = True  # it is said once
                        self._warn("nothing that it calls is paced: limiter.attach(client) paces a client")
                    yield done
            if journal is not None:
                await journal.settle()
        if errors:
            first, kept = min(errors), ""
            if calls.kept:
                kept = f"; {calls.kept:,} of them before, whose errors are in the journal: again='declined,blocked' calls them again"
            self._warn(
                f"{counted(len(errors), 'call')} raised an exception, the first for item {first}: {type(errors[first]).__name__}{kept}"
            )

    def _warn(self, text: str) -> None:
        name = getattr(self._function, "__name__", type(self._function).__name__)
        warn(f"map of {name}: {text}")


@dataclass(eq=False)
class _Calls(Generic[T, R]):
    """The calls of one map.

    Attributes:
        kept: How many items had an error in the journal.
    """

    crowd: Crowd
    function: Callable[[T], Any]
    in_threads: bool
    journal: Journal | None
    keys: ItemKeys
    again: frozenset[str]
    kept: int = 0

    def __post_init__(self) -> None:
        self._first_has_ended: asyncio.Event | None = None  # before the first call
        self._failure: Exception | None = None
        self._keeping = Patience(JOURNAL_AGAIN_S, "a value is not in the journal")
        self._starter: asyncio.Task[None] | None = None
        self._running: dict[asyncio.Task[None], CrowdPlace] = {}
        self._ended: asyncio.Queue[Done[T, R] | None] = asyncio.Queue()

    async def each(self, items: Iterable[T] | AsyncIterable[T]) -> AsyncGenerator[Done[T, R], None]:
        """What comes of each item, as it comes."""
        feeder = asyncio.create_task(self._feed(items))
        feeder.add_done_callback(lambda _: self._ended.put_nowait(None))
        try:
            while (done := await self._ended.get()) is not None:
                self.crowd.take()
                yield done
            await feeder
        except BaseExceptionGroup as group:
            raise _first(group) from None
        finally:
            self.crowd.has_ended = True
            feeder.cancel()
            await asyncio.wait([feeder])

    async def _feed(self, items: Iterable[T] | AsyncIterable[T]) -> None:
        """Make the calls. After a failure no further one sends anything, and those in flight, which are paid, end before it is raised."""
        async with asyncio.TaskGroup() as calls:
            self._starter = calls.create_task(self._start(items, calls))
        if self._failure is not None:
            raise self._failure

    async def _start(self, items: Iterable[T] | AsyncIterable[T], calls: asyncio.TaskGroup) -> None:
        """Start the calls, in the order of the items."""
        try:
            async with aclosing(_numbered(items)) as numbered:
                async for index, item in numbered:
                    await self._begin(index, item, calls)
        except Exception as error:  # noqa: BLE001  (the items may raise any)
            self._fail(error)

    async def _begin(self, index: int, item: T, calls: asyncio.TaskGroup) -> None:
        """Start the call of one item when there is room for it."""
        try:
            key = "" if self.journal is None else self.keys.of(index, item)
        except InvalidKeyError as error:
            if self.keys.strict:
                raise
            await self.crowd.room()
            self._end(self.crowd.join(), Done(index, item, None, error))
            return
        await self.crowd.room()
        place = self.crowd.join()
        task = calls.create_task(self._finish(index, item, key, place))
        self._running[task] = place
        task.add_done_callback(self._running.pop)

    def _fail(self, error: Exception) -> None:
        """Start no further call, and end those that have sent nothing: they may wait for hours."""
        if self._failure is not None:
            return
        self._failure, self.crowd.has_failed = error, True
        assert self._starter is not None
        self._starter.cancel()  # it may wait for the next item
        for task, place in self._running.items():
            if not place.is_in_flight:
                task.cancel()

    async def _finish(self, index: int, item: T, key: str, place: CrowdPlace) -> None:
        """Hand over the value of one item."""
        try:
            self._end(place, await self._result(index, item, key, place))
        except CallEndedError:
            self.crowd.leave(place)  # it has sent nothing
        except Exception as error:  # noqa: BLE001  (it is raised by the one who feeds)
            self._fail(error)

    async def _result(self, index: int, item: T, key: str, place: CrowdPlace) -> Done[T, R]:
        """The value of one item, from the journal or from the function."""
        if self.journal is None:
            return await self._call(index, item, place)
        self.crowd.asking += 1
        try:
            found = await self.journal.begin(key, self.again)
        finally:
            self.crowd.asking -= 1
        if found is not None:
            self.kept += found.error is not None
            return Done(index, item, found.value, found.error)
        try:
            # The first call goes alone: a value that the journal cannot keep is found before many calls are paid for.
            if self._first_has_ended is None:
                self._first_has_ended = asyncio.Event()
            elif not self.journal.has_kept:
                await self._first_has_ended.wait()
            done = await self._call(index, item, place)
            if done.error is None or (isinstance(done.error, UnfinishedError) and done.error.state in FINAL):
                keep = partial(self._keep, self.journal, key, encoded(done.error or done.value, index), place)
                await self._keeping.call(keep, lambda: JOURNAL_WAIT_S)
            self._first_has_ended.set()
            return done
        finally:
            self.journal.give_up(key)

    async def _keep(self, journal: Journal, key: str, entry: bytes, place: CrowdPlace) -> None:
        """Keep a value. While the journal does not take it, few further calls start: a kill would lose their values, too."""
        try:
            await journal.keep(key, entry)
        except StoreError:
            self.crowd.hold(place)
            raise

    async def _call(self, index: int, item: T, place: CrowdPlace) -> Done[T, R]:
        """What comes of a call of the function."""
        try:
            with self.crowd.inside(place):
                result = await self._in_a_thread(item) if self.in_threads else self.function(item)
                value = cast("R", await result if inspect.isawaitable(result) else result)
        except asyncio.CancelledError as error:
            if cast("asyncio.Task[None]", asyncio.current_task()).cancelling():
                raise
            cancelled = RuntimeError("the call was cancelled").with_traceback(error.__traceback__)
            return Done(index, item, None, cancelled)
        except Exception as error:  # noqa: BLE001  (it is the caller's to judge)
            return Done(index, item, None, error)
        return Done(index, item, value, None)

    def _end(self, place: CrowdPlace, done: Done[T, R]) -> None:
        """Hand a result to the one who iterates."""
        self.crowd.leave(place)
        self._ended.put_nowait(done)

    async def _in_a_thread(self, item: T) -> Any:
        """The result of a sync function, in a thread that does not outlive the program."""
        outcome, ended, context = Future[Any](), Future[None](), copy_context()
        ended.set_running_or_notify_cancel()  # a cancellation ends the wait for the call, and not the call

        def call() -> None:
            try:
                outcome.set_result(context.run(self.function, item))
            except StopIteration as error:  # no coroutine may raise it
                outcome.set_exception(RuntimeError(f"the function raised {error!r}"))
            except BaseException as error:  # noqa: BLE001  (it is raised to the one who waits for the call)
                outcome.set_exception(error)
            ended.set_result(None)

        threading.Thread(target=call, name="paceline-map", daemon=True).start()
        await asyncio.wrap_future(ended)
        return outcome.result()  # asyncio would make a new error of a TimeoutError, without its traceback and its cause


@overload
def map(  # noqa: A001
    function: Callable[[T], Awaitable[R]],
    items: Iterable[T] | AsyncIterable[T],
    *,
    journal: str | os.PathLike[str] | None = None,
    key: Callable[[T], object] | str | None = None,
    again: str | Iterable[str] = (),
    concurrency: int | None = None,
    progress: bool = True,
) -> Map[T, R]: ...


@overload
def map(  # noqa: A001
    function: Callable[[T], R],
    items: Iterable[T] | AsyncIterable[T],
    *,
    journal: str | os.PathLike[str] | None = None,
    key: Callable[[T], object] | str | None = None,
    again: str | Iterable[str] = (),
    concurrency: int | None = None,
    progress: bool = True,
) -> Map[T, R]: ...


def map(  # noqa: A001
    function: Callable[[T], Any],
    items: Iterable[T] | AsyncIterable[T],
    *,
    journal: str | os.PathLike[str] | None = None,
    key: Callable[[T], object] | str | None = None,
    again: str | Iterable[str] = (),
    concurrency: int | None = None,
    progress: bool = True,
) -> Map[T, Any]:
    """Call ``function`` for each of ``items``, as fast as the limiters of its clients allow.

    New calls start while fewer than 64 wait for a permit. If the client of your function is attached, its limiter
    paces the calls. If your function asks for no permits, 64 calls run at a time. An exception ends only its own
    call.

    Args:
        function: Takes an item; async, or sync, which runs in threads.
        items: The items, taken as calls start.
        journal: A file that stores every value as JSON. After a crash, the same call reads the values, and calls the
            function only for the other items. It also stores an :class:`~paceline.UnfinishedError` with the state
            ``declined`` or ``blocked``, because the item would cost the same and end the same.
        key: Returns the key of an item in the journal, a text or an integer, or names the field with it; by default the hash of
            the item, which must be a JSON value then.
        again: The states of stored errors whose items are called again: ``"declined,blocked"``.
        concurrency: The most calls at a time; by default 5,000, of a sync function 512.
        progress: Whether to show a bar, if tqdm is installed; otherwise a line every ten seconds, on standard error.

    Returns:
        A coroutine for :class:`Results`, to await or to give to ``asyncio.run``; or to iterate over with ``async for`` for a
        :class:`Done` of each item. The end of the iteration warns of exceptions.

    Raises:
        TypeError: ``items`` is a table, a mapping or a text, or ``function`` is none.
        SettingsError: An argument is invalid; while it runs: a key is missing or given twice, or a value cannot be kept as JSON.
        StoreError: While it runs: the journal cannot be used.

    Example:
        client = limiter.attach(openai.AsyncOpenAI())

        async def ask(text):
            answer = await client.responses.create(model="gpt-6-luna", input=text)
            return paceline.finish_of(answer).whole()

        answers = await paceline.map(ask, ["Name a river.", "Name a lake."], journal="answers.db")
    """
    return Map(function, items, journal, key, concurrency, progress, again)


def states_in(again: str | Iterable[str]) -> frozenset[str]:
    """The states that a user names.

    Raises:
        SettingsError: No error of such a state is kept.
    """
    given = [again] if isinstance(again, str) else again
    names = {name.strip() for one in given for name in one.split(",")} - {""}
    if unknown := sorted(names - FINAL):
        raise SettingsError(
            f"again: {unknown[0]!r} is no state whose errors a journal keeps: {', '.join(sorted(FINAL))}"
        )
    return frozenset(names)


@overload
def map_sync(
    function: Callable[[T], Awaitable[R]],
    items: Iterable[T],
    *,
    journal: str | os.PathLike[str] | None = None,
    key: Callable[[T], object] | str | None = None,
    again: str | Iterable[str] = (),
    concurrency: int | None = None,
    progress: bool = True,
) -> Results[R]: ...


@overload
def map_sync(
    function: Callable[[T], R],
    items: Iterable[T],
    *,
    journal: str | os.PathLike[str] | None = None,
    key: Callable[[T], object] | str | None = None,
    again: str | Iterable[str] = (),
    concurrency: int | None = None,
    progress: bool = True,
) -> Results[R]: ...


def map_sync(
    function: Callable[[T], Any],
    items: Iterable[T],
    *,
    journal: str | os.PathLike[str] | None = None,
    key: Callable[[T], object] | str | None = None,
    again: str | Iterable[str] = (),
    concurrency: int | None = None,
    progress: bool = True,
) -> Results[Any]:
    """Return the results of :func:`map`, for programs without an event loop, and for sync functions anywhere.

    The arguments and errors are the same as of :func:`map`. If an event loop runs already (a notebook), an async
    function gets another loop in a thread. If its client is bound to a loop, use ``await paceline.map(...)``.

    Example:
        lengths = paceline.map_sync(len, ["one", "three"], progress=False)
        print(list(lengths))
    """
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def results() -> Results[Any]:
        running.append((asyncio.get_running_loop(), cast("asyncio.Task[Any]", asyncio.current_task())))
        return await map(
            function, items, journal=journal, key=key, again=again, concurrency=concurrency, progress=progress
        )

    if not in_a_loop():
        return asyncio.run(results())

    def cancel(_: int) -> None:
        for loop, task in running:
            loop.call_soon_threadsafe(task.cancel)

    return in_a_thread(lambda: asyncio.run(results()), cancel)


@contextmanager
def _watched(crowd: Crowd, shown: Bar) -> Generator[None, None, None]:
    """Let ``shown`` say why no call ends for a while: after :data:`EVERY_S`, and then once in :data:`SAID_S`."""
    loop = asyncio.get_running_loop()
    ended, next_s = 0, 0.0

    def look() -> None:
        nonlocal ended, next_s
        if crowd.called != ended:
            ended = crowd.called
        elif loop.time() >= next_s and (why := crowd.why()) is not None:
            shown.stands(why)
            next_s = loop.time() + SAID_S

    with _every(EVERY_S, look):
        yield


@contextmanager
def _every(seconds: float, step: Callable[[], None]) -> Generator[None, None, None]:
    """Call ``step`` again and again."""
    loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()

    def turn() -> None:
        step()
        timers[:] = [loop.call_later(seconds, turn)]

    timers[:] = [loop.call_later(seconds, turn)]
    try:
        yield
    finally:
        timers[0].cancel()


async def _numbered(items: Iterable[T] | AsyncIterable[T]) -> AsyncGenerator[tuple[int, T], None]:
    """Each item with its place."""
    index = 0
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield index, item
            index += 1
    else:
        for index, item in enumerate(items):
            yield index, item


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first exception in nested groups."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
