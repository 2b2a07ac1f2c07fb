"""What an error means, by its status, its codes and its words: the families of all providers in one place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from paceline.core.results import Refusal, RefusalKind
from paceline.providers.forms import table
from paceline.providers.parse import as_mapping, as_text, items_of, message_of

_REFUSALS: Final = {RefusalKind(kind): row for kind, row in table("errors")["refusals"].items()}
ORDER: Final = list(_REFUSALS)
"""The kinds, the one first that holds where an error names several."""
MEANINGS: Final = {code: Refusal(kind) for kind, row in _REFUSALS.items() for code in row["codes"]}
"""The refusal that a code means, by its name in lower case; an HTTP status is one."""

_SAYS: Final = {what: re.compile(pattern) for what, pattern in table("errors")["expressions"].items()}

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
    holders += details_of(error, "ErrorInfo")
    found = [as_text(holder[name])[:100] for name in _NAMES for holder in holders if name in holder]
    found.append(as_text(error.get("__type")).rpartition("#")[2][:100])
    return sorted(filter(None, found), key=str.isdigit)


def details_of(error: Mapping[str, Any], kind: str) -> Iterator[Mapping[str, Any]]:
    """The parts of Google's ``details`` of one kind: ``QuotaFailure``, ``RetryInfo``, ``ErrorInfo``."""
    for detail in items_of(error.get("details"), 20):
        if as_text(detail.get("@type")).endswith(f"google.rpc.{kind}"):
            yield detail


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


def _named(status: int | None, codes: list[str], text: str) -> list[Refusal]:
    """What the codes and the words of an error say, without its status."""
    found = [MEANINGS[code.lower()] for code in codes if code.lower() in MEANINGS]
    found += [Refusal(RefusalKind.MONEY) for _ in filter(_SAYS["spent"].fullmatch, codes)]
    return [*found, *map(Refusal, _kinds_by_words(status, codes, text))]


NO_CODES: Final[Mapping[str, Refusal]] = {}


def meaning(status: int | None, codes: list[str], text: str, own: Mapping[str, Refusal] = NO_CODES) -> Refusal | None:
    """What an error with these codes means, as a refusal with its kind, and what a code of the provider's ``own`` tells of its quota.

    ``None`` for an error that is no refusal.
    """
    mine = [own[code] for code in codes if code in own]
    found = _named(status, codes, text)
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
