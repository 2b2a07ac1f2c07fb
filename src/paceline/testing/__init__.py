"""What users' own tests need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.emulator.server import Emulator

__all__ = ["Emulator"]

_HOMES = {"Emulator": "paceline.emulator.server"}


def __getattr__(name: str) -> Any:
    """Import on first use: the emulator needs the extra ``paceline[emulator]``."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
