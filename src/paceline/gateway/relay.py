"""One request on its way through the gateway, and its answer: the bytes pass unchanged, but for what a budget has asked for."""

from __future__ import annotations

import asyncio
import json
import logging
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, Final

from paceline.core.results import Refusal
from paceline.gateway.asked import REFUSES, Asking, Unasked, may_ask
from paceline.gateway.client import Fetched, HttpClient, Upload
from paceline.gateway.connection import Headers
from paceline.gateway.forms import as_asked
from paceline.gateway.refusals import KEPT_MAX, RequestRefusals
from paceline.gateway.shares import Shares
from paceline.gateway.upstreams import OF_SERVER, Upstream
from paceline.http.ahead import held_parts, in_pieces
from paceline.http.binding import Exchanged
from paceline.http.tap import Tap
from paceline.pacing.permit import Permit
from paceline.providers.verdict import Beginning, Decode

log = logging.getLogger("paceline.gateway")

BODY_MAX: Final = 64 * 2**20
"""Bytes in the body of a request, also without its content encoding."""

ERROR_MAX: Final = 1_000_000
"""Bytes in the body of an error, in which the gateway's own key is replaced."""

HIDDEN: Final = b"***"

_MADE_HERE: Final = 2**20
"""Bytes of a body to which a field is added at once, and not in a thread."""

HOP_BY_HOP: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding upgrade"
    b" expect host content-length".split()
)
"""Headers that are about one connection, or that each connection has its own of."""

DECODED: Final = ("gzip", "deflate", "identity")
"""The content encodings in which the usage of an answer can be read."""


@dataclass(slots=True, eq=False, repr=False)
class Noted:
    """What is noted of an answer while it is read, for another reader of it: as long as there is room.

    Attributes:
        most: The most bytes of this answer.
        of_all: The most bytes of all answers.
        owner: The client key whose answer it is.
        shares: What the answers of each key take, of ``of_all``.
        body: What has been read; ``None`` if that is more than there is room for, and when the answer is closed.
        again: What of it is still to be read again.
    """

    most: int
    of_all: int
    owner: str
    shares: Shares
    body: bytearray | None = field(default_factory=bytearray)
    again: bytes = b""

    def add(self, part: bytes) -> None:
        """Note a further part."""
        if self.body is None:
            return
        size = len(part)
        if len(self.body) + size > self.most or not self.shares.fits(self.owner, size, self.of_all):
            self.forget()
        else:
            self.shares.use(self.owner, size)
            self.body += part

    def forget(self) -> None:
        """Forget it, and make room for others."""
        if self.body is not None:
            self.shares.use(self.owner, -len(self.body))
            self.body = None


class UnfinishedStreamError(ConnectionAbortedError):
    """A server has ended a stream before its answer was over: as if the connection had broken."""


