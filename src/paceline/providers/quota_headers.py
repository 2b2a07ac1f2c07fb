"""The quotas in the headers of an answer, under all the names that are in use, and what their numbers prove.

``x-ratelimit-{limit,remaining,reset,renewalperiod}[-<family>]``, the same after ``x-rate-limit-`` and ``ratelimit-``;
``anthropic-ratelimit-<family>-{limit,remaining,reset}``; each of them after ``llm_provider-``, as litellm hands it on;
``ratelimit`` and ``ratelimit-policy`` of the IETF's draft (draft-ietf-httpapi-ratelimit-headers, 2025).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

from paceline.core.quota import DAY_S, INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, TOKENS
from paceline.core.results import Basis, Reading
from paceline.providers import parse
from paceline.providers.base import Headers
from paceline.providers.forms import table


@dataclass(frozen=True, slots=True, kw_only=True)
class Documented:
    """What a provider documents of its headers, beside their names.

    Attributes:
        periods: The period of a family, in seconds.
        assumed: The families whose documented period is not true of every account.
        alone: Whether a limit or a remainder counts without the other, and a remainder below 0.
        resets: Whether a reset says when the quota is full again, or restarts.
        known: Whether only readings count whose period is known.
        rounded: To what remainders of tokens are rounded.
        reset_rounded_s: To what resets are rounded, in seconds.
    """

    periods: Mapping[str, float] = field(default_factory=dict)
    assumed: Collection[str] = ()
    alone: bool = False
    resets: bool = True
    known: bool = False
    rounded: float = 1.0
    reset_rounded_s: float = 0.0


_Group = TypeVar("_Group")
NOTHING: Final = Documented()
_STARTS: Final = {start: Documented(**row) if row else None for start, row in table("headers")["starts"].items()}
_PARTS: Final = ("limit", "remaining", "reset", "renewalperiod")
_UNITS: Final[Mapping[str, str]] = table("headers")["units"]
UNITS: Final = list(dict.fromkeys(_UNITS.values()))
_SAYS: Final = {what: re.compile(pattern) for what, pattern in table("headers")["expressions"].items()}

USUAL_S: Final = (60.0, DAY_S)
"""The periods that numbers can prove where nothing states one."""
CLOCKS_AGREE_S: Final = 2.0
"""A `date` that differs by less is of now, on a clock like this one: it is in whole seconds, and on its way for a while."""
SHORTEST_S: Final = 0.004
"""A shorter reset proves nothing: it is printed in milliseconds."""
TOLERANCE: Final = 0.25
"""By how much the period that the numbers give may differ from the one that they prove."""


class Family(NamedTuple):
    """What the name of a header says.

    Attributes:
        words: The words of its family.
        unit: The unit of its family.
        period_s: The period in its name.
        start: The beginning of its name, where that has a documentation of its own.
        handed_on: Whether a proxy has handed it on.
    """

    words: str
    unit: str
    period_s: float | None
    start: str
    handed_on: bool


def readings_in(headers: Headers, now_s: float = 0.0, documented: Documented = NOTHING) -> list[Reading]:
    """The quotas in the headers of an answer.

    Args:
        headers: The headers.
        now_s: The time in seconds since the epoch, for resets that are instants, where the answer has no ``date``.
        documented: What the provider documents of them.
    """
    named = grouped(headers, _about)
    if "ratelimit" in headers:
        named |= _draft(headers)
    found: dict[tuple[int, float], Reading] = {}  # by unit, and the period in the name
    for family, texts in named.items():
        if family.handed_on and any(one.unit == family.unit and not one.handed_on for one in named):
            continue
        reading = _reading(family, texts, headers, now_s, _STARTS.get(family.start) or documented)
        if reading is not None:
            kind = UNITS.index(family.unit), family.period_s or 0.0
            found[kind] = _strictest(found[kind], reading) if kind in found else reading
    readings = [found[kind] for kind in sorted(found)]
    units = {one.unit for one in readings}
    repeats = not units.isdisjoint((INPUT_TOKENS, OUTPUT_TOKENS))  # what one of both tells
    return [one for one in readings if not (repeats and one.unit == TOKENS)]


def grouped(headers: Headers, about: Callable[[str], tuple[_Group, str] | None]) -> dict[_Group, dict[str, str]]:
    """The texts of headers by what they are ``about``: a group, and the part of it."""
    found: dict[_Group, dict[str, str]] = {}
    for header, text in headers.items():
        if (said := about(header)) is not None:
            found.setdefault(said[0], {})[said[1]] = text
    return found


@lru_cache(maxsize=4_096)
def _about(header: str) -> tuple[Family, str] | None:
    """The family and the part that a header is about; ``None`` for one that names no quota."""
    name = header.removeprefix("llm_provider-")
    start = next((start for start in _STARTS if name.startswith(start)), None)
    if start is None:
        return None
    words = name[len(start) :]
    part, _, family = words.partition("-")
    if part not in _PARTS:
        family, _, part = words.rpartition("-")
    match = _SAYS["family"].fullmatch(family)
    if part not in _PARTS or match is None or match[1] not in _UNITS:
        return None
    period_s = float(match[2] or 1) * (parse.seconds_in(match[3]) or 0.0) or None if match[3] else None
    of = start if _STARTS[start] else ""  # one answer may spell the others in several ways
    return Family(match[1], _UNITS[match[1]], period_s, of, handed_on=name != header), part


def _draft(headers: Headers) -> dict[Family, dict[str, str]]:
    """The parts in the fields of the IETF's draft, for each policy that counts requests."""
    text, found = headers["ratelimit"][:1_000], {}
    if (older := _SAYS["older"].search(text)) is not None:
        parts = {"limit": older[1], "remaining": older[2], "reset": f"{older[3]}s"}
        return {Family("", REQUESTS, None, "", handed_on=False): parts}
    states = {_name(item): state for item in text.split(",") if (state := _SAYS["state"].search(item)) is not None}
    for item in headers.get("ratelimit-policy", "")[:1_000].split(","):
        policy, state = _SAYS["policy"].search(item), states.get(_name(item))
        if policy is not None and policy[2] in (None, "requests"):
            parts = {"limit": policy[1], "renewalperiod": policy[3]}
            if state is not None:
                parts |= {"remaining": state[1]} | ({"reset": f"{state[2]}s"} if state[2] else {})
            found[Family("", REQUESTS, float(policy[3]) or None, "", handed_on=False)] = parts
    return found


