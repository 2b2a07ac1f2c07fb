"""Warnings of packages whose traffic does not go through httpx2 or httpx, and cures for those that can be made to."""

from __future__ import annotations

import logging
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

log = logging.getLogger("paceline.http")

_PERMIT = "acquire a permit around each call: `with limiter.acquire(...) as permit`"

BYPASSES: Final = {
    "xai_sdk": f"it sends through gRPC; {_PERMIT}, or use openai.OpenAI(base_url='https://api.x.ai/v1'), whose calls are paced",
    "dspy": "it has another HTTP client than 3.4's; use dspy.LM(..., engine='litellm'), whose calls are paced",
}
"""Module names to how each bypasses paceline and what to do about it. Found by running each (2026-11)."""


class ImportWatch(MetaPathFinder):
    """Calls an action for a module that is imported already, and for one that is imported until :meth:`stop`.

    Args:
        actions: By the name of a module: called with it when it has been executed.
    """

    def __init__(self, actions: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self._actions = actions
        for name, action in actions.items():
            if name in sys.modules:
                action(sys.modules[name])
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Watch no more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, path: Sequence[str] | None, _target: object = None, /) -> ModuleSpec | None:
        """A spec whose loader also calls the module's action; ``None`` for any other module.

        Packages look for specs of others that are not installed, or that they do not import: that alone calls nothing.
        """
        spec = PathFinder.find_spec(fullname, path) if fullname in self._actions else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            if module.__name__ != fullname:  # a loader of many modules, as that of a zip file
                return
            try:
                self._actions[fullname](module)
            except PacelineWarning as warning:  # warnings are errors here: the import must not fail because of them
                log.warning("%s", warning)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


bypassed: set[str] = set()
"""The packages of :data:`BYPASSES` that this process has imported."""


def warn_if_bypassed(module: ModuleType) -> None:
    """Warn of a package of :data:`BYPASSES`; of dspy only where its client is unknown."""
    if module.__name__ != "dspy" or _dspy():
        warn_of(module.__name__)


def warn_of(name: str) -> None:
    """Warn that a package of :data:`BYPASSES` is not paced, and name the way out."""
    bypassed.add(name)
    warnings.warn(f"paceline does not pace {name}: {BYPASSES[name]}", PacelineWarning, stacklevel=4)


def _dspy() -> bool:
    """Whether the installed dspy sends through an unknown client: since 3.4 it has one of its own. Imports nothing."""
    try:
        major, minor = (int(part) for part in version("dspy").split(".")[:2])
        client = Path(str(distribution("dspy").locate_file(DSPY_CLIENT.replace(".", "/"))))
    except (PackageNotFoundError, ValueError):
        return True
    return (major, minor) >= (3, 4) and not (client.is_dir() or client.with_suffix(".py").is_file())
