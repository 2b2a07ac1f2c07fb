"""The dialects by the path of a request and by provider; without the HTTP side of the emulator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import parse_qs, unquote

from paceline.emulator.anthropic import Anthropic
from paceline.emulator.cohere import Cohere
from paceline.emulator.gemini import Gemini
from paceline.emulator.openai import Azure, Groq, OpenAI, Plain, Together
from paceline.emulator.wire import Dialect

OPENAI_LIKE: Final[dict[str, Dialect]] = {
    "openai": OpenAI(), "azure": Azure(), "groq": Groq(), "together": Together(), "plain": Plain(),
}  # fmt: skip
ANTHROPIC, COHERE, GEMINI = Anthropic(), Cohere(), Gemini()
BY_PROVIDER: Final[Mapping[str, Dialect]] = {
    **OPENAI_LIKE, "anthropic": ANTHROPIC, "cohere": COHERE, "gemini": GEMINI,
}  # fmt: skip
_PATH = re.compile(r"(/openai)?(?:/deployments/([^/]{1,200}))?(?:/v1)?(/[a-z/]+)", re.ASCII)
_MODEL = re.compile(r"/v1(?:alpha|beta)?/models/([^/:]{1,200}):(generateContent|streamGenerateContent)")


class Target(NamedTuple):
    """The dialect of a path, and the part of the request that the URL states.

    Attributes:
        dialect: The dialect that answers.
        kind: The kind of request; see :class:`~paceline.emulator.wire.Ask`.
        model: The model (or deployment), if the path names it.
        key: The API key, if the query has it.
    """

    dialect: Dialect
    kind: str
    model: str = ""
    key: str = ""


def find(path: str, query: bytes, headers: Mapping[bytes, bytes], dialect: str) -> Target | None:
    """The target of a POST; ``None`` for a path that is not metered.

    Below ``/openai/v1`` both Azure and Groq answer: a request with an ``api-key`` header is Azure's.

    Args:
        path: The URL's path.
        query: Its query.
        headers: The request's headers.
        dialect: The dialect on OpenAI's paths; by the path if empty.
    """
    return _find(path, query[:2_000], b"api-key" in headers, dialect)


@lru_cache(maxsize=1_024)
def _find(path: str, query: bytes, azures: bool, dialect: str) -> Target | None:
    google = _MODEL.fullmatch(path)
    if google is not None:
        asked = parse_qs(query.decode("latin-1"))
        streams = "stream" if asked.get("alt") == ["sse"] else "array"
        kind = "generate" if google[2] == "generateContent" else streams
        return Target(GEMINI, kind, unquote(google[1]), asked.get("key", [""])[0])
    if path in Cohere.PATHS:
        return Target(COHERE, Cohere.PATHS[path])
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    below, deployment, rest = match.groups()
    if rest in Anthropic.PATHS and not below:
        return Target(ANTHROPIC, Anthropic.PATHS[rest])
    if rest not in OpenAI.PATHS or (deployment and not below):
        return None
    by_path = "openai" if not below else "azure" if deployment or azures else "groq"
    return Target(OPENAI_LIKE[dialect or by_path], OpenAI.PATHS[rest], unquote(deployment or ""))
