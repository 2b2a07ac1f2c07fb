"""Python imports this file at the start of every process under ``paceline exec``, before the program.

It costs a process little that sends nothing: paceline is imported with the first HTTP library.
"""

from __future__ import annotations

import os
import sys
from _thread import RLock
from importlib.machinery import ModuleSpec, PathFinder

TYPE_CHECKING = False  # typing is not imported here
if TYPE_CHECKING:
    from typing import Any

LIBRARIES = {"httpx", "httpx2", "aiohttp", "urllib3", "grpc", "websockets", "curl_cffi"}
"""The libraries that :func:`paceline.instrument` paces, and three that it announces; requests and botocore import urllib3."""


class FirstImport:
    """Starts the pacing of this process when it looks for the first of :data:`LIBRARIES`."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._started: bool = False

    def find_spec(self, name: str, path: Any = None, target: Any = None, /) -> ModuleSpec | None:
        """The module's spec, from the finders that hold after the start; ``None`` for any other module."""
        if name not in LIBRARIES:
            return None
        with self._lock:  # another thread waits until the pacing has started
            if not self._started:
                self._started = True
                _start()
        for finder in list(sys.meta_path):  # which may have changed since this import began
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                return spec
        return None


def _start() -> None:
    """Start the pacing. An error is not the program's, whose import goes on."""
    try:
        from paceline.launcher.child import start

        start()
    except Exception as error:  # noqa: BLE001
        if os.environ.get("PACELINE_GATEWAY"):  # which needs nothing here
            return
        absent = isinstance(error, ModuleNotFoundError) and error.name == "paceline"
        where = "; install paceline there" if absent else ""
        print(f"paceline exec: {sys.executable} is not paced: {error}{where}", file=sys.stderr)
        _tell(f"{sys.executable}: {error}")


def _tell(why: str) -> None:
    """Let the command know that this process is not paced, by a file beside its settings."""
    folder = os.path.dirname(os.environ["PACELINE_EXEC"])
    try:
        with open(os.path.join(folder, f"{os.getpid()}.unpaced"), "w", encoding="utf-8") as file:
            file.write(why)
    except OSError:  # the command has ended
        return


def run_hidden() -> None:
    """Run the ``sitecustomize`` that this one hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.curdir) != here]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = type(sys)("sitecustomize")
        module.__spec__, module.__file__, module.__loader__ = spec, spec.origin, spec.loader
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("PACELINE_EXEC"):
    sys.meta_path.insert(0, FirstImport())
run_hidden()
