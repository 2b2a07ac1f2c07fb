"""A line of the input, in OpenAI's batch format or Anthropic's.

{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "gpt-6-luna", ...}}
{"custom_id": "a", "params": {"model": "claude-sonnet-5-5", "max_tokens": 100, ...}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from paceline.core.results import PacelineError, SettingsError
from paceline.providers.base import Provider
from paceline.providers.registry import prefixed, provider_named

FORM = 'write {"custom_id": ..., "method": "POST", "url": ..., "body": {...}}'
"""What a line has to be."""

LINE_MAX: Final = 256 * 2**20
"""Bytes in a line; a longer line is an error."""

ID_MAX: Final = 512
"""Characters in a ``custom_id``."""

INVALID: Final = "invalid"
"""The field of the line of a row that cannot be sent: why. No other line is read for it."""

INVALID_ROW: Final = "invalid_row"
"""The error of a row that cannot be sent."""

MESSAGES: Final = "/v1/messages"


class BadLineError(PacelineError):
    """A line is not a valid request. The message never quotes a prompt."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One request.

    Attributes:
        line: Its line in the input, from 1.
        custom_id: The user's id for it.
        provider: The provider whose API it uses.
        path: The URL's path, below the server's root.
        body: The JSON body.
        model: The model, as the body or the path names it.
        number: Whether the input has the id as an integer; the output has it as that, too.
        unit: What a line of the input is: a ``line``, or a ``row`` of a table.
        shares: Whether it may be sent together with others, as the texts of a table are that are embedded.
        rows: What is sent together by this request, in order.
        raised: Whether its maximum of tokens is larger than in the input.
    """

    line: int
    custom_id: str
    provider: Provider
    path: str
    body: dict[str, Any]
    model: str
    number: bool = False
    unit: str = "line"
    shares: bool = False
    rows: tuple[RunRequest, ...] = ()
    raised: bool = False

    @property
    def place(self) -> str:
        """Where it is in the input."""
        return f"{self.unit} {self.line}"

    @property
    def shown_id(self) -> str | int:
        """The id as the input has it."""
        return int(self.custom_id) if self.number else self.custom_id

    def content(self) -> bytes:
        """The body as it is sent."""
        return json.dumps(self.body).encode("ascii")


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of an input: the lines ``number``, ``number + of``, ``number + 2 * of`` and so on.

    Attributes:
        number: From 1 to ``of``.
        of: How many shards there are.
    """

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """The shard in a text like ``2/8``.

        Raises:
            SettingsError: It is no such text.
        """
        if (found := re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)) and 1 <= int(found[1]) <= int(found[2]):
            return cls(int(found[1]), int(found[2]))
        raise SettingsError(f"shard {text[:50]!r}: write I/N, where I is from 1 to N: 1/8 for the first of eight")

    def has(self, line: int) -> bool:
        """Whether the line with this number is part of it."""
        return (line - self.number) % self.of == 0

    def __str__(self) -> str:
        return f"{self.number}-of-{self.of}"


WHOLE: Final = Shard(1, 1)


def read_lines(file: BinaryIO, shard: Shard = WHOLE) -> Iterator[tuple[int, bytes | None]]:
    """The number and content of every line of ``shard`` that is not blank; of a line that is too long, ``None``.

    A line without an end is the last one, even if its writer goes on meanwhile: the rest of it is no line of its own.
    """
    number = 0
    while raw := file.readline(LINE_MAX + 1):
        number += 1
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        if len(raw) > LINE_MAX and not raw.endswith(b"\n"):
            while raw and not raw.endswith(b"\n"):
                raw = file.readline(2**20)
            if shard.has(number):
                yield number, None
        elif shard.has(number) and raw.strip():
            yield number, raw
        if not raw.endswith(b"\n"):
            return


REQUIRED: Final = {
    ":generateContent": ("contents",),
    "/chat/completions": ("messages",),
    "/messages": ("messages", "max_tokens"),
    "/embeddings": ("input",),
}
"""Fields that a provider requires, by the end of the path."""

FORMATS: Final = {
    ":generateContent": "gemini",
    ":embedContent": "gemini",
    "/v2/embed": "cohere",
    "/messages": "anthropic",
    "": "openai",
}
"""Whose API a line uses, by the end of its path, where the user names no provider."""

BARE: Final = frozenset(["/chat/completions", "/responses", "/embeddings", "/completions"])
"""Paths without a version, as Azure's guide to batches has them (learn.microsoft.com/azure/ai-foundry/openai/how-to/batch, 2026-11)."""

_NAMES_MODEL: Final = re.compile(r"/(?:models|deployments)/[^/:]")
"""A path of Gemini, or an older one of Azure; its model holds, and not the model of the body."""


def request_of(
    line: int, value: Mapping[str, Any], provider: str | None = None, *, unit: str = "line", anywhere: bool = False
) -> RunRequest:
    """The request in the fields of a line.

    Args:
        line: Its number, from 1.
        value: Its fields.
        provider: The provider whose API every line uses; by the line's format when not given.
        unit: What a line is.
        anywhere: Whether a model may begin with the name of its provider (``groq/llama-4``), because nothing else says where it goes.

    Raises:
        BadLineError: The line is not a valid request.
    """
    of_messages = "params" in value and "body" not in value
    path, name = (MESSAGES, "params") if of_messages else (_path(value), "body")
    path, body = _path_at(provider, path), value.get(name)
    format_of = next(name for end, name in FORMATS.items() if path.rstrip("/").endswith(end))
    custom_id, number = _custom_id(value)
    if not isinstance(body, dict):
        raise BadLineError(f"{name} is missing or not a JSON object")
    dialect = provider_named(provider or format_of)
    model = body.get("model")
    if anywhere and isinstance(model, str) and (found := prefixed(model)) is not None:
        dialect, model = found
        body = body | {"model": model}
    if _NAMES_MODEL.search(path) and (call := dialect.describe(path, body)) is not None:
        model = call.model
    if not isinstance(model, str) or not model:
        raise BadLineError(f"{name}.model is {_quote(model)}: it must be the name of a model")
    _check_body(path, body, name)
    shares = value.get("shares") is True
    return RunRequest(line, custom_id, dialect, path, body, model, number, unit, shares)


