"""Requests of OpenAI's Responses API that name an earlier answer, or a conversation, in place of their messages."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

import paceline
from paceline.http.httpx import pace_transport

URL = "https://api.openai.com/v1/responses"
NEW = "What else? " * 30


class Responses(httpx2.BaseTransport):
    """The provider adds the earlier messages to each prompt, and caches all of it."""

    def __init__(self) -> None:
        self.whole: dict[str, int] = {}
        self.asked = 0

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        named = body.get("previous_response_id") or body.get("conversation") or ""
        before = self.whole.get(named, 0)
        tokens = before + (100 if before else 20_000)
        self.asked += 1
        name = f"resp_{self.asked}"
        self.whole[name] = self.whole[body.get("conversation") or name] = tokens + 50
        details = {"cached_tokens": before - 50 if before else 0}
        usage = {"input_tokens": tokens, "output_tokens": 50, "input_tokens_details": details}
        content = [{"type": "message", "content": [{"type": "output_text", "text": "So."}]}]
        answer = {"id": name, "object": "response", "status": "completed", "output": content, "usage": usage}
        if not body.get("stream"):
            return httpx2.Response(200, json=answer)
        begun = {"type": "response.created", "response": {**answer, "status": "in_progress", "usage": None}}
        ends = {"type": "response.completed", "response": answer}
        events = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in (begun, ends))
        return httpx2.Response(200, text=events, headers={"content-type": "text/event-stream"})


class Client:
    def __init__(self, **options: Any) -> None:
        self.limiter = paceline.Limiter({"openai/*": ["100M tokens/min", "10k requests/min"]}, **options)
        self.server = Responses()
        self.http = httpx2.Client(transport=pace_transport(self.limiter, self.server))
        self.last = ""

    def ask(self, **fields: Any) -> float:
        """The tokens that the request reserves."""
        body = {"model": "gpt-5.5", "input": NEW, "max_output_tokens": 50, **fields}
        answer = self.http.post(URL, json=body)
        self.last = f"resp_{self.server.asked}"
        return answer.extensions["paceline"].cost["tokens"]

    @property
    def cache(self) -> dict[str, Any]:
        [pool] = self.limiter.status()["pools"].values()
        return pool["cache"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_names_an_answer_reserves_its_prompt_too(stream):
    client = Client()
    client.ask(input="word " * 20_000, stream=stream)
    first = client.last
    for _ in range(5):
        before = 20_050 + 150 * (int(client.last[5:]) - 1)
        reserved = client.ask(previous_response_id=client.last, stream=stream)
        assert before + 100 < reserved < before + 500
    assert 20_150 < client.ask(previous_response_id=first) < 20_550  # another one that follows the first answer
    assert client.cache["expected"] > 0.4
    assert client.cache["lost_away_tokens"] == 0


def test_a_conversation_grows():
    client = Client()
    client.ask(conversation="conv_1", input="word " * 20_000)
    for turn in range(3):
        before = 20_050 + 150 * turn
        assert before + 100 < client.ask(conversation="conv_1") < before + 500


def test_what_the_provider_adds_is_no_error_of_the_estimate():
    client = Client()
    client.ask(input="word " * 20_000)
    plain = client.limiter.estimate("openai/gpt-5.5", {"input": NEW})["input_tokens"]
    for _ in range(60):
        client.ask(previous_response_id=client.last)
        client.ask(previous_response_id="resp_of_another_process")
    assert client.limiter.estimate("openai/gpt-5.5", {"input": NEW})["input_tokens"] < 1.5 * plain
