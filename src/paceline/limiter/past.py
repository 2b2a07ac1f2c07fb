"""A program that makes a limiter and sends all of its requests past it: at its end, a line of the log says so.

A limiter paces no client before it is told to, so that nothing else shows the mistake. From the first limiter on until the first
use of a pool, of any limiter, the requests to models of known providers are counted. If none is ever used, the program has paced
nothing.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any, Final
from urllib.parse import urlsplit

from paceline.pacing.imports import ImportWatch
from paceline.pacing.pools import Pools

log = logging.getLogger("paceline")

Where = Callable[..., tuple[str, object]]
"""Takes the arguments of a method; returns the HTTP method and the URL of its request."""


def _request(_: Any, request: Any, **__: Any) -> tuple[str, object]:
    return request.method, request.url


def _session(session: Any, method: str, url: Any, **_: Any) -> tuple[str, object]:
    return method, session._build_url(url)  # noqa: SLF001


def _pool(pool: Any, method: str, url: str, *_: Any, **__: Any) -> tuple[str, object]:
    return method, url if "://" in url else f"{pool.scheme}://{pool.host}{url}"


_HTTPX: Final[dict[str, Where]] = {"Client.send": _request, "AsyncClient.send": _request}
PLACES: Final[dict[str, dict[str, Where]]] = {
    "httpx": _HTTPX,
    "httpx2": _HTTPX,
    "aiohttp.client": {"ClientSession._request": _session},
    "urllib3.connectionpool": {"HTTPConnectionPool.urlopen": _pool},
}
"""By module the methods that send: those that :func:`paceline.instrument` paces. requests and botocore use urllib3."""

SHOWN: Final = 5
"""How many hosts the line names."""

sent: Counter[str] = Counter()
"""The requests by host."""


@functools.cache
def watch() -> None:
    """Count from now on what goes past all limiters of this process, which have no pool yet."""
    ImportWatch(dict.fromkeys(PLACES, _look))
    atexit.register(_tell)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=sent.clear)  # what the parent has sent


def _look(module: ModuleType) -> None:
    for place, where in PLACES[module.__name__].items():
        owner, _, name = place.partition(".")
        kind = getattr(module, owner, None)
        there = None if kind is None else vars(kind).get(name)  # not so in every version
        # httpx2 may be httpx, too.
        if there is not None and not Pools.used and not hasattr(there, "__paceline_past__"):
            _count(kind, name, where)


def _count(kind: Any, name: str, where: Where) -> None:
    original = vars(kind)[name]

    @functools.wraps(original)
    def method(*args: Any, **options: Any) -> Any:
        if not Pools.used:
            with suppress(Exception):  # of arguments that the method itself will report
                _seen(*where(*args, **options))
        elif vars(kind)[name] is method:
            setattr(kind, name, original)
        return original(*args, **options)

    method.__paceline_past__ = True  # type: ignore[attr-defined]
    setattr(kind, name, method)


def _seen(method: str, url: object) -> None:
    from paceline.http.unpaced import is_of_model
    from paceline.providers.registry import provider_for_host

    parts = urlsplit(str(url))
    host = parts.hostname or ""
    provider = provider_for_host(host) if method.upper() == "POST" else None
    if provider is not None and is_of_model(provider.name, parts.path):
        sent[host] += 1


def _tell() -> None:
    if not sent or Pools.used:
        return
    from paceline.http.unpaced import kinds

    if not kinds:  # else a client was attached, whose requests were announced
        named = ", ".join(f"{number:,} to {host}" for host, number in sent.most_common(SHOWN))
        log.warning(
            "a limiter was made, and no request was paced: %s went past it; to pace a client, call limiter.attach(client), and"
            " to pace the whole program, paceline.instrument(limiter)",
            f"{named} and others" if len(sent) > SHOWN else named,
        )
