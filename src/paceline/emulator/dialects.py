"""The dialects by the path of a request and by provider; without the HTTP side of the emulator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import parse_qs, unquote

from paceline.emulator.anthropic import EmulatedAnthropic
from paceline.emulator.cohere import EmulatedCohere
from paceline.emulator.gemini import EmulatedGemini
from paceline.emulator.openai import EmulatedAzure, EmulatedGroq, EmulatedOpenAI, EmulatedPlain
from paceline.emulator.wire import Dialect

OPENAI_LIKE: Final[dict[str, Dialect]] = {
    "openai": EmulatedOpenAI(), "azure": EmulatedAzure(), "groq": EmulatedGroq(), "together": EmulatedOpenAI(), "plain": EmulatedPlain(),
}  # fmt: skip
ANTHROPIC, COHERE, GEMINI = EmulatedAnthropic(), EmulatedCohere(), EmulatedGemini()
BY_PROVIDER: Final[Mapping[str, Dialect]] = {
    **OPENAI_LIKE, "anthropic": ANTHROPIC, "cohere": COHERE, "gemini": GEMINI,
}  # fmt: skip
_PATH = re.compile(r"(/openai)?(?:/deployments/([^/]{1,200}))?(?:/v1)?(/[a-z/]+)", re.ASCII)
_MODEL = re.compile(r"/v1(?:alpha|beta)?/models/([^/:]{1,200}):(generateContent|streamGenerateContent)")


class DialectTarget(NamedTuple):
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


@lru_cache(maxsize=1_024)
def find(path: str, query: bytes, azures: bool, dialect: str) -> DialectTarget | None:
    """The target of a POST; ``None`` for a path that is not metered.

    Below ``/openai/v1`` both Azure and Groq answer.

    Args:
        path: The URL's path.
        query: The first bytes of its query.
        azures: Whether the request has an ``api-key`` header, as Azure's have.
        dialect: The dialect on OpenAI's paths; by the path if empty.
    """
    if (google := _MODEL.fullmatch(path)) is not None:
        return _of_google(google[1], google[2], query)
    if path in EmulatedCohere.PATHS:
        return DialectTarget(COHERE, EmulatedCohere.PATHS[path])
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    below, deployment, rest = match.groups()
    if rest in EmulatedAnthropic.PATHS and not below:
        return DialectTarget(ANTHROPIC, EmulatedAnthropic.PATHS[rest])
    if rest not in EmulatedOpenAI.PATHS or (deployment and not below):
        return None
    answering = openai_like(dialect, azures=azures or deployment is not None, below=below is not None)
    return DialectTarget(answering, EmulatedOpenAI.PATHS[rest], unquote(deployment or ""))


def openai_like(dialect: str, *, azures: bool, below: bool) -> Dialect:
    """The dialect on a path of OpenAI: the one of the settings; without one, by the path, which may be ``below`` ``/openai``."""
    return OPENAI_LIKE[dialect or ("openai" if not below else "azure" if azures else "groq")]


def _of_google(model: str, method: str, query: bytes) -> DialectTarget:
    asked = parse_qs(query.decode("latin-1"))
    streams = "stream" if asked.get("alt") == ["sse"] else "array"
    kind = "generate" if method == "generateContent" else streams
    return DialectTarget(GEMINI, kind, unquote(model), asked.get("key", [""])[0])
