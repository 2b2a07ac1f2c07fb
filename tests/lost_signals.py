"""A signal that comes while a server starts, and whose exception is lost."""


def losing(name: str, at: str = "uvicorn.loops.auto") -> str:
    """Code that runs first in the process of a server: signal ``name`` comes in an import, by default after the server's first line.

    Python drops an exception that a signal raises in a callback, such as the one that frees the lock of an import. The process that
    a gateway starts in its place gets no signal.
    """
    return f"""
import importlib.abc, os, signal, sys

class Loses(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "{at}" and "PACELINE_BEFORE" not in os.environ:
            try:
                signal.raise_signal(signal.{name})
            except KeyboardInterrupt:
                pass

sys.meta_path.insert(0, Loses())
"""
