"""The properties of an emulated provider: limits, rule, faults, speed. Plain values, checked once."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from random import Random
from typing import Any, ClassVar, NamedTuple, Self

RULES = ("bucket", "quantised", "window", "sliding")
UNITS = ("requests", "tokens", "input_tokens", "output_tokens", "project_tokens", "concurrency")
FAULTS = ("429", "500", "503", "529", "drop", "slow", "growth", "stream")
WAITS = ("", "true", "none", "full", "long")
NINE_OF_TEN = 1.2815515655446004
"""The standard deviations below which nine of ten normally distributed numbers are."""

PERIODS = {1.0: "second", 60.0: "minute", 3_600.0: "hour", 86_400.0: "day"}
"""The periods of quotas in words, by their seconds."""

_PERIODS = {"s": 1.0, "sec": 1.0, "min": 60.0, "hour": 3_600.0, "day": 86_400.0}
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9}
_LIMIT = re.compile(
    r"(\d[\d_]*(?:\.\d+)?)([kKmMbB]?)\s*([a-z_]+)(?:\s*/\s*(\d{0,5})([a-z]+))?(?:\s+([a-z]+))?", re.ASCII
)

LimitsLike = str | Sequence[str] | Mapping[str, str | Sequence[str]]
"""``"gpt-6-luna=500 requests/min,400k tokens/min"``, a list of those, or ``{"gpt-6-luna": "500 requests/min"}``."""


class SettingsError(ValueError):
    """An invalid setting; the message names it and states the valid values."""


class Limit(NamedTuple):
    """One quota: ``amount`` of ``unit`` per ``period_s`` seconds (0 for concurrency), under ``rule`` ("" for the default)."""

    unit: str
    amount: float
    period_s: float
    rule: str


def near(word: str, names: Sequence[str]) -> str:
    """A suggestion for a misspelt ``word``."""
    close = get_close_matches(word, names, 1, 0.5)
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(names)}"


def parse_limit(text: str) -> Limit:
    """Read ``"500 requests/min"``, ``"100 requests/10s"``, ``"1k requests/day window"`` or ``"8 concurrency"``.

    Raises:
        SettingsError: The text is no valid limit.
    """
    match = _LIMIT.fullmatch(text.strip())
    if match is None and "burst" in text:
        raise SettingsError(
            f"limit {text!r}: the emulator has no burst; to admit fewer at once, shorten the period: '20 requests/10s'"
        )
    if match is None:
        raise SettingsError(f"limit {text!r}: write it like '500 requests/min', '400k tokens/min' or '8 concurrency'")
    number, scale, unit, times, period, rule = match.groups()
    if unit not in UNITS:
        raise SettingsError(f"limit {text!r}: unknown unit {unit!r}; {near(unit, UNITS)}")
    if not (period is None if unit == "concurrency" else period in _PERIODS):
        raise SettingsError(f"limit {text!r}: give a period of s, min, hour or day (and none for concurrency)")
    if rule and rule not in RULES:
        raise SettingsError(f"limit {text!r}: unknown rule {rule!r}; {near(rule, RULES)}")
    amount = float(number.replace("_", "")) * _SCALES[scale.lower()]
    if amount <= 0:
        raise SettingsError(f"limit {text!r}: the amount must be above 0")
    period_s = int(times or 1) * _PERIODS[period] if period else 0.0
    if period and not period_s:
        raise SettingsError(f"limit {text!r}: the period must be above 0")
    return Limit(unit, amount, period_s, rule or "")


def by_pool(limits: LimitsLike) -> Mapping[str, str | Sequence[str]]:
    """Limits in any notation, as a mapping from the pool's name to its limits in text."""
    if isinstance(limits, Mapping):
        return limits
    lines = [limits] if isinstance(limits, str) else list(limits)
    return {name.strip() or "*": amounts for name, _, amounts in (line.rpartition("=") for line in lines)}


def parse_limits(limits: LimitsLike) -> dict[str, tuple[Limit, ...]]:
    """Limits by pool: a model's name, several names with ``|`` between them, or ``*`` for every other model.

    Raises:
        SettingsError: A limit is invalid, or a pool has none.
    """
    pools: dict[str, tuple[Limit, ...]] = {}
    for name, amounts in by_pool(limits).items():
        parts = amounts.split(",") if isinstance(amounts, str) else amounts
        pools[name] = tuple(parse_limit(part) for part in parts if part.strip())
        if not pools[name]:
            raise SettingsError(f"limits of {name!r}: there are none; write e.g. '500 requests/min,400k tokens/min'")
    return pools


