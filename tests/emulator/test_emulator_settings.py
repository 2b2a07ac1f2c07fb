import ast
import re
from dataclasses import asdict
from pathlib import Path

import pytest

import paceline.emulator
from paceline.emulator.settings import Settings, SettingsError, parse_limits
from paceline.emulator.text import count_content, count_messages, count_tokens, write


def test_limits_in_every_notation():
    expected = {"gpt-5": (("requests", 500, 60, ""), ("tokens", 400_000, 60, ""))}
    assert parse_limits("gpt-5=500 requests/min,400k tokens/min") == expected
    assert parse_limits(["gpt-5=500 requests/min, 400k tokens/min"]) == expected
    assert parse_limits({"gpt-5": ["500 requests/min", "400_000 tokens / min"]}) == expected
    assert parse_limits("2.5M tokens/day window,8 concurrency") == {
        "*": (("tokens", 2.5e6, 86_400, "window"), ("concurrency", 8, 0, ""))
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"limits": "500 request/min"}, "did you mean 'requests'"),
        ({"limits": "500 requests"}, "give a period"),
        ({"limits": "5 concurrency/min"}, "none for concurrency"),
        ({"limits": "500 requests/fortnight"}, "s, min, hour or day"),
        ({"limits": "many requests"}, "write it like"),
        ({"limits": "0 requests/min"}, "above 0"),
        ({"limits": "5 requests/min slidng"}, "did you mean 'sliding'"),
        ({"limits": "120 requests/min burst 20"}, "the emulator has no burst"),
        ({"limits": "gpt-5="}, "there are none"),
        ({"latnecy_s": 1}, "unknown setting 'latnecy_s'; did you mean 'latency_s'?"),
        ({"rule": "buket"}, "rule is 'buket'; did you mean 'bucket'?"),
        ({"settle": "always"}, "settle is 'always'"),
        ({"faults": {"504": 0.1}}, "faults: unknown kind '504'"),
        ({"faults": {"503": 2}}, "faults.503 is 2: it must be a number from 0 to 1"),
        ({"changes": [{"at_s": 1, "faults": {"504": 0.1}}]}, "changes[0].faults: unknown kind '504'"),
        ({"changes": [{"at_s": 1}]}, "changes[0]: write"),
        ({"changes": [{"limits": {"m": "1 requests/s"}}]}, "changes[0]: write"),
        ({"retry_after": "never"}, "retry_after is 'never'; choose from true, none, full, long, or seconds"),
        ({"retry_after": 0.5}, "retry_after is 0.5: it must be a number from 1"),
        ({"latency_spread": 0.5}, "latency_spread is 0.5: it must be a number from 1"),
        ({"other_users": 1.0}, "other_users must be below 1"),
        ({"latency_s": "1"}, "latency_s is '1'"),
        ({"jitter": float("nan")}, "jitter is nan"),
        ({"limits": 5}, "wrong type"),
        ({"changes": [{"at": 60, "limits": "5 requests/min"}]}, "changes[0]: write {at_s = 60"),
        ({"changes": [{"at_s": -1, "limits": "5 requests/min"}]}, "changes[0].at_s is -1"),
        ({"changes": [{"at_s": 1, "limits": "5 apples/min"}]}, "unknown unit 'apples'"),
        ({"changes": 5}, "wrong type"),
        ({"changes": [5]}, "wrong type"),
        ({"batches": {"turnaround": 5}}, "batches: unknown setting 'turnaround'; did you mean 'turnaround_s'?"),
        (
            {"batches": {"turnaround_spread": 0.5}},
            "batches.turnaround_spread is 0.5: it must be a number from 1 to 1000",
        ),
        ({"batches": {"queue_full": "428"}}, "batches.queue_full is '428'; did you mean '429'?"),
        ({"batches": {"enqueued_tokens": {"gpt-5": "2M"}}}, "batches.enqueued_tokens.gpt-5 is '2M'"),
        ({"batches": {"queued_requests": -1}}, "batches.queued_requests is -1"),
        ({"batches": {"in_order": 1}}, "batches.in_order is 1: it must be true or false"),
        ({"batches": 5}, "wrong type"),
    ],
)
def test_wrong_settings_say_what_would_be_right(values, message):
    with pytest.raises(SettingsError, match=re.escape(message)):
        Settings.of(values)


def test_settings_survive_a_round_trip_and_hide_the_key():
    settings = Settings(limits={"m": "5 requests/min"}, valid_key="secret", faults={"503": 0.1})
    assert Settings.of(settings.values()) == settings
    assert asdict(settings) == settings.values()
    assert "secret" not in repr(settings)


def test_tokens_of_prose_are_about_one_and_a_third_per_word():
    prose = (
        "The limits are set by the organization that owns the key, and they apply to every request that is made with"
        " it. When a request arrives, the server looks at what is left in each of its buckets; if one of them cannot"
        " take the cost, the request is refused and nothing is charged. Patience is cheaper than trying again."
    )
    assert 1.15 < count_tokens(prose) / len(prose.split()) < 1.45
    assert count_tokens(prose * 50) == pytest.approx(50 * count_tokens(prose), rel=0.01)


def test_tokens_of_other_things():
    assert count_tokens("") == count_tokens("  \n") == 0
    assert count_tokens("a") == 1
    assert count_tokens("123456789 " * 100) > 300
    assert count_tokens("{}[]();" * 10) >= 70
    assert 50 <= count_tokens("限速" * 50) <= 150
    assert count_content([{"type": "text", "text": "a"}, {"content": ["b", {"text": "c"}]}, 17]) == 4
    assert count_messages([{"role": "user", "content": "a"}] * 3) == 15
    assert len(write(100)) == 400


def test_the_other_side_shares_nothing_with_the_limiter():
    for file in Path(paceline.emulator.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert name.partition(".")[0] != "paceline" or name.startswith("paceline.emulator"), file.name
