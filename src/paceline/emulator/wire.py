"""What the dialects share: a request as the server read it, an answer as bytes, and how durations are written."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from paceline.emulator.text import write

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from paceline.emulator.outcome import Admitted, Level, Refused
    from paceline.emulator.settings import Settings

Header = tuple[bytes, bytes]
PIECES = 20
"""A streamed answer comes in at most so many pieces."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request's body as the server read it.

    Attributes:
        kind: ``chat``, ``responses``, ``embeddings``, ``messages``, ``generate``, ``stream`` or ``array``.
        model: The model that is asked for.
        input_tokens: The size of the input.
        max_output_tokens: The most output, for all choices together; ``None`` if the request does not say.
        stream: Whether the answer goes out in pieces.
        include_usage: Whether a chat stream ends with its usage.
        choices: How many answers (chat), or how many inputs (embeddings).
        dimensions: The length of an embedding.
        base64: Whether embeddings are packed.
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
    error: str = ""


class Answer(NamedTuple):
    """A whole HTTP answer."""

    status: int
    headers: list[Header]
    body: bytes


class Dialect(Protocol):
    """What a provider's module offers."""

    @property
    def ID_HEADER(self) -> bytes:  # noqa: N802
        """The name of the header that bears the request's id; empty for none."""

    @property
    def HOLDS_OUTPUT(self) -> bool:  # noqa: N802
        """Whether a quota of ``tokens`` counts output, and holds the most that a request may produce."""

    @property
    def SETTLES(self) -> bool:  # noqa: N802
        """Whether what was held and not used comes back."""

    def __hash__(self) -> int: ...

    def key(self, headers: Mapping[bytes, bytes]) -> str:
        """The API key of a request; empty without one."""

    def read(self, kind: str, body: bytes, named: str = "") -> Ask:
        """Read a request's body; ``named`` is the model that the path names, if it does."""

    def rate_headers(self, levels: list[Level], now: float) -> list[Header]:
        """The rate-limit headers."""

    def refusal(self, refused: Refused, settings: Settings, serial: int) -> Answer:
        """How this provider says no."""

    def error_event(self, ask: Ask, refusal: Answer, serial: int) -> bytes:
        """The same inside a stream."""

    def failure(self, serial: int) -> Answer:
        """How this provider says that it broke (500)."""

    def answer(self, ask: Ask, admitted: Admitted, serial: int) -> bytes:
        """The body of an answer in one piece."""

    def events(self, ask: Ask, admitted: Admitted, serial: int) -> Iterator[tuple[int, bytes]]:
        """The pieces of a streamed answer, each with the output tokens that it brings."""


def dump(value: Any) -> bytes:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":")).encode()


def sse(value: Any, event: str = "") -> bytes:
    """One server-sent event."""
    name = b"event: " + event.encode() + b"\n" if event else b""
    return name + b"data: " + dump(value) + b"\n\n"


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
    """A text of so many tokens, cut into at most :data:`PIECES`."""
    text, count = write(tokens), min(PIECES, max(1, tokens))
    cuts = [tokens * i // count for i in range(count + 1)]
    size = len(text) // max(1, tokens)
    return tuple((end - start, text[start * size : end * size]) for start, end in pairwise(cuts))


def go_duration(seconds: float) -> str:
    """A duration as Go prints it, cut to milliseconds: ``6m0s``, ``1.768s``, ``84ms``.

    Both of OpenAI's uses (reset headers, "try again in") fit this in every capture seen (2023 to 2026).
    """
    total_ms = math.floor(seconds * 1_000 + 1e-3)
    if total_ms < 1_000:
        return f"{total_ms}ms" if total_ms else "0s"
    minutes, ms = divmod(total_ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{ms / 1_000:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
