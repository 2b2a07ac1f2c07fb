"""The programs of the examples, for their tests."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(example: str, *beside: str) -> list[ModuleType]:
    """``run.py`` of an example (others have one, too), and modules beside it."""
    folder = EXAMPLES / example
    sys.path.insert(0, str(folder))
    try:
        spec = spec_from_file_location(f"{example}_run", folder / "run.py")
        module = sys.modules[spec.name] = module_from_spec(spec)
        spec.loader.exec_module(module)
        return [module, *map(import_module, beside)]
    finally:
        sys.path.remove(str(folder))
