"""What the message of a refusal says about a quota: its unit, period and amounts, and the wait; by the words in ``messages.toml``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from paceline.core.quota import CONCURRENCY, REQUESTS, TOKENS
from paceline.core.results import Reading
from paceline.providers import parse
from paceline.providers.forms import table

TEXT_MAX: Final = 2_048
"""The characters of a message that are read."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a message says; what it does not say is ``None``.

    Attributes:
        unit: The unit that the quota counts.
        period_s: Its period in seconds.
        limit: Its amount; 0 where it is said to be 0.
        used: The amount that is used.
        requested: What the request would have cost.
        wait_s: The wait that it asks for, in seconds.
        reset_s: The time until the quota restarts, in seconds.
        ends_at_s: The instant at which it restarts, in seconds since the epoch.
        limits: The quotas that it names with their amounts, where it names several and not which of them is used up.
    """

    unit: str | None = None
    period_s: float | None = None
    limit: float | None = None
    used: float | None = None
    requested: float | None = None
    wait_s: float | None = None
    reset_s: float | None = None
    ends_at_s: float | None = None
    limits: tuple[Reading, ...] = ()


_MESSAGES: Final = table("messages")


def _expression(pattern: str) -> re.Pattern[str]:
    for name, part in _MESSAGES["parts"].items():
        pattern = pattern.replace(f"@{name}@", part)
    return re.compile(pattern)


_QUOTAS: Final = [*map(_expression, _MESSAGES["quotas"])]
_SAYS: Final = {what: _expression(pattern) for what, pattern in _MESSAGES["expressions"].items()}
_UNITS: Final = [(re.compile(pattern), unit) for pattern, unit in _MESSAGES["units"]]
_THOUSANDS: Final = {"k": 1e3, "m": 1e6}


def said_in(text: str) -> Said:
    """Read a message."""
    text = text[:TEXT_MAX]
    named = _named(text)
    unit, period_s = _quota(named, text)
    limits = (_found("limit", text), _amount(named.get("limit")), _found("short_limit", text))
    limit, used = next((limit for limit in limits if limit is not None), None), _found("used", text)
    wait_s, reset_s = _found("wait", text, parse.duration_s), _found("reset", text, parse.duration_s)
    said = _exceeded(text, Said(unit, period_s, limit, used, _found("requested", text), wait_s, reset_s, _end(text)))
    several = _several(text) if said.used is None else ()
    if not several:
        return said
    one = next((reading for reading in several if reading.unit == said.unit), Reading("", period_s=said.period_s))
    return replace(said, period_s=one.period_s, limit=one.limit, limits=several)


def _exceeded(text: str, said: Said) -> Said:
    """What is said of the quota that is used up, if a message has the use of several."""
    since = 0
    for pair in _SAYS["pair"].finditer(text):
        used, limit = _amount(pair[1]) or 0.0, _amount(pair[2]) or 0.0
        if since == 0 or used >= limit:
            unit, period_s = _quota(_named(text[since : pair.start()]), text)
            said = replace(said, unit=unit or said.unit, period_s=period_s or said.period_s, limit=limit, used=used)
        since = pair.end()
        if used >= limit:
            break
    for short, so_far, most in _SAYS["each"].findall(text):
        if int(so_far) >= int(most):
            unit, period_s = _in_short(short)
            return replace(said, unit=unit, period_s=period_s, limit=float(most), used=float(so_far))
    return said


def _several(text: str) -> tuple[Reading, ...]:
    """The quotas of "3 RPM and 10K TPM", "60 requests per minute, 1,000 requests per day"; empty for one or none."""
    found: dict[tuple[str, float], float] = {}
    for match in _SAYS["stated"].finditer(text):
        if match["short"]:
            unit, period_s = _in_short(match["short"])
        else:
            unit, period_s = unit_of(match["unit"]) or "", period_of(match["count"], match["period"]) or 0.0
        amount = _amount(match["limit"])
        if amount and period_s:
            found.setdefault((unit, period_s), amount)
    return tuple(Reading(unit, limit, period_s=period_s) for (unit, period_s), limit in found.items() if len(found) > 1)


def _named(text: str) -> dict[str, str]:
    named: dict[str, str] = {}
    # "600 RPM and 180000 TPM" names none.
    several = len({short[0].lower() for short in _SAYS["short"].findall(text)}) > 1
    for pattern in _QUOTAS:
        match = pattern.search(text)
        for name, words in match.groupdict().items() if match else ():
            if words and not (name == "count" and "period" in named) and not (name == "short" and several):
                named.setdefault(name, words)
        if "period" in named and "unit" in named:
            break
    return named


def _quota(named: dict[str, str], text: str) -> tuple[str | None, float | None]:
    short = named.get("short") or named.get("qps")
    unit, period_s = _in_short(short) if short else (None, None)
    unit = _unit(named, text, unit)
    if "seconds" in named:
        period_s = parse.amount(named["seconds"])
    elif "period" in named:
        period_s = period_of(named.get("count"), named["period"])
    return unit, parse.seconds_in(named["every"]) if period_s is None and "every" in named else period_s


def _unit(named: dict[str, str], text: str, short: str | None) -> str | None:
    """The unit in whole words, else the one in ``short``, else the one that the text is about."""
    if words := named.get("unit") or named.get("many"):
        return unit_of(words)
    if short is None and "limit" in named:
        name = _SAYS["exceeded"].search(text)
        return (quota_named(name[1])[0] if name else None) or REQUESTS
    if short is None and _SAYS["concurrent"].search(text):
        return CONCURRENCY
    if short is None and not text.isascii():
        return next((each for each in (TOKENS, REQUESTS) if _SAYS[f"chinese_{each}"].search(text)), None)
    return short


def _in_short(letters: str) -> tuple[str, float]:
    """Unit and period of ``TPM``, ``rpd``, ``QPS``."""
    letters = letters.lower()
    return _MESSAGES["short_units"][letters[:-2]], parse.seconds_in(letters[-1]) or 0.0


def _amount(digits: str | None) -> float | None:
    if not digits:
        return None
    digits = digits.replace(",", "")  # in a header a comma separates values
    times = _THOUSANDS.get(digits[-1:].lower(), 1.0)
    amount = parse.number(digits.rstrip("kKmM"))
    return None if amount is None else amount * times


def _found(what: str, text: str, read: Callable[[str], float | None] = _amount) -> float | None:
    match = _SAYS[what].search(text)
    return read(match[match.lastindex or 0]) if match else None


def _end(text: str) -> float | None:
    match = _SAYS["ends"].search(text)
    return parse.rfc3339_s(match[1].replace(" ", "T") + (match[2] or "Z")) if match else None


def period_of(count: str | None, word: str) -> float | None:
    """The seconds of a period, e.g. ``("86400", "s")`` or ``(None, "minutes")``; ``None`` for an unknown word."""
    seconds = parse.seconds_in(word)
    return None if seconds is None else parse.wait(float(count or 1) * seconds) or None


def unit_of(words: str) -> str | None:
    """The unit that some words name: ``input tokens``, ``API calls``, ``fast mode output tokens``; a name of their own else."""
    words = words.lower().strip()
    known = next((unit for pattern, unit in _UNITS if pattern.search(words)), None)
    return known or re.sub("[ -]+", "_", words)


_LONGEST_FIRST: Final = ("day", "hour", "minute", "second")


def quota_named(name: str, metric: str = "") -> tuple[str | None, float | None]:
    """Unit and period in the name of a quota: ``InputTokensPerModelPerMinute``, ``UserByModelByDay``.

    Args:
        name: The name.
        metric: The metric that it is about, which helps where the name has no unit.
    """
    name, metric = (words.lower().replace("_", "") for words in (name, metric))
    unit = next((unit for word, unit in _MESSAGES["named_units"].items() if word in f"{name} {metric}"), None)
    period = next((word for word in _LONGEST_FIRST if f"per{word}" in name or f"by{word}" in name), None)
    return unit, parse.seconds_in(period) if period else None
