"""What people call the free tier, where its own name is another one."""

import pytest

from paceline.providers.tables import DEFAULT, lookup


@pytest.mark.parametrize(
    ("provider", "tier"),
    [("groq", "base"), ("cohere", "trial"), ("cerebras", "free_trial"), ("openrouter", "under_10_usd")],
)
def test_free_is_its_other_name(provider, tier):
    model = ":free" if provider == "openrouter" else DEFAULT
    named = lookup(provider, model, tier)
    assert lookup(provider, model, "Free").sources == named.sources
    assert named.tier == tier
