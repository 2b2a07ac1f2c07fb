"""The interface of a provider: it describes a request, states the cost of it, and reads the answer.

A provider is a stateless value. It translates bytes and headers into :class:`~paceline.core.results.Reading`,
:class:`~paceline.core.results.Refusal` and :class:`Usage`, and depends on no limiter, clock or HTTP library. Malformed
input never raises: a value that cannot be read is absent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from paceline.core.quota import Cost
from paceline.core.results import Reading, Refusal

Headers = Mapping[str, str]
"""Header names in lower case to their values."""


class Others(NamedTuple):
    """The models that a request names beside its own.

    Attributes:
        models: They may answer in place of it, or work beside it.
        beside: Whether some work beside it: ``max_output_tokens`` does not bound what they write.
    """

    models: tuple[str, ...] = ()
    beside: bool = False


NO_OTHERS: Final = Others()

AUDIO_SECONDS: Final = "audio_seconds"
"""The unit of recordings."""


@dataclass(frozen=True, slots=True)
class Call:
    """One metered request, described before it is sent.

    Attributes:
        provider: The provider's name, e.g. ``openai``.
        endpoint: The kind of request, e.g. ``chat``, ``responses``, ``embeddings``, ``messages``.
        model: The model as the request names it.
        input_tokens: The estimate of the input, before any learned correction.
        max_output_tokens: The most output that the request allows, over all choices; ``None`` when it sets no limit.
        stream: Whether the answer is streamed.
        mode: The mode of the request where the provider limits that mode apart from the model's other requests
            (``fast``, ``long_context``); empty otherwise. Such a request is charged to the model's pool like any other,
            but its answer teaches the pool nothing.
        choices: How many answers it asks for.
        others: The models that may answer in place of ``model``, or work beside it.
        billed_max: The most tokens of output that are billed although no quota counts them: of pictures, speech, transcriptions and jobs,
            whose ``max_output_tokens`` is 0. ``None``: not known.
        tier: The service tier that the request asks for, if its price is another one; empty: the standard one.
        units: What the provider counts of it beside tokens, by unit: the images that it asks for or embeds, the texts and images that it
            embeds, the seconds of the recording that it uploads (by its header, or else by its size), and more than one
            request for a batch of texts whose texts are counted.
    """

    provider: str
    endpoint: str
    model: str
    input_tokens: int
    max_output_tokens: int | None = None
    stream: bool = False
    mode: str = ""
    tier: str = ""
    choices: int = 1
    others: Others = NO_OTHERS
    billed_max: int | None = 0
    units: Mapping[str, float] = field(default_factory=dict)

    @property
    def audio_s(self) -> float:
        """How long the recording is that it uploads, in seconds; 0: none, or not known."""
        return self.units.get(AUDIO_SECONDS, 0.0)

    @property
    def writes(self) -> bool:
        """Whether its answer may have output that is billed."""
        return self.max_output_tokens != 0 or self.billed_max != 0


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage that an answer reports, in tokens.

    Attributes:
        input_tokens: All input, cached reads and cache writes included.
        output_tokens: All output, reasoning included.
        cached_tokens: The part of the input that was read from a cache.
        cache_write_tokens: The part of the input that was written to a cache.
        hour_write_tokens: The part of those writes that the cache keeps for an hour.
        tier: The service tier that has answered; empty: not reported.
        usd: What the provider states that the request has cost; ``None``: nothing.
        answer: The id of the answer, where a later request may name it in place of its messages; empty: none.
        audio_tokens: The part of the input that was audio, without what was read from a cache.
        audio_output_tokens: The part of the output that is audio.
        partial: Whether more output may follow, because it is of the beginning of a stream, or the output is not reported.
        audio_s: How long the recording was, in seconds; ``None``: not reported.
        models: The models that are charged; empty: not reported.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    hour_write_tokens: int = 0
    tier: str = ""
    usd: float | None = None
    answer: str = ""
    audio_tokens: int = 0
    audio_output_tokens: int = 0
    partial: bool = False
    audio_s: float | None = None
    models: tuple[str, ...] = ()

    @property
    def cache_s(self) -> int:
        """How long the cache keeps what was written, in seconds, where the answer shows it; 0 where it does not."""
        return 3_600 if self.hour_write_tokens else 0


COUNTING: Final = "count_tokens"
"""The endpoint and the pool of requests that count tokens: they have a rate of their own, name a model, and use nothing of it."""


class UsageReader(Protocol):
    """Reads usage from the decoded bytes of an answer while they pass by; never raises."""

    usage: Usage | None
    """The usage read so far; ``None`` until the answer has reported any."""
    done: bool
    """Whether the answer's last event has passed; later bytes do not change the usage."""
    refusal: Refusal | None
    """A refusal inside the answer, after a status of 200."""

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the body."""

    def close(self) -> None:
        """The body is over."""


class Provider(Protocol):
    """One provider's dialect and rules."""

    name: str
    hosts: tuple[str, ...]
    """The provider's host names; a leading ``*.`` matches any subdomain, a leading ``*-`` any beginning of the first
    label, and ``.*.`` any second label."""
    key_env: str
    """The environment variable that holds the key."""
    charged_after: frozenset[str] = frozenset()
    """The units that are charged when the answer is produced, and not at admission."""
    holds_cached: bool = False
    """Whether the whole prompt must fit at admission, even if it is cached."""
    units: frozenset[str] = frozenset()
    """The units that the costs of some requests have, or that headers report, beside the units of every cost."""
    asks_usage: bool = False
    """Whether its chat streams of OpenAI's form report their usage only if they are asked to, or may be asked."""
    lines: Collection[str] = ()
    """The endpoints whose streams are a JSON object a line; the last one names the usage."""
    encoding: str
    """The estimator's weights: ``o200k``, ``claude_v3``, ``claude_v4_8`` or ``gemma3``."""

    def describe(self, path: str, body: Mapping[str, Any]) -> Call | None:
        """Describe the request to ``path`` (the URL's path); ``None`` when this path is not metered."""

    def keeps_s(self, model: str) -> float:
        """How long a cached prompt of ``model`` is kept that is not read, in seconds, unless an answer shows it."""

    def pool(self, model: str) -> str:
        """The name of the pool that ``model`` is charged to, without the provider: an alias, a shared family."""

    def held(self, call: Call, input_tokens: float, output_tokens: float) -> Cost:
        """What the provider holds at admission, per unit.

        Args:
            call: The request.
            input_tokens: The corrected estimate of the input.
            output_tokens: The expected output, for a provider that does not hold ``max_output_tokens``.
        """

    def charged(self, call: Call, usage: Usage) -> Cost:
        """What the provider has charged in the end, per unit, for an answer that reports ``usage``."""

    def readings(self, headers: Headers, now_s: float) -> list[Reading]:
        """The quotas that the headers of an answer report. ``now_s``: seconds since the epoch."""

    def refusal(self, status: int, headers: Headers, body: bytes) -> Refusal | None:
        """Classify an answer; ``None`` when it is not a refusal."""

    def usage_reader(self, call: Call) -> UsageReader:
        """A reader for the body of an answer to ``call``."""

    def usage(self, payload: Mapping[str, Any]) -> Usage | None:
        """Usage from a decoded JSON answer, a usage object, or either as an SDK dumps it."""
