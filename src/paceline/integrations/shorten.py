"""Cut a long tool result where a model can see it: text at its end, JSON inside, so that it stays JSON."""

from __future__ import annotations

import json
from typing import Any

_STEP = 0.7  # how much tighter each try at a piece of JSON is
_ITEMS = 24  # characters of the size for which one item of a list is kept
_LEAST = 100  # characters, below which a marker alone is longer


def shorten(text: str, most: int) -> str:
    """``text`` in ``most`` characters, with a visible marker where something is missing.

    An object or a list in JSON keeps its form: long strings inside are cut, and lists and objects end in a marker.
    Anything else keeps its beginning.

    Args:
        text: Any text; one that is short enough comes back as it is.
        most: Characters, marker included; at least 100.
    """
    if len(text) <= most:
        return text
    if text.lstrip()[:1] in ("{", "["):
        try:
            return _json(json.loads(text), most)
        except (ValueError, RecursionError):  # it only began like JSON, or nests without end
            pass
    return _cut(text, most)


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    marker = f"\n[... {len(text):,} characters, cut here ...]"
    kept = max(0, most - len(marker))
    return f"{text[:kept]}{marker}"


def _json(value: Any, most: int) -> str:
    """The value in at most ``most`` characters of JSON."""
    size = float(most)
    while size >= 1:
        short = json.dumps(_within(value, int(size)), ensure_ascii=False)
        if len(short) <= most:
            return short
        size *= _STEP
    return json.dumps({"cut": f"{len(json.dumps(value)):,} characters of JSON, too deep to be shortened"})


def _within(value: Any, size: int) -> Any:
    """The value with strings of ``size`` characters and, in proportion, lists and objects of a few items."""
    items = max(1, size // _ITEMS)
    if isinstance(value, str):
        return _cut(value, max(size, 60))
    if isinstance(value, list):
        kept = [_within(item, size) for item in value[:items]]
        return kept if len(value) <= items else [*kept, f"[... {len(value) - items:,} more items cut ...]"]
    if isinstance(value, dict):
        pairs = list(value.items())
        short = {_cut(key, max(size, 60)): _within(item, size) for key, item in pairs[:items]}
        return short if len(pairs) <= items else {**short, "[... cut ...]": f"{len(pairs) - items:,} more keys"}
    return value


def shorten_content(content: Any, most: int) -> Any:
    """The same for a message's content: a string, or a list of blocks, whose texts have ``most`` characters together.

    Returns:
        The content itself when nothing in it is too long.
    """
    if isinstance(content, str):
        return shorten(content, most)
    if not isinstance(content, list):
        return content
    left, dropped = most, 0
    blocks = []
    for block in content:
        text = block.get("text") if isinstance(block, dict) else block
        if not isinstance(text, str):  # an image, a file
            blocks.append(block)
        elif left < _LEAST and len(text) > left:
            dropped += 1
        else:
            short = shorten(text, left)
            left -= len(short)
            blocks.append(block if short is text else short if block is text else {**block, "text": short})
    if dropped:
        blocks.append({"type": "text", "text": f"[... {dropped:,} more parts cut ...]"})
    return blocks if blocks != content else content
