"""What an answer says of a plan in its headers, its body or an event: how much of each of its windows is used, and when the window ends.

Accounts of people (Claude Pro, Max and Team; ChatGPT with Codex) have no limits in requests or tokens, but windows of hours and days.
An answer states the used share of each. A family of headers is a row of ``plans`` in ``headers.toml``. A body or an event is read as the
headers that say the same:

* **Claude** (an answer of 2026-09-30 on Max, a refusal of 2026-08-02, both published by users; anthropics/claude-code#42108):
  ``anthropic-ratelimit-unified-{5h,7d,7d_oi}-{utilization,reset,status}``, with a share as a fraction and a reset in seconds since 1970, or
  as an instant of RFC 3339 (anomalyco/opencode#49499). Over all windows ``-{status,reset,representative-claim}``, where the claim names the
  window that the status is about. ``GET /api/oauth/usage``, which Claude Code asks for, has ``five_hour.{utilization,resets_at}`` and so on by
  the names of the claims, in percent (answers of 2026-03-09 and 2026-04-11, published by users: Haleclipse/CCometixLine#95,
  Maciek-roboblog/Claude-Code-Usage-Monitor#202). Its ``extra_usage``, money that a person has allowed, is not read.
* **Codex** (openai/codex ``rate_limits.rs``, 2026): ``x-codex-{primary,secondary}-{used-percent,window-minutes,reset-at,reset-after-seconds}``,
  the same after ``x-codex-NAME-`` for other limits, with ``x-codex-NAME-limit-name``. ``x-codex-active-limit`` names the limit of this request.
  The slot does not name the window: 7 days stand in ``primary`` since 2026-08 (oh-my-pi#10931, 2026-09-05). ``window-minutes`` decides.
  ``GET /backend-api/wham/usage`` has ``rate_limit.{primary,secondary}_window.{used_percent,limit_window_seconds,reset_at}``, and the same of other
  limits in ``additional_rate_limits`` (an answer of 2026-08-23: Adolanium/hermes-resetwatch#2). The event ``codex.rate_limits`` in a stream has
  ``rate_limits.{primary,secondary}.{used_percent,window_minutes,reset_at}`` of the limit ``metered_limit_name`` (``rate_limits.rs``).

WEAK: all of it is second-hand, and no answer of a real plan was seen. Which models ``7d_oi`` is about. That ``overage`` is a window
like the others, and that a claim such as ``seven_day_opus`` has headers of its own. That the family ``x-codex-`` repeats the one that
``x-codex-active-limit`` names, where that has headers, and is another limit where it has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from paceline.providers import parse
from paceline.providers.base import Headers
from paceline.providers.forms import table
from paceline.providers.quota_headers import grouped
from paceline.providers.quota_headers import until_s as by_this_clock_s
from paceline.responses.values import MAX_COUNT, as_mapping, as_number, as_text, items_of

REJECTED: Final = "rejected"
"""The status of a window that refuses."""


@dataclass(frozen=True, slots=True)
class PlanReading:
    """What an answer has stated of one window of a plan; every field but the name may be missing.

    Attributes:
        window: The name of the window, by its length and family: ``5h``, ``7d_oi``, ``codex 7d``.
        used: The share of it that is used, 0 to 1; more where a plan goes on for money.
        until_s: Seconds until it ends, from ``read_s`` on.
        status: In the provider's words: ``allowed``, ``allowed_warning``, ``rejected``.
        length_s: Its length in seconds.
        scope: The model or the purpose that it is about; ``None``: all of the account.
        read_s: When it was read, in seconds since 1970 by the clock of this machine.
        paid: Whether the answer states that requests cost money, because a window is used up.
    """

    window: str
    used: float | None = None
    until_s: float | None = None
    status: str | None = None
    length_s: float | None = None
    scope: str | None = None
    read_s: float = 0.0
    paid: bool = False

    @property
    def share(self) -> float | None:
        """The used share, as far as it is one: above 1 while the provider allows requests for no money, the number counts something else."""
        allowed = (self.status or "").startswith("allowed") and not self.paid
        return 0.0 if self.used is not None and self.used > 1.0 and allowed else self.used


Texts = Mapping[str, str]
"""The headers of one window, by the last part of their names."""


class Form(NamedTuple):
    """A family of headers, as ``headers.toml`` has it."""

    header: re.Pattern[str]
    whole: float
    used: str
    resets: tuple[str, ...]
    scope: str = ""
    active: str = ""


FORMS: Final = [
    Form(**row | {"header": re.compile(row["header"]), "resets": tuple(row["resets"])})
    for row in table("headers")["plans"]
]

EVENT: Final = "codex.rate_limits"
"""The type of the event of a stream that says the same as the headers of Codex."""

_MINUTES: Final = {"d": 1_440, "h": 60, "m": 1}
_OFF_MIN: Final = 3
"""Minutes by which a stated length may differ from whole hours or days: 299 are 5 hours (``get_limits_duration`` of Codex, 2026)."""


def _window(form: Form, family: str, texts: Texts) -> tuple[str, float | None] | None:
    """The name of a window with these texts, and its length in seconds; ``None`` for no window, as one of 0 minutes."""
    if not form.active:  # the family is the window
        stated = re.match(r"(\d+)([dhm])", family)
        return (family, float(stated[1]) * _MINUTES[stated[2]] * 60 if stated else None) if family else None
    minutes = parse.number(texts.get("window-minutes"))
    if not minutes:
        return (family, None) if minutes is None else None
    for letter, unit in _MINUTES.items():
        count = round(minutes / unit)
        if count and abs(minutes - count * unit) <= min(_OFF_MIN, unit):
            return f"{family} {count}{letter}", minutes * 60
    return family, minutes * 60


def window_of(length_s: float | None) -> str | None:
    """The name of a window by its length, ``5h``, ``7d``; ``None`` for less than an hour, which is no window of a plan."""
    hours = round((length_s or 0.0) / 3_600)
    if not hours:
        return None
    return f"{hours}h" if hours % 24 else f"{hours // 24}d"


CLAIMS: Final[Mapping[str, str]] = table("headers")["claims"]
_SCOPES: Final[Mapping[str, str]] = table("headers")["scopes"]

_WORD: Final = re.compile(r"[a-z0-9_-]{1,40}")
SCOPE_MAX: Final = 60
"""The characters of a scope that are kept."""

USED_MAX: Final = 100.0
"""A used share that is above it is nonsense."""

IN_USE: Final = "anthropic-ratelimit-unified-overage-in-use"
"""``true`` while requests go on for money, in the strings of Claude Code 2.1.332."""

CREDITS: Final = "x-codex-credits-has-credits"
"""``true`` of who has credits, which an answer costs while a window is used up (openai/codex ``rate_limits.rs``, 2026)."""

DEFAULT: Final = "codex"
"""The family of Codex that has no name of its own."""


def plan_readings(headers: Headers, now_s: float, refused: str | None = None) -> list[PlanReading]:
    """What the headers of an answer say of the windows of a plan; nothing for most answers.

    Args:
        headers: The headers.
        now_s: The time in seconds since 1970.
        refused: The window that the answer refuses for (:func:`refused_window`).
    """
    groups = grouped(headers, _about)
    if not groups:
        return []
    found: dict[str, PlanReading] = {}
    for reading, _ in _windows(groups, headers, now_s):
        before = found.get(reading.window)
        # Of two windows whose lengths are not stated, the fuller one.
        if before is None or (before.used or 0.0) < (reading.used or 0.0):
            found[reading.window] = reading
    if claimed := _claim(over_all := groups.get(_OVER_ALL, {})):
        found[claimed] = _of_claim(found.get(claimed), claimed, over_all, headers, now_s)
    if _states(headers, IN_USE):
        found = {name: replace(one, paid=True) for name, one in found.items()}
    if refused in found:
        found[refused] = replace(found[refused], status=REJECTED)
    return list(found.values())


def _of_claim(own: PlanReading | None, claimed: str, over_all: Texts, headers: Headers, now_s: float) -> PlanReading:
    """The reading of the window that the status over all is about."""
    if own is None:
        _, length_s = _window(FORMS[0], claimed, {}) or ("", None)
        own = PlanReading(claimed, length_s=length_s, scope=_scope(claimed) or None, read_s=now_s)
    until_s = _until_s(over_all.get("reset"), headers, now_s) if own.until_s is None else own.until_s
    return replace(own, until_s=until_s, status=own.status or _word(over_all.get("status")))


def refused_window(headers: Headers, now_s: float) -> PlanReading | None:
    """The window of a plan that a refusal with these headers is about; ``None``: about none, as far as they tell.

    It is the claim of a status that rejects; else a window that rejects, or says no status and is used up, and of several the one that
    ends last. While no window of the active limit is used up, Codex refuses for a rate (codex-island#74, sub2api#2264, 2026).
    """
    groups = grouped(headers, _about)
    if not groups:
        return None
    over_all = groups.get(_OVER_ALL, {})
    status = _word(over_all.get("status"))
    if status == REJECTED and (claimed := _claim(over_all)):
        return next(one for one in plan_readings(headers, now_s) if one.window == claimed)
    up = status in (None, REJECTED)
    shut = [
        one
        for one, active in _windows(groups, headers, now_s)
        if active and (one.status == REJECTED if one.status else up and (one.used or 0.0) >= 1.0)
    ]
    return max(shut, key=lambda one: one.until_s or 0.0, default=None)


def _states(headers: Headers, name: str) -> bool:
    return any(headers.get(start + name, "").strip().lower() == "true" for start in ("", "llm_provider-"))


class _Group(NamedTuple):
    form: Form
    family: str
    slot: str


_OVER_ALL: Final = _Group(FORMS[0], "", "")


@lru_cache(maxsize=4_096)
def _about(header: str) -> tuple[_Group, str] | None:
    """The window and the part that a header is about; ``None`` for one of no plan. litellm hands them on after ``llm_provider-``."""
    for form in FORMS:
        if match := form.header.fullmatch(header.removeprefix("llm_provider-")):
            return _Group(form, match["family"] or "", match["slot"] or ""), match["part"] or form.scope
    return None


def _windows(groups: Mapping[_Group, Texts], headers: Headers, now_s: float) -> Iterator[tuple[PlanReading, bool]]:
    """The reading of each window, and whether it can be the one that refuses this request."""
    limiting = {form: _active(form, groups, headers) for form in FORMS if form.active}
    for group, texts in groups.items():
        form, active = group.form, limiting.get(group.form, group.family)
        window = _window(form, group.family, texts) if group.slot or not form.active else None
        if window is None or (group.family == DEFAULT != active):  # it repeats the active one
            continue
        name, length_s = window
        share = parse.number(texts.get(form.used))
        used = None if share is None or not 0 <= share <= USED_MAX * form.whole else share / form.whole
        end = next((texts[part] for part in form.resets if part in texts), None)
        scope = _scope_of(name, group, groups)
        until_s, status = _until_s(end, headers, now_s), _word(texts.get("status"))
        limits = group.family == active
        paid = limits and (used or 0.0) >= 1.0 and form.active != "" and _states(headers, CREDITS)
        yield PlanReading(name, used, until_s, status, length_s, scope, now_s, paid), limits


def _scope_of(window: str, group: _Group, groups: Mapping[_Group, Texts]) -> str | None:
    """What a window is about: a name that is stated, else the one of its family or in its own name."""
    about = group.family.removeprefix(DEFAULT).lstrip("-") if group.form.active else _scope(window)
    about = groups.get(group._replace(slot=""), {}).get(group.form.scope) or about
    return "".join(filter(str.isprintable, about))[:SCOPE_MAX] or None


def _active(form: Form, groups: Iterable[_Group], headers: Headers) -> str:
    """The family that limits this request: the default one, unless another is named that has headers."""
    named = headers.get(form.active, "").strip().lower().replace("_", "-")
    return named if any((group.form, group.family) == (form, named) for group in groups) else DEFAULT


def _claim(over_all: Texts) -> str | None:
    claim = _word(over_all.get("representative-claim"))
    return None if claim is None else CLAIMS.get(claim, claim)


def _scope(window: str) -> str:
    """What a window of Claude is about; empty for the whole account. A name that is not known here may be of some models."""
    return _SCOPES.get(window, window.partition("_")[2])


def _word(text: str | None) -> str | None:
    return text if text is not None and _WORD.fullmatch(text) else None


def _until_s(text: str | None, headers: Headers, now_s: float) -> float | None:
    """Seconds until the end of a window: an instant by the clock of this machine, or if that is wrong, by the server's ``date``."""
    reset = parse.reset_in(text)
    own_s = by_this_clock_s(reset, headers, now_s)
    return reset.left_s(headers, now_s) if own_s is None else parse.wait(max(own_s, 0.0))


LIMITS_MAX: Final = 20
"""The limits in one body that are read."""

_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9.-]+")


