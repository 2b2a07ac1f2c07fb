"""Refusals of Moonshot, Z.ai and DashScope."""

from __future__ import annotations

import pytest
from cases import check_error, load

from paceline.providers.compatible import Compatible

CASES = [(name, case) for name in ("moonshot", "zai", "dashscope") for case in load(name)["error"]]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[f"{name} {case['what']}" for name, case in CASES])
def test_errors(name, case):
    check_error(Compatible(name, "", (), ""), case)
