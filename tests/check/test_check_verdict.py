"""Configured against stated, as values."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.check.verdict import QuotaVerdict, compare, stated_by, to_toml
from paceline.config import Config
from paceline.core.quota import Quota, parse_quotas
from paceline.core.results import Reading, Refusal, RefusalKind

CONFIGURED = parse_quotas("500 requests/min, 1000 requests/day, 400k tokens/min")


def verdicts(*stated):
    return [(str(f.use), f.verdict) for f in compare(CONFIGURED, stated)]


def test_a_period_decides_which_quota_is_meant_and_none_means_the_shortest():
    assert verdicts(Reading("requests", 200, 1, 5.0, 86_400.0))[1] == ("200 requests/day", QuotaVerdict.LOWER)
    assert verdicts(Reading("requests", 200))[0] == ("200 requests/min", QuotaVerdict.LOWER)


def test_what_nobody_configured_is_new():
    assert verdicts(Reading("tokens", 9e6, None, None, 86_400.0), Reading("input_tokens", 50_000))[3:] == [
        ("9M tokens/day", QuotaVerdict.NEW),
        ("50k input_tokens/min", QuotaVerdict.NEW),
    ]


@pytest.mark.parametrize("reading", [Reading("tokens", None, 5), Reading("audio", None, 5), Reading("tokens", 0)])
def test_a_reading_without_a_limit_changes_nothing(reading):
    assert [verdict for _, verdict in verdicts(reading)] == [QuotaVerdict.UNSTATED] * 3


def test_rule_and_burst_survive_a_new_amount():
    (finding,) = compare(parse_quotas("20 requests/day window utc"), [Reading("requests", 50, 1, None, 86_400.0)])
    assert str(finding.use) == "50 requests/day window utc"


def test_a_refusal_names_its_quota():
    refusal = Refusal(RefusalKind.RATE, unit="requests", period_s=60.0, limit=3, used=3)
    assert stated_by(refusal) == [Reading("requests", 3, 0, None, 60.0)]
    assert stated_by(Refusal(RefusalKind.RATE, limit=3)) == []


amounts = st.integers(1, 10**9)


quotas = st.lists(st.tuples(st.sampled_from(["requests", "tokens"]), amounts), unique_by=lambda q: q[0], min_size=1)


@given(quotas, amounts)
def test_the_configuration_reads_back_as_what_was_found(quotas, stated):
    configured = [Quota(unit, amount) for unit, amount in quotas]
    findings = compare(configured, [Reading(quotas[0][0], stated, 1, None, 60.0)])
    text = to_toml("openai", "http://127.0.0.1:1", [('openai/we"ird', findings)])
    config = Config().having(tomllib.loads(text), "file")
    assert config.limits['openai/we"ird'] == tuple(finding.use for finding in findings)
    assert config.limits['openai/we"ird'][0].amount == stated
    assert (config.provider, config.base_url) == ("openai", "http://127.0.0.1:1")
