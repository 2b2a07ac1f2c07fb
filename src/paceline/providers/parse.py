"""Values out of headers and JSON: numbers, durations, waits, error objects. What cannot be read is absent, no error."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final, NamedTuple

from paceline.core.quota import DAY_S
from paceline.providers.base import Headers, Usage
from paceline.providers.forms import table

MAX_WAIT_S: Final = 366 * DAY_S  # a wait or reset beyond a year is nonsense
MAX_COUNT: Final = 1e15  # so is a limit, a remainder or a count beyond this
BOM: Final = b"\xef\xbb\xbf"
"""The byte order mark that some servers write before a text."""
UNKNOWN: Final = "unknown"
"""The model of a request that names none."""
NUMBER: Final = int, float
LISTS: Final = list, tuple  # a union of types takes several times as long to check
MAPPING: Final = dict, Mapping  # nearly always a dict, and the check of the other takes five times as long
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


@lru_cache(maxsize=1_024)
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
    """The wait that ``retry-after-ms``, AWS's ``x-amz-retry-after`` or ``retry-after`` asks for, in seconds; ``None`` for none, 0 or a past date.

    An HTTP date is the form of the standard (RFC 9110, 10.2.3). Servers send other instants and durations, too.
    """
    milliseconds = wait(number(headers.get("retry-after-ms"))) or wait(number(headers.get("x-amz-retry-after")))
    return milliseconds / 1_000 if milliseconds else reset_in(headers.get("retry-after")).asked_s(headers)


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
    from datetime import datetime, time, timedelta
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    if now_s is None:
        return DAY_S
    try:
        now = datetime.fromtimestamp(now_s, ZoneInfo(zone))
        midnight = datetime.combine(now.date() + timedelta(days=1), time(), now.tzinfo)
        return wait(midnight.timestamp() - now_s) or DAY_S
    except (ValueError, OverflowError, OSError, ZoneInfoNotFoundError):
        return DAY_S


def longest(*waits: float | None) -> float | None:
    """The longest of the waits that there are; a wait of 0 is none."""
    return max(filter(None, waits), default=None)


def count(value: Any) -> int:
    """A count of tokens out of JSON; 0 for anything else."""
    if type(value) is int:  # nearly always
        return value if 0 < value <= MAX_COUNT else 0
    if value is None or isinstance(value, bool) or not isinstance(value, NUMBER):
        return 0
    return int(value) if 0 < value <= MAX_COUNT else 0  # so no NaN, no infinity, and no integer of 400 digits


def first_count(found: Mapping[str, Any], paths: Iterable[str]) -> int:
    """The first count at one of ``paths``; 0 for none."""
    for path in paths:
        if (value := at(found, path) if "." in path else found.get(path)) and (amount := count(value)):
            return amount
    return 0


def seconds(value: Any) -> float:
    """A length in seconds out of JSON, where some servers write it as a text; 0 for anything else."""
    found = number(value) if isinstance(value, str) else as_number(value)
    return float(found) if found is not None and 0 < found <= MAX_COUNT else 0.0


def stated(*values: Any) -> int:
    """The largest count in the fields of a request. Google's JSON and servers with pydantic take one in a text, too."""
    most = 0
    for one in values:
        most = max(most, count(int(one) if isinstance(one, str) and one.isdecimal() and len(one) < 20 else one))
    return most


def as_number(value: Any) -> float | None:
    """``value`` when it is a number, else ``None``."""
    return value if isinstance(value, NUMBER) and not isinstance(value, bool) else None


def as_mapping(value: Any) -> Mapping[str, Any]:
    """``value`` when it is a mapping, else an empty one."""
    return value if value is not None and isinstance(value, MAPPING) else {}


def items_of(value: Any, most: int | None = None) -> list[Mapping[str, Any]]:
    """The first items of a list as mappings; none of anything else."""
    return [as_mapping(one) for one in value[:most]] if isinstance(value, list) else []


_names: Final = lru_cache(maxsize=None)(lambda path: tuple(path.split(".")))  # paths of tables alone


