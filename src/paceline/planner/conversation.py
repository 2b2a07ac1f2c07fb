"""The prompts of a conversation, which grow from turn to turn."""

from __future__ import annotations

from typing import Any, Final

from paceline.emulator.prompt_cache import PromptPart
from paceline.planner.wire import Request

LIFE: Final = "5m"
"""How long the provider is asked to cache each prompt."""


class Conversation:
    """An agent's requests: each prompt is the one before, the answer to it, and what came after that.

    Args:
        model: The pool, as for :meth:`Limiter.acquire <paceline.Limiter.acquire>`.
        name: What tells its messages from other conversations'.
        prompt: The size of the first prompt, in tokens.
        shared: The part of it that all conversations of the model begin with: tools and a system text.
        among: What tells the shared part from other groups of conversations'.

    Attributes:
        tokens: The size of the next prompt.
    """

    __slots__ = ("_model", "_name", "_parts", "tokens")

    def __init__(self, model: str, name: str, prompt: int, *, shared: int = 0, among: str = "") -> None:
        self._model, self._name, self.tokens = model, name, prompt
        self._parts = [PromptPart("system", f"shared {among}", shared, LIFE)] if shared else []
        self._append(prompt - shared)

    def request(self, output_tokens: int, **fields: Any) -> Request:
        """The next turn, with further ``fields`` of :class:`~paceline.planner.wire.Request`."""
        *before, last = self._parts
        parts = (*before, last._replace(life=LIFE))
        return Request(self._model, self.tokens, output_tokens, parts=parts, **fields)

    def grow(self, tokens: int) -> None:
        """The answer has come, and a message after it: the prompt is ``tokens`` longer."""
        self.tokens += tokens
        self._append(tokens)

    def _append(self, tokens: int) -> None:
        self._parts.append(PromptPart("user", f"{self._name}/{len(self._parts)}", tokens))
