"""The processes of one gateway tell each other their status over loopback.

Each process has a file in a folder that only this user can read: its port, and a secret that a question must begin with. Sockets of
Unix would need neither, and are missing on Windows.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from paceline.pacing.clock import go_on
from paceline.telemetry.history import Reporting
from paceline.telemetry.merged import merged

TIMEOUT_S: Final = 1.0
ANSWER_MAX: Final = 64 * 2**20
NAME_MAX: Final = 1_000
"""Bytes of a question."""


class Siblings:
    """The processes of one gateway.

    Args:
        limiter: The limiter of this process.
        answers: What this process answers by the first word of a question, and is given the words after it.
        folder: Where each process has its file; ``None`` for the only process.
    """

    def __init__(self, limiter: Reporting, answers: Mapping[str, Callable[[str], Any]], folder: Path | None) -> None:
        self._limiter, self._folder = limiter, folder
        self._answers = {"status": lambda _: limiter.status(), **answers}
        self._own: Path | None = None
        if folder is not None:
            listener, secret = socket.create_server(("127.0.0.1", 0)), secrets.token_hex()
            serve = partial(self._answer_all, listener, secret)
            told = serve, "the thread that answers other processes was disturbed; it continues"
            threading.Thread(target=go_on, args=told, name="siblings", daemon=True).start()
            self._own = folder / f"{os.getpid()}.json"
            self._own.write_text(json.dumps([listener.getsockname()[1], secret]), encoding="ascii")

    def status(self) -> Mapping[str, Any]:
        """The status of all processes as one; see :meth:`Limiter.status`."""
        own, *others = self.ask("status", "")
        return merged([own, *others]) if others else own

    def ask(self, about: str, words: str) -> Iterator[Any]:
        """The answers of all processes that have one, this process first."""
        if own := self._answers[about](words):
            yield own
        others = () if self._folder is None else sorted(self._folder.glob("*.json"))
        for path in others:
            if path == self._own:
                continue
            with suppress(OSError, ValueError):  # it has ended meanwhile, or its file is not whole yet
                port, secret = json.loads(path.read_text(encoding="ascii"))
                try:
                    other = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
                except ConnectionRefusedError:  # its process was killed
                    path.unlink(missing_ok=True)
                    continue
                with other, other.makefile("rb") as answer:
                    other.sendall(f"{secret} {about} {words}".encode()[:NAME_MAX] + b"\n")
                    if told := json.loads(answer.read(ANSWER_MAX)):
                        yield told

    def close(self) -> None:
        """Remove the file of this process."""
        if self._own is not None:
            self._own.unlink(missing_ok=True)

    def _answer_all(self, listener: socket.socket, secret: str) -> None:
        while True:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.settimeout(TIMEOUT_S)
                with connection.makefile("rb") as asked:
                    line = asked.readline(NAME_MAX + 1).decode("utf-8", "replace").strip()
                known, _, question = line.partition(" ")
                about, _, words = question.partition(" ")
                if secrets.compare_digest(known.encode(), secret.encode()) and about in self._answers:
                    connection.sendall(json.dumps(self._answers[about](words)).encode())
