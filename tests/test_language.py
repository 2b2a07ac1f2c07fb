"""Plain technical English: words that hide the subject of a sentence are in no page and in no source file."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
WORDS = re.compile(
    r"\b(nobody|somebody|anybody|everybody|whoever|whatever|for ever|(can|cannot) be meant|can mean)\b", re.IGNORECASE
)
SUFFIXES = {".py", ".lua", ".toml", ".md"}
FILES = [
    *(path for folder in ("src", "docs") for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES),
    *(
        ROOT / name
        for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md", "pyproject.toml")
    ),
]


def test_the_subject_of_a_sentence_is_named():
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in FILES
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if WORDS.search(line)
    ]
    assert found == []
