"""Estimates near the truth, and corrections that learn it."""
# ruff: noqa: RUF001  (the samples are Russian and Chinese)

from __future__ import annotations

import json
import logging
import math
import sys
import types
from collections import deque

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.estimation.calibration import MODELS_MAX, Calibrations, Correction, TokenCalibration, UsualOutput
from paceline.estimation.estimate import FEATURES, WEIGHTS, count_tokens, estimate_tokens

PROSE = """The ferry left the harbour a little after six, when the fog had begun to lift and the gulls were already at work
behind the trawlers. Most of the passengers stayed below, where there was coffee and a stove; only two of them stood at the
rail, an old man with a parcel on his knees and a girl who counted the buoys aloud. Nobody had told her how many there
were. When she reached nineteen she stopped, because the twentieth was missing, and she asked the man whether the sea could
lose things. He said that it seldom did anything else, but that it usually gave them back in another place.

By noon the wind had turned. The captain, who disliked surprises, ordered the hatches closed and sent the boy to fetch the
charts, although everybody knew that he could have drawn them from memory."""
CODE = '''def merge(left: list[int], right: list[int]) -> list[int]:
    """Merge two sorted lists into one."""
    result: list[int] = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            result.append(left[i])
            i += 1
        else:
            result.append(right[j])
            j += 1
    result.extend(left[i:])
    result.extend(right[j:])
    return result


class Counter:
    def __init__(self, start: int = 0) -> None:
        self._value = start

    def increment(self, step: int = 1) -> int:
        if step < 0:
            raise ValueError("the step must not be negative")
        self._value += step
        return self._value
'''
RECORDS = [
    {"id": n, "name": f"Customer {n}", "email": f"customer{n}@example.org", "active": n % 3 == 0, "balance": n * 12.5,
     "tags": ["new", "retail"], "address": {"street": "Main Street", "city": "Springfield"}}
    for n in range(12)
]  # fmt: skip
CSV = "date,station,temperature,humidity,pressure\n" + "".join(
    f"2026-03-{day:02d},ST{day * 7 % 40:03d},{day * 1.37 - 4:.1f},{40 + day},{990 + day * 0.8:.1f}\n"
    for day in range(1, 31)
)
RUSSIAN = """Паром отошёл от пристани вскоре после шести, когда туман начал рассеиваться, а чайки уже кружили над рыбацкими
лодками. Почти все пассажиры остались внизу, где было тепло и пахло кофе. Только двое стояли у борта: старик со свёртком в
руках и девочка, которая вслух считала буи. Никто не сказал ей, сколько их должно быть. Досчитав до девятнадцати, она
остановилась, потому что двадцатого не было, и спросила, может ли море что-нибудь потерять."""
CHINESE = """渡轮在六点多一点离开了港口，那时雾刚刚开始散去，海鸥已经跟在渔船后面忙碌起来。大多数乘客都留在下面的船舱里，
那里有咖啡和火炉。只有两个人站在栏杆旁边：一位膝上放着包裹的老人，和一个大声数着浮标的女孩。没有人告诉过她一共有多少个。
数到十九的时候她停了下来，因为第二十个不见了。她问老人，大海会不会也弄丢东西。"""
SAMPLES = {
    "prose": PROSE, "code": CODE, "json": json.dumps(RECORDS, indent=2), "compact json": json.dumps(RECORDS, separators=(",", ":")),
    "csv": CSV, "russian": RUSSIAN, "chinese": CHINESE,
}  # fmt: skip

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def errors():
    toktok = pytest.importorskip("toktok")
    for name, text in SAMPLES.items():
        [actual] = toktok.batch_count([text], "o200k_base")
        yield name, estimate_tokens(text, "o200k") / actual - 1


def test_mean_error_is_a_tenth_at_most():
    found = dict(errors())
    assert sum(map(abs, found.values())) / len(found) <= 0.10, found
    assert max(map(abs, found.values())) <= 0.25, found


@pytest.mark.parametrize("name", SAMPLES)
def test_a_long_text_is_sampled_fairly(name):
    text = SAMPLES[name]
    whole, times = estimate_tokens(text, "o200k"), 400
    assert estimate_tokens(text * times, "o200k") == pytest.approx(whole * times, rel=0.08)