def restart_s(headers: Headers) -> float | None:
    """Seconds until the quota restarts that has refused a request; ``None`` if no header without a unit says so, or something is left.

    In headers of the IETF's drafts a reset is the end of a window, as in Envoy's and APISIX' (WEAK: not looked up). In OpenAI's headers,
    which name a unit, the quota is full then, and requests fit before.
    """
    named = grouped(headers, _about).items()
    stated = [(texts.get("remaining"), texts.get("reset")) for family, texts in named if not family.words]
    if drafts := headers.get("ratelimit", "")[:1_000]:
        stated += [(one[2], one[3]) for one in _SAYS["older"].finditer(drafts)]
        stated += [(one[1], one[2]) for one in _SAYS["state"].finditer(drafts)]
    used_up = [parse.reset_in(reset) for left, reset in stated if (parse.remainder(left) or 0.0) <= 0]
    return parse.longest(*(reset.asked_s(headers) for reset in used_up)) if used_up else None


def _name(item: str) -> str:
    names = _SAYS["name"].findall(item)
    return names[-1] if names else ""


def _reading(
    family: Family, texts: dict[str, str], headers: Headers, now_s: float, documented: Documented
) -> Reading | None:
    """The reading in the parts of one family; ``None`` for one that does not count."""
    amounts = _amounts(family, texts, documented)
    if amounts is None:
        return None
    limit, remaining, period_s, basis = amounts
    reset = parse.reset_in(texts.get("reset"))
    reset_s, plain, at_s = reset.wait_s, reset.plain, None
    if reset.at_s is not None:
        reset_s, at_s = reset.left_s(headers, now_s), until_s(reset, headers, now_s)
    reset_s = reset_s if documented.resets else None
    if reset_s and limit and remaining is not None and (basis is Basis.STATED or not plain):
        period_s, basis, scale = _shown(reset_s, limit, limit - remaining, period_s, basis, in_ms=plain)
        reset_s, plain = reset_s * (scale or 1.0), plain and scale is None
    if period_s is None and documented.known and limit is not None:  # what is left is that in any period
        return None
    reset_s, number = _clear(reset_s, period_s, family, plain=plain, alone=documented.alone)
    rounded = 1.0 if family.unit == REQUESTS else documented.rounded
    rounded_s = documented.reset_rounded_s
    return Reading(family.unit, limit, remaining, reset_s, period_s, rounded, rounded_s, basis, number, at_s)


