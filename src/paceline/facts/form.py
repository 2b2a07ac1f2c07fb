"""The form of facts, and its check; ``tables/providers.toml`` explains the fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final, NamedTuple

from paceline.core.hints import did_you_mean
from paceline.core.quota import parse_quotas
from paceline.core.results import SettingsError, explaining

ROWS: Final = ("limits", "models")
LIMITS: Final = ROWS[0]
CONFIDENCES: Final = ("documented", "third_party", "assumed")


class _Field(NamedTuple):
    """What a field holds, in words, and whether a value is right."""

    what: str
    accepts: Callable[[Any], bool]


def _text(what: str, pattern: str = r".*\S.*") -> _Field:
    form = re.compile(pattern, re.DOTALL)
    return _Field(what, lambda value: isinstance(value, str) and form.fullmatch(value) is not None)


def _list(what: str, one: _Field) -> _Field:
    return _Field(what, lambda value: isinstance(value, list) and value != [] and all(map(one.accepts, value)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_expression(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(re.compile(value))
    except re.error:
        return False


_NAME: Final = r"[a-z0-9][a-z0-9_.-]*"
_TIER: Final = _text('a tier, e.g. "tier_1"', r"[a-z0-9][a-z0-9_]*")
_VARIABLE: Final = _text('the name of a variable, e.g. "ACME_API_KEY"', r"[A-Z0-9_]+")
_PATH: Final = _text('a path, e.g. "/openai/v1"', r"(/[\w.-]+)*")
_DAY: Final = _text("a day, e.g. 2026-11-28", r"\d{4}-\d\d-\d\d")
_HEAD: Final = {
    "key_env": _VARIABLE,
    "base_url_env": _VARIABLE,
    "aliases": _list('a list of names, e.g. ["acme_ai"]', _text("", _NAME)),
    "hosts": _list(
        'a list of host names, e.g. ["api.acme.example"]', _text("", r"[a-z0-9*][a-z0-9.*-]*\.[a-z0-9.-]*[a-z0-9]")
    ),
    "own": _text("an address", r"https?://\S+"),
    "path": _Field(_PATH.what + ", or false", lambda value: value is False or _PATH.accepts(value)),
    "chat": _PATH,
    "api": _text('the name of a provider, e.g. "anthropic"', _NAME),
    "encoding": _text("the name of an encoding"),
    "makes": _Field("a regular expression", _is_expression),
    "slashes": _Field("true or false", lambda value: isinstance(value, bool)),
    "day_zone": _text('a time zone, e.g. "utc", or ""', r"[\w/+-]*"),
    "cache_s": _Field("seconds", lambda value: _is_number(value) and value > 0),
    "prices": _text("the name of a provider in genai-prices"),
    "default_tier": _TIER,
    "ladders": _list('ladders of rungs, e.g. [[["tier_1"], ["tier_2", "build"]]]', _list("", _list("", _TIER))),
    "note": _text("what the page of providers says of its limits"),
    "source": _text("where it was read"),
    "day": _DAY,
}
_ROW: Final = {
    "match": _list('models, e.g. ["gpt-6-luna", "gpt-6-luna-*"]', _text("")),
    "source": _text("where it was read, e.g. a URL"),
    "day": _DAY,
    "about": _text('a month or a year, e.g. "2026-05"', r"\d{4}(-\d\d)?"),
    "confidence": _Field(" or ".join(map(repr, CONFIDENCES)), lambda value: value in CONFIDENCES),
}
_LIMITS: Final = _ROW | {"complete": _HEAD["slashes"]}
PRICE: Final = ("input", "output", "cached", "cache_write", "hour_write", "request", "audio", "audio_output")
"""What a price may state: all in USD for a million tokens, but ``request`` in USD for one request."""

MTOK: Final = 1_000_000
"""Prices are stated for a million tokens."""


def is_price(value: Any) -> bool:
    """Whether a table has the form of a price."""
    if not isinstance(value, Mapping) or not {"input", "output"} <= value.keys() <= set(PRICE):
        return False
    return all(_is_number(one) and 0 <= one < MTOK for one in value.values())


_ABOUT_MODEL: Final = {
    "from": _DAY,
    "until": _DAY,
    "output_max": _Field("tokens, e.g. 128_000", lambda value: type(value) is int and 0 < value <= 1e9),
    "price": _Field(
        f"USD for a million tokens, e.g. {{ input = 2.5, output = 10.0 }}; known: {', '.join(PRICE)}", is_price
    ),
}
_MODELS: Final = _ROW | _ABOUT_MODEL


def tiers_of(row: Mapping[str, Any]) -> list[str]:
    """The tiers for which a row states limits."""
    return [name for name in row if name not in _LIMITS and name not in ("as_of", "where")]


def checked(data: Any, where: str, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The facts of a file, with days as text and ``as_of`` in each row.

    Args:
        data: What is in the file: ``day`` and ``providers``.
        where: The file, for messages.
        known: The heads that come with paceline, whose tiers rows may name.

    Raises:
        SettingsError: With the first field that has another form.
    """
    joint = ": " if where else ""
    tables = _Field("tables like [providers.openai]", lambda value: isinstance(value, Mapping))
    facts = _fields(data, where, {"day": _DAY, "providers": tables}, joint)
    found = {}
    for name, head in facts.get("providers", {}).items():
        place = f"{where}{joint}providers.{name}"
        if re.fullmatch(_NAME, name) is None:
            raise SettingsError(f"{place}: a name has lower-case letters, digits, '-', '_' and '.'")
        found[name] = _head(head, place, known.get(name, {}), [*known, *facts["providers"]])
    return {"day": facts.get("day", ""), "providers": found}


