"""The gateway as an ASGI application: finds the server, waits for a permit, and passes the answer on as it comes."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from traceback import format_tb
from typing import Any, Final, NamedTuple, Protocol, cast
from urllib.parse import unquote, urlsplit

from paceline.core.results import QuotaError
from paceline.gateway.access import AccessLog, Entry
from paceline.gateway.answers import Answers
from paceline.gateway.client import Client, Headers, Upload
from paceline.gateway.keys import ClientKey, Keys
from paceline.gateway.life import Event as LifeEvent
from paceline.gateway.life import State, after
from paceline.gateway.models import IDLE_S, MODELS_MAX, NamedModels
from paceline.gateway.relay import HOP_BY_HOP, Relayed, Reply, forwarded, plain, readable
from paceline.gateway.siblings import Siblings
from paceline.gateway.upstreams import KEY_HEADERS, Place, Upstream, Upstreams, is_plain, key_in_query, without_key
from paceline.gateway.waiting import (
    IDEMPOTENCY,
    NOTES_EVERY_S,
    NOTES_FROM_S,
    PLACE_S,
    SOON,
    Held,
    Identity,
    KeptExchange,
    KeptRoutedExchange,
    Places,
    hears,
    identity,
    note_for,
    patience_s,
)
from paceline.http.describe import Metered, at_account, describe
from paceline.http.exchange import Exchange
from paceline.http.routed import Way
from paceline.http.unpaced import announce
from paceline.limiter.limiter import Limiter
from paceline.limiter.watch import StoreWatch
from paceline.pacing.faults import Fault, fault_of
from paceline.pacing.lack import Lack, lack_of
from paceline.pacing.pacer import NAME_MAX, current_lane
from paceline.pacing.settings import TIMEOUT_MAX_S
from paceline.providers.base import Call
from paceline.providers.registry import base_of, is_loopback
from paceline.telemetry.status_app import is_page, status_app

log = logging.getLogger("paceline.gateway")

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

BODY_MAX: Final = 64 * 2**20
"""Bytes in the body of a request."""

BODIES_MAX: Final = 1024 * 2**20
"""Bytes of the bodies of all requests that wait or are in flight."""

BODY_S: Final = 60.0
"""The longest time in which the body of a request may arrive, or ``UPLOAD_LEAST`` of one that is passed on as it comes."""

UPLOAD_LEAST: Final = 2**20
"""Bytes of an upload that must arrive in ``BODY_S``."""

UPLOAD_FROM: Final = 2**20
"""Bytes of a body from which on it is passed on as it comes, if nothing of it is read: the body of an unmetered request."""

TELL_S: Final = 60.0
"""The least time between two lines of the log that tell of the same lack."""

LOOK_S: Final = 5.0
"""The time between two looks for clients that are slower, and at a store that answers."""

RETRY_S: Final = 1.0
"""The time between two looks at a store that does not answer."""

NOTES_S: Final = (1.0, 600.0)
"""The bounds of ``x-paceline-keepalive``, beside 0."""

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""The methods that are passed on: none that lets a server repeat the request's headers, with a key, in its answer."""

OWN: Final = frozenset({"", "status", "history", "metrics", "assets", "api", "favicon.ico"})
"""The first parts of the gateway's own paths, of the status page."""

CONNECTION: Final = "paceline"
"""The extension of a scope under which the server passes the connection; see :class:`Connection`."""

ENTRY: Final = "paceline.access"
"""The extension of a scope with the entry of the access log."""

OPTION: Final = b"x-paceline-"
_TIMEOUT, _LANE, _PRIORITY = b"x-paceline-timeout", b"x-paceline-lane", b"x-paceline-priority"
_NAME, _KEEPALIVE, _ID = b"x-paceline-name", b"x-paceline-keepalive", b"x-paceline-id"
_STICKY = b"x-paceline-sticky"
_DROPPED: Final = HOP_BY_HOP | {_TIMEOUT, _LANE, _PRIORITY, _NAME, _KEEPALIVE, _ID, _STICKY, b"accept-encoding"}


class Connection(Protocol):
    """A client's connection."""

    task: asyncio.Task[Any] | None
    """Cancelled when the client goes away."""
    gone: bool
    """Whether the client went away."""
    opened_s: float
    """When it was opened, on the monotonic clock."""

    @property
    def answering(self) -> bool:
        """Whether the head of an answer has been sent for the present request."""

    def abort(self) -> None:
        """Close it at once."""

    def close(self) -> None:
        """Close it when all is sent."""


class RequestError(Exception):
    """A request that the gateway does not send: the status and the word of its answer, and a message."""

    def __init__(self, status: int, word: str, message: str) -> None:
        super().__init__(message)
        self.status, self.word = status, word


