"""A request as it comes from its client: its head, and its body within bounds of memory and time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Self
from urllib.parse import unquote

from paceline.gateway.access import AccessEntry
from paceline.gateway.connection import Headers
from paceline.gateway.errors import RequestError
from paceline.gateway.keys import ClientKey
from paceline.gateway.protocol import HttpProtocol
from paceline.gateway.reading import LARGE, BodyReader, Seen, Task, is_large, look
from paceline.gateway.relay import BODY_MAX, plain
from paceline.gateway.shares import Shares
from paceline.gateway.upstreams import Destination, Upstream, path_at
from paceline.pacing.pacer import NAME_MAX
from paceline.telemetry.status_app import Event, Receive, Send

BODIES_MAX: Final = 1024 * 2**20
"""Bytes of the bodies of all requests that wait or are in flight, which client keys share."""

BODY_S: Final = 60.0
"""The longest time in which the body of a request may arrive, or ``UPLOAD_LEAST`` of one that is passed on as it comes."""

UPLOAD_LEAST: Final = 2**20
"""Bytes of an upload that must arrive in ``BODY_S``."""

UPLOAD_FROM: Final = 2**20
"""Bytes of a body from which on it is passed on as it comes, if nothing of it is read: the body of an unmetered request."""

JOINED_HERE: Final = 2**20
"""Bytes of a body whose parts are joined at once."""

OPTION: Final = b"x-paceline-"
"""What the headers with options of the gateway begin with."""


class RequestHead(NamedTuple):
    """The head of a request.

    Attributes:
        method: Its method.
        query: The query of its target.
        headers: Its headers that may be passed on.
        first: The first value of each of its headers.
        key_path: What its path began with, where that was a key of the gateway: a slash and the key.
    """

    method: str
    query: str
    headers: Headers
    first: Mapping[bytes, bytes]
    key_path: str = ""

    def options(self) -> dict[bytes, str]:
        """The headers that are options of the gateway."""
        return {name: value.decode("latin-1") for name, value in self.headers if name.startswith(OPTION)}

    def header(self, name: str) -> str:
        """The first value of a header, by its name in lower case; empty for none."""
        return self.first.get(name.encode(), b"").decode("latin-1")

    @property
    def length(self) -> int | None:
        """The length of the body; ``None`` if it is not stated."""
        stated = self.first.get(b"content-length")
        return None if stated is None else int(stated)


@dataclass(slots=True, eq=False, repr=False)  # its key and its body are for no log
class Incoming:
    """A request of a client to a server.

    Attributes:
        head: Its head.
        receive: See ASGI.
        send: See ASGI.
        connection: Its connection.
        entry: Its entry in the access log.
        key: The client's key; ``None`` where clients need none.
        given: That key as it was sent; empty for none.
        place: Where it goes.
        path: Its path there, not decoded.
        options: Its options for the gateway, by the headers that have them.
        open_path: Its path at the gateway, where the name of a model has led to the place; empty where the path has.
        parts: What has been counted of its body, and is in memory.
    """

    head: RequestHead
    receive: Receive
    send: Send
    connection: HttpProtocol
    entry: AccessEntry
    key: ClientKey | None
    given: str
    place: Destination
    path: str
    options: Mapping[bytes, str] = field(default_factory=dict)
    open_path: str = ""
    parts: list[bytes] = field(default_factory=list)

    def at(self, place: Destination) -> Self:
        """The same request at a place that the name of its model has led to."""
        open_path = self.open_path or self.path
        path = path_at(place.members[0], open_path)
        # With a list of its own: it may go there when its client has left.
        return replace(self, place=place, path=path, open_path=open_path, parts=list(self.parts))

    async def next_part(self) -> Event:
        """The next part of its body, which is asked for where its client waits for that."""
        self.connection.asked = True
        return await self.receive()

    @property
    def decoded_path(self) -> str:
        """Its path there, decoded."""
        return unquote(self.path)

    @property
    def owner(self) -> str:
        """The identity of the client's key, which has a part of each bound; empty for none."""
        return "" if self.key is None else self.key.identity

    @property
    def user(self) -> str:
        """The user whom a front end names; empty for none.

        Raises:
            RequestError: The name is no line of text, or is too long.
        """
        header = "" if self.key is None else self.key.users
        found = self.head.first.get(header.lower().encode("ascii"), b"").decode("utf-8", "replace")
        if len(found) > NAME_MAX or not found.isprintable():
            raise RequestError(400, "user", f"{header} must have at most {NAME_MAX} characters, all of them printable")
        return found


