"""The refusal in an error: what its codes and words mean, and what they, its details and the headers say of a quota."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from paceline.core.quota import CONCURRENCY, REQUESTS, TOKENS
from paceline.core.results import Refusal, RefusalKind, RefusalScope
from paceline.providers import parse
from paceline.providers.base import Headers
from paceline.providers.forms import table
from paceline.providers.plan_headers import refused_window, window_of
from paceline.providers.texts import TEXT_MAX, Said, quota_named, said_in
from paceline.responses.errors import message_of, stated_status
from paceline.responses.values import as_mapping, as_number, as_text, items_of

_REFUSALS: Final = {RefusalKind(kind): row for kind, row in table("refusals")["refusals"].items()}
ORDER: Final = list(_REFUSALS)
"""The kinds, the one first that holds where an error names several."""
MEANINGS: Final = {code: Refusal(kind) for kind, row in _REFUSALS.items() for code in row["codes"]}
"""The refusal that a code means, by its name in lower case; an HTTP status is one."""

_SAYS: Final = {what: re.compile(pattern) for what, pattern in table("refusals")["expressions"].items()}
_WAITS: Final[Mapping[str, float]] = table("refusals")["waits"]
"""The fields of an error that state a wait, and the seconds of their unit."""

_WORDS: Final = [
    (kind, re.compile("|".join(row["words"]), re.IGNORECASE), row["at"])
    for kind, row in _REFUSALS.items()
    if "words" in row
]
"""What the words of an error mean, and the statuses at which they are read."""

_REFUSING: Final = (None, 413, 429, 498, 502, 503, 504, 529)
"""The statuses of refusals that are not about money, and ``None``, of an error inside an answer; at a 403 or 500 a code or words must say so."""


_NAMES: Final = ("error_code", "code", "Code", "type", "status", "reason")


def codes_of(error: Mapping[str, Any]) -> list[str]:
    """The codes of an error, in any of the places where providers put them; the first is the one to show, a name if there is one."""
    holders = [*map(as_mapping, (error.get("details"), error, error.get("detail"))), *items_of(error.get("errors"), 5)]
    holders += details_of(error).get("google.rpc.ErrorInfo", ())
    found = [as_text(holder[name])[:100] for name in _NAMES for holder in holders if name in holder]
    found.append(as_text(error.get("__type")).rpartition("#")[2][:100])
    return sorted(filter(None, found), key=str.isdigit)


def details_of(error: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The parts of Google's ``details`` by their kind: ``google.rpc.QuotaFailure``, ``google.rpc.RetryInfo``, ..."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for one in items_of(error.get("details"), 20):
        found.setdefault(as_text(one.get("@type")).rpartition("/")[2], []).append(one)
    return found


KEY_INVALID: Final = "API_KEY_INVALID"
"""Google's reason for an invalid key, whose status is 400 (ai.google.dev/gemini-api/docs/troubleshooting, 2026-11)."""


def _kinds_by_words(status: int | None, codes: list[str], text: str) -> Iterator[RefusalKind]:
    """What the words of an error say.

    A 400, 401 or 403 may quote the request: there, quoted words do not count, nor any if a code has another meaning, and
    the words of a 400 count only in a message to the owner of the account. The message of a 500 must begin with them.
    """
    if status == 500:
        yield from (kind for kind, words, at in _WORDS if status in at and words.match(text))
        return
    if status in (400, 401, 403):
        if any(" " not in code and _SAYS["other"].search(code) for code in codes) or _SAYS["bad_key"].match(text):
            return
        if status == 400 and not _SAYS["money"].match(text):
            return
        text = _SAYS["quoted"].sub(" ", text)
    yield from (kind for kind, words, at in _WORDS if (status or 0) in at and words.search(text))


def refuses_key(status: int, error: Mapping[str, Any]) -> bool:
    """Whether an error says that the key is refused, or may not do this: a 401, a 403, a 400 that names the key."""
    if status != 400:
        return status in (401, 403)
    return KEY_INVALID in codes_of(error) or _SAYS["bad_key"].match(message_of(error)) is not None


def is_about_key(status: int, error: Mapping[str, Any]) -> bool:
    """Whether an error tells its reader of the key that was sent: not a 403 that forbids a model, a place or a text alone."""
    names = status != 403 or any(map(_SAYS["key"].search, (*codes_of(error), message_of(error))))
    return names and refuses_key(status, error)


Codes = Mapping[str, Refusal]
"""Codes of one provider, with what they mean there."""

NO_CODES: Final[Codes] = {}