def _head(written: Any, place: str, known: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    rows = _Field("tables like [[providers.openai.limits]]", lambda value: isinstance(value, list))
    head: dict[str, Any] = _fields(written, place, _HEAD | dict.fromkeys(ROWS, rows))
    if head.get("api") and head["api"] not in names:
        raise SettingsError(f"{place}.api: there is no provider {head['api']!r}{did_you_mean(head['api'], names)}")
    ladders = head.get("ladders", known.get("ladders"))
    tiers = [tier for ladder in ladders for rung in ladder for tier in rung] if ladders else []
    if "default_tier" in head and head["default_tier"] not in tiers:
        raise SettingsError(
            f"{place}.default_tier: {head['default_tier']!r} is not in ladders: {', '.join(tiers) or 'there are none'}"
        )
    for kind in ROWS:
        if kind in head:
            head[kind] = [
                _row(row, f"{place}.{kind}[{number}]", kind, tiers) for number, row in enumerate(head[kind], 1)
            ]
    return head


def _row(written: Any, place: str, kind: str, tiers: list[str]) -> dict[str, Any]:
    """A row; where the provider has no ladders, each further field is a tier."""
    fields = _MODELS
    if kind == "limits":
        fields = dict.fromkeys(tiers or (written if isinstance(written, Mapping) else ()), _text("limits")) | _LIMITS
    row = _fields(written, place, fields)
    for name in ("match", "source"):
        if name not in row:
            raise SettingsError(f"{place}: it has no {name}: {_ROW[name].what}")
    if ("day" in row) == ("about" in row):
        raise SettingsError(
            f'{place}: give the day on which it was read (day = 2026-11-28), or about = "2026" if it is not known'
        )
    stated = _stated(row, kind)
    if not stated:
        raise SettingsError(
            f"{place}: it states {'no limit: name a tier' if kind == 'limits' else 'none of ' + ', '.join(_ABOUT_MODEL)}"
        )
    for tier in stated if kind == "limits" else ():
        with explaining(f"{place}.{tier}", of=SettingsError):
            parse_quotas(row[tier])
    return {"confidence": "assumed", **row, "as_of": row.get("day", row.get("about"))}


def _stated(row: Mapping[str, Any], kind: str) -> list[str]:
    """The tiers, or what a row states of models."""
    return tiers_of(row) if kind == LIMITS else [name for name in _ABOUT_MODEL if name in row]


def _fields(table: Any, place: str, known: Mapping[str, _Field], joint: str = ".") -> dict[str, Any]:
    """The fields of a table, with days as text; ``joint``: what stands between ``place`` and a field in messages."""
    if not isinstance(table, Mapping):
        raise SettingsError(f"{place}: it must be a table, not {table!r:.60}")
    found = {}
    for name, written in table.items():
        if name not in known:
            raise SettingsError(
                f"{place}{joint}{name}: there is no such field{did_you_mean(str(name), known) or '; known: ' + ', '.join(known)}"
            )
        value: Any = (
            str(written) if isinstance(written, date) or (name == "about" and type(written) is int) else written
        )
        value = [value] if name == "match" and isinstance(value, str) else value
        if not known[name].accepts(value):
            said = f"{written}: a time" if isinstance(written, datetime) else f"{written!r:.60}"
            raise SettingsError(f"{place}{joint}{name}: {said}: it must be {known[name].what}")
        if known[name] is _DAY:
            _check_day(value, f"{place}{joint}{name}")
        found[name] = value
    return found


def _check_day(value: str, place: str) -> None:
    with explaining(f"{place}: {value!r}", of=ValueError):
        date.fromisoformat(value)


def check_sense(found: Mapping[str, Any], where: str, known: Mapping[str, Mapping[str, Any]], today: date) -> None:
    """Look for contradictions in facts of the right form.

    Args:
        found: What :func:`checked` has made of a file.
        where: The file, for messages.
        known: The heads that come with paceline.
        today: The day by this machine's calendar; zones differ by one.

    Raises:
        SettingsError: A day has not come yet, a row is there twice, or a name or a host belongs to another provider.
    """
    latest = str(today + timedelta(days=1))
    joint = ": " if where else ""
    days = [(f"{where}{joint}day", found["day"])]
    for name, head in found["providers"].items():
        place = f"{where}{joint}providers.{name}"
        days.append((f"{place}.day", head.get("day", "")))
        for kind in ROWS:
            days += [(f"{place}.{kind}[{n}].day", row.get("day", "")) for n, row in enumerate(head.get(kind, ()), 1)]
            _check_once(head.get(kind, ()), f"{place}.{kind}", kind)
        _check_names(name, head, place, {**known, **found["providers"]})
    for place, day in days:
        if day > latest:
            raise SettingsError(f"{place}: {day} has not come yet")


def _check_once(rows: Iterable[Mapping[str, Any]], place: str, kind: str) -> None:
    seen: dict[tuple[str, str], int] = {}
    for number, row in enumerate(rows, 1):
        for pattern in row["match"]:
            for tier in _stated(row, kind):
                if before := seen.get((pattern, tier)):
                    raise SettingsError(
                        f"{place}[{number}].match: {pattern!r} for {tier} is in {kind}[{before}], too: keep one"
                    )
                seen[pattern, tier] = number


def _check_names(name: str, head: Mapping[str, Any], place: str, others: Mapping[str, Mapping[str, Any]]) -> None:
    """Names and hosts are of one provider."""
    for other, its in others.items():
        if other == name:
            continue
        if name in its.get("aliases", ()):
            raise SettingsError(f"{place}: {name!r} is another name of {other}: write [providers.{other}]")
        for alias in head.get("aliases", ()):
            if alias in (other, *its.get("aliases", ())):
                raise SettingsError(f"{place}.aliases: {alias!r} is a name of {other}")
        for host in head.get("hosts", ()):
            if any(map(partial(_overlap, host), its.get("hosts", ()))):
                raise SettingsError(f"{place}.hosts: {host!r} is a host of {other}")


def _overlap(host: str, other: str) -> bool:
    """Whether two patterns of hosts, with ``*`` for one part, match the same host."""
    parts, others = host.split("."), other.split(".")
    return len(parts) == len(others) and all(
        fnmatchcase(a, b) or fnmatchcase(b, a) for a, b in zip(parts, others, strict=True)
    )
