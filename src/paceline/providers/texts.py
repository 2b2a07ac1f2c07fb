"""What the message of a refusal says about a quota: its unit, period and amounts, and the wait; in any provider's words.

The readers take time linear in the text. Its first ``TEXT_MAX`` characters are read. English, and the Chinese
forms that were seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from paceline.core.quota import CONCURRENCY, INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, TOKENS
from paceline.core.results import Reading
from paceline.providers import parse

TEXT_MAX: Final = 2_048

AUDIO_SECONDS: Final = "audio_seconds"


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
        limits: The quotas that it names with their amounts, where it names several and not which of them is used up.
    """

    unit: str | None = None
    period_s: float | None = None
    limit: float | None = None
    used: float | None = None
    requested: float | None = None
    wait_s: float | None = None
    reset_s: float | None = None
    limits: tuple[Reading, ...] = ()


_AMOUNT = r"\d[\d,]{0,19}(?:\.\d{1,6})?"
_PERIOD = (  # a bare m is no period here
    r"(?P<count>\d{1,7})?\s?(?P<period>seconds?|secs?|s|minutes?|mins?|hours?|hrs?|h|days?|weeks?|months?)\b"
)
_THINGS = r"(?:tokens?|requests?|calls?|queries|images?|messages|seconds of audio|neurons)"
_WORDS = r"(?:[a-z]{2,12}[ -]){0,3}?"
_SHORT = re.compile(r"\b([TR])P[SMD]\b")
_QUOTAS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # any dimension of OpenAI's form: "on input-images per min", "on seconds of audio per hour"
        rf"\bon (?P<unit>[a-z][a-z -]{{0,30}}?) per {_PERIOD}",
        # "50,000 input tokens per minute", "0 fast mode input tokens per minute", "10 API calls / minute"
        # (a number before them may be a model's: "Gemini 2.5 Pro requests per day")
        rf"(?:\b(?:of|is|to|limit|exceed(?:ed|s)?)[: ]{{1,2}}(?P<limit>{_AMOUNT}) )?(?P<unit>{_WORDS}{_THINGS}) ?(?:/|per) ?{_PERIOD}",
        rf"\b(?P<every>hour|dai|week|month)ly (?:free )?(?:allocation|quota|limit) of (?P<limit>{_AMOUNT}) (?P<unit>{_THINGS})",
        rf"\b(?P<every>hour|dai|week|month)ly (?P<unit>{_THINGS}) (?:limit|quota)",
        # "Rate limit of 50 per 86400s", "Limit: 3 / min": requests
        rf"\b(?:limit(?:ed)?(?: of|:| is| to)?|max(?:imum)?:?) {{0,2}}(?P<limit>{_AMOUNT}) ?(?:/|per) ?{_PERIOD}",
        rf"^(?P<limit>{_AMOUNT}) per {_PERIOD}$",
        r"\bduration_s: (?P<seconds>\d{1,7})\b",
        # "TPM", "(ITPM)", "max RPM: 20", "TPD rate limit", "qps request limit"
        r"\b(?P<short>(?-i:IT|OT|I|T|R|Q)(?-i:P[SMHD])|[rtq]p[smd])\b|(?P<qps>qps)OverFlow",
        # a period alone: "your daily rate limit", "5-hour usage limit", "per-minute limit"; a unit alone after them
        rf"\b(?P<every>hour|dai|week|month)ly {_WORDS}(?:limit|quota|allowance)",
        rf"\b(?:per|(?P<count>\d{{1,4}}))[- ](?P<period>second|minute|hour|day) {_WORDS}(?:limit|quota|window)",
        r"\b(?P<unit>tokens?|requests?|calls?) (?:rate )?(?:limit(?:ing)?|quota)\b",
        r"\blimit (?:reached for |exceeded for |type: )(?P<unit>tokens|requests)\b|\btoo many (?P<many>tokens)\b",
        rf"\bnumber of {_WORDS}(?P<unit>tokens|requests)\b",
    )
)
"""What names a quota, the surest first: a unit and a period are taken from the first that has one."""
_SHORT_UNITS: Final = {
    "it": INPUT_TOKENS,
    "ot": OUTPUT_TOKENS,
    "i": "images",
    "t": TOKENS,
    "r": REQUESTS,
    "q": REQUESTS,
}
_EXCEEDED = re.compile(r"\bexceeded for (\w{3,80})")  # "... per 60s exceeded for UserByModelByMinuteOutputTokens"
_STATED = re.compile(
    rf"(?<![\w.,-])(?P<limit>{_AMOUNT})(?P<thousands>[km])? ?"
    rf"(?:(?P<short>(?:IT|OT|T|R|Q)P[SMHD])\b|(?P<unit>{_WORDS}{_THINGS}) ?(?:/|per) ?{_PERIOD})",
    re.IGNORECASE,
)
_THOUSANDS: Final = {"": 1.0, "k": 1e3, "m": 1e6}
_CONCURRENT = re.compile(r"\bconcurren|\bin parallel\b|并发", re.IGNORECASE)

