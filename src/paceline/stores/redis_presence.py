"""What shows a Redis that a process lives: a subscription, which the server ends when the process ends, in any way.

The system of a killed process closes its connections. A process that has only lost its way to the server, in a network that
has become silent, keeps its subscription there, for minutes. So the script (peers.lua) can tell one from the other without a
message. Where something between the two closes the connection (a proxy that ends), it cannot.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

log = logging.getLogger("paceline")

LOOK_S = 1.0
"""How often it is looked whether the connection is still open."""

SAID_MAX = 200

RETRY_S = 60.0
"""How long after a failure another connection is tried."""


def is_closed(connection: Any) -> bool:
    """Whether the server has closed an idle connection of redis-py: it sends nothing else, since nothing is published."""
    try:
        return bool(connection.can_read(0))
    except Exception:  # noqa: BLE001  (redis-py and the system raise many)
        return True


class Presence:
    """The subscriptions of this process at one server, on a connection of their own; a failure is no error.

    Args:
        connect: Makes a connection of redis-py, which is not open yet.
    """

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._connection: Any = None
        self._names: set[str] = set()
        self._looked_s = self._not_before_s = 0.0
        self._warned = False
        self._lock = threading.RLock()  # a finalizer in this thread may close the store

    def __contains__(self, who: str) -> bool:
        return who in self._names

    def join(self, who: str) -> None:
        """Subscribe to the channel of ``who``, unless it is subscribed; another thread that does so is not waited for."""
        now_s = time.monotonic()
        if (who in self._names and now_s < self._looked_s + LOOK_S) or now_s < self._not_before_s:
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._join(who, now_s)
        except Exception as error:  # noqa: BLE001  (redis-py and the system raise many; no caller waits for this)
            # A lost connection and a time-out are the store's.
            if not self._warned and type(error).__name__ not in ("ConnectionError", "TimeoutError"):
                self._warned = True
                log.warning(
                    "the store cannot see when this process ends, and leaves its share unused for two minutes then (%s): allow"
                    " its user &paceline:* +subscribe +pubsub, and check maxclients",
                    str(error)[:SAID_MAX],
                )
            self._end()
            self._not_before_s = now_s + RETRY_S
        finally:
            self._lock.release()

    def _join(self, who: str, now_s: float) -> None:
        names = self._names | {who}
        if self._connection is not None and now_s >= self._looked_s + LOOK_S and is_closed(self._connection):
            self._end()
        new = sorted(names - self._names)
        if self._connection is None:
            self._connection = self._connect()
            self._connection.connect()
            self._connection.send_command("PUBSUB", "NUMSUB", "paceline:")  # the script may not say that it is refused
            self._connection.read_response()
        if new:
            self._connection.send_command("SUBSCRIBE", *(f"paceline:{name}" for name in new))
            for _ in new:
                self._connection.read_response()
        self._names, self._looked_s = names, now_s

    def _end(self) -> None:
        connection, self._connection, self._names = self._connection, None, set()
        if connection is not None:
            with suppress(Exception):
                connection.disconnect()

    def close(self) -> None:
        """End all subscriptions; the next :meth:`join` connects again."""
        with self._lock:
            self._end()

    def after_fork(self) -> None:
        """In a forked child: close its copy of the socket, or the server would see the parent for as long as the child lives."""
        connection, self._connection, self._names = self._connection, None, set()
        self._lock = threading.RLock()
        with suppress(Exception):
            connection._sock.close()  # noqa: SLF001  (without a word to the server)
