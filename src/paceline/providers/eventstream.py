"""Reading AWS's binary event stream (``application/vnd.amazon.eventstream``) while it passes by.

A frame: its length and its headers' (4 bytes each), a checksum (4), the headers, a JSON payload, a checksum (4). A header:
the length of its name (1), the name, the type of its value (1), the value. Checksums are not checked: whoever
reads the answer does, and here a broken frame only costs us its usage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from paceline.core.results import Refusal
from paceline.providers.base import Usage
from paceline.providers.parse import decode
from paceline.providers.streams import MAX_EVENT

_PRELUDE, _CHECKSUM = 12, 4
_SIZES: Final = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}  # bytes of a value, by its type
_SIZED: Final = (6, 7)  # bytes and text say their length in two bytes

OnEvent = Callable[[str, dict[str, Any]], tuple[Usage | None, Refusal | None, bool]]


class EventStreamReader:
    """Reads the frames of an event stream; a dialect says what one means.

    Args:
        on_event: Called with the kind of each event or exception and its decoded payload; returns the usage, a refusal,
            and whether this event ends the answer.
        kinds: The kinds to decode; the frames of all others are skipped. Exceptions are always decoded.
    """

    def __init__(self, on_event: OnEvent, *kinds: str) -> None:
        self._on_event, self._kinds = on_event, kinds
        self._buffer = bytearray()
        self.usage: Usage | None = None
        self.done = False
        self.refusal: Refusal | None = None

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        if self.done:
            return
        buffer = self._buffer
        buffer += chunk
        while len(buffer) >= _PRELUDE:
            length, headers = int.from_bytes(buffer[:4], "big"), int.from_bytes(buffer[4:8], "big")
            if not _PRELUDE + headers + _CHECKSUM <= length <= MAX_EVENT:
                self.close()  # no event stream: nothing to find in it
                return
            if len(buffer) < length:
                return
            start = _PRELUDE + headers
            kinds, payload = _headers(bytes(buffer[_PRELUDE:start])), bytes(buffer[start : length - _CHECKSUM])
            del buffer[:length]
            if self._read(kinds, payload):
                self.close()
                return

    def close(self) -> None:
        """The stream is over."""
        self._buffer = bytearray()
        self.done = True

    def _read(self, headers: dict[str, str], payload: bytes) -> bool:
        """Take one frame; whether it ends the answer."""
        kind = headers.get(":exception-type") or headers.get(":event-type", "")
        if ":exception-type" not in headers and kind not in self._kinds:
            return False
        event = decode(payload)
        if not isinstance(event, dict):
            return False
        usage, refusal, done = self._on_event(kind, event)
        self.usage, self.refusal = usage or self.usage, self.refusal or refusal
        return done


def _headers(data: bytes) -> dict[str, str]:
    """The headers whose values are texts, up to the first that cannot be read."""
    found: dict[str, str] = {}
    at = 0
    while at < len(data):
        name_end = at + 1 + data[at]
        name, kind = data[at + 1 : name_end], data[name_end] if name_end < len(data) else -1
        at = name_end + 1
        if kind in _SIZED:
            size = int.from_bytes(data[at : at + 2], "big")
            at += 2
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            break
        if kind == _SIZED[1]:
            found[name.decode("utf-8", "replace")] = data[at : at + size].decode("utf-8", "replace")
        at += size
    return found
