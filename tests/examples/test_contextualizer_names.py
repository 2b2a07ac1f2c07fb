"""The contextualizer's names, each behaviour that its author's tests name: in virtual time, at the author's numbers."""

import logging
import re
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

import paceline
import waits

HOME = Path(__file__).resolve().parents[2] / "examples" / "contextualizer"
sys.path.insert(0, str(HOME))

import rate_limiting  # noqa: E402
from limited_settings import SettingError  # noqa: E402
from rate_limiting import (  # noqa: E402
    AnthropicProvider,
    Config,
    LiteLLMTokenEstimator,
    LLMResponse,
    OpenAIProvider,
    RateLimitedProvider,
    RetryHandler,
    TokenBudgetExceededError,
    TPMExhaustedError,
    TPMThrottle,
    create_llm_provider,
)

LIMITED = RuntimeError("Rate limit exceeded for gpt-4o")


@pytest.fixture
def play(clock):
    return partial(waits.play, clock)


class Fails:
    """Raises each of ``errors`` once, then returns ``"ok"``; notes when it was called."""

    def __init__(self, clock, *errors):
        self.clock, self.errors, self.at_s, self.start_ns = clock, list(errors), [], clock.now_ns()

    def __call__(self):
        self.at_s.append((self.clock.now_ns() - self.start_ns) / 1e9)
        if self.errors:
            raise self.errors.pop(0)
        return "ok"


class Model:
    model_name = "gpt-4o"

    def __init__(self, tokens=100):
        self.tokens, self.asked = tokens, []

    def generate(self, prompt, system=None):
        self.asked.append((prompt, system))
        return LLMResponse("an answer", self.model_name, self.tokens)

    def generate_structured(self, prompt, system=None, schema=None):
        self.asked.append((prompt, system))
        return schema(name="x", count=1)


class Fixed:
    def __init__(self, tokens):
        self.tokens = tokens

    def estimate(self, messages, model):
        return self.tokens


def provider_of(clock, *, max_tpm=30_000, estimate=50, tokens=100, most=None, attempts=1):
    throttle = TPMThrottle(max_tpm, 1.0, clock=clock)
    handler = RetryHandler(attempts, 2.0, clock=clock)
    return RateLimitedProvider(Model(tokens), throttle, Fixed(estimate), handler, most)


class TestEstimator:
    MESSAGES = ({"role": "system", "content": "You are helpful."}, {"role": "user", "content": "Hello world, hello."})

    @pytest.fixture
    def litellm(self, monkeypatch):
        def install(count):
            monkeypatch.setitem(sys.modules, "litellm", types.SimpleNamespace(token_counter=count))

        return install

    def test_model_and_messages_go_to_litellm(self, litellm):
        asked = []
        litellm(lambda **given: asked.append(given) or 150)
        assert LiteLLMTokenEstimator().estimate(list(self.MESSAGES), model="gpt-4o") == 150
        assert asked == [{"model": "gpt-4o", "messages": list(self.MESSAGES)}]

    @pytest.mark.parametrize("installed", [True, False])
    def test_without_its_count_characters_are_counted_and_the_log_says_so(
        self, litellm, monkeypatch, caplog, installed
    ):
        def broken(**_):
            raise ValueError("tokenizer not found for a secret")

        litellm(broken)
        if not installed:
            monkeypatch.setitem(sys.modules, "litellm", None)
        with caplog.at_level(logging.DEBUG, rate_limiting.__name__):
            tokens = LiteLLMTokenEstimator().estimate(list(self.MESSAGES), model="unknown-model")
        assert 4 <= tokens <= 15
        [line] = caplog.records
        assert (line.levelname, "unknown-model" in line.getMessage(), "secret" in line.getMessage()) == (
            "DEBUG", True, False,
        )  # fmt: skip

    def test_nothing_costs_one_token(self, litellm):
        litellm(None)
        assert LiteLLMTokenEstimator().estimate([{"role": "user", "content": None}], "m") == 1


