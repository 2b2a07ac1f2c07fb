"""The page of the five systems: each test that it names is there."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "systems.md").read_text("utf-8")


def test_each_test_and_each_file_is_there():
    sources = {path: path.read_text("utf-8") for path in TESTS.rglob("test_*.py")}
    text = "\n".join(sources.values())
    files = {path.relative_to(TESTS).as_posix() for path in sources}
    names = set(re.findall(r"`(test_\w+|Test\w+)`", PAGE))
    assert len(names) > 60
    assert {name for name in names if f"def {name}" not in text and f"class {name}" not in text} == set()
    assert {file for file in re.findall(r"`([\w/]+/test_\w+\.py)`", PAGE) if file not in files} == set()


def test_each_row_has_four_columns():
    rows = [line for line in PAGE.partition("## Simulation")[2].splitlines() if line.startswith("|")]
    assert len(rows) > 60
    assert {line.count("|") for line in rows} == {5}