def is_page(provider: str, path: str) -> bool:
    """Whether a path of a provider is a page with what is used of a plan."""
    return path.rstrip("/").endswith(tuple(table("headers")["pages"].get(provider, ())))


def plan_headers_in(body: Mapping[str, Any]) -> dict[str, str]:
    """The headers that say what a page or an event says of a plan; nothing for any other JSON value."""
    found: dict[str, str] = {}
    for claim, window in CLAIMS.items():
        stated = as_mapping(body.get(claim))
        if used := _as_header(stated.get("utilization"), 0.01):
            found[f"anthropic-ratelimit-unified-{window}-utilization"] = used
            found[f"anthropic-ratelimit-unified-{window}-reset"] = as_text(stated.get("resets_at"))
    for limit, named, label in _limits(body):
        other = _NOT_IN_NAMES.sub("-", named.lower()).removeprefix(DEFAULT).strip("-")[:40]
        family = f"{DEFAULT}-{other}" if other else DEFAULT
        for slot in ("primary", "secondary"):
            window_of = as_mapping(limit.get(slot) or limit.get(f"{slot}_window"))
            for name, (part, unit) in table("headers")["windows"].items():
                if text := _as_header(window_of.get(name), unit):
                    found[f"x-{family}-{slot}-{part}"] = text
        if label:
            found[f"x-{family}-limit-name"] = label
        if body.get("type") == EVENT:
            found[FORMS[1].active] = family
    if found and as_mapping(body.get("credits")).get("has_credits") is True:
        found[CREDITS] = "true"
    return found


def _limits(body: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str, str]]:
    """The limits of Codex in a body: the windows, the name of the family, and what it is about."""
    own = as_text(body.get("metered_limit_name")) or as_text(body.get("limit_name"))
    yield as_mapping(body.get("rate_limits") or body.get("rate_limit")), own, ""
    for other in items_of(body.get("additional_rate_limits"), LIMITS_MAX):
        label = as_text(other.get("limit_name"))
        yield as_mapping(other.get("rate_limit")), as_text(other.get("metered_feature")) or label, label


def _as_header(value: Any, unit: float) -> str:
    """A number in JSON as a header has it; empty for anything else."""
    number = as_number(value)
    return f"{number * unit:.6f}" if number is not None and abs(number) <= MAX_COUNT else ""
