"""A response's body on its way to the caller: passed on unchanged, read for usage, settled at its end."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any

from paceline.core.results import Refusal
from paceline.providers.base import Usage, UsageReader

log = logging.getLogger("paceline.http")


class Tap:
    """Reads usage from raw chunks and settles once: at the terminal event, else when the body is over or closed.

    An SDK may never read to the end, may close early, or may iterate again to drain: none of it matters here.
    """

    __slots__ = ("_decode", "_reader", "_settle", "_settled")

    def __init__(self, reader: UsageReader, decode: Decode | None, settle: Settle) -> None:
        self._reader = reader
        self._decode = decode
        self._settle = settle
        self._settled = False

    def feed(self, chunk: bytes) -> None:
        """Take the next raw bytes. Never raises: whatever is wrong with them, the caller's own reader will say."""
        if self._settled:
            return
        try:
            for piece in (chunk,) if self._decode is None else self._decode(chunk):
                self._reader.feed(piece)
            done = self._reader.done
        except Exception as error:  # noqa: BLE001
            log.debug("usage cannot be read: %s", type(error).__name__)
            done = True
        if done:
            self.finish()

    def finish(self) -> None:
        """The body is over: settle, once."""
        if self._settled:
            return
        self._settled = True
        usage, refusal = None, None
        try:
            self._reader.close()
            usage, refusal = self._reader.usage, self._reader.refusal
        except Exception as error:  # noqa: BLE001
            log.debug("usage cannot be read: %s", type(error).__name__)
        self._settle(usage, refusal)


Decode = Callable[[bytes], Iterable[bytes]]
Settle = Callable[[Usage | None, Refusal | None], None]


def tapped_stream(httpx: Any, inner: Any, tap: Tap) -> Any:
    """``inner``, a response stream of the module ``httpx``, with ``tap`` on it; sync or async as it is asked."""
    return _stream_class(httpx)(inner, tap)


_classes: dict[Any, type] = {}


def _stream_class(httpx: Any) -> type:
    if httpx not in _classes:

        class TappedStream(httpx.SyncByteStream, httpx.AsyncByteStream):  # type: ignore[misc]
            def __init__(self, inner: Any, tap: Tap) -> None:
                self._inner = inner
                self._tap = tap

            def __iter__(self) -> Iterator[bytes]:
                try:
                    for chunk in self._inner:
                        self._tap.feed(chunk)
                        yield chunk
                finally:
                    self._tap.finish()

            async def __aiter__(self) -> AsyncIterator[bytes]:
                try:
                    async for chunk in self._inner:
                        self._tap.feed(chunk)
                        yield chunk
                finally:
                    self._tap.finish()

            def close(self) -> None:
                try:
                    self._inner.close()
                finally:
                    self._tap.finish()

            async def aclose(self) -> None:
                try:
                    await self._inner.aclose()
                finally:
                    self._tap.finish()

        _classes[httpx] = TappedStream
    return _classes[httpx]


def unread(httpx: Any, inner: Any, first: list[bytes], rest: Any) -> Any:
    """A stream that gives ``first`` again, then what the iterator ``rest`` of the stream ``inner`` still has."""
    if (httpx, "unread") not in _classes:

        class Unread(httpx.SyncByteStream, httpx.AsyncByteStream):  # type: ignore[misc]
            def __init__(self, inner: Any, first: list[bytes], rest: Any) -> None:
                self._inner, self._first, self._rest = inner, first, rest

            def __iter__(self) -> Iterator[bytes]:
                yield from self._first
                yield from self._rest

            async def __aiter__(self) -> AsyncIterator[bytes]:
                for chunk in self._first:
                    yield chunk
                async for chunk in self._rest:
                    yield chunk

            def close(self) -> None:
                self._inner.close()

            async def aclose(self) -> None:
                await self._inner.aclose()

        _classes[httpx, "unread"] = Unread
    return _classes[httpx, "unread"](inner, first, rest)


def decoder(response: Any, headers: Mapping[str, str]) -> Decode | None:
    """The function that undoes the response's content encoding, piece by piece; ``None`` for a plain body.

    The HTTP library's own decoders do it, on a twin of the response, so that the caller's are untouched.
    """
    if headers.get("content-encoding", "").strip().lower() in ("", "identity"):
        return None
    twin = type(response)(response.status_code, headers=response.headers)
    decode = twin._get_content_decoder().decode  # noqa: SLF001  (no public way per chunk)

    def pieces(chunk: bytes) -> Iterable[bytes]:
        plain = decode(chunk)
        return (plain,) if isinstance(plain, bytes) else plain  # httpx gives bytes, httpx2 an iterator of them

    return pieces


def decoded(response: Any, headers: Mapping[str, str], raw: list[bytes], most: int) -> bytes:
    """The body in ``raw`` without its content encoding, cut at about ``most`` bytes; nothing if it is broken."""
    decode = decoder(response, headers)
    if decode is None:
        return b"".join(raw)
    plain: list[bytes] = []
    size = 0
    try:
        for chunk in raw:
            for piece in decode(chunk):
                plain.append(piece)
                size += len(piece)
                if size > most:
                    return b"".join(plain)
    except Exception:  # noqa: BLE001  (whatever the decoder raises: the caller's own will say so)
        return b""
    return b"".join(plain)
