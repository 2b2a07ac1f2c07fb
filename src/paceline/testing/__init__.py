"""Tools for users' own tests: an emulated provider, clocks, virtual time, a suite for stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.emulator.server import Emulator
    from paceline.testing.clock import DeadlockError, ManualClock, run_virtual
    from paceline.testing.stores import StoreConformance

__all__ = ["DeadlockError", "Emulator", "ManualClock", "StoreConformance", "run_virtual"]

_HOMES = {"Emulator": "paceline.emulator", "StoreConformance": "paceline.testing.stores"}
"""The modules of the names that are not in ``paceline.testing.clock``."""


def __getattr__(name: str) -> Any:
    """Import at the first use: the emulator needs the extra ``paceline[emulator]``."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES.get(name, "paceline.testing.clock")), name)
