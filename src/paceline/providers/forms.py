"""The tables beside this file: the forms of requests, answers and errors. Each explains its fields."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from pathlib import Path
from typing import Any


@cache
def table(name: str) -> dict[str, Any]:
    """What is in ``NAME.toml``."""
    import tomllib

    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text("utf-8"))


def dialect(api: str) -> Mapping[str, Any]:
    """What the API of a provider has of its own; empty for nothing."""
    found: Mapping[str, Any] = table("dialects").get(api, {})
    return found


@lru_cache(maxsize=1_024)  # each request asks for both
def endpoint_of(api: str, path: str) -> str | None:
    """The endpoint of an API whose path ends ``path``, query and trailing slash aside; ``None`` when there is none."""
    clean = "/" + path.partition("?")[0].strip("/")
    return next((name for end, name in dialect(api)["endpoints"].items() if clean.endswith(end)), None)


@lru_cache(maxsize=1_024)
def pool_in(api: str, alias: str) -> str:
    """The pool that a model shares with others, by its alias; the alias itself if it shares none."""
    return next((pool for pattern, pool in dialect(api)["pools"] if fnmatchcase(alias, pattern)), alias)
