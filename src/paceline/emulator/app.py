"""The emulated provider as an ASGI application: all dialects on one port, and ``/emulator/*`` to look inside.

Metered paths are answered by plain ASGI (a refused request costs well under 100 µs); the rest is Starlette's.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from paceline.emulator import openai
from paceline.emulator.outcome import Admitted, Refused
from paceline.emulator.routes import Target, find
from paceline.emulator.settings import Settings, SettingsError
from paceline.emulator.wire import Answer, Ask, Dialect, Header, request_id
from paceline.emulator.world import World

if TYPE_CHECKING:
    from asyncio import Transport

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

TRANSPORT = "paceline.transport"
"""The scope's extension that holds the connection, for faults that break it."""

_MOST_BODY = 32 * 1024 * 1024
_SMALL_BODY = 64 * 1024
_STREAM: Header = (b"content-type", b"text/event-stream; charset=utf-8")
_JSON: Header = (b"content-type", b"application/json")


@lru_cache(maxsize=1_024)  # a client that is refused sends the same bytes again, and 64 MB is the most this holds
def _read_again(target: Target, body: bytes) -> Ask:
    return target.dialect.read(target.kind, body, target.model)


async def _body(receive: Receive) -> bytes | None:
    """A request's body; ``None`` if it is too large or the client has gone."""
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        return body
    parts, size = [body], len(body)
    while message.get("more_body"):
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > _MOST_BODY or message["type"] == "http.disconnect":
            return None
    return b"".join(parts)


async def _send(send: Send, answer: Answer, extra: list[Header]) -> None:
    size = (b"content-length", b"%d" % len(answer.body))
    headers = [*answer.headers, size, *extra]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


@dataclass(slots=True)
class _Exchange:
    """One metered request on its way through."""

    world: World
    dialect: Dialect
    serial: int
    ask: Ask
    headers: dict[bytes, bytes]
    key: str
    extra: list[Header]
    transport: Transport | None

    @property
    def gone(self) -> bool:
        """Whether the client has left."""
        return self.transport is not None and self.transport.is_closing()


