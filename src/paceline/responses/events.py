"""The events of streams: how each form of a stream has them, and what each of those is with which a stream begins."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final

from paceline.responses.errors import error_in
from paceline.responses.values import BOM, as_mapping, as_text, decode, table_beside

MAX_EVENT: Final = 16_777_216
"""Bytes of one event; of a longer one only the beginning is read."""


class StreamEventKind(Enum):
    """What an event is."""

    IDLE = "idle"
    """A comment or a ping: the connection lives."""
    START = "start"
    """An answer begins; nothing of it is here."""
    CONTENT = "content"


StreamEvent = StreamEventKind | Mapping[str, Any]
"""What an event is; if it is an error, the error."""

_IDLE, _START, _CONTENT = StreamEventKind
_PINGS, _STARTS = (frozenset(table_beside(__file__, "answers")[kind]) for kind in ("pings", "starts"))


def event_of(name: str, value: Any) -> StreamEvent:
    """What the event called ``name``, with the JSON ``value``, is. One of an unknown form is content."""
    if not isinstance(value, Mapping):
        return _CONTENT
    kind = name or as_text(value.get("type"))
    if kind in _PINGS:
        return _IDLE
    error = value if kind == "error" and not value.get("error") else error_in(value)
    if error is not None:
        return error
    if kind in _STARTS or _only_opens(kind, value):
        return _START
    choices = value.get("choices")
    return _CONTENT if not isinstance(choices, list) or any(map(_says_something, choices)) else _START


def _only_opens(kind: str, event: Mapping[str, Any]) -> bool:
    """Whether an event opens a part of the answer whose text follows. A call of a tool and a thought are content."""
    if kind == "content_block_start":
        block = as_mapping(event.get("content_block"))
        return block.get("type") == "text" and not block.get("text")
    if kind == "contentBlockStart":
        return not as_mapping(event.get("start"))
    return kind == "response.output_item.added" and as_mapping(event.get("item")).get("type") == "message"


def _says_something(choice: Any) -> bool:
    """Whether a choice of a chat's chunk has more than the role of its author."""
    found = as_mapping(choice)
    if found.get("finish_reason") or found.get("text"):
        return True
    return any(value for name, value in as_mapping(found.get("delta")).items() if name != "role")


class Splitter:
    """Takes the bytes of a stream, cut anywhere, and yields its events."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[StreamEvent]:
        """Take the next bytes."""
        raise NotImplementedError

    def take_idle(self) -> tuple[bytes, bytes]:
        """The bytes of the idle events so far, which are removed, and of what follows; none if the answer has begun."""
        return b"", b""


BLANK: Final = re.compile(rb"\n\r?\n|\r\r")
"""Between two server-sent events."""


def whole_events(rest: bytearray, piece: bytes) -> Iterator[bytes]:
    """Add the next bytes of server-sent events to ``rest``; remove those that are complete, and yield each with its blank line."""
    start = max(0, len(rest) - 3)  # no blank line ends before
    rest += piece
    while (end := BLANK.search(rest, start)) is not None:
        event, start = bytes(rest[: end.end()]), 0
        del rest[: end.end()]
        yield event


class ServerSent(Splitter):
    """Server-sent events."""

    def __init__(self) -> None:
        super().__init__()
        self._idle, self._begun = b"", False

    def feed(self, piece: bytes) -> Iterator[StreamEvent]:
        for raw in whole_events(self._rest, piece):
            events = _server_sent(raw)
            self._begun = self._begun or events != [_IDLE]
            if not self._begun:
                self._idle += raw
            yield from events

    def take_idle(self) -> tuple[bytes, bytes]:
        if self._begun:
            return b"", b""
        idle, self._idle = self._idle, b""
        return idle, bytes(self._rest)


def _server_sent(raw: bytes) -> list[StreamEvent]:
    """The event in ``raw``, which a blank line ends."""
    data = data_in(raw)
    if not data:
        return [_IDLE]
    if data == [b"[DONE]"]:  # an end is no content
        return [_START]
    names = (line[6:].strip() for line in raw.removeprefix(BOM).splitlines() if line.startswith(b"event:"))
    name = next(names, b"").decode("utf-8", "replace")
    return [event_of(name, value) for value in values_of(data)]


class Frames(Splitter):
    """AWS's event stream (``application/vnd.amazon.eventstream``)."""

    def feed(self, piece: bytes) -> Iterator[StreamEvent]:
        self._rest += piece
        try:
            for headers, payload in frames(self._rest):
                value, name = as_mapping(decode(payload)), headers.get(":event-type", "")
                fails = headers.get(":exception-type") or headers.get(":error-code")
                if fails:
                    yield {**value, "__type": fails, "message": value.get("message", "")}
                else:
                    yield event_of("", unpacked(value)) if name == "chunk" else event_of(name, value)
        except ValueError:
            yield _CONTENT