class Gateway:
    """The gateway.

    Args:
        limiter: The limiter.
        upstreams: The servers.
        client: Makes the HTTP client, when the event loop runs.
        keys: The keys of clients.
        folder: Where the processes of the gateway have their sockets; ``None`` for the only process.
        store: Looks whether the store answers.
        begun: Called when it serves.
        access: Writes a line about each request; ``None``: nothing does.
        takes_over: Whether it serves only when the store has answered: the process before does until then.
        open_to_all: Whether clients need no key as long as there are none: only on loopback.
        hosts: The names of this server in the header ``host``, while clients need no key; a browser that was led here
            by another name sends that name.
        tells_quotas: Whether answers keep the headers that say what is left of the provider's quotas.

    Attributes:
        state: What it does with requests.
    """

    def __init__(
        self,
        limiter: Limiter,
        upstreams: Upstreams,
        client: Callable[[], Client],
        *,
        keys: Keys,
        folder: Path | None = None,
        store: StoreWatch,
        begun: Callable[[], None],
        access: AccessLog | None = None,
        takes_over: bool = False,
        open_to_all: bool,
        hosts: Iterable[str] = (),
        tells_quotas: bool = True,
    ) -> None:
        self.limiter, self.upstreams = limiter, upstreams
        self._tells_quotas = tells_quotas
        self.state = State.STARTING
        self._store, self._begun, self._takes_over = store, begun, takes_over
        self._access = access
        self._store_answers = asyncio.Event()
        if not store.shared:
            self._store_answers.set()
        self._make = client
        self._client: Client | None = None
        self._keys = keys
        self._siblings = Siblings(limiter, self._place, folder)
        one_or_all = limiter if folder is None else self._siblings
        self._page = status_app(one_or_all, apart=self._apart)  # answers the gateway's own paths
        self._reports = asyncio.Lock()
        self._models = NamedModels(limiter.pacer.pools)
        self._needs_key = not open_to_all or len(keys) > 0
        self._hosts = frozenset(hosts)
        self._limited: dict[str, ClientKey] = {}  # the keys whose limits the limiter has
        self._held = 0  # bytes of bodies
        self._waiting: dict[str, Exchange] = {}  # by the id of the request
        self._tasks: dict[asyncio.Task[Any], Exchange] = {}  # those that wait for a permit or an answer
        self._places = Places(self._end)
        self._answers = Answers()
        self._slow: dict[Connection, float] = {}  # until when a client must send its body
        self._helpers: list[asyncio.Task[None]] = []

    # The server's side.

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http":
            connection = scope["extensions"][CONNECTION]
            connection.task = task = asyncio.current_task()
            entry = None
            if self._access is not None:
                entry = scope["extensions"][ENTRY] = self._access.begin(scope, send)
                send = entry.send
            try:
                await self._answer(scope, receive, send, connection)
            except RequestError as error:
                if connection.answering:
                    connection.abort()
                else:
                    await _respond(_refusal(error), send)
            except asyncio.CancelledError:
                if not connection.gone:
                    if not self.state.closed:
                        raise
                    if connection.answering:  # the time for what is in flight is over
                        connection.abort()
                    else:
                        await _respond(_refusal(_stopping()), send)
            except Exception as error:  # noqa: BLE001
                refusal = RequestError(500, "failed", "the gateway failed: its log says where")
                if lack_of(error) is not None:
                    refusal = _no_answer(error)
                else:
                    _tell(error)
                if connection.answering:
                    connection.abort()
                else:
                    await _respond(_refusal(refusal), send)
            finally:
                if connection.task is task:  # else the next request has begun
                    connection.task = None
                if entry is not None:
                    entry.end()
        elif scope["type"] == "lifespan":
            await self._live(receive, send, scope.get("state", {}))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})

    async def _live(self, receive: Receive, send: Send, state: MutableMapping[str, Any]) -> None:
        await receive()
        asyncio.get_running_loop().set_exception_handler(_on_error)
        self._client = self._make()
        self._helpers = [asyncio.create_task(self._watch())]
        if self._store.shared:
            self._helpers.append(asyncio.create_task(self._watch_store()))
        state[CONNECTION] = self
        if self._takes_over:
            await self._store_answers.wait()
        self.change(LifeEvent.STARTED)
        self._begun()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for helper in self._helpers:
            helper.cancel()
        await self._client.close()
        self._siblings.close()
        await asyncio.to_thread(self.limiter.close)
        if self._access is not None:
            self._access.close()
        await send({"type": "lifespan.shutdown.complete"})

    @property
    def draining(self) -> bool:
        """Whether requests that wait, and new ones, are turned away: only the store tells the next process what is used."""
        return self.state.closed and not (self.state.patient and self._store.shared)

    def change(self, event: LifeEvent) -> bool:
        """Go on to the state after ``event``; whether it is another one."""
        before, self.state = self.state, after(self.state, event)
        return self.state is not before

    def drain(self) -> None:
        """End: requests in flight go on, and those that wait, where the next process shares the quotas with this one."""
        self.change(LifeEvent.CLOSED)
        self._places.clear()
        if self.draining:
            self._hand_back()

    def _hand_back(self) -> None:
        for task, exchange in list(self._tasks.items()):
            if exchange.waits:
                task.cancel()

    async def _watch_store(self) -> None:
        """Look whether the store answers, as long as requests are taken."""
        while True:
            answers = await asyncio.to_thread(self._store.answers)
            (self._store_answers.set if answers else self._store_answers.clear)()
            await asyncio.sleep(LOOK_S if answers else RETRY_S)

    async def _watch(self) -> None:
        """Close the connections of clients that are too slow; at the end, hand back what waits for another attempt."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self.draining:
                self._hand_back()
            now_s = time.monotonic()
            self._places.expire(now_s)
            self._answers.expire(now_s)
            self._models.expire(now_s)
            for connection in [one for one, until_s in self._slow.items() if until_s < now_s]:
                connection.abort()

    async def _apart(self, report: Callable[..., Any], *given: Any) -> Any:
        """Make a report in a thread, one at a time."""
        async with self._reports:
            return await asyncio.to_thread(report, *given)

    # A request.

    async def _answer(self, scope: Event, receive: Receive, send: Send, connection: Connection) -> None:
        if scope["method"] not in METHODS:
            raise RequestError(405, "method", f"the method {scope['method']} is not passed on")
        path = scope["raw_path"].decode("latin-1")
        if not path.startswith("/") or path.startswith("//"):
            raise RequestError(400, "path", "the target of a request must be a path with one slash at its beginning")
        first = path[1:].partition("/")[0]
        if first in ("healthz", "readyz"):
            await self._tell_health(first, send)
            return
        headers: Headers = scope["headers"]
        query = scope["query_string"].decode("latin-1")
        if first in OWN and is_page(path, next((value for name, value in headers if name == b"accept"), b"")):
            await self._page(scope, receive, send)
            return
        key, given = self._authorise(headers, query)
        entry: Entry | None = scope["extensions"].get(ENTRY)
        if entry is not None:
            entry.key, entry.relayed = "" if key is None else key.name, first not in OWN
        if first in OWN:
            if key is not None and not key.may_read:
                raise RequestError(403, "forbidden", "this key may not read the status; `paceline keys add --may-read`")
            if path.startswith("/api/v1/queue/"):
                await self._tell_place(path.removeprefix("/api/v1/queue/"), send)
            else:
                await self._page(scope, receive, send)
            return
        if self.draining:
            raise _stopping()
        if any(name == b"upgrade" and value.lower() == b"websocket" for name, value in headers):
            # Codex sends requests then
            raise RequestError(426, "websocket", "this gateway passes requests, not WebSockets")
        if not is_plain(path):
            raise RequestError(
                400, "path", "the path has '..', an empty part, a backslash, ';' or an invalid character"
            )
        found = self.upstreams.find(path)
        if found is None:
            raise RequestError(404, "unknown_upstream", f"no server for this path{self.upstreams.hint(path)}")
        await self._relay(scope, receive, send, connection, key, given, *found, query)

    def _authorise(self, headers: Headers, query: str) -> tuple[ClientKey | None, str]:
        """What the client may do, and its key; ``None``: everything, because no keys are needed."""
        self._keys.look(time.monotonic())
        self._needs_key = self._needs_key or len(self._keys) > 0
        if not self._needs_key:
            self._refuse_browsers(headers)
            return None, ""
        sent = [_bearer(value.decode("latin-1")) for name, value in headers if name in KEY_HEADERS]
        given = [one for one in (*sent, key_in_query(query)) if one]
        for one in given:  # some clients send a key of another server, too
            if (key := self._keys.find(one)) is not None:
                return key, one
        why = "this key is unknown or revoked" if given else "a key is missing"
        raise RequestError(401, "key", f"{why}: send one of `paceline keys add` as the API key")

    def _refuse_browsers(self, headers: Headers) -> None:
        """Refuse what a web page of another server sends through the user's browser."""
        port = next((_address_in(b"//" + value)[1] for name, value in headers if name == b"host"), None)
        for name, value in headers:
            if name == b"host" and _address_in(b"//" + value)[0] not in self._hosts:
                raise RequestError(
                    403, "host", "without client keys, this gateway answers only under the names of this machine"
                )
            if name == b"sec-fetch-site" and value not in (b"same-origin", b"none"):
                raise RequestError(403, "origin", "without client keys, web pages of other servers are refused")
            if name == b"origin" and ((at := _address_in(value))[0] not in self._hosts or at[1] != port):
                raise RequestError(403, "origin", "without client keys, web pages of other servers are refused")

    async def _relay(
        self,
        scope: Event,
        receive: Receive,
        send: Send,
        connection: Connection,
        key: ClientKey | None,
        given: str,
        place: Place,
        path: str,
        query: str,
    ) -> None:
        for upstream in place.members:
            if key is not None and not upstream.key:
                message = f"the gateway has no key for {upstream.name}: set {upstream.provider.key_env} for it"
                raise RequestError(503, "no_key", message)
        parts: list[bytes] = []
        reply: Reply | None = None
        try:
            body = await self._read(
                scope, receive, connection, parts, partial(self._is_unread, scope, key, place, path)
            )
            if body is None:
                reply = await self._upload(scope, receive, connection, given, place, path, query, parts)
            else:
                options = {name: value.decode("latin-1") for name, value in scope["headers"] if name.startswith(OPTION)}
                read = plain(scope["headers"], body, BODY_MAX)
                asked = _fields(read) if place.choice is not None else {}
                requests = list[Relayed]()
                for upstream in place.members if scope["method"] == "POST" else place.members[:1]:
                    own = _renamed(asked, upstream.models) or body
                    made = self._request(scope, given, upstream, path, query, own, renamed=own is not body)
                    requests.append(made)
                exchange = self._exchange(requests, place, path, read, asked, key, options)
                if self.draining:  # the body ended after the signal
                    raise _stopping()
                if exchange is None:
                    _refuse_unmetered(key, scope["method"], path)
                    reply = await self._send_unpaced(requests[0])
                else:
                    asked_s = _number(
                        options, _KEEPALIVE, *NOTES_S, also=0.0
                    )  # nothing may fail once a place is claimed
                    found = self._held_place(exchange, requests, scope, key, path, query, parts, connection)
                    if isinstance(found, Held):
                        await self._relay_held(found, options, asked_s, scope, query, send, connection, parts)
                        return
                    reply = found
            await reply.hide_key()
            await self._pass_on(reply, send, connection)
        finally:
            self._held -= sum(map(len, parts))
            if reply is not None:
                reply.close()
                _note(scope, reply)

    async def _relay_held(
        self,
        held: Held,
        options: dict[bytes, str],
        asked_s: float | None,
        scope: Event,
        query: str,
        send: Send,
        connection: Connection,
        parts: list[bytes],
    ) -> None:
        """Relay a metered request, whose place or answer is kept if its client leaves."""
        reply: Reply | None = None
        try:
            reply = await self._send(held, options, asked_s, scope["headers"], query, send, connection, parts)
            if held.named is not None and reply.is_good:
                reply.start(self._answers.room)
            await reply.hide_key()
            await self._pass_on(reply, send, connection)
            self._keep_answer(held, reply)
        except asyncio.CancelledError:
            if reply is not None and reply.seen is not None and connection.gone:
                self._keep_place(held, parts)
            raise
        finally:
            if reply is not None:
                _note(scope, reply)
            if held not in self._places:
                if reply is not None:
                    reply.close()
                if held.named is not None:
                    self._answers.end(held.named)

    async def _read(
        self,
        scope: Event,
        receive: Receive,
        connection: Connection,
        parts: list[bytes],
        is_unread: Callable[[], bool],
    ) -> bytes | None:
        """The body of a request; it is counted as it comes, and ``parts`` has what has been counted.

        ``None`` for a large one that is not read: the rest is to come.
        """
        length, looked = _length(scope["headers"]) or 0, False
        size, more, self._slow[connection] = 0, True, time.monotonic() + BODY_S
        try:
            while more:
                if max(length, size) > UPLOAD_FROM and not looked:
                    looked = True
                    if is_unread():
                        return None
                if max(length, size) > BODY_MAX:
                    raise RequestError(413, "too_large", f"the body is larger than {BODY_MAX // 2**20} MB")
                if self._held + max(length - size, 0) > BODIES_MAX:
                    raise RequestError(503, "memory", "the bodies of all requests are too large: send this one later")
                event = await receive()
                parts.append(event.get("body", b""))
                size += len(parts[-1])
                self._held += len(parts[-1])
                more = event.get("more_body", False)
            parts[:] = [parts[0] if len(parts) == 1 else b"".join(parts)]
            return parts[0]
        finally:
            del self._slow[connection]

    def _is_unread(self, scope: Event, key: ClientKey | None, place: Place, path: str) -> bool:
        """Whether nothing of the body of a request is read, because it costs nothing."""
        if scope["method"] == "POST" and place.members[0].provider.describe(unquote(path), {}) is not None:
            return False
        _refuse_unmetered(key, scope["method"], path)
        return True

    async def _upload(
        self,
        scope: Event,
        receive: Receive,
        connection: Connection,
        given: str,
        place: Place,
        path: str,
        query: str,
        parts: list[bytes],
    ) -> Reply:
        """The answer to a request whose body is passed on as it comes."""
        first = place.members[0]
        if scope["method"] == "POST":
            announce(first.provider.name, first.host, path)
        body = Upload(_length(scope["headers"]), self._coming(receive, connection, parts))
        return await self._send_unpaced(self._request(scope, given, first, path, query, body, renamed=False))

    async def _coming(self, receive: Receive, connection: Connection, parts: list[bytes]) -> AsyncGenerator[bytes]:
        """The parts of a body as they come, after those that have come; ends the connection of a client that is too slow."""
        while parts:
            self._held -= len(parts[0])
            if part := parts.pop(0):
                yield part
        size, more, until_s = 0, True, time.monotonic() + BODY_S
        while more:
            self._slow[connection] = until_s
            try:
                event = await receive()
            finally:
                del self._slow[connection]
            if event["type"] != "http.request":
                raise ConnectionResetError
            size += len(event["body"])
            more, came_s = event["more_body"], time.monotonic()
            if event["body"]:
                yield event["body"]
            until_s += time.monotonic() - came_s  # in which the server took it
            if size >= UPLOAD_LEAST:
                size, until_s = 0, time.monotonic() + BODY_S

    def _request(
        self,
        scope: Event,
        given: str,
        upstream: Upstream,
        path: str,
        query: str,
        body: bytes | Upload,
        *,
        renamed: bool,
    ) -> Relayed:
        """The request as it is sent; ``renamed``: its body is not encoded as the client's."""
        sent = forwarded(scope["headers"], _DROPPED | {b"content-encoding"} if renamed else _DROPPED)
        sent += [(name, readable(value)) for name, value in scope["headers"] if name == b"accept-encoding"]
        if upstream.key:
            client = given.encode("latin-1")
            sent = [pair for pair in sent if pair[0] not in KEY_HEADERS and not (client and client in pair[1])]
            sent += [(name.encode(), value.encode()) for name, value in upstream.credentials(path)]
            query = without_key(query, given)
        assert self._client is not None
        return Relayed(self._client, upstream, scope["method"], path, query, sent, body)

    def _exchange(
        self,
        requests: list[Relayed],
        place: Place,
        path: str,
        body: bytes,
        asked: dict[str, Any],
        key: ClientKey | None,
        options: dict[bytes, str],
    ) -> KeptExchange | KeptRoutedExchange | None:
        """The exchange of a request that costs something; ``None`` for another one.

        Args:
            requests: The request to each member of ``place``.
            place: Where it goes.
            path: Its path there.
            body: Its body, decoded.
            asked: The fields of the body, for a group.
            key: The key of the client.
            options: Its options.
        """
        if requests[0].method != "POST":
            return None
        lane, priority = options.get(_LANE), _number(options, _PRIORITY, -1_000_000, 1_000_000)
        name, timeout_s = options.get(_NAME), _number(options, _TIMEOUT, 0, TIMEOUT_MAX_S)
        for text in (lane, name, options.get(_STICKY)):
            if text is not None and not 0 < len(text) <= NAME_MAX:
                raise RequestError(400, "option", f"a lane, a name or a key must have 1 to {NAME_MAX} characters")
        if key is not None:
            current_lane.set((key.name, key.weight, key.priority))
        elif lane is not None or priority is not None:
            current_lane.set((lane or f"priority {priority:g}", None, None if priority is None else int(priority)))
        try:
            if key is not None and self._limited.get(key.name) is not key:  # new, or read again
                self.limiter.limit_lane(key.name, key.limits)
                self._limited[key.name] = key
            found = list(self._described(place, unquote(path), body, asked))
        except QuotaError as error:
            raise RequestError(429, "quota", str(error)) from None
        first = place.members[0]
        if not found:
            announce(first.provider.name, first.host, path)
            return None
        for one in found:
            if not self._models.use("" if key is None else key.name, one.scheduler, time.monotonic()):
                message = f"more than {MODELS_MAX} models were named of late: one that is not used for {IDLE_S:g} s makes room"
                raise RequestError(429, "models", message)
        model = str(asked.get("model") or found[0].call.model)
        if key is not None and not key.allows(first.provider.name if place.choice is None else place.name, model):
            raise RequestError(403, "model", f"this key may not use the model {model[:100]!r}")
        ways = [Way(request, one, request.target()) for request, one in zip(requests, found, strict=True)]
        if place.choice is None:
            return KeptExchange(self.limiter.pacer, *ways[0], timeout_s=timeout_s, name=name)
        sticky = options.get(_STICKY) or asked.get("prompt_cache_key")
        named = {member.name: way for member, way in zip(place.members, ways, strict=True)}
        sticky = str(sticky)[:NAME_MAX] if sticky else None
        return KeptRoutedExchange(
            self.limiter.pacer, named, place.choice, sticky=sticky, timeout_s=timeout_s, name=name
        )

    def _described(self, place: Place, path: str, body: bytes, asked: dict[str, Any]) -> Iterator[Metered]:
        """The request as each member of ``place`` meters it; nothing for one that costs nothing."""
        first: Metered | None = None
        for upstream in place.members:
            renamed = _renamed(asked, upstream.models)
            one = None if first is None or renamed else at_account(self.limiter.pacer, first, upstream.provider)
            one = one or describe(self.limiter.pacer, upstream.provider, path, renamed or body)
            if one is None:
                return
            first = first or (None if renamed else one)
            yield one

    async def _send_unpaced(self, request: Relayed) -> Reply:
        try:
            return await request.send()
        except Exception as error:
            raise _no_answer(error) from error

    def _held_place(
        self,
        exchange: KeptExchange | KeptRoutedExchange,
        requests: list[Relayed],
        scope: Event,
        key: ClientKey | None,
        path: str,
        query: str,
        parts: list[bytes],
        connection: Connection,
    ) -> Held | Reply:
        """The request in the place that was kept for it, or else in a new one; or the answer that was kept for it."""
        headers: Headers = scope["headers"]
        name, now_s = "" if key is None else key.name, time.monotonic()
        identify = partial(identity, name, scope["method"], path, query, headers, b"".join(parts))
        named: Identity | None = None
        if key is not None and any(one == IDEMPOTENCY and value for one, value in headers):
            named = identify()
            content = self._answers.content(named)
            if content not in (None, named.content):
                raise RequestError(422, "reused", "this Idempotency-Key was used for another request: each has its own")
            if (answer := self._answers.get(named)) is not None:
                accepted = b",".join([value for one, value in headers if one == b"accept-encoding"])
                return answer.reply(accepted.decode("latin-1"))
        kept = self._places.claim(name, identify, connection.opened_s, now_s)
        if kept is None:
            if named is not None:
                if content is not None:
                    raise RequestError(409, "under_way", "a request with this Idempotency-Key is being answered")
                self._answers.begin(named)
            return Held(exchange, requests, identify, now_s, named)
        if kept.reader is not None:
            kept.reader.cancel()
        self._held -= sum(map(len, parts))
        parts[:] = kept.parts
        return kept

    def _keep_place(self, held: Held, parts: list[bytes]) -> bool:
        """Keep the place of a request whose connection closes now; returns whether it is kept."""
        kept = not self.state.closed and self._places.keep(held, parts, time.monotonic())
        if kept and held.named is not None:
            held.reader = asyncio.create_task(self._read_on(held))
        return kept

    async def _read_on(self, held: Held) -> None:
        """Read the answer to a request whose client has left, and may come back for it."""
        assert held.task is not None
        try:
            reply: Reply = await asyncio.shield(held.task)
        except Exception:  # noqa: BLE001  (for the client that comes back)
            return
        if reply.is_good:
            reply.start(self._answers.room)
            with suppress(Exception):
                while await reply.read() and reply.seen is not None:
                    pass
                self._keep_answer(held, reply)
            self._places.end(held)

    def _keep_answer(self, held: Held, reply: Reply) -> None:
        """Keep the answer to a request with an ``Idempotency-Key``, which is over."""
        if held.named is not None and not reply.broken:
            self._answers.keep(held.named, reply, time.monotonic(), stream=held.exchange.metered.call.stream)

    def _end(self, held: Held) -> None:
        """End a request whose client has not come back."""
        self._held -= sum(map(len, held.parts))
        if held.named is not None:
            self._answers.end(held.named)
        if held.reader is not None and held.reader is not asyncio.current_task():
            held.reader.cancel()
        task = held.task
        if task is not None and not task.cancel() and not task.cancelled() and task.exception() is None:
            task.result().close()

    async def _send(
        self,
        held: Held,
        options: dict[bytes, str],
        asked_s: float | None,
        headers: Headers,
        query: str,
        send: Send,
        connection: Connection,
        parts: list[bytes],
    ) -> Reply:
        """The answer to a request, from the queue and the server. If its head has been sent, an error is an event."""
        exchange = held.exchange
        for request in held.requests:
            request.pass_on = partial(_pass_on_early, send, connection, quotas=self._tells_quotas)
        note, begin_s, every_s = None, NOTES_FROM_S, NOTES_EVERY_S
        if asked_s is not None:
            begin_s = every_s = asked_s
        if exchange.metered.call.stream and asked_s != 0 and (asked_s is not None or hears(headers)):
            note = note_for(exchange.metered.provider.name, exchange.target[1], query, headers)
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = exchange
        called = options.get(_ID)
        if called is not None:
            self._waiting[called[:NAME_MAX]] = exchange
        try:
            until_s = None if note is not None else patience_s(headers)
            rhythm = _Rhythm(note, begin_s, every_s, None if until_s is None else until_s * SOON)
            reply = await self._waited(held, rhythm, send, connection, parts)
        except asyncio.CancelledError:
            if self.state.closed and exchange.waits:
                task.uncancel()
                raise _stopping() from None
            raise
        except RequestError:
            raise
        except Exception as error:
            refusal = _no_answer(error)
            if not connection.answering:
                raise refusal from error
            reply = _own(refusal.status, refusal.word, str(refusal))
        finally:
            del self._tasks[task]
            if called is not None:
                self._waiting.pop(called[:NAME_MAX], None)
        begun = connection.answering and reply.status >= 400
        return await _as_event(reply, exchange.metered.call) if begun else reply

    async def _waited(
        self, held: Held, rhythm: _Rhythm, send: Send, connection: Connection, parts: list[bytes]
    ) -> Reply:
        """The answer to a request whose stream is kept alive, or whose place is kept if its client leaves."""
        task = held.task = held.task or asyncio.create_task(held.exchange.run())
        due_s = rhythm.begin_s if rhythm.note is not None else rhythm.until_s
        reply, kept = None, False
        try:
            while not (await asyncio.wait([task], timeout=due_s))[0]:
                if rhythm.note is None:
                    due_s = None
                    if kept := self._keep_place(held, parts):
                        raise _come_back()
                    continue
                due_s = rhythm.every_s
                if not connection.answering:
                    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                await send({"type": "http.response.body", "body": rhythm.note, "more_body": True})
            reply = cast("Reply", task.result())
        except asyncio.CancelledError:
            kept = connection.gone and self._keep_place(held, parts)
            raise
        else:
            return reply
        finally:
            if reply is None and not kept:  # the client is gone, or there is no answer
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    (await task).close()

    async def _pass_on(self, reply: Reply, send: Send, connection: Connection) -> None:
        """Send an answer; one that has broken off is ``broken`` afterwards."""
        if connection.answering:
            reply.decode()
        else:
            headers = _headers_of(reply, quotas=self._tells_quotas)
            await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        left, more = reply.length, True
        try:
            while part := await reply.read():
                left -= len(part)
                more = left != 0
                await send({"type": "http.response.body", "body": part, "more_body": more})
                if not more:
                    await asyncio.sleep(0)  # the client gets it before its usage is read
            if reply.broken:
                connection.close()
                await asyncio.sleep(BODY_S)  # its end ends this task
        except Exception as error:  # noqa: BLE001  (its head is sent: only the connection can say it)
            log.warning("an answer broke off: %s", type(error).__name__)
            reply.broken = True
            connection.abort()
            await asyncio.sleep(0)  # until the server knows
            return
        if more:
            await send({"type": "http.response.body", "body": b""})

    # What the gateway says of itself.

    async def _tell_health(self, which: str, send: Send) -> None:
        ok = which == "healthz" or (self.state.ready and self._store_answers.is_set())
        why = "the store does not answer" if self.state.ready else self.state.word
        await _respond(_json(200 if ok else 503, {"status": "ok" if ok else why}), send)

    async def _tell_place(self, called: str, send: Send) -> None:
        """The place in the queue of the request that gave this id."""
        place = await asyncio.to_thread(self._siblings.place, called)
        missing = {"error": "no request with this x-paceline-id waits or is in flight"}
        await _respond(_json(200, place) if place else _json(404, missing), send)

    def _place(self, called: str) -> dict[str, Any] | None:
        exchange = self._waiting.get(called)
        if exchange is None:
            return None
        why = exchange.acquisition.why() if exchange.acquisition is not None else None
        state: dict[str, Any] = {"id": called, "pool": exchange.record.pool, "state": "in flight"}
        if why is not None:
            state |= {
                "state": "waiting", "ahead": why.ahead, "binds": why.quota, "expected_wait_s": why.expected_wait_s
            }  # fmt: skip
        return state


