"""Suggestions for misspelt names."""

from __future__ import annotations

import pytest

from paceline.core.hints import did_you_mean


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("opnai", "; did you mean 'openai'?"),
        ("OpenAI", "; did you mean 'openai'?"),
        ("berlin", "; did you mean 'Berlin'?"),
        ("openai", ""),
        ("zzz", ""),
    ],
)
def test_the_nearest_name(name, hint):
    assert did_you_mean(name, ["openai", "Berlin"]) == hint


def test_a_higher_cutoff_suggests_less():
    assert did_you_mean("opai", ["openai"], cutoff=0.6)
    assert did_you_mean("opai", ["openai"], cutoff=0.9) == ""
