"""Tools for users' own tests: an emulated provider, clocks, virtual time, a suite for stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.emulator.server import Emulator
    from paceline.testing.clock import DeadlockError, ManualClock, run_virtual
    from paceline.testing.stores import StoreConformance

__all__ = ["DeadlockError", "Emulator", "ManualClock", "StoreConformance", "run_virtual"]

_HOMES = {
    "DeadlockError": "paceline.testing.clock",
    "Emulator": "paceline.emulator",
    "ManualClock": "paceline.testing.clock",
    "StoreConformance": "paceline.testing.stores",
    "run_virtual": "paceline.testing.clock",
}


def __getattr__(name: str) -> Any:
    """Import at the first use: the emulator needs the extra ``paceline[emulator]``."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