def _note(scope: Event, reply: Reply) -> None:
    """Tell the access log what is known of an answer, where there is one."""
    if (entry := scope["extensions"].get(ENTRY)) is not None:
        entry.record = reply.record


def _length(headers: Headers) -> int | None:
    """The length of a body; ``None`` if it is not stated."""
    return next((int(value) for name, value in headers if name == b"content-length"), None)


def _fields(body: bytes) -> dict[str, Any]:
    """The fields of a body; none if it is not a JSON object."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _renamed(asked: dict[str, Any], models: Mapping[str, str]) -> bytes | None:
    """The body with a server's own name of the model; ``None`` where it has no other."""
    name = models.get(str(asked.get("model"))) if models else None
    return None if name is None else json.dumps({**asked, "model": name}).encode()


_HOP_BY_HOP_ANSWER: Final = HOP_BY_HOP - {b"content-length"}


def _headers_of(reply: Reply, *, quotas: bool) -> Headers:
    """The headers of an answer as the client gets them. A refusal keeps what it says of ``quotas`` in any case."""
    drop = HOP_BY_HOP if reply.status in (204, 304) else _HOP_BY_HOP_ANSWER  # a 304 states the length of another answer
    headers, record = forwarded(reply.headers, drop), reply.record
    if not quotas and reply.status < 400:
        headers = [pair for pair in headers if b"ratelimit" not in pair[0]]
    if record is not None:
        headers.append((b"x-paceline-waited", b"%.3f" % record.waited_s))
        headers.append((b"x-paceline-attempts", b"%d" % record.attempts))
    return headers


