"""Agents with one system prompt, whose turns come after their own part of the prompt has expired."""

from __future__ import annotations

import json
import logging

import httpx2
import pytest

import paceline
from paceline.http.httpx import pace_transport
from paceline.testing import ManualClock

SYSTEM, LIFE_S = 15_000, 300
OWN = {"s": 1_000, "l": 45_000}
"""The tokens of a short conversation and of a long one."""


class Claude(httpx2.BaseTransport):
    """Caches the system prompt, and the rest of each conversation, for five minutes after each use."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.used_s = clock, dict[str, float]()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        name = json.loads(request.content)["messages"][0]["content"]
        own, read = OWN[name[0]], 0
        for part, tokens in (("system", SYSTEM), (name, own)):
            now_s = self.clock.now_ns() / 1e9
            read += tokens if now_s < self.used_s.get(part, -LIFE_S) + LIFE_S else 0
            self.used_s[part] = now_s
        usage = {"cache_read_input_tokens": read, "cache_creation_input_tokens": SYSTEM + own - read}
        usage |= {"input_tokens": 10, "output_tokens": 5}
        content = [{"type": "text", "text": "So."}]
        return httpx2.Response(200, json={"content": content, "stop_reason": "end_turn", "usage": usage})


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_what_is_lost_beside_a_system_prompt_that_is_kept(clock, caplog):
    limiter = paceline.Limiter({"anthropic/*": "10M input_tokens/min"}, clock=clock)
    client = httpx2.Client(transport=pace_transport(limiter, Claude(clock)))
    talks: dict[str, list[dict[str, str]]] = {}

    def turn(name: str) -> None:
        messages = talks.setdefault(name, [{"role": "user", "content": name}])
        body = {"model": "claude-sonnet-5-5", "max_tokens": 9, "system": "word " * SYSTEM, "messages": messages}
        client.post("https://api.anthropic.com/v1/messages", json=body)
        messages += [{"role": "assistant", "content": "So."}, {"role": "user", "content": f"On, {len(messages)}."}]

    with caplog.at_level(logging.WARNING, "paceline"):
        for step in range(37):
            turn(f"short {step}")  # a new conversation: it keeps the system prompt
            if step % 6 == 0:
                turn("long")
            clock.advance(100)
    [pool] = limiter.status()["pools"].values()
    assert (pool["cache"]["lost_away_tokens"], pool["cache"]["lost_waiting_tokens"]) == (6 * OWN["l"], 0)
    [line] = [text for text in caplog.messages if "ttl" in text]
    assert line.startswith("anthropic/claude-sonnet-5-5: 225000 tokens in the last hour were cached again")
