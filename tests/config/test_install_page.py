"""The page on installing lists the extras of pyproject.toml, in its order, and what each brings."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
ROWS = re.findall(r"^\| `(\w+)` \| (.*?) \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)


def brought(requirements):
    """Names of packages, and of other extras in code quotes."""
    for requirement in requirements:
        name, extras = re.match(r"([\w-]+)(?:\[(.*?)\])?", requirement).groups()
        own = name == "paceline"
        yield from [] if own else [name]
        yield from [f"`{extra}`" if own else extra for extra in (extras or "").split(",") if extra]


def test_the_table_has_every_extra_and_what_it_brings():
    told = dict(ROWS)
    assert list(told) == list(EXTRAS)
    assert told.pop("all") == "all of these"
    assert list(brought(EXTRAS["all"])) == [f"`{extra}`" for extra in told]
    for extra, packages in told.items():
        assert packages.split(", ") == list(brought(EXTRAS[extra])), extra
