"""Readers of usage from the bytes of an answer while they pass by: JSON, server-sent events, AWS's event stream.

The readers accept bytes that are cut anywhere, never raise, and hold little: of a long JSON body its two ends, of a
stream the event that is not complete yet.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from paceline.core.results import Refusal
from paceline.providers.base import Usage
from paceline.providers.plan_headers import EVENT
from paceline.responses.errors import error_in
from paceline.responses.events import BLANK, MAX_EVENT, data_in, elements, frames, unpacked, values_of
from paceline.responses.finish import FINISHED, SIGNS, State, goes_on, is_last, promises_end, state_in, state_of
from paceline.responses.values import decode

Found = tuple[Usage | None, Refusal | None, bool]
"""What an event contains: the usage, a refusal, and whether the event ends the answer."""

_END = 65_536  # bytes kept of each end of a JSON body; every known API names usage near one of them


class _Reader:
    def __init__(self) -> None:
        self._buffer = bytearray()
        self.usage: Usage | None = None
        self.done = False
        self.refusal: Refusal | None = None
        self.state: State | None = None
        """How far the model has come; ``None`` until that is known."""
        self.whole = True
        """Whether nothing is missing of what has passed; false for a stream that is over without a word of its end."""
        self._promised: bool | None = None
        """Whether it is a stream in a form that says where the answer ends; ``None`` until its first event."""
        self.failed = False
        """Whether one of its events is an error."""

    def _end(self, state: State | None) -> None:
        """Take the state in an event: of several, the first that says that the answer is not finished."""
        if self.state is None or (self.state in FINISHED and state is not None):
            self.state = state

    def _is_whole(self) -> bool:
        """Whether a stream that is over has said so: by its last event, a reason, an error or the usage of all of it."""
        said = self.done or self.failed or self.state is not None or self.refusal is not None
        return said or not self._promised or (self.usage is not None and not self.usage.partial)

    def _take(self, found: Found) -> None:
        usage, refusal, done = found
        self.usage, self.refusal, self.done = usage or self.usage, self.refusal or refusal, self.done or done


class JsonReader(_Reader):
    """Usage from a JSON body. ``done`` is true once the body is over.

    Args:
        usage_of: Turns an answer, or the usage object alone, into usage.
        names: The keys of a usage object.
    """

    def __init__(self, usage_of: Callable[[Mapping[str, Any]], Usage | None], *names: str) -> None:
        super().__init__()
        self._usage_of, self._names = usage_of, [f'"{name}"'.encode() for name in names]
        self._head, self._tail, self._length = bytearray(), bytearray(), 0

    def feed(self, chunk: bytes) -> None:
        if self.done:
            return
        self._length += len(chunk)
        room = _END - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > 4 * _END:
            del self._tail[:-_END]

    def close(self) -> None:
        """Read the body whole when it is short, else look for the usage object at its ends."""
        if self.done:
            return
        self.done = True
        payload = decode(bytes(self._head + self._tail)) if self._length <= 2 * _END else None
        if isinstance(payload, Mapping):
            self.usage = self._usage_of(payload)
            self.state = state_of(payload)
        else:
            ends = (self._tail[-_END:], self._head)
            _, before, end = bytes(self._head + self._tail)[-_END:].rstrip().rpartition(b"\n")
            line = decode(end)  # of an object a line
            # A line that is longer than what is kept: the fields behind its last list (Ollama's context of all tokens).
            if line is None:
                line = decode(b"{" + end.rpartition(b"],")[2])
            last = self._usage_of(line) if isinstance(line, Mapping) else None
            self.state = state_in(line) if isinstance(line, Mapping) else None
            if before and goes_on(decode(bytes(self._head).partition(b"\n")[0])):  # and the last line is here
                self.whole = isinstance(line, Mapping) and not goes_on(line)
            pieces = ((bytes(end), name) for name in self._names for end in ends)
            found = (self._usage_of(usage) for end, name in pieces for usage in _usage_objects(end, name))
            self.usage = last or next(filter(None, found), None)
        self._head, self._tail = bytearray(), bytearray()


_DURATION: Final = re.compile(rb'"duration"\s*:\s*"?([\d.]{1,20})')


class TranscriptReader(JsonReader):
    """Usage from a transcription. A long one has its duration near the beginning, before the segments."""

    def close(self) -> None:
        head = bytes(self._head)
        super().close()
        if self.usage is None and (found := _DURATION.search(head)):
            self.usage = self._usage_of({"text": "", "duration": found[1].decode()})


def _usage_objects(data: bytes, name: bytes) -> Iterator[dict[str, Any]]:
    """The objects called ``name`` in a piece of JSON, last first.

    Inside a JSON string the quotes around the name would have backslashes, so a match is a key or a short text.
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


_TO_BLANK: Final = re.compile(b".*(?:%s)" % BLANK.pattern, re.DOTALL)


