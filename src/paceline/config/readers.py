"""From what somebody wrote to a value: a reader takes anything, or raises ``ValueError`` saying what would be right."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from reprlib import Repr
from typing import Any, Final, get_args
from urllib.parse import urlsplit

from paceline.core.quota import CONCURRENCY, INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, TOKENS, Quota, Rule, parse_quotas
from paceline.core.results import StoreError
from paceline.providers.registry import suggest
from paceline.shared.capacity import LostMode
from paceline.stores import open_store

Reader = Callable[[Any], Any]

SHOWN_MAX = 60
"""Characters of a wrong value that a message shows."""

SHORT: Final = Repr()
SHORT.maxlevel = 1
"""Looks no deeper than a message can show: aliases in YAML can multiply."""

AMOUNTS: Final = {
    "rps": (REQUESTS, 1.0),
    "rpm": (REQUESTS, 60.0),
    "rpd": (REQUESTS, 86_400.0),
    "tpm": (TOKENS, 60.0),
    "tpd": (TOKENS, 86_400.0),
    "itpm": (INPUT_TOKENS, 60.0),
    "otpm": (OUTPUT_TOKENS, 60.0),
    "concurrency": (CONCURRENCY, 0.0),
}
"""Limits that are a name and a number: unit, and period in seconds."""

_QUOTAS = '["500 requests/min", "400k tokens/min"]'


def shown(value: object) -> str:
    """A value for a message, not too long, and without what may be a password."""
    text = value if isinstance(value, str) else SHORT.repr(value)
    text = re.sub(r"//[^/@\s'\"]*@", "//...@", text)
    text = repr(text) if isinstance(value, str) else text
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."


def text(value: Any) -> str:
    """A text that says something."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{shown(value)}: it must be a text")
    return value.strip()


def tier(value: Any) -> str:
    """A text, or a whole number."""
    return text(str(value) if isinstance(value, int) and not isinstance(value, bool) else value)


def number(least: float, most: float, what: str) -> Callable[[Any], float]:
    """A reader of numbers within bounds; ``what``: seconds, say."""

    def read(value: Any) -> float:
        try:
            amount = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            amount = math.nan
        if not least <= amount <= most:
            raise ValueError(f"{shown(value)}: it must be {what} from {least:,.15g} to {most:,.15g}")
        return amount

    return read


def whole(least: int, most: int) -> Callable[[Any], int]:
    """A reader of whole numbers within bounds."""

    def read(value: Any) -> int:
        amount = number(least, most, "a whole number")(value)
        if not amount.is_integer():
            raise ValueError(f"{shown(value)}: it must be a whole number from {least:,} to {most:,}")
        return int(amount)

    return read


def milliseconds(most_s: float) -> Callable[[Any], float]:
    """A reader of milliseconds; gives seconds."""
    read = number(0.0, most_s * 1_000, "milliseconds")
    return lambda value: read(value) / 1_000


def truth(value: Any) -> bool:
    """True or false, also as a variable of the environment says it."""
    word = str(value).strip().lower()
    if word in ("true", "yes", "on", "1"):
        return True
    if word in ("false", "no", "off", "0"):
        return False
    raise ValueError(f"{shown(value)}: it must be true or false")


def base_url(value: Any) -> str:
    """The server's root without ``/v1`` and a slash at the end."""
    parts = urlsplit(text(value))
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.query
        or parts.fragment
        or "@" in parts.netloc
    ):
        raise ValueError("it must be an address like 'https://api.openai.com' or 'http://127.0.0.1:8080/v1'")
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/").removesuffix("/v1").rstrip("/")


def store(value: Any) -> str:
    """Never shows the whole of ``value``: it may hold a password."""
    if not isinstance(value, str):
        raise ValueError("it must be a text like 'sqlite:PATH' or 'redis://HOST:PORT/DB'")  # noqa: TRY004
    url = value.strip()
    try:
        open_store(url)  # nothing is opened yet
    except StoreError as error:
        raise ValueError(str(error)) from None
    return url


def lost(value: Any) -> str:
    """What to do while the store cannot be asked."""
    mode = text(value)
    if mode not in get_args(LostMode):
        hint = suggest(mode, get_args(LostMode))
        raise ValueError(f"{shown(mode)}: it must be 'safe', 'closed' or 'open'{hint}")
    return mode


def quotas(value: Any) -> tuple[Quota, ...]:
    """Quotas in their notation."""
    if isinstance(value, tuple):  # from the command line, read already
        return value
    if not isinstance(value, str | list) or not all(isinstance(quota, str) for quota in value):
        raise ValueError(f"{shown(value)}: write texts, e.g. {_QUOTAS}, or a table of rpm, tpm, ...")
    return parse_quotas(value)


def amount(name: str) -> Callable[[Any], Quota]:
    """A reader of the limit called ``name``, e.g. ``rpm``."""
    unit, period_s = AMOUNTS[name]
    read: Reader = number(1e-3, 1e12, "a number") if period_s else whole(1, 1_000_000)
    return lambda value: Quota(unit, float(read(value)), period_s, rule=Rule.BUCKET if period_s else Rule.SLOTS)


def is_amounts(value: Mapping[Any, Any]) -> bool:
    """Whether a table under ``limits`` holds amounts, and not models: by its names, or because all are numbers."""
    return any(name in AMOUNTS for name in value) or all(isinstance(part, int | float) for part in value.values())
