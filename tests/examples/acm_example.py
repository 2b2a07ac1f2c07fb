"""The evaluation program's own modules, for its tests."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "acm"
LIMITS = EXAMPLE / "limits.yaml"


def load():
    """``run.py`` (other examples have one, too), and the modules beside it."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        spec = spec_from_file_location("acm_run", EXAMPLE / "run.py")
        module = sys.modules["acm_run"] = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module, *(import_module(name) for name in ("clients", "components", "plan", "table", "monitoring"))
    finally:
        sys.path.remove(str(EXAMPLE))


program, clients, components, plan, table, monitoring = load()
