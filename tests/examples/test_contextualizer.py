"""Every number of the example's promises: a pipeline on a small quota. Its agent is tested beside LangChain."""

import logging
import re
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

import paceline
from paceline.testing import ManualClock
from waits import play

HOME = Path(__file__).resolve().parents[2] / "examples" / "contextualizer"
sys.path.insert(0, str(HOME))

from limited import Limited  # noqa: E402
from limited_provider import OpenAIProvider, make_provider  # noqa: E402
from limited_settings import MODEL, POOL, SettingError, Settings  # noqa: E402

START_NS = ManualClock().now_ns()


class ProviderError(Exception):
    """As SDKs make them: an exception with the HTTP answer."""

    def __init__(self, status, headers=(), body=b""):
        super().__init__("no")
        self.status_code = status
        self.response = types.SimpleNamespace(status_code=status, headers=dict(headers), content=body)


class TooManyRequestsError(ProviderError):
    def __init__(self, retry_after=None, body=b""):
        super().__init__(429, {} if retry_after is None else {"retry-after": str(retry_after)}, body)


class Model:
    """Answers with what it used; each of ``errors`` is raised once before."""

    name = "a model"

    def __init__(self, clock, used=(0, 0), errors=()):
        self.clock, self.used, self.errors, self.at_s = clock, used, list(errors), []

    def generate(self, prompt, max_tokens=None):
        self.at_s.append(round((self.clock.now_ns() - START_NS) / 1e9, 3))
        if self.errors:
            raise self.errors.pop(0)
        return {"usage": {"input_tokens": self.used[0], "output_tokens": self.used[1]}}

    def generate_structured(self, prompt, schema, max_tokens=None):
        return self.generate(prompt, max_tokens)


@pytest.fixture
def clock():
    return ManualClock()


def limited(clock, model, settings=None, **options):
    settings = settings or Settings(tpm_safety_factor=1.0)
    return Limited(model, settings.limiter(clock=clock), **options)


@pytest.fixture
def made():
    """`make_provider`, whose clients are closed."""
    providers = []

    def make(*args):
        providers.append(make_provider(*args))
        return providers[-1]

    yield make
    for provider in providers:
        provider.provider._client.close()


# --- before the call: the estimate


@pytest.fixture
def tokenizer(monkeypatch):
    """Put a tokenizer there: ``tokenizer(function)``."""

    def install(count):
        monkeypatch.setitem(sys.modules, "toktok", types.SimpleNamespace(batch_count=count))

    return install


def test_estimate_by_a_tokenizer_if_one_is_there(clock, tokenizer):
    tokenizer(lambda texts, name: [7 * len(texts)])
    provider = limited(clock, Model(clock))
    provider.generate("whatever it says")
    assert provider.last.estimated == 8 + 500  # 7 and 10 %; no max_tokens


def test_estimate_by_characters_otherwise(clock, tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "toktok", None)
    provider = limited(clock, Model(clock))
    provider.generate("one two three four five six seven eight nine ten", max_tokens=90)
    assert 90 + 8 <= provider.last.estimated <= 90 + 16


def test_a_tokenizer_that_raises_falls_back_with_a_debug_log(clock, tokenizer, caplog):
    def broken(texts, name):
        raise ValueError("the prompt is secret")

    tokenizer(broken)
    provider = limited(clock, Model(clock))
    with caplog.at_level(logging.DEBUG, "paceline.estimate"):
        provider.generate("a secret of five words", max_tokens=90)
    assert 90 < provider.last.estimated < 110
    assert [record.levelname for record in caplog.records if "ValueError" in record.message] == ["DEBUG"]
    assert "secret" not in caplog.text


def test_above_max_tokens_per_call_names_both_numbers_and_nothing_is_called(clock, tokenizer):
    tokenizer(lambda texts, name: [1_000])
    model = Model(clock)
    provider = limited(clock, model, Settings(tpm_safety_factor=1.0, max_tokens_per_call=1_500))
    with pytest.raises(
        paceline.TooLargeError, match=re.escape("estimated at 1,600 tokens, and one call may have 1,500")
    ) as caught:
        provider.generate("long", max_tokens=500)
    assert (caught.value.cost, caught.value.most) == (1_600, 1_500)
    assert model.at_s == []
    assert provider.room().used == 0
    provider.generate("just short enough", max_tokens=400)
    assert len(model.at_s) == 1


def test_max_tokens_per_call_holds_for_structured_calls(clock, tokenizer):
    tokenizer(lambda texts, name: [1_000])
    with pytest.raises(paceline.TooLargeError):
        limited(clock, Model(clock), Settings(tpm_safety_factor=1.0, max_tokens_per_call=1_000)).generate_structured(
            "long", {"type": "object"}
        )


