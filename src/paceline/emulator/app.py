"""The emulated provider as an ASGI application: all dialects on one port, and ``/emulator/*`` to inspect it.

It is plain ASGI, so that a refused request costs well under 100 µs.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from asyncio import Transport
from functools import lru_cache
from typing import Any

from paceline.emulator.asgi import Receive, Scope, Send, read_body, send_answer
from paceline.emulator.batch_http import BatchApi
from paceline.emulator.dialects import DialectTarget, find
from paceline.emulator.openai import CREATED
from paceline.emulator.settings import Settings, SettingsError, check_number
from paceline.emulator.wire import JSON, Ask, Header, HttpAnswer, dump, load, request_id
from paceline.emulator.world import Admitted, Refused, World

TRANSPORT = "paceline.transport"
"""The scope's extension that holds the connection, for faults that break it."""

MOST_ADVANCE_S = 1e8
"""The most seconds that the clock moves forward at once: three years."""

_MOST_BODY = 32 * 1024 * 1024
_SMALL_BODY = 64 * 1024
_STREAM: Header = (b"content-type", b"text/event-stream; charset=utf-8")


@lru_cache(maxsize=1_024)  # a refused client sends the same bytes again; the cache holds 64 MB at most
def _read_again(target: DialectTarget, body: bytes, caches: bool) -> Ask:
    return target.dialect.read(target.kind, body, target.model, caches=caches)


async def _break(scope: Scope, receive: Receive) -> None:
    """Close the connection without an answer."""
    scope["extensions"][TRANSPORT].abort()
    await receive()  # returns when the connection is gone: nothing more is sent


