"""What the signals of the system do in a process of the gateway, beside what uvicorn does."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from paceline.gateway.life import Event, Life

if TYPE_CHECKING:
    from uvicorn import Server

SUCCEED: Final = ("SIGUSR2", "SIGHUP")
"""The signals that start the next process, which reads the settings and the certificate again; Windows has neither."""


def end_by_signals(server: Server) -> None:
    """Let the signals that end a process end ``server``, also before it runs.

    An exception of another handler would be lost where it is raised in a callback, as imports have them.
    """
    from uvicorn.server import HANDLED_SIGNALS

    for number in HANDLED_SIGNALS:
        signal.signal(number, server.handle_exit)


def heed(life: Life, drain_s: float, others: dict[str, Callable[[], None]]) -> None:
    """Heed signals from now on, in the main thread of a running event loop in which uvicorn handles SIGTERM and SIGINT.

    Args:
        life: What the gateway does with requests.
        drain_s: How long after SIGTERM the listener stays open, while the gateway is not ready any more.
        others: What further signals do, by name; those that this system does not have are left out.
    """
    loop = asyncio.get_running_loop()

    def leave(end: Callable[[], None]) -> None:
        if life.change(Event.ASKED):  # a service manager may send the signal twice
            loop.call_later(drain_s, end)

    def hurry(end: Callable[[], None]) -> None:
        life.change(Event.HURRIED)
        end()

    for number, act in ((signal.SIGTERM, leave), (signal.SIGINT, hurry)):
        end: Any = signal.getsignal(number)  # of the server
        _on(loop, number, partial(act, partial(end, number, None)))
    for name, call in others.items():
        if hasattr(signal, name):
            _on(loop, getattr(signal, name), call)


def _on(loop: asyncio.AbstractEventLoop, number: int, call: Callable[[], None]) -> None:
    """Call ``call`` in ``loop`` at each signal ``number``."""
    signal.signal(number, lambda *_: loop.call_soon_threadsafe(call))
