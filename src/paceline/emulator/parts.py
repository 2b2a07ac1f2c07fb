"""The parts of a prompt, from the JSON value of a request, for the prompt cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.emulator.prompt_cache import PromptPart
from paceline.emulator.text import PER_MESSAGE, count_content, count_tools
from paceline.emulator.wire import dump


def text_parts(role: str, content: Any, head: int = 0) -> Iterator[PromptPart]:
    """The blocks of a message or of a system text; the first one is ``head`` tokens longer than its text."""
    for block in content if isinstance(content, list) else [content]:
        yield PromptPart(role, dump(_unmarked(block)), count_content([block]) + head, life_of(block))
        head = 0


def message_parts(messages: Any) -> Iterator[PromptPart]:
    """The blocks of a list of messages, or of a text in its place."""
    if not isinstance(messages, list):
        yield from text_parts("", messages)
        return
    for message in messages:
        has_content = isinstance(message, dict) and "content" in message
        role = str(message.get("role")) if has_content else ""
        yield from text_parts(role, message["content"] if has_content else message, PER_MESSAGE)


def tool_parts(tools: Any) -> Iterator[PromptPart]:
    """All definitions of tools as one part, if there are any."""
    if isinstance(tools, list) and tools:
        lives = filter(None, map(life_of, reversed(tools)))
        yield PromptPart("tools", dump([_unmarked(tool) for tool in tools]), count_tools(tools), next(lives, ""))


def prompt_parts(tools: Any, system: Any, messages: Any) -> list[PromptPart]:
    """All blocks of a prompt, in the order in which they are cached."""
    return [*tool_parts(tools), *(text_parts("system", system) if system else ()), *message_parts(messages)]


def life_of(holder: Any) -> str:
    """The life of the cached prefix that ``cache_control`` asks for, ``5m`` or ``1h``; empty without it."""
    control = holder.get("cache_control") if isinstance(holder, dict) else None
    if not isinstance(control, dict):
        return ""
    return "1h" if control.get("ttl") == "1h" else "5m"


def _unmarked(block: Any) -> Any:
    """A block without its mark, which moves on from turn to turn."""
    return {name: own for name, own in block.items() if name != "cache_control"} if isinstance(block, dict) else block