class App:
    """The application; one :class:`World` at a time, replaced by a reset.

    Args:
        settings: The provider's properties.
    """

    def __init__(self, settings: Settings) -> None:
        self._epoch = time.time() - time.monotonic()  # wall-clock windows that no clock change can move
        self.serials = itertools.count(1)
        self._ahead_s = 0.0
        self._start(settings)

    def _start(self, settings: Settings) -> None:
        self.world = World(settings, self.now())
        self.batches = BatchApi(self.world)

    def now(self) -> float:
        """Seconds since 1970, and what :meth:`Emulator.advance` added; never decreases."""
        return self._epoch + time.monotonic() + self._ahead_s

    def tally(self) -> dict[str, Any]:
        """The counts of :meth:`World.tally`, and under ``batches`` the counts of :meth:`EmulatedBatches.tally`."""
        batches = self.batches.tally(self.now())
        return self.world.tally() | {"batches": batches}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        headers, dialect = dict(scope["headers"]), self.world.settings.dialect
        place = scope["path"], scope["query_string"][:2_000], b"api-key" in headers
        target = find(*place, dialect) if scope["method"] == "POST" else None
        call = self.batches.find(self.now(), scope) if target is None else None
        if call is not None:
            if not await self.batches.serve(call, receive, send):
                await _break(scope, receive)
            return
        body = await read_body(receive, _MOST_BODY)
        if body is None:
            await send_answer(send, HttpAnswer(413, [JSON], b'{"error":{"message":"the body is too large"}}'))
        elif target is not None:
            await _Exchange(self, target, scope, headers, body).serve(receive, send)
        else:
            method = "GET" if scope["method"] == "HEAD" else scope["method"]  # uvicorn sends no body then
            status, value = self._own(method, scope["path"], body)
            await send_answer(send, HttpAnswer(status, [JSON], dump(value)))

    def _own(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """The status and the JSON value of an answer to a request that is not metered."""
        value: Any = load(body or b"{}")
        if value is None and path.startswith("/emulator/"):
            return 400, {"error": "the body must be a JSON object"}
        try:
            match method, path:
                case "GET", "/emulator/tally":
                    return 200, self.tally()
                case "POST", "/emulator/reset":  # start again, with the settings in the body changed
                    self._start(Settings.of(self.world.settings.values() | value))
                case "POST", "/emulator/limits":  # change limits in mid-run: {"gpt-6-luna": "250 requests/min"}
                    self.world.set_limits(self.now(), value)
                case "GET" | "POST", "/emulator/state":  # what is used of every quota; with a body, continue from there
                    if method == "POST":
                        self.world.resume(self.now(), value)
                    return 200, self.world.used(self.now())
                case "POST", "/emulator/advance":  # move the clock forward: {"seconds": 3600}
                    check_number("seconds", value.get("seconds"), most=MOST_ADVANCE_S)
                    self._ahead_s += value["seconds"]
                    return 200, {"now_s": self.now()}
                case "GET", "/v1/models" | "/models":
                    model = {"object": "model", "created": CREATED, "owned_by": "emulator"}
                    return 200, {"object": "list", "data": [{"id": name} | model for name in self.world.models()]}
                case _:
                    wrong = {"message": f"Invalid URL ({method} {path})", "type": "invalid_request_error", "code": None}
                    return 404, {"error": wrong}
        except SettingsError as error:
            return 400, {"error": str(error)}
        return 200, {"ok": True}


class _Exchange:
    """One metered request and its answer."""

    def __init__(self, app: App, target: DialectTarget, scope: Scope, headers: dict[bytes, bytes], body: bytes) -> None:
        self.world, self.now = app.world, app.now
        self.dialect, self.headers, self.serial = target.dialect, headers, next(app.serials)
        read = _read_again if len(body) <= _SMALL_BODY else _read_again.__wrapped__
        self.ask = read(target, body, self.world.settings.cache)
        self.key = target.key or target.dialect.key(headers)
        self.transport: Transport | None = scope.get("extensions", {}).get(TRANSPORT)
        name = target.dialect.ID_HEADER
        self.extra: list[Header] = [(name, request_id(self.serial))] if name else []

    async def serve(self, receive: Receive, send: Send) -> None:
        world, now = self.world, self.now()
        admitted = self._admit(now)
        if world.settings.headers:
            self.extra += self.dialect.rate_headers(world.levels(now, self.ask.model), now)
        if isinstance(admitted, Refused):
            await send_answer(send, self._refusal(admitted), self.extra)
            return
        if admitted.first_s:
            await asyncio.sleep(admitted.first_s)
        if admitted.fault == "drop" and self.transport is not None:
            world.finish(self.now(), admitted)
            await _break({"extensions": {TRANSPORT: self.transport}}, receive)
        elif admitted.fault is not None and not (admitted.fault == "stream" and self.ask.stream):
            world.finish(self.now(), admitted, 0)
            await send_answer(send, self.dialect.failure(self.serial), self.extra)
        else:
            world.begin(self.now(), admitted)
            await (self._stream if self.ask.stream else self._whole)(admitted, send)
            custom_id = self.headers.get(b"x-custom-id")
            if custom_id is not None and admitted.fault is None:
                world.answers.add(custom_id.decode("latin-1"))

    def _admit(self, now: float) -> Admitted | Refused:
        ask, dialect = self.ask, self.dialect
        if not self.world.settings.accepts(self.key):
            return self.world.refuse(now, Refused("auth", ask.model))
        if ask.error:
            return self.world.refuse(now, Refused("invalid", ask.model, detail=ask.error))
        return self.world.admit(
            now, ask.model, ask.input_tokens, ask.max_output_tokens, counting=dialect.COUNTING, prompt=ask.prompt
        )

    async def _whole(self, admitted: Admitted, send: Send) -> None:
        if admitted.duration_s > admitted.first_s:
            await asyncio.sleep(admitted.duration_s - admitted.first_s)
        self.world.finish(self.now(), admitted, gone=self._gone())
        body = dump(self.dialect.answer(self.ask, admitted, self.serial))
        await send_answer(send, HttpAnswer(200, [JSON], body), self.extra)

    async def _stream(self, admitted: Admitted, send: Send) -> None:
        world = self.world
        await send({"type": "http.response.start", "status": 200, "headers": [_STREAM, *self.extra]})
        per_token_s = (admitted.duration_s - admitted.first_s) / max(1, admitted.output_tokens)
        breaks_at = admitted.output_tokens // 2 if admitted.fault == "stream" else math.inf
        for tokens, piece in self.dialect.events(self.ask, admitted, self.serial):
            if tokens and per_token_s:
                await asyncio.sleep(per_token_s * tokens)
            if self._gone():
                world.finish(self.now(), admitted, gone=True)
                return
            if admitted.produced + tokens > breaks_at:
                world.finish(self.now(), admitted, admitted.produced)
                overload = self.dialect.refusal(
                    Refused("capacity", self.ask.model, status=503), world.settings, self.serial
                )
                await send({"type": "http.response.body", "body": self._as_event(overload).body})
                return
            if tokens:
                world.produce(self.now(), admitted, tokens)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        world.finish(self.now(), admitted)
        await send({"type": "http.response.body", "body": b""})

    def _gone(self) -> bool:
        """Whether the client has disconnected."""
        return self.transport is not None and self.transport.is_closing()

    def _refusal(self, refused: Refused) -> HttpAnswer:
        settings = self.world.settings
        answer = self.dialect.refusal(refused, settings, self.serial)
        in_stream = refused.kind == "rate" and self.ask.stream and settings.refuse_in_stream
        return self._as_event(answer) if in_stream else answer

    def _as_event(self, refusal: HttpAnswer) -> HttpAnswer:
        """A refusal as an event of a stream."""
        retained = (header for header in refusal.headers if header[0] != b"content-type")
        return HttpAnswer(200, [_STREAM, *retained], self.dialect.error_event(self.ask, refusal, self.serial))
