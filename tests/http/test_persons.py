"""Whose requests go first with a plan: those of a person at a terminal, who waits for the answer. The others go by turns of sessions."""

import asyncio
import json

import httpx
import pytest
from chats import attached

import paceline
from paceline import Limiter

CLAUDE, KEY, SESSION = "Bearer sk-ant-oat01-abc", "Bearer sk-ant-api03-abc", "0f0e0d0c-aaaa-bbbb-cccc-0123456789ab"
CODEX = "Bearer eyJh.eyJodHRwczovL2FwaS5vcGVuYWkuY29tL2F1dGgiOiB7fX0.x"
TERMINAL, PRINTS = "claude-cli/2.1.332 (external, cli)", "claude-cli/2.1.332 (external, sdk-cli)"
TUI, EXEC = (f"{name}/0.171.0 (Debian 12.0.0; x86_64) xterm ({name}; 0.171.0)" for name in ("codex-tui", "codex_exec"))
BODY = {"model": "claude-opus-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], "input": "x"}
USAGE = {"input_tokens": 9, "output_tokens": 9}
ANSWER = {"type": "message", "role": "assistant", "content": [], "stop_reason": "end_turn", "usage": USAGE}


def sent_by(agent, login=CLAUDE, **more):
    named = {name.replace("_", "-"): value for name, value in more.items()}
    return {"authorization": login, "user-agent": agent, **named}


def agent_named(name):
    return json.dumps({"agent_name": name})


@pytest.mark.parametrize(
    ("headers", "lane"),
    [
        (sent_by(TERMINAL), "interactive"),
        (sent_by(TERMINAL, x_claude_code_session_id=SESSION), "interactive"),
        (sent_by(TERMINAL, x_claude_code_agent_id="a1"), "default"),
        (sent_by(TERMINAL, x_claude_code_agent_id="a1", x_claude_code_session_id=SESSION), "session"),
        (sent_by(PRINTS), "default"),
        (sent_by(PRINTS, x_claude_code_session_id=SESSION), "session"),
        (sent_by("", x_claude_code_session_id=SESSION), "session"),
        (sent_by(TERMINAL, KEY, x_claude_code_session_id=SESSION), "default"),
        (sent_by(TUI, CODEX, session_id=SESSION, x_codex_turn_metadata=agent_named("/root")), "interactive"),
        (sent_by(TUI.replace("codex-tui", "codex_cli_rs"), CODEX, session_id=SESSION), "interactive"),
        (sent_by(TUI, CODEX, session_id=SESSION, x_codex_turn_metadata=agent_named("/root/reviewer")), "session"),
        (sent_by(EXEC, CODEX, session_id=SESSION, x_codex_turn_metadata=agent_named("/root")), "session"),
    ],
)  # fmt: skip
def test_a_terminal_of_a_login_is_interactive_and_any_other_client_is_one_of_the_sessions(headers, lane):
    limiter = Limiter(provider="anthropic")
    url = "https://api.anthropic.com/v1/messages"
    if headers["authorization"] == CODEX:
        url = "https://chatgpt.com/backend-api/codex/responses"
    refused = httpx.Response(429, headers={"retry-after": "0.01"}, json={"error": {}})
    answers = [refused, httpx.Response(200, json=ANSWER)]
    client = attached(limiter, lambda _: answers.pop(0), library=httpx, headers=headers)
    assert client.post(url, json=BODY).status_code == 200
    [pool] = limiter.status()["pools"].values()
    [found] = pool["waits"]
    assert found.partition(" ")[0] == lane
    assert SESSION not in found
    answers.append(httpx.Response(200, json=ANSWER))
    with paceline.lane("mine"):
        client.post(url, json=BODY)
    [pool] = limiter.status()["pools"].values()
    assert list(pool["waits"]) == [found, "mine"]


async def test_a_fan_out_of_one_session_leaves_another_one_its_turns():
    limiter, served = Limiter({"anthropic/*": "1 concurrency"}), []

    async def answer(request):
        served.append(request.headers["x-claude-code-session-id"])
        await asyncio.sleep(0)
        return httpx.Response(200, json=ANSWER)

    async with limiter.attach(httpx.AsyncClient(transport=httpx.MockTransport(answer))) as client:

        async def ask(session, agent):
            more = {"x_claude_code_agent_id": agent} if agent else {}
            headers = sent_by(PRINTS, x_claude_code_session_id=session, **more)
            await client.post("https://api.anthropic.com/v1/messages", json=BODY, headers=headers)

        await asyncio.gather(*(ask("many", f"a{n}") for n in range(20)), *(ask("one", "") for _ in range(3)))
    last = max(n for n, session in enumerate(served) if session == "one")
    assert last <= 6  # by turns, after those that went at once
