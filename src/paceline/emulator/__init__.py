"""A server that limits, counts and refuses like an LLM provider. It shares no code with the limiter that it tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.emulator.server import Emulator
    from paceline.emulator.settings import Settings, SettingsError
    from paceline.emulator.world import Admitted, Refused, World

__all__ = ["Admitted", "Emulator", "Refused", "Settings", "SettingsError", "World"]

_HOMES = {
    "Admitted": "world",
    "Emulator": "server",
    "Refused": "world",
    "Settings": "settings",
    "SettingsError": "settings",
    "World": "world",
}


def __getattr__(name: str) -> Any:
    """Import on first use: only the server needs uvicorn and Starlette."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        why = "the emulator needs the extra 'emulator': pip install 'paceline[emulator]'"
        raise ImportError(why, name=__name__) from error