async def _pass_on_early(send: Send, connection: Connection, reply: Reply, part: bytes, *, quotas: bool) -> None:
    """Send a part of an answer that is not judged yet, after its head."""
    if not connection.answering:  # what follows may be another attempt's, of another length
        headers = [pair for pair in _headers_of(reply, quotas=quotas) if pair[0] != b"content-length"]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": part, "more_body": True})


def _refuse_unmetered(key: ClientKey | None, method: str, path: str) -> None:
    """Refuse what a key may not use: at unmetered endpoints it would have all rights of the provider's key."""
    if key is not None and not key.may_use(method, unquote(path)):
        more = "" if key.models or key.limits else "; more: `paceline keys add --endpoint 'GET /v1/models'`"
        raise RequestError(403, "endpoint", f"this key may use metered endpoints only, not {method} {path[:100]}{more}")


class _Rhythm(NamedTuple):
    """How a client waits: what is sent meanwhile, first and then every so often, and until when it can be answered."""

    note: bytes | None
    begin_s: float
    every_s: float
    until_s: float | None


async def _as_event(reply: Reply, call: Call) -> Reply:
    """An error as an event in a stream that has begun, which then breaks off: some SDKs read no error there."""
    try:
        await reply.hide_key()
        body = b"".join([part async for part in reply.parts()])
    finally:
        reply.close()
    try:
        value = json.loads(body)
        value = value[0] if isinstance(value, list) else value  # Gemini's
        error = dict(value["error"])
    except (ValueError, TypeError, LookupError):
        error = _detail(502, "no_answer", f"the server answered with status {reply.status}")
        value = {"type": "error", "error": error}
    if call.endpoint == "responses":
        value = {
            "code": None,
            "message": "",
            "param": None,
            **error,
            "type": "error",
            "sequence_number": 0,
            "error": error,
        }
    name = b"event: error\n" if base_of(call.provider) == "anthropic" else b""
    event = Reply(200, [], name + b"data: " + json.dumps(value).encode() + b"\n\n")
    event.broken = True
    return event


