"""What a world says to a request, and how its quotas stand: values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True)
class Admitted:
    """A request that was let in; hand it to :meth:`World.finish`.

    Attributes:
        model: The model that was asked for.
        pool: The name of the limits that it was charged to.
        input_tokens: The input, as the server counts it.
        output_tokens: The output that the model will produce.
        held_tokens: What a ``tokens`` quota was charged at admission.
        at_s: When.
        first_s: Seconds from admission to the first piece of the answer.
        duration_s: Seconds from admission to the end of the answer.
        fault: ``500`` or ``drop`` when that is the answer, ``stream`` when the answer breaks off in the middle.
        settles: Whether what was held and not used comes back at the end.
    """

    model: str
    pool: str
    input_tokens: int
    output_tokens: int
    held_tokens: int
    at_s: float
    first_s: float = 0.0
    duration_s: float = 0.0
    fault: str | None = None
    settles: bool = False
    produced: int = 0
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that was turned away.

    Attributes:
        kind: ``rate``, ``growth``, ``capacity`` (503, 529), ``money``, ``too_large``, ``auth``, ``unknown_model``
            or ``invalid``.
        model: The model that was asked for.
        pool: The name of the limits that would have been charged.
        unit: The unit whose quota refused.
        period_s: That quota's period.
        limit: That quota's amount.
        used: What of it is used, as the server prints it; may exceed the limit.
        requested: What the request would have been charged.
        wait_s: Seconds until it would fit; ``inf`` for never, 0 when the server does not say.
        status: The fault's HTTP status, for ``capacity``.
        detail: What was wrong with it, for ``invalid``.
    """

    kind: str
    model: str = ""
    pool: str = ""
    unit: str = ""
    period_s: float = 0.0
    limit: float = 0.0
    used: float = 0.0
    requested: float = 0.0
    wait_s: float = 0.0
    status: int = 0
    detail: str = ""


class Level(NamedTuple):
    """One quota as headers show it."""

    unit: str
    period_s: float
    limit: float
    remaining: float
    reset_s: float
