"""The answers that providers have given or documented, in their own forms: ``fixtures/NAME.toml``, as ``cases.py`` explains."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import check_error, check_headers, check_usage, load

from paceline.providers.registry import is_provider, provider_named

CHECKS = {"error": check_error, "header": check_headers, "usage": check_usage}
OF_ALL = {"headers", "refusals"}
"""Fixtures about no one provider, which other tests read."""
NAMES = sorted({path.stem for path in Path(__file__).with_name("fixtures").glob("*.toml")} - OF_ALL)
CASES = [(name, kind, case) for name in NAMES for kind in CHECKS for case in load(name).get(kind, ())]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_fixtures_is_about_a_provider(name):
    assert is_provider(name), f"fixtures/{name}.toml: tables/providers.toml has no [providers.{name}]"
    unread = load(name).keys() - CHECKS.keys() - {"charge"}  # Bedrock's, in test_bedrock.py
    assert not unread, f"fixtures/{name}.toml: {unread} is read by no test; cases.py has what is"


@pytest.mark.parametrize(
    ("name", "kind", "case"), CASES, ids=[f"{name} {kind} {case['what']}" for name, kind, case in CASES]
)
def test_what_a_provider_says(name, kind, case):
    CHECKS[kind](provider_named(name), case)