_LIMIT = re.compile(
    r"\b(?:limit(?:ed to| is set to| is| of|:)?|max(?:imum)?(?: [RT]P[MD]| size)?(?: of)?:?|allowed:?|reached:) {0,2}"
    rf"({_AMOUNT})(?![\d,]|\.\d| ?/ ?\d{{1,15}}(?!\d|\s?(?:s|min|h|d)))",
    re.IGNORECASE,
)
_SHORT_LIMIT = re.compile(rf"\b(?:[IORTQ]{{1,2}}P[SMHD]|concurrency): {{0,2}}({_AMOUNT})")
_USED = re.compile(rf"\b(?:used|current|consumed)(?: usage| concurrency)?(?::| is)? {{0,2}}({_AMOUNT})", re.IGNORECASE)
_REQUESTED = re.compile(
    rf"\b(?:requested|requires):? {{0,2}}~?({_AMOUNT})(?![\d,]| credits| requests| tokens per)", re.IGNORECASE
)
_PAIR = re.compile(rf"\((?:actual|used|current)/limit\): ?({_AMOUNT}) ?/ ?({_AMOUNT})", re.IGNORECASE)
_EACH = re.compile(r"\bcurrent ([rt]pm): (\d{1,15}), \1 limit: (\d{1,15})")  # litellm names all; one is exceeded

_TIME = r"\d{1,9}(?:\.\d{1,12})? {0,2}(?:milliseconds?|ms|us|µs|ns|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d|weeks?|w)"
_DURATION = rf"(?: in| after| for| within)?(?: about| approximately)? ?~?((?:{_TIME}(?![a-z])(?:,? and |, ?| )?|{_TIME}(?=\d)){{1,6}})"
_WAIT = re.compile(
    rf"\b(?:try again|retry|retrying|wait(?:ing)?|available(?: again)?|come back){_DURATION}", re.IGNORECASE
)
_RESET = re.compile(rf"\b(?:resets?|renews?){_DURATION}", re.IGNORECASE)
_TIMES = re.compile(r"(\d{1,9}(?:\.\d{1,12})?) {0,2}([a-zµ]{1,12})", re.IGNORECASE)
_CHINESE_WAIT = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ?(毫秒|秒|分钟|小时|天) ?(?:之?后|以?后)")
_CHINESE_LIMIT, _CHINESE_USED = re.compile(r"上限\D{0,4}(\d{1,15})"), re.compile(r"请求\D{0,3}(\d{1,15})\D{0,3}次")
_CHINESE_PERIOD = re.compile(r"每(秒|分钟|小时|天|日|周|月)")
_CHINESE_UNITS: Final = ((re.compile("令牌|token", re.IGNORECASE), TOKENS), (re.compile("请求|调用|访问"), REQUESTS))


