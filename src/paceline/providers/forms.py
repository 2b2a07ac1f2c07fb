"""The tables beside this file: the forms of requests, answers and errors. Each explains its fields."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from math import inf
from typing import Any

from paceline.responses.values import table_beside


def table(name: str) -> dict[str, Any]:
    """What is in ``NAME.toml``."""
    return table_beside(__file__, name)


def dialect(api: str) -> Mapping[str, Any]:
    """What the API of a provider has of its own; empty for nothing."""
    found: Mapping[str, Any] = table("dialects").get(api, {})
    return found


@lru_cache(maxsize=1_024)  # each request asks for both
def endpoint_of(api: str, path: str) -> str | None:
    """The endpoint of an API whose path ends ``path``, query and trailing slash aside; ``None`` when there is none."""
    clean = "/" + path.partition("?")[0].strip("/")
    return next((name for end, name in dialect(api)["endpoints"].items() if clean.endswith(end)), None)


@lru_cache(maxsize=4_096)
def about(api: str, field: str, model: str) -> list[Any]:
    """What a list of an API says of a model: what follows the first pattern that matches its name; empty for nothing."""
    return next((said for pattern, *said in dialect(api)[field] if fnmatchcase(model, pattern)), [])


def pool_in(api: str, alias: str) -> str:
    """The pool that a model shares with others, by its alias; the alias itself if it shares none."""
    [pool] = about(api, "pools", alias) or [alias]
    return str(pool)


def is_long(api: str, model: str, input_tokens: int) -> bool:
    """Whether a request of the model has limits of its own by its length, which is an estimate: it may be too low by a fifth."""
    [most] = about(api, "long", model) or [inf]
    return input_tokens > 0.8 * float(most)
