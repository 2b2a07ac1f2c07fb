"""xAI: requests by the second, reasoning beside the completion, credits."""

from __future__ import annotations

from types import SimpleNamespace

from paceline.core.quota import TOKENS
from paceline.providers.answers import usage_cost
from paceline.providers.base import Call, Usage
from paceline.providers.registry import provider_named
from paceline.providers.tables import lookup

PROVIDER = provider_named("xai")


def test_cached_reads_count():
    assert PROVIDER.charged(Call("xai", "chat", "grok-4.6", 1), Usage(100, 20, cached_tokens=90))[TOKENS] == 120


def test_requests_by_the_second():
    requests, tokens = lookup("xai", "grok-4.6", 4).quotas
    assert (requests.amount, requests.period_s, requests.burst) == (500, 1, 50)
    assert (tokens.amount, tokens.period_s) == (100_000_000, 60)
    assert lookup("xai", "grok-9").quotas[0].amount == 9


def test_names():
    assert (PROVIDER.name, PROVIDER.key_env) == ("xai", "XAI_API_KEY")
    assert provider_named("Grok").name == "xai"


def test_a_protobuf_message_as_its_sdk_returns_it():
    class Message:
        __slots__ = ()

        def ListFields(self):  # noqa: N802  (protobuf's name)
            values = {"prompt_tokens": 100, "completion_tokens": 20, "reasoning_tokens": 300}
            return [(SimpleNamespace(name=name), value) for name, value in values.items()]

    assert usage_cost("xai/grok-4.6", SimpleNamespace(usage=Message()))[TOKENS] == 420
    assert usage_cost("xai/grok-4.6", Message())[TOKENS] == 420
