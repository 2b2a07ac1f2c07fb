"""What tests need to know of the system that they run on."""

import sys

import pytest


def is_wine() -> bool:
    """Whether the Windows of this process is wine: its C library is not Microsoft's."""
    if sys.platform != "win32":
        return False
    import ctypes

    return hasattr(ctypes.windll.ntdll, "wine_get_version")


def unless_wine(reason: str) -> pytest.MarkDecorator:
    """Skip a test under wine, where it fails and on Windows does not; ``reason``: what is different there."""
    return pytest.mark.skipif(is_wine(), reason=f"wine: {reason}")
