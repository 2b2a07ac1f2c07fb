"""A server of three providers' APIs, and a limiter that knows its limits."""

import pytest
from chats import LIMITS

import paceline

MODELS = {
    "gpt-5": "openai/*", "text-embedding-3-small": "openai/*", "claude-haiku-4-5": "anthropic/*", "gemini-2.5-flash": "gemini/*",
}  # fmt: skip


@pytest.fixture
def world(paceline_emulator):
    return paceline_emulator(limits={model: LIMITS[provider] for model, provider in MODELS.items()})


@pytest.fixture
def limiter():
    return paceline.Limiter(LIMITS)  # several providers: loopback alone says nothing