class Bodies:
    """The bodies of all requests of a process."""

    def __init__(self) -> None:
        self._shares, self._joining, self._reader = Shares(), asyncio.Lock(), BodyReader()

    async def close(self) -> None:
        """End the process that reads large ones."""
        await self._reader.close()

    def release(self, owner: str, parts: list[bytes]) -> None:
        """What was counted for ``owner`` is needed no more."""
        self._shares.use(owner, -sum(map(len, parts)))

    async def read(self, request: Incoming, is_unread: Callable[[], bool]) -> bytes | None:
        """The body of a request; it is counted as it comes. ``None`` for a large one that is not read: the rest is to come.

        The connection of a client that is too slow ends.

        Raises:
            RequestError: It is too large.
        """
        length, looked, parts, owner = request.head.length or 0, False, request.parts, request.owner
        size, more = 0, True
        late = asyncio.get_running_loop().call_later(BODY_S, request.connection.abort)
        try:
            while more:
                if max(length, size) > UPLOAD_FROM and not looked:
                    looked = True
                    if is_unread():
                        return None
                if max(length, size) > BODY_MAX:
                    raise RequestError(413, "too_large", f"the body is larger than {BODY_MAX // 2**20} MB")
                # Before each part, and not once, because other bodies come at the same time.
                if not self._shares.fits(owner, max(length - size, 0), BODIES_MAX):
                    whose = "this key's requests" if owner else "all requests"
                    raise RequestError(503, "memory", f"the bodies of {whose} are too large: send this one later")
                event = await request.next_part()
                parts.append(event.get("body", b""))
                size += len(parts[-1])
                self._shares.use(owner, len(parts[-1]))
                more = event.get("more_body", False)
            # In a thread, which does not need the interpreter; one after another, because all need the processor.
            if size > JOINED_HERE:
                async with self._joining:
                    parts[:] = [await asyncio.to_thread(b"".join, parts)]
            else:
                parts[:] = [b"".join(parts)]
            return parts[0]
        finally:
            late.cancel()

    async def look(self, request: Incoming, body: bytes, members: Sequence[Upstream]) -> Seen:
        """What is in a body that ``members`` may get; another process reads one that takes long.

        Only a POST is metered. In the body of another request nothing is read but names of models.
        """
        place, head = request.place, request.head
        encoding = head.first.get(b"content-encoding", b"identity")
        if members and head.method != "POST" and not place.reads_names:
            return Seen((), (None,) * len(members))
        group = "" if place.choice is None else place.name
        those = tuple((one.provider, one.models) for one in members)
        task = Task(those, group, request.path, head.query, head.headers, encoding, request.key)
        read = plain(encoding, body, LARGE + 1)
        if head.method == "POST" and is_large(read) and task.is_portable:
            seen = await self._reader.read(request.owner, task, body)
            if seen is not None:
                return seen
        return look(task, read if len(read) <= LARGE else plain(encoding, body), sent=bool(body))

    async def coming(self, request: Incoming) -> AsyncGenerator[bytes]:
        """The parts of a body as they come, after those that have come; ends the connection of a client that is too slow."""
        parts = request.parts
        while parts:
            self._shares.use(request.owner, -len(parts[0]))
            if part := parts.pop(0):
                yield part
        loop = asyncio.get_running_loop()
        size, more, until_s = 0, True, loop.time() + BODY_S
        while more:
            late = loop.call_at(until_s, request.connection.abort)
            try:
                event = await request.next_part()
            finally:
                late.cancel()
            if event["type"] != "http.request":
                raise ConnectionResetError
            size += len(event["body"])
            more, came_s = event["more_body"], loop.time()
            if event["body"]:
                yield event["body"]
            until_s += loop.time() - came_s  # in which the server took it
            if size >= UPLOAD_LEAST:
                size, until_s = 0, loop.time() + BODY_S


def number(
    options: Mapping[bytes, str], name: bytes, least: float, most: float, also: float | None = None
) -> float | None:
    """The number in an option; ``None`` without it.

    Raises:
        RequestError: It is none, or out of bounds.
    """
    text = options.get(name)
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan  # which is within no bounds
    if number != also and not least <= number <= most:
        shown = name.decode()
        raise RequestError(400, "option", f"{shown} is {text[:60]!r}: it must be a number from {least:g} to {most:g}")
    return number
