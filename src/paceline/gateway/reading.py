"""What a body asks for: its cost and its models. A large one is read in a process of its own: no other client waits for that.

JSON of 64 MB takes a tenth of a second to read, and many seconds if it has many values. An event loop does nothing else meanwhile, and
a thread would hold the interpreter as long. One body is read at a time, of one key after another.
"""

from __future__ import annotations

import asyncio
import pickle
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, BinaryIO, Final, NamedTuple
from urllib.parse import unquote
from weakref import WeakValueDictionary

from paceline.gateway.asked import Asking, asking, may_ask
from paceline.gateway.connection import Headers
from paceline.gateway.errors import RequestError
from paceline.gateway.keys import ClientKey
from paceline.gateway.names import model_asked, renamed, renamed_path
from paceline.gateway.relay import plain
from paceline.gateway.rights import Asked, check_rights
from paceline.http.account import telling
from paceline.http.describe import body_of, call_of
from paceline.providers.base import Call, Provider
from paceline.providers.registry import base_of

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
_MAIN: Final = "from paceline.gateway.reading import main; main()"


class Task(NamedTuple):
    """What is to be read in a body.

    Attributes:
        members: The provider of each server that it may be sent to, with that server's own names of models.
        group: The name of the group that they are; empty for one server.
        path: The path there, as it came.
        query: The query.
        headers: The headers.
        encoding: The content encoding.
        key: The client's key; ``None`` for none.
    """

    members: tuple[tuple[Provider, Mapping[str, str]], ...]
    group: str
    path: str
    query: str
    headers: Headers
    encoding: bytes
    key: ClientKey | None

    @property
    def is_portable(self) -> bool:
        """Whether another process knows all of the providers: one of the user's own may be in no module that can be imported there."""
        return all(type(provider).__module__.startswith("paceline.providers.") for provider, _ in self.members)


class Seen(NamedTuple):
    """What was read in a body.

    Attributes:
        calls: The request at each server; none for one that costs nothing.
        bodies: The body for each server that has a name of its own for the model; ``None`` for the others.
        fields: Its fields; from another process those alone that tell whose it is, and what goes together.
        refusal: The status, the word and the message with which it is refused; ``None`` for nothing.
        content: Its bytes without their encoding; empty from another process.
        asking: From another process, what asks each server for the usage of its stream; ``None`` if nothing has to.
    """

    calls: tuple[Call, ...]
    bodies: tuple[bytes | None, ...] = ()
    fields: Mapping[str, Any] = {}
    refusal: tuple[int, str, str] | None = None
    content: bytes = b""
    asking: tuple[Asking | None, ...] = ()

    def asks(self, member: int) -> Asking | None:
        """What asks one of the servers for the usage of its stream."""
        return self.asking[member] if self.asking else asking(self.bodies[member] or self.content)


def is_large(body: bytes) -> bool:
    """Whether a body, without its content encoding, takes long to read."""
    return len(body) > LARGE or (len(body) > DENSE_FROM and body.count(b",") > DENSE)


def look(task: Task, read: bytes, *, sent: bool) -> Seen:
    """Read a body, without its encoding; ``sent``: whether there is one."""
    names = any(models for _, models in task.members) or task.group or not task.members
    fields = body_of(read)
    named = fields if names else {}
    bodies = tuple(renamed(read, named, models) for _, models in task.members)
    calls = tuple(_calls(task, fields, bodies))
    calls = calls if len(calls) == len(bodies) else ()
    seen = Seen(calls, bodies, fields, content=read)
    if task.key is None or not calls:
        return seen
    first, _ = task.members[0]
    model = model_asked(first, unquote(task.path), named, calls[0].model)
    asked = Asked(unquote(task.path), task.query, task.headers, read, sent)
    try:
        check_rights(task.key, task.group or first.name, first, model, asked)
    except RequestError as error:
        return seen._replace(refusal=(error.status, error.word, str(error)))
    return seen


def _calls(task: Task, fields: Mapping[str, Any], bodies: tuple[bytes | None, ...]) -> Iterator[Call]:
    """The request at each server; it ends at one where it costs nothing."""
    alike = dict[tuple[str, str], Call]()
    for (provider, models), own in zip(task.members, bodies, strict=True):
        path = unquote(renamed_path(task.path, models))
        kind = base_of(provider.name), path
        call = alike.get(kind) if own is None else None  # at another account
        if call is None:
            call = call_of(provider, path, fields if own is None else body_of(own))
        if call is None:
            return
        if own is None and not hasattr(provider, "at_host"):
            alike[kind] = call
        yield call


def _elsewhere(task: Task, body: bytes) -> Seen:
    """What another process tells of a body: nothing as large as that."""
    seen = look(task, plain(task.encoding, body), sent=bool(body))
    fields = telling(seen.fields) | {name: seen.fields.get(name) for name in (STICKY, MODEL)}
    stream = seen.fields.get("stream") is True
    asked = [
        seen.asks(member) if stream and may_ask(provider, unquote(renamed_path(task.path, models))) else None
        for member, (provider, models) in enumerate(task.members)
    ]
    return seen._replace(fields=fields, content=b"", asking=tuple(asked))


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
        # EOFError is also what asyncio raises if the process ends within its answer.
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
    answer = pickle.dumps(_elsewhere(task, asked.read(int.from_bytes(head[8:], "big"))))
    told.write(len(answer).to_bytes(8, "big") + answer)
    told.flush()