def meaning(status: int | None, codes: list[str], text: str, own: Codes = NO_CODES) -> Refusal | None:
    """What an error with these codes means, as a refusal with its kind, and what a code of the provider's ``own`` tells of its quota.

    ``None`` for an error that is no refusal.
    """
    mine = [own[code] for code in codes if code in own]
    found = _found(status, codes, text)
    said = bool(found)
    # A status alone says less than a name.
    if str(status) in own and all(one.kind is RefusalKind.RATE for one in found):
        mine.append(own[str(status)])
    if not (said and status == 503):  # proxies use it for refusals of any kind
        found += filter(None, [MEANINGS.get(str(status))])
    if not (mine or found):
        return None
    first = min(mine or found, key=lambda refusal: ORDER.index(refusal.kind))
    if mine or first.kind in (RefusalKind.MONEY, RefusalKind.NEVER_FITS):
        return first
    return first if status in _REFUSING or (status in (403, 500) and said) else None


def _found(status: int | None, codes: list[str], text: str) -> list[Refusal]:
    """What the codes and the words of an error mean at any provider."""
    found = [MEANINGS[code.lower()] for code in codes if code.lower() in MEANINGS]
    found += [Refusal(RefusalKind.MONEY) for _ in filter(_SAYS["spent"].fullmatch, codes)]
    return [*found, *map(Refusal, _kinds_by_words(status, codes, text))]


def classify(
    status: int | None, error: Mapping[str, Any], text: str, headers: Headers, codes: Codes = NO_CODES
) -> Refusal | None:
    """The refusal in an error; ``None`` for any other error.

    Args:
        status: The HTTP status; ``None`` for an error inside an answer.
        error: The error object.
        text: Its message.
        headers: The headers of the answer.
        codes: Codes of the provider, which hold before the common ones.
    """
    text = text[:TEXT_MAX]
    named = headers.get("x-amzn-errortype", "").partition(":")[0][:100]
    names = [*filter(None, [named]), *codes_of(error)]
    said = meaning(stated_status(error) if status is None else status, names, text, codes)
    if said is None:
        return None
    facts = facts_in(error, text, headers)
    kind = _by_numbers(said.kind, facts, text)
    fits = kind is not RefusalKind.NEVER_FITS or facts.limit == 0  # then the model or the mode is not enabled
    waits = [wait for wait in (parse.retry_after_s(headers), facts.wait_s) if wait]
    refusal = Refusal(
        kind=kind,
        message=text[:300] if error else "",
        code=next(iter(names), ""),
        retry_after_s=max(waits, default=facts.reset_s),
        sooner_s=min(waits) if len(set(waits)) > 1 else None,
        scope=RefusalScope.POOL if fits else RefusalScope.REQUEST,
    )
    if kind is RefusalKind.MONEY:  # it says nothing of a quota
        return refusal
    if kind is RefusalKind.CAPACITY:  # neither does this, but a full queue is about the number in flight
        return replace(refusal, unit=CONCURRENCY) if facts.unit == CONCURRENCY else refusal
    refusal = replace(
        refusal,
        unit=said.unit or _unit_of(facts, names),
        period_s=said.period_s or facts.period_s,
        limit=facts.limit or None,
        used=facts.used,
        requested=facts.requested,
        limits=facts.limits,
    )
    return _of_window(refusal, headers) if kind is RefusalKind.RATE else refusal


def _of_window(refusal: Refusal, headers: Headers) -> Refusal:
    """A refusal with the window of a plan that its headers name, if they name one."""
    window = refused_window(headers, time.time())
    if window is None:
        return refusal
    wait_s = refusal.retry_after_s or window.until_s or None
    return replace(refusal, retry_after_s=wait_s, window=window.window, of_account=window.scope is None)


def of_window_in_words(refusal: Refusal) -> Refusal:
    """A refusal for a rate with the window of a plan that its words name, if nothing says more.

    They name it by hours, days or weeks alone, without a unit, an amount or a wait: "your weekly usage limit". A wait
    of seconds is about a rate ("hourly rate limit exceeded"), and a long one is about an allowance without a name.
    """
    says_more = {refusal.window, refusal.unit, refusal.limit, refusal.retry_after_s} != {None}
    return refusal if says_more else replace(refusal, window=window_of(refusal.period_s))


def _by_numbers(kind: RefusalKind, facts: Said, text: str) -> RefusalKind:
    """Whether a request that is refused for a rate is too large for a quota, ever: by the numbers where a refusal states them, and by its words where not.

    OpenAI says "Request too large ... Limit 250000, Requested 546", too, while others use up the quota: it fits later.
    """
    if kind not in (RefusalKind.RATE, RefusalKind.NEVER_FITS):
        return kind
    if facts.limit == 0:
        return RefusalKind.NEVER_FITS
    if facts.limit is None or facts.requested is None or facts.unit is None:
        return RefusalKind.NEVER_FITS if text.startswith("Request too large") else kind
    return RefusalKind.NEVER_FITS if facts.requested > facts.limit else RefusalKind.RATE


