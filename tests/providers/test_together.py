"""Together: limits a second, which follow what was served."""

from __future__ import annotations

from cases import feed, sse

from paceline.core.quota import TOKENS
from paceline.providers.base import Call, Usage
from paceline.providers.registry import provider_named
from paceline.providers.tables import lookup

PROVIDER = provider_named("together")


def test_usage_comes_in_the_last_chunk():
    stream = sse({"choices": [{"delta": {}}]}, {"choices": [{}], "usage": {"prompt_tokens": 9, "completion_tokens": 4}})
    assert feed(PROVIDER, stream + sse(b"[DONE]"), stream=True).usage == Usage(9, 4)


def test_the_expected_output_is_held_and_what_was_asked_is_its_bound():
    call = Call("together", "chat", "m", 100, max_output_tokens=50)
    assert PROVIDER.held(call, 100, 20)[TOKENS] == 120
    assert PROVIDER.held(call, 100, 400)[TOKENS] == 150


def test_published():
    published = lookup("together", "meta-llama/Llama-4-70B")
    assert [str(quota) for quota in published.quotas] == ["1 requests/s"]
    assert published.pool == "meta-llama/Llama-4-70B"
