"""The emulator in a process of its own, as :class:`Emulator` starts it: a socket's number as argument, settings on stdin."""

from __future__ import annotations

import json
import socket
import sys
import threading
from typing import TYPE_CHECKING

from paceline.emulator.app import App
from paceline.emulator.server import make_server
from paceline.emulator.settings import Settings

if TYPE_CHECKING:
    import uvicorn


def _end_with_parent(server: uvicorn.Server) -> None:
    sys.stdin.buffer.read()  # returns when the parent closes it, or dies
    server.should_exit = True


def main() -> None:
    """Serve until stdin closes."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    line = sys.stdin.buffer.readline()
    if not line:  # the parent has gone already
        return
    server = make_server(App(Settings.of(json.loads(line))))
    threading.Thread(target=_end_with_parent, args=[server], daemon=True).start()
    server.run(sockets=[listener])


if __name__ == "__main__":
    main()