class App:
    """The application; one :class:`World` at a time, replaced by a reset.

    Args:
        settings: What the provider is like.
    """

    def __init__(self, settings: Settings) -> None:
        self._epoch = time.time() - time.monotonic()  # wall-clock windows that no clock change can move
        self._serials = itertools.count(1)
        self.world = World(settings, self.now())
        self._others = Starlette(
            routes=[
                Route("/emulator/tally", self._tally),
                Route("/emulator/reset", self._reset, methods=["POST"]),
                Route("/emulator/limits", self._limits, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/models", self._models),
            ],
            exception_handlers={SettingsError: _bad_settings, 404: _not_found},
        )

    def now(self) -> float:
        """Seconds since 1970, never going back."""
        return self._epoch + time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        headers, target = dict(scope["headers"]), None
        if scope["method"] == "POST":
            target = find(scope["path"], scope["query_string"], headers, self.world.settings.dialect)
        if target is None:
            await self._others(scope, receive, send)
            return
        body = await _body(receive)
        if body is None:
            await _send(send, Answer(413, [_JSON], b'{"error":{"message":"the body is too large"}}'), [])
            return
        dialect, serial = target.dialect, next(self._serials)
        small = len(body) <= _SMALL_BODY
        ask = _read_again(target, body) if small else dialect.read(target.kind, body, target.model)
        transport = scope.get("extensions", {}).get(TRANSPORT)
        extra = [(dialect.ID_HEADER, request_id(serial))] if dialect.ID_HEADER else []
        key = target.key or dialect.key(headers)
        exchange = _Exchange(self.world, dialect, serial, ask, headers, key, extra, transport)
        await self._serve(exchange, receive, send)

    async def _serve(self, exchange: _Exchange, receive: Receive, send: Send) -> None:
        world, dialect, serial = exchange.world, exchange.dialect, exchange.serial
        now = self.now()
        admitted = self._admit(exchange, now)
        if world.settings.headers:
            exchange.extra += dialect.rate_headers(world.levels(now, exchange.ask.model), now)
        if isinstance(admitted, Refused):
            await _send(send, _refusal(exchange, admitted), exchange.extra)
            return
        if admitted.first_s:
            await asyncio.sleep(admitted.first_s)
        if admitted.fault == "drop" and exchange.transport is not None:
            world.finish(self.now(), admitted)
            exchange.transport.abort()
            await receive()  # returns when the connection is gone: nothing more is sent
        elif admitted.fault is not None and not (admitted.fault == "stream" and exchange.ask.stream):
            world.finish(self.now(), admitted, 0)
            await _send(send, dialect.failure(serial), exchange.extra)
        else:
            deliver = self._stream if exchange.ask.stream else self._whole
            await deliver(exchange, admitted, send)
            custom_id = exchange.headers.get(b"x-custom-id")
            if custom_id is not None and admitted.fault is None:
                world.answers.add(custom_id.decode("latin-1"))

    def _admit(self, exchange: _Exchange, now: float) -> Admitted | Refused:
        world, ask = exchange.world, exchange.ask
        dialect, valid = exchange.dialect, world.settings.valid_key
        if not exchange.key or (valid is not None and exchange.key != valid):
            return world.refuse(now, Refused("auth", ask.model))
        if ask.error:
            return world.refuse(now, Refused("invalid", ask.model, detail=ask.error))
        return world.admit(
            now,
            ask.model,
            ask.input_tokens,
            ask.max_output_tokens,
            holds_output=dialect.HOLDS_OUTPUT,
            settles=dialect.SETTLES,
        )

    async def _whole(self, exchange: _Exchange, admitted: Admitted, send: Send) -> None:
        if admitted.duration_s > admitted.first_s:
            await asyncio.sleep(admitted.duration_s - admitted.first_s)
        exchange.world.finish(self.now(), admitted, gone=exchange.gone)
        body = exchange.dialect.answer(exchange.ask, admitted, exchange.serial)
        await _send(send, Answer(200, [_JSON], body), exchange.extra)

    async def _stream(self, exchange: _Exchange, admitted: Admitted, send: Send) -> None:
        world = exchange.world
        await send({"type": "http.response.start", "status": 200, "headers": [_STREAM, *exchange.extra]})
        per_token_s = (admitted.duration_s - admitted.first_s) / max(1, admitted.output_tokens)
        breaks_at = admitted.output_tokens // 2 if admitted.fault == "stream" else math.inf
        for tokens, piece in exchange.dialect.events(exchange.ask, admitted, exchange.serial):
            if tokens and per_token_s:
                await asyncio.sleep(per_token_s * tokens)
            if exchange.gone:
                world.finish(self.now(), admitted, gone=True)
                return
            if admitted.produced + tokens > breaks_at:
                world.finish(self.now(), admitted, admitted.produced)
                await send({"type": "http.response.body", "body": _overloaded(exchange)})
                return
            if tokens:
                world.produce(self.now(), admitted, tokens)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        world.finish(self.now(), admitted)
        await send({"type": "http.response.body", "body": b""})

    # --- looking inside ----------------------------------------------------------------------------------------

    async def _tally(self, _: Request) -> JSONResponse:
        return JSONResponse(self.world.tally())

    async def _reset(self, request: Request) -> JSONResponse:
        """Start again, with some settings changed if the body has any."""
        changes = await _object(request)
        settings = Settings.of(self.world.settings.values() | changes)
        self.world = World(settings, self.now())
        return JSONResponse({"ok": True})

    async def _limits(self, request: Request) -> JSONResponse:
        """Change limits in mid-run: a body like ``{"gpt-5": "250 requests/min"}``."""
        self.world.set_limits(self.now(), await _object(request))
        return JSONResponse({"ok": True})

    async def _models(self, _: Request) -> JSONResponse:
        data = [
            {"id": name, "object": "model", "created": openai.CREATED, "owned_by": "emulator"}
            for name in self.world.models()
        ]
        return JSONResponse({"object": "list", "data": data})


def _refusal(exchange: _Exchange, refused: Refused) -> Answer:
    """How the provider says no: as an answer of its own, or as the first event of a stream."""
    settings, ask = exchange.world.settings, exchange.ask
    answer = exchange.dialect.refusal(refused, settings, exchange.serial)
    if refused.kind != "rate" or not ask.stream or not settings.refuse_in_stream:
        return answer
    told = [header for header in answer.headers if header[0] != b"content-type"]
    return Answer(200, [_STREAM, *told], exchange.dialect.error_event(ask, answer, exchange.serial))


def _overloaded(exchange: _Exchange) -> bytes:
    """The error event in which a stream ends that was going well."""
    refused = Refused("capacity", exchange.ask.model, status=503)
    answer = exchange.dialect.refusal(refused, exchange.world.settings, exchange.serial)
    return exchange.dialect.error_event(exchange.ask, answer, exchange.serial)


async def _object(request: Request) -> dict[str, Any]:
    body = await request.body()
    try:
        value = await request.json() if body else {}
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise SettingsError("the body must be a JSON object")
    return value


def _bad_settings(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 400)


def _not_found(request: Request, _: Exception) -> JSONResponse:
    message = f"Invalid URL ({request.method} {request.url.path})"
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error", "code": None}}, 404)