def said_in(text: str) -> Said:
    """Read a message."""
    text = text[:TEXT_MAX]
    named = _named(text)
    unit, period_s = _quota(named, text)
    limits = (_found(_LIMIT, text), _amount(named.get("limit")), _found(_SHORT_LIMIT, text))
    limit, used = next((limit for limit in limits if limit is not None), None), _found(_USED, text)
    unit, period_s, limit, used = _exceeded(text, unit, period_s, limit, used)
    reset = _RESET.search(text)
    reset_s = duration_s(reset[1]) if reset else None
    several = _several(text) if used is None else ()
    if several:
        named_one = next((reading for reading in several if reading.unit == unit), None)
        period_s, limit = (period_s, None) if named_one is None else (named_one.period_s, named_one.limit)
    return Said(unit, period_s, limit, used, _found(_REQUESTED, text), wait_in(text), reset_s, several)


def _exceeded(
    text: str, unit: str | None, period_s: float | None, limit: float | None, used: float | None
) -> tuple[str | None, float | None, float | None, float | None]:
    """The quota that is used up, if a message has the use of several; else the given one."""
    since = 0
    for pair in _PAIR.finditer(text):
        amounts = _amount(pair[1]) or 0.0, _amount(pair[2]) or 0.0
        if since == 0 or amounts[0] >= amounts[1]:
            used, limit = amounts
            own = _quota(_named(text[since : pair.start()]), text)
            unit, period_s = own[0] or unit, own[1] or period_s
        since = pair.end()
        if amounts[0] >= amounts[1]:
            break
    for short, so_far, most in _EACH.findall(text):
        if int(so_far) >= int(most):
            return *_in_short(short), float(most), float(so_far)
    if not text.isascii() and limit is None:
        used, limit = _found(_CHINESE_USED, text), _found(_CHINESE_LIMIT, text)
    return unit, period_s, limit, used


def _several(text: str) -> tuple[Reading, ...]:
    """The quotas of "3 RPM and 10K TPM", "60 requests per minute, 1,000 requests per day"; empty for one or none."""
    found: dict[tuple[str, float], float] = {}
    for match in _STATED.finditer(text):
        if match["short"]:
            unit, period_s = _in_short(match["short"])
        else:
            unit, period_s = unit_of(match["unit"]) or "", period_of(match["count"], match["period"]) or 0.0
        amount = (_amount(match["limit"]) or 0.0) * _THOUSANDS[(match["thousands"] or "").lower()]
        if amount and period_s:
            found.setdefault((unit, period_s), amount)
    return tuple(Reading(unit, limit, period_s=period_s) for (unit, period_s), limit in found.items() if len(found) > 1)


def _named(text: str) -> dict[str, str]:
    """The parts that name a quota."""
    named: dict[str, str] = {}
    several = len({short[0].lower() for short in _SHORT.findall(text)}) > 1  # "600 RPM and 180000 TPM" names none
    for pattern in _QUOTAS:
        match = pattern.search(text)
        for name, words in match.groupdict().items() if match else ():
            if words and not (name == "count" and "period" in named) and not (name == "short" and several):
                named.setdefault(name, words)
        if "period" in named and "unit" in named:
            break
    return named


def _quota(named: dict[str, str], text: str) -> tuple[str | None, float | None]:
    """Unit and period of the parts that name a quota."""
    short = named.get("short") or named.get("qps")
    short_unit, short_s = _in_short(short) if short else (None, None)
    return _unit_in(named, text, short_unit), _period_in(named, text, short_s)


def _unit_in(named: dict[str, str], text: str, short: str | None) -> str | None:
    words = named.get("unit") or named.get("many")
    unit = unit_of(words) if words else short
    if unit is None and "limit" in named:
        name = _EXCEEDED.search(text)
        unit = (quota_named(name[1])[0] if name else None) or REQUESTS
    if unit is None and _CONCURRENT.search(text):
        unit = CONCURRENCY
    if unit or text.isascii():
        return unit
    return next((unit for pattern, unit in _CHINESE_UNITS if pattern.search(text)), None)


