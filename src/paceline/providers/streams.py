"""Reading usage from the bytes of an answer while they pass by: a JSON body, or server-sent events.

Both readers take the bytes cut anywhere, never raise, and hold little: of a long JSON body only its two ends,
of a stream only the event that is not complete yet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from paceline.core.results import Refusal
from paceline.providers.base import Usage
from paceline.providers.parse import decode

UsageOf = Callable[[Mapping[str, Any]], Usage | None]

_END = 65_536  # bytes kept of each end of a JSON body; every known API names usage near one of them
MAX_EVENT: Final = 16_777_216
"""Bytes of one event; a longer one is read as far as it went."""


class JsonReader:
    """Usage from a JSON body. ``done`` is true once the body is over.

    Args:
        usage_of: Turns an answer, or the usage object alone, into usage.
        name: What the usage object is called.
    """

    def __init__(self, usage_of: UsageOf, name: str = "usage") -> None:
        self._usage_of, self._name = usage_of, f'"{name}"'.encode()
        self._head, self._tail, self._length = bytearray(), bytearray(), 0
        self.usage: Usage | None = None
        self.done = False
        self.refusal: Refusal | None = None

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the body."""
        if self.done:
            return
        self._length += len(chunk)
        room = _END - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > 4 * _END:
            del self._tail[:-_END]

    def close(self) -> None:
        """The body is over: read it whole when it is short, else look for the usage object at its ends."""
        if self.done:
            return
        self.done = True
        payload = decode(bytes(self._head + self._tail)) if self._length <= 2 * _END else None
        if isinstance(payload, Mapping):
            self.usage = self._usage_of(payload)
        else:
            found = (
                self._usage_of(usage)
                for end in (self._tail[-_END:], self._head)
                for usage in _usage_objects(bytes(end), self._name)
            )
            self.usage = next((usage for usage in found if usage is not None), None)
        self._head, self._tail = bytearray(), bytearray()


def _usage_objects(data: bytes, name: bytes) -> Iterator[dict[str, Any]]:
    """The objects called ``name`` in a piece of JSON, last first.

    Inside a JSON string the name would be written with backslashes, so what is found is a name or a short text.
    """
    decoder = json.JSONDecoder()
    at = len(data)
    for _ in range(8):
        at = data.rfind(name, 0, at)
        if at < 0:
            return
        value = data[at + len(name) : at + len(name) + 8_192].lstrip(b" \t\r\n:")
        try:
            found, _ = decoder.raw_decode(value.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found


class SseReader:
    """Reads server-sent events that carry one of ``needles``; a dialect says what an event means.

    Args:
        on_event: Called with each decoded event and what is known so far; returns the usage, a refusal, and
            whether this event ends the answer.
        needles: Bytes of which an event must contain one to be decoded at all. Most events of a long answer
            hold none and cost a search.
    """

    def __init__(
        self,
        on_event: Callable[[dict[str, Any], Usage | None], tuple[Usage | None, Refusal | None, bool]],
        *needles: bytes,
    ) -> None:
        self._on_event, self._needles = on_event, needles
        self._buffer = bytearray()
        self._after_cr = False
        self.usage: Usage | None = None
        self.done = False
        self.refusal: Refusal | None = None

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        if self.done or not chunk:
            return
        if self._after_cr or b"\r" in chunk:
            chunk = self._plain_lines(chunk)
        searched = max(0, len(self._buffer) - 1)
        self._buffer += chunk
        end = self._buffer.rfind(b"\n\n", searched)
        if end >= 0:
            complete = bytes(self._buffer[:end])
            del self._buffer[: end + 2]
            self._read(complete)
        elif len(self._buffer) > MAX_EVENT:
            self._flush()

    def close(self) -> None:
        """The stream is over; what is left may be an event without its last blank line."""
        self._flush()
        self.done = True

    def _flush(self) -> None:
        if not self.done:
            self._read(bytes(self._buffer))
        self._buffer = bytearray()

    def _plain_lines(self, chunk: bytes) -> bytes:
        """Turn CR LF and lone CR into LF, also when a chunk ends between the two."""
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r") if chunk else False
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _read(self, events: bytes) -> None:
        if not self._tells(events):
            return
        for event in events.split(b"\n\n"):
            if self._tells(event):
                self._read_event(event)
                if self.done:
                    self._buffer = bytearray()
                    return

    def _tells(self, events: bytes) -> bool:
        told = events.replace(b'"usage":null', b"")  # every chunk of a chat stream but the last says this
        return any(needle in told for needle in self._needles)

    def _read_event(self, event: bytes) -> None:
        lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
        whole = decode(b"\n".join(lines))
        # Sloppy servers leave out the blank line between two events: then each line is one.
        for data in [whole] if whole is not None else map(decode, lines):
            if isinstance(data, dict):
                usage, refusal, done = self._on_event(data, self.usage)
                self.usage = usage or self.usage
                self.refusal = self.refusal or refusal
                self.done = self.done or done
        if b"[DONE]" in lines:
            self.done = True
