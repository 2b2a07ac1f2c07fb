"""The gateway as an ASGI application: its life, its own paths, and the way of the others to their server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

from paceline.core.results import StoreError
from paceline.gateway.access import AccessEntry, AccessLog
from paceline.gateway.admission import Admission
from paceline.gateway.client import HttpClient
from paceline.gateway.connection import Headers
from paceline.gateway.dispatch import Dispatch
from paceline.gateway.errors import RequestError, json_reply, no_answer, on_error, refusal, respond, stopping, tell
from paceline.gateway.incoming import Incoming, RequestHead
from paceline.gateway.keys import ClientKey
from paceline.gateway.life import Life, LifeEvent
from paceline.gateway.protocol import CONNECTION, HttpProtocol
from paceline.gateway.relay import let_go
from paceline.gateway.settings import GatewaySettings
from paceline.gateway.siblings import Siblings
from paceline.gateway.teams import counted_as
from paceline.gateway.upstreams import Destination, Upstreams, is_plain
from paceline.gateway.usage import FLUSH_S, NO_KEY, USAGE, report, sums_of
from paceline.limiter.limiter import Limiter
from paceline.limiter.tally import Tally
from paceline.pacing.lack import lack_of
from paceline.pacing.pacer import Pacer
from paceline.pacing.scheduler import Worker
from paceline.telemetry.status_app import Event, Receive, Send, is_page, status_app

log = logging.getLogger("paceline.gateway")

LOOK_S: Final = 5.0
"""The time between two looks for what was kept too long, and at a store that answers."""

KEYS_S: Final = 1.0
"""The time between two looks at the keys of clients."""

RETRY_S: Final = 1.0
"""The time between two looks at a store that does not answer."""

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""The methods that are passed on: none that lets a server repeat the request's headers, with a key, in its answer."""

OWN: Final = frozenset({"", "status", "history", "metrics", "assets", "api", "favicon.ico"})
"""The first parts of the gateway's own paths, of the status page."""

QUEUE: Final = "/api/v1/queue/"
"""What the path of a place in the queue begins with."""

RESUME: Final = "/api/v1/resume/"
"""The beginning of the path that ends the stop of a pool."""


