"""The access log: a line of JSON about each request to a server or to resume a pool, and each that was refused for its key."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

from paceline.http.binding import Exchanged
from paceline.pacing.durable import WriteTurn, open_binary
from paceline.telemetry.status_app import Event, Send

PATH_MAX: Final = 200
"""Characters of a path in the log."""

NOT_ALLOWED: Final = (401, 403)
"""The statuses of requests that no key allows."""


class AccessLog:
    """Appends to a file, also from several processes. No line has a prompt, a key or a query.

    Args:
        file: The file.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, file: Path) -> None:
        self._fd = open_binary(str(file), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._turn: AbstractContextManager[None] = nullcontext()
        if sys.platform == "win32":  # to append is to look for the end there, and to write then
            self._turn = WriteTurn(self._fd)

    def write(self, line: Mapping[str, Any]) -> None:
        """Add a line; nothing if that fails: a full disk ends no request."""
        with suppress(OSError), self._turn:
            # WEAK: a disk that is nearly full may take a part of the line, to which the next one is added.
            os.write(self._fd, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class AccessEntry:
    """A line about one request.

    Args:
        log: The log; ``None`` for none.
        scope: See ASGI.
        send: See ASGI; where there is a log, :meth:`send` is to be used in its place.

    Attributes:
        key: The name of the client's key; empty for none.
        relayed: Whether it was for a server, or to resume a pool.
        model: The name of a model that has led to a server; empty if its path has.
        server: The server that has answered, or was to; empty for none.
        fallback: What its client is told of the places that have failed before; empty for none.
        record: What is known of its exchange, if it has one.
    """

    def __init__(self, log: AccessLog | None, scope: Event, send: Send) -> None:
        self._log, self._scope, self._send = log, scope, send
        self._began_s, self._status = time.monotonic(), 0
        self._ended = False  # whether the last part of the answer has passed
        self.key = self.model = self.server = self.fallback = ""
        self.relayed = False
        self.record: Exchanged | None = None

    async def send(self, event: Event) -> None:
        """See ASGI; notes the status, and whether the answer has come to its end."""
        if event["type"] == "http.response.start":
            self._status = event["status"]
        await self._send(event)
        self._ended = event["type"] == "http.response.body" and not event.get("more_body", False)

    def end(self) -> None:
        """Write the line, if the request was for a server or not allowed; a status of 0: the client has left before an answer."""
        if self._log is None or (not self.relayed and self._status not in NOT_ALLOWED):
            return
        client, record = self._scope.get("client"), self.record
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "client": client[0] if client else "",
            "key": self.key,
            "method": self._scope["method"],
            "path": self._scope["raw_path"].decode("latin-1")[:PATH_MAX],
            "status": self._status,
            "seconds": round(time.monotonic() - self._began_s, 3),
        }
        named = {"model": self.model, "server": self.server, "fallback": self.fallback}
        line |= {name: text for name, text in named.items() if text}
        if record is not None:
            line |= {"pool": record.pool, "waited_s": round(record.waited_s, 3), "attempts": record.attempts}
            if record.usage is not None:
                used = record.usage
                line |= {"input_tokens": used.input_tokens, "cached_tokens": used.cached_tokens}
                line |= {"output_tokens": used.output_tokens}
        if self._status and not (self._ended and (record is None or record.whole)):
            line["whole"] = False
        self._log.write(line)
