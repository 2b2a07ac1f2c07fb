"""What becomes of a request when the first place of its model cannot answer: the next place, and who is told."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from paceline.gateway.errors import untold
from paceline.gateway.relay import ClientReply
from paceline.pacing.answers import cause_of_error

log = logging.getLogger("paceline.gateway")

_OWN: Final = frozenset({"gave_up", "stopped", "never_fits", "timeout", "queue_full", "too_large", "unreadable"})
"""The words of paceline's own refusals that another place may not have: the others are about the client, or the store."""

_OF_PLACE: Final = frozenset({*range(300, 400), 401, 402, 403, 404, 408, 413, 429})
"""The statuses below 500 that are about the place: its address, its key, its money, its models, its load, what it takes at once. The others are about the request."""


def why_failed(outcome: ClientReply | Exception) -> str:
    """Why a request is to go on to the next place, in words that name nothing of it; empty for an answer that its client gets."""
    if isinstance(outcome, Exception):
        return cause_of_error(outcome) or ""
    if outcome.is_good:
        return ""
    word = dict(outcome.headers).get(b"x-paceline", b"").decode("latin-1")
    if word:
        return word if word in _OWN else ""
    return f"status {outcome.status}" if outcome.status >= 500 or outcome.status in _OF_PLACE else ""


def told(target: str, failed: Mapping[str, str]) -> bytes:
    """What the answer of ``target`` says of the places that have ``failed`` before, and why; empty if it is the first one."""
    before = ", ".join(f"{quote(name, safe='/:@*+')} ({why})" for name, why in failed.items())
    return f"{quote(target, safe='/:@*+')} after {before}".encode() if before else b""


def tell(name: str, target: str, after: str, why: str) -> None:
    """Log a fallback: one kind once in a while, with the number since."""
    more = untold("fallback", (target, after, why))
    if more is not None:
        since = f", and {more} more before this one" if more else ""
        log.warning(
            "%s: %s cannot answer (%s): the request goes to %s%s", name[:100], target[:100], why, after[:100], since
        )