def _path_at(provider: str | None, path: str) -> str:
    """The path at a provider."""
    if provider == "azure" and (path in BARE or path.startswith("/v1/")):
        return f"/openai/v1{path.removeprefix('/v1')}"
    return path


def _path(value: Mapping[str, Any]) -> str:
    """The path to which a line of OpenAI's format is posted."""
    path = value.get("url")
    if value.get("method", "POST") != "POST":
        raise BadLineError(f"method is {_quote(value['method'])}: only 'POST' can be sent")
    if path is None:
        raise BadLineError(f"url is missing: {FORM}")
    if not isinstance(path, str) or not path.startswith("/"):
        shown = keyless(path) if isinstance(path, str) else path
        raise BadLineError(f"url is {_quote(shown)}: it must be a path like '/v1/chat/completions'")
    return path


def _custom_id(value: Mapping[str, Any]) -> tuple[str, bool]:
    """The identity of a line, and whether it is a number there."""
    custom_id = value.get("custom_id")
    number = isinstance(custom_id, int) and not isinstance(custom_id, bool)
    text = str(custom_id) if number else custom_id
    if not isinstance(text, str) or not 0 < len(text) <= ID_MAX:
        words = f"it must be a string of 1 to {ID_MAX} characters, or an integer"
        raise BadLineError(f"custom_id is {_quote(text)}: {words}")
    return text, number


def _check_body(path: str, body: Mapping[str, Any], name: str) -> None:
    """Refuse a body whose answer would not be read, and one without a field that the path requires."""
    if body.get("stream"):
        raise BadLineError(f"{name}.stream is true: streamed answers are not supported; remove it")
    if body.get("background"):
        raise BadLineError(f"{name}.background is true: an answer that is made later is not asked for; remove it")
    if path.rstrip("/").endswith(":streamGenerateContent"):
        raise BadLineError(
            f"url is {_quote(keyless(path))}: streamed answers are not supported; write ':generateContent'"
        )
    for field in next((fields for end, fields in REQUIRED.items() if path.rstrip("/").endswith(end)), ()):
        if not body.get(field):
            raise BadLineError(f"{name}.{field} is {_quote(body.get(field))}: it is required for {keyless(path)}")


_SECRET: Final = re.compile(r"([?&#][^=&#\s]*=|//)(?:(?<=//)[^/@\s]*(?=@)|(?<!//)[^&#\s]+)")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


_decoder = json.JSONDecoder(parse_constant=_no_constant)


def decode(raw: bytes | None) -> dict[str, Any]:
    """The JSON object in a line; ``None`` for a line that was too long to read.

    Raises:
        BadLineError: It is none.
    """
    if raw is None:
        raise BadLineError(f"longer than {LINE_MAX // 2**20} MB")
    try:
        value = _decoder.decode(raw.decode())
        if isinstance(value, dict):
            str(value.get("custom_id")).encode()  # half a surrogate pair cannot be encoded
            return value
    except UnicodeError:
        raise BadLineError("not UTF-8") from None
    except json.JSONDecodeError as error:
        raise BadLineError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise BadLineError("not JSON: nested too deeply") from None
    except ValueError as error:
        raise BadLineError(f"not JSON: {error}") from None
    raise BadLineError(f"not a JSON object: {FORM}")


def keyless(path: str) -> str:
    """The URL of a line without what can be a key: user name, password and the values of its query."""
    return _SECRET.sub(r"\1***", path)


def _quote(value: object) -> str:
    """``value`` for a message, shortened; ``missing`` for ``None``."""
    text = repr(value)
    return "missing" if value is None else text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True, slots=True)
class Source:
    """An input as lines of requests.

    Attributes:
        file: The lines; it can be read several times.
        provider: The provider whose API every line uses; by each line's format when ``None``.
        shard: The part of the input.
        of_rows: Whether each line was made of a row, and has an id that no other one has.
        strict: Whether one line that cannot be sent stops all: the input had requests, and its program has made a mistake. Otherwise it
            is the error of its row.
        anywhere: Whether models may begin with the names of their providers: neither a provider nor a server is set.
        recognised: What was recognised; ``""`` for an input that has these lines.
        is_of: Whether a row with this number is the one of a line with this id: the input may have changed.
    """

    file: BinaryIO
    provider: str | None = None
    shard: Shard = WHOLE
    of_rows: bool = False
    strict: bool = True
    anywhere: bool = False
    recognised: str = ""
    is_of: Callable[[str | int | None, int, Mapping[str, Any]], bool] = lambda *_: True

    @property
    def unit(self) -> str:
        """What a line of the input is."""
        return "row" if self.of_rows else "line"

    def lines(self) -> Iterator[tuple[int, bytes | None]]:
        """Its lines from the first one on; see :func:`read_lines`."""
        self.file.seek(0)
        return read_lines(self.file, self.shard)

    def read(self, line: int, raw: bytes | None) -> RunRequest:
        """The request in a line; see :func:`request_of`."""
        value = decode(raw)
        if self.of_rows and INVALID in value:
            raise BadLineError(value[INVALID])
        return request_of(line, value, self.provider, unit=self.unit, anywhere=self.anywhere)
