"""The models that a request names, in any field of any API, for keys that may use some of them.

Which fields name one: :mod:`paceline.providers.naming`. So a new field is refused at worst.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

from paceline.gateway.connection import Headers
from paceline.gateway.errors import RequestError
from paceline.gateway.keys import ClientKey
from paceline.http.describe import COUNTED, MODEL_MAX, PARTS_MAX, model_named
from paceline.providers.base import COUNTING, Provider
from paceline.providers.naming import NAMING_HEADER, is_naming, named, plain, texts_in
from paceline.providers.parse import UNKNOWN
from paceline.providers.registry import base_of
from paceline.responses.values import as_mapping

_STANDS_IN: Final = {"openrouter": "models"}
"""The field that a provider takes in place of ``model``."""

_IN_PATH = re.compile(r"/(?:engines|deployments|endpoints(?!/openapi/)|conversations)/([^/]+)", re.IGNORECASE)
_IN_REPLICATES_PATH = re.compile(r"/(?:models|deployments)/([^/]+/[^/]+)/predictions/?$", re.IGNORECASE)
"""What decides on the model in paths, and :meth:`Provider.describe` does not read there: Azure's deployments, which have any case, and
other servers' in that form, Vertex' own endpoints, Mistral's conversations, and Replicate's models."""

_COUNTED_FOR: Final = {":countTokens": ":generateContent", "/count-tokens": "/converse"}
"""The ends of paths at which the tokens of a request are counted, each with the end of the path of that request."""

_PATH_DECIDES: Final = {"azure": "/deployments/"}
"""The paths at which a provider does not read ``model`` in the body: what its SDK sends there is a name for people."""

_FORM = re.compile(r'multipart/form-data;\s*boundary="?([\w\'()+,./:=?-]{1,70})"?', re.ASCII | re.IGNORECASE)
_DISPOSITION = re.compile(
    rb'content-disposition: ?form-data; ?name="([^"\\%\r\n]*)"(?:; ?filename(?:="[^"\\\r\n]*"|\*?=[^";\r\n]*))*',
    re.IGNORECASE,
)
_CHARSET = re.compile(r'charset\s*=\s*(?!"?utf-?8\b)', re.IGNORECASE)
_URLENCODED: Final = "application/x-www-form-urlencoded"
_GOOGLE_PREFIX = re.compile(r"(?:publishers/google/)?models/")
_PRESET: Final = "@preset/"
_SHOWN: Final = 100


class Asked(NamedTuple):
    """What can name a model in a request.

    Attributes:
        path: Its path at the provider, decoded.
        query: Its query.
        headers: Its headers.
        body: Its body, without its content encoding; empty if that cannot be read.
        sent: Whether it has a body.
    """

    path: str
    query: str
    headers: Headers
    body: bytes
    sent: bool


def check_rights(key: ClientKey, server: str, provider: Provider, model: str, asked: Asked) -> None:
    """Refuse a request that names a model which ``key`` may not use, or that servers could read in two ways.

    Args:
        key: The key.
        server: The name of the server or the group, as patterns of models have it.
        provider: The provider.
        model: The model by which the request is metered.
        asked: The request.

    Raises:
        RequestError: It is refused.
    """
    if not key.models:
        if key.is_bounded:  # what it costs is read from the body, too
            _read_once(asked)
        return
    for name in dict.fromkeys(_names(provider, model, asked)):
        for part in _parts(name):
            if not any(key.allows(server, one) for one in _spellings(provider, part)):
                raise RequestError(403, "model", f"this key may not use the model {part[:_SHOWN]!r}")


def _names(provider: Provider, model: str, asked: Asked) -> Iterator[str]:
    """All models that a request names."""
    base, body = base_of(provider.name), _read(asked)
    fields = as_mapping(body)
    if model != COUNTING and (model != UNKNOWN or not fields.get(_STANDS_IN.get(base, ""))):
        yield model
    yield from (_IN_REPLICATES_PATH if base == "replicate" else _IN_PATH).findall(asked.path)
    for counts, asks in _COUNTED_FOR.items():
        path = asked.path.rstrip("/")
        if path.endswith(counts) and (call := provider.describe(path.removesuffix(counts) + asks, fields)) is not None:
            yield call.model
    if isinstance(body, dict) and (part := _PATH_DECIDES.get(base)) and part in asked.path:
        body = {name: value for name, value in body.items() if name != "model"}
    if base == "replicate":
        yield from texts_in(fields.get("version"))
    yield from named(body)
    yield from named(_flat(parse_qsl(asked.query, keep_blank_values=True)))
    for name, value in asked.headers:
        if NAMING_HEADER.fullmatch(plain(name.decode("latin-1"))):
            yield value.decode("latin-1")


def _parts(name: str) -> Iterable[str]:
    """A name, and the preset that OpenRouter reads behind it."""
    model, preset, slug = name.partition(_PRESET)
    return (name,) if not (model and preset) else (model, preset + slug)


def _spellings(provider: Any, name: str) -> Iterator[str]:
    """How patterns may have a name: as the request, or as the provider's pools; Google's with and without their collection."""
    yield name
    if base_of(provider.name) in ("gemini", "vertex"):
        yield _GOOGLE_PREFIX.sub("", name, count=1) if _GOOGLE_PREFIX.match(name) else name
    yield model_named(provider, "/chat/completions", name[:MODEL_MAX]) or name


# The body, as strictly as no server reads it.


def _read(asked: Asked) -> Any:
    """The fields of a body.

    Raises:
        RequestError: It cannot be read, or servers could read it in two ways.
    """
    if not asked.sent:
        return {}
    kinds = [value.decode("latin-1") for name, value in asked.headers if name == b"content-type"]
    encodings = [value for name, value in asked.headers if name == b"content-encoding"]
    if len(kinds) > 1 or len(encodings) > 1 or any(map(_CHARSET.search, kinds)):
        raise _unread("it has two types or encodings, or another charset than UTF-8")
    kind = kinds[0].strip() if kinds else ""
    if kind.lower().startswith("multipart/"):
        boundary = _FORM.fullmatch(kind)
        if boundary is None:
            raise _unread("the type of its form is unclear")
        return _flat(_form(asked.body, b"--" + boundary[1].encode()), once=True)
    body = _json(asked.body)
    if kind.lower().startswith(_URLENCODED):  # of clients that name no type, and send JSON
        return [body, _flat(parse_qsl(asked.body, keep_blank_values=True))]
    return body


def _read_once(asked: Asked) -> None:
    """Look for fields that come twice; what is neither JSON nor a form is passed on.

    Raises:
        RequestError: A field comes twice, or a form could be read in two ways.
    """
    if b"multipart/" in b",".join(value.lower() for name, value in asked.headers if name == b"content-type"):
        _read(asked)
    elif asked.body.startswith(b"--"):  # is read as a form, also with another type
        boundary = asked.body.partition(b"\r\n")[0]
        _flat(_form(asked.body, boundary), once=True)
    else:
        with suppress(ValueError, RecursionError):
            json.loads(asked.body, object_pairs_hook=_once)  # in any encoding, as it is read for its cost


def _json(body: bytes) -> Any:
    """The JSON value in a body."""
    try:
        return json.loads(body.decode("utf-8-sig"), object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise _unread("it is no JSON in UTF-8, or in an encoding that is not known") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise _twice(next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1))
    return fields


def _flat(pairs: Iterable[tuple[str, str] | tuple[bytes, bytes]], *, once: bool = False) -> dict[str, list[str]]:
    """The fields of a form or a query that name models; ``a[model]`` does, too. ``once``: none of them, and none that is counted, may come again."""
    models, seen = list[str](), set[str]()
    for name, value in pairs:
        text = name if isinstance(name, str) else name.decode("utf-8", "replace")
        named_here = any(is_naming(plain(part)) for part in re.split(r"[\[\].]", text[:MODEL_MAX]))
        if once and (named_here or text in COUNTED) and text in seen:
            raise _twice(text)
        seen.add(text)
        if named_here:
            models.append(value if isinstance(value, str) else value.decode("utf-8", "replace"))
    return {"models": models}


def _form(body: bytes, boundary: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The names and values of a form, files included."""
    start, *parts = (b"\r\n" + body).split(b"\r\n" + boundary)
    closed = bool(parts) and parts[-1] in (b"--", b"--\r\n")
    if start or body.count(boundary) != len(parts) or not closed or len(parts) > PARTS_MAX:
        raise _unread("its form is malformed")
    for part in parts[:-1]:
        head, found, value = part.partition(b"\r\n\r\n")
        lines = head.split(b"\r\n")[1:]
        places = [one for line in lines if (one := _DISPOSITION.fullmatch(line))]
        named = sum(line.lower().startswith(b"content-disposition") for line in lines)
        if not (found and part.startswith(b"\r\n") and len(places) == named == 1):
            raise _unread("a part of its form has no plain name")
        yield places[0][1], value


def _twice(name: str) -> RequestError:
    return RequestError(
        400,
        "twice",
        f"the field {name[:_SHOWN]!r} comes twice, and servers differ in which of them they take: send it once",
    )


def _unread(why: str) -> RequestError:
    return RequestError(
        400, "unread", f"this key has limits or a list of models, and this body cannot be read for them: {why}"
    )
