"""Values out of headers and JSON: numbers, durations, waits, error objects. What cannot be read is absent, no error."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple

from paceline.core.meters import window_starts
from paceline.core.quota import DAY_S, INPUT_TOKENS, NS, OUTPUT_TOKENS, TOKENS, Cost
from paceline.providers.base import Headers, Usage
from paceline.providers.forms import table
from paceline.responses.values import (
    MAPPING,
    MAX_COUNT,
    NUMBER,
    as_number,
    as_text,
    at,
    count,
    values_at,
)

log = logging.getLogger("paceline.providers")

MAX_WAIT_S: Final = 366 * DAY_S  # a wait or reset beyond a year is nonsense
UNKNOWN: Final = "unknown"
"""The model of a request that names none."""
_PERIODS_S: Final[Mapping[str, float]] = table("messages")["seconds"]


def seconds_in(word: str) -> float | None:
    """The seconds of a period, by one of the words for it: ``s``, ``minutes``, ``daily``; ``None`` for an unknown one."""
    word = word.lower()
    return _PERIODS_S.get(word) or _PERIODS_S.get(word.removesuffix("s")) or _PERIODS_S.get(word.removesuffix("ly"))


_SNAPSHOT = re.compile(r"(?:[-@]20\d\d-?[01]\d-?[0-3]\d|-(?:0[1-9]|1[0-2])[0-3]\d|-latest)$", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d{1,18}(?:\.\d{1,18})?", re.ASCII)
_GO_DURATION = re.compile(r"(?:\d{1,15}(?:\.\d{1,15})?\s{0,2}(?:h|ms|m|us|µs|ns|seconds?|s)\s{0,2})+", re.ASCII)
_TIMES = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s{0,2}([a-zµ]{1,12}|毫秒|秒|分钟|小时|天)", re.IGNORECASE)
HEADERS_MAX: Final = 1_000  # headers of one answer that are read


def headers_of(headers: object) -> dict[str, str]:
    """Headers by their names in lower case; the values of a repeated one are joined by commas, as HTTP defines it.

    Raises:
        TypeError: ``headers`` is neither a mapping nor pairs of a name and a value.
    """
    found: dict[str, str] = {}
    try:
        pairs: Iterable[tuple[Any, Any]] = headers.items() if hasattr(headers, "items") else headers  # type: ignore[assignment]
        for name, value in islice(pairs, HEADERS_MAX):
            key, texts = _text(name).lower(), value if isinstance(value, list | tuple) else (value,)
            values = ", ".join(map(_text, texts))
            found[key] = f"{found[key]}, {values}" if key in found else values
    except (TypeError, ValueError):
        raise TypeError(
            f"headers is a {type(headers).__name__}: it must be a mapping, or pairs of a name and a value"
        ) from None
    return found


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _short(text: str | None) -> str:
    """A header's value. A repeated header arrives as one, joined by commas: equal values count as one."""
    clean = "" if text is None or len(text) > 200 else text.strip()
    if "," in clean:
        parts = [part.strip() for part in clean.split(",")]
        for size in (1, 2):  # an HTTP date has a comma of its own
            if parts == parts[:size] * (len(parts) // size):
                clean = ", ".join(parts[:size])
                break
    return clean if len(clean) <= 40 else ""


def number(text: str | None) -> float | None:
    """A plain decimal number; ``None`` for anything else, also for unequal values of a repeated header."""
    if text is None:
        return None
    if len(text) < 16 and text.isascii() and text.isdigit():  # nearly all
        return float(text)
    clean = _short(text)
    return float(clean) if _NUMBER.fullmatch(clean) else None


@lru_cache(maxsize=256)  # a limit is the same in each answer
def amount(text: str | None) -> float | None:
    """A number that is valid as a limit: above 0."""
    value = number(text)
    return value if value is not None and 0 < value <= MAX_COUNT else None


def remainder(text: str | None) -> float | None:
    """A number that is valid as a remainder, of any sign."""
    value = number(text)
    return value if value is not None and abs(value) <= MAX_COUNT else None


def wait(value: float | None) -> float | None:
    """A wait in seconds from 0 to a year, else ``None``."""
    return value if value is not None and 0 <= value <= MAX_WAIT_S else None


def go_duration_s(text: str | None) -> float | None:
    """Seconds of a Go duration: ``6m0s``, ``1h34m52.896s``, ``84ms``, also with spaces (``6m 11.52s``, ``1 seconds``)."""
    clean = _short(text)
    return duration_s(clean) if _GO_DURATION.fullmatch(clean) else None


def duration_s(text: str) -> float | None:
    """The seconds of a duration in words or letters: ``1h 2m``, ``3 minutes``, ``16 days``; ``None`` for none."""
    parts = [(float(amount), seconds_in(word)) for amount, word in _TIMES.findall(text)]
    seconds = [amount * unit_s for amount, unit_s in parts if unit_s is not None]
    return wait(round(sum(seconds), 9)) if seconds and len(seconds) == len(parts) else None


def rfc3339_s(text: str | None) -> float | None:
    """Seconds since the epoch of an RFC 3339 instant; ``None`` for one without a zone."""
    from datetime import datetime

    try:
        instant = datetime.fromisoformat(_short(text))
        return instant.timestamp() if instant.tzinfo else None
    except (ValueError, OverflowError):
        return None


@lru_cache(maxsize=64)  # an answer has one, and several instants
def http_date_s(text: str | None) -> float | None:
    """Seconds since the epoch of an HTTP date (``Wed, 21 Oct 2026 07:28:00 GMT``)."""
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime(_short(text)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def retry_after_s(headers: Headers) -> float | None:
    """The wait that ``retry-after-ms`` (Azure's ``x-ms-retry-after-ms``, AWS's ``x-amz-retry-after``) or ``retry-after`` asks for, in seconds; ``None`` for none, 0 or a past date.

    An HTTP date is the form of the standard (RFC 9110, 10.2.3). Servers send other instants and durations, too.
    """
    for name in ("retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after"):
        if name in headers and (milliseconds := wait(number(headers[name]))):
            return milliseconds / 1_000
    return reset_in(headers.get("retry-after")).asked_s(headers)


def answered_s(headers: Headers, now_s: float) -> float:
    """When an answer was made, in seconds since the epoch: by its ``date`` header, so that this machine's clock does not matter.

    A server without one (RFC 9110 asks only servers with a clock for it) is compared with ``now_s``, the time of this machine.
    """
    return http_date_s(headers.get("date")) or now_s


class Reset(NamedTuple):
    """What a header says of a reset: an instant, in seconds since the epoch, or seconds until then.

    ``plain``: it is a number of seconds without a unit.
    """

    at_s: float | None = None
    wait_s: float | None = None
    plain: bool = False

    def left_s(self, headers: Headers, now_s: float) -> float | None:
        """Seconds until then; an instant is compared with the ``date`` of ``headers``, or without one with ``now_s``."""
        return self.wait_s if self.at_s is None else wait(max(0.0, self.at_s - answered_s(headers, now_s)))

    def asked_s(self, headers: Headers) -> float | None:
        """The wait that it asks for, from the answer on; ``None`` for none, 0 or a past instant."""
        return self.left_s(headers, time.time()) or None


@lru_cache(maxsize=256)
def reset_in(text: str | None) -> Reset:
    """A reset in any form: a duration, seconds; an HTTP date, an instant of RFC 3339, seconds or milliseconds since the epoch."""
    if text is None:
        return Reset()
    value = number(text)
    if value is None:
        wait_s = go_duration_s(text)
        return Reset(rfc3339_s(text) or http_date_s(text) if wait_s is None else None, wait_s)
    if value > MAX_WAIT_S:
        return Reset(value / 1_000 if value > 1e11 else value)  # 1e11 s are in the year 5138
    return Reset(None, wait(value), plain=True)


def until_midnight_s(zone: str, now_s: float | None) -> float:
    """Seconds until the day ends in a time zone; a whole day, which is never too early, where the time is unknown."""
    try:
        days = window_starts(zone, round(now_s * NS)) if now_s is not None else None
    except (ValueError, OverflowError, OSError, LookupError):  # a year that cannot be, or a zone
        days = None
    return DAY_S if days is None or now_s is None else wait(days[2] - now_s) or DAY_S


def longest(*waits: float | None) -> float | None:
    """The longest of the waits that there are; a wait of 0 is none."""
    return max(filter(None, waits), default=None)


def seconds(value: Any) -> float:
    """A length in seconds out of JSON, where some servers write it as a text; 0 for anything else."""
    found = number(value) if isinstance(value, str) else as_number(value)
    return float(found) if found is not None and 0 < found <= MAX_COUNT else 0.0


def stated(body: Mapping[str, Any], paths: Iterable[str]) -> int:
    """The largest count at ``paths`` of a request. Google's JSON and servers with pydantic take one in a text, too."""
    most = 0
    for path in paths:
        one = at(body, path) if "." in path else body.get(path)
        if one is not None:
            most = max(most, count(int(one) if isinstance(one, str) and one.isdecimal() and len(one) < 20 else one))
    return most


def inputs_in(value: Any) -> int:
    """How many inputs an embedding request has in ``value``: texts, or lists of token ids; a text, or one such list, is one."""
    if isinstance(value, list):
        return 1 if value and type(value[0]) is int else len(value)
    return int(isinstance(value, str))


def model_of(body: Mapping[str, Any]) -> str:
    """The model that a request names; a half of a surrogate pair, which no report could encode, becomes ``?``."""
    name = as_text(body.get("model"))[:200] or UNKNOWN
    return name if name.isascii() else name.encode("utf-8", "replace").decode()


@lru_cache(maxsize=1_024)  # each estimate and each answer asks for it
def undated(model: str) -> str:
    """A model's alias: its name without the date of a snapshot (``-2024-08-06``, ``-20250929``, ``-0613``, ``-latest``)."""
    return _SNAPSHOT.sub("", model) or model


def spelled(model: str) -> str:
    """A model's alias with ``-`` for ``.``, which some write: ``claude-haiku-4.5-20251001`` is ``claude-haiku-4-5``."""
    return undated(model).replace(".", "-")


_USAGES: Final = "usage", "response.usage", "message.usage", "result.usage", "x_groq.usage"


def usage_of(payload: Mapping[str, Any], paths: Iterable[str] = _USAGES) -> Mapping[str, Any]:
    """The usage object of an answer, or of an event that carries an answer: at the first of ``paths``; else ``payload`` itself."""
    for path in paths:
        if isinstance(usage := at(payload, path) if "." in path else payload.get(path), MAPPING):
            return usage
    return payload


def usage_in_headers(headers: Headers) -> Usage | None:
    """The usage in the headers of an answer, as Bedrock has it where the body is a model's own."""
    sides = [count(number(headers.get(f"x-amzn-bedrock-{side}-token-count"))) for side in ("input", "output")]
    return Usage(sides[0], sides[1]) if any(sides) else None


ANSWER_MAX: Final = 200
"""The longest id of an answer that is looked at, in characters."""

TIER_MAX: Final = 40
"""The longest name of a service tier that is looked at, in characters."""


def tier_of(payload: Mapping[str, Any]) -> str:
    """The ``service_tier`` of a request, of an answer, or of an event that carries an answer; empty for none."""
    tier = payload.get("service_tier") or ("response" in payload and at(payload, "response.service_tier"))
    return tier[:TIER_MAX].lower().removeprefix("service_tier_") if isinstance(tier, str) else ""


def stated_usd(value: Any) -> float | None:
    """What a provider states that a request has cost, in US dollars; ``None`` for no such number."""
    found = as_number(value)
    return float(found) if found is not None and 0 <= found < STATED_USD_MAX else None


STATED_USD_MAX: Final = 10_000.0
"""No request costs more."""


Counts = Mapping[str, list[list[str]]]
"""The paths of the counts in a usage: the input, the output, the parts of the input, and the sum of both."""


def first_count(found: Mapping[str, Any], paths: Iterable[str]) -> int:
    """The first count at one of ``paths``; 0 for none."""
    for path in paths:
        if (value := at(found, path) if "." in path else found.get(path)) and (amount := count(value)):
            return amount
    return 0


def usage_by(counts: Counts, *parts: Mapping[str, Any], **further: Any) -> Usage | None:
    """The usage in objects, with ``further`` fields; ``None`` when there is none.

    Of each list of paths the first one with a count is taken, and the lists and the objects are added up. What a total has beyond the input
    is output: Google's JSON leaves out what is 0, and its chats in OpenAI's form the thoughts (2.5 Flash at Vertex, 2026-10: 14 + 59 of 633).
    A total alone is the input, as of embeddings. An output that is not reported is partial.
    """
    found, parts = {"cached": 0, "written": 0, "total": 0}, tuple(filter(None, parts))
    for what, lists in counts.items():
        amount = 0
        for paths in lists:
            for one in parts:
                amount += first_count(one, paths)
        found[what] = amount
    input_tokens, output_tokens, total = found["input"], found["output"], found["total"]
    told = output_tokens or any(
        isinstance(value, NUMBER) for one in parts for paths in counts["output"] for value in values_at(one, paths)
    )
    if 0 < input_tokens <= total:
        told, output_tokens = True, max(output_tokens, total - input_tokens)
    input_tokens = input_tokens or (0 if output_tokens else total)
    if not input_tokens and not output_tokens:
        return None
    cached, written = min(found["cached"], input_tokens), min(found["written"], input_tokens)
    return Usage(input_tokens, output_tokens, cached, written, partial=not told, **further)


def plausible(pool: str, usage: Usage, reserved: Cost) -> Usage:
    """``usage`` with each count bounded by 64 times the reserved tokens, or by 4 million where that is more.

    A larger count is a fault of the server or of a gateway: the pool would stand still until the debt is repaid. The
    first one of a pool is logged.
    """
    tokens = max(reserved.get(TOKENS, 0.0), reserved.get(INPUT_TOKENS, 0.0) + reserved.get(OUTPUT_TOKENS, 0.0))
    most = int(max(64 * tokens, 4e6))
    if usage.input_tokens <= most and usage.output_tokens <= most:
        return usage
    if pool not in _logged and len(_logged) < 1_000:
        _logged.add(pool)
        log.warning(
            "%s: an answer reports %d tokens of input and %d of output, which its request cannot have caused: at most"
            " %d of each are charged; check the server or the gateway",
            *(pool, usage.input_tokens, usage.output_tokens, most),
        )
    return replace(usage, **{name: min(getattr(usage, name), most) for name in _COUNTS})


_COUNTS: Final = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "hour_write_tokens")
_logged: set[str] = set()
