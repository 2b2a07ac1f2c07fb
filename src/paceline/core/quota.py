"""Quotas as frozen values, and their notation in one line.

500 requests/min
2M input_tokens/min burst 50k
1000 requests/day window utc
10 concurrency
7 starts/min exact
20 starts/min burst 5 even

Read as well: `500 RPM`, `100/min`, `500 requests per minute`, `30,000 tokens/min`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from paceline.core.hints import did_you_mean
from paceline.core.results import Cost as Cost  # noqa: PLC0414  (re-exported)
from paceline.core.results import QuotaError, public

NS = 1_000_000_000
"""Nanoseconds in a second. The core counts time in whole nanoseconds since the Unix epoch."""

FAR_NS = 2**63 - 1
"""Later than any instant: not before some event."""

DAY_S = 86_400.0

LONG_S = 600.0
"""A quota with a longer period would stall a run if it were spread over it, or opened slowly."""

MONTH_S = 30 * DAY_S
"""The period of a quota of a calendar month; the months themselves have 28 to 31 days."""

MONTH = "month"
"""The anchor of a window that restarts with the months, in UTC."""

REQUESTS, TOKENS, INPUT_TOKENS, OUTPUT_TOKENS = "requests", "tokens", "input_tokens", "output_tokens"
USD, CONCURRENCY = "usd", "concurrency"
KNOWN_UNITS = (REQUESTS, TOKENS, INPUT_TOKENS, OUTPUT_TOKENS, USD, CONCURRENCY)


@public
class Rule(StrEnum):
    """How a provider counts."""

    BUCKET = "bucket"  # refills continuously
    WINDOW = "window"  # a counter that restarts every period
    SLIDING = "sliding"  # the amount within any trailing period
    EXACT = "exact"  # the same, and answers do not change it: the whole amount goes at once
    EVEN = "even"  # a bucket that is counted by the limiter alone: nothing is left unused
    SLOTS = "slots"  # requests in flight
    MEASURED = "measured"  # unknown: the limit is stated nowhere, and was found from outcomes


OWN_RULES = (Rule.EXACT, Rule.EVEN, Rule.MEASURED)
"""The rules of quotas that no provider counts or states. Each process keeps its own, and what answers state does not
change them."""


_RULES = {rule.value: rule for rule in Rule if rule is not Rule.MEASURED}
_PERIODS = {
    "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3_600.0, "hr": 3_600.0, "hour": 3_600.0, "hours": 3_600.0,
    "d": 86_400.0, "day": 86_400.0, "days": 86_400.0,
}  # fmt: skip
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}
_SHORTHANDS = {
    "rps": "requests/s", "rpm": "requests/min", "rpd": "requests/day",
    "tpm": "tokens/min", "tpd": "tokens/day", "itpm": "input_tokens/min", "otpm": "output_tokens/min",
}  # fmt: skip
_AMOUNT = r"(\d[\d_]*(?:\.\d+)?)([kKmMbBgG]?)"
_THOUSANDS = re.compile(
    # "burst 10,400k tokens/min" is two quotas, and "1,500k tokens/min" is one.
    r"(?<![\w.])(?<!\d,)(?:burst\s+\d{1,3}(?:,\d{3})*(?=,\d{3}[kKmMbBgG]\s+(?:\w+\s*(?:/|per\b)|\w*[rt]p[smd]\b))"
    r"|\d{1,3}(?:,\d{3})+(?!\d))"
)
_QUOTA = re.compile(rf"{_AMOUNT}\s*([a-z_][a-z0-9_]*)\s*(?:/\s*(\d+(?:\.\d+)?)?\s*([a-z]+))?((?:\s+\S+)*)", re.ASCII)
_EXAMPLE = "write it like '500 requests/min', '2M input_tokens/min burst 50k', '5 usd/day' or '10 concurrency'"

PERIOD_MIN_S, PERIOD_MAX_S = 1e-6, 1e16
RATE_MIN, RATE_MAX = 1e-21, 1e21
"""The range in which integer nanoseconds and floats are exact enough."""


@public
@dataclass(frozen=True, slots=True)
class Quota:
    """An amount per period for one unit, with a burst and a rule.

    Attributes:
        unit: What is counted: ``requests``, ``tokens``, ``usd``, ``concurrency`` or your own unit.
        amount: The amount allowed per period (for slots: in flight).
        period_s: The period in seconds; 0 for slots.
        burst: The amount available at once when nothing is used; by default ``amount``.
        rule: How the provider counts.
        anchor: When a ``window`` restarts: ``utc`` (periods counted from midnight UTC), the name of a
            time zone whose midnight starts the day, or ``month``; ``None`` when that is unknown.
    """

    unit: str
    amount: float
    period_s: float = 60.0
    burst: float = 0.0
    rule: Rule = Rule.BUCKET
    anchor: str | None = None

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if not re.fullmatch(r"[a-z_][a-z0-9_]*", self.unit):
            raise QuotaError(f"unit {self.unit!r}: use lower-case letters, digits and '_', e.g. 'input_tokens'")
        for name, value in (("amount", self.amount), ("burst", self.burst or self.amount)):
            if not (math.isfinite(value) and value > 0):
                raise QuotaError(f"{name} of {self.unit} is {value!r}: it must be a finite number above 0")
        if type(self.rule) is not Rule:
            rules = ", ".join(f"Rule.{rule.name}" for rule in Rule)
            raise QuotaError(f"rule of {self.unit} is {self.rule!r}: it must be one of {rules}")
        self._check_period()
        if self.rule is Rule.EXACT and self.burst not in (0, self.amount):
            raise QuotaError(f"{self.unit}: an exact quota grants its whole amount at once: leave out the burst")
        if self.anchor == MONTH and (self.rule, self.period_s) != (Rule.WINDOW, MONTH_S):
            raise QuotaError(f"{self.unit}: the anchor 'month' is for windows of a month: write '/month'")
        if self.anchor not in (None, "utc", MONTH):
            _check_zone(str(self.anchor), self.period_s)
        if not self.burst:
            # The class is frozen, and the default depends on another field.
            object.__setattr__(self, "burst", self.amount)

    def _check_period(self) -> None:
        if (self.rule is Rule.SLOTS) != (self.period_s == 0) and self.rule is not Rule.MEASURED:
            raise QuotaError(f"{self.unit}: slots have no period, and every other rule needs one above 0 s")
        if not (math.isfinite(self.period_s) and self.period_s >= 0):
            raise QuotaError(f"period of {self.unit} is {self.period_s!r} s: it must be a finite number above 0")
        if self.period_s and not (PERIOD_MIN_S <= self.period_s <= PERIOD_MAX_S and RATE_MIN <= self.rate <= RATE_MAX):
            raise QuotaError(
                f"{self.amount:g} {self.unit} in {self.period_s:g} s are out of range: the period must be from"
                f" {PERIOD_MIN_S:g} to {PERIOD_MAX_S:g} s, and the rate from {RATE_MIN:g} to {RATE_MAX:g} per second"
            )

    @property
    def is_long(self) -> bool:
        """Whether its period is longer than 10 minutes, as an hour's or a day's."""
        return self.period_s > LONG_S

    @property
    def rate(self) -> float:
        """Units per second; 0 for slots."""
        return self.amount / self.period_s if self.period_s else 0.0

    def with_amount(self, amount: float, period_s: float | None = None) -> Self:
        """Return the same quota with another amount and period.

        A burst equal to the amount follows it; any other is at most the new amount.

        Args:
            amount: The amount per period.
            period_s: The period in seconds; ``None``: the same.
        """
        burst = amount if self.burst == self.amount else min(self.burst, amount)
        return replace(self, amount=amount, burst=burst, period_s=period_s or self.period_s)

    def part(self, share: float) -> Self:
        """Return the quota with a share of its amount and burst; slots, even and measured quotas are unchanged.

        Args:
            share: The part, from 0 to 1.
        """
        if share == 1 or self.rule in (Rule.SLOTS, Rule.EVEN, Rule.MEASURED):
            return self
        return replace(self, amount=rounded(self.amount * share), burst=rounded(self.burst * share))

    def restarting(self, zone: str) -> Self:
        """Return a quota of a day as a window that restarts at midnight in ``zone``; any other quota is unchanged.

        A quota with a rule, a zone or a burst of its own is unchanged too.

        Args:
            zone: The name of a time zone; empty: every quota stays as it is.
        """
        open_rule = self.burst == self.amount if self.rule is Rule.BUCKET else self.rule is Rule.WINDOW
        if not zone or self.period_s != DAY_S or self.anchor is not None or not open_rule:
            return self
        return replace(self, rule=Rule.WINDOW, anchor=zone)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read one quota from its notation.

        Args:
            text: An amount, a unit and a period, with ``burst``, a rule or a zone: ``500 requests/min``,
                ``10 concurrency``.

        Raises:
            QuotaError: The text is not a quota.

        Example:
            quota = paceline.Quota.parse("2M input_tokens/min burst 50k")
            print(quota.amount, quota.period_s, quota.burst)
        """
        match = _QUOTA.fullmatch(_plainly(text))
        if match is None:
            raise QuotaError(f"{text!r} is not a quota: {_EXAMPLE}")
        number, scale, unit, count, period, rest = match.groups()
        # Any word may be a unit of your own. One that is nearly a known unit is a slip.
        if hint := did_you_mean(unit, KNOWN_UNITS, cutoff=0.8):
            raise QuotaError(f"{text!r}: unknown unit {unit!r}{hint}")
        if period is None and unit != CONCURRENCY and "slots" not in rest.split():
            raise QuotaError(f"{text!r} has no period: {_EXAMPLE}{did_you_mean(unit, KNOWN_UNITS)}")
        if period == MONTH and not count and not rest.strip():
            return cls(unit, _number(number, scale), MONTH_S, rule=Rule.WINDOW, anchor=MONTH)
        period_s = 0.0
        if period is not None:
            if period not in _PERIODS:
                raise QuotaError(f"{text!r}: unknown period {period!r}; use s, min, hour, day or month")
            period_s = float(count or 1) * _PERIODS[period]
        burst, rule, anchor = _read_options(text, rest.split(), slots=period is None)
        return cls(unit, _number(number, scale), period_s, burst, rule, anchor)

    def __str__(self) -> str:
        if not self.period_s:
            slots = "" if self.unit == CONCURRENCY else " slots"
            return f"{_short(self.amount)} {self.unit}{slots if self.rule is Rule.SLOTS else f' {self.rule.value}'}"
        if self.anchor == MONTH:
            return f"{_short(self.amount)} {self.unit}/{MONTH}"
        period = _period(self.period_s)
        burst = "" if self.burst == self.amount else f" burst {_short(self.burst)}"
        rule = "" if self.rule is Rule.BUCKET else f" {self.rule.value}"
        return f"{_short(self.amount)} {self.unit}/{period}{burst}{rule}{f' {self.anchor}' if self.anchor else ''}"


