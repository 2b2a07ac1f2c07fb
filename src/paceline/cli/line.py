"""``paceline status --line``: what is left of the plans, in one line, for a status line that asks again and again.

It starts in 0.2 s: it imports the standard library alone. It never fails: a status line has no place for an error.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
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
        timeout_s: How long it may take in all.
    """
    address = url or os.environ.get(GATEWAY) or USUAL
    where = ""
    try:
        where = urlsplit(address if "://" in address else f"http://{address}").netloc.rpartition("@")[2]
        rows = read(address, key, timeout_s)
        line = plan_words.line(rows, time.time(), LINE_MAX) if rows else "paceline: no answer of a plan yet"
    except PermissionError:
        return f"paceline: {where} asks for a key that may read the status (--key or PACELINE_KEY)"
    except (OSError, http.client.HTTPException):
        return f"paceline: no answer from {where}"
    except Exception:  # noqa: BLE001  (another program may answer anything)
        return "paceline: this address has no page of paceline"
    return plain(line)


def show(line: str) -> None:
    """Print the line; nothing if standard output is full, closed, or a pipe without a reader."""
    try:
        print(line.encode(sys.stdout.encoding or "utf-8", "replace").decode(sys.stdout.encoding or "utf-8"), flush=True)
    except (OSError, ValueError, AttributeError):
        with suppress(OSError, ValueError, AttributeError):  # what is left in the buffer would fail again at the exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def plain(value: object) -> str:
    """A value from another program, without characters that control a terminal."""
    return "".join(char if char.isprintable() else "?" for char in str(value)[:LINE_MAX])


def read(address: str, key: str | None, timeout_s: float) -> Sequence[plan_words.Row]:
    """The windows that a gateway, or a program's page, knows of.

    Args:
        address: Its address.
        key: What the page asks for.
        timeout_s: How long it may take in all, however slowly an answer comes.

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
    ended: list[tuple[int, bytes] | Exception] = []

    def get() -> None:
        try:
            connection.request("GET", path, headers={"authorization": f"Bearer {key}"} if key else {})
            answer = connection.getresponse()
            ended.append((answer.status, answer.read(BYTES_MAX)))
        except Exception as error:  # noqa: BLE001  (raised below)
            ended.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=get, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not ended:
        with suppress(OSError, AttributeError):  # it may have no socket yet
            connection.sock.shutdown(socket.SHUT_RDWR)  # ends the thread
        raise TimeoutError
    if isinstance(ended[0], Exception):
        raise ended[0]
    return ended[0]
