"""Values out of JSON, and the tables beside the code. A value that cannot be read is absent, no error."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

MAX_COUNT: Final = 1e15  # a limit, a remainder or a count beyond this is nonsense
BOM: Final = b"\xef\xbb\xbf"
"""The byte order mark that some servers write before a text."""
NUMBER: Final = int, float
LISTS: Final = list, tuple  # a union of types takes several times as long to check
MAPPING: Final = dict, Mapping  # nearly always a dict, and the check of the other takes five times as long


def count(value: Any) -> int:
    """A count of tokens out of JSON; 0 for anything else."""
    if type(value) is int:  # nearly always
        return value if 0 < value <= MAX_COUNT else 0
    is_number = isinstance(value, NUMBER) and not isinstance(value, bool)
    return int(value) if is_number and 0 < value <= MAX_COUNT else 0  # so no NaN, no infinity


def as_number(value: Any) -> float | None:
    """``value`` when it is a number, else ``None``."""
    return value if isinstance(value, NUMBER) and not isinstance(value, bool) else None


def as_mapping(value: Any) -> Mapping[str, Any]:
    """``value`` when it is a mapping, else an empty one."""
    return value if value is not None and isinstance(value, MAPPING) else {}


def items_of(value: Any, most: int | None = None) -> list[Mapping[str, Any]]:
    """The first items of a list as mappings; none of anything else."""
    return [as_mapping(one) for one in value[:most]] if isinstance(value, list) else []


_names: Final = lru_cache(maxsize=None)(lambda path: tuple(path.split(".")))  # paths of tables alone


def at(value: Any, path: str) -> Any:
    """The value at a path like ``choices.0.text`` in mappings and lists; ``None`` if there is none."""
    for name in _names(path):
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, LISTS):
            if not name.isdigit() or int(name) >= len(value):
                return None
            value = value[int(name)]
        elif isinstance(value, Mapping):
            value = value.get(name)
        else:
            return None
    return value


def values_at(found: Mapping[str, Any], paths: Iterable[str]) -> list[Any]:
    """The values at these paths that are there. Most paths are a name."""
    return [one for path in paths if (one := at(found, path) if "." in path else found.get(path)) is not None]


def as_text(value: Any) -> str:
    """``value`` when it is a text, digits for an integer, else nothing."""
    if isinstance(value, str):
        return value
    return str(value)[:20] if isinstance(value, int) and not isinstance(value, bool) else ""


def decode(body: str | bytes | bytearray) -> Any:
    """The JSON in ``body``, or ``None``."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


@cache
def table_beside(file: str, name: str) -> dict[str, Any]:
    """What is in ``NAME.toml``, in the folder of ``file``."""
    import tomllib

    return tomllib.loads(Path(file).with_name(f"{name}.toml").read_text("utf-8"))