class ClientReply:
    """An answer for the client: a server's, or one of the gateway's own.

    Attributes:
        status: Its status.
        headers: Its headers.
        record: What is known of its exchange; ``None`` without one.
        upstream: The server that has answered; ``None`` for an answer that comes from none.
        fallback: Which place has answered after which others; empty for the first.
        broken: Whether the client is to see that the answer is not whole.
    """

    __slots__ = (
        "_body", "_decode", "_fetched", "_key", "_noted", "_tap", "broken", "fallback", "headers", "record", "status", "upstream",
    )  # fmt: skip

    def __init__(
        self, status: int, headers: Headers, body: bytes = b"", fetched: Fetched | None = None, key: str = ""
    ) -> None:
        self._key = key.encode()
        if key:
            headers = [(name, value.replace(self._key, HIDDEN)) for name, value in headers]
        self.status, self.headers = status, headers
        self.record: Exchanged | None = None
        self.upstream: Upstream | None = None
        self.fallback = b""
        self.broken = False
        self._body, self._fetched = bytearray(body), fetched
        self._noted: Noted | None = None
        self._tap: Tap | None = None
        self._decode: Decode | None = None

    async def peek(self, most: int) -> bytes:
        """The first bytes of the body, as they were sent."""
        while len(self._body) < most and await self.more():
            pass
        return bytes(self._body)

    async def more(self) -> bytes:
        """The next part of the body, which is kept for :meth:`read`; empty at its end."""
        part = await self._next()
        self._body += part
        return part

    def keep(self, body: bytes) -> None:
        """Keep ``body`` of what has been read: the client has the rest already."""
        self._body = bytearray(body)

    async def _next(self) -> bytes:
        """The next part of the body from the server; empty at its end."""
        if self._fetched is None:
            return b""
        part = await self._fetched.read()
        if not part:
            self._end()
        return part

    def _end(self) -> None:
        """No more of the body can come."""
        if self._fetched is not None:
            self._fetched.close()  # which is nothing at the end of the body
            self._fetched = None

    async def plain(self, most: int) -> bytes:
        """The first bytes of the body without its encoding, one more than ``most`` of a longer one; empty if it is malformed."""
        raw, decode = await self.peek(most + 1), decoder(self.encoding)
        return raw if decode is None else decoded(decode, raw, most + 1)

    async def peek_error(self) -> tuple[bytes, bool]:
        """The body of an error without its encoding, and whether it is too large or its encoding is not known."""
        plain = await self.plain(ERROR_MAX)
        return plain, max(len(plain), len(self._body)) > ERROR_MAX or self.encoding not in ("", *DECODED)

    async def hide_key(self) -> None:
        """Replace the key that the gateway has sent in the body of an error; other answers pass as they come."""
        if self.status < 400 or not self._key:
            return
        plain, unread = await self.peek_error()
        if not unread and self._key not in plain:
            return
        body = b'{"error": {"message": "paceline: the body of this error is too large, or encoded"}}'
        self.put(self.status, self.headers, body if unread else plain.replace(self._key, HIDDEN))

    def put(self, status: int, headers: Headers, body: bytes) -> None:
        """Tell the client this in place of what the server has sent."""
        self._end()
        self._body = bytearray(body)
        stated = [pair for pair in headers if pair[0] not in (b"content-encoding", b"content-length")]
        self.status, self.headers = status, [*stated, (b"content-length", b"%d" % len(body))]

    def _header(self, wanted: bytes) -> bytes:
        return next((value for name, value in self.headers if name == wanted), b"")

    @property
    def server(self) -> str:
        """The name of the server; empty for none."""
        return "" if self.upstream is None else self.upstream.name

    @property
    def length(self) -> int:
        """The bytes of the body; -1 if they are not stated."""
        return int(self._header(b"content-length") or -1)

    def tap(self, tap: Tap) -> None:
        """Feed ``tap`` while the body is read."""
        self._tap = tap

    def decode(self) -> None:
        """Remove the encoding of the body: the client has another head than this answer's."""
        if self._decode is not None:  # it is decoded already
            return
        self._decode = decoder(self.encoding)
        if self._decode is not None:
            self.headers = [pair for pair in self.headers if pair[0] not in (b"content-encoding", b"content-length")]

    def hide_usage(self) -> None:
        """Leave the usage out of the stream: its client has not asked for it."""
        self.decode()
        self._decode = Unasked(self._decode).feed
        self.headers = [pair for pair in self.headers if pair[0] != b"content-length"]

    @property
    def of_gateway(self) -> bool:
        """Whether it answers the gateway's own key."""
        return bool(self._key)

    @property
    def begun(self) -> bool:
        """Whether a part of the body is there."""
        return bool(self._body or (self._noted is not None and self._noted.again))

    @property
    def unread(self) -> bool:
        """Whether more of the body can come."""
        return self._fetched is not None

    @property
    def owes(self) -> bool:
        """Whether its usage is still to be read."""
        return self._tap is not None and not self._tap.done

    @property
    def is_good(self) -> bool:
        """Whether its status says that it is what was asked for."""
        return 200 <= self.status < 300

    @property
    def encoding(self) -> str:
        """The encoding of the body; empty for none."""
        return self._header(b"content-encoding").decode("latin-1").strip().lower()

    @property
    def texts(self) -> dict[str, str]:
        """Its headers as text."""
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers}

    @property
    def seen(self) -> bytearray | None:
        """What has been read of the body since :meth:`start`; ``None`` without that, and if it is more than there was room for."""
        return None if self._noted is None else self._noted.body

    def start(self, noted: Noted) -> None:
        """Read from the beginning on, and note what is read for another reader."""
        self._noted = self._noted or noted
        self._noted.again = bytes(self._noted.body or b"")

    async def read(self) -> bytes:
        """The next part of the body, as it comes; empty at its end."""
        noted = self._noted
        if noted is not None and noted.again:
            part, noted.again = noted.again, b""
            return part
        more = True
        while more:
            raw = await self._raw()
            part = raw if self._decode is None else b"".join(self._decode(raw))
            more = bool(raw and not part)
        if noted is not None:
            noted.add(part)
        return part

    async def _raw(self) -> bytes:
        """The next part of the body as it was sent, which the tap sees."""
        if self._body:
            part, self._body = bytes(self._body), bytearray()
        else:
            part = await self._next()
        if self._tap is not None:
            if part:
                self._tap.feed(part)
            else:
                self._tap.finish()
                if self.record is not None and not self.record.whole:
                    raise UnfinishedStreamError("its stream ends without its last event")
        return part

    async def parts(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        while part := await self.read():
            yield part

    def close(self) -> None:
        """The body is over, or the client is gone: settle with what has been read."""
        if self._noted is not None:
            self._noted.forget()
        self._end()
        if self._tap is not None:
            self._tap.finish()


@dataclass(slots=True, eq=False, repr=False)
class Relayed:
    """A request of a client; see :class:`~paceline.http.binding.Binding`.

    Attributes:
        client: Sends it.
        upstream: The server.
        method: Its method.
        path: The path there.
        query: Its query; empty for none.
        headers: The headers that the server gets, but the one with its key.
        body: Its body.
        pass_on: Sends the comments and pings of a stream to the client, while its beginning is held. Its client sets it.
        refusals: Its refusals; ``None`` where the gateway's key is sent: they are about its owner's account.
    """

    client: HttpClient
    upstream: Upstream
    method: str
    path: str
    query: str
    headers: Headers
    body: bytes | Upload
    pass_on: Callable[[ClientReply, bytes], Awaitable[None]] = field(init=False)
    refusals: RequestRefusals | None = field(init=False)
    _key: str = ""  # that was sent last
    _asking: Asking | None = None
    _takes: dict[str, bool] = field(default_factory=dict)

    is_async = True

    def __post_init__(self) -> None:
        self.refusals = None if self.upstream.key else RequestRefusals({})

    @property
    def server(self) -> str:
        """The name of the server."""
        return self.upstream.name

    @property
    def address(self) -> str:
        return self.upstream.root

    @property
    def target(self) -> tuple[str, str]:
        return self.upstream.host, self.path

    def ask_usage(self, takes: dict[str, bool], asking: Callable[[], Asking | None]) -> None:
        """Ask for the usage of a chat stream, which its client does not get.

        Args:
            takes: Whether a server takes the field, by its address, as far as is known.
            asking: Returns what asks for it in the body.
        """
        upstream = self.upstream
        if may_ask(upstream.provider, self.path) and takes.get(upstream.root, True):
            self._asking, self._takes = asking(), takes

    def _with(self, asking: Asking, body: bytes) -> bytes:
        return asking.of(plain(dict(self.headers).get(b"content-encoding", b"identity"), body))

    async def send(self, permit: Permit | None = None) -> ClientReply:  # noqa: ARG002
        if self._asking is None:
            return await self._send(self.headers, self.body)
        assert isinstance(self.body, bytes)
        make = partial(self._with, self._asking, self.body)
        body = await asyncio.to_thread(make) if len(self.body) > _MADE_HERE else make()
        takes, root = self._takes, self.upstream.root
        headers = [pair for pair in self.headers if pair[0] not in (b"content-encoding", b"accept-encoding")]
        reply = await self._send([*headers, (b"accept-encoding", b"identity")], body)
        if reply.is_good:
            takes[root] = True
            reply.hide_usage()
        # A server that has taken the field before refuses something else.
        elif reply.status in REFUSES and not takes.get(root):
            reply.close()
            reply = await self._send(self.headers, self.body)
            if reply.is_good:
                self._asking, takes[root] = None, False
        return reply

    async def _send(self, headers: Headers, body: bytes | Upload) -> ClientReply:
        key = self.upstream.key  # as it is now: the request may have waited for long
        self._key = key
        if key:
            headers = [*headers, self.upstream.credentials(self.path, key)]
        target = f"{self.path}?{self.query}" if self.query else self.path
        fetched = await self.client.fetch(self.upstream, self.method, target, headers, body)
        if key and fetched.status == 401:
            self.upstream.secret.refused(key, self.upstream.name, self.upstream.key_env)
        told = [pair for pair in fetched.headers if pair[0] not in OF_SERVER] if key else fetched.headers
        reply = ClientReply(fetched.status, told, fetched=fetched, key=key)
        reply.upstream = self.upstream
        return reply

    def head(self, response: ClientReply) -> tuple[int, Mapping[str, str]]:
        return response.status, response.texts

    async def peek(self, response: ClientReply, headers: Mapping[str, str], beginning: Beginning) -> None:
        decode = decoder(headers.get("content-encoding", ""))
        async for part in held_parts(beginning, response.more):
            beginning.take_encoded(part, decode)
            if not beginning.enough and decode is None and (idle := beginning.take_idle()):
                response.keep(bytes(beginning.body))
                await self.pass_on(response, idle)

    def tap(self, response: ClientReply, headers: Mapping[str, str], tap: Tap) -> None:
        tap.decode = decoder(headers.get("content-encoding", ""))
        response.tap(tap)

    def note(self, response: ClientReply, record: Exchanged) -> None:
        response.record = record
        if response.is_good and self.refusals is not None:
            self.refusals.clear()

    async def keep_refusal(self, response: ClientReply, refusal: Refusal) -> None:
        """Keep a refusal of the client's own credential as it came; inside of a stream it is an event, and is not kept."""
        if self.refusals is None or response.status < 400:
            return
        with suppress(Exception):  # its body has broken off
            if len(body := await response.plain(KEPT_MAX)) <= KEPT_MAX:
                self.refusals.keep(response.status, response.headers, body, refusal)

    async def close(self, response: ClientReply) -> None:
        response.close()

    def instead(self, word: str, wait_s: str | None) -> ClientReply | None:
        """The server's own refusal in place of one of paceline's; see :meth:`RequestRefusals.instead`."""
        kept = None if self.refusals is None else self.refusals.instead(word, wait_s)
        return None if kept is None else ClientReply(*kept)

    def respond(self, status: int, headers: Mapping[str, str], body: bytes) -> ClientReply:
        if (kept := self.instead(headers.get("x-paceline", ""), headers.get("retry-after"))) is not None:
            return kept
        if self._key:
            body = body.replace(self._key.encode(), HIDDEN)  # a message of the server that it quotes
        if headers.get("x-paceline") == "store":  # it may answer soon, or another process may reach it
            body = body.replace(b"service_unavailable_error", b"api_error", 1)
            headers = {**headers, "x-should-retry": "true", "retry-after": "1"}
        if "x-paceline" in headers:  # else it is the server's error, in the form of its API
            body = json.dumps(as_asked(self.path, status, json.loads(body))).encode()
        stated = {"content-length": str(len(body))} if "content-length" in headers else {}
        pairs = [(name.encode(), value.encode()) for name, value in {**headers, **stated}.items()]
        return ClientReply(status, pairs, body)


def decoder(encoding: str) -> Decode | None:
    """Decodes a body, chunk by chunk, in small pieces; ``None`` for a plain body, or an encoding that is not known."""
    encoding = encoding.strip().lower()
    return in_pieces({"content-encoding": encoding}, _inflating) if encoding in DECODED else None


def _inflating(_: str) -> Callable[[bytes], Iterator[bytes]]:
    inner = zlib.decompressobj(zlib.MAX_WBITS | 32)  # 32: gzip and zlib

    def decode(piece: bytes) -> Iterator[bytes]:
        nonlocal inner
        while piece:
            if inner.eof:  # another member of gzip
                inner = zlib.decompressobj(zlib.MAX_WBITS | 32)
            yield inner.decompress(piece)
            piece = inner.unused_data

    return decode


def plain(encoding: bytes, body: bytes, most: int = BODY_MAX) -> bytes:
    """The body of a request without its content encoding, for its description; at most so many bytes."""
    encoding = encoding.strip().lower()
    if encoding == b"identity" or not body:
        return body
    inner = _request_decoder(encoding.decode("latin-1"))
    try:
        return b"" if inner is None else bytes(inner.decompress(body, most))
    except Exception:  # noqa: BLE001  (each library has an error of its own)
        return b""


def _request_decoder(encoding: str) -> Any:
    if encoding in DECODED:
        return zlib.decompressobj(zlib.MAX_WBITS | 32)
    for module in ("compression.zstd", "backports.zstd") if encoding == "zstd" else ():
        with suppress(ImportError):
            return import_module(module).ZstdDecompressor()
    _log_unread(encoding[:20])
    return None


@lru_cache(maxsize=16)
def _log_unread(encoding: str) -> None:
    hint = "; pip install backports.zstd" if encoding == "zstd" else ""
    log.warning("requests encoded with %s pass, but their models and tokens cannot be read%s", encoding, hint)


def decoded(decode: Decode, raw: bytes, most: int) -> bytes:
    """The first ``most`` bytes of a body; empty if it is malformed."""
    plain = bytearray()
    try:
        for piece in decode(raw):
            plain += piece
            if len(plain) >= most:
                break
    except zlib.error:
        return b""
    return bytes(plain[:most])


def forwarded(headers: Headers, drop: frozenset[bytes]) -> Headers:
    """The headers of a message that belong to it, and not to its connection; without those in ``drop``."""
    for name, value in headers:
        if name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            drop |= {one.strip().lower() for one in value.split(b",")}
    return [(name, value) for name, value in headers if name not in drop]


def readable(accepted: bytes) -> bytes:
    """The ``accept-encoding`` of a client, without encodings in which the usage could not be read."""
    parts = [part.strip() for part in accepted.decode("latin-1").split(",")]
    kept = [part for part in parts if part.partition(";")[0].strip().lower() in DECODED]
    return ", ".join(kept).encode() or b"identity"


def let_go(error: BaseException) -> None:
    """Drop the frames of an error that was told: they contain its request, and the error. Collections are rare here."""
    error.__traceback__ = None
