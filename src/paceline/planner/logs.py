"""Logs of requests: for each form of log, the table beside this file says which of its fields have what a replay needs.

No message quotes a value: it can be a prompt or a key.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain, islice, pairwise
from typing import Any, Final, NamedTuple, TypeGuard

from paceline.core.hints import shown_names
from paceline.core.results import SettingsError, explaining
from paceline.planner.simulation import Request
from paceline.planner.workload import CALLS_MAX, Item, Work
from paceline.providers.registry import head_of, is_provider
from paceline.responses.values import decode, table_beside

Names = Sequence[str]
"""Names of fields; the first with a value counts."""

OWN: Final = '{"start": '
"""How a line of the traffic log begins; a full disk can cut it, or a kill."""


@dataclass(frozen=True, slots=True)
class Kinds:
    """Fields that say what a record is, with some of their values."""

    only: Mapping[str, Names] = field(default_factory=dict)
    other: Mapping[str, Names] = field(default_factory=dict)

    def has(self, record: Mapping[str, Any]) -> bool:
        """Whether a record is a request to a provider, by what it says itself."""

        def says(fields: Mapping[str, Names]) -> Iterator[bool]:
            """For each field that has a value, whether it is one of those given."""
            found = ((_at(record, path), names) for path, names in fields.items())
            return (str(value) in names or str(value).lower() in names for value, names in found if value is not None)

        return all(says(self.only)) and not any(says(self.other))


@dataclass(frozen=True, slots=True)
class Times:
    """The fields with the times of a request."""

    start: Names
    end: Names = ()
    took: Mapping[str, float] = field(default_factory=dict)

    def start_s(self, record: Mapping[str, Any]) -> float:
        """When it was sent."""
        start_s = _time(record, self.start)
        if start_s is None:
            raise _RecordError(f"{self.start[0]} is missing")
        return start_s

    def seconds(self, record: Mapping[str, Any], start_s: float) -> float | None:
        """How long it took, as it is stated, or from its start to its end."""
        for name, scale in self.took.items():
            if (amount := _number(record, (name,))) is not None:
                return amount / scale
        end_s = _time(record, self.end)
        return None if end_s is None or end_s < start_s else end_s - start_s


@dataclass(frozen=True, slots=True)
class Outcome:
    """The fields with what became of a request."""

    status: Names = ()
    failed: Mapping[str, Names] = field(default_factory=dict)
    texts: Names = ()
    decided: bool = False

    def of(self, record: Mapping[str, Any]) -> tuple[bool, bool, bool]:
        """Whether a request was refused, whether it failed for another reason, and whether the record tells."""
        for path in self.status:
            status = _as_float(_at(record, path))
            if status is None:
                continue
            if status >= 400 or self.decided or not self.failed:  # a span of HTTP can have failed with a 200
                refused = status in REFUSED
                return refused, not refused and not 200 <= status < 300, True
        signs = [(value, bad) for path, bad in self.failed.items() if (value := _at(record, path)) is not None]
        if not any(not bad or str(value) in bad for value, bad in signs):
            return False, False, bool(signs)
        words = " ".join(_message(str(value)) for path in self.texts if (value := _at(record, path)) is not None)
        refused = _REFUSAL.search(words) is not None
        return refused, not refused, True


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The fields with the tokens of a request."""

    inputs: Names
    outputs: Names
    totals: Names = ()
    most: Names = ()
    settings: Names = ()

    def of(self, record: Mapping[str, Any]) -> tuple[float | None, float | None, float]:
        """The input and the output, as far as the record says them, and the most output."""
        asked, written = _number(record, self.inputs), _number(record, self.outputs)
        if asked is None and (total := _number(record, self.totals)) is not None:
            asked = max(total - (written or 0.0), 0.0)
        names = chain(self.most, (f"{place}.{name}" for place in self.settings for name in _TABLE["most"]))
        return asked, written, max(_number(record, names, strict=False) or 0.0, written or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogForm:
    """The fields of a log format that a replay needs; ``logs.toml`` explains them."""

    name: str
    known_by: Sequence[Names]
    kinds: Kinds = Kinds()
    mixed: bool = False
    home: str = ""
    provider: Names = ()
    model: Names
    times: Times
    sizes: Sizes
    outcome: Outcome = Outcome()
    lane: Names = ()
    number: Names = ()


class Unfit(NamedTuple):
    """A form that cannot be replayed: its name, the fields by which it is recognised, and what can be replayed instead."""

    name: str
    known_by: Sequence[Names]
    instead: str


_TABLE: Final = table_beside(__file__, "logs")
_PARTS: Final = {"kinds": Kinds, "times": Times, "sizes": Sizes, "outcome": Outcome}


def _form(row: dict[str, Any]) -> LogForm:
    """A form, as a row of the table has it."""
    parts: dict[str, Any] = {name: part(**row[name]) for name, part in _PARTS.items() if name in row}
    return LogForm(**row | parts)


*FORMS, PLAIN = map(_form, _TABLE["forms"])
UNFIT: Final = [Unfit(**row) for row in _TABLE["unfit"]]
SYSTEMS: Final[Mapping[str, str]] = _TABLE["systems"]

LISTS: Final = ("data", "results", "observations", "runs", "logs")
"""Fields whose value is the list of the records, in answers of APIs."""

BUCKET: Final = ("start_time", "end_time", "starting_at", "ending_at")
"""Fields that the records of such a list have from the object around it."""

REFUSED: Final = (429, 503, 529)
"""The statuses with which providers refuse a request that they would serve later."""

_REFUSAL: Final = re.compile(
    r"\b(429|503|529)\b|rate.?limit|too.?many.?requests|resource.?exhausted|throttl|overloaded|service.?unavailable",
    re.IGNORECASE,
)
"""The words for such a refusal in errors of SDKs."""

_TRACEBACK: Final = "Traceback (most recent call last)"
_FRAMES: Final = re.compile(r"\n\s+at .*")
"""Where the calls begin in the text of an error of Python, and each of them in one of JavaScript. They have numbers of lines, and names of
functions that can be a refusal's words."""

_SCALES: Final = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3), (0.0, 1.0))
"""From which number on a time is one of nanoseconds, of microseconds, of milliseconds."""