def test_features_one_by_one():
    weights = dict(zip(FEATURES, WEIGHTS["o200k"], strict=True))

    def tokens(text, **features):
        assert estimate_tokens(text * 500, "o200k") == pytest.approx(
            500 * sum(weights[name] * number for name, number in features.items()), rel=0.02, abs=2
        )

    tokens("word ", words=1, letters=4)
    tokens("WORD ", words=1, letters=4, upper=4)
    tokens("12 ", digits=2)
    tokens("?! ", punctuation=2)
    tokens("a\n \n", words=1, letters=1, newline_runs=1)
    tokens("a    ", words=1, letters=1, space_runs=1)
    tokens("é ", latin_extended=1)
    tokens("ł ", latin_extended=1)
    tokens("中 ", han=1)
    tokens("か ", kana=1)
    tokens("。 ", other=1)
    tokens("\u3000", words=0)
    tokens("한 ", hangul=1)
    tokens("д ", cyrillic=1)
    tokens("क ", devanagari=1)
    tokens("😀 ", emoji=1)
    tokens("☀ ", emoji=1)
    tokens("ا ", other=1)
    tokens("naïve ", words=2, letters=4, latin_extended=1)


@unhurried
@given(text=st.text(), encoding=st.sampled_from([*WEIGHTS, "unknown"]))
def test_any_text_has_an_estimate(text, encoding):
    tokens = estimate_tokens(text, encoding)
    assert (tokens == 0) == (text == "")
    assert 0 <= tokens <= 4 * len(text) + 1


def test_an_unknown_encoding_gets_the_highest_weights():
    assert estimate_tokens(PROSE, "unknown") == max(estimate_tokens(PROSE, encoding) for encoding in WEIGHTS)


def test_exact_counts_and_falls_back(monkeypatch, caplog):
    toktok = pytest.importorskip("toktok")
    assert count_tokens(PROSE, "o200k", exact=True) == toktok.batch_count([PROSE], "o200k_base")[0]
    assert count_tokens(PROSE, "claude_v3", exact=True) == estimate_tokens(PROSE, "claude_v3")
    broken = types.ModuleType("toktok")

    def batch_count(texts, name):
        raise RuntimeError(texts[0])

    broken.batch_count = batch_count
    monkeypatch.setitem(sys.modules, "toktok", broken)
    with caplog.at_level(logging.DEBUG, "paceline.estimate"):
        assert count_tokens(PROSE, "o200k", exact=True) == estimate_tokens(PROSE, "o200k")
    assert "RuntimeError" in caplog.text
    assert "ferry" not in caplog.text


def test_a_correction_starts_with_a_margin_and_learns_the_ratio():
    correction = Correction()
    assert (correction.ratio, correction.factor, correction.apply(1_000)) == (1.0, 1.10, pytest.approx(1_100))
    for _ in range(200):
        correction.observe(1_000, 1_250)
    assert correction.apply(1_000) == pytest.approx(1_250, rel=0.02)


def test_the_margin_follows_the_spread():
    steady, shaky = Correction(), Correction()
    for n in range(400):
        steady.observe(1_000, 1_000)
        shaky.observe(1_000, 800 if n % 2 else 1_200)
    assert steady.factor < 1.01
    assert shaky.factor == pytest.approx(1.2, abs=0.02)


TOKENS = st.floats(allow_nan=True, allow_infinity=True)


@unhurried
@given(pairs=st.lists(st.tuples(TOKENS, TOKENS), max_size=50), estimated=TOKENS)
def test_no_answer_breaks_a_correction(pairs, estimated):
    correction = Correction()
    for pair in pairs:
        correction.observe(*pair)
    assert 0.3 <= correction.factor <= 5
    applied = correction.apply(estimated)
    assert not math.isnan(applied)
    assert applied >= 0