def ns_per_unit(quota: Quota) -> float:
    """Nanoseconds of refill per unit."""
    return quota.period_s * NS / quota.amount


def brief(notation: str) -> str:
    """A quota's notation for the eye: without the digits of a measured amount, and a day that refills is a day.

    The name of a model before or after it stays as it is.
    """
    # Next to the window of a day, its bucket has a second more: a pool has one quota per unit and period.
    notation = notation.replace(f"/{_plain(DAY_S + 1)}s", "/day")
    return re.sub(
        r"(?<![\w./-])[1-9]\d*\.\d{2,}", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), notation
    )


def rounded(amount: float) -> float:
    """``amount`` without the last digits of a float, so that the part of a part is the whole again."""
    # 12 digits of 15: an error of the last ones is cut off, and no amount that people write.
    return float(f"{amount:.12g}")


def parse_quotas(text: str | list[str] | tuple[str, ...]) -> tuple[Quota, ...]:
    """Read several quotas, from a list or separated by commas.

    Raises:
        QuotaError: One of them is not a quota, or two have the same unit and period.
    """
    parts = _without_commas(text).split(",") if isinstance(text, str) else text
    quotas = tuple(Quota.parse(part) for part in parts if part.strip())
    if not quotas:
        raise QuotaError(f"no quota in {text!r}: {_EXAMPLE}")
    seen: set[tuple[str, float]] = set()
    for quota in quotas:
        if (quota.unit, quota.period_s) in seen:
            raise QuotaError(f"two quotas for {quota.unit} over the same period in {text!r}: keep one")
        seen.add((quota.unit, quota.period_s))
    return quotas


