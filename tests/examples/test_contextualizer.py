"""Every number of the example's promises: a pipeline on a small quota. Its agent is tested beside LangChain."""

import re
import sys
import types
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


class TooManyRequestsError(Exception):
    """As SDKs make them: an exception with the HTTP answer."""

    status_code = 429
    response = types.SimpleNamespace(status_code=429, headers={}, content=b"")


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
def limited(clock, monkeypatch):
    """Make a limited model; with ``tokens`` there is a tokenizer, which counts as many in each text, or calls it."""

    def make(tokens=None, *, settings=None, used=(0, 0), errors=(), **options):
        if tokens is not None:
            count = tokens if callable(tokens) else lambda _: tokens
            installed = types.SimpleNamespace(batch_count=lambda texts, name: list(map(count, texts)))
            monkeypatch.setitem(sys.modules, "toktok", installed)
        settings = settings or Settings(tpm_safety_factor=1.0)
        return Limited(Model(clock, used, errors), settings.limiter(clock=clock), **options)

    return make


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


def test_estimate_by_a_tokenizer_if_one_is_there(limited):
    provider = limited(7)
    provider.generate("whatever it says")
    assert provider.last.estimated == 8 + 500  # 7 and 10 %; no max_tokens


def test_above_max_tokens_per_call_names_both_numbers_and_nothing_is_called(limited):
    provider = limited(1_000, settings=Settings(tpm_safety_factor=1.0, max_tokens_per_call=1_500))
    said = "estimated at 1,600 tokens, and one call may have 1,500"
    with pytest.raises(paceline.TooLargeError, match=said) as caught:
        provider.generate("long", max_tokens=500)
    assert (caught.value.cost, caught.value.most) == (1_600, 1_500)
    assert provider.provider.at_s == []
    assert provider.room().used == 0
    provider.generate("just short enough", max_tokens=400)
    assert len(provider.provider.at_s) == 1


# --- waiting for room


def test_the_caller_learns_what_is_used_and_what_is_left(clock, limited):
    provider = limited(10_000, used=(9_000, 1_000))
    assert (provider.room().limit, provider.room().left) == (30_000, 30_000)
    provider.generate("x", max_tokens=1_000)
    assert (provider.room().used, provider.room().left) == (10_000, 20_000)
    clock.advance(10)
    assert (provider.room().used, provider.room().left) == (5_000, 25_000)
    clock.advance(60)
    assert provider.room().used == 0


def test_a_safety_factor_of_85_percent_is_a_setting(limited):
    assert limited(settings=Settings(tpm_safety_factor=0.85)).room().limit == 25_500


# --- after the call


def test_what_was_really_used_is_recorded(limited):
    provider = limited(10_000, used=(2_000, 300))
    provider.generate("x", max_tokens=5_000)
    assert (provider.last.estimated, provider.last.used) == (16_000, 2_300)
    assert (provider.calls, provider.tokens) == (1, 2_300)
    assert provider.room().used == 2_300  # the rest was given back
    provider.provider.used = (20_000, 8_000)
    provider.generate("x", max_tokens=0)
    assert provider.room().used == 30_300  # more than there was: a debt


def test_a_provider_that_keeps_max_tokens_stays_charged_with_them(limited):
    provider = limited(1_000, used=(1_000, 100), keeps_max_tokens=True)
    provider.generate("x", max_tokens=400)
    assert (provider.last.used, provider.room().used) == (1_100, 1_400)


@pytest.mark.parametrize("answer", [{"tokens_used": 2_300}, types.SimpleNamespace(tokens_used=2_300)])
def test_use_is_also_reported_as_tokens_used(limited, monkeypatch, answer):
    provider = limited(10_000)
    monkeypatch.setattr(provider.provider, "generate", lambda prompt, max_tokens=0: answer)
    provider.generate("x", max_tokens=5_000)
    assert (provider.last.used, provider.room().used) == (2_300, 2_300)


def test_an_answer_without_usage_counts_by_its_length(limited, monkeypatch):
    provider = limited(len)
    monkeypatch.setattr(provider.provider, "generate", lambda prompt, max_tokens=0: "ten chars.")
    provider.generate("ask", max_tokens=50)
    assert provider.last.used == 3 + 10


# --- a rate limit


@pytest.mark.parametrize("luck", [0.0, 0.5, 1.0])
def test_3_attempts_the_first_wait_2_s_doubling_within_25_percent(clock, limited, monkeypatch, luck):
    monkeypatch.setattr("random.random", lambda: luck)
    provider = limited(errors=[TooManyRequestsError(), TooManyRequestsError()])
    play(clock, provider.generate, "x", max_tokens=0)
    factor = 0.75 + luck / 2
    assert provider.provider.at_s == pytest.approx([0, 2 * factor, 6 * factor], abs=0.01)
    assert provider.records[-1].attempts == 3
    assert provider.records[-1].waited_s == pytest.approx(6 * factor, abs=0.01)


def test_attempts_and_first_wait_are_settings(clock, limited):
    settings = Settings(retry_max_attempts=2, retry_initial_wait_s=8.0)
    provider = limited(settings=settings, errors=[TooManyRequestsError()] * 9)
    with pytest.raises(paceline.GaveUpError, match="2 attempts made"):
        play(clock, provider.generate, "x", max_tokens=0)
    assert 6 <= provider.provider.at_s[1] <= 10.1  # with the time of the first answer


# --- the wrapper and the factory


def test_any_provider_with_the_two_functions_becomes_limited(limited):
    provider = limited(used=(3, 4))
    answer = provider.generate_structured("x", schema={"type": "object"}, max_tokens=10)
    assert answer == {"usage": {"input_tokens": 3, "output_tokens": 4}}
    assert provider.last.method == "generate_structured"
    assert provider.name == Model.name  # the rest is as it was


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


def test_another_error_of_the_real_sdk_goes_up_at_once(paceline_emulator, made):
    settings = Settings()
    world = paceline_emulator(limits={MODEL: "30k tokens/min"}, valid_key="another")
    with pytest.raises(openai.AuthenticationError):
        made(settings.limiter(), world.base_url).generate("x")


# --- the environment, whose values and defaults are in test_contextualizer_names.py


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
