"""What is sent to a provider and not paced: each kind is logged once, and ``Limiter.status()`` lists it."""

from __future__ import annotations

import logging
import os
import re
from typing import Any, Final

from paceline.responses.values import table_beside

log = logging.getLogger("paceline.http")

_TABLE: Final = table_beside(__file__, "unpaced")

MANAGEMENT: Final = re.compile(
    rf"[/:](?:{'|'.join(_TABLE['management'])})(?=[/:]|$)|/(?:models|endpoints|deployments)$", re.IGNORECASE
)
"""The paths of providers at which nothing is generated: their POSTs are not announced."""

MEDIA_HOSTS: Final = {host: name for name, hosts in _TABLE["media"].items() for host in hosts}
"""Hosts for speech, images and video, whose POSTs are announced."""

_WORD = re.compile(r"[a-z]{1,24}(?:[-_][a-z]{1,24}){0,2}|v\d[a-z\d]{0,7}|", re.IGNORECASE)


GRPC: Final = "gRPC"
WEBSOCKET: Final = "WebSocket"
DSPY: Final = "dspy"

REASONS: Final = {
    GRPC: "it is no HTTP request",
    WEBSOCKET: "its messages are no HTTP requests",
    DSPY: "it has another HTTP client than 3.4's",
}
"""The kinds that are not POSTs, and why they are not paced."""

_REST: Final = "use google-genai, or the option transport='rest' (of vertexai: api_transport='rest')"
INSTEAD: Final = {
    ("xai", GRPC): "use openai.OpenAI(base_url='https://api.x.ai/v1')",
    ("gemini", GRPC): _REST,
    ("vertex", GRPC): _REST,
    ("", DSPY): "use dspy.LM(..., engine='litellm')",
}
"""What is paced, in place of a provider's kind."""

_BY: Final = " by "

KINDS_MAX: Final = 1_000
"""How many kinds are kept."""

kinds: dict[tuple[str, str, str], int] = {}
"""What this process has sent and not paced: provider, host and kind, and the number.

A kind is a POST with the kind of its path, and with the HTTP library if that is not paced; or one of :data:`REASONS`.
"""


def is_of_model(provider: str, path: str) -> bool:
    """Whether a POST to ``path`` at a host of ``provider`` may be answered by a model."""
    return _TABLE["models"].get(provider, "/") in path and not MANAGEMENT.search(path[:2_000])


def announce(provider: str, host: str, path: str, library: str = "", *, trial: bool = False) -> None:
    """Log that a POST to ``path`` at a host of ``provider`` is not paced, once for each host and kind of path.

    Nothing is logged for a path of :data:`MANAGEMENT`. The kind of a path has ``*`` for its names and numbers, which may
    be a user's. A ``library`` is named if the request is not paced because of it. ``trial``: the path is paced once an
    answer has the form of an LLM's.
    """
    if is_of_model(provider, path):
        parts = re.split("([/:])", path[:200])
        kind = "".join(part if part in "/:" or _WORD.fullmatch(part) else "*" for part in parts)
        announce_kind(provider, host, f"POST {kind}" + (_BY + library if library else ""), trial=trial)


def announce_kind(provider: str, host: str, kind: str, *, trial: bool = False) -> None:
    """Log once that a kind is not paced at a host, and count it; provider and host are empty where they are unknown."""
    key = provider, host, kind
    if key in kinds:
        kinds[key] += 1  # WEAK: without a lock: if two threads count at once, one is lost
    if key in kinds or len(kinds) >= KINDS_MAX:
        return
    kinds[key] = 1
    if trial:
        text = "%s is not paced before an answer has the form of an LLM's; to pace it at once, name its provider: limiter.attach(client, provider=%r)"
        log.warning(text, with_host(kind, host), provider)
        return
    library = kind.partition(_BY)[2]
    reason = REASONS.get(kind, f"paceline does not {f'pace {library}' if library else 'read this path'}")
    log.warning("%s is not paced, because %s; to pace it, %s", with_host(kind, host), reason, _remedy(provider, kind))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=kinds.clear)  # what the parent has sent


def with_host(kind: str, host: str) -> str:
    """The kind with its host: ``POST api.openai.com/v1/videos``."""
    return kind.replace(" /", f" {host}/", 1) if " /" in kind else f"{kind} {host}".rstrip()


def _remedy(provider: str, kind: str) -> str:
    pool = f"{provider or '<provider>'}/<model>"
    permit = f"acquire a permit around each call: `with limiter.acquire('{pool}') as permit`"
    by_http = "send it with httpx, httpx2, aiohttp, requests or urllib3" if _BY in kind else None
    instead = INSTEAD.get((provider, kind), by_http)
    return f"{instead}, or {permit}" if instead else permit


def rows() -> list[dict[str, Any]]:
    """What was not paced, as JSON values: of each kind its provider, host, number, and what to do about it."""
    names = ("provider", "host", "kind", "count", "remedy")
    return [dict(zip(names, (*key, count, _remedy(key[0], key[2])), strict=True)) for key, count in list(kinds.items())]
