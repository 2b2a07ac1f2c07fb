"""Keep LLM traffic exactly at the speed that the provider allows: hundreds of workers, no 429s, nobody starved."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.core.breaker import BreakerPolicy
    from paceline.core.line import LaneSpec
    from paceline.core.outcomes import (
        AcquireTimeoutError,
        GaveUpError,
        LineFullError,
        NeverFits,
        NeverFitsError,
        PacelineError,
        PacelineWarning,
        PoolStoppedError,
        QuotaError,
        Refusal,
        RefusalKind,
        StoreError,
    )
    from paceline.core.quota import Quota, Rule
    from paceline.core.retry import RetryPolicy
    from paceline.events import Event, log_events
    from paceline.forecast import eta
    from paceline.gate import Waiting
    from paceline.http.instrument import instrument
    from paceline.lanes import lane
    from paceline.limiter import Limiter
    from paceline.permit import Acquisition, Later, Permit
    from paceline.providers.refusals import refusal_of
    from paceline.status import status_app

_HOMES = {
    "paceline.core.breaker": ("BreakerPolicy",),
    "paceline.core.line": ("LaneSpec",),
    "paceline.core.outcomes": (
        "AcquireTimeoutError", "GaveUpError", "LineFullError", "NeverFits", "NeverFitsError", "PacelineError",
        "PacelineWarning", "PoolStoppedError", "QuotaError", "Refusal", "RefusalKind", "StoreError",
    ),
    "paceline.core.quota": ("Quota", "Rule"),
    "paceline.core.retry": ("RetryPolicy",),
    "paceline.events": ("Event", "log_events"),
    "paceline.forecast": ("eta",),
    "paceline.gate": ("Waiting",),
    "paceline.http.instrument": ("instrument",),
    "paceline.lanes": ("lane",),
    "paceline.limiter": ("Limiter",),
    "paceline.permit": ("Acquisition", "Later", "Permit"),
    "paceline.providers.refusals": ("refusal_of",),
    "paceline.status": ("status_app",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AcquireTimeoutError", "Acquisition", "BreakerPolicy", "Event", "GaveUpError", "LaneSpec", "Later", "Limiter",
    "LineFullError", "NeverFits", "NeverFitsError", "PacelineError", "PacelineWarning", "Permit", "PoolStoppedError", "Quota",
    "QuotaError", "Refusal", "RefusalKind", "RetryPolicy", "Rule", "StoreError", "Waiting", "eta", "instrument", "lane",
    "log_events", "refusal_of", "status_app",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