def at(value: Any, path: str) -> Any:
    """The value at a path like ``choices.0.text`` in mappings and lists; ``None`` if there is none."""
    for name in _names(path):
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, LISTS):
            if not name.isdigit() or int(name) >= len(value):
                return None
            value = value[int(name)]
        elif isinstance(value, Mapping):
            value = value.get(name)
        else:
            return None
    return value


def values_at(found: Mapping[str, Any], paths: Iterable[str]) -> list[Any]:
    """The values at these paths that are there. Most paths are a name."""
    return [one for path in paths if (one := at(found, path) if "." in path else found.get(path)) is not None]


def as_text(value: Any) -> str:
    """``value`` when it is a text, digits for an integer, else nothing."""
    if isinstance(value, str):
        return value
    return str(value)[:20] if isinstance(value, int) and not isinstance(value, bool) else ""


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


def decode(body: bytes | bytearray) -> Any:
    """The JSON in ``body``, or ``None``."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


_USAGES: Final = "usage", "response.usage", "message.usage", "x_groq.usage"


def usage_of(payload: Mapping[str, Any], paths: Iterable[str] = _USAGES) -> Mapping[str, Any]:
    """The usage object of an answer, or of an event that carries an answer: at the first of ``paths``; else ``payload`` itself."""
    for path in paths:
        if isinstance(usage := at(payload, path) if "." in path else payload.get(path), MAPPING):
            return usage
    return payload


ANSWER_MAX: Final = 200
"""The longest id of an answer that is looked at, in characters."""

TIER_MAX: Final = 40
"""The longest name of a service tier that is looked at, in characters."""


def tier_of(payload: Mapping[str, Any]) -> str:
    """The ``service_tier`` of a request, of an answer, or of an event that carries an answer; empty for none."""
    tier = payload.get("service_tier") or as_mapping(payload.get("response")).get("service_tier")
    return tier[:TIER_MAX].lower().removeprefix("service_tier_") if isinstance(tier, str) else ""


def stated_usd(value: Any) -> float | None:
    """What a provider states that a request has cost, in US dollars; ``None`` for no such number."""
    found = as_number(value)
    return float(found) if found is not None and 0 <= found < STATED_USD_MAX else None


STATED_USD_MAX: Final = 10_000.0
"""No request costs more."""


Counts = Mapping[str, list[list[str]]]
"""The paths of the counts in a usage: the input, the output, the parts of the input, and the sum of both."""


def usage_by(counts: Counts, *parts: Mapping[str, Any], **further: Any) -> Usage | None:
    """The usage in objects, with ``further`` fields; ``None`` when there is none.

    Of each list of paths the first one with a count is taken, and the lists and the objects are added up. An answer may leave out what is 0,
    and then has a total, as in Google's JSON; a total alone is the input, as of embeddings. An output that is not reported is partial.
    """
    found = {"cached": 0, "written": 0, "total": 0}
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
    if not told and 0 < input_tokens <= total:
        told, output_tokens = True, total - input_tokens
    input_tokens = input_tokens or (0 if output_tokens else total)
    if not input_tokens and not output_tokens:
        return None
    cached, written = min(found["cached"], input_tokens), min(found["written"], input_tokens)
    return Usage(input_tokens, output_tokens, cached, written, partial=not told, **further)


_FIELDS: Final = table("errors")["fields"]
_SIGNS: Final = frozenset(_FIELDS["signs"])


def error_in(payload: Any) -> Mapping[str, Any] | None:
    """The error in the JSON value of an answer, or of an event, whose status says nothing; ``None`` for no error.

    Takes the forms of ``_FORMS``, also in a list.
    """
    if isinstance(payload, list):
        payload = payload[0] if payload else None
    if not isinstance(payload, MAPPING):
        return None
    if _SIGNS.isdisjoint(payload) and payload.get("type") != "error":  # nearly all
        return _error_of_choice(payload)
    found = (form(payload) for form in _FORMS)
    return next((error or None for error in found if error is not None), None)


def _plain(payload: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for holder in (payload, as_mapping(payload.get("response"))):
        error = holder.get("error")
        if isinstance(error, Mapping) and error:
            return error
        if isinstance(error, str) and error:
            if "id" in payload and payload.get("status") in _FIELDS["outcomes"]:
                return {}  # a job that has failed: the model's error
            beside = {name: payload[name] for name in ("code", "type", "status") if name in payload}
            return {"message": ": ".join(filter(None, (error, as_text(payload.get("message")))))} | beside
    return None


def _error_of_choice(payload: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next(filter(None, (as_mapping(one.get("error")) for one in items_of(payload.get("choices")))), None)


def _coded(row: Mapping[str, Any], payload: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """An object whose code says that there is an error, by a row of ``errors.toml``."""
    holder = as_mapping(at(payload, row["at"])) if "at" in row else payload
    code, texts = holder.get(row["code"]), [holder.get(name) for name in row.get("messages", ())]
    if as_text(code) in _FIELDS["fine"]:
        return None
    said = next(filter(None, texts), texts[-1] if texts else None)
    return {"code": row["prefix"] + as_text(code) if "prefix" in row else code, "message": said} if texts else holder


def _first_of_errors(payload: Mapping[str, Any]) -> Mapping[str, Any] | None:
    errors = items_of(payload.get("errors"), 1) if payload.get("success") is not True else []
    return errors[0] or None if errors else None


def _bare(payload: Mapping[str, Any]) -> Mapping[str, Any] | None:
    said = next((payload[name] for name in ("message", "msg", "errorMsg") if isinstance(payload.get(name), str)), None)
    answers = any(payload.get(name) for name in ("data", "result", "results", "choices", "output", "content"))
    is_error = said is not None and as_text(payload.get("code")).lower() not in _FIELDS["fine"] and not answers
    return {**payload, "message": said} if is_error else None


_FORMS: Final[tuple[Callable[[Mapping[str, Any]], Mapping[str, Any] | None], ...]] = (
    _plain,  # {"error": {...}}; {"error": "..."} with a code beside; both also inside ``response``
    _error_of_choice,  # {"choices": [{"error": {...}}]}
    lambda payload: payload if payload.get("type") == "error" or as_text(payload.get("__type")) else None,  # AWS
    *(partial(_coded, row) for row in table("errors")["forms"]),
    _first_of_errors,  # Cloudflare
    _bare,  # a ``code`` with a message, where there is no more
)
"""The forms of errors; an empty one is no error, and ends the search."""

_STATUSES: Final = {
    name.lower(): int(status) for status, names in table("errors")["statuses"].items() for name in names
}


def stated_status(error: Mapping[str, Any]) -> int | None:
    """The HTTP status that an error states as a number, or by its type; ``None`` if it states none."""
    fields = [as_text(error.get(name)) for name in ("code", "status", "status_code", "http_code", "type", "__type")]
    for text in fields:
        if len(text) == 3 and text.isascii() and text.isdigit() and 400 <= int(text) <= 599:
            return int(text)
    return next((_STATUSES[text.lower()] for text in fields if text.lower() in _STATUSES), None)


def error_of(body: bytes) -> tuple[Mapping[str, Any], str]:
    """The error object of an answer's body, and the text that may contain numbers.

    Takes ``{"error": {...}}``, ``{"error": "..."}``, the object itself, and any of them in a list. A body that is not
    JSON yields an empty object and its own first 4 096 characters.
    """
    payload = decode(body[:1_000_000])
    if isinstance(payload, list) and payload:
        payload = payload[0]
    if not isinstance(payload, Mapping):
        return {}, body[:4_096].decode("utf-8", "replace")
    named = payload.get("error")
    error = named if isinstance(named, Mapping) else error_in(payload) or payload
    return error, message_of(error)


def message_of(error: Mapping[str, Any]) -> str:
    """The message of an error, in any of the places where providers put it; the first 4,096 characters."""
    for holder in (error, as_mapping(error.get("detail"))):
        for name in filter(holder.__contains__, _FIELDS["messages"]):
            if text := as_text(holder[name]):
                return text[:4_096]
    return ""