# --- waiting for room


def test_the_caller_learns_what_is_used_and_what_is_left(clock, tokenizer):
    tokenizer(lambda texts, name: [10_000])
    provider = limited(clock, Model(clock, used=(9_000, 1_000)))
    assert (provider.room().limit, provider.room().left) == (30_000, 30_000)
    provider.generate("x", max_tokens=1_000)
    assert (provider.room().used, provider.room().left) == (10_000, 20_000)
    clock.advance(10)
    assert (provider.room().used, provider.room().left) == (5_000, 25_000)
    clock.advance(60)
    assert provider.room().used == 0


def test_a_safety_factor_of_85_percent_is_a_setting(clock, tokenizer):
    tokenizer(lambda texts, name: [10_000])
    model = Model(clock, used=(10_000, 0))
    provider = limited(clock, model, Settings(tpm_safety_factor=0.85))
    assert provider.room().limit == 25_500
    play(clock, lambda: [provider.generate("x", max_tokens=0) for _ in range(9)])
    assert model.at_s[-1] == pytest.approx((90_000 - 25_500) / 425, abs=4)


def test_a_wait_is_logged_with_what_is_used_of_the_quota(clock, tokenizer, caplog):
    tokenizer(lambda texts, name: [12_750])
    provider = limited(clock, Model(clock, used=(12_750, 0)), Settings())
    with caplog.at_level(logging.INFO, "paceline.rate_limit"):
        play(clock, lambda: [provider.generate("x", max_tokens=0) for _ in range(4)])
    [line, *_] = [record for record in caplog.records if record.event == "rate_limit.wait"]
    assert re.match(
        r"Rate limit: waiting [\d.]+ s for tokens/min of openai/gpt-6-luna \([\d,]+ of 25,500 used\)", line.getMessage()
    )
    assert line.limit == 25_500
    assert 0 < line.used <= 25_500
    assert line.expected_wait_s >= 1


@pytest.mark.long("runs for seconds of real time")
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_the_usable_limit_is_max_tpm_times_the_factor_also_after_headers(paceline_emulator, made, factor):
    world = paceline_emulator(limits={MODEL: "30k tokens/2s"}, latency_s=0.02)  # two seconds for a minute
    provider = made(Settings(tpm_safety_factor=factor).limiter(30), world.base_url)
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda _: provider.generate("Say something about the weather. " * 200), range(40)))
    tally = world.tally()
    used = tally["pools"][MODEL]["charges"]["tokens"]
    assert provider.room().limit == 30_000 * factor
    assert tally["admitted"] == 40
    assert used > 45_000  # more than is there at once
    assert used <= 30_000 * factor * (1 + tally["elapsed_s"] / 2) + 2_000  # one burst, and the rate


def test_limits_out_of_headers():
    headers = {"x-ratelimit-limit-tokens": "30000", "x-ratelimit-remaining-tokens": "2500", "retry-after": "7"}
    info = paceline.limits_in(headers)  # extract_rate_limit_info(headers)
    [tokens] = info.readings
    assert (tokens.unit, tokens.limit, tokens.remaining, info.retry_after_s) == ("tokens", 30_000, 2_500, 7)


def test_10_threads_of_100_records_lose_nothing(tokenizer):
    tokenizer(lambda texts, name: [1])
    settings = Settings(max_tpm=1_000_000_000)
    limiter = settings.limiter()
    provider = Limited(Model(ManualClock(), used=(5, 2)), limiter)
    mine, start = [], threading.Barrier(10)

    def work():
        start.wait(10)
        for _ in range(100):
            provider.generate("x", max_tokens=0)
            mine.append(provider.last.used)

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda _: work(), range(10)))
    assert (provider.calls, provider.tokens, len(provider.records)) == (1_000, 7_000, 1_000)
    assert mine == [7] * 1_000
    assert limiter.status()["pools"][POOL]["quotas"][0]["spent"] == 7_000
    assert limiter.status()["pools"][POOL]["counts"] == {"granted": 1_000, "settled": 1_000}


# --- after the call


def test_what_was_really_used_is_recorded(clock, tokenizer):
    tokenizer(lambda texts, name: [10_000])
    provider = limited(clock, Model(clock, used=(2_000, 300)))
    provider.generate("x", max_tokens=5_000)
    assert (provider.last.estimated, provider.last.used, provider.tokens) == (16_000, 2_300, 2_300)
    assert provider.room().used == 2_300  # the rest was given back
    provider.provider.used = (20_000, 8_000)
    provider.generate("x", max_tokens=0)
    assert provider.room().used == 30_300  # more than there was: a debt


