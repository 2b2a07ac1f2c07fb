"""Packages whose traffic does not go through httpx or httpx2: what cannot be paced is said, loudly."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from types import ModuleType
from typing import Final

from paceline.core.results import PacelineWarning
from paceline.http.dspy import MODULE as DSPY_CLIENT

_PERMIT = "acquire a permit around each call: `with limiter.acquire(...) as permit`"


def _dspy() -> bool:
    try:
        major, minor = (int(part) for part in version("dspy").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return True
    return (major, minor) >= (3, 4) and not _has("dspy", DSPY_CLIENT)


def _has(package: str, module: str) -> bool:
    """Whether an installed package has a module; nothing is imported."""
    place = Path(str(distribution(package).locate_file(module.replace(".", "/"))))
    return place.is_dir() or place.with_suffix(".py").is_file()


def _always() -> bool:
    return True


BYPASSES: Final = {
    "boto3": (
        _always,
        f"it sends through urllib3; {_PERMIT}, or use anthropic.AnthropicBedrock, whose calls are paced",
    ),
    "xai_sdk": (
        _always,
        f"it sends through gRPC; {_PERMIT}, or use openai.OpenAI(base_url='https://api.x.ai/v1'), whose calls are paced",
    ),
    "dspy": (
        _dspy,
        "it has another HTTP client than 3.4's; use dspy.LM(..., engine='litellm'), whose calls are paced",
    ),
}
"""Module name to: whether it bypasses us here, and what to do about it. Found by running each (2026-11)."""

Cure = Callable[[ModuleType], None]


class BypassWatch(MetaPathFinder):
    """Warns of what is loaded already, and of what is imported later; :meth:`stop` ends it.

    Args:
        cures: Module names to what makes the module reachable, once it is loaded.
    """

    def __init__(self, cures: Mapping[str, Cure]) -> None:
        self._cures = cures
        for name in BYPASSES:
            if name in sys.modules:
                self._warn(name)
        for name, cure in cures.items():
            if name in sys.modules:
                cure(sys.modules[name])
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Watch no more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """See the import; find nothing, but what has a cure."""
        if fullname in BYPASSES:
            self._warn(fullname)
        cure = self._cures.get(fullname)
        return None if cure is None else _cured(fullname, path, cure)

    def _warn(self, name: str) -> None:
        if BYPASSES[name][0]():
            warn_of(name)


def warn_of(name: str) -> None:
    """Say that a package of :data:`BYPASSES` is not paced, and the way out."""
    warnings.warn(f"paceline does not pace {name}: {BYPASSES[name][1]}", PacelineWarning, stacklevel=4)


def _cured(name: str, path: Sequence[str] | None, cure: Cure) -> ModuleSpec | None:
    """How to load a module as ever, with its cure at the end."""
    spec = PathFinder.find_spec(name, path)
    if spec is None or spec.loader is None:
        return None
    load = spec.loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        cure(module)

    spec.loader.exec_module = exec_module  # type: ignore[method-assign]
    return spec
