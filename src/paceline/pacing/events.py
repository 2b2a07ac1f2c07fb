"""What happens to permits, told to whoever wants to hear it: for logs, metrics and reports of your own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

log = logging.getLogger("paceline")
told = logging.getLogger("paceline.events")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to one permit.

    Attributes:
        kind: ``acquired``, ``settled``, ``cancelled`` or ``refused``.
        pool: The pool that was charged, e.g. ``openai/gpt-5``.
        lane: The lane that it waited in.
        waited_s: How long it had waited in line, in seconds.
        reserved: What was reserved, per unit.
        used: When ``settled``: what was charged in the end, per unit.
        reason: When ``refused``: why, as the value of a :class:`~paceline.RefusalKind`.
        retry_after_s: When ``refused``: how long the provider asked to wait, in seconds, if it did.
    """

    kind: str
    pool: str
    lane: str
    waited_s: float
    reserved: Mapping[str, float]
    used: Mapping[str, float] | None = None
    reason: str | None = None
    retry_after_s: float | None = None


class Teller:
    """Tells a listener, whose faults are its own: they are logged, once, and never reach who acquires or settles."""

    __slots__ = ("_failed", "_listener")

    def __init__(self, listener: Callable[[Event], None]) -> None:
        if not callable(listener):
            raise TypeError(f"events is {listener!r}: it must be a function of one event, e.g. paceline.log_events")
        self._listener = listener
        self._failed = False

    def __call__(self, *fields: Any) -> None:
        """Tell of the event with these fields."""
        try:
            self._listener(Event(*fields))
        except Exception:
            if not self._failed:
                self._failed = True
                log.exception("the listener for events failed; it is called again, but this is said only once")


def log_events(event: Event) -> None:
    """A listener that logs: ``Limiter(..., events=paceline.log_events)``.

    Each event is one record of the logger ``paceline.events``, at ``INFO``. Its fields are plain JSON values in the
    record's ``paceline``, where a formatter that writes JSON finds them.
    """
    if told.isEnabledFor(logging.INFO):
        fields = {name: value for name, value in asdict(event).items() if value is not None}
        fields["waited_s"] = round(event.waited_s, 6)
        for name in ("reserved", "used"):
            if name in fields:
                fields[name] = {unit: round(amount, 6) for unit, amount in fields[name].items()}
        told.info("%s: %s", event.pool, _words(event), extra={"paceline": fields})


def _words(event: Event) -> str:
    """An event for people: ``settled, 1,150 input_tokens, 120 output_tokens``."""
    if event.kind == "refused":
        asked = "" if event.retry_after_s is None else f", asked to wait {event.retry_after_s:g} s"
        return f"refused ({event.reason}){asked}"
    cost = event.reserved if event.used is None else event.used
    amounts = ", ".join(f"{round(amount, 2):,.15g} {unit}" for unit, amount in cost.items())
    waited = f" after {event.waited_s:.1f} s" if event.kind == "acquired" else ""
    return f"{event.kind}{waited}: {amounts}"
