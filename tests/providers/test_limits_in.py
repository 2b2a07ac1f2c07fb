"""``paceline.limits_in``: the limits in headers of any form, in the dialect that their names tell or the caller gives."""

from __future__ import annotations

from email import message_from_string

import httpx
import httpx2
import pytest
import requests
from cases import CLAUDE, told

import paceline
from paceline import Reading
from paceline.providers.quota_headers import readings_in

OPENAI = told(requests=("500", "499", "120ms"), tokens=("30000", "27500", "5s"))
MESSAGE = message_from_string("".join(f"{name}: {value}\n" for name, value in OPENAI.items()))
READ = (Reading("requests", 500, 499, 0.12, 60.0), Reading("tokens", 30_000, 27_500, 5.0, 60.0))


@pytest.mark.parametrize(
    "form",
    [
        dict, httpx.Headers, httpx2.Headers, requests.structures.CaseInsensitiveDict, lambda _: MESSAGE,
        lambda headers: list(headers.items()),
        lambda headers: {name.upper(): value for name, value in headers.items()},
        lambda headers: {name.encode(): value.encode() for name, value in headers.items()},
        lambda headers: [(name.encode(), value.encode()) for name, value in headers.items()],
        lambda headers: {name: [value] for name, value in headers.items()},
        lambda headers: {name: [value, value] for name, value in headers.items()},
        lambda headers: [*headers.items(), *headers.items()],
    ],
)  # fmt: skip
def test_headers_in_any_form(form):
    found = paceline.limits_in(form(OPENAI))
    assert (found.provider, found.readings, found.retry_after_s) == ("openai", READ, None)


@pytest.mark.parametrize("nonsense", [5, None, ["x"], "x-ratelimit", [(1, 2, 3)], object()])
def test_what_are_no_headers(nonsense):
    with pytest.raises(TypeError, match="it must be a mapping, or pairs of a name and a value"):
        paceline.limits_in(nonsense)


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, None),
        ({"content-type": "x", "retry-after": "7"}, 7),
        ({"Retry-After": "20"}, 20),
        ({"retry-after-ms": "1500"}, 1.5),
    ],
)
def test_nothing_but_a_wait(headers, wait_s):
    assert paceline.limits_in(headers) == paceline.HeaderLimits("", (), wait_s)
    assert paceline.limits_in(headers | OPENAI) == paceline.HeaderLimits("openai", READ, wait_s)


GROQ = {"x-groq-region": "dls", **OPENAI}
ANTHROPIC = told(
    CLAUDE, requests=("50", "49", "2026-11-21T10:00:02Z"), tokens=("40000", "39000", "2026-11-21T10:00:06Z")
)
OF_INPUT = told(CLAUDE, input_tokens=("30000", "27000", "2026-11-21T10:00:06Z"))
IGNORED = {"anthropic-ratelimit-unified-5h-utilization": "0.4", "anthropic-priority-input-tokens-limit": "10000"}
CLAUDES = Reading("requests", 50, 49, 2.0, 60.0, reset_resolution_s=1.0)
NOW_S = 1_795_255_200.0  # 2026-11-21T10:00:00Z


@pytest.mark.parametrize(
    ("headers", "provider", "readings"),
    [
        (GROQ, "groq", list(READ)),  # the numbers prove a minute
        (ANTHROPIC, "anthropic",
         [CLAUDES, Reading("tokens", 40_000, 39_000, 6.0, 60.0, 1_000.0, 1.0)]),
        (ANTHROPIC | OF_INPUT | IGNORED, "anthropic",  # its tokens repeat another limit
         [CLAUDES, Reading("input_tokens", 30_000, 27_000, 6.0, 60.0, 1_000.0, 1.0)]),
        (ANTHROPIC | {"anthropic-ratelimit-output-tokens-limit": "30000"}, "anthropic",
         [CLAUDES, Reading("output_tokens", 30_000, None, None, 60.0, 1_000.0, 1.0)]),
        ({"apim-request-id": "1"} | told(tokens=("80000", "70000")), "azure", [Reading("tokens", 80_000, 70_000, None, 60.0)]),
        (told(req_minute=("60", "59")), "mistral", [Reading("requests", 60, 59, None, 60.0)]),
        (told(requests_day=("1000", "9")), "cerebras", [Reading("requests", 1_000, 9, None, 86_400.0)]),
        (
            {"x-ratelimit-limit": "60", "x-ratelimit-remaining": "59", "x-ratelimit-reset": "30"},
            "",
            [Reading("requests", 60, 59, 30.0)],
        ),
    ],
)  # fmt: skip
def test_the_names_tell_the_provider(headers, provider, readings):
    found = paceline.limits_in(headers, now_s=NOW_S)
    assert (found.provider, list(found.readings)) == (provider, readings)
    if provider:
        assert paceline.limits_in(headers, provider, now_s=NOW_S) == found


