"""The prompt cache of an emulated provider: prompts as chains of parts, and the prefixes of them that can be read. No clock, no IO.

A prefix can be read once the answer of the request that wrote it has begun. It lives from the start of that request, and
each read starts its life again (Anthropic: https://platform.claude.com/docs/en/build-with-claude/prompt-caching, 2026-09).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

MOST_ENTRIES: Final = 100_000
"""Prefixes that are kept; beyond them the one that was written first goes."""

HOUR_S: Final = 3_600.0
"""The life of a prefix that was asked to live for an hour (``ttl: "1h"``)."""


class PromptPart(NamedTuple):
    """A part of a prompt: a system text, the tools, a block of a message.

    Attributes:
        role: Whose it is: ``system``, ``user``, ``assistant``, ``tools``.
        content: What makes it equal to another one of that role.
        tokens: Its size.
        life: Where the request asks for a cached prefix that ends here, how long it lives: ``5m`` or ``1h``; else empty.
    """

    role: str
    content: str | bytes
    tokens: int
    life: str = ""


class Prefix(NamedTuple):
    """The beginning of a prompt, up to the end of one part.

    Attributes:
        key: Equal for equal beginnings.
        tokens: Its size.
        life: How long it is cached, ``5m`` or ``1h``; empty: it is not.
    """

    key: int
    tokens: int
    life: str


@dataclass(frozen=True, slots=True)
class ServerPrompt:
    """A prompt as a cache sees it.

    Attributes:
        prefixes: Its beginnings, the shortest first. Those with a life are written, and looked up.
        lookback: How many parts before one of them are looked up, too.
    """

    prefixes: tuple[Prefix, ...] = ()
    lookback: int = 0

    @property
    def marked(self) -> list[Prefix]:
        """The beginnings that are cached."""
        return [prefix for prefix in self.prefixes if prefix.life]


def chain(model: str, parts: Iterable[PromptPart], step: int = 1) -> tuple[Prefix, ...]:
    """The beginnings of the prompt of these parts, with sizes in whole multiples of ``step``."""
    prefixes, key, tokens = list[Prefix](), hash(model), 0
    for part in parts:
        key, tokens = hash((key, part.role, part.content)), tokens + part.tokens
        prefixes.append(Prefix(key, tokens // step * step, part.life))
    return tuple(prefixes)


class Hit(NamedTuple):
    """What a cache has of a prompt, in tokens.

    Attributes:
        read: What the request reads.
        written: What it will write.
        written_1h: The part of that which lives for an hour.
        returned: The charge for what it reads that is given back when the answer begins.
    """

    read: int = 0
    written: int = 0
    written_1h: int = 0
    returned: int = 0


@dataclass(slots=True)
class _Entry:
    life_s: float
    expires_s: float


class ServerCache:
    """The prefixes that can be read.

    Args:
        life_s: Seconds that a prefix lives without a read, unless the request asks for an hour.
        least_tokens: The size of the shortest prefix that is cached.
    """

    def __init__(self, life_s: float, least_tokens: int) -> None:
        self._life_s, self._least_tokens = life_s, least_tokens
        self._entries: dict[int, _Entry] = {}

    def find(self, now: float, prompt: ServerPrompt, *, miss: bool = False) -> Hit:
        """What a request with this prompt would read now, and write; nothing to read if it is a ``miss``."""
        read = 0 if miss else self._longest(now, prompt)
        at, written, written_1h = read, 0, 0
        for _, tokens, life in prompt.marked:
            if tokens <= at or tokens < self._least_tokens:
                continue
            written += tokens - at
            written_1h += tokens - at if life == "1h" else 0
            at = tokens
        return Hit(read, written, written_1h)

    def _longest(self, now: float, prompt: ServerPrompt) -> int:
        left = 0  # of the parts that are looked up with a mark
        for prefix in reversed(prompt.prefixes):
            left = prompt.lookback + 1 if prefix.life else left
            entry = self._entries.get(prefix.key) if left > 0 else None
            if entry is not None and now < entry.expires_s:
                return prefix.tokens
            left -= 1
        return 0

    def refresh(self, now: float, prompt: ServerPrompt, hit: Hit) -> None:
        """Start the lives of the prefixes again that a request reads at its start, the shorter ones within it, too."""
        for prefix in prompt.prefixes:
            if prefix.tokens > hit.read:
                break
            entry = self._entries.get(prefix.key)
            if entry is not None and now < entry.expires_s:
                entry.expires_s = now + entry.life_s

    def write(self, started_s: float, prompt: ServerPrompt) -> None:
        """Make the marked prefixes readable: the answer to a request that started at ``started_s`` begins."""
        entries = self._entries
        for key, tokens, life in prompt.marked:
            if tokens < self._least_tokens:
                continue
            life_s = HOUR_S if life == "1h" else self._life_s
            before = entries.pop(key, None)
            expires_s = started_s + life_s
            entries[key] = _Entry(life_s, expires_s if before is None else max(expires_s, before.expires_s))
            if len(entries) > MOST_ENTRIES:
                del entries[next(iter(entries))]
