"""What coding agents send: long streams with tools, caches and betas, probes, encoded bodies, many at once."""

import gzip
import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from backports import zstd
from gateway_world import TEXT, TOOL, Gateway, fetch, provider

from waits import until

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
EPHEMERAL = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
CLAUDE_CODE = {
    "user-agent": "claude-cli/2.1.0 (external, cli)", "x-app": "cli", "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,fine-grained-tool-streaming-2025-05-14",
    "anthropic-dangerous-direct-browser-access": "true", "authorization": "Bearer oauth", "content-type": "application/json",
    "accept": "application/json", "accept-encoding": "gzip, deflate, br, zstd", "x-stainless-lang": "js",
    "x-stainless-retry-count": "0", "x-stainless-timeout": "600",
}  # fmt: skip
CODEX = {
    "user-agent": "codex_cli_rs/0.155.0 (Linux; x86_64)", "originator": "codex_cli_rs", "authorization": "Bearer k",
    "accept": "text/event-stream", "content-type": "application/json", "openai-beta": "responses=experimental",
    "session_id": "0199", "conversation_id": "0199", "chatgpt-account-id": "acc",
}  # fmt: skip
ENCODERS = {"identity": bytes, "gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress}


def claude_code(turns):
    """A turn of a long session: the system prompt and the last messages are cached, and there are 20 tools."""
    history = [{"role": "user", "content": [{"type": "text", "text": "Fix the bug." * 20}]}]
    for turn in range(turns):
        called = {"type": "tool_use", "id": f"toolu_{turn}", "name": "Read0", "input": {"path": f"src/{turn}.py"}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{turn}", "content": "import os\n" * 200}
        history += [{"role": "assistant", "content": [called]}, {"role": "user", "content": [result]}]
    history[-1]["content"][-1] |= EPHEMERAL
    return {
        "model": "claude-opus-4-8", "max_tokens": 32_000, "stream": True, "messages": history,
        "system": [{"type": "text", "text": "You are Claude Code. " * 300} | EPHEMERAL],
        "tools": [{"name": f"Read{n}", "description": "Reads a file. " * 50, "input_schema": SCHEMA} for n in range(20)],
        "thinking": {"type": "adaptive"}, "metadata": {"user_id": "user_1"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }  # fmt: skip


def codex(turns):
    """A turn of Codex: nothing is stored, so that all is sent again."""
    history = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix the bug." * 20}]}]
    for turn in range(turns):
        history.append({"type": "reasoning", "id": f"rs_{turn}", "summary": [], "encrypted_content": "gAAA" * 300})
        history.append({"type": "function_call", "call_id": f"c{turn}", "name": "shell", "arguments": '{"path": "a"}'})
        history.append({"type": "function_call_output", "call_id": f"c{turn}", "output": "import os\n" * 200})
    return {
        "model": "gpt-5", "instructions": "You are Codex. " * 300, "input": history, "stream": True, "store": False,
        "tools": [{"type": "function", "name": "shell", "strict": False, "parameters": SCHEMA}], "tool_choice": "auto",
        "parallel_tool_calls": True, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0199",
        "reasoning": {"effort": "high", "summary": "auto"},
    }  # fmt: skip


def post(root, path, body, headers):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return fetch(root, "POST", path, content, headers)


PING = b'event: ping\ndata: {"type": "ping"}\n\n'
"""What the gateway sends while a stream waits."""


@pytest.mark.parametrize(
    ("prefix", "target", "asked", "headers", "kept"),
    [
        (
            "/anthropic", "/v1/messages?beta=true", claude_code(100), CLAUDE_CODE,
            ("anthropic-beta", "anthropic-version", "authorization", "user-agent", "x-app", "x-stainless-timeout"),
        ),
        (
            "/openai", "/v1/responses", codex(100), CODEX,
            ("originator", "session_id", "openai-beta", "chatgpt-account-id", "accept"),
        ),
    ],
    ids=["Claude Code", "Codex"],
)  # fmt: skip
def test_a_long_turn(gateway, recorder, prefix, target, asked, headers, kept):
    direct = post(recorder.url, target, asked, headers)
    through = post(gateway.url, prefix + target, asked, headers)
    bodies = [answer.body.replace(PING, b"") for answer in (through, direct)]  # on a slow machine it waits
    assert (through.status, bodies[0]) == (200, bodies[1])
    assert TOOL["name"].encode() in through.body
    first, second = recorder.asked
    assert (second.body, second.target) == (first.body, first.target)
    assert {name: second.header(name) for name in kept} == {name: headers[name] for name in kept}


class TestClaudeCode:
    """``ANTHROPIC_BASE_URL=http://127.0.0.1:PORT/anthropic``."""

    @pytest.mark.parametrize("method", ["HEAD", "GET"])
    @pytest.mark.parametrize("path", ["/anthropic", "/anthropic/", "/anthropic/v1/models?limit=1000"])
    def test_probes_reach_the_provider(self, gateway, recorder, method, path):
        answer = fetch(gateway.url, method, path, headers=CLAUDE_CODE)
        assert (
            answer.status
            == fetch(recorder.url, method, path.removeprefix("/anthropic") or "/", headers=CLAUDE_CODE).status
        )
        assert recorder.asked[0].target == (path.removeprefix("/anthropic") or "/")

    def test_telemetry_is_passed_on(self, gateway, recorder):
        post(gateway.url, "/anthropic/api/event_logging/batch", {"events": []}, CLAUDE_CODE)
        assert recorder.asked[0].path == "/api/event_logging/batch"


class TestCodex:
    """``openai_base_url = "http://127.0.0.1:PORT/openai/v1"`` in ``config.toml``."""

    @pytest.mark.parametrize("encoding", ENCODERS)
    def test_encoded_requests(self, tmp_path, recorder, encoding):
        """They pass unchanged; their model and their tokens are read."""
        recorder.answer = lambda asked: provider(replace(asked, body=json.dumps(codex(50)).encode()))
        content = ENCODERS[encoding](json.dumps(codex(50)).encode())
        limits = {"openai/*": ["100 requests/min", "10M tokens/min"]}
        with Gateway(tmp_path, recorder.url, limits=limits) as gateway:
            answer = post(gateway.url, "/openai/v1/responses", content, CODEX | {"content-encoding": encoding})
            assert answer.status == 200
            assert recorder.asked[0].body == content
            assert recorder.asked[0].header("content-encoding") == encoding
            name = gateway.of_login("gpt-5")
            until(lambda: gateway.pool(name)["counts"] == {"granted": 1, "settled": 1})
            assert gateway.spent(name) == {"requests": 1, "tokens": 80}

    def test_a_bomb_costs_little(self, gateway, recorder):
        content = zstd.compress(bytes(2**30))
        answer = post(gateway.url, "/openai/v1/responses", content, CODEX | {"content-encoding": "zstd"})
        assert answer.status == 200


def test_a_team_of_agents(tmp_path, recorder):
    """200 turns of both at once, with 20 slots: streams in order, none lost, all charged."""
    limits = {
        "openai/*": ["10 concurrency", "100M tokens/min"],
        "anthropic/*": ["10 concurrency", "100M input_tokens/min"],
    }
    with Gateway(tmp_path, recorder.url, limits=limits) as gateway, ThreadPoolExecutor(100) as threads:

        def turn(number):
            if number % 2:
                return post(gateway.url, "/anthropic/v1/messages?beta=true", claude_code(10), CLAUDE_CODE)
            return post(gateway.url, "/openai/v1/responses", codex(10), CODEX)

        answers = list(threads.map(turn, range(200)))
        assert {answer.status for answer in answers} == {200}
        # A ping may pass before the start that it follows: the start is held, and the ping is not.
        assert len({tuple(e for e in answer.body.split(b"\n\n") if b"event: ping" not in e) for answer in answers}) == 2
        assert json.dumps(TEXT[1]).encode() in answers[1].body
        pools = gateway.get("/status")[0]["pools"]
        assert {pool["counts"]["settled"] for pool in pools.values()} == {100}
    assert len(recorder.asked) == 200