class TestThrottle:
    def test_the_effective_limit_is_max_tpm_times_the_factor(self):
        throttle = TPMThrottle(max_tpm=30_000, safety_factor=0.85)
        assert (throttle.max_tpm, throttle.effective_limit) == (30_000, 25_500)
        assert TPMThrottle(30_000).effective_limit == 25_500
        headers = {"x-ratelimit-limit-tokens": "90000", "x-ratelimit-remaining-tokens": "90000"}
        throttle.limiter.observe(rate_limiting.POOL, headers)
        assert throttle.effective_limit == 25_500  # also after headers

    def test_what_is_recorded_is_used_and_the_rest_is_left(self, clock):
        throttle = TPMThrottle(30_000, 1.0, clock=clock)
        assert (throttle.current_usage, throttle.remaining_budget) == (0, 30_000)
        throttle.record_usage(5_000)
        assert (throttle.current_usage, throttle.remaining_budget) == (5_000, 25_000)
        throttle.record_usage(40_000)  # more than there was
        assert (throttle.current_usage, throttle.remaining_budget) == (45_000, 0)

    def test_under_the_budget_nothing_is_waited_for(self, clock):
        throttle = TPMThrottle(30_000, 1.0, clock=clock)
        assert throttle.wait_if_needed(5_000) == 0.0
        assert throttle.current_usage == 0  # estimated only
        throttle.record_usage(4_800)
        assert throttle.current_usage == 4_800

    def test_over_the_budget_it_waits_until_old_entries_are_60_s_old(self, clock, play):
        throttle = TPMThrottle(1_000, 1.0, clock=clock)
        throttle.record_usage(600)
        clock.advance(10)
        throttle.record_usage(300)
        clock.advance(20)
        assert play(throttle.wait_if_needed, 200) == pytest.approx(30, abs=0.01)  # the 600 are gone then, at once
        assert throttle.current_usage == 300

    def test_two_threads_never_take_the_same_room(self, clock, play):
        throttle = TPMThrottle(1_000, 1.0, clock=clock)
        assert throttle.wait_if_needed(600) == 0.0
        assert play(throttle.wait_if_needed, 600) == pytest.approx(60, abs=0.01)  # nothing is recorded yet

    def test_a_record_does_not_wait_behind_those_who_do(self, clock):
        throttle = TPMThrottle(1_000, 1.0, clock=clock)
        throttle.record_usage(1_000)
        with ThreadPoolExecutor(2) as pool:
            waiting = pool.submit(throttle.wait_if_needed, 500)
            until = time.monotonic() + 20
            while not throttle.limiter.status()["pools"][rate_limiting.POOL]["waiting"] and time.monotonic() < until:
                time.sleep(0.001)
            recorded = pool.submit(throttle.record_usage, 10)
            while not recorded.done() and time.monotonic() < until:
                clock.advance(0)  # what is due at once; the clock stands still
                time.sleep(0.001)
            seen = recorded.done(), throttle.current_usage
            clock.advance(61)
            assert seen == (True, 1_010)
            assert waiting.result(10) == pytest.approx(60, abs=1.1)

    def test_10_threads_of_100_records_lose_nothing(self):
        throttle, start = TPMThrottle(100_000, 1.0), threading.Barrier(10)

        def work():
            start.wait(10)
            for _ in range(100):
                throttle.record_usage(1)

        with ThreadPoolExecutor(10) as pool:
            for job in [pool.submit(work) for _ in range(10)]:
                job.result(30)
        assert throttle.current_usage == 1_000


class TestRetries:
    @pytest.mark.parametrize("luck", [0.0, 0.5, 1.0])
    def test_a_rate_limit_by_its_text_waits_2_s_then_4_s_within_25_percent(
        self, clock, play, monkeypatch, luck, caplog
    ):
        monkeypatch.setattr("random.random", lambda: luck)
        call = Fails(clock, LIMITED, RuntimeError("HTTP 429"))
        with caplog.at_level(logging.INFO, "paceline.rate_limit"):
            assert play(RetryHandler(3, clock=clock).execute_with_retry, call) == "ok"
        factor = 0.75 + luck / 2
        assert call.at_s == pytest.approx([0, 2 * factor, 6 * factor], abs=0.01)
        lines = [one.getMessage() for one in caplog.records if one.event == "rate_limit.retry"]
        assert [re.match(r"Retry (\d/3) in [\d.]+ s", line)[1] for line in lines] == ["1/3", "2/3"]

    @pytest.mark.parametrize("text", ["Rate Limit!", "rate_limit_error", "Error 429", "Too many requests"])
    def test_four_words_make_a_rate_limit(self, clock, play, text):
        call = Fails(clock, RuntimeError(text))
        assert play(RetryHandler(2, clock=clock).execute_with_retry, call) == "ok"
        assert len(call.at_s) == 2

    def test_after_the_last_attempt_the_error_says_how_many_were_made(self, clock, play):
        call = Fails(clock, *[RuntimeError("Rate limit exceeded")] * 5)
        with pytest.raises(TPMExhaustedError, match="2/2 retries exhausted") as caught:
            play(RetryHandler(max_attempts=2, clock=clock).execute_with_retry, call)
        assert len(call.at_s) == 2
        assert (caught.value.retry_after, str(caught.value.__cause__)) == (None, "Rate limit exceeded")

    def test_retry_after_wins_and_is_in_the_error(self, clock, play):
        class TooManyError(Exception):
            response = types.SimpleNamespace(status_code=429, headers={"retry-after": "11"}, content=b"")

        call = Fails(clock, TooManyError(), TooManyError())
        with pytest.raises(TPMExhaustedError, match="2/2 retries exhausted") as caught:
            play(RetryHandler(2, clock=clock).execute_with_retry, call)
        assert call.at_s[1] == pytest.approx(11, abs=0.25)
        assert caught.value.retry_after == 11

    @pytest.mark.parametrize("error", [RuntimeError("connection refused"), ValueError("503 overloaded"), KeyError("x")])
    def test_any_other_error_is_raised_at_once(self, clock, error):
        call = Fails(clock, error)
        with pytest.raises(type(error)) as caught:
            RetryHandler(3, clock=clock).execute_with_retry(call)
        assert (caught.value, call.at_s) == (error, [0])

    def test_what_anthropics_headers_say(self):
        at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=45)
        headers = {
            "anthropic-ratelimit-input-tokens-remaining": "8000",
            "anthropic-ratelimit-output-tokens-remaining": "2000",
            "anthropic-ratelimit-input-tokens-reset": at.isoformat().replace("+00:00", "Z"),
        }
        info = RetryHandler().extract_rate_limit_info(headers)
        assert (info.input_tokens_remaining, info.output_tokens_remaining) == (8_000, 2_000)
        assert abs(info.reset_at - at) < timedelta(seconds=1)

    def test_what_openais_headers_say(self):
        info = RetryHandler().extract_rate_limit_info({"x-ratelimit-remaining-tokens": "5000"})
        assert (info.input_tokens_remaining, info.output_tokens_remaining, info.reset_at) == (5_000, None, None)

    def test_other_headers_say_nothing(self):
        assert RetryHandler().extract_rate_limit_info({"content-type": "application/json"}) is None


