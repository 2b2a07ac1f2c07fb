"""Events of permits, for a listener: logs, metrics and reports."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

log = logging.getLogger("paceline")
event_log = logging.getLogger("paceline.events")


@dataclass(frozen=True, slots=True)
class Event:
    """An event of one permit.

    Attributes:
        kind: ``acquired``, ``settled``, ``cancelled`` or ``refused``.
        pool: The pool that was charged, e.g. ``openai/gpt-5``.
        lane: Its lane.
        waited_s: Its wait in the queue, in seconds.
        reserved: The reserved cost per unit.
        used: When ``settled``: the final cost per unit.
        reason: When ``refused``: the value of a :class:`~paceline.RefusalKind`.
        retry_after_s: When ``refused``: the wait that the provider asked for, in seconds, if any.
        name: The ``name`` that the caller gave to ``acquire``, if any.
    """

    kind: str
    pool: str
    lane: str
    waited_s: float
    reserved: Mapping[str, float]
    used: Mapping[str, float] | None = None
    reason: str | None = None
    retry_after_s: float | None = None
    name: str | None = None


class Notifier:
    """Calls a listener with events. Its first exception is logged; none reaches the caller that caused the event.

    ``SystemExit`` and ``KeyboardInterrupt`` reach it: they ask the program to end. A permit that was just granted is then
    given back.
    """

    __slots__ = ("_failed", "_listener")

    def __init__(self, listener: Callable[[Event], None]) -> None:
        if not callable(listener):
            raise TypeError(f"events is {listener!r}: it must be a function of one event, e.g. paceline.log_events")
        self._listener = listener
        self._failed = False

    def __call__(self, *fields: Any) -> None:
        """Call the listener with an event of these fields."""
        try:
            self._listener(Event(*fields))
        except Exception:
            if not self._failed:
                self._failed = True
                log.exception("the events listener failed; further failures are not logged, and it is still called")


def log_events(event: Event) -> None:
    """A listener that logs: ``Limiter(..., events=paceline.log_events)``.

    Each event is one record of the logger ``paceline.events`` at ``INFO``. Its fields are JSON values in the attribute
    ``paceline`` of the record, for a formatter that writes JSON.
    """
    if event_log.isEnabledFor(logging.INFO):
        fields = {name: value for name, value in asdict(event).items() if value is not None}
        fields["waited_s"] = round(event.waited_s, 6)
        for name in ("reserved", "used"):
            if name in fields:
                fields[name] = {unit: round(amount, 6) for unit, amount in fields[name].items()}
        event_log.info("%s: %s", event.pool, _words(event), extra={"paceline": fields})


def _words(event: Event) -> str:
    """An event as text: ``settled: 1,150 input_tokens, 120 output_tokens``."""
    if event.kind == "refused":
        asked = "" if event.retry_after_s is None else f", asked to wait {event.retry_after_s:g} s"
        return f"refused ({event.reason}){asked}"
    cost = event.reserved if event.used is None else event.used
    amounts = ", ".join(f"{round(amount, 2):,.15g} {unit}" for unit, amount in cost.items())
    waited = f" after {event.waited_s:.1f} s" if event.kind == "acquired" else ""
    return f"{event.kind}{waited}: {amounts}"
