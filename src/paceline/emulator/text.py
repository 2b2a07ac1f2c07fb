"""A stand-in tokenizer: counts like one for English, in microseconds, and can also write."""

from __future__ import annotations

import json
from typing import Any

_SPACE = b" \n\t\r"
_DIGITS = b"0123456789"
_SIGNS = bytes(c for c in range(33, 127) if not chr(c).isalnum())
_WORD, _LETTER, _SIGN, _DIGIT, _WIDE = 0.75, 0.085, 1.0, 1 / 3, 0.4
"""Per word, letter, punctuation sign, digit (groups of three) and byte beyond ASCII: 1.3 per word of English prose."""

PER_MESSAGE = 4
"""The tokens of a chat message beside its text."""

_FILLER = "The server that answers here makes up its words as it goes and means none of them. " * 16


def count_tokens(text: str) -> int:
    """The number of tokens in a text, for the emulated models. Deterministic; 20 µs for 3 000 words."""
    data = text.encode("utf-8", "replace")
    rest = data.translate(None, _SPACE)
    if not rest:
        return 0
    words = min(len(data) - len(rest) + 1, len(rest))
    letters = rest.translate(None, _SIGNS)
    signs = len(rest) - len(letters)
    digits = len(letters) - len(letters := letters.translate(None, _DIGITS))
    wide = len(data) - len(text)
    ascii_letters = max(0, len(letters) - wide)
    return max(1, round(_WORD * words + _LETTER * ascii_letters + _SIGN * signs + _DIGIT * digits + _WIDE * wide))


def count_content(value: Any) -> int:
    """Tokens in a prompt of any nesting: a string, blocks with ``text`` or ``content``, token ids, lists of these."""
    if isinstance(value, str):
        return count_tokens(value)
    if isinstance(value, list):
        return sum(1 if isinstance(item, int) else count_content(item) for item in value)
    if isinstance(value, dict):
        return sum(count_content(value[name]) for name in ("text", "content", "input", "output") if name in value)
    return 0


def count_messages(messages: Any) -> int:
    """Tokens in a list of chat messages, with :data:`PER_MESSAGE` for each."""
    return count_content(messages) + (PER_MESSAGE * len(messages) if isinstance(messages, list) else 0)


def count_tools(tools: Any) -> int:
    """Tokens in the definitions of tools."""
    return count_tokens(json.dumps(tools)) if tools else 0


def write(tokens: int) -> str:
    """Prose of about so many tokens."""
    size = tokens * 4
    return (_FILLER * (size // len(_FILLER) + 1))[:size]