class JsonLines(Splitter):
    """A JSON object a line."""

    def feed(self, piece: bytes) -> Iterator[StreamEvent]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in filter(None, map(bytearray.strip, lines)):
            yield event_of("", decode(line))


class Elements(Splitter):
    """The elements of a JSON array."""

    def feed(self, piece: bytes) -> Iterator[StreamEvent]:
        for value in elements(self._rest, piece):
            yield event_of("", value)


def elements(rest: bytearray, piece: bytes) -> list[Any]:
    """Add the next bytes of a JSON array to ``rest``; remove the elements that are complete, and return them."""
    rest += piece
    found: list[Any] = []
    if b"}" not in piece:  # no element ends
        return found
    # Decoded once: a large piece may have thousands of elements.
    text, end = rest.decode("utf-8", "surrogateescape"), 0
    while (start := _BETWEEN.match(text, end)) is not None:
        try:
            value, end = _DECODER.raw_decode(text, start.end())
        except (ValueError, RecursionError):  # it is not complete
            break
        found.append(value)
    rest[:] = text[end:].encode("utf-8", "surrogateescape")
    return found


_BETWEEN: Final = re.compile(r"[\[, \t\r\n]*")
_DECODER: Final = json.JSONDecoder()
_LINES: Final = re.compile(r"ndjson|jsonl|stream\+json")


def is_stream(kind: str) -> bool:
    """Whether a content type is of a stream: some servers stream unless a request says otherwise, as Ollama does."""
    return "event" in kind or _LINES.search(kind) is not None


def splitter_of(headers: Mapping[str, str], start: bytes, *, stream: bool) -> Splitter | None:
    """The splitter of a stream; ``None`` for a body that is none, or whose form is not known yet.

    Args:
        headers: The headers of the answer.
        start: The first decoded bytes of its body.
        stream: Whether a stream was asked for.
    """
    kind, clean = headers.get("content-type", ""), start.removeprefix(BOM).lstrip()
    if "amazon.eventstream" in kind:
        return Frames()
    if clean.startswith((b"data:", b"event:", b":", b"id:", b"retry:")) and (stream or "event-stream" in kind):
        return ServerSent()
    if not (stream or _LINES.search(kind)):
        return None
    if clean.startswith(b"["):
        return Elements()
    first, end, _ = clean.partition(b"\n")
    return JsonLines() if end and isinstance(decode(first), Mapping) else None


def data_in(event: bytes) -> list[bytes]:
    """The lines of data of a server-sent event, or of several."""
    return [line[5:].strip() for line in event.removeprefix(BOM).splitlines() if line.startswith(b"data:")]


def values_of(lines: list[bytes]) -> list[Any]:
    """The JSON value of an event; of each line, if they are several events: some servers leave out the blank line between two."""
    whole = decode(b"\n".join(lines))
    return [whole] if whole is not None else [*map(decode, lines)]


_PRELUDE, _CHECKSUM = 12, 4
_SIZES: Final = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}  # bytes of a value, by its type
_BYTES, _TEXT = 6, 7  # types of values that begin with their length in two bytes


def unpacked(chunk: Mapping[str, Any]) -> Any:
    """The JSON value in the base64 of a chunk: the event of the model's own API."""
    try:
        return decode(base64.b64decode(as_text(chunk.get("bytes"))))
    except ValueError:
        return None


def frames(buffer: bytearray) -> Iterator[tuple[dict[str, str], bytes]]:
    """Remove the complete frames of an event stream from ``buffer``; yield the headers and the payload of each.

    Raises:
        ValueError: It is no event stream.
    """
    while len(buffer) >= _PRELUDE:
        length, headers = int.from_bytes(buffer[:4], "big"), int.from_bytes(buffer[4:8], "big")
        payload = _PRELUDE + headers
        if not payload + _CHECKSUM <= length <= MAX_EVENT:
            raise ValueError("the lengths of a frame are invalid")
        if len(buffer) < length:
            return
        frame = bytes(buffer[: length - _CHECKSUM])
        del buffer[:length]
        yield _headers(frame[_PRELUDE:payload]), frame[payload:]


def _headers(data: bytes) -> dict[str, str]:
    """The headers whose values are texts, up to the first that is malformed."""
    found: dict[str, str] = {}
    at = 0
    while at < len(data):
        name_end = at + 1 + data[at]
        name, kind = data[at + 1 : name_end], data[name_end] if name_end < len(data) else -1
        at = name_end + 1
        if kind in (_BYTES, _TEXT):
            size = int.from_bytes(data[at : at + 2], "big")
            at += 2
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            break
        if kind == _TEXT:
            found[name.decode("utf-8", "replace")] = data[at : at + size].decode("utf-8", "replace")
        at += size
    return found
