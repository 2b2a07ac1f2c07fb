"""A status page in a thread, for a program without a server of its own."""

from __future__ import annotations

import atexit
import socket
import threading
from typing import Any, Final

from paceline.core.hints import why_missing
from paceline.core.results import SettingsError
from paceline.providers.registry import is_loopback
from paceline.telemetry.history import Reporting
from paceline.telemetry.status_app import status_app

STOP_S: Final = 5


class StatusServer:
    """A running status page; see :meth:`Limiter.serve_status`.

    Attributes:
        url: The address of the page.
    """

    def __init__(self, limiter: Reporting, host: str, port: int, key: str | None) -> None:
        if key is None and not is_loopback(host):
            raise SettingsError(
                f"{host} can be reached from other machines, so that the page needs a key: give key=..."
            )
        try:
            import uvicorn
        except ImportError as error:
            raise ImportError(why_missing(error, "the status page", "gateway"), name=__name__) from None
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/"
        config = uvicorn.Config(
            status_app(limiter, key=key),
            interface="asgi3",
            loop="asyncio",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=100,
            log_level="critical",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        given: dict[str, Any] = {"sockets": [listener]}
        self._thread = threading.Thread(target=self._server.run, kwargs=given, name="paceline-status", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # an event loop must not run while the interpreter ends

    def close(self) -> None:
        """Stop, and free the port."""
        atexit.unregister(self.close)
        self._server.should_exit = True
        self._thread.join(STOP_S)