def test_a_provider_that_keeps_max_tokens_stays_charged_with_them(clock, tokenizer):
    tokenizer(lambda texts, name: [1_000])
    provider = limited(clock, Model(clock, used=(1_000, 100)), keeps_max_tokens=True)
    provider.generate("x", max_tokens=400)
    assert (provider.last.used, provider.room().used) == (1_100, 1_400)


@pytest.mark.parametrize("answer", [{"tokens_used": 2_300}, types.SimpleNamespace(tokens_used=2_300)])
def test_use_is_also_reported_as_tokens_used(clock, tokenizer, monkeypatch, answer):
    tokenizer(lambda texts, name: [10_000])
    model = Model(clock)
    monkeypatch.setattr(model, "generate", lambda prompt, max_tokens=0: answer)
    provider = limited(clock, model)
    provider.generate("x", max_tokens=5_000)
    assert (provider.last.used, provider.room().used) == (2_300, 2_300)


def test_an_answer_without_usage_counts_by_its_length(clock, tokenizer, monkeypatch):
    tokenizer(lambda texts, name: [len(texts[0])])
    model = Model(clock)
    monkeypatch.setattr(model, "generate", lambda prompt, max_tokens=0: "ten chars.")
    provider = limited(clock, model)
    provider.generate("ask", max_tokens=50)
    assert provider.last.used == 3 + 10


# --- a rate limit


def test_3_attempts_the_first_wait_2_s_doubling_within_25_percent(clock):
    model = Model(clock, errors=[TooManyRequestsError(), TooManyRequestsError()])
    provider = limited(clock, model)
    play(clock, provider.generate, "x", max_tokens=0)
    first, second = model.at_s[1] - model.at_s[0], model.at_s[2] - model.at_s[1]
    assert 1.5 <= first <= 2.51  # the clock of the test moves in milliseconds
    assert 3.0 <= second <= 5.01
    assert provider.records[-1].attempts == 3
    assert provider.records[-1].waited_s == pytest.approx(model.at_s[2], abs=0.01)


def test_25_percent_either_way(clock, monkeypatch):
    firsts = []
    for luck in (0.0, 0.5, 1.0):
        monkeypatch.setattr("random.random", lambda luck=luck: luck)
        model = Model(clock := ManualClock(), errors=[TooManyRequestsError(), TooManyRequestsError()])
        play(clock, limited(clock, model).generate, "x", max_tokens=0)
        firsts.append(model.at_s[1:])
    assert [at_s[0] for at_s in firsts] == pytest.approx([1.5, 2.0, 2.5], abs=0.01)
    assert [at_s[1] for at_s in firsts] == pytest.approx([4.5, 6.0, 7.5], abs=0.01)


def test_retry_after_wins(clock):
    model = Model(clock, errors=[TooManyRequestsError(0.5), TooManyRequestsError(11)])
    play(clock, limited(clock, model).generate, "x", max_tokens=0)
    assert 0.5 <= model.at_s[1] <= 0.63  # and no 1.5 to 2.5
    assert 11 <= model.at_s[2] - model.at_s[1] <= 11.25  # and no 3 to 5


def test_attempts_and_first_wait_are_settings(clock):
    model = Model(clock, errors=[TooManyRequestsError()] * 9)
    settings = Settings(retry_max_attempts=2, retry_initial_wait_s=8.0)
    with pytest.raises(paceline.GaveUpError, match="2 attempts made"):
        play(clock, limited(clock, model, settings).generate, "x", max_tokens=0)
    assert 6 <= model.at_s[1] <= 10.1  # with the time of the first answer


def refused_by_an_sdk():
    answer = types.SimpleNamespace(request=None, status_code=429, headers={})
    error = RuntimeError("no")
    error.__cause__ = openai.RateLimitError(
        "no", response=answer, body=None
    )  # raise error from openai.RateLimitError(...)
    return error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Rate limit exceeded for gpt-4o"),
        RuntimeError("rate_limit"),
        RuntimeError("Error code: 429"),
        RuntimeError("Too Many Requests"),
        refused_by_an_sdk(),
    ],
)
def test_a_rate_limit_is_known_by_its_text_or_its_cause(clock, error, caplog):
    model = Model(clock, errors=[error] * 3)
    with (
        caplog.at_level(logging.INFO, "paceline.rate_limit"),
        pytest.raises(paceline.GaveUpError, match="3 attempts made") as caught,
    ):
        play(clock, limited(clock, model).generate, "x", max_tokens=0)
    assert (caught.value.attempts, caught.value.__cause__, len(model.at_s)) == (3, error, 3)
    assert 1.5 <= model.at_s[1] <= 2.51
    lines = [record for record in caplog.records if record.event == "rate_limit.retry"]
    assert [(line.attempt, line.max_attempts) for line in lines] == [(1, 3), (2, 3)]
    assert re.match(r"Retry 1/3 in [12]\.\d s: openai/gpt-6-luna \(rate\)", lines[0].getMessage())


