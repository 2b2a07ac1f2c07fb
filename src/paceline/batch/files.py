"""Images and PDF files of a row, in the form of the API that its request goes to.

The body of a request refers to a file of this machine, and has its content only while an attempt is sent: waiting requests hold none.
"""

from __future__ import annotations

import re
import secrets
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from paceline.core.results import explaining

PDF: Final = "application/pdf"
_HEIC: Final = ("image/heic", "image/heif")

TYPES: Final = {"gemini": ("image/png", "image/jpeg", "image/webp", *_HEIC, PDF)}
OTHER_TYPES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp", PDF)
"""What a provider takes: the guides to images and PDF files of OpenAI, Anthropic and Gemini (2026-11); HEIC and HEIF:
docs.cloud.google.com/vertex-ai/docs/generative-ai, image understanding (2026-11)."""

MOST_MB: Final = {"gemini": 20, "anthropic": 32}
OTHER_MOST_MB: Final = 50
"""The most megabytes of a request: Gemini's from its guide (2026-11); Anthropic's: docs.anthropic.com/en/api/overview, request size
limits (2026-11); the other one is OpenAI's for the images of a request, from a copy of its guide to images (openai-hd4n6.mintlify.app, read 2026-11).
The files of a row are below it in base64."""

_HEAD: Final = 1_024
"""The bytes in which the mark of a PDF file may stand (PDF Reference, implementation note 13)."""

_BEGINS: Final = {
    "image/png": rb"\x89PNG\r\n\x1a\n", "image/jpeg": rb"\xff\xd8\xff", "image/gif": rb"GIF8", "image/webp": rb"RIFF.{4}WEBP",
    "image/heic": rb".{4}ftyphei[cx]", "image/heif": rb".{4}ftypm[is]f1", PDF: rb".*%PDF-",
}  # fmt: skip
"""How the types begin."""

_MARK: Final = f"file-{secrets.token_hex(16)}-"
"""It begins a reference. No input can have it: a line of the input never makes a run read another file."""

_REFERENCE: Final = re.compile(rb"%b([0-9a-f]+);" % _MARK.encode())


FILE_GONE: Final = "file_gone"
"""The error of a request whose file cannot be read any more."""


class GoneError(ValueError):
    """A file cannot be read any more."""


@dataclass(frozen=True, slots=True)
class File:
    """An image or a PDF file.

    Attributes:
        name: Its name, without a folder.
        type: Its MIME type.
        data: Its content in base64, or a reference to it; empty if there is an ``url``.
        url: Its address, if the provider is to fetch it.
        size: The bytes of its content in base64.
    """

    name: str
    type: str
    data: str = ""
    url: str = ""
    size: int = 0

    @property
    def at(self) -> str:
        """The address of the file: its own, or one with its content."""
        return self.url or f"data:{self.type};base64,{self.data}"


def files_in(row: Mapping[str, Any], columns: Sequence[str], provider: str, folder: Path) -> list[File]:
    """The files that a row names.

    Args:
        row: The row. A cell is a path, an URL (``data:``, too), the content, or a list of them; or what Parquet files of datasets have,
            ``{"bytes": ..., "path": ...}``.
        columns: Its columns with files.
        provider: The provider that gets them.
        folder: Where a relative path may begin, too, if there is no such file below the working directory.

    Raises:
        KeyError: The row has no such column.
        TypeError: A file is missing, or the provider does not take it. The message names the column and the path.
    """
    found: list[File] = []
    for column in columns:
        value = row[column]
        value = value.tolist() if hasattr(value, "tolist") else value
        cells = value if isinstance(value, list | tuple) else [value]
        found += [_file(cell, column, provider, folder) for cell in cells]
    most = MOST_MB.get(provider, OTHER_MOST_MB)
    if sum(file.size for file in found) > most * 10**6:
        size = sum(file.size for file in found) / 10**6
        raise TypeError(
            f"its files ({', '.join(file.name for file in found)[:200]}) are {size:,.1f} MB in base64, and a request may have "
            f"{most} MB: make them smaller, or fewer"
        )
    return found


