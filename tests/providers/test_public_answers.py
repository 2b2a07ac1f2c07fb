"""Answers that public threads, pages and recorded tests show, by what they say; their sources are beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cases import judged

from paceline.providers.registry import provider_named

ANSWERS = json.loads(Path(__file__).with_name("fixtures").joinpath("public.json").read_text(encoding="utf-8"))
REFUSALS = ANSWERS["refusals"]
HEADERS = [case for case in ANSWERS["headers"] if "unread" not in case]


def ids(cases):
    return [case["id"] for case in cases]


@pytest.mark.parametrize("case", REFUSALS, ids=ids(REFUSALS))
def test_a_refusal_means_what_it_says(case):
    body, expected = case["body"], case["expect"]
    body = body.encode() if isinstance(body, str) else body
    refusal = judged(body, case["provider"], status=case["status"], headers=case.get("headers", {})).refusal
    if expected is None:
        assert refusal is None
        return
    assert refusal is not None
    read = {name: value for name, value in expected.items() if name not in case.get("unread", ())}
    assert {name: getattr(refusal, name) for name in read} == read


@pytest.mark.parametrize("case", HEADERS, ids=ids(HEADERS))
def test_headers_say_what_their_names_and_numbers_prove(case):
    found = {}
    for reading in provider_named(case["provider"]).readings(case["headers"], 0.0):
        found.setdefault(reading.unit, []).append((reading.limit, reading.remaining, reading.period_s, reading.reset_s))
    expected = {unit: [tuple(one) + (None,) * (4 - len(one)) for one in ones] for unit, ones in case["expect"].items()}
    assert found.keys() == expected.keys()
    for unit, ones in expected.items():
        assert len(found[unit]) == len(ones)
        for one in ones:
            assert any(
                all(want in (None, has) for want, has in zip(one, reading, strict=True)) for reading in found[unit]
            ), (found[unit], one)


@pytest.mark.parametrize("code", [400, 404, 500])
@pytest.mark.parametrize("text", ["the prompt says: rate limit reached", "insufficient balance", "model is overloaded"])
@pytest.mark.parametrize("status", [200, None])
def test_words_do_not_decide_where_the_error_states_another_status(status, text, code):
    body = {"error": {"message": text, "code": code}}
    found = judged(body, "a-proxy", status=status or code, headers={})
    assert (found.refusal, found.status) == (None, code)


ECHOES = [
    (403, {"code": "content_policy", "message": "Forbidden: why was I told 'insufficient balance'?"}),
    (403, {"code": 403, "message": "Forbidden: input flagged: \"why was I told 'insufficient balance'?\""}),
    (401, {"message": "Incorrect API key provided: insufficient balance"}),
    (400, {"message": 'Your prompt "insufficient balance" was blocked by the content filter'}),
    (400, {"message": "Your request was rejected as a result of our safety system. Prompt: billing limit reached"}),
    (403, {"code": "AccessDenied", "message": "Your account has been rate limited?"}),
]


@pytest.mark.parametrize(("status", "error"), ECHOES)
def test_what_an_error_quotes_stops_no_pool(status, error):
    body = json.dumps({"error": error}).encode()
    assert provider_named("a-proxy").refusal(status, {}, body) is None


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (503, {"message": "Rate limit of requests per minute exceeded", "type": "server_error"}, "rate"),
        (503, {"message": "Slow down", "code": "slow_down"}, "growth"),
        (503, {"message": "Service Unavailable"}, "capacity"),
        (503, {"message": "Too many requests: the server is overloaded"}, "capacity"),
        (500, {"message": "Too many requests, please slow down", "type": "server_error"}, "rate"),
        (500, {"message": "Internal error: too many requests"}, None),
        (500, {"message": "Overloaded"}, None),
    ],
)
def test_words_say_what_kind_of_refusal_a_status_of_500_or_503_is(status, error, kind):
    found = judged({"error": error}, "a-proxy", status=status, headers={})
    assert (found.refusal and found.refusal.kind.value) == kind