DRAFT = '"burst";r=5;t=1, "day";r=900;t=3600'


@pytest.mark.parametrize(
    ("headers", "readings"),
    [
        ({"ratelimit": '"api";r=50;t=30', "ratelimit-policy": '"api";q=100;w=60'}, [Reading("requests", 100, 50, 30, 60.0)]),
        (
            {"ratelimit": DRAFT, "ratelimit-policy": '"burst";q=10;w=1, "day";q=1000;w=86400'},
            [Reading("requests", 10, 5, 1, 1.0), Reading("requests", 1_000, 900, 3_600, 86_400.0)],
        ),
        ({"ratelimit": DRAFT, "ratelimit-policy": '"burst";q=10;qu="content-bytes";w=1'}, []),
        ({"ratelimit": "limit=100, remaining=50, reset=5"}, [Reading("requests", 100, 50, 5)]),
        ({"ratelimit-limit": "100, 100;w=60", "ratelimit-remaining": "9"}, [Reading("requests", 100, 9, None, 60.0)]),
        ({"ratelimit": "?", "ratelimit-policy": ";q=;w="}, []),
    ],
)  # fmt: skip
def test_the_fields_of_the_draft(headers, readings):
    found = paceline.limits_in(headers)
    assert (found.provider, list(found.readings)) == ("", readings)


def test_the_caller_knows_better():
    assert paceline.limits_in(told(requests=("500", "500")), "groq").readings[0].period_s == 86_400
    assert paceline.limits_in(OPENAI, "Azure-OpenAI").provider == "azure"
    assert paceline.limits_in(OPENAI, "a-host-of-mine").readings == READ


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [
        ("30", 30), ("1795255230", 30), ("1795255230000", 30), ("2026-11-21T10:00:30Z", 30), ("1m30s", 90), ("0", 0),
        ("1795255100", 0), ("soon", None), ("-5", None), ("nan", None), (None, None),
    ],
)  # fmt: skip
def test_google_s_reset_in_every_form(reset, seconds):
    headers = {"x-ratelimit-limit": "60", "x-ratelimit-remaining": "0"} | (
        {} if reset is None else {"x-ratelimit-reset": reset}
    )
    [reading] = paceline.limits_in(headers, "google", now_s=NOW_S).readings
    assert reading == Reading("requests", 60, 0, seconds)
    dated = headers | {"date": "Sat, 21 Nov 2026 10:00:00 GMT"}
    assert paceline.limits_in(dated, "google", now_s=NOW_S + 50).readings == (reading,)


@pytest.mark.parametrize(
    "wrong", [{"x-ratelimit-remaining": "61"}, {"x-ratelimit-remaining": "-1"}, {"x-ratelimit-limit": "0"}]
)
def test_google_s_numbers_that_do_not_agree(wrong):
    headers = {"x-ratelimit-limit": "60", "x-ratelimit-remaining": "59"} | wrong
    assert paceline.limits_in(headers, "gemini").readings == ()


@pytest.mark.parametrize(
    ("date", "until_s"),
    [
        ({}, -3.0),
        ({"date": "Wed, 21 Oct 2026 07:28:03 GMT"}, -3.0),
        ({"date": "Wed, 21 Oct 2026 07:28:30 GMT"}, None),  # another clock, or a date of before
    ],
)
@pytest.mark.parametrize("reset", ["1792567680", "1792567680000", "2026-10-21T07:28:00Z"])
def test_an_instant_counts_from_now_though_it_has_passed(date, until_s, reset):
    headers = {"x-ratelimit-limit": "9", "x-ratelimit-remaining": "5", "x-ratelimit-reset": reset, **date}
    [reading] = readings_in(headers, 1_792_567_683.0)
    assert (reading.reset_s, reading.until_s) == (0.0, until_s)
