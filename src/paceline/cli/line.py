"""``paceline status --line``: what is left of the plans, in one line, for a status line that asks again and again.

It starts in 0.2 s: it imports the standard library alone. It never fails: a status line has no place for an error.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from paceline.cli import plan_words

GATEWAY: Final = "PACELINE_GATEWAY"
"""The variable with the address of the gateway of `paceline exec`."""

USUAL: Final = "http://127.0.0.1:8080"
PLANS: Final = "/api/v1/plans"
BYTES_MAX: Final = 4 * 2**20
LINE_MAX: Final = 500


def text(url: str | None, key: str | None, timeout_s: float) -> str:
    """The line; why there is none, if nothing can be read.

    Args:
        url: The address of a gateway, or of a program's page; ``None``: of the gateway that runs this program, else the usual one.
        key: What the page asks for.
        timeout_s: How long each step may take.
    """
    address = url or os.environ.get(GATEWAY) or USUAL
    where = ""
    try:
        where = urlsplit(address if "://" in address else f"http://{address}").netloc.rpartition("@")[2]
        rows = read(address, key, timeout_s)
        line = plan_words.line(rows, time.time()) if rows else "paceline: no answer of a plan yet"
    except PermissionError:
        return f"paceline: {where} asks for a key that may read the status (--key or PACELINE_KEY)"
    except (OSError, http.client.HTTPException):
        return f"paceline: no answer from {where}"
    except (ValueError, LookupError, TypeError, AttributeError):
        return "paceline: this address has no page of paceline"
    return plain(line)[:LINE_MAX]


def plain(line: str) -> str:
    """A line from another program, without characters that control a terminal."""
    return "".join(char if char.isprintable() else "?" for char in line)


def read(address: str, key: str | None, timeout_s: float) -> Sequence[plan_words.Row]:
    """The windows that a gateway, or a program's page, knows of.

    Raises:
        PermissionError: It asks for a key.
        Exception: Anything else that a network or another program may do.
    """
    parts = urlsplit(address if "://" in address else f"http://{address}")
    path = parts.path.rstrip("/").removesuffix("/status") + PLANS
    status, body = _get(parts.scheme, parts.netloc.rpartition("@")[2], path, key, timeout_s)
    if status in (401, 403):
        raise PermissionError
    found: Sequence[plan_words.Row] = json.loads(body)["plans"]
    return found


def _get(scheme: str, where: str, path: str, key: str | None, timeout_s: float) -> tuple[int, bytes]:
    if scheme not in ("http", "https"):
        raise ValueError(scheme)
    kind: Any = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
    connection = kind(where, timeout=timeout_s)
    try:
        connection.request("GET", path, headers={"authorization": f"Bearer {key}"} if key else {})
        answer = connection.getresponse()
        return answer.status, answer.read(BYTES_MAX)
    finally:
        connection.close()
