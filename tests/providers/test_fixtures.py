"""The answers that providers have given or documented, in their own forms: ``fixtures/NAME.toml``, as ``cases.py`` explains."""

from __future__ import annotations

import pytest
from cases import check_error, check_headers, check_usage, load

from paceline.providers.registry import provider_named

CHECKS = {"error": check_error, "header": check_headers, "usage": check_usage}
NAMES = (
    "azure", "bedrock", "cerebras", "cohere", "dashscope", "deepseek", "fireworks", "gemini", "groq", "mistral", "moonshot", "openrouter",
    "perplexity", "together", "vertex", "xai", "zai",
)  # fmt: skip
CASES = [(name, kind, case) for name in NAMES for kind in CHECKS for case in load(name).get(kind, ())]


@pytest.mark.parametrize(
    ("name", "kind", "case"), CASES, ids=[f"{name} {kind} {case['what']}" for name, kind, case in CASES]
)
def test_what_a_provider_says(name, kind, case):
    CHECKS[kind](provider_named(name), case)