@unhurried
@given(ratio=st.floats(0.3, 5), sizes=st.lists(st.integers(100, 200_000), min_size=1, max_size=20))
def test_a_constant_ratio_is_found_whatever_the_sizes(ratio, sizes):
    correction = Correction()
    for _ in range(300 // len(sizes) + 1):
        for size in sizes:
            correction.observe(size, size * ratio)
    assert correction.factor == pytest.approx(ratio, rel=0.10, abs=0.05)


def calibrations_after(*answers: tuple[str, int], most: int | None = 64_000) -> Calibrations:
    found = Calibrations()
    for model, output in answers:
        of(found, model).learn(input_estimate=10, input_tokens=10, max_output_tokens=most, output_tokens=output)
    return found


def of(calibrations: Calibrations, model: str) -> TokenCalibration:
    return calibrations.of("anthropic", model, "messages")


def test_a_maximum_is_no_expectation_before_the_first_answer():
    cold = of(Calibrations(), "claude-opus-5")
    assert cold.expected_output(64_000) == cold.expected_output(None) == 512
    assert cold.expected_output(100) == 100
    assert cold.expected_output(0) == 0


def test_before_eight_answers_the_largest_of_them_counts():
    few = of(calibrations_after(*[("claude-opus-5", 40)] * 6, ("claude-opus-5", 3_000)), "claude-opus-5")
    assert few.expected_output(64_000) == 3_000
    small = of(calibrations_after(*[("claude-opus-5", 40)] * 7), "claude-opus-5")
    assert small.expected_output(64_000) == 512


def test_after_eight_answers_nine_of_ten_stay_within():
    many = of(calibrations_after(*[("claude-opus-5", 10 * (n % 10)) for n in range(64)]), "claude-opus-5")
    assert many.expected_output(64_000) == many.expected_output(None) == 80
    assert many.expected_output(20) == 20


def test_a_new_model_expects_what_its_family_has_shown_and_else_what_all_have():
    known = calibrations_after(*[("claude-opus-5", 3_000)] * 8, *[("claude-haiku-4-5", 50)] * 60)
    assert of(known, "claude-opus-5-5").expected_output(64_000) == 3_000
    assert known.of("bedrock", "eu-west-1/eu.anthropic.claude-opus-5-v1:0", "converse").expected_output(None) == 3_000
    assert of(known, "gpt-5").expected_output(64_000) == 50
    assert of(calibrations_after(*[("claude-opus-5", 3_000)] * 7), "gpt-5").expected_output(64_000) == 512


def test_answers_without_output_say_nothing_about_the_output_of_others():
    known = calibrations_after(*[("text-embedding-3-small", 0)] * 20, most=0)
    assert of(known, "gpt-5").expected_output(None) == 512


def test_a_refusal_of_an_expectation_holds_the_maximum_until_the_next_answer():
    known = calibrations_after(("claude-opus-5", 40))
    few = of(known, "claude-opus-5")
    few.doubt()
    assert few.expected_output(64_000) == 64_000
    assert few.expected_output(None) == 512
    few.learn(input_estimate=10, input_tokens=10, max_output_tokens=64_000, output_tokens=40)
    assert few.expected_output(64_000) == 512


def test_a_refusal_changes_no_expectation_that_answers_have_shown():
    many = of(calibrations_after(*[("claude-opus-5", 40)] * 8), "claude-opus-5")
    many.doubt()
    assert many.expected_output(64_000) == 40


def test_the_numbers_of_models_and_families_have_a_bound():
    known = Calibrations()
    for number in range(MODELS_MAX + 10):
        name = "".join(chr(ord("a") + int(digit)) for digit in str(number))
        known.of("openai", name, "chat")
    assert len(known._calibrations) == known._families.cache_info().currsize == MODELS_MAX


@unhurried
@given(outputs=st.lists(TOKENS, max_size=100))
def test_no_answer_breaks_a_usual_output(outputs):
    usual = UsualOutput()
    for output in outputs:
        usual.observe(output)
    assert 0 <= (usual.usual() or 0) < math.inf
    assert len(usual.recent) <= 64


def test_an_answer_is_counted_when_its_output_is_there():
    """Eight threads that counted at once let a ninth one look for the largest of none."""
    usual, read = UsualOutput(), []

    class Read(deque):
        def append(self, tokens):
            read.append(usual.usual())
            super().append(tokens)

    usual.recent = Read()
    for tokens in range(8):
        usual.observe(tokens)
    assert read == [None] * 8
    assert usual.usual() == 7


def test_an_answer_that_comes_while_another_thread_reads_breaks_nothing():
    class Growing(deque):
        def __iter__(self):
            yield from [*super().__iter__()]
            self.append(100.0)

    usual = UsualOutput()
    usual.recent = Growing()
    for tokens in range(8):
        usual.observe(tokens)
    assert usual.usual() == 7
