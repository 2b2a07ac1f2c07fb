"""Code that is written once, as coroutines, and runs in sync code, too: there it does its work without suspending."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from inspect import isawaitable
from typing import Any, TypeVar

T = TypeVar("T")


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that does not suspend."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise AssertionError("a coroutine for sync code suspended")


def in_place_of(original: Any, function: Callable[..., Coroutine[Any, Any, Any]], *, is_async: bool) -> Any:
    """The coroutine function as a method in the place of ``original``, sync or async as that is."""
    if not is_async:
        return functools.wraps(original)(lambda *args, **options: run_sync(function(*args, **options)))
    return functools.wraps(original)(function)


async def awaited(result: Any) -> Any:
    """What a function has returned, or what it is awaited for."""
    return await result if isawaitable(result) else result
