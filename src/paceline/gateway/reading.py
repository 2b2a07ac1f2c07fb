"""Large bodies, which are read for their cost and their models in a process of its own: no other client waits for that.

JSON of 64 MB takes a tenth of a second to read, and many seconds if it has many values. An event loop does nothing else meanwhile, and
a thread would hold the interpreter as long. One body is read at a time, of one key after another.
"""

from __future__ import annotations

import asyncio
import pickle
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, BinaryIO, Final, NamedTuple
from urllib.parse import unquote
from weakref import WeakValueDictionary

from paceline.gateway.asked import Asking, asking, may_ask
from paceline.gateway.client import Headers
from paceline.gateway.errors import RequestError
from paceline.gateway.keys import ClientKey
from paceline.gateway.names import fields_of, model_asked, renamed, renamed_path
from paceline.gateway.relay import plain
from paceline.gateway.rights import Asked, check_rights
from paceline.http.account import telling
from paceline.http.describe import body_of
from paceline.providers.base import Call, Provider
from paceline.providers.registry import provider_named

LARGE: Final = 4 * 2**20
"""Bytes of a body that is read elsewhere. A conversation has less: its prompt is looked for in the cache of the provider, which is known
in this process alone."""

DENSE_FROM: Final = 2**18
"""Bytes of a body from which on its values are counted, roughly."""

DENSE: Final = 50_000
"""Commas in such a body from which on it is read elsewhere, too: so many values take 20 ms."""

MODEL: Final = "model"
"""The field with the name of a model, which decides on the servers of a body."""

READ_S: Final = 30.0
"""The longest time in which a body is read: 64 MB of numbers take as long."""

STICKY: Final = "prompt_cache_key"
"""The field by which a group sends requests to the same member."""

_SLICE: Final = 2**18  # bytes that are written in one step
_PLACES: Final = ("host", "region")  # what a provider has of its address
_MAIN: Final = "from paceline.gateway.reading import main; main()"


class Server(NamedTuple):
    """A server that a body may be sent to.

    Attributes:
        provider: The name of its provider.
        places: What that has of its address.
        models: Its own names of models.
    """

    provider: str
    places: dict[str, str]
    models: dict[str, str]


class Task(NamedTuple):
    """What is to be read in a body.

    Attributes:
        servers: The servers that it may be sent to.
        group: The name of the group that they are; empty for one server.
        path: The path there, as it came.
        query: The query.
        headers: The headers.
        encoding: The content encoding.
        most: The most bytes of the body without it.
        key: The client's key; ``None`` for none.
    """

    servers: tuple[Server, ...]
    group: str
    path: str
    query: str
    headers: Headers
    encoding: bytes
    most: int
    key: ClientKey | None


class Seen(NamedTuple):
    """What was read in a body.

    Attributes:
        calls: The request at each server; none for one that costs nothing.
        refusal: The status, the word and the message with which it is refused; ``None`` for nothing.
        bodies: The body for each server that has a name of its own for the model; ``None`` for the others.
        asking: What asks each server for the usage of its stream; ``None`` if nothing has to.
        telling: What tells whose it is, and what goes together.
    """

    calls: tuple[Call, ...]
    refusal: tuple[int, str, str] | None = None
    bodies: tuple[bytes | None, ...] = ()
    asking: tuple[Asking | None, ...] = ()
    telling: Mapping[str, Any] = {}


def is_large(body: bytes) -> bool:
    """Whether a body, without its content encoding, takes long to read."""
    return len(body) > LARGE or (len(body) > DENSE_FROM and body.count(b",") > DENSE)


def task_for(servers: Sequence[tuple[Any, Mapping[str, str]]], task: Task) -> Task | None:
    """A task with ``servers`` and their names of models; ``None`` where another process does not know a provider."""
    found = list[Server]()
    for provider, models in servers:
        same = provider_named(provider.name)
        if type(same) is not type(provider) or not type(provider).__module__.startswith("paceline.providers."):
            return None
        places = {name: value for name, value in vars(provider).items() if name in _PLACES}
        found.append(Server(provider.name, places, dict(models)))
    return task._replace(servers=tuple(found))


