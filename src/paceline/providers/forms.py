"""The tables beside this file: the forms of requests, answers and errors. Each explains its fields."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
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


def pool_in(api: str, alias: str) -> str:
    """The pool that a model shares with others, by its alias; the alias itself if it shares none."""
    return next((pool for pattern, pool in dialect(api)["pools"] if fnmatchcase(alias, pattern)), alias)
