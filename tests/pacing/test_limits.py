"""The pool of a name, its quotas, and their sources."""

import pytest

from paceline.core.results import SourceKind
from paceline.pacing.limits import Limits


def kinds(limits, name):
    resolved = limits.resolve(name)
    return {str(q): str(source.kind) for q, source in zip(resolved.quotas, resolved.sources, strict=True)}


@pytest.mark.parametrize(
    ("arguments", "name", "kind"),
    [
        ({"given": {"openai/gpt-5": "60 requests/min"}}, "openai/gpt-5", "given"),
        ({"given": {"jobs": "60 requests/min"}}, "jobs", "given"),
        ({"given": {"*": "60 requests/min"}}, "other", "given"),
        ({"provider": "openai", "tier": 2}, "gpt-5", "published"),
        ({"provider": "openai"}, "gpt-5", "assumed"),  # the tier is not named
        ({"provider": "openai", "tier": 2}, "gpt-unheard-of", "assumed"),  # no row is about it
        ({"provider": "openai", "tier": 3}, "gpt-4-turbo", "assumed"),  # its row has a lower tier only
        ({"provider": "deepseek"}, "deepseek-v4-pro", "published"),  # there are no tiers
        ({"provider": "azure", "tier": 1}, "acme.openai.azure.com/d", "assumed"),
    ],
)
def test_the_source_of_a_limit(arguments, name, kind):
    assert set(kinds(Limits(**arguments), name).values()) == {kind}


def test_each_quota_has_a_source_of_its_own():
    # a unit that the row does not state is the default row's; an override is the user's
    assert kinds(Limits(provider="openai", tier=1), "gpt-4.1-mini") == {
        "200k tokens/min": "published",
        "500 requests/min": "assumed",
    }
    assert kinds(Limits(provider="openai", tier=1, rpm_override=7), "gpt-5") == {
        "500k tokens/min": "published",
        "7 requests/min": "given",
    }


def test_a_source_names_the_table_its_date_and_the_tier():
    limits = Limits(provider="anthropic", tier="build").resolve("claude-opus-5")
    source = limits.sources[0]
    assert (source.kind, source.tier) == (SourceKind.PUBLISHED, "build")
    assert str(source) == "published: https://platform.claude.com/docs/en/api/rate-limits (2026-10-09), build"
