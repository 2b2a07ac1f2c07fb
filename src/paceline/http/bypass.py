"""Packages whose traffic does not go through httpx or httpx2: what cannot be paced is said, loudly."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import ModuleType
from typing import Final

from paceline.core.outcomes import PacelineWarning

_GATEWAY = "; acquire a permit around its calls: `async with limiter.acquire(...)`"


def _aiohttp() -> bool:
    return find_spec("aiohttp") is not None and os.environ.get("GOOGLE_GENAI_HTTP_CLIENT", "auto") == "auto"


def _dspy() -> bool:
    try:
        major, minor = (int(part) for part in version("dspy").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return True
    return (major, minor) >= (3, 4)


def _always() -> bool:
    return True


BYPASSES: Final = {
    "boto3": (_always, "boto3 (Bedrock) sends through urllib3" + _GATEWAY),
    "xai_sdk": (_always, "xai_sdk sends through gRPC" + _GATEWAY),
    "dspy": (_dspy, "dspy 3.4 and later sends through a client of its own; use dspy.LM(..., engine='litellm')"),
    "google.genai": (
        _aiohttp,
        (
            "google-genai's async client sends through aiohttp when that is installed;"
            " set GOOGLE_GENAI_HTTP_CLIENT=httpx2 before the client is made"
        ),
    ),
}
"""Module name to: whether it bypasses us here, and what to do about it. Found by running each (2026-11)."""


class BypassWatch(MetaPathFinder):
    """Warns of what is loaded already, and of what is imported later; :meth:`stop` ends it."""

    def __init__(self) -> None:
        for name in BYPASSES:
            if name in sys.modules:
                self._warn(name)
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Watch no more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Find nothing, ever; but see the import."""
        if fullname in BYPASSES:
            self._warn(fullname)
        return None

    def _warn(self, name: str) -> None:
        bypasses, advice = BYPASSES[name]
        if bypasses():
            warnings.warn(f"paceline does not pace {name}: {advice}", PacelineWarning, stacklevel=3)