@lru_cache(maxsize=64)
def _address_in(url: bytes) -> tuple[str | None, int | None]:
    """The host and the port in an URL; ``None`` for none, or in an invalid one."""
    try:
        parts = urlsplit(url.decode("latin-1"))
        port = parts.port
    except ValueError:
        return None, None
    return parts.hostname, port


def _bearer(value: str) -> str:
    """The key in the value of a header, which may begin with the name of a scheme."""
    scheme, _, rest = value.partition(" ")
    return (rest if scheme.lower() == "bearer" else value).strip()


def _number(
    options: dict[bytes, str], name: bytes, least: float, most: float, also: float | None = None
) -> float | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if number != also and not least <= number <= most:
        shown = name.decode()
        raise RequestError(400, "option", f"{shown} is {text[:60]!r}: it must be a number from {least:g} to {most:g}")
    return number


def _stopping() -> RequestError:
    return RequestError(503, "stopping", "this gateway is stopping: send the request again")


def _come_back() -> RequestError:
    """For a client that would give up soon."""
    return RequestError(
        429, "waiting", f"this request still waits: send it again within {PLACE_S:g} s, and it keeps its place"
    )


def _no_answer(error: Exception) -> RequestError:
    """A server that did not answer, or a lack of this machine."""
    if (lack := lack_of(error)) is not None:
        _tell_lack(lack)
        return RequestError(503, "lack", f"this gateway's machine lacks what another request needs: {lack}")
    fault = fault_of(error)
    if isinstance(error, TimeoutError) and fault is not Fault.UNREACHED:
        return RequestError(504, "timeout", "the server did not answer in time")
    if fault is Fault.UNREACHED:
        return RequestError(502, "unreached", f"the server cannot be reached: {type(error).__name__}")
    if fault is None:
        _tell(error)
    return RequestError(502, "no_answer", f"the connection to the server broke: {type(error).__name__}")


