"""The dependency rule, the size of things, and what `import paceline` costs; nothing here runs the library's logic."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import paceline

SOURCE = Path(paceline.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# Each part may import itself and what is named here, anywhere in a file. Parts not named are the doors and their rooms.
RULES: dict[str, set[str]] = {
    "core": set(),
    "providers": {"core", "estimate"},
    "estimate": {"core", "providers"},
    "address": {"core", "providers"},
    "clock": {"core"},
    "gate": {"core", "clock"},
    "tasks": {"gate"},
    "permit": {"core", "gate", "providers"},
    "limits": {"core", "providers", "estimate"},
    "lessons": {"core", "providers", "estimate"},
    "stores": {"core", "clock"},
    "shared": {"core", "clock", "gate", "stores"},
    "events": set(),
    "lanes": {"core"},
    "faults": {"core", "clock", "gate"},
    "paced": {"core", "permit"},
    "attempts": {"core", "gate", "permit", "faults", "providers"},
    "limiter": {
        "core",
        "clock",
        "gate",
        "shared",
        "permit",
        "limits",
        "lessons",
        "stores",
        "providers",
        "estimate",
        "events",
        "lanes",
        "faults",
        "paced",
        "attempts",
    },
    "forecast": {"core", "clock", "gate", "permit", "limiter", "shared"},
    "http": {"core", "clock", "gate", "permit", "limits", "lessons", "limiter", "providers", "estimate"},
    "status": set(),
    "emulator": set(),
}
DOORS = ["config", "integrations", "batch", "check", "gateway", "planner", "telemetry", "testing", "demo", "cli"]
"""From the lowest to the highest: each may import all of the above and the doors before it."""

LAZY_UPWARDS = {("limiter", "http"), ("limiter", "config"), ("testing", "emulator"), ("gate", "tasks")}
"""Inside a function only: `limiter.attach`, `limiter.load`, the emulator as a fixture, and whatever needs asyncio."""

NOT_IN_CORE = {"time", "random", "asyncio", "threading"}
HEAVY = {
    "httpx", "httpx2", "openai", "anthropic", "click", "rich", "redis", "litellm", "starlette", "uvicorn", "pytest",
    "numpy", "matplotlib", "tiktoken", "toktok_rs", "yaml", "pydantic", "aiohttp", "requests",
}  # fmt: skip


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(tree: ast.AST, *, top: bool = True) -> Iterator[tuple[str, bool]]:
    """Every imported module by its full name, and whether importing the file imports it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from ((name, False) for name, _ in imports(node))
        elif isinstance(node, ast.Import):
            yield from ((alias.name, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            if node.module == "paceline":
                yield from ((f"paceline.{alias.name}", top) for alias in node.names)
            else:
                yield node.module, top
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports(node, top=top and not inside)


def every_import() -> Iterator[tuple[Path, str, str, bool]]:
    """Path, its part, the imported module, whether at import time."""
    for path in FILES:
        part = part_of(path)
        if part != "__init__":
            for module, top in imports(ast.parse(path.read_text())):
                yield path, part, module, top


def allowed(part: str) -> set[str]:
    if part in RULES:
        return RULES[part] | {part}
    assert part in DOORS, f"{part} has no place in the dependency rule: give it one"
    return (
        set(RULES) - {"emulator"}
        | set(DOORS[: DOORS.index(part) + 1])
        | ({"emulator"} if part in {"cli", "demo"} else set())
    )


def test_nothing_imports_upwards():
    wrong = []
    for path, part, module, top in every_import():
        root, _, rest = module.partition(".")
        target = rest.partition(".")[0]
        if root != "paceline" or target in allowed(part):
            continue
        if not rest:
            wrong.append(f"{path.relative_to(SOURCE)}: import what you need from its home, not from the package")
        elif top or (part, target) not in LAZY_UPWARDS:
            wrong.append(f"{path.relative_to(SOURCE)}: {part} must not import {module}")
    assert wrong == []


def test_core_needs_the_standard_library_and_no_clock():
    for path, part, module, _ in every_import():
        root = module.partition(".")[0]
        if part == "core":
            assert root == "paceline" or root in sys.stdlib_module_names, f"{path.name} imports {module}"
            assert root not in NOT_IN_CORE, f"{path.name} imports {module}"


@pytest.mark.parametrize("name", ["time", "datetime"])
def test_core_asks_no_clock(name):
    for path in FILES:
        if part_of(path) == "core":
            for node in ast.walk(ast.parse(path.read_text())):
                called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
                assert called not in {f"{name}.now", f"{name}.utcnow", f"{name}.today", f"{name}.time"}, path.name


def test_heavy_imports_are_lazy():
    """A room may need its libraries, the engine and the limiter none."""
    for path, part, module, top in every_import():
        if part in RULES and part not in {"http", "emulator"} and top:
            assert module.partition(".")[0] not in HEAVY, f"{path.relative_to(SOURCE)} imports {module}"


def fresh(code: str) -> list[str]:
    """The modules that are there after ``code`` in a new interpreter."""
    script = f"import sys; before = set(sys.modules)\n{code}\nimport json; print(json.dumps(sorted(set(sys.modules) - before)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True, timeout=60)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "code",
    [
        "import paceline",
        "import paceline; paceline.Limiter({'jobs': '5 requests/min'}).acquire('jobs').wait()",
        "import paceline; paceline.Limiter({'openai/gpt-5': '5 requests/min'}).try_acquire('openai/gpt-5')",
        "import paceline; [getattr(paceline, name) for name in paceline.__all__]",
        "import paceline.testing; paceline.testing.ManualClock; paceline.testing.run_virtual",
    ],
)
def test_no_heavy_library_comes_along(code):
    assert {module.partition(".")[0] for module in fresh(code)} & HEAVY == set()


def test_import_paceline_imports_next_to_nothing():
    modules = fresh("import paceline")
    assert [module for module in modules if module.startswith("paceline")] == ["paceline"]
    assert not {"asyncio", "threading"} & set(modules)


def test_a_limiter_brings_along_nothing_that_only_some_need():
    waits = (
        "import paceline; limiter = paceline.Limiter({'jobs': '1000 requests/s'}, headroom_s=0)\n"
        "for _ in range(3): limiter.acquire('jobs', requests=500).wait().settle()"  # the third waits
    )
    assert not {"asyncio", "zoneinfo", "uuid", "ssl", "paceline.shared.messages", "paceline.http"} & set(fresh(waits))


class TestPublicNames:
    def test_each_is_there_and_listed(self):
        for name in paceline.__all__:
            assert getattr(paceline, name) is not None
        assert paceline.__all__ == sorted(paceline.__all__, key=lambda name: (name.islower(), name))
        assert dir(paceline) == sorted(paceline.__all__)
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            paceline.nothing  # noqa: B018

    def test_there_are_about_twenty(self):
        assert 18 <= len(paceline.__all__) <= 30

    def test_a_type_checker_sees_the_same(self):
        tree = ast.parse((SOURCE / "__init__.py").read_text())
        seen = {
            alias.name: node.module
            for block in tree.body
            if isinstance(block, ast.If)
            for node in block.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        assert set(seen) == set(paceline.__all__)
        for name, home in seen.items():
            assert getattr(import_module(home), name) is getattr(paceline, name)

    def test_each_says_what_it_is(self):
        for name in paceline.__all__:
            assert getattr(paceline, name).__doc__, f"{name} has no docstring"