class TestProvider:
    def test_the_call_is_the_inner_ones_and_what_it_used_is_recorded(self, clock):
        provider = provider_of(clock, tokens=500)
        assert provider.generate("hello", system="sys").content == "an answer"
        assert provider.provider.asked == [("hello", "sys")]
        assert provider.throttle.current_usage == 500

    def test_above_the_limit_of_a_call_it_is_not_made(self, clock):
        provider = provider_of(clock, estimate=9_000, most=8_000)
        with pytest.raises(TokenBudgetExceededError, match=r"9000.*exceeds.*8000"):
            provider.generate("a huge prompt")
        assert provider.provider.asked == []
        assert provider.throttle.current_usage == 0

    def test_a_structured_call_stays_charged_as_estimated(self, clock):
        provider = provider_of(clock, estimate=700)
        answer = provider.generate_structured("hello", schema=types.SimpleNamespace)
        assert (answer.name, answer.count) == ("x", 1)
        assert provider.throttle.current_usage == 700  # its answer reports no use

    def test_a_rate_limit_is_retried_and_leaves_the_window_as_it_was(self, clock, play, monkeypatch):
        """The refused attempt costs its wait, and none of the other callers' tokens."""
        provider = provider_of(clock, estimate=1_000, tokens=900, attempts=3)
        refused, inner, left = [LIMITED], provider.provider.generate, []

        def generate(prompt, system=None):
            if refused:
                raise refused.pop()
            left.append(provider.throttle.remaining_budget)
            return inner(prompt, system)

        monkeypatch.setattr(provider.provider, "generate", generate)
        before = clock.now_ns()
        play(provider.generate, "hello")
        assert 1.5 <= (clock.now_ns() - before) / 1e9 <= 2.51
        assert left == [29_000]
        assert provider.throttle.remaining_budget == 29_100


class TestConfig:
    def test_defaults(self):
        config = Config(api_key="test")
        assert (config.max_tpm, config.tpm_safety_factor, config.max_tokens_per_call) == (30_000, 0.85, None)
        assert (config.retry_max_attempts, config.retry_initial_wait) == (3, 2.0)
        assert Config.from_env({}) == Config()

    def test_the_environment(self):
        env = {"MAX_TPM": "50000", "TPM_SAFETY_FACTOR": "0.9", "MAX_TOKENS_PER_CALL": "8000"}
        config = Config.from_env(env | {"RETRY_MAX_ATTEMPTS": "5", "RETRY_INITIAL_WAIT": "1.5"}, api_key="k")
        assert config == Config(
            api_key="k", max_tpm=50_000, tpm_safety_factor=0.9, max_tokens_per_call=8_000, retry_max_attempts=5,
            retry_initial_wait=1.5,
        )  # fmt: skip
        with pytest.raises(SettingError, match="MAX_TPM is 'many'"):
            Config.from_env({"MAX_TPM": "many"})

    @pytest.mark.parametrize(("name", "inner"), [("openai", OpenAIProvider), ("anthropic", AnthropicProvider)])
    def test_the_factory_returns_the_provider_wrapped(self, name, inner):
        config = Config(llm_provider=name, model_name="m", api_key="test", max_tpm=50_000, tpm_safety_factor=0.9)
        provider = create_llm_provider(config)
        try:
            assert isinstance(provider, RateLimitedProvider)
            assert isinstance(provider.provider, inner)
            assert (provider.provider.model_name, provider.provider.client.api_key) == ("m", "test")
            assert provider.provider.client.max_retries == 0
            assert (provider.throttle.max_tpm, provider.throttle.effective_limit) == (50_000, 45_000)
            assert provider.retry_handler.max_attempts == 3
        finally:
            provider.provider.client.close()


def test_what_never_fits_is_an_error_and_not_an_endless_wait(clock):
    with pytest.raises(paceline.NeverFitsError):
        TPMThrottle(1_000, 0.85, clock=clock).wait_if_needed(1_001)
