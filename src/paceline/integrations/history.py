"""Keep the history of an agent small: select the messages that fit, cut the results of tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

_STEP = 0.7  # the factor of the size between two attempts to shorten a piece of JSON
_ITEMS = 24  # characters of the size for each kept item of a list
_LEAST = 100  # characters; a marker alone is longer


def trim(messages: Sequence[Any], sizes: Sequence[int], most: int) -> list[int]:
    """Select the messages of a history that fit into ``most`` tokens, the newest first.

    A tool's result is kept or dropped together with the call that it answers. System messages and the first message of
    the user are kept where they fit. The newest turn is always kept, even if it alone is too large.

    Args:
        messages: Objects with a ``type``: ``system``, ``human``, ``ai`` or ``tool``.
        sizes: The size of each message, in tokens.
        most: The most tokens of the result.

    Returns:
        The indices of the kept messages, in order.
    """
    turns = _turns(messages)
    if not turns:
        return []

    def kind(turn: list[int]) -> str:
        return str(messages[turn[0]].type)

    def size(turn: list[int]) -> int:
        return sum(sizes[index] for index in turn)

    newest = turns.pop()
    left = most - size(newest)
    first = next((turn for turn in turns if kind(turn) == "human"), None)
    pinned = []
    for turn in [*(turn for turn in turns if kind(turn) == "system"), *([first] if first else [])]:
        if size(turn) <= left:
            left -= size(turn)
            pinned.append(turn)
    recent = [newest]
    for turn in reversed(turns):
        if turn in pinned:
            continue
        if size(turn) > left:
            break
        left -= size(turn)
        recent.insert(0, turn)
    if first not in pinned:  # some providers require that the user begins
        begins = next((number for number, turn in enumerate(recent) if kind(turn) == "human"), 0)
        recent = recent[begins:]
    return sorted(index for turn in [*pinned, *recent] for index in turn)


def _turns(messages: Sequence[Any]) -> list[list[int]]:
    """The messages, each with the results of tools that belong to it."""
    turns: list[list[int]] = []
    for index, message in enumerate(messages):
        if message.type == "tool" and turns:
            turns[-1].append(index)
        else:
            turns.append([index])
    return turns


def shorten(text: str, most: int) -> str:
    """Cut ``text`` to ``most`` characters, with a visible marker in place of the missing part.

    An object or a list in JSON remains valid JSON: long strings inside are cut, and lists and objects end in a marker.
    Any other text keeps its beginning.

    Args:
        text: Any text; a short one is returned unchanged.
        most: The most characters, marker included; at least 100.
    """
    if len(text) <= most:
        return text
    if text.lstrip()[:1] in ("{", "["):
        try:
            return _json(json.loads(text), most)
        except (ValueError, RecursionError):  # only the beginning is JSON, or it is nested too deeply
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
    """Cut a message's content: a string, or a list of blocks whose texts have ``most`` characters together.

    Returns:
        The same object if nothing in it is too long.
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
