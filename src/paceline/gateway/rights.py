"""The models that a request names, in any field of any API, for keys that may use some of them.

Beside ``model``, APIs have fields that name what answers, or works for it, and is billed. They are told by their names, which are alike,
and not by their places, which are many and change: all is looked at that is not said to a model. So a new field is refused at worst.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

from paceline.gateway.client import Headers
from paceline.gateway.errors import RequestError
from paceline.gateway.keys import ClientKey
from paceline.http.describe import MODEL_MAX, model_named
from paceline.providers.base import Provider
from paceline.providers.parse import UNKNOWN, as_mapping
from paceline.providers.registry import base_of

# By what is left of a name without case and marks, because servers differ in these (documentation of 2026-11). As an ending:
#   model        all APIs; Anthropic's fallbacks[] and tools[] (advisor); OpenAI's tools[] (image_generation) and moderation; OpenRouter's
#                tools[].parameters; Groq's compound_custom.models.answering_model; Together's safety_model; Perplexity's request;
#                Gemini's requests[]; the query of Realtime
#   models       OpenRouter, Perplexity; Vercel's providerOptions.gateway; OpenRouter's plugins[].allowed_models and analysis_models
#   model_id, _name, _arn  Bedrock, Mistral's guardrails, Vertex' manualMode and llmRanker, Elasticsearch behind Azure
#   fallbacks    Anthropic, OpenRouter, LiteLLM
#   deployment   Azure's data_sources[].parameters.embedding_dependency.deployment_name, x-ms-oai-image-generation-deployment
# As a whole, what has a model in the provider's settings: agents of Gemini, Mistral and Azure, presets of OpenRouter and Perplexity; and
# Vertex' routingConfig, whose autoMode names none.
_ENDING: Final = r".*(?:models?|fallbacks?|deployments?)(?:ids?|names?|arns?|slugs?|lists?)?"
_NAMING = re.compile(
    rf"{_ENDING}|(?:agent|assistant|preset|adapter)(?:s|id|name|reference)?|judge|reranker|routingconfig", re.DOTALL
)
_NAMING_HEADER = re.compile(_ENDING)

_SAID: Final = frozenset({
    "messages", "message", "input", "inputs", "contents", "content", "prompt", "system", "systeminstruction", "instructions",
    "documents", "query", "texts", "chathistory", "preamble", "prediction", "variables", "promptvariables", "metadata",
    "clientmetadata", "requestmetadata", "labels", "toolchoice",
})  # fmt: skip
"""What is said to a model, or noted by the client. Only the tools that a conversation brings along count there."""

_SCHEMAS: Final = frozenset({
    "inputschema", "inputexamples", "parametersjsonschema", "responsejsonschema", "responseschema", "response",
    "parameterdefinitions", "schema", "jsonschema", "properties", "defs", "definitions", "guidedjson", "structuredoutputs",
    "format",
})  # fmt: skip
"""What describes data."""

_OWN_MODELS: Final = {
    "image_generation": ("model",),
    "openrouter:image_generation": ("model",),
    "openrouter:advisor": ("model",),
    "openrouter:subagent": ("model",),
    "openrouter:fusion": ("model", "analysis_models"),
    "fusion": ("model", "analysis_models"),
}
"""Tools and plugins that ask models of their own, and the settings that name these. Where one is missing, the server chooses: the tool's
own name has to be allowed."""

_STANDS_IN: Final = {"openrouter": "models"}
"""The field that a provider takes in place of ``model``."""

_IN_PATH = re.compile(r"/(?:engines|deployments|endpoints(?!/openapi/)|conversations)/([^/]+)", re.IGNORECASE)
_IN_REPLICATES_PATH = re.compile(r"/(?:models|deployments)/([^/]+/[^/]+)/predictions/?$", re.IGNORECASE)
"""What decides on the model in paths, and :meth:`Provider.describe` does not read there: Azure's deployments, which have any case, and
other servers' in that form, Vertex' own endpoints, Mistral's conversations, and Replicate's models."""

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
            _json(asked.body)
        return
    for name in dict.fromkeys(_names(provider, model, asked)):
        for part in _parts(name):
            if not any(key.allows(server, one) for one in _spellings(provider, part)):
                raise RequestError(403, "model", f"this key may not use the model {part[:_SHOWN]!r}")


def _names(provider: Provider, model: str, asked: Asked) -> Iterator[str]:
    """All models that a request names."""
    base, body = base_of(provider.name), _read(asked)
    fields = as_mapping(body)
    if model != UNKNOWN or not fields.get(_STANDS_IN.get(base, "")):
        yield model
    yield from (_IN_REPLICATES_PATH if base == "replicate" else _IN_PATH).findall(asked.path)
    if isinstance(body, dict) and (part := _PATH_DECIDES.get(base)) and part in asked.path:
        body = {name: value for name, value in body.items() if name != "model"}
    if base == "replicate":
        yield from _texts(fields.get("version"))
    yield from _named(body)
    yield from _named(_flat(parse_qsl(asked.query, keep_blank_values=True)))
    for name, value in asked.headers:
        if _NAMING_HEADER.fullmatch(_plain(name.decode("latin-1"))):
            yield value.decode("latin-1")


def _named(body: Any) -> Iterator[str]:
    """What the fields of a body name."""
    stack = [(body, False)]
    while stack:
        value, said = stack.pop()
        if isinstance(value, list):
            stack += [(one, said) for one in value]
        elif isinstance(value, dict) and said:
            stack += [(one, False) for name, one in value.items() if _plain(name) == "tools"]
        elif isinstance(value, dict):
            yield from _chosen_by_server(value)
            described = value is not body and isinstance(value.get("name"), str)
            is_function = described and value.get("type", "function") == "function"
            for name, one in value.items():
                plain = _plain(name)
                if is_naming := _is_naming(plain):
                    yield from _texts(one)
                if is_naming or not (plain in _SCHEMAS or (plain == "parameters" and is_function)):
                    stack.append((one, plain in _SAID))


def _chosen_by_server(tool: dict[str, Any]) -> Iterator[str]:
    """The name of a tool or a plugin for which the server chooses a model."""
    for name in (tool.get("type"), tool.get("id")):
        settings = _OWN_MODELS.get(name) if isinstance(name, str) else None
        if settings is not None:
            given = {**as_mapping(tool.get("parameters")), **tool}
            if not all(map(given.get, settings)):
                yield str(name)


def _texts(value: Any) -> Iterator[str]:
    """The texts in a value, without those in objects that have fields which name models."""
    stack = [value]
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            if value:
                yield value
        elif isinstance(value, list):
            stack += value
        elif isinstance(value, dict) and not any(_is_naming(_plain(name)) for name in value):
            stack += [one for name, one in value.items() if name != "type"]


@lru_cache(maxsize=4_096)
def _plain(name: str) -> str:
    """A name without case and marks; servers in Go compare names so."""
    return "".join(filter(str.isalnum, name[:MODEL_MAX].casefold()))


@lru_cache(maxsize=4_096)
def _is_naming(plain: str) -> bool:
    return _NAMING.fullmatch(plain) is not None


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
    body = _json(asked.body, else_=_unread)
    if kind.lower().startswith(_URLENCODED):  # of clients that name no type, and send JSON
        return [body, _flat(parse_qsl(asked.body, keep_blank_values=True))]
    return body


def _json(body: bytes, else_: Callable[[str], RequestError] | None = None) -> Any:
    """The JSON value in a body; in any other one ``None``, or what ``else_`` makes is raised."""
    try:
        return json.loads(body.decode("utf-8-sig"), object_pairs_hook=_once)
    except (ValueError, RecursionError):
        if else_ is not None:
            raise else_("it is no JSON in UTF-8, or in an encoding that is not known") from None
        return None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise _twice(next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1))
    return fields


def _flat(pairs: Iterable[tuple[str, str] | tuple[bytes, bytes]], *, once: bool = False) -> dict[str, list[str]]:
    """The fields of a form or a query that name models; ``a[model]`` does, too. ``once``: none of them may come again."""
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        text = name if isinstance(name, str) else name.decode("utf-8", "replace")
        if any(_is_naming(_plain(part)) for part in re.split(r"[\[\].]", text[:MODEL_MAX])):
            if once and text in fields:
                raise _twice(text)
            fields.setdefault(text, []).append(value if isinstance(value, str) else value.decode("utf-8", "replace"))
    return {"models": [value for values in fields.values() for value in values]}


def _form(body: bytes, boundary: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The names and values of a form, files included."""
    start, *parts = (b"\r\n" + body).split(b"\r\n" + boundary)
    if start or body.count(boundary) != len(parts) or not parts or parts[-1] not in (b"--", b"--\r\n"):
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
        400, "unread", f"this key may use some models only, and this body cannot be read for them: {why}"
    )
