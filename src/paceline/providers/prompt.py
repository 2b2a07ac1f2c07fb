"""The input of a request in tokens: texts by the estimator, images, audio and files by a constant each.

What a part is, its type or MIME type says. Where neither stands, its bytes do (:mod:`paceline.estimation.media`), under any name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from paceline.estimation.estimate import estimate_tokens
from paceline.estimation.media import FILE, SHORT, kind_of, media_in
from paceline.providers.forms import table

PER_MESSAGE: Final = 4  # of a chat template: an assumption; the learned correction absorbs the rest
_NODES = 200_000  # parts of a body that are read; the rest is not counted

_PARTS: Final = table("requests")["parts"]
_LABELS: Final = frozenset(_PARTS["labels"])
_KINDS: Final = {name: kind for kind in ("image", "audio", "file") for name in _PARTS[kind]}


class MediaTokens(NamedTuple):
    """Tokens of one part that is not text, for any length of its base64."""

    image: int
    small_image: int  # in low detail
    audio: int
    file: int


def prompt_tokens(parts: Sequence[Any], schemas: Any, encoding: str, media: MediaTokens) -> int:
    """Estimate the tokens of a request's input.

    Args:
        parts: Messages, instructions, prompts: text, or any nesting of lists and objects that contains text. An integer
            is one token (embeddings take token ids), but a long list of bytes is a medium (Workers AI).
        schemas: Tools and response formats, whose keys count too.
        encoding: The estimator's weights.
        media: The constants for parts that are not text.
    """
    texts: list[str] = []
    extra = 0
    for part in parts:
        if part is not None:  # mostly one of a dozen fields is there
            extra += _gather(part, texts, media, keys=False)
    if schemas:
        extra += _gather(schemas, texts, media, keys=True)
    return extra + (estimate_tokens(texts[0] if len(texts) == 1 else "\n".join(texts), encoding) if texts else 0)


def _gather(root: Any, texts: list[str], media: MediaTokens, *, keys: bool) -> int:
    """Append every text under ``root`` to ``texts``; return the tokens of everything else."""
    tokens, stack = 0, [root]
    for _ in range(_NODES):
        if not stack:
            break
        node = stack.pop()
        if isinstance(node, str):
            tokens += _text(node, texts, media)
        elif isinstance(node, dict):
            if keys:
                texts.extend(key for key in node if isinstance(key, str))
                stack.extend(node.values())
            elif len(node) == 2 and "role" in node and type(node.get("content")) is str:  # most messages
                tokens += PER_MESSAGE + _text(node["content"], texts, media)
            else:
                tokens += _part(node, stack, texts, media)
        elif isinstance(node, list | tuple):
            if node and type(node[0]) is int:
                tokens += _numbers(node, media)
            else:
                stack.extend(node)
        elif isinstance(node, int | float):
            tokens += 1
    return tokens


def _part(node: dict[str, Any], stack: list[Any], texts: list[str], media: MediaTokens) -> int:
    """Put what is to be read of a part on ``stack``; return the tokens of the part itself."""
    kind, constant = node.get("type"), _media(node, media)
    if constant:
        return constant
    tokens = PER_MESSAGE if "role" in node else 0
    called = node if kind == "tool_use" else node.get("toolUse")
    if isinstance(called, dict):  # the arguments of a call are any JSON
        texts.append(str(called.get("name")))
        return tokens + _gather(called.get("input"), texts, media, keys=True)
    plain = kind == "text" and "data" in node  # a document that is plain text
    if not plain:
        stack.extend([value for key, value in node.items() if key not in _LABELS])
    if plain or (kind is None and "data" in node):
        stack.append(node["data"])
    return tokens


def _text(text: str, texts: list[str], media: MediaTokens) -> int:
    """Append a text to ``texts``, or what is text in a long one; return the tokens of the media in it."""
    if len(text) < SHORT:
        texts.append(text)
        return 0
    kinds, rest = media_in(text)
    texts.append(rest)
    return sum(getattr(media, kind) for kind in kinds)


def _numbers(numbers: Sequence[Any], media: MediaTokens) -> int:
    """The tokens of a list of integers: one each as token ids; a long one of bytes is a picture, a recording or a file."""
    if len(numbers) < SHORT or not all(type(one) is int and 0 <= one < 256 for one in numbers[:SHORT]):
        return len(numbers)
    return int(getattr(media, kind_of(bytes(numbers[:SHORT])) or FILE))


def _media(node: dict[str, Any], media: MediaTokens) -> int:
    """The constant for a part that is not text; 0 for any other object, and for a document that is given as text."""
    named = node.get("type")
    if not isinstance(named, str):
        return _blob(node, media)
    kind = _KINDS.get(named)
    if kind == "image":
        inner = node.get("image_url")
        detail = inner.get("detail") if isinstance(inner, dict) else node.get("detail")
        return media.small_image if detail == "low" else media.image
    source = node.get("source")
    plain = kind == "file" and isinstance(source, dict) and source.get("type") in ("text", "content")
    return 0 if kind is None or plain else int(getattr(media, kind))


def _blob(node: dict[str, Any], media: MediaTokens) -> int:
    """The constant for a part in a field of its own; in a field of Google its MIME type tells the kind."""
    for name, kind in _PARTS["blobs"].items():
        if isinstance(blob := node.get(name), dict):
            mime = str(blob.get("mimeType") or blob.get("mime_type")).partition("/")[0]
            return int(getattr(media, kind or (mime if mime in ("image", "audio") else "file")))
    return 0
