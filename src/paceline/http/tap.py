"""A response's body on its way to the caller: passed on unchanged, read for usage, settled at its end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from paceline.core.outcomes import Refusal
from paceline.providers.base import Usage, UsageReader


class Tap:
    """Reads usage from raw chunks and settles once: at the terminal event, else when the body is over or closed.

    An SDK may never read to the end, may close early, or may iterate again to drain: none of it matters here.
    """

    __slots__ = ("_decode", "_reader", "_settle", "_settled")

    def __init__(self, reader: UsageReader, decode: Callable[[bytes], bytes] | None, settle: Settle) -> None:
        self._reader = reader
        self._decode = decode
        self._settle = settle
        self._settled = False

    def feed(self, chunk: bytes) -> None:
        """Take the next raw bytes."""
        if self._settled:
            return
        if self._decode is not None:
            try:
                chunk = self._decode(chunk)
            except Exception:  # noqa: BLE001  (a broken encoding is for the caller's own decoder to report)
                self.finish()
                return
        self._reader.feed(chunk)
        if self._reader.done:
            self.finish()

    def finish(self) -> None:
        """The body is over: settle, once."""
        if not self._settled:
            self._settled = True
            self._reader.close()
            self._settle(self._reader.usage, self._reader.refusal)


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


def decoder(response: Any, headers: Mapping[str, str]) -> Callable[[bytes], bytes] | None:
    """The function that undoes the response's content encoding, chunk by chunk; ``None`` for a plain body.

    The HTTP library's own decoders do it, on a twin of the response, so that the caller's are untouched.
    """
    if headers.get("content-encoding", "identity") == "identity":
        return None
    twin = type(response)(response.status_code, headers=response.headers)
    decode: Callable[[bytes], bytes] = twin._get_content_decoder().decode  # noqa: SLF001  (no public way per chunk)
    return decode
