"""The data set of what is known of providers: ``tables/providers.toml`` has its form, its day and the heads.

A *head* is what is known of a provider as a whole: its hosts, the root of its paths, its tiers. The *rows* are about models: ``limits``
and ``models``, which are their lives. They are read when they are first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

TABLES: Final = Path(__file__).with_name("tables")
"""The folder of the data set that comes with paceline."""

LIMITS, MODELS = "limits", "models"
"""The kinds of rows."""

Row = dict[str, Any]
_T = TypeVar("_T")


class Lazy(Mapping[str, _T]):
    """A mapping that is made when it is first asked for: importing a module reads no file."""

    def __init__(self, make: Callable[[], Mapping[str, _T]]) -> None:
        self._make = make

    def __getitem__(self, key: str) -> _T:
        return self._make()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._make())

    def __len__(self) -> int:
        return len(self._make())


@cache
def _read(name: str) -> dict[str, Any]:
    import tomllib

    return tomllib.loads(TABLES.joinpath(f"{name}.toml").read_text("utf-8"))


def day() -> str:
    """The day of the data set, as ``2026-11-28``."""
    return str(_read("providers")["day"])


@cache
def heads() -> dict[str, dict[str, Any]]:
    """What is known of each provider as a whole, by its name."""
    found: dict[str, dict[str, Any]] = _read("providers")["providers"]
    return found


@cache
def rows(provider: str, kind: str) -> list[Row]:
    """The rows of ``provider`` of one kind, with the text of their day as ``as_of``; of two that fit equally, the first holds."""
    if not TABLES.joinpath(f"{provider}.toml").exists():
        return []
    found: list[Row] = _read(provider)["providers"][provider].get(kind, [])
    return [row | {"as_of": str(row.get("day", row.get("about")))} for row in found]
