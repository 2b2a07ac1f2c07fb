"""What the signals of the system do in a process of the gateway, beside what uvicorn does."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from paceline.gateway.life import Life, LifeEvent

if TYPE_CHECKING:
    import asyncio

    from uvicorn import Server

SUCCEED: Final = ("SIGUSR2", "SIGHUP")
"""The signals that start the next process, which reads the settings and the certificate again; Windows has neither."""

_NUMBERS: Final = [getattr(signal, name) for name in SUCCEED if hasattr(signal, name)]

_HELD: Final = [*_NUMBERS, signal.SIGINT]
"""What a process that starts gets later: Ctrl-C is for all processes of a terminal, and the first one ends the others."""

_early: Final[list[int]] = []


def note_early() -> None:
    """Note the signals of :data:`SUCCEED` until others heed them: by default they end a process, also one that starts."""
    for number in _NUMBERS:
        signal.signal(number, lambda number, _: _early.append(number))


def came_early() -> bool:
    """Whether one came since :func:`note_early`, or since the last call: what was read by then may have changed."""
    came = bool(_early)
    _early.clear()
    return came


@contextmanager
def held_back() -> Iterator[None]:
    """A process that is started in the block gets the signals in :data:`_HELD` when it heeds them, and this one after the block."""
    if sys.platform != "win32":
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()  # the first process would start it, and its start lets SIGINT through
    _mask("SIG_BLOCK")
    try:
        yield
    finally:
        _mask("SIG_UNBLOCK")


def _mask(how: str) -> None:
    if sys.platform != "win32":
        signal.pthread_sigmask(getattr(signal, how), _HELD)


def end_by_signals(server: Server) -> None:
    """Let the signals that end a process end ``server``, also before it runs.

    An exception of another handler would be lost where it is raised in a callback, as imports have them.
    """
    from uvicorn.server import HANDLED_SIGNALS

    for number in HANDLED_SIGNALS:
        signal.signal(number, server.handle_exit)


def heed(life: Life, drain_s: float, succeed: Callable[[], None]) -> None:
    """Heed signals from now on, in the main thread of a running event loop in which uvicorn handles SIGTERM and SIGINT.

    Args:
        life: What the gateway does with requests.
        drain_s: How long after SIGTERM the listener stays open, while the gateway is not ready any more.
        succeed: Starts the next process: at once, if a signal that asks for it came before.
    """
    import asyncio  # other commands call the functions above first

    loop = asyncio.get_running_loop()

    def leave(end: Callable[[], None]) -> None:
        if life.change(LifeEvent.ASKED):  # a service manager may send the signal twice
            loop.call_later(drain_s, end)

    def hurry(end: Callable[[], None]) -> None:
        life.change(LifeEvent.HURRIED)
        end()

    for number, act in ((signal.SIGTERM, leave), (signal.SIGINT, hurry)):
        end: Any = signal.getsignal(number)  # of the server
        _on(loop, number, partial(act, partial(end, number, None)))
    for number in _NUMBERS:
        _on(loop, number, succeed)
    _mask("SIG_UNBLOCK")
    if came_early():
        succeed()


def end_with_parent() -> None:
    """Let this process, if it is one of several, end as at SIGTERM when the first one was killed: it would keep the port."""
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _on(loop: asyncio.AbstractEventLoop, number: int, call: Callable[[], None]) -> None:
    """Call ``call`` in ``loop`` at each signal ``number``."""
    signal.signal(number, lambda *_: loop.call_soon_threadsafe(call))
