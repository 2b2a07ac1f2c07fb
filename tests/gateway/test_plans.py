"""Logins to plans whose window is shut: who is kept waiting, who gets the provider's refusal, and who is told to come back."""

import json
import time

import pytest
from gateway_helpers import Stub, bearer, chat

from claude_events import OPEN, START, STOP, WORD
from odd_server import sse
from paceline.gateway import waiting
from paceline.gateway.waiting import PING
from waits import join, started, until

LOGIN, OTHER = "sk-ant-oat01-aa11", "sk-ant-oat01-bb22"
MESSAGES = "/anthropic/v1/messages"
TERMINAL = "claude-cli/2.1.332 (external, cli)"
PRINTS = "claude-cli/2.1.332 (external, sdk-cli)"
OLD = "claude-cli/2.1.197 (external, cli)"
UNIFIED = "anthropic-ratelimit-unified"
USAGE = {"input_tokens": 9, "output_tokens": 1}
STREAM = b"".join(sse(START, OPEN, WORD, STOP, name=True))


@pytest.fixture(autouse=True)
def notes_at_once(no_keys, monkeypatch):
    """The gateway begins to keep streams alive at once."""
    monkeypatch.setattr(waiting, "NOTES_FROM_S", 0.05)
    monkeypatch.setattr(waiting, "NOTES_EVERY_S", 0.05)


class Plan(Stub):
    """A plan whose window is shut from the first request on, and stays so beyond its stated end if ``stays`` says so."""

    def __init__(self):
        self.wait_s, self.ends_s, self.stays, self.asked = 0.9, 0.0, False, []

    def answer(self, _path, _headers, body):
        read = json.loads(body)
        now_s = time.monotonic()
        if not self.ends_s or (self.stays and self.ends_s <= now_s):
            self.ends_s = now_s + self.wait_s
        left_s = self.ends_s - now_s
        self.asked.append(read["model"])
        if left_s > 0:
            status, content = 429, {"type": "error", "error": {"type": "rate_limit_error", "message": "Mine."}}
            more = {"retry-after": f"{left_s:.3f}", f"{UNIFIED}-status": "rejected", f"{UNIFIED}-5h-status": "rejected"}
            more |= {f"{UNIFIED}-representative-claim": "five_hour", f"{UNIFIED}-5h-utilization": "1.0"}
        else:
            message = {"type": "message", "content": [{"type": "text", "text": "hi"}], "usage": USAGE}
            status, more, content = 200, {}, STREAM if read.get("stream") else message
        kind = "text/event-stream" if read.get("stream") else "application/json"
        return content, status, more | {"content-type": kind}


@pytest.fixture
def plan():
    return Plan()


@pytest.fixture
def running(serve, plan):
    """A gateway that gives up after 0.3 s, where a client cannot be kept waiting."""
    return serve(plan, retry={"max_retry_after_s": 0.3})


def ask(client, running, *, agent="curl/8", stream=True, login=LOGIN, model="claude-opus-5-5", **more):
    headers = bearer(login, user_agent=agent) | more
    return client.post(running.url + MESSAGES, json=chat(model=model, stream=stream), headers=headers)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_client_is_refused_for_a_window_that_another_process_has_seen_shut(serve, plan, client, tmp_path, restarts):
    """It would wait in silence for the next test of the window."""
    plan.wait_s, options = 7_200.0, {"retry": {"max_retry_after_s": 0.3}, "store": f"sqlite:{tmp_path / 'q.db'}"}
    first = serve(plan, **options)
    assert ask(client, first, stream=False).status_code == 429
    if restarts:
        first.stop()
    answer = ask(client, serve(plan, **options), stream=False)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (429, "false")
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert 7_100 < float(answer.headers["retry-after"]) <= 7_200
    assert len(plan.asked) == 1


def test_one_that_cannot_be_kept_waiting_gets_the_provider_s_refusal_at_once(running, plan, client):
    plan.wait_s = 2.5
    answers = []
    waits = started(lambda: answers.append(ask(client, running)))
    until(lambda: running.limiter.status()["plans"])
    # The terminal waits 750 s for a stream, and shows its user the end of the window.
    unfed = [{"agent": "curl/8", "stream": False}, {"agent": TERMINAL, "stream": True}]
    for one in unfed:
        for model in ("claude-opus-5-5", "claude-haiku-5-5"):  # the window is about all of the account
            answer = ask(client, running, model=model, **one)
            assert answer.status_code == 429
            assert answer.json()["error"]["message"] == "Mine."
            assert answer.headers[f"{UNIFIED}-5h-status"] == "rejected"
            assert 0 <= float(answer.headers["retry-after"]) <= 3
            assert answer.headers["x-should-retry"] == "false"
    assert plan.asked == ["claude-opus-5-5"]
    join(waits)  # none of them has stopped the account
    assert answers[0].status_code == 200
    assert [ask(client, running, **one).status_code for one in unfed] == [200, 200]


def test_the_first_of_them_gets_it_too_and_stops_nothing(running, plan, client):
    assert ask(client, running, stream=False).status_code == 429
    answer = ask(client, running)
    assert answer.content.startswith(PING), "it is kept alive until the window opens"
    assert answer.content.replace(PING, b"") == STREAM
    assert plan.asked == ["claude-opus-5-5"] * 2


@pytest.mark.parametrize(("agent", "subagent"), [(PRINTS, {}), (OLD, {}), (TERMINAL, {"x-claude-code-agent-id": "a1"})])
def test_claude_code_waits_in_its_place_and_is_told_to_come_back(running, plan, client, agent, subagent, monkeypatch):
    plan.stays = True
    monkeypatch.setattr(waiting, "SOON", 0.0005)
    monkeypatch.setattr(waiting, "FRESH_S", 0.0)
    answer = ask(client, running, agent=agent, **subagent)
    assert answer.status_code == 503  # 2.1.197 ends at each 429 to its login
    assert (answer.headers["x-should-retry"], answer.headers["retry-after"]) == ("true", "5")
    assert len(running.dispatch.held.places) == 1
    monkeypatch.setattr(waiting, "SOON", 0.9)
    plan.stays = False
    assert ask(client, running, agent=agent, **subagent).status_code == 200
    assert len(running.dispatch.held.places) == 0
