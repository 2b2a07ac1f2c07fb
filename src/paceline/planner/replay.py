"""Recorded traffic as work for a plan: what would have waited, been refused or cost under other limits.

The formats of a log, each a file of lines: the traffic log of a limiter, gateway or run (``traffic_log = "traffic.jsonl"``), an export of
OpenTelemetry spans in OTLP JSON, and CSV with a header.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, Final, TextIO

from paceline.core.results import QuotaError
from paceline.planner.simulation import Request
from paceline.planner.workload import CALLS_MAX, Item, Work

LINE_MAX: Final = 64 * 2**20
"""Characters of a line: an export of spans can be one long line."""

TIMES: Final = ("start", "started_at", "start_time", "timestamp", "time")
MODELS: Final = ("model", "pool", "gen_ai.request.model", "gen_ai.response.model")
INPUTS: Final = ("input_tokens", "prompt_tokens", "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
OUTPUTS: Final = ("output_tokens", "completion_tokens", "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
MOST: Final = ("max_output_tokens", "max_tokens", "gen_ai.request.max_tokens")
TOTALS: Final = ("tokens", "total_tokens")
SECONDS: Final = ("seconds", "duration_s", "latency_s")
"""The names of the columns, each with those that other programs use."""


OWN: Final = '{"start": '
"""How a line of the traffic log begins."""

REFUSED: Final = (429, 503, 529)
"""The statuses with which providers refuse a request that they would serve later."""

SYSTEMS: Final = {
    "gcp.gemini": "gemini", "gcp.gen_ai": "gemini", "gcp.vertex_ai": "vertex", "azure.ai.openai": "azure", "az.ai.openai": "azure",
    "azure.ai.inference": "azure", "aws.bedrock": "bedrock", "mistral_ai": "mistral", "x_ai": "xai",
}  # fmt: skip
"""The names of providers in the conventions of OpenTelemetry that are others here."""


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


def read_log(path: str | PathLike[str]) -> list[Logged]:
    """Read a log, in the order of the starts; at most ``CALLS_MAX`` requests of it.

    Raises:
        QuotaError: The file cannot be read, or a line is not a request; the message names the line.
    """
    file = Path(path)
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            first = lines.readline(LINE_MAX)
            lines.seek(0)
            read = _json_lines(lines) if first.lstrip().startswith("{") else _csv(lines)
            found = []
            for line, values in islice(read, CALLS_MAX):
                try:
                    found.append(_logged(values))
                except ValueError as error:
                    raise QuotaError(f"{file}:{line}: {error}") from None
    except UnicodeDecodeError:
        raise QuotaError(f"{file}: it is not UTF-8") from None
    except OSError as error:
        raise QuotaError(f"{file}: cannot be read: {error.strerror}") from None
    except csv.Error as error:
        raise QuotaError(f"{file}: {error}") from None
    except _LineError as error:
        raise QuotaError(f"{file}:{error}") from None
    if not found:
        raise QuotaError(f"{file}: there are no requests in it")
    return sorted(found, key=lambda one: one.start_s)


def work_of(log: Iterable[Logged], *, speed: float = 1.0) -> Work:
    """The requests of a log as work: each arrives when it was sent, ``speed`` times as fast as then.

    Requests that the provider refused, or that failed, are not in it: the program will have sent them again.

    Raises:
        QuotaError: None is left.
    """
    served = [one for one in log if not (one.refused or one.failed)]
    if not served:
        raise QuotaError("the provider has served none of the requests of the log")
    begin_s = served[0].start_s
    items = [Item([[one.request]], (one.start_s - begin_s) / speed) for one in served]
    models = list(dict.fromkeys(one.request.model for one in served))
    seconds = sorted(one.seconds for one in served if one.seconds is not None)
    provider = {"latency_s": seconds[len(seconds) // 2]} if seconds else {}
    return Work(items, models, provider=provider)


class _LineError(ValueError):
    """A line that cannot be parsed; the message begins with its number."""


def _json_lines(lines: TextIO) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(iter(lambda: lines.readline(LINE_MAX), ""), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            if line.startswith(OWN):  # a full disk has cut it, or a kill
                continue
            value = _whole(line + lines.read(LINE_MAX)) if number == 1 else None
            if value is None:
                raise _LineError(f"{number}: it is not JSON, or longer than {LINE_MAX:,} characters") from None
        if not isinstance(value, dict):
            raise _LineError(f"{number}: it is not a JSON object")
        if "resourceSpans" in value:
            try:
                spans = list(_spans(value))
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                raise _LineError(f"{number}: it is no OTLP export of spans: {error!r}") from None
            yield from ((number, span) for span in spans)
        else:
            yield number, value


def _whole(text: str) -> Any:
    """The value of a file that is one JSON text over several lines; ``None`` where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _spans(export: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The spans of an export in OTLP JSON that name a model, with their attributes as plain values."""
    for resource in export["resourceSpans"]:
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                values = {one["key"]: _plain(one.get("value", {})) for one in span.get("attributes", ())}
                if any(name in values for name in MODELS) and any(
                    name in values for name in INPUTS
                ):  # others have failed
                    start_ns, end_ns = int(span["startTimeUnixNano"]), int(span.get("endTimeUnixNano", 0))
                    values["start"] = start_ns / 1e9
                    if end_ns > start_ns:
                        values["seconds"] = (end_ns - start_ns) / 1e9
                    yield values


def _plain(value: Mapping[str, Any]) -> Any:
    return next(iter(value.values()), None)


def _csv(lines: TextIO) -> Iterator[tuple[int, Mapping[str, Any]]]:
    rows = csv.DictReader(lines)
    names = set(rows.fieldnames or ())
    for need in (TIMES, MODELS):
        if names.isdisjoint(need):
            raise _LineError(f"1: the header has no column {need[0]!r}; it has {', '.join(sorted(names)) or 'none'}")
    if names.isdisjoint((*INPUTS, *TOTALS)):
        raise _LineError("1: the header has no column 'input_tokens' and none 'tokens'")
    for row in rows:
        yield rows.line_num, {name: value for name, value in row.items() if value not in (None, "")}


def _logged(values: Mapping[str, Any]) -> Logged:
    """The request of a line.

    Raises:
        ValueError: A field is missing or invalid.
    """
    model = _first(values, MODELS)
    if not isinstance(model, str) or not model:
        raise ValueError(f"model is {model!r}: it must be the name of a model")
    pool, _, model_of_pool = str(values.get("pool") or "").partition("/")
    provider = values.get("gen_ai.provider.name", values.get("gen_ai.system")) or (model_of_pool and pool)
    provider = SYSTEMS.get(provider, provider)
    if isinstance(provider, str) and provider and "/" not in model:
        model = f"{provider}/{model}"
    output = _number(values, OUTPUTS) or 0.0
    asked = _number(values, INPUTS)
    if asked is None:
        total = _number(values, TOTALS)
        if total is None:
            raise ValueError("input_tokens is missing")
        asked = max(total - output, 0.0)
    most = round(max(_number(values, MOST) or 0.0, output))
    lane = values.get("lane")
    request = Request(model, round(asked), round(output), most, lane=lane if isinstance(lane, str) and lane else None)
    status = _number(values, ("status",))
    refused = status in REFUSED
    failed = status is not None and not refused and not 200 <= status < 300
    return Logged(_time(_first(values, TIMES)), request, _number(values, SECONDS), refused=refused, failed=failed)


def _first(values: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)


def _number(values: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    value = _first(values, names)
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < 1e12:
        raise ValueError(f"{names[0]} is {str(value)[:40]!r}: it must be a number of 0 or more")
    return number


def _time(value: Any) -> float:
    """Seconds since the epoch, of a number or of a time in ISO 8601; without a zone it is UTC."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        try:
            moment = datetime.fromisoformat(str(value))
        except ValueError:
            raise ValueError(
                f"{TIMES[0]} is {str(value)[:40]!r}: it must be a time like 2026-11-24T12:00:00Z, or seconds since 1970"
            ) from None
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    if not 0 <= number < 1e11:
        raise ValueError(f"{TIMES[0]} is {str(value)[:40]!r}: it must be a number of seconds since 1970")
    return number