def _number(default: float | None, most: float, *, least: float = 0.0) -> Any:
    """A setting that is a number from ``least`` to ``most``, or ``None`` if that is the default."""
    return field(default=default, metadata={"least": least, "most": most})


def _choice(default: str, *words: str) -> Any:
    """A setting that is one of some words."""
    return field(default=default, metadata={"words": words})


class _Checked:
    """Settings with checks of their names, numbers and words."""

    PLACE: ClassVar[str] = ""

    def check(self) -> None:
        """Check the values of :func:`_number` and :func:`_choice`."""
        for one in fields(self):  # type: ignore[arg-type]
            name, value, words = f"{self.PLACE}{one.name}", getattr(self, one.name), one.metadata.get("words")
            if words is None and one.metadata and (value, one.default) != (None, None):
                check_number(name, value, **one.metadata)
            elif words is not None and value not in words:
                raise SettingsError(f"{name} is {value!r}; {near(str(value), words)}")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Settings from a mapping, as a file or a request has it.

        Raises:
            SettingsError: A name or a value is invalid; the message names it and states the valid values.
        """
        names = [one.name for one in fields(cls)]  # type: ignore[arg-type]
        for name in values:
            if name not in names:
                raise SettingsError(f"{cls.PLACE.replace('.', ': ')}unknown setting {name!r}; {near(name, names)}")
        try:
            return cls(**values)
        except (TypeError, AttributeError) as error:
            raise SettingsError(f"a setting has the wrong type: {error}") from None


@dataclass(frozen=True, kw_only=True)
class BatchTimes(_Checked):
    """How long the states of an emulated batch last.

    Attributes:
        turnaround_s: Seconds from the end of the validation to the last request of a batch: the median.
        turnaround_spread: Nine of ten batches need at most the median times this; 1 for the median always.
        validating_s: Seconds of ``validating``; what is wrong with a batch is reported after them.
        finalizing_s: Seconds of ``finalizing``.
        cancel_s: Seconds of ``cancelling``, in which requests go on.
        expires_s: Seconds from the creation to the expiry.
        release_s: Seconds from the end of a batch until its part of the queue is free.
        pending_s: Seconds for which an uploaded file is ``pending`` at Azure, which refuses a batch of it meanwhile.
    """

    PLACE = "batches."

    turnaround_s: float = _number(60.0, 1e7)
    turnaround_spread: float = _number(1.0, 1e3, least=1.0)
    validating_s: float = _number(1.0, 1e6)
    finalizing_s: float = _number(1.0, 1e6)
    cancel_s: float = _number(1.0, 1e6)
    expires_s: float = _number(86_400.0, 1e7, least=1.0)
    release_s: float = _number(0.0, 1e6)
    pending_s: float = _number(0.0, 1e6)

    def lasts_s(self, random: Random) -> float:
        """Seconds from ``in_progress`` to the end of the last request of a batch."""
        return self.turnaround_s * math.exp(random.gauss(0, math.log(self.turnaround_spread) / NINE_OF_TEN))


@dataclass(frozen=True, kw_only=True)
class BatchSettings(BatchTimes):
    """The properties of an emulated provider's Batch API; the table ``batches`` of :class:`Settings`.

    Attributes:
        enqueued_tokens: The most input tokens of all batches of a model that have not ended: one number, or numbers by
            model (``*`` for all others). OpenAI's quota; ``None`` for no limit.
        queued_requests: The most requests of all batches that have not ended. Anthropic's quota; ``None`` for no limit.
        queue_full: How OpenAI's dialect refuses a batch over ``enqueued_tokens``: ``late`` lets the creation succeed and
            the batch fail, ``400`` and ``429`` refuse the creation.
        full_by_mistake: The probability that a batch is refused in this way although it would fit.
        failed_requests: The probability that a request ends in an error 500.
        lost_answers: The probability that the connection breaks after a file or a batch has been created, before the
            answer.
        in_order: Whether results come in the order of the requests, instead of the order in which these ended.
        creations_per_hour: The most batches that are created in any hour.
        most_requests: The most requests of a batch.
        most_bytes: The most bytes of a file, or of the body that creates a batch.
    """

    enqueued_tokens: float | Mapping[str, float] | None = None
    queued_requests: int | None = _number(None, 1e12)
    queue_full: str = _choice("late", "late", "400", "429")
    full_by_mistake: float = _number(0.0, 1.0)
    failed_requests: float = _number(0.0, 1.0)
    lost_answers: float = _number(0.0, 1.0)
    in_order: bool = False
    creations_per_hour: int = _number(2_000, 1e6, least=1)
    most_requests: int = _number(100_000, 1e6, least=1)
    most_bytes: int = _number(256_000_000, 1e9, least=1)

    def __post_init__(self) -> None:
        """Check every value."""
        if not isinstance(self.in_order, bool):
            raise SettingsError(f"batches.in_order is {self.in_order!r}: it must be true or false")
        self.check()
        tokens = self.enqueued_tokens
        by_model = tokens if isinstance(tokens, Mapping) else {"": 0.0 if tokens is None else tokens}
        for model, amount in by_model.items():
            check_number(f"batches.enqueued_tokens{model and f'.{model}'}", amount, most=1e15)

    def tokens_for(self, model: str) -> float | None:
        """The most enqueued tokens of ``model``; ``None`` for no limit."""
        tokens = self.enqueued_tokens
        return tokens.get(model, tokens.get("*")) if isinstance(tokens, Mapping) else tokens


@dataclass(frozen=True, kw_only=True)
class Speed(_Checked):
    """How long answers take.

    Attributes:
        latency_s: Seconds until the first piece of an answer.
        latency_per_token_s: Seconds per output token after that.
        latency_spread: Nine of ten answers take at most this many times as long as the median; 1 for all the same time.
        jitter: Latency is multiplied by a number drawn from ``1 - jitter`` to ``1 + jitter``.
    """

    latency_s: float = _number(0.0, 1e6)
    latency_per_token_s: float = _number(0.0, 1e3)
    latency_spread: float = _number(1.0, 1e3, least=1.0)
    jitter: float = _number(0.0, 1.0)

    def drawn(self, factor: float, random: Random) -> float:
        """How many times as long as the median an answer takes, if it would take it ``factor`` times as long."""
        if self.jitter:
            factor *= random.uniform(1 - self.jitter, 1 + self.jitter)
        if self.latency_spread > 1:
            factor *= math.exp(random.gauss(0.0, math.log(self.latency_spread) / NINE_OF_TEN))
        return factor


@dataclass(frozen=True, kw_only=True)
class Lengths(_Checked):
    """How long answers are.

    Attributes:
        output_share: Output length as a part of ``max_tokens``, on average.
        output_spread: The length varies evenly by this part of the average, up and down.
        default_output_tokens: Replaces ``max_tokens`` where a request has none, for the length of the answer.
    """

    output_share: float = _number(0.5, 1.0)
    output_spread: float = _number(0.5, 1.0)
    default_output_tokens: int = _number(256, 1e6)

    def output_of(self, most: int | None, spread: float) -> int:
        """The tokens of an answer of at most ``most``, which differs from the average by this part of it."""
        most = most or self.default_output_tokens
        return min(most, max(1, round(most * self.output_share * (1 + spread))))


@dataclass(frozen=True, kw_only=True)
class Caching(_Checked):
    """What is cached of prompts.

    Attributes:
        cache: Whether prompts are cached (Anthropic's and OpenAI's dialects).
        cache_life_s: Seconds that a cached prefix lives without a read, unless a request asks for an hour.
        cache_least_tokens: The size of the shortest prefix that is cached.
        cache_misses: The probability that a request reads nothing from the cache.
        cache_held: The whole prompt is charged at admission, and the cached part of it is given back when the answer begins
            (Bedrock, Groq; assumed of Groq's dialect in any case).
    """

    cache: bool = False
    cache_life_s: float = _number(300.0, 1e7)
    cache_least_tokens: int = _number(1_024, 1e7)
    cache_misses: float = _number(0.0, 1.0)
    cache_held: bool = False


@dataclass(frozen=True, kw_only=True)
class Refusing(_Checked):
    """Which requests are refused or fail beside those over a limit, and what refusals state.

    Attributes:
        faults: Probability per request of ``500``, ``503``, ``529``, ``429`` (refused for want of capacity, with the
            status of a rate), ``drop`` (the connection closes without an answer), ``slow`` (takes five times as long), ``growth`` ("slow down") and ``stream`` (a
            streamed answer ends in an error event in the middle; an answer in one piece is a 500).
        valid_key: The only API key that is accepted; any but the empty one if ``None``.
        money_after: Admitted requests after which the account has no money; ``None`` for never.
        failed_count: Refused requests use up the requests quota too.
        refuse_in_stream: A streamed request that is over its rate is refused with status 200 and an error event (seen
            at Azure and OpenAI on Responses).
        headers: Whether answers carry rate-limit headers (and refusals ``retry-after``).
        retry_after: The wait that a refusal for rate states: ``true``, ``none``, ``full`` (the time until all quotas are
            full), ``long`` (20 times the true one), or a number of seconds. If it is empty, ``true`` with ``headers``,
            and ``none`` without.
        body_numbers: Whether refusals state limit, used, requested and wait in their text.
    """

    faults: Mapping[str, float] = field(default_factory=dict)
    valid_key: str | None = field(default=None, repr=False)
    money_after: int | None = None
    failed_count: bool = False
    refuse_in_stream: bool = False
    headers: bool = True
    retry_after: str | float = ""
    body_numbers: bool = True

    @property
    def states_wait(self) -> bool:
        """Whether a refusal states a wait in its headers."""
        return (self.retry_after or ("true" if self.headers else "none")) != "none"

    def accepts(self, key: str) -> bool:
        """Whether a request with this API key is answered."""
        return bool(key) and self.valid_key in (None, key)


@dataclass(frozen=True, kw_only=True)
class Settings(Speed, Lengths, Caching, Refusing):
    """The properties of an emulated provider.

    Attributes:
        limits: Limits per model; ``*`` for models that are not named; ``a|b`` for models that share them.
        rule: The rule of rates: ``bucket``, ``quantised``, ``window`` or ``sliding``.
        quantum_s: Seconds of the rate that a quantised bucket holds. Quotas of more than a minute are never quantised.
        offset_s: Seconds past the clock's multiples of the period at which a window restarts.
        start_level: The available part of every quota at the start, 0 to 1.
        settle: ``never`` keeps the charge of the admission; ``actual`` returns its unused part at the end; ``provider``
            does as the request's dialect (Groq returns it).
        other_users: The share of every rate that other users of the same key take, 0 to 1.
        other_users_from_s: Seconds after the start at which other users begin.
        changes: New limits or faults in mid-run: ``[{"at_s": 60, "limits": {"gpt-6-luna": "250 requests/min"}}]``, seconds
            after the start.
        dialect: The dialect on OpenAI's paths: ``openai``, ``azure``, ``groq``, ``together`` (OpenAI's, with Together's
            Batch API) or ``plain`` (OpenAI's, with refusals that name nothing); by the path if empty.
        batches: The properties of the Batch APIs; see :class:`BatchSettings`.
        seed: Makes every random choice repeatable.
    """

    limits: LimitsLike = field(default_factory=lambda: {"*": "500 requests/min,500k tokens/min"})
    rule: str = _choice("bucket", *RULES)
    quantum_s: float = _number(1.0, 86_400.0)
    offset_s: float = _number(0.0, 86_400.0)
    start_level: float = _number(1.0, 1.0)
    settle: str = _choice("provider", "never", "actual", "provider")
    other_users: float = _number(0.0, 1.0)
    other_users_from_s: float = _number(0.0, 1e9)
    changes: Sequence[Mapping[str, Any]] = ()
    dialect: str = _choice("", "", "openai", "azure", "groq", "together", "plain")
    batches: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        """Check every value."""
        parse_limits(self.limits)
        BatchSettings.of(self.batches)
        if not isinstance(self.retry_after, str):
            check_number("retry_after", self.retry_after, least=1.0, most=1e9)
        elif self.retry_after not in WAITS:
            raise SettingsError(f"retry_after is {self.retry_after!r}; {near(self.retry_after, WAITS[1:])}, or seconds")
        _check_faults("faults", self.faults)
        for number, change in enumerate(self.changes):
            if not {"at_s"} < set(change) <= {"at_s", "limits", "faults"}:
                raise SettingsError(
                    f'changes[{number}]: write {{at_s = 60, limits = {{"gpt-6-luna" = "250 requests/min"}}}}'
                )
            check_number(f"changes[{number}].at_s", change["at_s"], most=1e9)
            _check_faults(f"changes[{number}].faults", change.get("faults", {}))
            if "limits" in change:
                parse_limits(change["limits"])
        self.check()
        if self.other_users == 1 or self.quantum_s == 0:
            raise SettingsError(
                "other_users must be below 1, and quantum_s above 0: otherwise no request is ever admitted"
            )

    def values(self) -> dict[str, Any]:
        """The settings as plain values, for JSON; :meth:`of` reads them back."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def _check_faults(name: str, faults: Mapping[str, float]) -> None:
    for kind, probability in faults.items():
        if kind not in FAULTS:
            raise SettingsError(f"{name}: unknown kind {kind!r}; {near(kind, FAULTS)}")
        check_number(f"{name}.{kind}", probability, most=1.0)


def check_number(name: str, value: Any, *, least: float = 0.0, most: float) -> None:
    """Refuse a value that is no number from ``least`` to ``most``.

    Raises:
        SettingsError: It is none; the message names it.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise SettingsError(f"{name} is {value!r}: it must be a number from {least:g} to {most:g}")
