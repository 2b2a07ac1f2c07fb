"""Many requests to an LLM API at the full speed that the provider allows, without avoidable 429s."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, get_type_hints

__version__ = "0.1.0"

if TYPE_CHECKING:
    from paceline.batch.rows import arun, run
    from paceline.core.plan import PlanPolicy
    from paceline.core.queue import LaneSpec
    from paceline.core.quota import Quota, Rule
    from paceline.core.results import (
        AcquireTimeoutError,
        BudgetError,
        GaveUpError,
        NeverFits,
        NeverFitsError,
        PacelineError,
        PacelineWarning,
        PoolStoppedError,
        QueueFullError,
        QuotaError,
        Reading,
        Refusal,
        RefusalKind,
        RefusalScope,
        SettingsError,
        StoreError,
        TooLargeError,
        UnfinishedError,
    )
    from paceline.data.mapping import map, map_sync  # noqa: A004
    from paceline.data.partition import partition
    from paceline.http.instrument import instrument
    from paceline.limiter.limiter import Limiter
    from paceline.pacing.breaker import BreakerPolicy
    from paceline.pacing.buffer import Buffer
    from paceline.pacing.events import Event
    from paceline.pacing.group import Group
    from paceline.pacing.pacer import lane
    from paceline.pacing.permit import Acquisition, Later, Permit
    from paceline.pacing.retry import RetryPolicy
    from paceline.pacing.status import Waiting
    from paceline.planner.forecast import eta
    from paceline.providers.answers import HeaderLimits, finish_of, limits_in, refusal_of
    from paceline.responses.finish import Finish
    from paceline.telemetry.status_app import status_app

_HOMES = {
    "paceline.batch.rows": ("arun", "run"),
    "paceline.core.plan": ("PlanPolicy",),
    "paceline.pacing.breaker": ("BreakerPolicy",),
    "paceline.pacing.buffer": ("Buffer",),
    "paceline.core.queue": ("LaneSpec",),
    "paceline.core.results": (
        "AcquireTimeoutError", "BudgetError", "GaveUpError", "QueueFullError", "NeverFits", "NeverFitsError", "PacelineError",
        "PacelineWarning", "PoolStoppedError", "QuotaError", "Reading", "Refusal", "RefusalKind", "RefusalScope",
        "SettingsError", "StoreError", "TooLargeError", "UnfinishedError",
    ),
    "paceline.core.quota": ("Quota", "Rule"),
    "paceline.data.mapping": ("map", "map_sync"),
    "paceline.data.partition": ("partition",),
    "paceline.pacing.retry": ("RetryPolicy",),
    "paceline.pacing.events": ("Event",),
    "paceline.pacing.group": ("Group",),
    "paceline.planner.forecast": ("eta",),
    "paceline.pacing.status": ("Waiting",),
    "paceline.http.instrument": ("instrument",),
    "paceline.pacing.pacer": ("lane",),
    "paceline.limiter.limiter": ("Limiter",),
    "paceline.pacing.permit": ("Acquisition", "Later", "Permit"),
    "paceline.providers.answers": ("HeaderLimits", "finish_of", "limits_in", "refusal_of"),
    "paceline.responses.finish": ("Finish",),
    "paceline.telemetry.status_app": ("status_app",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AcquireTimeoutError", "Acquisition", "BreakerPolicy", "BudgetError", "Buffer", "Event", "Finish", "GaveUpError", "Group", "HeaderLimits", "LaneSpec",
    "Later", "Limiter", "NeverFits", "NeverFitsError", "PacelineError", "PacelineWarning", "Permit", "PlanPolicy", "PoolStoppedError",
    "QueueFullError", "Quota", "QuotaError", "Reading", "Refusal", "RefusalKind", "RefusalScope", "RetryPolicy", "Rule",
    "SettingsError", "StoreError", "TooLargeError", "UnfinishedError", "Waiting", "arun", "eta", "finish_of", "instrument", "lane", "limits_in", "map", "map_sync", "partition", "refusal_of", "run",
    "status_app",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    home = import_module(_HOME_OF[name])
    value = getattr(home, name)
    if hasattr(value, "__dataclass_fields__"):  # as types: their texts are about names of that module
        value.__annotations__ = {**get_type_hints(value, vars(home), include_extras=True)}
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
