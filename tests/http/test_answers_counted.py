"""What came of each attempt is counted by server, pool, status and cause, and a trouble is told until it is over."""

import json

import httpx2
import pytest
from chats import ANSWER, CHAT, URL, attached

import paceline
from paceline.pacing import answers
from paceline.pacing.answers import Answers
from paceline.telemetry.merged import merged


def error(status, **fields):
    return httpx2.Response(status, json={"error": {"message": "no", **fields}})


@pytest.mark.parametrize(
    ("answer", "status", "cause"),
    [
        (httpx2.Response(200, json=ANSWER), 200, "answered"),
        (httpx2.ConnectError("no route"), 0, "unreachable"),
        (httpx2.ReadError("reset"), 0, "broken"),
        (httpx2.ReadTimeout("late"), 0, "timeout"),
        (error(401, code="invalid_api_key"), 401, "key"),
        (error(403), 403, "key"),
        (error(400, message="Incorrect API key provided"), 400, "key"),
        (error(400), 400, "request"),
        (error(404), 404, "request"),
        (error(500), 500, "server"),
        (httpx2.Response(200, text="<html>login</html>"), 502, "unreadable"),
        (httpx2.Response(429, json={"error": {"message": "slow"}}, headers={"retry-after": "9"}), 429, "rate"),
        (error(429, code="insufficient_quota"), 429, "money"),
        (httpx2.Response(503, json={"error": {"message": "overloaded"}}), 503, "capacity"),
    ],
)
def test_each_answer_has_a_cause(answer, status, cause):
    def server(_):
        if isinstance(answer, Exception):
            raise answer
        return answer

    limiter = paceline.Limiter({"openai/gpt-5": "500 requests/min"}, retry=paceline.RetryPolicy(max_attempts=1))
    with attached(limiter, server) as client:
        try:
            client.post(URL, json=CHAT, headers={"authorization": "Bearer sk-secret"})
        except httpx2.HTTPError:
            assert status == 0
    (row,) = limiter.status()["answers"]
    expected = {"upstream": "api.openai.com", "pool": "openai/gpt-5", "status": status, "cause": cause, "count": 1}
    assert {name: row[name] for name in expected} == expected
    assert (row["remedy"] is not None) == (cause in answers.REMEDIES)
    assert "sk-secret" not in json.dumps(row)
    limiter.close()


def remedies(kept, now_s):
    return {(row["upstream"], row["cause"]) for row in kept.rows(now_s) if row["remedy"]}


def test_a_trouble_is_told_until_the_same_server_gives_another_answer():
    kept = Answers()
    kept.count("http://a", "openai/gpt-5", 0, "unreachable", 10.0)
    kept.count("http://b", "openai/gpt-5", 401, "key", 11.0)
    kept.count("http://a", "openai/gpt-5", 429, "rate", 12.0)  # says nothing of it
    assert remedies(kept, 13.0) == {("a", "unreachable"), ("b", "key")}
    kept.count("http://a", "openai/gpt-5", 200, "answered", 14.0)
    assert remedies(kept, 15.0) == {("b", "key")}
    assert remedies(kept, 11.0 + answers.RECENT_S + 1) == set()


def test_the_kinds_are_bounded_and_then_other(monkeypatch):
    monkeypatch.setattr(answers, "ROWS_MAX", 3)
    kept = Answers()
    for n in range(9):
        kept.count("a", f"openai/m{n}", 200, "answered", 1.0)
    assert [(row["pool"], row["count"]) for row in kept.rows(2.0)][-1] == ("other", 6)
    assert len(kept.rows(2.0)) == 4


def test_processes_of_one_gateway_are_added_up():
    one, other = Answers(), Answers()
    one.count("a", "p", 0, "unreachable", 1.0)
    other.count("a", "p", 0, "unreachable", 5.0)
    (row,) = merged([{"answers": one.rows(6.0)}, {"answers": other.rows(6.0)}])["answers"]
    assert (row["count"], row["last_ago_s"]) == (2, 1.0)


@pytest.mark.parametrize(
    ("at_s", "cause", "told"), [(5.0, "answered", False), (5.0, "rate", True), (0.5, "answered", True)]
)
def test_a_trouble_is_over_when_another_process_is_answered(at_s, cause, told):
    one, other = Answers(), Answers()
    one.count("a", "p", 401, "key", 1.0)
    other.count("a", "p", 200, cause, at_s)
    other.count("a", "q", 200, "answered", 5.0)
    rows = merged([{"answers": one.rows(6.0)}, {"answers": other.rows(6.0)}])["answers"]
    assert [row["status"] for row in rows if row["remedy"]] == [401] * told