@dataclass(frozen=True, slots=True)
class Logged:
    """One request of a log.

    Attributes:
        start_s: When it was sent, in seconds since the Unix epoch.
        request: The request.
        seconds: How long its answer took, if the log says so.
        refused: Whether the provider refused it.
        failed: Whether it has failed for another reason.
    """

    start_s: float
    request: Request
    seconds: float | None = None
    refused: bool = False
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Log:
    """What a log has.

    Attributes:
        form: What it was recognised as.
        requests: The requests, in the order of their starts; at most ``CALLS_MAX``.
        notes: The missing information, and the records that were left out.
    """

    form: str
    requests: list[Logged]
    notes: list[str]


def read_log(rows: Iterable[Mapping[str, Any]], name: str) -> Log:
    """Read a log.

    Args:
        rows: Its rows, lines or objects.
        name: The file, for messages.

    Raises:
        SettingsError: The form is not known, or a row is no request; the message names the row, and no value.
    """
    reading = _Reading()
    for number, row in enumerate(rows, 1):
        try:
            for record in _records(row):
                reading.take(record)
        except _RecordError as error:
            raise SettingsError(f"{name}: row {number}: {error}" if reading.form else f"{name}: {error}") from None
        if reading.is_full:
            break
        reading.goes_on = _goes_on(row)
    if reading.form is None:
        raise SettingsError(f"{name}: there are no requests in it")
    with explaining(name, of=_RecordError):
        return reading.log()


