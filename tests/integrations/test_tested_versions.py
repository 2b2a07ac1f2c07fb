"""The versions that the tables of the docs claim are those that `make frameworks` installs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / name for name in ("integrations.md", "integrations_frameworks.md")]
PACKAGES = ROOT / "docs" / "packages.md"
APART = {"browser", "gateway_js", "lowest", "lowest_gateway", "migrate", "plans", "recipes", "servers", "tables"}
"""Environments without packages that a table could name: tools, packages of npm and of tables, servers and workers, lower bounds, lines of the pages,
other limiters."""

FILES = sorted(
    path for path in (ROOT / "tests" / "frameworks").glob("*/requirements.txt") if path.parent.name not in APART
)

BESIDE = {"aiohttp", "pytest", "backports.zstd", "mcp"}
"""In requirements because of how another package is tested."""

FOUND = {"langchain-core 1.7.2", "openai 2.54", "openai 2.2", "httpx 0.28.1", "httpx2 2.16.2", "aiohttp 3.14.5"}
"""What a framework brings along: named in a table, and by no requirement."""


def pinned(path):
    lines = path.read_text().partition("# What one of")[0].splitlines()
    pairs = [line.split("==") for line in lines if "==" in line]
    return {(name.partition("[")[0], version) for name, version in pairs if name not in BESIDE}


def rows():
    for page in PAGES:
        for line in page.read_text().splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if line.startswith("| ") and len(cells) in (4, 6) and re.search(r"\d\.\d", cells[-1]):
                yield cells


def told():
    """The versions in the last column of the tables, and those of the table of packages."""
    text = " ".join(cells[-1] for cells in rows())
    return set(re.findall(r"\d+(?:\.\d+)+", text)) | set(packages().values())


def packages():
    """The packages of the table of packages, with their versions; of several, the last one."""
    return dict(re.findall(r"^\| ([\w-]+) (\d[\w.]+) \|", PACKAGES.read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_every_pinned_package_is_in_a_table(path):
    assert pinned(path)
    assert {(name, version) for name, version in pinned(path) if version not in told()} == set()


def test_the_versions_of_other_limiters_are_beside_their_figures():
    page = (ROOT / "docs/benchmarks.md").read_text()
    found = pinned(ROOT / "tests/frameworks/migrate/requirements.txt")
    assert {(name, version) for name, version in found if f"{name} {version}" not in page} == set()


def test_every_version_in_a_table_is_pinned():
    versions = {version for path in FILES for _, version in pinned(path)} | {one.split()[1] for one in FOUND}
    assert len(told()) > 20
    assert told() - versions == set()


def test_the_table_of_packages_has_as_many_as_it_says():
    assert PACKAGES.read_text().splitlines()[2].startswith(f"*{len(packages())} packages")