_UNIT = re.compile(r"(?:rate_limit_reached_|rate_)?(token|request)s?(?:_(?:rate_)?limit_(?:reached|exceeded))?")
"""A code that names a unit: OpenAI's type ``tokens``, ``tokens_limit_reached``, ``rate_limit_reached_requests``."""


def _unit_of(facts: Said, names: list[str]) -> str | None:
    """The unit in the words of a refusal, or else in its codes. Where the words are about tokens, a code of requests holds (mocklimit 0.6)."""
    coded = next((f"{match[1]}s" for name in names if (match := _UNIT.fullmatch(name.lower()))), None)
    return coded if facts.unit is None or (coded, facts.unit) == (REQUESTS, TOKENS) else facts.unit


def facts_in(error: Mapping[str, Any], text: str, headers: Headers) -> Said:
    """What an error says of a quota: its structured parts before its message, and the longest of the waits."""
    said = said_in(text) if text else Said()
    waits = [parse.wait((as_number(error[name]) or 0.0) * unit) for name, unit in _WAITS.items() if name in error]
    left_s = parse.wait(as_number(error.get("resets_in_seconds")))
    ends = [] if left_s or "resets_at" not in error else [parse.Reset(as_number(error["resets_at"]))]
    if said.ends_at_s is not None:
        ends.append(parse.Reset(said.ends_at_s))
    details = details_of(error)
    waits += [parse.go_duration_s(as_text(one.get("retryDelay"))) for one in details.get("google.rpc.RetryInfo", ())]
    for one in details.get("google.rpc.ErrorInfo", ()):
        # Cloud Code, of Gemini CLI: quotaResetDelay "10h26m41.5s", quotaResetTimeStamp "2026-04-20T09:19:49Z" (2026)
        stated = as_mapping(one.get("metadata"))
        waits.append(parse.go_duration_s(as_text(stated.get("quotaResetDelay"))))
        ends.append(parse.reset_in(as_text(stated.get("quotaResetTimeStamp"))))
    reset_s = parse.longest(said.reset_s, left_s, *[end.asked_s(headers) for end in ends])
    said = replace(said, wait_s=parse.longest(said.wait_s, *waits), reset_s=reset_s)
    metrics = _METRIC.findall(text)
    return _google(said, details, metrics) if details or metrics else said


_METRIC = re.compile(r"Quota exceeded for (?:metric: )?[\w.-]{1,80}/(\w{1,100})(?:[^,\n]{0,100}, limit: (\d{1,15}))?")
"""What the message of Google says of each violated quota: its metric, and mostly its limit."""


def _google_names(
    details: Mapping[str, list[Mapping[str, Any]]], found: list[tuple[str, str]]
) -> list[tuple[str, ...]]:
    """The name, the metric and the value of each violated quota. Google leaves a value of 0 out of the details; the message has it."""
    said = dict(sorted(found, key=lambda one: one[1] == "0"))  # a day and a minute have one metric: its 0 counts
    named: list[tuple[str, ...]] = [
        (
            as_text(quota.get("quotaId")),
            metric := as_text(quota.get("quotaMetric")),
            as_text(quota.get("quotaValue")) or said.get(metric.rpartition("/")[2], ""),
        )
        for failure in details.get("google.rpc.QuotaFailure", ())
        for quota in items_of(failure.get("violations"), 20)
    ]
    for info in details.get("google.rpc.ErrorInfo", ()):
        fields = as_mapping(info.get("metadata"))
        if fields.get("quota_limit") or fields.get("quota_metric"):
            named.append(tuple(as_text(fields.get(f"quota_{name}")) for name in ("limit", "metric", "limit_value")))
    return named or [(metric, "", limit) for metric, limit in found]


def _google(said: Said, details: Mapping[str, list[Mapping[str, Any]]], metrics: list[tuple[str, str]]) -> Said:
    """``said``, of the violated quota that takes longest; of one with a limit of 0 before all others.

    It is named in ``QuotaFailure``, in the metadata of ``ErrorInfo``, or in the message alone (2024 to 2026).
    """
    found: list[tuple[bool, float, str | None, float | None, float | None]] = []
    for name, metric, value in _google_names(details, metrics):
        limit_of = 0.0 if parse.number(value) == 0 else parse.amount(value)
        unit, period_s = quota_named(name, metric)
        found.append((limit_of == 0, period_s or 0.0, unit, period_s, limit_of))
    if not found:
        return said
    _, _, unit, period_s, limit = max(found, key=lambda one: one[:2])
    return replace(said, unit=unit, period_s=period_s, limit=said.limit if limit is None else limit)