def work_of(log: Iterable[Logged]) -> Work:
    """The requests of a log as work: each arrives when it was sent.

    It leaves out refused and failed requests, because the program will have sent them again.

    Raises:
        SettingsError: None is left.
    """
    served = [one for one in log if not (one.refused or one.failed)]
    if not served:
        raise SettingsError("the provider has served none of the requests of the log")
    begin_s = served[0].start_s
    items = [Item([[one.request]], one.start_s - begin_s) for one in served]
    models = list(dict.fromkeys(one.request.model for one in served))
    seconds = sorted(one.seconds for one in served if one.seconds is not None)
    provider = {"latency_s": seconds[len(seconds) // 2]} if seconds else {}
    return Work(items, models, provider=provider)


class _RecordError(Exception):
    """A record that cannot be read."""


@dataclass(frozen=True, slots=True)
class _Sum:
    """A record that stands for several requests: the mean of their sizes has no rounding error in the sum."""

    start_s: float
    end_s: float | None
    model: str
    tokens: tuple[float, float]
    most: int
    number: int

    def spread(self, width_s: float) -> Iterator[Logged]:
        """The requests, evenly over the time of the record."""
        for one in range(self.number):
            sizes = [round(total * (one + 1) / self.number) - round(total * one / self.number) for total in self.tokens]
            request = Request(self.model, sizes[0], sizes[1], max(self.most, sizes[1]))
            yield Logged(self.start_s + width_s * (one + 0.5) / self.number, request)


class _Reading:
    """A log that is being read.

    Attributes:
        goes_on: Whether the last row is a page that others follow.
    """

    def __init__(self) -> None:
        self.form: LogForm | None = None
        self.goes_on = False
        self._found: list[Logged] = []
        self._sums: list[_Sum] = []
        self._counts: Counter[str] = Counter()

    @property
    def is_full(self) -> bool:
        return len(self._found) >= CALLS_MAX or len(self._sums) >= CALLS_MAX

    def take(self, record: Mapping[str, Any]) -> None:
        """Read one record; the first decides on the form."""
        if self.form is None:
            self.form = _form_of(record)
        form = self.form
        model = _model(record, form) if form.kinds.has(record) else None
        if model is None:
            self._counts["other"] += 1
            return
        refused, failed, told = form.outcome.of(record)
        asked, written, most = form.sizes.of(record)
        tokens, start_s = (asked or 0.0, written or 0.0), form.times.start_s(record)
        if (number := _number(record, form.number)) is not None:
            end_s, most = _time(record, form.times.end), most if number == 1 else 0.0
            self._sums.append(_Sum(start_s, end_s, model, tokens, round(most), round(number)))
            return
        seconds = form.times.seconds(record, start_s)
        if not (refused or failed):
            if asked is None and form is PLAIN:
                raise _RecordError("input_tokens is missing")
            self._counts.update(
                tokens=asked is None, output=asked is not None and written is None, seconds=seconds is None
            )
        self._counts["told"] += told
        lane = _first(record, form.lane)
        lane = lane if isinstance(lane, str) else None
        request = Request(model, round(tokens[0]), round(tokens[1]), round(most), lane=lane)
        self._found.append(Logged(start_s, request, seconds, refused=refused, failed=failed))

    def log(self) -> Log:
        """All that was read."""
        assert self.form is not None
        notes = []
        widths = self._widths() if self._sums else []
        for one, width_s in zip(self._sums, widths, strict=True):
            self._found.extend(islice(one.spread(width_s), CALLS_MAX - len(self._found)))
        if not self._found:
            others = f": {self._counts['other']:,} records are none, or have no {self.form.model[0]}"
            raise _RecordError(f"it has {self.form.name}, and there are no requests in it{others}")
        served = sum(not (one.refused or one.failed) for one in self._found)
        if self._sums:
            notes.append(self._said_of_sums(widths))
        elif not (self._counts["told"] or self.form.mixed):
            notes.append("the log does not say which requests were refused")
        if self.goes_on:
            notes.append("the last page in the file says that others follow: append them to the file")
        if other := self._counts["other"]:
            notes.append(
                f"left out: {other:,}, which are no requests to a model, requests of batches, or answers of a cache"
            )
        for what, words in (
            ("tokens", "say no tokens: they count as requests alone"),
            ("output", "say no output tokens: their output counts as 0"),
            ("seconds", "say no duration: " + (
                "the simulated provider answers at once" if self._counts["seconds"] == served else "the median of the others is taken"
            )),
        ):  # fmt: skip
            if (count := self._counts[what]) and not self._sums:
                notes.append(f"{count:,} of the {served:,} requests that were served {words}")
        del self._found[CALLS_MAX:]
        return Log(self.form.name, sorted(self._found, key=lambda one: one.start_s), notes)

    def _said_of_sums(self, widths: list[float]) -> str:
        """The note on rows that stand for several requests each, for so many seconds."""
        requests = sum(one.number for one in self._sums)
        return (
            f"{len(self._sums):,} rows stand for {requests:,} requests: the requests of a row are spread evenly over its "
            f"{_shortly(max(widths))}, each with the mean of the tokens; what was denser within that time is not seen, and "
            "the log names neither refusals nor durations: the simulated provider answers at once"
        )

    def _widths(self) -> list[float]:
        """The seconds for which each row of several requests stands: to its end, or to the next row where it has none."""
        starts = sorted({one.start_s for one in self._sums})
        step_s = min((after - before for before, after in pairwise(starts)), default=None)
        widths = []
        for one in self._sums:
            width_s = one.end_s - one.start_s if one.end_s is not None else step_s
            if width_s is None or width_s <= 0:
                raise _RecordError(
                    "its rows stand for many requests and have no end after their start: add the column end"
                )
            widths.append(width_s)
        return widths


def _form_of(record: Mapping[str, Any]) -> LogForm:
    forms: list[LogForm | Unfit] = [*FORMS, *UNFIT, PLAIN]
    for form in forms:
        if all(any(_has(record, name) for name in names) for names in form.known_by):
            if isinstance(form, Unfit):
                raise _RecordError(f"it has {form.name}, which cannot be replayed: {form.instead}")
            return form
    raise _RecordError(
        f"its first record has the fields {shown_names(record)}: unknown log format. Write JSON lines or CSV with start, "
        "model, input_tokens and output_tokens, or use an export that `paceline replay --help` names"
    )


def _model(record: Mapping[str, Any], form: LogForm) -> str | None:
    """The model with its provider; ``None``: the record is no request."""
    model = _first(record, form.model)
    if not isinstance(model, str):
        if form.mixed:
            return None
        raise _RecordError(f"{form.model[0]} is {_kind(model)}: it must be the name of a model")
    pool, _, model_of_pool = str(record.get("pool") or "").partition("/")
    provider = _first(record, form.provider) or (model_of_pool and pool) or form.home
    if not isinstance(provider, str) or not provider:
        return model
    provider = _provider(provider)
    if model.startswith(f"{provider}/") or ("/" in model and not head_of(provider).slashes):
        return model
    return f"{provider}/{model}"


def _provider(name: str) -> str:
    """The name of a provider here; one that is not known stays as it is."""
    parts = name.lower().split(".")
    for number in range(len(parts), 0, -1):
        known = ".".join(parts[:number])
        if is_provider(known := SYSTEMS.get(known, known)):
            return known
    return name


def _message(error: str) -> str:
    """What an error says, without the calls that led to it."""
    said, _, calls = error.partition(_TRACEBACK)
    return _FRAMES.sub("", said if said.strip() else calls.rstrip().rpartition("\n")[2])


def _records(value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The records in an object: itself, or the members of the list that it has."""
    if "resourceSpans" in value:
        try:
            yield from [
                _span(span, _attributes)
                for resource in value["resourceSpans"]
                for scope in resource.get("scopeSpans", ())
                for span in scope.get("spans", ())
            ]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _RecordError(f"it is no OTLP export of spans: {type(error).__name__}") from None
        return
    if "resourceMetrics" in value or "resourceLogs" in value:
        return
    if isinstance(value.get("attributes"), Mapping) and isinstance(value.get("context"), Mapping):
        yield _span(value, dict)
        return
    inner = next((value[name] for name in LISTS if _is_list(value.get(name))), None)
    if inner is None:
        yield value
        inner, outer = value.get("child_runs"), {}
    else:
        outer = {name: value[name] for name in BUCKET if name in value}
    for one in inner if _is_list(inner) else ():
        yield from _records({**outer, **one})


def _goes_on(row: Mapping[str, Any]) -> bool:
    """Whether a row is a page of an API that others follow."""
    for page, pages in _TABLE["pages"].items():
        number, last = _as_float(_at(row, page)), _as_float(_at(row, pages))
        if number is not None and last is not None and number < last:
            return True
    return any(_at(row, name) for name in _TABLE["more"])


def _is_list(value: Any) -> TypeGuard[list[Mapping[str, Any]]]:
    return isinstance(value, list) and all(isinstance(one, Mapping) for one in value)


def _span(span: Mapping[str, Any], plain: Any) -> dict[str, Any]:
    """A span with its attributes, and the attributes of its exceptions, as fields."""
    values: dict[str, Any] = {}
    for event in span.get("events") or ():
        values |= plain(event.get("attributes") or ())
    return {**values, **plain(span.get("attributes") or ()), **{k: v for k, v in span.items() if k not in _SPANNED}}


_SPANNED: Final = ("attributes", "events", "links", "resource")


def _attributes(attributes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The attributes of OTLP JSON as plain values."""
    return {one["key"]: next(iter(one.get("value", {}).values()), None) for one in attributes}


_parsed: Final = lru_cache(maxsize=64)(decode)
"""The object in a text, as a cell of a CSV has it; ``None`` where there is none."""


def _has(record: Mapping[str, Any], path: str) -> bool:
    return path in record or ("." in path and _at(record, path) is not None)


def _at(record: Mapping[str, Any], path: str) -> Any:
    """The value of a field; ``None`` where there is none, or an empty text."""
    value = record.get(path)
    at = path.find(".") if value is None else -1
    while at >= 0:
        inner, rest = record.get(path[:at]), path[at + 1 :]
        if isinstance(inner, str) and inner[:1] == "{":
            inner = _parsed(inner)
        if isinstance(inner, Mapping):
            return _sum(inner, rest[1:]) if rest.startswith("*") else _at(inner, rest)
        at = path.find(".", at + 1)
    return None if value == "" or value != value else value  # noqa: PLR0124  (pandas has NaN for what is missing)


def _sum(values: Mapping[str, Any], part: str) -> float | None:
    """The sum of the numbers whose names have this part."""
    numbers = [value for name, value in values.items() if part in name and isinstance(value, int | float)]
    return sum(numbers) if numbers else None


def _as_float(value: Any) -> float | None:
    """The number that a value is, or that it has as its text."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _first(record: Mapping[str, Any], names: Names) -> Any:
    return next((value for name in names if (value := _at(record, name)) is not None), None)


def _number(record: Mapping[str, Any], names: Iterable[str], *, strict: bool = True) -> float | None:
    """The number in a field; a setting of the program may have another value, and is not ``strict``."""
    for name in names:
        value = _at(record, name)
        if value is None:
            continue
        number = _as_float(value)
        if number is not None and 0 <= number < 1e12:
            return number
        if strict:
            raise _RecordError(f"{name} is {_kind(value)}: it must be a number of 0 or more")
    return None


def _time(record: Mapping[str, Any], names: Names) -> float | None:
    """Seconds since the epoch, of a number or of a time in ISO 8601; without a zone it is UTC."""
    name = next((name for name in names if _at(record, name) is not None), None)
    if name is None:
        return None
    value = _at(record, name)
    if (number := _as_float(value)) is None:
        try:
            moment = datetime.fromisoformat(str(value).removesuffix(" UTC"))
        except ValueError:
            raise _RecordError(
                f"{name} is {_kind(value)}: it must be a time like 2026-11-24T12:00:00Z, or seconds since 1970"
            ) from None
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    if not 0 <= number < 1e19:
        raise _RecordError(f"{name} is {_kind(value)}: it must be a number of seconds since 1970")
    return number / next(scale for least, scale in _SCALES if number >= least)


def _kind(value: Any) -> str:
    """What a value is, in words that do not show it."""
    if value is None:
        return "missing"
    if isinstance(value, bool | Mapping | list):
        return f"a {type(value).__name__}"
    number = _as_float(value)
    return f"a text of {len(str(value))} characters" if number is None else f"{number:.6g}"


def _shortly(seconds: float) -> str:
    """The length of a row's time in words."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"
