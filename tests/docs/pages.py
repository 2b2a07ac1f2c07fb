"""The examples of README.md, docs/ and examples/: their fenced blocks."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def split(text: str) -> tuple[list[str], list[str]]:
    """The commands of a console block, and the other lines."""
    lines = [line for line in text.splitlines() if line]
    commands = [line[2:] for line in lines if line.startswith("$ ")]
    return commands, [line for line in lines if not line.startswith("$ ")]


def environment_of(folder: Path) -> dict[str, str]:
    """What a reader's variables have whose folders and commands are their own."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PACELINE_KEYS": str(folder / "keys.json"),
        "XDG_STATE_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder / "config"),
    }  # fmt: skip


def started(command: str, url: str, **where: Any) -> subprocess.Popen[bytes]:
    """The process of a command that serves at ``url``, when it answers."""
    words, quiet = shlex.split(command), subprocess.DEVNULL
    server, deadline_s = subprocess.Popen(words, stdout=quiet, stderr=quiet, **where), time.monotonic() + 60
    while True:
        with suppress(OSError):
            urllib.request.urlopen(url, timeout=5).close()
            return server
        assert server.poll() is None, f"{command!r} has ended"
        assert time.monotonic() < deadline_s, f"{command!r} does not answer"
        time.sleep(0.02)
