"""The common part of the dialects: the request as the server read it, the answer, and the interface of a dialect."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from paceline.emulator.prompt_cache import PromptPart, ServerPrompt, chain
from paceline.emulator.settings import Settings
from paceline.emulator.text import write
from paceline.emulator.world import AS_USUAL, Admitted, Counting, Level, Refused

Header = tuple[bytes, bytes]
JSON: Header = (b"content-type", b"application/json")
ErrorParts = tuple[int, str, Mapping[str, Any]]
"""Status, text and further fields of an error."""

PIECES = 20
"""The most pieces of a streamed answer."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request's body as the server read it.

    Attributes:
        kind: ``chat``, ``responses``, ``embeddings``, ``messages``, ``generate``, ``stream`` or ``array``.
        model: The requested model.
        input_tokens: The size of the input.
        max_output_tokens: The most output, for all choices together; ``None`` if the request does not say.
        stream: Whether the answer goes out in pieces.
        include_usage: Whether a chat stream ends with its usage.
        choices: The number of answers (chat), or of inputs (embeddings).
        dimensions: The length of an embedding.
        base64: Whether embeddings are packed.
        prompt: The prompt as a cache sees it; ``None`` without one.
        error: What is wrong with the request, if anything.
    """

    kind: str
    model: str = ""
    input_tokens: int = 0
    max_output_tokens: int | None = None
    stream: bool = False
    include_usage: bool = False
    choices: int = 1
    dimensions: int = 0
    base64: bool = False
    prompt: ServerPrompt | None = None
    error: str = ""

    def finish(self, admitted: Admitted, cut: str, complete: str) -> str:
        """The finish reason of the answer: ``cut`` if it has the most output that the request allows."""
        return cut if admitted.output_tokens == self.max_output_tokens else complete


class HttpAnswer(NamedTuple):
    """A whole HTTP answer."""

    status: int
    headers: list[Header]
    body: bytes


class Dialect(ABC):
    """One provider's way to read requests and to write answers, headers and refusals.

    Attributes:
        PATHS: The kind of request for each path, where paths alone decide.
        ID_HEADER: The header of the request's id; empty for none.
        KEY_HEADERS: The headers that can bear the API key, the preferred one first.
        COUNTING: How the provider counts a request.
        REFUSALS: The parts of the error, for each kind of refusal but those by a quota; ``failure`` is an internal
            error, ``other`` is for the kinds that are not listed.
        ERROR_TYPE: The content type of errors.
        STATES_WAIT: Whether a refusal has the header ``retry-after``.
        LOOKBACK: How many blocks before a breakpoint are looked up in the cache.
        NO_JSON: The error text for a body that is no JSON object.
        NO_MODEL: The error text for a request without a model.
    """

    PATHS: ClassVar[Mapping[str, str]] = {}
    ID_HEADER: ClassVar[bytes] = b""
    KEY_HEADERS: ClassVar[tuple[bytes, ...]] = (b"authorization",)
    COUNTING: ClassVar[Counting] = AS_USUAL
    REFUSALS: ClassVar[Mapping[str, ErrorParts]]
    ERROR_TYPE: ClassVar[bytes] = JSON[1]
    STATES_WAIT: ClassVar[bool] = True
    LOOKBACK: ClassVar[int] = 0
    NO_JSON: ClassVar[str]
    NO_MODEL: ClassVar[str] = ""

    def key(self, headers: Mapping[bytes, bytes]) -> str:
        """The API key of a request; empty without one."""
        found = (headers.get(name, b"").removeprefix(b"Bearer ").strip() for name in self.KEY_HEADERS)
        return next(filter(None, found), b"").decode("latin-1")

    def read(self, kind: str, body: bytes, named: str = "", *, caches: bool = False) -> Ask:
        """Read a request's body; ``named`` is the model that the path names. Mistakes are in ``Ask.error``.

        ``caches``: whether prompts are cached, so that the answer needs the parts of this one.
        """
        value = load(body)
        if value is None:
            return Ask(kind, error=self.NO_JSON)
        model = named or value.get("model")
        if not isinstance(model, str) or not model:
            return Ask(kind, error=self.NO_MODEL)
        ask = self.ask(kind, model, value)
        parts = self.parts(kind, value) if caches and not ask.error else ()
        return replace(ask, prompt=self.prompt(model, parts)) if parts else ask

    @abstractmethod
    def ask(self, kind: str, model: str, value: dict[str, Any]) -> Ask:
        """Read a request's JSON object."""

    def parts(self, kind: str, value: dict[str, Any]) -> Sequence[PromptPart]:  # noqa: ARG002
        """The parts of a request's prompt; none where this dialect caches nothing."""
        return ()

    def prompt(self, model: str, parts: Sequence[PromptPart]) -> ServerPrompt:
        """The prompt of these parts as the provider's cache sees it: it is cached up to each part that asks for that."""
        return ServerPrompt(chain(model, parts), self.LOOKBACK)

    def rate_headers(self, levels: list[Level], now: float) -> list[Header]:  # noqa: ARG002
        """The rate-limit headers; none of a provider that shows no quota."""
        return []

    def refusal(self, refused: Refused, settings: Settings, serial: int) -> HttpAnswer:
        """Status, headers and text of a refusal."""
        if refused.kind in ("rate", "too_large"):
            status, text, fields = self.over_limit(refused, settings)
        else:
            status, text, fields = self.REFUSALS.get(refused.kind) or self.REFUSALS["other"]
            text = text.format(refused=refused, id=request_id(serial).decode())
        status = refused.status or status
        headers = [(b"content-type", self.ERROR_TYPE), *self.retry_headers(refused, settings)]
        return HttpAnswer(status, headers, dump(self.error(serial, status, text, fields)))

    def failure(self, serial: int) -> HttpAnswer:
        """An internal error (500)."""
        return self.refusal(Refused("failure"), Settings(), serial)

    def retry_headers(self, refused: Refused, settings: Settings) -> list[Header]:
        """``retry-after`` in whole seconds, for refusals that a wait can cure."""
        if not settings.states_wait or not self.STATES_WAIT or refused.kind not in ("rate", "growth"):
            return []
        return [(b"retry-after", b"%d" % max(1, math.ceil(refused.wait_s)))]

    @abstractmethod
    def over_limit(self, refused: Refused, settings: Settings) -> ErrorParts:
        """The refusal by a quota of a request that does not fit now (``rate``) or at any time (``too_large``)."""

    @abstractmethod
    def error(self, serial: int, status: int, text: str, fields: Mapping[str, Any]) -> Any:
        """The provider's error object."""

    @abstractmethod
    def error_event(self, ask: Ask, refusal: HttpAnswer, serial: int) -> bytes:
        """A refusal as an event in a stream."""

    @abstractmethod
    def answer(self, ask: Ask, admitted: Admitted, serial: int) -> Any:
        """The JSON value of an answer in one piece."""

    @abstractmethod
    def events(self, ask: Ask, admitted: Admitted, serial: int) -> Iterator[tuple[int, bytes]]:
        """The pieces of a streamed answer, each with its number of output tokens."""


def dump(value: Any) -> bytes:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":")).encode()


def sse(value: Any, event: str = "") -> bytes:
    """One server-sent event."""
    name = b"event: " + event.encode() + b"\n" if event else b""
    return name + b"data: " + dump(value) + b"\n\n"


def typed(name: str, **values: Any) -> bytes:
    """One event that states its name also as its type."""
    return sse({"type": name} | values, name)


def load(body: bytes) -> dict[str, Any] | None:
    """A body's JSON object; ``None`` if it is none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def count_of(value: Any) -> int | None:
    """A positive whole number; ``None`` for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def request_id(serial: int) -> bytes:
    """A request id in the usual form."""
    return b"req_%024x" % serial


@lru_cache(maxsize=256)
def pieces(tokens: int) -> tuple[tuple[int, str], ...]:
    """The text of an answer, cut into at most :data:`PIECES`, each with its number of tokens."""
    text, count = write(tokens), min(PIECES, max(1, tokens))
    cuts = [tokens * i // count for i in range(count + 1)]
    size = len(text) // max(1, tokens)
    return tuple((end - start, text[start * size : end * size]) for start, end in pairwise(cuts))
