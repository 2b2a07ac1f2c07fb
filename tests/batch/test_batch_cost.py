"""What a run costs by list prices."""

import sys
from datetime import UTC, datetime, timedelta

import pytest
from batch_helpers import Said, chat, chats, completion, run_job, write_lines
from batch_times import KEYS, QUICK

from odd_server import JSON, OddServer
from paceline.batch import cost
from paceline.batch.cost import Bill
from paceline.providers.base import Usage

GIVEN = {"openai/gpt-5": {"input": 1.0, "output": 10.0}, "mine": {"input": 2.0, "output": 2.0, "cached": 0.5}}


def bill_of(*answers):
    bill = Bill(GIVEN)
    for provider, model, usage, batch in answers:
        bill.add(provider, model, usage, batch=batch)
    return bill.report()


def test_a_batch_costs_half():
    one, usage = ("openai", "gpt-5"), Usage(1_000, 200)
    assert bill_of((*one, usage, False)) == {"usd": 0.003, "usd_saved": 0.0, "in_batches": 0, "unpriced": 0}
    both = {"usd": 0.009, "usd_saved": 0.006, "in_batches": 4, "unpriced": 0}
    assert bill_of(*[(*one, usage, True)] * 4, (*one, usage, False)) == both


def test_sound_has_its_own_price(monkeypatch):
    monkeypatch.setitem(GIVEN, "voice", {"input": 1.0, "output": 10.0, "audio": 5.0, "audio_output": 50.0})
    usage = Usage(1_000, 200, audio_tokens=500, audio_output_tokens=100)
    assert bill_of(*[("vllm", "voice", usage, False)] * 2)["usd"] == pytest.approx(
        2 * (0.0005 + 0.0025 + 0.001 + 0.005)
    )


def test_cached_input_long_answers_and_models_without_a_price():
    long = Usage(2_000_000, 0, cached_tokens=1_000_000)
    report = bill_of(("vllm", "mine", long, False), ("vllm", "other", Usage(5, 5), False), ("x", "other", long, True))
    assert report == {"usd": 2.5, "usd_saved": 0.0, "in_batches": 1, "unpriced": 2}
    assert cost.in_words(report, 3) == [
        "cost by list prices: 2.5000 USD (1 of 3 answers came in batches); without 2 answers whose price is not known"
    ]
    few = bill_of(("vllm", "mine", Usage(20, 2), True))
    assert cost.in_words(few, 1)[0].startswith("cost by list prices: 0.000044 USD")
    report = bill_of(("vllm", "other", Usage(5, 5), False))
    assert cost.in_words(report, 1) == [
        "cost: no price of these answers is known: name the provider whose prices apply with --provider (in Python: provider=), or state the price under [prices]"
    ]


def test_public_prices_by_length():
    answers = [("gemini", "gemini-2.5-pro", Usage(tokens, 0), False) for tokens in (100_000, 400_000)]
    short, long = (bill_of(answer)["usd"] for answer in answers)
    assert 0 < 4 * short < long


def test_without_the_prices_there_is_no_cost(monkeypatch):
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert bill_of(("openai", "gpt-5", Usage(1, 1), False)) == {}
    assert cost.in_words({}, 0) == []
    assert cost.in_words({}, 5) == ["cost: not known without the list of prices: pip install 'paceline[budget]'"]


@pytest.mark.parametrize(("mode", "part"), [("sync", 1.0), ("batch", 0.5)])
@pytest.mark.usefixtures("timing")
def test_the_summary_of_a_run_has_it(emulator, tmp_path, mode, part):
    emulator.reset(batches=QUICK)
    source = write_lines(tmp_path / "in.jsonl", chats(8))
    given = {"prices": {"gpt-5": {"input": 1e3, "output": 1e3}}, "environ": KEYS}
    code, report = run_job(source, emulator.base_url, said := Said(), mode=mode, **given)
    assert code == 0
    whole = (report["input_tokens"] + report["output_tokens"]) / 1e3
    assert report["usd"] == pytest.approx(whole * part)
    assert report["usd_saved"] == pytest.approx(whole * (1 - part))
    assert sum(line.startswith("cost by list prices: ") for line in said.lines) == 1


@pytest.mark.parametrize(
    ("answers", "ok", "paid"),
    [
        ([{"choices": []}, {}], 1, 2),
        ([{"choices": [], "error": {"message": "no"}}, {}], 1, 2),
        ([{"choices": [], "error": {"code": code}} for code in (500, 400)], 0, 2),
        ([{"choices": []}] * 3, 0, 3),
    ],
    ids=["no choice", "an error", "two errors", "no answer at all"],
)
def test_the_summary_of_a_run_has_each_attempt_that_was_paid(tmp_path, answers, ok, paid):
    source = write_lines(tmp_path / "in.jsonl", [chat("r")])
    given = {"prices": {"gpt-5": {"input": 1e5, "output": 1e5}}, "environ": KEYS, "retry": {"backoff_s": 0.01}}
    with OddServer(lambda number, _: (200, JSON, completion("Hi.") | answers[number])) as server:
        _, report = run_job(source, server.base_url, max_attempts=3, **given)
    assert (report["ok"], len(server.asked)) == (ok, paid)
    assert (report["input_tokens"], report["output_tokens"]) == (paid, paid)
    assert report["usd"] == pytest.approx(0.2 * paid)


def test_another_host_has_the_prices_of_the_provider_that_is_named(emulator, tmp_path):
    source = write_lines(tmp_path / "in.jsonl", [chat("r")])
    given = {"limits": {}, "environ": KEYS}
    _, report = run_job(source, emulator.base_url, said := Said(), **given)
    assert (report["usd"], report["unpriced"]) == (0, 1)
    assert any("whose prices apply with --provider" in line for line in said.lines)
    _, report = run_job(source, emulator.base_url, Said(), provider="openai", restart=True, **given)
    assert (report["usd"] > 0, report["unpriced"]) == (True, 0)


def test_a_run_without_money_says_when_its_budget_restarts(emulator, tmp_path):
    source = write_lines(tmp_path / "in.jsonl", chats(4))
    given = {"prices": {"gpt-5": {"input": 1e3, "output": 1e3}}, "environ": KEYS, "workers": 1}
    given["budget"] = "0.001 usd/hour, 0.001 usd/day, 9 usd/month"
    code, report = run_job(source, emulator.base_url, said := Said(), **given)
    assert (code, report["ok"], report["errors"]) == (1, 1, {"paceline_budget": 3})
    restart = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%d}T00:00:00Z"
    assert f"budget: nothing is left until {restart}; raise the budget to continue earlier" in said.lines
