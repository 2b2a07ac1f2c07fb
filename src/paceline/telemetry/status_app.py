"""A limiter's status page: a small ASGI application that any server can run or mount.

    app = paceline.status_app(limiter)           # uvicorn module:app
    main.mount("/paceline", paceline.status_app(limiter))

``/`` is a page for people; ``/status`` and ``/api/v1/rate-limits/status`` answer with :meth:`Limiter.status` as JSON,
``/status/<pool>`` with one pool, ``/api/v1/plans`` with the windows of plans, ``/history`` with the last minutes, ``/metrics``
in the format of Prometheus. They hold names, numbers and providers' messages, no keys and no prompts.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from functools import cache
from importlib import resources
from typing import Any, Final
from urllib.parse import parse_qs

from paceline.core.hints import why_missing
from paceline.core.results import StoreError
from paceline.telemetry.history import Recorder, Reporting

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Event, Receive, Send], Awaitable[None]]

PATH_MAX: Final = 200
"""Characters of an unknown path that an error repeats."""

JSON: Final = "application/json"
ASSETS: Final = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'self'"
)
"""What the page may load: its own files, and nothing else."""

API: Final = "/api/v1/rate-limits"
"""The other name of ``/status``."""

PLANS: Final = "/api/v1/plans"
"""The path of the windows of plans."""

Answer = tuple[int, str, bytes]
"""A status, a content type and a body."""


def status_app(
    limiter: Reporting, *, key: str | None = None, apart: Callable[..., Awaitable[Answer]] | None = None
) -> App:
    """Return an ASGI application with ``limiter.status()``, its history, its metrics, and a page that shows them.

    Args:
        limiter: A limiter, or any object with such a ``status()``.
        key: What callers must send as ``authorization: Bearer KEY``, except for the page itself, which asks for it.
            ``None``: you control the access elsewhere.
        apart: Calls a function with arguments apart from the event loop, which thousands of pools would hold up.
    """
    recorder = Recorder(limiter)
    labels: dict[str, None] = {}

    async def app(scope: Event, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = limiter, recorder, key, scope, labels
            await _respond(send, scope, *(_answer(*given) if apart is None else await apart(_answer, *given)))
        elif scope["type"] == "lifespan":
            kind = ""
            while kind != "lifespan.shutdown":
                kind = (await receive())["type"]
                await send({"type": f"{kind}.complete"})
            recorder.stop()
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})

    return app


def is_page(path: str, accept: bytes) -> bool:
    """Whether a request is for the page or its files, which hold nothing that needs a key."""
    return path.startswith("/assets/") or path == "/favicon.ico" or (path == "/" and b"text/html" in accept)


def _answer(limiter: Reporting, recorder: Recorder, key: str | None, scope: Event, labels: dict[str, None]) -> Answer:
    path, root = scope["path"], scope.get("root_path", "")
    if root and (path == root or path.startswith(f"{root}/")):  # mounted: some servers leave the prefix in the path
        path = path[len(root) :]
    path = path.rstrip("/").removeprefix(API)
    if scope["method"] not in ("GET", "HEAD"):
        return _json(405, {"error": "this page is read-only: use GET"})
    headers = dict(scope.get("headers", ()))
    accept = headers.get(b"accept", b"")
    if is_page(path or "/", accept):
        return _page(path, root)
    if key is not None and not hmac.compare_digest(headers.get(b"authorization", b""), f"Bearer {key}".encode()):
        return _json(401, {"error": "a key is missing or wrong: send it as 'authorization: Bearer KEY'"})
    if path == "/history":
        recorder.start()
        return _json(200, recorder.document(_since(scope.get("query_string", b""))))
    try:
        return _present(limiter, path, scope, labels)
    except StoreError as error:
        return _json(503, {"error": str(error)})


def _present(limiter: Reporting, path: str, scope: Event, labels: dict[str, None]) -> Answer:
    """The answers about the present state."""
    if path == "/metrics":
        try:
            from paceline.telemetry.prometheus import CONTENT_TYPE, exposition

            return 200, CONTENT_TYPE, exposition(limiter.status(), labels)
        except ImportError as error:
            return _json(501, {"error": why_missing(error, "the page of metrics", "gateway")})
    if path == "/api/v1/openapi.json":
        from paceline.telemetry.openapi import document

        return _json(200, document())
    if path not in ("", "/status", PLANS) and not path.startswith("/status/"):
        return _json(
            404, {"error": f"no page at {path[:PATH_MAX]!r}: use /status, /status/<pool>, /history or /metrics"}
        )
    brief = (path == PLANS or b"queue=0" in scope.get("query_string", b"")) and hasattr(limiter, "pacer")
    status = limiter.status(queue=0) if brief else limiter.status()  # type: ignore[call-arg]
    if path == PLANS:
        return _json(200, {"plans": status.get("plans", [])})
    name = path.removeprefix("/status").removeprefix("/")
    if not name:
        return _json(200, status)
    pool = status["pools"].get(name)
    return _json(200, pool) if pool is not None else _json(404, {"error": f"there is no pool {name[:PATH_MAX]!r}"})


def _page(path: str, root: str) -> Answer:
    """The page, or one of its files."""
    if not path:
        base = re.sub(r"[^\w/.~-]", "", root)  # as the value of an attribute
        text = _file("index.html").replace(b'<base href="/">', f'<base href="{base}/">'.encode())
        return 200, "text/html; charset=utf-8", text
    name = "icon.svg" if path == "/favicon.ico" else path.removeprefix("/assets/")
    if name not in ASSETS:
        return _json(404, {"error": f"no page at {path[:PATH_MAX]!r}"})
    return 200, f"{ASSETS[name]}; charset=utf-8", _file(name)


@cache
def _file(name: str) -> bytes:
    return resources.files("paceline.telemetry").joinpath("page", name).read_bytes()


def _since(query: bytes) -> float:
    try:
        return float(parse_qs(query.decode("latin-1"))["since"][0])
    except (LookupError, ValueError):
        return 0.0


def _json(code: int, body: Any) -> Answer:
    return code, JSON, json.dumps(body).encode()


async def _respond(send: Send, scope: Event, code: int, kind: str, content: bytes) -> None:
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", str(len(content)).encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
    ]
    if code == 405:
        headers.append((b"allow", b"GET, HEAD"))
    if code == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if kind.startswith("text/html"):
        headers += [(b"content-security-policy", POLICY.encode()), (b"referrer-policy", b"no-referrer")]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else content})
