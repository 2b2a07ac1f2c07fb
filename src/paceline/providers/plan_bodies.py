"""What bodies say of a plan, as the headers that say the same: :mod:`paceline.providers.plan_headers` reads both.

* **Claude**: ``GET /api/oauth/usage``, which Claude Code asks for: ``five_hour.{utilization,resets_at}`` and so on by the names of the claims, in
  percent (answers of 2026-03-09 and 2026-04-11, published by users: Haleclipse/CCometixLine#95, Maciek-roboblog/Claude-Code-Usage-Monitor#202).
* **Codex**: ``GET /backend-api/wham/usage``: ``rate_limit.{primary,secondary}_window.{used_percent,limit_window_seconds,reset_at}``, and the same of
  other limits in ``additional_rate_limits`` (an answer of 2026-08-23: Adolanium/hermes-resetwatch#2). The event ``codex.rate_limits`` in a stream
  has ``rate_limits.{primary,secondary}.{used_percent,window_minutes,reset_at}`` of the limit ``metered_limit_name`` (openai/codex
  ``rate_limits.rs``, 2026).

WEAK: second-hand, as the headers are (all read 2026-11-28). ``extra_usage`` of Claude, money that a person has allowed, is not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from paceline.providers import parse
from paceline.providers.forms import table
from paceline.providers.parse import as_mapping, as_text
from paceline.providers.plan_headers import CLAIMS, CREDITS, DEFAULT, EVENT, FORMS

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
        if used := _text(stated.get("utilization"), 0.01):
            found[f"anthropic-ratelimit-unified-{window}-utilization"] = used
            found[f"anthropic-ratelimit-unified-{window}-reset"] = as_text(stated.get("resets_at"))
    for limit, named, label in _limits(body):
        family = "-".join(
            filter(None, (DEFAULT, _NOT_IN_NAMES.sub("-", named.lower()).removeprefix(DEFAULT).strip("-")[:40]))
        )
        for slot in ("primary", "secondary"):
            window_of = as_mapping(limit.get(slot) or limit.get(f"{slot}_window"))
            for name, (part, unit) in table("headers")["windows"].items():
                if text := _text(window_of.get(name), unit):
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
    for other in parse.items_of(body.get("additional_rate_limits"), LIMITS_MAX):
        label = as_text(other.get("limit_name"))
        yield as_mapping(other.get("rate_limit")), as_text(other.get("metered_feature")) or label, label


def _text(value: Any, unit: float) -> str:
    """A number in JSON as a header has it; empty for anything else."""
    is_number = isinstance(value, parse.NUMBER) and not isinstance(value, bool) and abs(value) <= parse.MAX_COUNT
    return f"{value * unit:.6f}" if is_number else ""