def _period_in(named: dict[str, str], text: str, short_s: float | None) -> float | None:
    period_s = period_of(named.get("count"), named["period"]) if "period" in named else short_s
    if "seconds" in named:
        period_s = parse.amount(named["seconds"])
    if period_s is None and "every" in named:
        period_s = parse.seconds_in(named["every"])
    chinese = None if period_s or text.isascii() else _CHINESE_PERIOD.search(text)
    return parse.seconds_in(chinese[1]) if chinese else period_s


def _in_short(letters: str) -> tuple[str, float]:
    """Unit and period of ``TPM``, ``rpd``, ``QPS``."""
    letters = letters.lower()
    return _SHORT_UNITS[letters[:-2]], parse.seconds_in(letters[-1]) or 0.0


def _found(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    return _amount(match[1]) if match else None


def _amount(digits: str | None) -> float | None:
    return parse.number(parse.ungrouped(digits)) if digits else None


def wait_in(text: str) -> float | None:
    """The wait that a message asks for, in seconds: "try again in 1m12s", "请在 30 秒后重试"."""
    match = _WAIT.search(text)
    if match is not None:
        return duration_s(match[1])
    chinese = None if text.isascii() else _CHINESE_WAIT.search(text)
    return parse.wait(float(chinese[1]) * (parse.seconds_in(chinese[2]) or 0.0)) if chinese else None


def duration_s(text: str) -> float | None:
    """The seconds of a duration in words or letters: ``1h 2m``, ``3 minutes``, ``16 days``; ``None`` for none."""
    total, parts = 0.0, 0
    for amount, word in _TIMES.findall(text):
        seconds = parse.seconds_in(word)
        if seconds is None:
            return None
        total, parts = total + float(amount) * seconds, parts + 1
    return parse.wait(round(total, 9)) if parts else None


def period_of(count: str | None, word: str) -> float | None:
    """The seconds of a period, e.g. ``("86400", "s")`` or ``(None, "minutes")``; ``None`` for an unknown word."""
    seconds = parse.seconds_in(word)
    return None if seconds is None else parse.wait(float(count or 1) * seconds) or None


def unit_of(words: str) -> str | None:
    """The unit that some words name: ``input tokens``, ``API calls``, ``fast mode output tokens``; a name of their own else."""
    words = words.lower().strip()
    if "token" in words:
        if "uncached" in words:
            return "uncached_tokens"
        if re.search("input|prompt", words):
            return INPUT_TOKENS
        return OUTPUT_TOKENS if re.search("output|completion|generat", words) else TOKENS
    if "image" in words:
        return "input_images" if "input" in words else "images"
    if "audio" in words:
        return AUDIO_SECONDS
    if re.search("request|call|quer|message", words):
        return REQUESTS
    if "concurren" in words:
        return CONCURRENCY
    return re.sub("[ -]+", "_", words)


_UNITS: Final = (
    ("inputtoken", INPUT_TOKENS),
    ("outputtoken", OUTPUT_TOKENS),
    ("token", TOKENS),
    ("image", "images"),
    ("request", REQUESTS),
)
_LONGEST_FIRST: Final = ("day", "hour", "minute", "second")


def quota_named(name: str, metric: str = "") -> tuple[str | None, float | None]:
    """Unit and period in the name of a quota: ``InputTokensPerModelPerMinute``, ``UserByModelByDay``.

    Args:
        name: The name.
        metric: The metric that it is about, which helps where the name has no unit.
    """
    name, metric = (words.lower().replace("_", "") for words in (name, metric))
    unit = next((unit for word, unit in _UNITS if word in f"{name} {metric}"), None)
    period = next((word for word in _LONGEST_FIRST if f"per{word}" in name or f"by{word}" in name), None)
    return unit, parse.seconds_in(period) if period else None