class Gateway:
    """The gateway.

    Args:
        limiter: The limiter.
        upstreams: The servers.
        client: The HTTP client.
        admission: Admits clients.
        settings: What else it has and does.

    Attributes:
        life: What it does with requests.
    """

    def __init__(
        self,
        limiter: Limiter,
        upstreams: Upstreams,
        client: HttpClient,
        admission: Admission,
        settings: GatewaySettings,
    ) -> None:
        self.limiter, self.upstreams = limiter, upstreams
        self._worker = limiter.pacer.pools.worker
        self.life = Life(shares=self._worker is not None)
        self._admission, self._settings = admission, settings
        self._access = None if settings.access_log is None else AccessLog(settings.access_log)
        self._tally: Tally | None = None
        if settings.tallies:
            self._tally = Tally(limiter, lambda lane: counted_as(lane) if admission.needs_key else NO_KEY)
        self._store_answers = asyncio.Event()
        if self._worker is None:
            self._store_answers.set()
        self._dispatch = Dispatch(limiter, self.life, client, admission, settings)
        self._siblings = Siblings(self, {"place": self._dispatch.held.place, "resume": self._resume}, settings.folder)
        one_or_all = self if settings.folder is None else self._siblings
        self._page = status_app(one_or_all, apart=partial(_apart, asyncio.Lock()))  # answers the gateway's own paths

    @property
    def pacer(self) -> Pacer:
        """The pacer of the limiter."""
        return self.limiter.pacer

    def status(self, **options: Any) -> Mapping[str, Any]:
        """See :meth:`Limiter.status`; with what keys and teams have used in this process, and whether it is ready."""
        status = {**self.limiter.status(**options), "ready": self.ready}
        return status if self._tally is None else status | sums_of(self._tally)

    # The server's side.

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http":
            connection = scope["extensions"][CONNECTION]
            connection.task = task = asyncio.current_task()
            entry = AccessEntry(self._access, scope, send)
            if self._access is not None:
                send = entry.send
            try:
                await self._answer(scope, receive, send, connection, entry)
            except RequestError as error:
                await _end(scope, send, error)
            except asyncio.CancelledError:
                if not connection.gone:
                    if not self.life.state.closed:
                        raise
                    await _end(scope, send, stopping())  # the time for what is in flight is over
            except Exception as error:  # noqa: BLE001
                if lack_of(error) is not None:
                    await _end(scope, send, no_answer(error))
                else:
                    tell(error)
                    failed = RequestError(500, "failed", "the gateway failed: its log says where")
                    await _end(scope, send, failed)
            finally:
                if connection.task is task:  # else the next request has begun
                    connection.task = None
                entry.end()
                scope["extensions"].clear()  # which have the scope, and the request's body: collections are rare
        elif scope["type"] == "lifespan":
            await self._live(receive, send, scope.get("state", {}))

    async def _live(self, receive: Receive, send: Send, state: MutableMapping[str, Any]) -> None:
        await receive()
        asyncio.get_running_loop().set_exception_handler(on_error)
        helpers = [asyncio.create_task(self._watch()), asyncio.create_task(self._watch_keys())]
        if self._worker is not None:
            helpers.append(asyncio.create_task(self._watch_store(self._worker)))
        if self._tally is not None:
            await asyncio.to_thread(self._tally.begin)
            helpers.append(asyncio.create_task(self._keep_tally(self._tally)))
        state[CONNECTION] = self
        if self._settings.takes_over:
            await self._store_answers.wait()
        self.life.change(LifeEvent.STARTED)
        self._settings.begun()
        await send({"type": "lifespan.startup.complete"})
        with suppress(asyncio.CancelledError):  # a second signal: nothing is awaited, and all is told to the store
            await receive()
        for helper in helpers:
            helper.cancel()
        await self._dispatch.close()
        self._siblings.close()
        ends = asyncio.Queue[Event]()
        ends.put_nowait({"type": "lifespan.shutdown"})
        await self._page({"type": "lifespan"}, ends.get, asyncio.Queue[Event]().put)  # as a server would tell it
        if self._tally is not None:
            await asyncio.to_thread(self._tally.end)
        await asyncio.to_thread(self.limiter.close)
        if self._access is not None:
            self._access.close()
        await send({"type": "lifespan.shutdown.complete"})

    @property
    def ready(self) -> bool:
        """Whether new requests are to be sent to it."""
        return self.life.state.ready and self._store_answers.is_set()

    def drain(self) -> None:
        """End: requests in flight go on, and those that wait, where the next process shares the quotas with this one."""
        self.life.change(LifeEvent.CLOSED)
        self._dispatch.held.leave()

    async def _watch_store(self, worker: Worker) -> None:
        """Look whether the store answers, as long as requests are taken."""
        while True:
            answers = await asyncio.to_thread(worker.can_grant)
            (self._store_answers.set if answers else self._store_answers.clear)()
            await asyncio.sleep(LOOK_S if answers else RETRY_S)

    async def _watch(self) -> None:
        """Forget what was kept too long; at the end, hand back what waits for another attempt."""
        while True:
            await asyncio.sleep(LOOK_S)
            self._dispatch.held.hand_back()
            self._dispatch.expire(time.monotonic())

    async def _watch_keys(self) -> None:
        """Read changed keys for the requests that wait, also while no other request comes."""
        while True:
            await asyncio.sleep(KEYS_S)
            self._admission.look()

    async def _keep_tally(self, tally: Tally) -> None:
        while True:
            with suppress(StoreError):  # the next time has it all
                await asyncio.to_thread(tally.flush)  # at once, to know what those before have told
            await asyncio.sleep(FLUSH_S)

    # A request.

    async def _answer(
        self, scope: Event, receive: Receive, send: Send, connection: HttpProtocol, entry: AccessEntry
    ) -> None:
        path = _checked_path(scope)
        passed, key_path = self._admission.behind_key(path), ""
        if passed is not None:  # the key has admitted it, and is in no path from here on, the access log's neither
            key_path = path.removesuffix(passed)
            scope["raw_path"], scope["path"] = passed.encode("latin-1"), unquote(passed)
        first = _first_of(path) if passed is None else ""
        is_own, is_resume = passed is None and first in OWN, passed is None and path.startswith(RESUME)
        if first in ("healthz", "readyz"):
            await self._tell_health(first, send)
            return
        headers: Headers = scope["headers"]
        query = scope["query_string"].decode("latin-1")
        values = dict(reversed(headers))  # the first one under each name
        if is_own and is_page(path, values.get(b"accept", b"")):
            await self._page(scope, receive, send)
            return
        key, given = self._admission.admit(headers, query) if passed is None else (None, "")
        entry.key, entry.relayed = "" if key is None else key.name, not is_own or is_resume
        if is_resume:
            await self._end_stops(scope["method"], unquote(path.removeprefix(RESUME)), key, send)
            return
        if is_own:
            await self._tell_own(path, key, scope, receive, send)
            return
        self._require_open(values)
        place, path = self._place(path) if passed is None else self._place(passed, own_login=True)
        head = RequestHead(scope["method"], query, self._admission.without_users(headers), values, key_path)
        request = Incoming(head, receive, send, connection, entry, key, given, place, path, head.options())
        await self._dispatch.relay(request)

    def _require_open(self, values: dict[bytes, bytes]) -> None:
        """Refuse a request that comes too late, or as what is not passed."""
        if self.life.draining:
            raise stopping()
        if b"sec-websocket-version" in values:  # Codex sends requests then
            raise RequestError(426, "websocket", "this gateway passes requests, not WebSockets")

    def _place(self, path: str, *, own_login: bool = False) -> tuple[Destination, str]:
        """The servers that a path leads to, which take the client's ``own_login``, and the path there."""
        if not is_plain(path):
            raise RequestError(
                400, "path", "the path has '..', an empty part, a backslash, ';' or an invalid character"
            )
        found = self.upstreams.find(path)
        if found is None:
            raise RequestError(404, "unknown_upstream", f"no server for this path{self.upstreams.hint(path)}")
        if own_login and any(one.key for one in found[0].members):
            raise RequestError(401, "key", "the key in the path is for servers that get their clients' own credentials")
        return found

    # What the gateway says of itself.

    async def _tell_own(self, path: str, key: ClientKey | None, scope: Event, receive: Receive, send: Send) -> None:
        """A page, or the state that a client's ``key`` may read."""
        may_read = key is None or key.may_read
        if path == USAGE and self._tally is not None:
            query, name = scope["query_string"].decode("latin-1"), None if key is None or may_read else key.name
            await respond(json_reply(200, await asyncio.to_thread(report, self._tally, name, query)), send)
        elif not may_read:
            raise RequestError(
                403, "forbidden", "this key may not read the status: `paceline keys change NAME --may-read`"
            )
        elif path.startswith(QUEUE):
            await self._tell_place(path.removeprefix(QUEUE), send)
        else:
            await self._page(scope, receive, send)

    async def _tell_health(self, which: str, send: Send) -> None:
        state = self.life.state
        ok = which == "healthz" or self.ready
        why = "the store does not answer" if state.ready else state.word
        await respond(json_reply(200 if ok else 503, {"status": "ok" if ok else why}), send)

    async def _tell_place(self, called: str, send: Send) -> None:
        """The place in the queue of the request that gave this id."""
        place = await asyncio.to_thread(lambda: next(self._siblings.ask("place", called), None))
        missing = {"error": "no request with this x-paceline-id waits or is in flight"}
        await respond(json_reply(200, place) if place else json_reply(404, missing), send)

    # The operator's side.

    def _resume(self, pattern: str) -> dict[str, str | None]:
        """End the stops of the pools of this process with such a name; returns the reason for the stop of each."""
        schedulers = {one.pool.name: one for first in self.limiter.pacer.pools.in_use for one in (first, *first.beside)}
        found = {name: one for name, one in schedulers.items() if name == pattern or fnmatchcase(name, pattern)}
        stops = {name: one.pool.stopped for name, one in found.items()}
        for one in found.values():
            one.resume()
        return {name: None if stop is None else stop.reason for name, stop in stops.items()}

    async def _end_stops(self, method: str, pattern: str, key: ClientKey | None, send: Send) -> None:
        """End the stops of the pools with such a name in all processes."""
        if method != "POST":
            raise RequestError(405, "method", "to resume a pool, use POST")
        if key is not None and not key.may_resume:
            allow = f"`paceline keys change {key.name} --may-resume`"
            raise RequestError(403, "forbidden", f"this key may not resume pools: {allow}")
        answers = await asyncio.to_thread(lambda: list(self._siblings.ask("resume", pattern)))
        reasons = {pool: reason for answer in answers for pool, reason in answer.items() if reason}
        pools = sorted({pool for answer in answers for pool in answer})
        if not pools:
            raise RequestError(404, "pool", f"no pool in use has the name {pattern[:200]!r}: see /status")
        who = "a client" if key is None else f"key {key.name}"
        for pool, reason in reasons.items():
            log.warning("%s: %s has resumed the pool, which was stopped (%s)", pool, who, reason)
        told = {"resumed": sorted(reasons), "not_stopped": [pool for pool in pools if pool not in reasons]}
        await respond(json_reply(200, told), send)


async def _apart(turn: asyncio.Lock, report: Callable[..., Any], *given: Any) -> Any:
    """Make a report in a thread, one at a time."""
    async with turn:
        return await asyncio.to_thread(report, *given)


def _first_of(path: str) -> str:
    """The first part of a path, by which the gateway's own ones are known."""
    first = path[1:].partition("/")[0]
    return path if first == "api" and not path.startswith("/api/v1/") else first  # Ollama has such paths


def _checked_path(scope: Event) -> str:
    """The path of a request that may be passed on, as it was sent."""
    if scope["method"] not in METHODS:
        raise RequestError(405, "method", f"the method {scope['method']} is not passed on")
    path: str = scope["raw_path"].decode("latin-1")
    if not path.startswith("/") or path.startswith("//"):
        raise RequestError(400, "path", "the target of a request must be a path with one slash at its beginning")
    return path


async def _end(scope: Event, send: Send, error: RequestError) -> None:
    """Answer with an error; if an answer has begun, only the end of the connection can say it."""
    let_go(error)
    connection = scope["extensions"][CONNECTION]
    if connection.answering:
        connection.abort()
    else:
        await respond(refusal(error, scope["path"]), send)
