"""A server that limits, counts and refuses like an LLM provider. It shares no code with the limiter that it tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.emulator.settings import Settings, SettingsError
from paceline.emulator.world import Refused, World

if TYPE_CHECKING:
    from paceline.emulator.server import Emulator

__all__ = ["Emulator", "Refused", "Settings", "SettingsError", "World"]


def __getattr__(name: str) -> Any:
    """Import the server on first use: only it needs uvicorn."""
    if name != "Emulator":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from paceline.emulator.server import Emulator
    except ModuleNotFoundError as error:
        why = "the emulator needs the extra 'emulator': pip install 'paceline[emulator]'"
        raise ImportError(why, name=__name__) from error
    return Emulator
