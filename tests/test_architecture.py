"""The dependency rule, and what `import paceline` costs; nothing here runs the library's logic."""

from __future__ import annotations

import ast
import inspect
import json
import pickle
import sys
import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

import paceline
from programs import python

SOURCE = Path(paceline.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# Each package may import itself and the packages named here: at import time, inside a function, or for types only.
LOCAL = {"core", "estimation", "facts", "responses", "providers", "pacing", "http"}
"""What paces one process, below the facade."""

RULES: dict[str, set[str]] = {
    "core": set(),
    "estimation": {"core"},
    "facts": {"core"},
    "responses": {"core"},
    "providers": {"core", "estimation", "facts", "responses"},
    "pacing": {"core", "estimation", "providers"},
    "http": {"core", "estimation", "responses", "providers", "pacing"},
    "shared": {"core", "pacing"},
    "stores": {"core", "pacing", "shared"},
    "config": LOCAL | {"shared", "stores"},
    "limiter": LOCAL | {"shared", "stores", "config", "telemetry"},
    "planner": LOCAL | {"shared", "config", "limiter", "emulator", "testing"},
    "telemetry": {"core", "providers", "pacing"},
    "emulator": set(),
    "testing": {"core", "pacing", "shared", "stores", "emulator"},
    "integrations": LOCAL | {"stores", "config", "limiter", "batch", "data"},
    "launcher": LOCAL | {"limiter", "integrations"},
    "batch": LOCAL | {"shared", "stores", "config", "limiter", "telemetry", "planner", "data"},
    "check": LOCAL | {"config", "limiter"},
    "data": {"core", "pacing", "http", "stores", "config", "limiter"},
    "gateway": LOCAL | {"config", "limiter", "telemetry"},
    "demo": {"emulator", "limiter", "planner"},
    "__main__": {"cli"},
}
RULES["cli"] = LOCAL | {*RULES} - {"integrations", "data", "testing", "__main__"}

LIGHT = LOCAL - {"http"} | {"shared", "stores", "limiter", "planner", "telemetry"}
"""Importing them imports no heavy library."""

NOT_IN_CORE = {"time", "random", "asyncio", "threading"}
HEAVY = {
    "httpx", "httpx2", "openai", "anthropic", "click", "rich", "redis", "litellm", "starlette", "uvicorn", "pytest",
    "numpy", "tiktoken", "toktok_rs", "yaml", "pydantic", "aiohttp", "requests",
}  # fmt: skip


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(tree: ast.AST, *, top: bool = True) -> Iterator[tuple[str, bool]]:
    """Every imported module by its full name, and whether importing the file imports it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            yield from ((name, False) for name, _ in imports(node))
        elif isinstance(node, ast.Import):
            yield from ((alias.name, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield (inner if inner in MODULES else node.module), top
        elif not isinstance(node, ast.expr):  # imports are statements
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from imports(node, top=top and not inside)


def module_of(path: Path) -> str:
    parts = ["paceline", *path.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path) for path in FILES}


class Call(NamedTuple):
    """A call: where it is, the last word of what it calls, the name before it (none of a plain function), and what it is given."""

    where: str
    name: str
    owner: str | None
    positional: int
    constants: list[object]
    words: set[str | None]


def call_of(where: str, node: ast.Call) -> Call:
    function, constants = node.func, [one.value for one in node.args if isinstance(one, ast.Constant)]
    name = getattr(function, "attr", getattr(function, "id", ""))
    owner = None if isinstance(function, ast.Name) else getattr(getattr(function, "value", None), "id", "")
    return Call(where, name, owner, len(node.args), constants, {word.arg for word in node.keywords})


@cache
def read() -> tuple[list[tuple[Path, str, str, bool]], list[Call]]:
    """The imports and the calls of all files. No tree is kept: each collection of garbage would walk through it."""
    imported, called = [], []
    for path in FILES:
        tree, package, name = ast.parse(path.read_text(encoding="utf-8")), package_of(path), path.relative_to(SOURCE)
        if package != "__init__":
            imported += [(path, package, module, top) for module, top in imports(tree)]
        called += [call_of(f"{name}:{node.lineno}", node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return imported, called


def every_import() -> list[tuple[Path, str, str, bool]]:
    """Path, its package, the imported module, whether at import time; lazy and type-only imports included."""
    return read()[0]


def test_packages_are_folders_and_nothing_else_lies_beside_them():
    beside = {"__init__.py", "__main__.py", "py.typed"}
    assert {path.name for path in SOURCE.iterdir() if path.name != "__pycache__"} == {*RULES, *beside} - {"__main__"}


def test_arrows_point_down():
    wrong = []
    for path, package, module, _ in every_import():
        root, _, rest = module.partition(".")
        target = rest.partition(".")[0]
        if root != "paceline" or target in RULES[package] | {package}:
            continue
        what = (
            f"{package} must not import {module}"
            if rest
            else "import what you need from its home, not from the package"
        )
        wrong.append(f"{path.relative_to(SOURCE)}: {what}")
    assert wrong == []


def test_the_rules_have_no_cycle():
    assert list(TopologicalSorter(RULES).static_order())


def test_no_file_imports_itself_by_a_detour():
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for path, _, module, _ in every_import():
        if module in MODULES and module != module_of(path):
            graph[module_of(path)].add(module)
    assert list(TopologicalSorter(graph).static_order())


FLOORS = 9
"""How high the imports of one folder may stand on each other."""


def floors(folder: str) -> int:
    """How many floors ``folder`` has: a room of it, a file or a folder, stands above all rooms that it imports. No circle has floors."""
    graph: dict[str, set[str]] = {}
    for path, _, module, _ in every_import():
        importing, imported = f"{module_of(path)}.", f"{module}."
        if importing.startswith(f"{folder}.") and imported.startswith(f"{folder}."):
            room, under = (name.removeprefix(f"{folder}.").partition(".")[0] for name in (importing, imported))
            graph.setdefault(room, set()).update({under} - {room})
    sorter, height = TopologicalSorter(graph), 0
    sorter.prepare()
    while sorter.is_active():
        sorter.done(*sorter.get_ready())
        height += 1
    return height


@pytest.mark.parametrize("folder", ["paceline.core", "paceline.core.learning", "paceline.core.unstated"])
def test_the_core_is_low(folder):
    assert 1 < floors(folder) <= FLOORS


def test_one_file_of_the_core_brings_the_learners_to_a_pool():
    inside = "paceline.core.learning."
    of_core = [(path, module) for path, package, module, _ in every_import() if package == "core"]
    knows = {module_of(path) for path, module in of_core if module.startswith(inside)}
    assert {module for module in knows if not module.startswith(inside)} == {"paceline.core.local"}


def test_core_needs_the_standard_library_and_no_clock():
    for path, package, module, _ in every_import():
        root = module.partition(".")[0]
        if package == "core":
            assert root == "paceline" or root in sys.stdlib_module_names, f"{path.name} imports {module}"
            assert root not in NOT_IN_CORE, f"{path.name} imports {module}"


def test_core_asks_no_clock():
    for call in read()[1]:
        if call.where.startswith("core") and call.name in ("now", "utcnow", "today", "time"):
            assert call.owner not in ("time", "datetime"), call.where


def test_text_files_name_their_encoding():
    """By default it is that of the system, which is not UTF-8 on Windows."""
    for call in read()[1]:
        mode = next((one for one in call.constants if isinstance(one, str) and {*one} <= {*"rwxabt+"}), None)
        if call.name in ("read_text", "write_text"):
            assert "encoding" in call.words or call.positional > (call.name == "write_text"), call.where
        elif call.name == "open" and (mode or call.owner is None):
            assert "encoding" in call.words or "b" in (mode or ""), call.where


def test_nothing_is_used_that_windows_lacks_and_its_types_have():
    """What has other types there is found by the type checker; see ``make lint``."""
    lacks = {"add_signal_handler", "add_reader", "add_writer", "pass_fds", "preexec_fn"}
    for call in read()[1]:
        assert not {call.name, *call.words} & lacks, call.where
        assert not {*call.constants} & {"fork", "forkserver"}, call.where


def test_heavy_imports_are_lazy():
    """A package may need its libraries; the engine and the facade need none."""
    for path, package, module, top in every_import():
        if package in LIGHT and top:
            assert module.partition(".")[0] not in HEAVY, f"{path.relative_to(SOURCE)} imports {module}"


def fresh(code: str) -> list[str]:
    """The modules that are there after ``code`` in a new interpreter."""
    script = f"import sys; before = set(sys.modules)\n{code}\nimport json; print(json.dumps(sorted(set(sys.modules) - before)))"
    return json.loads(python(script).splitlines()[-1])


def test_no_heavy_library_comes_along():
    code = """
import paceline
paceline.Limiter({'jobs': '5 requests/min'}).acquire('jobs').wait()
paceline.Limiter({'openai/gpt-5': '5 requests/min'}).try_acquire('openai/gpt-5')
[getattr(paceline, name) for name in paceline.__all__]
import paceline.testing
paceline.testing.ManualClock, paceline.testing.run_virtual
"""
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


def test_the_help_of_a_command_needs_no_event_loop():
    """A command imports what its work needs when it works; the classes of ``top`` need it at once."""
    code = """
from importlib import import_module
from paceline.cli.commands import COMMANDS
for name in COMMANDS.keys() - {"top"}: import_module(f"paceline.cli.{name}")
"""
    assert not {"asyncio", "paceline.http", "paceline.limiter.limiter"} & set(fresh(code))


class TestPublicNames:
    def test_each_is_there_and_listed(self):
        for name in paceline.__all__:
            assert getattr(paceline, name) is not None
        assert paceline.__all__ == sorted(paceline.__all__, key=lambda name: (name.islower(), name))
        assert dir(paceline) == sorted(paceline.__all__)
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            paceline.nothing  # noqa: B018

    def test_there_are_few(self):
        assert 18 <= len(paceline.__all__) <= 46

    def test_a_class_says_that_it_is_of_paceline(self):
        values = {name: getattr(paceline, name) for name in paceline.__all__}
        kinds = {name: value for name, value in values.items() if inspect.isclass(value)}
        assert {name for name, kind in kinds.items() if kind.__module__ != "paceline"} == set()
        assert all(pickle.loads(pickle.dumps(kind)) is kind for kind in kinds.values())
        shown = [kind for kind in kinds.values() if is_dataclass(kind)]
        assert all(typing.get_type_hints(kind).keys() >= {field.name for field in fields(kind)} for kind in shown)

    def test_a_type_checker_sees_the_same(self):
        tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
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
