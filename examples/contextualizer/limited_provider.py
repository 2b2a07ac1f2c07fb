"""The provider of the pipeline: two plain functions over OpenAI's API, and the factory that paces it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import openai
from limited import Limited
from limited_settings import MODEL

import paceline


@dataclass(frozen=True)
class Usage:
    """The usage of an answer, in tokens."""

    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Answer:
    """An answer; ``value`` is that of a structured one, ``None`` if its text is not JSON."""

    text: str
    usage: Usage
    value: Any = None


class OpenAIProvider:
    """OpenAI's API, without any code for limits.

    Args:
        base_url: Another address than OpenAI's, e.g. that of an emulator.
    """

    def __init__(self, base_url: str | None = None) -> None:
        # The SDK's own retries would bypass the policy of the limiter.
        self._client = openai.OpenAI(
            base_url=base_url and f"{base_url}/v1", max_retries=0, **({"api_key": "any"} if base_url else {})
        )

    def generate(self, prompt: str, max_tokens: int = 300) -> Answer:
        """Answer in prose."""
        return self._ask(prompt, max_tokens)

    def generate_structured(self, prompt: str, schema: dict[str, Any], max_tokens: int = 300) -> Answer:
        """Answer by the JSON schema."""
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        answer = self._ask(prompt, max_tokens, response_format=form)
        try:
            return Answer(answer.text, answer.usage, json.loads(answer.text))
        except ValueError:
            return answer

    def _ask(self, prompt: str, max_tokens: int, **options: Any) -> Answer:
        messages = [{"role": "user", "content": prompt}]
        said: Any = self._client.chat.completions.create(
            model=MODEL, messages=messages, max_completion_tokens=max_tokens, **options
        )
        usage = Usage(said.usage.prompt_tokens, said.usage.completion_tokens)
        return Answer(said.choices[0].message.content or "", usage)


def make_provider(limiter: paceline.Limiter, base_url: str | None = None) -> Limited:
    """The paced provider, for all users."""
    return Limited(OpenAIProvider(base_url), limiter, keeps_max_tokens=True)
