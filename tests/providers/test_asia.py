"""Refusals of Moonshot, Z.ai and DashScope."""

from __future__ import annotations

import json

import pytest
from cases import check_error, load

from paceline.providers.compatible import Compatible
from paceline.providers.registry import provider_for_host

CASES = [(name, case) for name in ("moonshot", "zai", "dashscope") for case in load(name)["error"]]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[f"{name} {case['what']}" for name, case in CASES])
def test_errors(name, case):
    check_error(Compatible(name, "", (), ""), case)


@pytest.mark.parametrize("host", ["api.kimi.com", "api.moonshot.ai"])
def test_the_window_of_a_coding_plan_states_no_end(host):
    def said(message):
        body = {"error": {"type": "access_terminated_error", "message": message}}
        return provider_for_host(host).refusal(403, {}, json.dumps(body).encode())

    weekly = said("You've reached your weekly (7-day) usage limit. It resets when the current 7-day window ends.")
    assert (weekly.kind, weekly.window, weekly.of_account, weekly.retry_after_s) == ("rate", "7d", True, None)
    assert said("Your access was terminated.") is None
