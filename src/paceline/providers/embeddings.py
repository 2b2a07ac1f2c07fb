"""Embeddings: which models make them, how several texts become one request, and which vector of the answer is whose."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf, isfinite
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from paceline.providers.forms import table
from paceline.providers.registry import base_of, maker, method_path
from paceline.responses.values import as_mapping

Body = Mapping[str, Any]

_FAMILIES: Final = re.compile(
    r"embed|voyage-|bge-|gte-|e5-|all-minilm|all-mpnet|paraphrase-|jina-clip|nvclip|m2-bert|uae-large|instructor-|labse|gtr-t5"
)
"""Words in the names of models that make vectors: of the providers' lists, Ollama's library and the MTEB leaderboard (2026-11)."""


@lru_cache(maxsize=1_024)
def embeds(model: str) -> bool:
    """Whether a model makes vectors, by its name; one that ranks documents does not."""
    name = _made_of(model)
    return "rerank" not in name and _FAMILIES.search(name) is not None


_OTHERS: Final = re.compile(
    r"rerank|whisper|(?:text|omni|mistral)-moderation|dall-e|gpt-image|(?:^|/)(?:imagen|veo|sora|gpt-realtime)(?:-|$)|(?:^|[/-])tts(?:-|$)|-transcribe(?:-|$)"
)
"""Words in the names of models that have an endpoint of their own (the lists of models of OpenAI, Gemini, Cohere and Mistral, 2026-11)."""

_TUNED: Final = re.compile(r"(?:^|.*/)ft:([^:]+).*")
"""The name of a model that was tuned at OpenAI: the model that it was made of, and then words that its owner chose."""


@lru_cache(maxsize=1_024)
def answers(model: str) -> bool:
    """Whether a model answers prompts or makes vectors, by its name; not one for speech, pictures, ranks or moderation."""
    return _OTHERS.search(_made_of(model)) is None


def _made_of(model: str) -> str:
    return _TUNED.sub(r"\1", model.lower())


class EmbeddingApi:
    """The form of an API that embeds texts: by default ``/v1/embeddings`` of OpenAI, which most servers have, too."""

    def alone(self, model: str, text: str, more: Body) -> tuple[str, dict[str, Any]]:
        """The path and the body of a request with one text, and the fields ``more``."""
        return "/v1/embeddings", {"model": model, "input": text, **more}

    def together(self, path: str, bodies: Sequence[Body]) -> tuple[str, dict[str, Any]]:
        """The path and the body of one request with the texts of several, which differ in their text alone."""
        return path, {**bodies[0], "input": [body["input"] for body in bodies]}

    def apart(self, payload: Body, count: int) -> list[dict[str, Any] | None] | None:
        """What the answer for each of ``count`` texts would be alone; ``None`` where it is not known which vector is whose."""
        data = payload.get("data")
        if not isinstance(data, list) or not all(isinstance(item, Mapping) for item in data):
            return None
        places = [item.get("index") for item in data]
        if not all(type(place) is int for place in places):
            places = list(range(len(data))) if len(data) == count else [-1]
        if len(set(places)) < len(places) or not all(0 <= place < count for place in places):
            return None
        rest = {name: value for name, value in payload.items() if name not in ("data", "usage")}
        found = dict(zip(places, data, strict=True))
        return [rest | {"data": [{**found[n], "index": 0}]} if n in found else None for n in range(count)]


class _Gemini(EmbeddingApi):
    """``:embedContent``, and ``:batchEmbedContents`` for several texts (ai.google.dev/api/embeddings, 2026-11)."""

    def alone(self, model: str, text: str, more: Body) -> tuple[str, dict[str, Any]]:
        path = method_path(model.removeprefix("models/"), "embedContent")
        return path, {"content": {"parts": [{"text": text}]}, **more}

    def together(self, path: str, bodies: Sequence[Body]) -> tuple[str, dict[str, Any]]:
        model = path.partition("/models/")[2].removesuffix(":embedContent")
        many = path.removesuffix(":embedContent") + ":batchEmbedContents"
        return many, {"requests": [{"model": f"models/{model}", **body} for body in bodies]}

    def apart(self, payload: Body, count: int) -> list[dict[str, Any] | None] | None:
        return [{"embedding": item} for item in items] if (items := _list(payload, "embeddings", count)) else None


class _Cohere(EmbeddingApi):
    """``/v2/embed`` (docs.cohere.com/reference/embed, 2026-11)."""

    def alone(self, model: str, text: str, more: Body) -> tuple[str, dict[str, Any]]:
        return "/v2/embed", {"model": model, "texts": [text], "embedding_types": ["float"], **more}

    def together(self, path: str, bodies: Sequence[Body]) -> tuple[str, dict[str, Any]]:
        return path, {**bodies[0], "texts": [text for body in bodies for text in body["texts"]]}

    def apart(self, payload: Body, count: int) -> list[dict[str, Any] | None] | None:
        items = _list(as_mapping(payload.get("embeddings")), "float", count)
        return [{"embeddings": {"float": [item]}} for item in items] if items else None


def _list(holder: Body, name: str, count: int) -> list[Any] | None:
    items = holder.get(name)
    return items if isinstance(items, list) and len(items) == count else None


class Embedder(NamedTuple):
    """How a provider embeds texts.

    Attributes:
        inputs: The most texts of a request.
        tokens: The most tokens of a request, over all texts.
        more: Further fields that its API requires.
        api: The form of its requests and answers.
        counted: Whether each text is a request in its limits, as the ``units`` of a ``Call`` say.
    """

    inputs: int
    tokens: float = inf
    more: Body = MappingProxyType({})
    api: EmbeddingApi = EmbeddingApi()
    counted: bool = False


_UNKNOWN: Final = Embedder(32)
"""TEI takes 32 inputs unless its operator raises that (huggingface.co/docs/text-embeddings-inference/cli_arguments, 2026-11)."""

_APIS: Final[Mapping[str, EmbeddingApi]] = {"gemini": _Gemini(), "cohere": _Cohere()}

EMBEDDERS: Final = {
    name: Embedder(**row["embeddings"], api=_APIS.get(name, _UNKNOWN.api))
    for name, row in table("dialects").items()
    if "embeddings" in row
}
"""The bounds of a request by provider; of one that is not here, and of servers like OpenAI's, TEI's default."""


def embedder(provider: str, model: str) -> Embedder:
    """How ``model`` is embedded at ``provider``; empty: by the form of OpenAI, at a server that is not known."""
    name = base_of(provider) if provider else maker(model) or ""
    if name == "openai" and maker(model) != "openai":  # another server that has its form
        return _UNKNOWN
    return EMBEDDERS.get(name, _UNKNOWN)


def vector_of(body: Any) -> list[float] | None:
    """The vector in an answer for one text; ``None`` in any other answer. It may be empty."""
    match body:
        case {"data": [{"embedding": list(found)}]} | {"embedding": {"values": list(found)}}:
            return found
        case {"embeddings": {"float": [list(found)]}} | {"embeddings": [list(found)]} | {"embedding": list(found)}:
            return found
        case {"data": []} | {"embeddings": [] | {"float": []}}:
            return []
    return None


def is_vector(found: list[Any]) -> bool:
    """Whether all of it are finite numbers."""
    try:
        return isfinite(sum(found))
    except TypeError:
        return False
