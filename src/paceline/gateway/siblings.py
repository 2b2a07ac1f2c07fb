"""The processes of one gateway tell each other their status, over sockets in a folder of their own."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from paceline.limiter.limiter import Limiter
from paceline.telemetry.merged import merged

TIMEOUT_S: Final = 1.0
ANSWER_MAX: Final = 64 * 2**20
NAME_MAX: Final = 1_000
"""Bytes of a question."""


class Siblings:
    """The processes of one gateway.

    Args:
        limiter: The limiter of this process.
        place: Returns the place in the queue of a request of this process by its id; ``None`` for an unknown one.
        folder: Where the processes have their sockets; ``None`` for the only process.
    """

    def __init__(self, limiter: Limiter, place: Callable[[str], dict[str, Any] | None], folder: Path | None) -> None:
        self._limiter, self._place, self._folder = limiter, place, folder
        self._own: Path | None = None
        if folder is not None:
            self._own = folder / f"{os.getpid()}.sock"
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(self._own))
            listener.listen()
            threading.Thread(target=self._answer_all, args=(listener,), name="siblings", daemon=True).start()

    def status(self) -> dict[str, Any]:
        """The status of all processes as one; see :meth:`Limiter.status`."""
        own = self._limiter.status()
        others = [answer for answer in self._ask("") if answer]
        return merged([own, *others]) if others else own

    def place(self, called: str) -> dict[str, Any] | None:
        """The place in the queue of a request of any process."""
        return self._place(called) or next(filter(None, self._ask(called)), None)

    def close(self) -> None:
        """Remove the socket of this process."""
        if self._own is not None:
            self._own.unlink(missing_ok=True)

    def _ask(self, question: str) -> Iterator[Any]:
        """The answers of the other processes: their status, or the place of the request with this id."""
        if self._folder is None:
            return
        for path in sorted(self._folder.glob("*.sock")):
            if path == self._own:
                continue
            with socket.socket(socket.AF_UNIX) as other, suppress(OSError, ValueError):
                other.settimeout(TIMEOUT_S)
                try:
                    other.connect(str(path))
                except ConnectionRefusedError:  # its process was killed
                    path.unlink(missing_ok=True)
                    continue
                other.sendall(question.encode()[:NAME_MAX] + b"\n")
                with other.makefile("rb") as answer:
                    yield json.loads(answer.read(ANSWER_MAX))

    def _answer_all(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.settimeout(TIMEOUT_S)
                with connection.makefile("rb") as asked:
                    question = asked.readline(NAME_MAX + 1).decode("utf-8", "replace").strip()
                answer = self._place(question) if question else self._limiter.status()
                connection.sendall(json.dumps(answer).encode())