def _read_options(text: str, words: list[str], *, slots: bool) -> tuple[float, Rule, str | None]:
    burst, rule, anchor = 0.0, Rule.SLOTS if slots else Rule.BUCKET, None
    rest = iter(words)
    for word in rest:
        if word == "burst":
            match = re.fullmatch(_AMOUNT, next(rest, ""))
            if match is None:
                raise QuotaError(f"{text!r}: 'burst' needs an amount, e.g. 'burst 50k'")
            burst = _number(*match.groups())
        elif word in _RULES:
            rule = _RULES[word]
        elif rule is Rule.WINDOW and anchor is None and (word == "utc" or "/" in word):
            anchor = word
        else:
            is_limit = burst and "/" in word and word.islower()  # a time zone has capitals
            advice = "write a space after a comma between two limits" if is_limit else _EXAMPLE
            hint = did_you_mean(word, ["burst", *_RULES, "utc"]) or f": {advice}"
            raise QuotaError(f"{text!r}: unknown option {word!r}{hint}")
    return burst, rule, anchor


def _check_zone(anchor: str, period_s: float) -> None:
    """Refuse an unknown time zone, and a period other than the day that a midnight starts."""
    # Imported here, because only the quotas with a time zone need it.
    from zoneinfo import ZoneInfo, available_timezones

    # A midnight starts a day, so that no other period can begin there.
    if period_s != 86_400:
        raise QuotaError(
            f"the period of a window that restarts at midnight in {anchor} must be a day: write '/day', or 'utc'"
        )
    try:
        ZoneInfo(anchor)
    except (KeyError, ValueError, OSError):
        if not (known := available_timezones()):
            raise QuotaError(f"this system has no time zones, and {anchor!r} is one: pip install tzdata") from None
        hint = did_you_mean(anchor, known) or ": use one like 'Europe/Berlin'"
        raise QuotaError(f"unknown time zone {anchor!r}{hint}") from None


