"""The agent: LangChain, with paceline's middleware on the same limiter as the pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from limited_settings import MODEL, POOL

import paceline
from paceline.integrations.langchain import PacelineMiddleware

MAX_INPUT_TOKENS = 4_000
"""The part of a conversation that is sent to the model; the agent keeps the whole."""


def make_model(limiter: paceline.Limiter | None, base_url: str | None = None) -> ChatOpenAI:
    """The chat model; with a limiter a refused attempt is retried by the limiter's policy."""
    where = {"base_url": f"{base_url}/v1", "api_key": "any"} if base_url else {}
    model = ChatOpenAI(model=MODEL, max_tokens=300, max_retries=0, **where)
    return limiter.attach(model, provider="openai") if limiter else model


def make_agent(
    model: Any,
    limiter: paceline.Limiter | None,
    tools: Sequence[Any] = (),
    max_input_tokens: int = MAX_INPUT_TOKENS,
) -> Any:
    """An agent whose history is trimmed and whose tools' results are cut at 12 000 characters.

    Args:
        model: A LangChain chat model.
        limiter: The pipeline's limiter; without one, calls do not wait.
        tools: The agent's tools.
        max_input_tokens: The bound on system message, tools and history together.
    """
    middleware = PacelineMiddleware(limiter, limiter and POOL, max_input_tokens=max_input_tokens)
    return create_agent(model, list(tools), system_prompt="You put papers in context.", middleware=[middleware])
