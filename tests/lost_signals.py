"""A signal that comes while a server starts, and whose exception is lost."""


def losing(name: str) -> str:
    """Code that runs first in the process of a server: signal ``name`` comes in an import after the server's first line.

    Python drops an exception that a signal raises in a callback, such as the one that frees the lock of an import.
    """
    return f"""
import importlib.abc, signal, sys

class Loses(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "uvicorn.loops.auto":
            try:
                signal.raise_signal(signal.{name})
            except KeyboardInterrupt:
                pass

sys.meta_path.insert(0, Loses())
"""