def _file(cell: Any, column: str, provider: str, folder: Path) -> File:
    if isinstance(cell, Mapping) and {"bytes", "path"} & cell.keys():
        cell = cell.get("bytes") or cell.get("path")
    if isinstance(cell, bytes):
        data, kind = b64encode(cell).decode("ascii"), _type(cell[:_HEAD], column, "its content", provider)
        return File(f"file.{kind.rpartition('/')[2]}", kind, data, size=len(data))
    if not isinstance(cell, str | Path) or not str(cell).strip():
        shown = repr(cell) if cell is None or isinstance(cell, str | float) else f"a {type(cell).__name__}"
        raise TypeError(f"{column!r} is {shown}: it must be the path of an image or a PDF file, or a list of paths")
    text = str(cell)
    if text.startswith(("http://", "https://")):
        return _at_url(text, column, provider)
    path = _found(text, column, folder)
    what = f"{column!r} names {text[:200]!r}, which cannot be read"
    with explaining(what, kind=TypeError), path.open("rb") as file:
        head, size = file.read(_HEAD), path.stat().st_size
    data = f"{_MARK}{str(path.absolute()).encode('utf-8', 'surrogateescape').hex()};"
    return File(path.name, _type(head, column, repr(text[:200]), provider), data, size=(size + 2) // 3 * 4)


def _at_url(text: str, column: str, provider: str) -> File:
    """A file of the web, which the provider fetches."""
    if provider == "gemini":
        raise TypeError(f"{column!r} is an URL, which is not sent to Gemini: give the path of a file of this machine")
    name = text.partition("?")[0].rpartition("/")[2]
    return File(name, PDF if name.lower().endswith(".pdf") else "image/*", url=text)


def _found(text: str, column: str, folder: Path) -> Path:
    """The file that a path names: from the working directory, or from the folder of the table."""
    try:
        given = Path(text).expanduser()
        path = next((one for one in (given, folder / given) if one.is_file()), None)
        is_folder = path is None and given.is_dir()
    except (OSError, ValueError, RuntimeError):  # it is too long, has a NUL, or no such user has a home
        given, path, is_folder = Path(text[:200]), None, False
    if path is not None:
        return path
    places = [str(one) for one in dict.fromkeys((Path.cwd() / given, folder.absolute() / given))]
    why = "it is a folder" if is_folder else f"there is no file {' or '.join(places)}"
    raise TypeError(f"{column!r} names {text[:200]!r}: {why}")


def _type(head: bytes, column: str, shown: str, provider: str) -> str:
    """The type of a file by its first bytes, which its name need not tell."""
    found = next((kind for kind, begin in _BEGINS.items() if re.match(begin, head, re.DOTALL)), "")
    types = TYPES.get(provider, OTHER_TYPES)
    if found not in types:
        names = ", ".join(one.rpartition("/")[2].upper() for one in types)
        what = "is empty" if not head else f"is {found}" if found else "is no image or PDF file that is known here"
        raise TypeError(f"{column!r}: {shown} {what}: {provider or 'the provider'} takes {names}")
    return found


def filled(content: bytes) -> bytes:
    """The content of a request with the content of its files.

    Raises:
        GoneError: A file cannot be read any more.
    """
    return _REFERENCE.sub(_content, content) if refers(content) else content


def refers(content: bytes) -> bool:
    """Whether the content of a request refers to a file."""
    return _MARK.encode() in content


def _content(found: re.Match[bytes]) -> bytes:
    path = bytes.fromhex(found[1].decode()).decode("utf-8", "surrogateescape")
    with explaining(f"{path} cannot be read any more", kind=GoneError):
        return b64encode(Path(path).read_bytes())


def add(line: dict[str, Any], files: Sequence[File]) -> None:
    """Put the files in front of the text of the last message of the user, in the line of a request.

    Raises:
        TypeError: The API of the request takes no files, or not these; or there is no such message.
    """
    if not files:
        return
    path, body = (line["url"], line["body"]) if "body" in line else ("/v1/messages", line["params"])
    form = next((form for end, form in _FORMS.items() if path.endswith(end)), None)
    if form is None:
        raise TypeError(f"its request goes to {path}, which takes no files")
    if isinstance(body.get(form.messages), str):
        body[form.messages] = [{"role": "user", form.content: body[form.messages]}]
    messages = body.get(form.messages)
    given = [one for one in messages if isinstance(one, dict)] if isinstance(messages, list) else []
    asked = [one for one in given if one.get("role", "user") == "user"]
    if not asked:
        raise TypeError("it has files, and no message of the user that they belong to")
    said = asked[-1].get(form.content) or []
    said = [form.text(said)] if isinstance(said, str) else said
    changed = asked[-1] | {form.content: [*map(form.part, files), *said]}
    body[form.messages] = [changed if one is asked[-1] else one for one in messages]


@dataclass(frozen=True, slots=True)
class _Form:
    """Where an API has messages, and their content; how it writes a file and a text in it."""

    messages: str
    content: str
    part: Callable[[File], dict[str, Any]]
    text: Callable[[str], dict[str, Any]]


def _chat(file: File) -> dict[str, Any]:
    if file.type != PDF:
        return {"type": "image_url", "image_url": {"url": file.at}}
    if file.url:
        raise TypeError(f"{file.url[:200]!r} is the URL of a PDF file, which chat completions do not take: give a path")
    return {"type": "file", "file": {"filename": file.name, "file_data": file.at}}


def _responses(file: File) -> dict[str, Any]:
    if file.type != PDF:
        return {"type": "input_image", "detail": "auto", "image_url": file.at}
    if file.url:
        return {"type": "input_file", "file_url": file.url}
    return {"type": "input_file", "filename": file.name, "file_data": file.at}


def _anthropic(file: File) -> dict[str, Any]:
    source = {"type": "base64", "media_type": file.type, "data": file.data}
    return {
        "type": "document" if file.type == PDF else "image",
        "source": {"type": "url", "url": file.url} if file.url else source,
    }


def _gemini(file: File) -> dict[str, Any]:
    return {"inline_data": {"mime_type": file.type, "data": file.data}}


_FORMS: Final = {
    "/chat/completions": _Form("messages", "content", _chat, lambda text: {"type": "text", "text": text}),
    "/responses": _Form("input", "content", _responses, lambda text: {"type": "input_text", "text": text}),
    "/messages": _Form("messages", "content", _anthropic, lambda text: {"type": "text", "text": text}),
    ":generateContent": _Form("contents", "parts", _gemini, lambda text: {"text": text}),
}
"""By the end of the path; the forms are taken from the SDKs openai 3, anthropic 2.11 and google-genai 3.4 (2026-11)."""
