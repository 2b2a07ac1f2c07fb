"""google-genai: its async client sends through aiohttp where that is installed, and keeps a client per event loop.

Every client of it also holds an HTTP client of httpx2 or httpx, which it uses when told that there is no aiohttp; the
inner ones that it makes for each event loop are paced as they are made. Found by reading and running google-genai 3.4.
Not paced: the Live API (websockets), and Vertex with client certificates (google-auth's own sessions), which is warned of.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from paceline.core.results import PacelineWarning

MODULE = "google.genai._api_client"
"""The module of all that is replaced here."""


def is_api(thing: Any) -> bool:
    """Whether ``thing`` is the part of a google-genai client that sends."""
    return hasattr(type(thing), "_use_aiohttp")


def without_aiohttp(api: Any) -> None:
    """Let one API client send through httpx2 or httpx, sync and async."""
    if any(getattr(api, f"_use_google_auth_{way}", bool)() for way in ("sync", "async")):
        warnings.warn(
            "paceline does not pace google-genai with client certificates, which sends through google-auth; acquire a "
            "permit around its calls: `async with limiter.acquire(...)`",
            PacelineWarning,
            stacklevel=5,
        )
    else:
        api._use_aiohttp = bool  # noqa: SLF001  (which returns False)


def class_without_aiohttp(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """The same for all API clients: the replacement for the class's ``_use_aiohttp``.

    A client under construction gets the true answer, and so it has what aiohttp needs when this is undone.
    """

    @functools.wraps(original)
    def use_aiohttp(api: Any) -> bool:
        ready = hasattr(api, "_async_client_session_request_args") and api._async_httpx_client is not None  # noqa: SLF001
        return not ready and original(api)

    return use_aiohttp


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
