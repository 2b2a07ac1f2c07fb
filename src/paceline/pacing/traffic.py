"""The traffic log: what a program sends, for ``paceline replay``."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Any

from paceline.core.quota import INPUT_TOKENS, NS, OUTPUT_TOKENS, TOKENS
from paceline.core.results import explaining
from paceline.pacing.clock import Clock
from paceline.pacing.durable import Appender
from paceline.pacing.events import Event

log = logging.getLogger("paceline")

BYTES_MAX = 4 * 2**30
"""The largest log: about twenty million requests."""


@dataclass(slots=True)
class Entry:
    """One request.

    Attributes:
        start: When it arrived, before any wait, in seconds since the Unix epoch.
        pool: The pool that it belongs to.
        lane: Its lane.
        model: Its model, where a client has sent it; several may share a pool.
        input_tokens: Its input; estimated, until the answer has reported it.
        output_tokens: The output.
        max_output_tokens: The most output that it allowed, if that is known.
        seconds: How long the answer took, without a wait in the queue.
        status: The HTTP status; 0 for none.
    """

    start: float
    pool: str
    lane: str
    model: str | None = None
    input_tokens: float = 0
    output_tokens: float = 0
    max_output_tokens: int | None = None
    seconds: float = 0.0
    status: int = 200


class TrafficLog:
    """A file with a JSON object in each line. Processes and threads can write to the same file.

    Args:
        path: The file; it is appended to.
        setting: The name of the setting, for messages.

    Raises:
        SettingsError: It cannot be opened.
    """

    def __init__(self, path: str | PathLike[str], setting: str) -> None:
        self.path = os.fspath(path)
        with explaining(f"{setting} is {self.path!r}: it cannot be written", of=(OSError, ValueError)):
            self._file = Appender(self.path, shared=True)
        self._failed = False

    def write(self, entry: Entry) -> None:
        """Append one request; a failure is logged once, and does not reach the caller."""
        if self._failed:
            return
        values: dict[str, Any] = {name: getattr(entry, name) for name in entry.__slots__}
        values |= {"start": round(entry.start, 3), "seconds": round(entry.seconds, 3)}
        values |= {name: round(values[name]) for name in ("input_tokens", "output_tokens")}
        try:
            # Asked each time, because other processes write to the file, too.
            if self._file.size() <= BYTES_MAX:
                self._file.append(json.dumps(values).encode() + b"\n")
                return
            problem = f"it has {BYTES_MAX // 2**30} GB"
        except OSError as error:
            problem = error.strerror or type(error).__name__
        self._failed = True
        log.warning("%s: the traffic log ends here: %s", self.path, problem)


def writing(permits: TrafficLog, listener: Callable[[Event], None] | None, clock: Clock) -> Callable[[Event], None]:
    """A listener that writes the permits that are settled or refused, and calls ``listener``."""

    def listen(event: Event) -> None:
        if event.kind in ("settled", "refused"):
            cost, usage, refused = {**event.reserved, **(event.used or {})}, event.usage, event.kind == "refused"
            entry = Entry(event.granted_s - event.waited_s, event.pool, event.lane, event.model)
            entry.seconds = clock.now_ns() / NS - event.granted_s
            entry.output_tokens = cost.get(OUTPUT_TOKENS, 0.0)
            # By hand no status is known: what is settled there was answered.
            entry.status = 429 if refused else 200 if event.model is None else event.status
            entry.input_tokens = cost.get(INPUT_TOKENS, max(cost.get(TOKENS, 0.0) - entry.output_tokens, 0.0))
            if usage is not None:
                if entry.output_tokens > usage["output_tokens"]:  # the provider charges what the request allowed
                    entry.max_output_tokens = round(entry.output_tokens)
                entry.input_tokens, entry.output_tokens = usage["input_tokens"], usage["output_tokens"]
            permits.write(entry)
        if listener is not None:
            listener(event)

    return listen
