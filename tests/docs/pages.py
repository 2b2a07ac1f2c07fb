"""The examples of README.md, docs/ and examples/: their fenced blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*/README.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block, and the block ``text`` that follows it at once: what it prints."""

    page: str
    line: int
    language: str
    text: str
    output: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(path: Path) -> list[Block]:
    text = path.read_text("utf-8")
    page = path.relative_to(ROOT).as_posix()
    return [Block(page, text.count("\n", 0, at.start()) + 1, *at.groups()) for at in FENCE.finditer(text)]


BLOCKS = [block for path in PAGES for block in blocks_of(path)]


def by_page(*languages: str) -> dict[str, list[Block]]:
    """The blocks in ``languages`` of each page that has any."""
    found: dict[str, list[Block]] = {}
    for block in BLOCKS:
        if block.language in languages:
            found.setdefault(block.page, []).append(block)
    return found
