"""Plain technical English: words that hide the subject of a sentence, and pronouns for a noun, are in no page and no source file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WORDS = re.compile(
    r"\b(nobody|somebody|anybody|everybody|whoever|whatever|for ever|(can|cannot) be meant|can mean)\b", re.IGNORECASE
)
PRONOUNS = re.compile(r"\b(that|those)\s+(#\s+|--\s+)?of\b|\b(of|as)\s+(#\s+|--\s+)?which\b", re.IGNORECASE)
"""In place of a noun, or of a second sentence; also over the end of a line, and in a comment of several lines."""

SEMICOLONS = 3
"""The most of them in 1,000 words of a page's prose: two statements are two sentences."""

SUFFIXES = {".py", ".lua", ".toml", ".md"}
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
    *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "RELEASING", "SECURITY")),
]
FILES = [
    *(path for path in sorted((ROOT / "src").rglob("*")) if path.suffix in SUFFIXES),
    *(path for path in sorted((ROOT / "docs" / "site").glob("*")) if path.suffix in SUFFIXES),
    *PAGES,
    ROOT / "pyproject.toml",
]
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("words", [WORDS, PRONOUNS], ids=["subjects", "pronouns"])
def test_the_subject_of_a_sentence_is_named(words):
    found = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, hit.start()) + 1}: {hit[0]!r}"
        for path in FILES
        for text in [path.read_text("utf-8")]
        for hit in words.finditer(text)
    ]
    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_statements_are_sentences(page):
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "x", FENCE.sub("", page.read_text("utf-8")))
    semicolons, words = len(re.findall(r";(?=\s)", prose)), len(prose.split())
    assert semicolons <= max(1, words * SEMICOLONS // 1_000), f"{semicolons} semicolons in {words} words"