# --- the wrapper and the factory


def test_any_provider_with_the_two_functions_becomes_limited(clock):
    provider = limited(clock, model := Model(clock, used=(3, 4)))
    answer = provider.generate_structured("x", schema={"type": "object"}, max_tokens=10)
    assert answer == {"usage": {"input_tokens": 3, "output_tokens": 4}}
    assert provider.last.method == "generate_structured"
    assert provider.name == model.name  # the rest is as it was


def test_the_factory_returns_the_provider_wrapped(paceline_emulator, made):
    settings = Settings()
    world = paceline_emulator(limits={MODEL: "30k tokens/min"})
    provider = made(settings.limiter(), world.base_url)
    assert isinstance(provider, Limited)
    assert isinstance(provider.provider, OpenAIProvider)
    assert provider.generate("Say something.").text
    assert provider.generate_structured("Say something.", {"type": "object"}).usage.input_tokens > 0
    [quota] = provider.limiter.status()["pools"][POOL]["quotas"]  # all that was spent: room comes back as time passes
    assert quota["spent"] == world.tally()["pools"][MODEL]["charges"]["tokens"]


@pytest.mark.long("runs for seconds of real time")
def test_a_refusal_of_the_real_sdk_is_waited_out(paceline_emulator, made):
    settings = Settings(max_tpm=12_000, tpm_safety_factor=1.0)
    world = paceline_emulator(limits={MODEL: "12k tokens/min"}, start_level=0.0)  # others have used it up
    provider = made(settings.limiter(), world.base_url)
    started = time.monotonic()
    provider.generate("Say something. " * 50, max_tokens=300)
    assert (provider.last.attempts, world.tally()["refused_total"]) == (2, 1)
    assert 0.5 < provider.last.waited_s < time.monotonic() - started  # what it needs comes at 200 tokens a second


def test_another_error_of_the_real_sdk_goes_up_at_once(paceline_emulator, made):
    settings = Settings()
    world = paceline_emulator(limits={MODEL: "30k tokens/min"}, valid_key="another")
    with pytest.raises(openai.AuthenticationError):
        made(settings.limiter(), world.base_url).generate("x")


# --- the environment


def test_environment_defaults():
    assert Settings.from_env({}) == Settings(30_000, 0.85, None, 3, 2.0)


def test_environment_values():
    env = {"MAX_TPM": "60000", "TPM_SAFETY_FACTOR": "0.5", "MAX_TOKENS_PER_CALL": "8000"}
    env |= {"RETRY_MAX_ATTEMPTS": "5", "RETRY_INITIAL_WAIT": "0.5"}
    assert Settings.from_env(env) == Settings(60_000, 0.5, 8_000, 5, 0.5)


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("MAX_TPM", "30k", "a whole number from 1 .* 30000"),
        ("MAX_TPM", "0", "a whole number from 1"),
        ("TPM_SAFETY_FACTOR", "85", "from 0.01 to 1, e.g. 0.85"),
        ("TPM_SAFETY_FACTOR", "nan", "from 0.01 to 1"),
        ("MAX_TOKENS_PER_CALL", "1.5", "a whole number"),
        ("RETRY_MAX_ATTEMPTS", "0", "from 1"),
        ("RETRY_INITIAL_WAIT", "-2", "from 0 to 60, e.g. 2.0"),
    ],
)
def test_environment_bad_values_give_a_clear_error(name, value, right):
    with pytest.raises(SettingError, match=f"^{name} is '{value}': it must be .*{right}"):
        Settings.from_env({name: value})


def test_env_example_documents_every_variable_with_its_default():
    lines = (HOME / ".env.example").read_text().splitlines()
    shown = dict(re.findall(r"^(?:# )?([A-Z_]+)=(\S+)$", "\n".join(lines), re.MULTILINE))
    names = ["MAX_TPM", "TPM_SAFETY_FACTOR", "MAX_TOKENS_PER_CALL", "RETRY_MAX_ATTEMPTS", "RETRY_INITIAL_WAIT"]
    assert list(shown) == names
    assert (shown["MAX_TPM"], shown["TPM_SAFETY_FACTOR"]) == ("30000", "0.85")
    assert (shown["RETRY_MAX_ATTEMPTS"], shown["RETRY_INITIAL_WAIT"]) == ("3", "2.0")
    active = dict(line.split("=") for line in lines if line and not line.startswith("#"))
    assert Settings.from_env(active) == Settings()
