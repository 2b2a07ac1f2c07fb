"""Integrations of single packages, one file each. A package is imported at the first use of its integration."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def package(name: str, requirement: str) -> Any:
    """Import the package of an integration.

    Args:
        name: The module.
        requirement: The package to install for it, e.g. ``anthropic>=0.125``.

    Raises:
        ImportError: It is not installed; the message says how to install it.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ImportError(f"this integration needs {name}: pip install {requirement!r}") from error
