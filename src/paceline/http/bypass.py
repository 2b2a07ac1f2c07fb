"""What goes past the HTTP libraries that are paced, and where it is seen."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from paceline.http.dspy import MODULE as DSPY_CLIENT
from paceline.http.exchange import sending
from paceline.http.unpaced import GRPC, WEBSOCKET, announce, announce_kind
from paceline.pacing.permit import holds_permit
from paceline.providers.registry import provider_for_host


class Seam(NamedTuple):
    """A method through which something goes that is not paced.

    Attributes:
        method: The class and the method.
        way: gRPC, WebSocket, or the name of the HTTP library.
        where: Takes the arguments of the method; returns a URL, or of gRPC a target. Empty: nothing goes to a model.
    """

    method: str
    way: str
    where: Callable[..., str]


def _posted(_: Any, method: str, url: Any, *__: Any, **___: Any) -> str:
    return str(url) if method.upper() == "POST" else ""


def _opened(_: Any, fullurl: Any, data: Any = None, *__: Any, **___: Any) -> str:
    body = getattr(fullurl, "data", None) if data is None else data
    return "" if body is None else str(getattr(fullurl, "full_url", fullurl))


def _pooled(pool: Any, method: str, url: str, *_: Any, **__: Any) -> str:
    return f"{pool.scheme}://{pool.host}{url}" if method.upper() == "POST" else ""


def _connected(_: Any, url: Any, *__: Any, **___: Any) -> str:
    return str(url)


def _made(_: Any, target: str, *__: Any, **___: Any) -> str:
    return target


SEAMS: Final = {
    "grpc._channel": [Seam("Channel.__init__", GRPC, _made)],
    "grpc.aio._channel": [Seam("Channel.__init__", GRPC, _made)],
    "websockets.client": [
        Seam("ClientProtocol.connect", WEBSOCKET, lambda one: (getattr(one, "uri", None) or one.wsuri).host)
    ],
    "websocket._core": [Seam("WebSocket.connect", WEBSOCKET, _connected)],
    "aiohttp.client": [
        Seam("ClientSession._ws_connect", WEBSOCKET, lambda one, url, **_: str(one._build_url(url)))  # noqa: SLF001
    ],
    "curl_cffi.requests.session": [
        Seam("Session.request", "curl_cffi", _posted),
        Seam("AsyncSession.request", "curl_cffi", _posted),
        Seam("Session.ws_connect", WEBSOCKET, _connected),
        Seam("AsyncSession.ws_connect", WEBSOCKET, _connected),
    ],
    "urllib.request": [Seam("OpenerDirector.open", "urllib", _opened)],
    # niquests' fork of urllib3 takes urllib3's place, whose sync pools are paced; or it has a name of its own
    "urllib3._async.connectionpool": [Seam("AsyncHTTPConnectionPool.urlopen", "niquests", _pooled)],
    "urllib3_future._async.connectionpool": [Seam("AsyncHTTPConnectionPool.urlopen", "niquests", _pooled)],
    "urllib3_future.connectionpool": [Seam("HTTPConnectionPool.urlopen", "niquests", _pooled)],
}
"""By module. Found by running grpcio 1.85, websockets 17.4, websocket-client 1.9, aiohttp 3.14 and curl_cffi 0.16 (2026-11).

Clients that are not written in Python have no such method: pycurl, pyreqwest, wreq, primp and impit.
"""

_HOST: Final = re.compile(r"[\w-]+(\.[\w-]+)+")


def announced(seam: Seam, original: Any) -> Any:
    """The method of ``seam``, which announces what goes to a host of a provider, outside of a permit."""

    @functools.wraps(original)
    def method(*args: Any, **options: Any) -> Any:
        with suppress(AttributeError, TypeError, ValueError):  # arguments that the method itself will report
            _announce(seam, seam.where(*args, **options))
        return original(*args, **options)

    return method


def _announce(seam: Seam, where: str) -> None:
    host = _HOST.search(where)
    provider = provider_for_host(host[0]) if host else None
    # In a block with a permit the caller has said what it costs, and in an attempt the request is paced already.
    if host is None or provider is None or holds_permit() or sending.get() is not None:
        return
    if seam.way in (GRPC, WEBSOCKET):
        announce_kind(provider.name, host[0], seam.way)
    else:
        announce(provider.name, host[0], urlsplit(where).path, seam.way)


def dspy_is_unknown() -> bool:
    """Whether the installed dspy sends through an unknown client: since 3.4 it has one of its own. Imports nothing."""
    try:
        major, minor = (int(part) for part in version("dspy").split(".")[:2])
        client = Path(str(distribution("dspy").locate_file(DSPY_CLIENT.replace(".", "/"))))
    except (PackageNotFoundError, ValueError):
        return True
    return (major, minor) >= (3, 4) and not (client.is_dir() or client.with_suffix(".py").is_file())
