"""Which messages of a long history a model is still sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def trim(messages: Sequence[Any], sizes: Sequence[int], most: int) -> list[int]:
    """The messages that stay when the history may be ``most`` in size: the newest, and what they cannot do without.

    A tool's result stays with the call that it answers, or goes with it. System messages and the first message of the
    user stay where they fit. The newest turn always stays, even if it alone is too much.

    Args:
        messages: Objects with a ``type``: ``system``, ``human``, ``ai`` or ``tool``.
        sizes: The size of each, in tokens.
        most: What may stay, in tokens.

    Returns:
        The indices of those that stay, in order.
    """
    turns: list[list[int]] = []  # a message, and the tools' results that belong to it
    for index, message in enumerate(messages):
        if message.type == "tool" and turns:
            turns[-1].append(index)
        else:
            turns.append([index])
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
    if first not in pinned:  # some providers want the user to begin
        begins = next((number for number, turn in enumerate(recent) if kind(turn) == "human"), 0)
        recent = recent[begins:]
    return sorted(index for turn in [*pinned, *recent] for index in turn)
