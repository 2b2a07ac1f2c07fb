"""Which dialect a path speaks, what it asks for, and of which model."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs, unquote

from paceline.emulator import anthropic, azure, cohere, gemini, groq, openai
from paceline.emulator.wire import Dialect

if TYPE_CHECKING:
    from collections.abc import Mapping

_OPENAI_LIKE: dict[str, Dialect] = {"openai": openai, "azure": azure, "groq": groq}
_PATH = re.compile(r"(/openai)?(?:/deployments/([^/]{1,200}))?(?:/v1)?(/[a-z/]+)", re.ASCII)
_MODEL = re.compile(r"/v1(?:alpha|beta)?/models/([^/:]{1,200}):(generateContent|streamGenerateContent)")


class Target(NamedTuple):
    """Where a request goes.

    Attributes:
        dialect: Who answers.
        kind: What is asked for; see :class:`~paceline.emulator.wire.Ask`.
        model: The model (or deployment), if the path names it.
        key: The API key, if the address bears it.
    """

    dialect: Dialect
    kind: str
    model: str = ""
    key: str = ""


def find(path: str, query: bytes, headers: Mapping[bytes, bytes], dialect: str) -> Target | None:
    """Where a POST goes; ``None`` for a path that is not metered.

    Below ``/openai/v1`` both Azure and Groq live: a request with an ``api-key`` header is Azure's.

    Args:
        path: The URL's path.
        query: Its query.
        headers: The request's headers.
        dialect: Who answers on OpenAI's paths; by the path if empty.
    """
    return _find(path, query[:2_000], b"api-key" in headers, dialect)


@lru_cache(maxsize=1_024)
def _find(path: str, query: bytes, azures: bool, dialect: str) -> Target | None:
    google = _MODEL.fullmatch(path)
    if google is not None:
        asked = parse_qs(query.decode("latin-1"))
        streams = "stream" if asked.get("alt") == ["sse"] else "array"
        kind = "generate" if google[2] == "generateContent" else streams
        return Target(gemini, kind, unquote(google[1]), asked.get("key", [""])[0])
    if path in cohere.PATHS:
        return Target(cohere, cohere.PATHS[path])
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    below, deployment, rest = match.groups()
    if rest in anthropic.PATHS and not below:
        return Target(anthropic, anthropic.PATHS[rest])
    if rest not in openai.PATHS or (deployment and not below):
        return None
    by_path = "openai" if not below else "azure" if deployment or azures else "groq"
    return Target(_OPENAI_LIKE[dialect or by_path], openai.PATHS[rest], unquote(deployment or ""))