class SseReader(_Reader):
    """Reads server-sent events that contain one of ``needles``, or a JSON array of events (Gemini's without ``alt=sse``).

    Args:
        on_event: Reads a decoded event; its second argument is the usage so far.
        needles: An event must contain one of these bytes to be decoded. Most events of a long answer contain none and
            cost only this search.
    """

    def __init__(self, on_event: Callable[[dict[str, Any], Usage | None], Found], *needles: bytes) -> None:
        super().__init__()
        self._on_event, self._needles = on_event, needles
        self._last = b""  # the last piece with an event that is no comment
        self._is_array: bool | None = None
        self.plan: Mapping[str, Any] | None = None
        """What the stream says of a plan, as its last event of that kind."""

    def feed(self, chunk: bytes) -> None:
        if self.done:
            return
        if self._is_array is None and (start := chunk.lstrip()):
            self._is_array = start.startswith(b"[")
        if self._is_array:
            for event in elements(self._buffer, chunk):
                self._promised = promises_end(event) if self._promised is None else self._promised
                self._take_event(event)
        else:
            searched = max(0, len(self._buffer) - 3)
            self._buffer += chunk
            if (whole := _TO_BLANK.match(self._buffer, searched)) is not None:
                events = bytes(self._buffer[: whole.end()])
                del self._buffer[: whole.end()]
                self._read(events)
        if len(self._buffer) > MAX_EVENT:
            self._flush()

    def close(self) -> None:
        """The stream is over; the rest may be an event without its last blank line."""
        self._flush()
        if self._promised and not self._is_whole():
            self._read_last()
        self.whole, self.done, self._last = self._is_whole(), True, b""

    def _read_last(self) -> None:
        """Read the last event, which may say in other bytes than ``SIGNS`` that the answer is over."""
        event = next(filter(data_in, reversed(BLANK.split(self._last))), b"")
        for value in values_of(data_in(event)):
            self._end(state_in(value))
            self.failed = self.failed or error_in(value) is not None
            self.done = self.done or is_last(value)

    def _flush(self) -> None:
        if not self.done:
            self._read(bytes(self._buffer))
        self._buffer = bytearray()

    def _read(self, events: bytes) -> None:
        if b"data:" in events:
            self._last = events
            if self._promised is None:
                values = (value for event in BLANK.split(events) for value in values_of(data_in(event)))
                said = map(promises_end, values)
                self._promised = next((promised for promised in said if promised is not None), None)
        if not self._relevant(events):
            return
        for event in BLANK.split(events):
            if self._relevant(event):
                self._read_event(event)
                if self.done:
                    self._buffer = bytearray()
                    return

    def _relevant(self, events: bytes) -> bool:
        searched = events.replace(b'"usage":null', b"")  # every chunk of a chat stream but the last contains it
        return any(map(searched.__contains__, self._needles)) or any(map(events.__contains__, SIGNS))

    def _read_event(self, event: bytes) -> None:
        lines = data_in(event)
        for data in values_of(lines):
            self._take_event(data)
        if b"[DONE]" in lines:
            self.done = True
            told = self.usage is not None and self.usage.output_tokens
            self.usage = self.usage and replace(self.usage, partial=self.usage.partial and not told)

    def _take_event(self, event: Any) -> None:
        if isinstance(event, dict):
            if event.get("type") == EVENT:
                self.plan = event
            self._take(self._on_event(event, self.usage))
            self._end(state_in(event))
            self.failed = self.failed or error_in(event) is not None


_ENDING: Final = "messageStop", "chunk"  # the kinds of frames that say why the answer ends


class EventStreamReader(_Reader):
    """Reads the frames of AWS's binary event stream (``application/vnd.amazon.eventstream``).

    A frame: its length and its headers' (4 bytes each), a checksum (4), the headers, a JSON payload, a checksum (4). A
    header: the length of its name (1), the name, the type of its value (1), the value. Checksums are not verified:
    a broken frame only costs its usage.

    Args:
        on_event: Reads the decoded payload of an event or exception, of a chunk what is in it; its first argument is the kind.
        kinds: The kinds to decode; the frames of all others are skipped. Exceptions are always decoded.
    """

    def __init__(self, on_event: Callable[[str, dict[str, Any]], Found], *kinds: str) -> None:
        super().__init__()
        self._on_event, self._kinds = on_event, kinds

    def feed(self, chunk: bytes) -> None:
        if self.done:
            return
        self._buffer += chunk
        try:
            for headers, payload in frames(self._buffer):
                if self._ends(headers, payload):
                    self.close()
                    return
        except ValueError:  # not an event stream
            self.close()

    def close(self) -> None:
        self._buffer = bytearray()
        self.whole, self.done = self._is_whole(), True

    def _ends(self, headers: dict[str, str], payload: bytes) -> bool:
        """Read one frame; return whether it ends the answer."""
        self._promised, self.failed = True, self.failed or ":exception-type" in headers
        kind = headers.get(":exception-type") or headers.get(":event-type", "")
        event = decode(payload) if ":exception-type" in headers or kind in (*self._kinds, *_ENDING) else None
        if kind == "chunk" and isinstance(event, dict):
            event = unpacked(event)
        if kind in _ENDING:
            self._end(state_in(event))
        if isinstance(event, dict) and kind != "messageStop":
            self._take(self._on_event(kind, event))
        return self.done