def look(task: Task, body: bytes) -> Seen:
    """Read a body."""
    read = plain(task.encoding, body, task.most)
    fields, named = (
        body_of(read),
        fields_of(read) if any(one.models for one in task.servers) or task.group or not task.servers else {},
    )
    calls, bodies, asked = list[Call](), list[bytes | None](), list[Asking | None]()
    providers = [_provider_of(server) for server in task.servers]
    for server, provider in zip(task.servers, providers, strict=True):
        own, path = renamed(read, named, server.models), unquote(renamed_path(task.path, server.models))
        call = _described(provider, path, fields if own is None else body_of(own))
        if call is None:
            return Seen(())
        asks = fields.get("stream") is True and may_ask(provider, path)
        calls.append(call)
        bodies.append(own)
        asked.append(asking(own or read) if asks else None)
    seen = Seen(
        tuple(calls),
        None,
        tuple(bodies),
        tuple(asked),
        telling(fields) | {STICKY: named.get(STICKY), MODEL: named.get(MODEL)},
    )
    if task.key is None or not calls:
        return seen
    model = model_asked(providers[0], unquote(task.path), named, calls[0].model)
    asked_for = Asked(unquote(task.path), task.query, task.headers, read, bool(body))
    return seen._replace(refusal=_refusal(task.key, task.group, providers[0], model, asked_for))


def _refusal(key: ClientKey, group: str, provider: Provider, model: str, asked: Asked) -> tuple[int, str, str] | None:
    try:
        check_rights(key, group or provider.name, provider, model, asked)
    except RequestError as error:
        return error.status, error.word, str(error)
    return None


def _provider_of(server: Server) -> Provider:
    provider: Provider = copy(provider_named(server.provider))
    vars(provider).update(server.places)
    return provider


def _described(provider: Provider, path: str, fields: Mapping[str, Any]) -> Call | None:
    try:
        return provider.describe(path, fields)
    except RecursionError:  # as :func:`paceline.http.describe.described`
        return provider.describe(path, {})


class BodyReader:
    """Reads large bodies in a process, which begins with the first of them."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._own_turns = WeakValueDictionary[str, asyncio.Lock]()

    async def read(self, owner: str, task: Task, body: bytes) -> Seen | None:
        """What is in a body of ``owner``, before whom each other one has a turn; ``None`` where there can be no such process.

        Raises:
            RequestError: It cannot be read.
        """
        async with self._own_turns.setdefault(owner, asyncio.Lock()):
            await self._turn.acquire()
            asking = asyncio.create_task(self._ask(task, body))
            asking.add_done_callback(self._done)
            return await asyncio.shield(asking)  # a client that leaves does not break what has begun

    def _done(self, asking: asyncio.Task[Seen | None]) -> None:
        self._turn.release()
        if not asking.cancelled():
            asking.exception()  # which the client may not be there for

    async def _ask(self, task: Task, body: bytes) -> Seen | None:
        try:
            async with asyncio.timeout(READ_S):
                process = self._process
                if process is None or process.returncode is not None:  # it may have been killed, for want of memory
                    process = await self._start()
                return None if process is None else await _exchange(process, task, body)
        except TimeoutError:
            await self.close()
            raise RequestError(413, "too_large", "the body has too many values to be read in time: send less") from None
        except (OSError, EOFError):
            await self.close()
            raise RequestError(503, "unread", "the body could not be read: send it again") from None

    async def _start(self) -> Process | None:
        if not sys.executable:
            return None
        with suppress(NotImplementedError):  # an event loop without processes
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _MAIN),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                start_new_session=sys.platform != "win32",  # a signal of the terminal is for its parent
            )
        return self._process

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _exchange(process: Process, task: Task, body: bytes) -> Seen:
    assert process.stdin is not None
    assert process.stdout is not None
    asked, view = pickle.dumps(task), memoryview(body)
    head = len(asked).to_bytes(8, "big") + len(body).to_bytes(8, "big") + asked
    parts: list[bytes | memoryview] = [head, *(view[start : start + _SLICE] for start in range(0, len(body), _SLICE))]
    for part in parts:
        if process.stdin.is_closing():  # uvloop fails otherwise
            raise EOFError
        process.stdin.write(part)
        await process.stdin.drain()
    length = int.from_bytes(await process.stdout.readexactly(8), "big")
    seen: Seen = pickle.loads(await process.stdout.readexactly(length))  # noqa: S301  (of a process of its own)
    return seen


def main() -> None:
    """Read bodies until there are no more: the other process has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked, told = sys.stdin.buffer, sys.stdout.buffer
    while head := asked.read(16):
        _tell(asked, told, head)


def _tell(asked: BinaryIO, told: BinaryIO, head: bytes) -> None:
    task: Task = pickle.loads(asked.read(int.from_bytes(head[:8], "big")))  # noqa: S301
    answer = pickle.dumps(look(task, asked.read(int.from_bytes(head[8:], "big"))))
    told.write(len(answer).to_bytes(8, "big") + answer)
    told.flush()