_told_s: dict[Lack, float] = {}


def _tell_lack(lack: Lack) -> None:
    """Log what this machine lacks, once in ``TELL_S``."""
    now_s = time.monotonic()
    if now_s - _told_s.get(lack, -math.inf) >= TELL_S:
        _told_s[lack] = now_s
        log.warning("this machine lacks what further requests need, which get a 503 or wait: %s%s", lack, lack.remedy)


def _on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the event loop: thousands of one lack once, which asyncio reports for each place in the backlog."""
    lack = lack_of(context.get("exception"))
    if lack is None:
        loop.default_exception_handler(context)
    else:
        _tell_lack(lack)


def _tell(error: Exception) -> None:
    """Log an unexpected error, without its message: it may hold a key or a part of a request."""
    log.error("a request failed: %s\n%s", type(error).__name__, "".join(format_tb(error.__traceback__)))


def _own(status: int, word: str, message: str, headers: dict[str, str] | None = None) -> Reply:
    """An error of the gateway's own, in a form that all SDKs read."""
    value = {"type": "error", "error": _detail(status, word, message)}
    return _json(status, value, {"x-paceline": word, **(headers or {})})


def _detail(status: int, word: str, message: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "api_error"
    return {"type": kind, "code": f"paceline_{word}", "message": f"paceline: {message}", "param": None}


def _refusal(error: RequestError) -> Reply:
    headers = {"www-authenticate": "Bearer"} if error.status == 401 else {}
    if error.word == "no_key":
        headers["x-should-retry"] = "false"
    elif error.status == 503:
        headers["retry-after"] = "1"
    elif error.word == "under_way":
        headers |= {"retry-after": "5", "x-should-retry": "true"}
    elif error.word == "waiting":  # only a connection that is opened later has a claim
        headers |= {"retry-after": "5", "x-should-retry": "true", "connection": "close"}
    return _own(error.status, error.word, str(error), headers)


def _json(status: int, value: Any, headers: dict[str, str] | None = None) -> Reply:
    body = json.dumps(value).encode()
    pairs = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    return Reply(status, [(name.encode(), text.encode()) for name, text in pairs.items()], body)


async def _respond(reply: Reply, send: Send) -> None:
    await send({"type": "http.response.start", "status": reply.status, "headers": reply.headers})
    body = b"".join([part async for part in reply.parts()])
    await send({"type": "http.response.body", "body": body})


def names_of(host: str) -> set[str]:
    """The names of this server in a request's header ``host``, where it listens at ``host`` on loopback."""
    return {host, "localhost", "127.0.0.1", "::1"} if is_loopback(host) else {host}
