"""A pipeline of two functions and an agent on 30 000 tokens a minute, before a provider that counts any 60 s."""

import random
import sys
from pathlib import Path

from plain_provider import Model, Trailing

from paceline.testing import ManualClock
from waits import play

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "contextualizer"))

from rate_limiting import (
    LiteLLMTokenEstimator,
    LLMResponse,
    RateLimitedProvider,
    RetryHandler,
    TPMThrottle,
)

CALLS = 300


class Provider:
    """Counts what it is asked, and refuses in words alone, as the author's own does."""

    model_name = "gpt-4o"

    def __init__(self, clock, model):
        self.clock, self.model, self.chance = clock, model, random.Random(5)

    def generate(self, prompt, system=None):
        tokens = len(prompt) // 4 + self.chance.randint(100, 300)
        if self.model.admit(self.clock.now_ns() / 1e9, {"tokens": tokens}):
            raise RuntimeError("Rate limit exceeded for gpt-4o")
        return LLMResponse("so", self.model_name, tokens)

    generate_structured = generate


def work(provider, throttle, estimator):
    """Calls of the pipeline; each third is the agent's, which uses the throttle by hand."""
    chance = random.Random(4)
    for number in range(CALLS):
        prompt = "The authors measure what was not measured before. " * chance.randint(40, 160)
        if number % 3:
            provider.generate(prompt)
        else:
            throttle.wait_if_needed(estimator.estimate([{"role": "user", "content": prompt}], "gpt-4o"))
            throttle.record_usage(provider.provider.generate(prompt).tokens_used)


def test_none_refused_and_the_usable_limit_is_used(monkeypatch):
    factor = 0.85
    monkeypatch.setitem(sys.modules, "litellm", None)
    clock = ManualClock()
    model = Model({"tokens": Trailing(30_000)})
    throttle, estimator = TPMThrottle(30_000, factor, clock=clock), LiteLLMTokenEstimator()
    provider = RateLimitedProvider(Provider(clock, model), throttle, estimator, RetryHandler(3, 2.0, clock=clock))
    play(clock, work, provider, throttle, estimator)
    took_s = model.arrivals[-1] - model.arrivals[0]
    share = Trailing(30_000 * factor).ideal_s(model.totals["tokens"]) / took_s
    print(f"contextualizer: {CALLS} calls, {model.refused} refused, {share:.3f} of the usable limit's best time")
    assert (model.refused, len(model.arrivals)) == (0, CALLS)
    assert share >= 0.92
