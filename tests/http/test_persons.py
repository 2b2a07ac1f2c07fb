"""Whose requests go first with a plan: those of a person at a terminal, who waits for the answer."""

import httpx
import pytest

import paceline
from paceline import Limiter

LOGIN, KEY = "Bearer sk-ant-oat01-abc", "Bearer sk-ant-api03-abc"
TERMINAL, PRINTS = "claude-cli/2.1.332 (external, cli)", "claude-cli/2.1.332 (external, sdk-cli)"
BODY = {"model": "claude-opus-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
USAGE = {"input_tokens": 9, "output_tokens": 9}
ANSWER = {"type": "message", "role": "assistant", "content": [], "stop_reason": "end_turn", "usage": USAGE}


@pytest.mark.parametrize(
    ("headers", "lane"),
    [
        ({"authorization": LOGIN, "user-agent": TERMINAL}, "interactive"),
        ({"authorization": LOGIN, "user-agent": TERMINAL, "x-claude-code-agent-id": "a1"}, "default"),
        ({"authorization": LOGIN, "user-agent": PRINTS}, "default"),
        ({"authorization": LOGIN}, "default"),
        ({"authorization": KEY, "user-agent": TERMINAL}, "default"),
    ],
)
def test_a_terminal_of_a_login_is_interactive(headers, lane):
    limiter = Limiter(provider="anthropic")
    answers = [
        httpx.Response(429, headers={"retry-after": "0.01"}, json={"error": {}}),
        httpx.Response(200, json=ANSWER),
    ]
    transport = httpx.MockTransport(lambda _: answers.pop(0))
    client = limiter.attach(httpx.Client(transport=transport, headers=headers))
    assert client.post("https://api.anthropic.com/v1/messages", json=BODY).status_code == 200
    [pool] = limiter.status()["pools"].values()
    assert list(pool["waits"]) == [lane]
    answers.append(httpx.Response(200, json=ANSWER))
    with paceline.lane("mine"):
        client.post("https://api.anthropic.com/v1/messages", json=BODY)
    [pool] = limiter.status()["pools"].values()
    assert list(pool["waits"]) == [lane, "mine"]
