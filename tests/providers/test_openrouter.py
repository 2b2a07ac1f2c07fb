"""OpenRouter: one pool for what is free, and other people's refusals."""

from __future__ import annotations

import pytest
from cases import feed, sse

from paceline.core.quota import Rule
from paceline.providers.base import Usage
from paceline.providers.registry import provider_named
from paceline.providers.tables import lookup

PROVIDER = provider_named("openrouter")


@pytest.mark.parametrize(
    ("model", "pool"),
    [
        ("deepseek/deepseek-v4:free", "free"),
        ("google/gemma-4-31b-it:free", "free"),
        ("deepseek/deepseek-v4", "deepseek/deepseek-v4"),
        ("free-lunch/m", "free-lunch/m"),
    ],
)
def test_free_models_share_a_pool(model, pool):
    assert PROVIDER.pool(model) == lookup("openrouter", model).pool == pool


def test_an_error_after_the_answer_began_keeps_its_usage():
    usage = {"prompt_tokens": 9, "completion_tokens": 4}
    broken = {"error": {"code": 503, "message": "overloaded"}, "choices": [{"finish_reason": "error"}], "usage": usage}
    processing = b": OPENROUTER PROCESSING\n\n"
    reader = feed(PROVIDER, processing + sse({"choices": [{"delta": {}}]}) + processing + sse(broken), stream=True)
    assert reader.usage == Usage(9, 4)
    assert reader.refusal is not None
    assert reader.refusal.kind == "capacity"


def test_published():
    free = lookup("openrouter", "deepseek/deepseek-v4:free")
    assert [str(q) for q in free.quotas] == ["20 requests/min sliding", "50 requests/day window utc"]
    assert free.quotas[1].rule is Rule.WINDOW
    assert lookup("openrouter", "free").quotas == free.quotas
    assert lookup("openrouter", "a/b:free", "from_10_usd").quotas[1].amount == 1_000
    paid = lookup("openrouter", "openai/gpt-5")
    assert (paid.confidence, [q.unit for q in paid.quotas]) == ("assumed", ["requests"])
