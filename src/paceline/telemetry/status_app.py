"""A limiter's status page: a small ASGI application that any server can run or mount.

    app = paceline.status_app(limiter)           # uvicorn module:app
    main.mount("/paceline", paceline.status_app(limiter))

``/`` and ``/status`` answer with :meth:`Limiter.status` as JSON, ``/status/<pool>`` with one pool. The page holds names, numbers
and providers' messages, no keys and no prompts. It has no access control: the server that runs it must add one.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Event, Receive, Send], Awaitable[None]]

PATH_MAX = 200
"""Characters of an unknown path that an error repeats."""


class Reporting(Protocol):
    """A :class:`~paceline.Limiter`, or an object with a similar status."""

    def status(self) -> dict[str, Any]:
        """Plain JSON values; every pool by its name below ``pools``."""


def status_app(limiter: Reporting) -> App:
    """An ASGI application that serves ``limiter.status()``: all of it at ``/`` and ``/status``, a pool at ``/status/<pool>``.

    Args:
        limiter: A limiter, or any object with such a ``status()``.
    """

    async def app(scope: Event, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            code, body = _answer(limiter, scope)
            await _respond(send, code, body, bodiless=scope["method"] == "HEAD")
        elif scope["type"] == "lifespan":
            kind = ""
            while kind != "lifespan.shutdown":
                kind = (await receive())["type"]
                await send({"type": f"{kind}.complete"})
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})

    return app


def _answer(limiter: Reporting, scope: Event) -> tuple[int, Any]:
    path, root = scope["path"], scope.get("root_path", "")
    if root and (path == root or path.startswith(f"{root}/")):  # mounted: some servers leave the prefix in the path
        path = path[len(root) :]
    path = path.rstrip("/")
    if path not in ("", "/status") and not path.startswith("/status/"):
        return 404, {"error": f"no page at {path[:PATH_MAX]!r}: use /status or /status/<pool>"}
    if scope["method"] not in ("GET", "HEAD"):
        return 405, {"error": "this page is read-only: use GET"}
    status = limiter.status()
    name = path.removeprefix("/status").removeprefix("/")
    if not name:
        return 200, status
    pool = status["pools"].get(name)
    return (200, pool) if pool is not None else (404, {"error": f"there is no pool {name[:PATH_MAX]!r}"})


async def _respond(send: Send, code: int, body: Any, *, bodiless: bool) -> None:
    content = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    headers += [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
    if code == 405:
        headers.append((b"allow", b"GET, HEAD"))
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if bodiless else content})
