"""mocklimit as a child process: runs in its own environment, and ends when the parent closes its standard input."""

from __future__ import annotations

import os
import sys
import threading


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    import uvicorn
    from loguru import logger
    from mocklimit.server import create_app

    threading.Thread(target=_end_with_parent, daemon=True).start()
    logger.remove()
    spec, limits, port = sys.argv[1:]
    # Connections stay open as at the APIs; uvicorn closes them after 5 s, in the middle of a pause.
    app = create_app(spec, limits)
    uvicorn.run(app, port=int(port), timeout_keep_alive=75, backlog=4_096, log_level="critical", access_log=False)
