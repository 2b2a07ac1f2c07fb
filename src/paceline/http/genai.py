"""google-genai: its async client makes sessions of aiohttp, or clients of httpx2 or httpx, one for each event loop.

They are paced as they are made. Found by reading and running google-genai 2.34 and 3.4. Not paced: the Live API
(WebSockets); and Vertex with client certificates by :meth:`~paceline.Limiter.attach`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.core.results import warn


def makes_sessions(thing: Any) -> bool:
    """Whether ``thing`` is the part of a google-genai client that makes sessions of aiohttp."""
    return hasattr(type(thing), "_get_aiohttp_session")


def pace_sessions(api: Any, pace: Callable[[Any], None]) -> None:
    """Pace the session of every event loop, the present ones and those that are made later."""
    # ``bool()`` is False, for versions without these methods.
    if any(getattr(api, f"_use_google_auth_{way}", bool)() for way in ("sync", "async")):
        warn(
            "attach() does not pace google-genai with client certificates, which sends through google-auth; call"
            " paceline.instrument(limiter) to pace the whole process"
        )
        return
    make = api._get_aiohttp_session  # noqa: SLF001

    async def paced() -> Any:
        session = await make()
        pace(session)
        return session

    api._get_aiohttp_session = paced  # noqa: SLF001


def pace_inner(http_client: Any, pace: Callable[[Any], None]) -> None:
    """Pace the inner HTTP client of every event loop, the present ones and those that are made later."""
    if not hasattr(http_client, "_inner_client_cls") or "_inner_client_cls" in vars(http_client):
        return  # another SDK, or paced already
    make = http_client._inner_client_cls  # noqa: SLF001

    def paced(**options: Any) -> Any:
        inner = make(**options)
        pace(inner)
        return inner

    http_client._inner_client_cls = paced  # noqa: SLF001
    for inner in list(http_client._loop_clients.values()):  # noqa: SLF001
        pace(inner)
