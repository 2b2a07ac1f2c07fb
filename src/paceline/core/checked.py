"""Checks of the fields of a dataclass against its declaration: types, ranges, and the names of arguments."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from reprlib import repr as brief
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from paceline.core.hints import did_you_mean
from paceline.core.quota import Quota
from paceline.core.results import SettingsError

C = TypeVar("C", bound=type[Any])

Range = tuple[str, float, float]
"""What a number counts, its least and its most."""


# Neither cache needs a bound: they have as many entries as there are declared types.
@cache
def _hints(its: type) -> dict[str, Any]:
    home = vars(its).get("__home__")  # of a public class, whose module is paceline
    return get_type_hints(its, vars(sys.modules[home]) if home else None)


@cache
def _taken_apart(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint) or hint, get_args(hint)


_WORDS: dict[Any, str] = {
    int: "a whole number", float: "a number", str: "a text", NoneType: "None",
    Mapping: "a dict", Iterable: "a list", tuple: "a tuple", Callable: "a function",
}  # fmt: skip


def within(bounds: Range) -> str:
    """``a share from 0 to 1``; without an end ``seconds, 0 or more``."""
    what, least, most = bounds
    if most == sys.float_info.max:
        return f"{what}, {least:,.15g} or more, and finite"
    return f"{what}, {least:,.15g} or more" if most == math.inf else f"{what} from {least:,.15g} to {most:,.15g}"


def check(made: object, **ranges: Range) -> None:
    """Check the fields of a dataclass: types as declared, and ``ranges`` for numbers.

    Raises:
        SettingsError: A value is wrong. It names the field, the value, and what is right.
    """
    its: Any = type(made)
    for name, hint in _hints(its).items():
        value, bounds = getattr(made, name), ranges.get(name)
        # The type itself, as mostly, needs no further look. A float does: nan is not a number here.
        wrong = "" if type(value) is hint is not float else _misfit(name, value, hint)
        if bounds and value is not None and (wrong or not bounds[1] <= value <= bounds[2]):
            none = " or None" if NoneType in get_args(hint) else ""
            raise SettingsError(f"{name} is {brief(value)}: it must be {within(bounds)}{none}")
        if wrong:
            raise SettingsError(wrong)


def check_names(called: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Check the names of arguments.

    Raises:
        TypeError: One is unknown. It names the most similar one, or all.
    """
    known = list(known)
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or f"; its arguments are {', '.join(known)}"
            raise TypeError(f"{called}() has no argument {name!r}{hint}")


def suggesting(made: C) -> C:
    """Let a dataclass suggest the names of arguments that are misspelled."""
    init, known = made.__init__, tuple(made.__dataclass_fields__)

    @wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        check_names(made.__name__, kwargs, known)
        init(self, *args, **kwargs)

    made.__init__ = checked
    return made


def _misfit(place: str, value: Any, hint: Any) -> str:
    """What is wrong with ``value``; empty if its type is right."""
    kind, parts = _taken_apart(hint)
    if kind in (Union, UnionType):
        return "" if Quota in parts else _misfits(place, value, hint, parts)  # who parses a quota tells what is right
    if kind is Literal:
        return "" if any(value == one and type(value) is type(one) for one in parts) else _wrong(place, value, hint)
    if not _is_a(value, kind):
        return _wrong(place, value, hint)
    if kind is not Mapping:
        return ""
    of_name, of_value = parts
    for name, one in value.items():
        if wrong := _misfit(f"a name in {place}", name, of_name) or _misfit(f"{place}[{name!r}]", one, of_value):
            return wrong
    return ""


def _misfits(place: str, value: Any, hint: Any, parts: Sequence[Any]) -> str:
    """What is wrong with a ``value`` of none of the types in ``parts``; empty if it is of one."""
    each = [_misfit(place, value, part) for part in parts]
    inner = next((one for one in each if not one.startswith(f"{place} is ")), "")  # about a part of the value
    return "" if "" in each else inner or _wrong(place, value, hint)


def _is_a(value: Any, kind: Any) -> bool:
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool) and value == value  # noqa: PLR0124  (nan)
    if kind is Any:
        return True
    if getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False):
        return all(hasattr(value, name) for name in vars(kind) if not name.startswith("_"))
    return isinstance(value, kind)


def _wrong(place: str, value: Any, hint: Any) -> str:
    *others, last = _words(hint)
    return f"{place} is {brief(value)}: it must be {', '.join(others)}{' or ' if others else ''}{last}"


def _words(hint: Any) -> list[str]:
    kind, parts = _taken_apart(hint)
    if kind in (Union, UnionType):
        return list(dict.fromkeys(word for part in parts for word in _words(part)))
    if kind is Literal:
        return [repr(one) for one in parts]
    if kind is bool:
        return ["True", "False"]
    return [_WORDS.get(kind) or f"a {getattr(kind, '__name__', kind)}"]
