"""When a module is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


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
        # WEAK: a module that another finder has (of an editable install, for example) is imported without the action.
        spec = PathFinder.find_spec(fullname, path) if fullname in self._actions else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            if module.__name__ != fullname:  # a loader of many modules, as of a zip file
                return
            self._actions[fullname](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