def _plainly(text: str) -> str:
    """A quota in other spellings as :meth:`Quota.parse` reads it."""
    plain = re.sub(r"\s+per\s+(?=[a-z])", "/", _without_commas(text.strip()), flags=re.IGNORECASE)
    # 100/min: a number without a unit counts requests.
    plain = re.sub(rf"^{_AMOUNT}\s*/", rf"\1\2 {REQUESTS}/", plain)
    # 500 RPM, but not `500 rpm/min`, in which rpm is a unit of the user's own.
    match = re.match(rf"{_AMOUNT}\s*([a-z]+)(?!\s*/|\w)", plain, re.IGNORECASE)
    if match is not None and (written := _SHORTHANDS.get(match[3].lower())) is not None:
        plain = f"{match[1]}{match[2]} {written}{plain[match.end() :]}"
    return plain


def _without_commas(text: str) -> str:
    """``text`` without the commas between thousands."""
    return _THOUSANDS.sub(lambda match: match[0].replace(",", ""), text)


def _number(digits: str, scale: str) -> float:
    return float(digits.replace("_", "")) * _SCALES[scale.lower()]


def _period(period_s: float) -> str:
    """A period as a user writes it: ``min``, ``30 days``, ``10s``."""
    for one, several, unit_s in (("day", "days", DAY_S), ("hour", "hours", 3_600.0), ("min", "min", 60.0)):
        count, rest = divmod(period_s, unit_s)
        if not rest:
            return one if count == 1 else f"{_plain(count)} {several}"
    return "s" if period_s == 1 else f"{_plain(period_s)}s"


def _short(amount: float) -> str:
    for suffix, scale in (("M", 1e6), ("k", 1e3)):
        # The product, too: 8,218,530 is no 8.21853M, because parse() would read that as 8,218,529.999999999.
        if amount >= scale and (amount / (scale / 100)).is_integer() and amount / scale * scale == amount:
            return f"{_plain(amount / scale)}{suffix}"
    return _plain(amount)


def _plain(number: float) -> str:
    """Without an exponent, which :meth:`Quota.parse` does not read."""
    text = repr(number)
    if "e" in text:
        from decimal import Decimal

        text = f"{Decimal(text):f}"
    return text.removesuffix(".0")