def _amounts(
    family: Family, texts: dict[str, str], documented: Documented
) -> tuple[float | None, float | None, float | None, Basis] | None:
    """The limit, what remains of it, the period that a header has stated, or else the documented one of its family, and how sure it is.

    ``None`` if one of the first two counts not alone, or is nonsense.
    """
    limit_text = texts.get("limit")
    limit, remaining = parse.amount(limit_text), parse.remainder(texts.get("remaining"))
    stated_s = parse.amount(texts.get("renewalperiod")) or family.period_s
    if limit is None and limit_text and (window := _SAYS["window"].fullmatch(limit_text)):
        limit, stated_s = parse.amount(window[1]), parse.amount(window[2])
    remaining = None if remaining == -1 else remaining  # Azure: -1 is unknown
    whole = limit is not None and remaining is not None and 0 <= remaining <= limit
    if not whole and not (documented.alone and (limit, remaining) != (None, None)):
        return None
    of_family = documented.periods.get(family.words)
    sure = stated_s or (of_family is not None and family.words not in documented.assumed)
    return limit, remaining, stated_s or of_family, Basis.STATED if sure else Basis.ASSUMED


def _clear(
    reset_s: float | None, period_s: float | None, family: Family, *, plain: bool, alone: bool
) -> tuple[float | None, float | None]:
    """The reset, if it fits to its period, or to none; else a number alone, where readings together show whether it is an instant."""
    unclear = reset_s is not None and (reset_s > period_s if period_s else bool(family.words))
    if not unclear or not (plain or (period_s is None and not alone)):
        return reset_s, None
    return None, reset_s if period_s is None else None  # it is in another unit, or about something else


def _shown(
    reset_s: float, limit: float, used: float, period_s: float | None, basis: Basis, *, in_ms: bool
) -> tuple[float | None, Basis, float | None]:
    """The period that the numbers show, how well, and the seconds of the unit that the reset is in; ``None`` where they prove nothing."""
    if used <= 0:
        return period_s, basis, None
    bucket_s, stated = reset_s * limit / used, basis is Basis.STATED  # the period, if it is a bucket
    # A number without a unit proves no period: too many windows that restart look like a bucket at some instant.
    for scale in (1.0, 1e-3) if in_ms else (1.0,):
        for shown_s in (period_s or 0.0,) if stated else USUAL_S:
            if abs(bucket_s * scale - shown_s) <= TOLERANCE * shown_s and reset_s >= SHORTEST_S:
                return shown_s, basis if stated else Basis.PROVED, scale
    is_other = not stated and period_s and used >= 2 and not period_s / 2 < bucket_s < period_s * 2
    return None if is_other else period_s, basis, None  # these are the numbers of another period


def until_s(reset: parse.Reset, headers: Headers, now_s: float) -> float | None:
    """Seconds until a reset that is an instant, by the clock of this machine; ``None`` if the server's differs from it."""
    if reset.at_s is None or abs(parse.answered_s(headers, now_s) - now_s) > CLOCKS_AGREE_S:
        return None
    return reset.at_s - now_s


def _strictest(one: Reading, other: Reading) -> Reading:
    """The quota of the organization or of the project, whichever limit is lower, with the lower of the remainders."""
    low, high = sorted((one, other), key=lambda reading: reading.limit or float("inf"))
    if high.remaining is not None and (low.remaining is None or high.remaining < low.remaining):
        return Reading(low.unit, low.limit, high.remaining, None, low.period_s or high.period_s, basis=Basis.PROVED)
    return low
