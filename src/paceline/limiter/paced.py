"""A function whose every call takes a permit first: what :meth:`Limiter.paced <paceline.Limiter.paced>` returns."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from paceline.core.results import QuotaError
from paceline.pacing.permit import Acquisition, Permit

P = ParamSpec("P")
R = TypeVar("R")


def paced(take: Callable[..., Acquisition]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator, for sync and async functions; ``take`` is given each call's arguments."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def paced_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                async with take(*args, **kwargs) as permit:
                    result = await function(*args, **kwargs)
                    _settle(permit, result)
                    return result

            return cast("Callable[P, R]", paced_async)

        @functools.wraps(function)
        def paced_sync(*args: P.args, **kwargs: P.kwargs) -> R:
            with take(*args, **kwargs) as permit:
                result = function(*args, **kwargs)
                _settle(permit, result)
                return result

        return paced_sync

    return decorate


def _settle(permit: Permit, result: object) -> None:
    """Settle with what ``result`` reports; as reserved when it reports nothing."""
    if permit.open:
        try:
            permit.settle(result)
        except QuotaError:
            permit.settle()
