"""Refusals of Moonshot, Z.ai and DashScope."""

from __future__ import annotations

import json

import pytest

from paceline.providers.registry import provider_for_host


@pytest.mark.parametrize("host", ["api.kimi.com", "api.moonshot.ai"])
def test_the_window_of_a_coding_plan_states_no_end(host):
    def said(message):
        body = {"error": {"type": "access_terminated_error", "message": message}}
        return provider_for_host(host).refusal(403, {}, json.dumps(body).encode())

    weekly = said("You've reached your weekly (7-day) usage limit. It resets when the current 7-day window ends.")
    assert (weekly.kind, weekly.window, weekly.of_account, weekly.retry_after_s) == ("rate", "7d", True, None)
    assert said("Your access was terminated.") is None
