"""Events of permits, for a listener: metrics and reports."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from paceline.core.results import Refusal, public

log = logging.getLogger("paceline")


@public
@dataclass(frozen=True, slots=True)
class Event:
    """An event of one permit.

    Attributes:
        kind: ``acquired``, ``settled``, ``cancelled`` or ``refused``.
        pool: The pool that was charged, e.g. ``openai/gpt-6-luna``.
        lane: Its lane.
        waited_s: Its wait, in seconds: in the queue, and before it for the limits and the budgets of its lane.
        reserved: The reserved cost per unit.
        used: When ``settled``: the final cost per unit.
        reason: When ``refused``: the value of a :class:`~paceline.RefusalKind`.
        retry_after_s: When ``refused``: the wait that the provider asked for, in seconds, if any.
        name: The ``name`` that the caller gave to ``acquire``, if any.
        granted_s: When the permit was granted, in seconds since the Unix epoch.
        usage: When ``settled`` for a request of a client: what its answer reports, by the fields of
            :class:`~paceline.providers.base.Usage`. The ``used`` cost is what the provider charges, which may be more.
        model: For a request of a client: its model; otherwise ``None``.
        status: For a request of a client that is ``settled``: the HTTP status of its answer; 0 for none.
        refusal: When ``refused``: what the provider has stated, e.g. the unit and the limit.
        reported: When ``settled``: the amounts that the answer reports per unit, if the ``used`` cost differs.
        sized: Whether the tokens of the request were given or estimated. If not, 600 of input and 200 of output were
            assumed.
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
    granted_s: float = 0.0
    usage: Mapping[str, int] | None = None
    model: str | None = None
    status: int = 0
    refusal: Refusal | None = None
    reported: Mapping[str, float] | None = None
    sized: bool = True


def guarded(listener: Callable[[Event], None]) -> Callable[[Event], None]:
    """``listener``, whose first exception is logged; none reaches the caller that caused the event.

    ``SystemExit`` and ``KeyboardInterrupt`` reach it: they ask the program to end. A permit that was just granted is
    then given back.
    """
    failed = False

    def notify(event: Event) -> None:
        nonlocal failed
        try:
            listener(event)
        except Exception:
            if not failed:
                failed = True
                log.exception("the events listener failed; further failures are not logged, and it is still called")

    return notify
