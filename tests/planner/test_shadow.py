"""Shadow: clients are not held, see the provider's own answers, and each request is a line without a prompt or a key."""

import json
import logging
import os

import httpx2
import openai
import pytest

import paceline
from paceline.config import Config
from paceline.core.results import QuotaError
from paceline.testing import Emulator

PROMPT = [{"role": "user", "content": "the secret of the prompt"}]


@pytest.fixture
def log(tmp_path):
    return tmp_path / "traffic.jsonl"


def lines(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_an_attached_client_is_not_held_and_sees_the_providers_refusals(log):
    with Emulator(limits={"gpt-5": "3 requests/min"}) as emulator:
        limiter = paceline.Limiter({"gpt-5": "1 requests/hour"}, shadow=log)
        client = openai.OpenAI(base_url=f"{emulator.base_url}/v1", api_key="sk-the-key", max_retries=0)
        limiter.attach(client, provider="openai")
        for _ in range(3):
            client.chat.completions.create(model="gpt-5", messages=PROMPT, max_tokens=20)
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="gpt-5", messages=PROMPT, max_tokens=20)
        assert "x-paceline" not in caught.value.response.headers  # the provider's own, not repeated and not changed
        assert emulator.tally()["refused"] == {"rate": 1}
    found = lines(log)
    assert [line["status"] for line in found] == [200, 200, 200, 429]
    assert found[0]["pool"] == "openai/gpt-5"
    assert found[0]["max_output_tokens"] == 20
    assert 0 < found[0]["output_tokens"] <= 20
    assert "secret" not in log.read_text()
    assert "sk-the-key" not in log.read_text()


async def test_a_stream_is_logged_at_its_end(log):
    with Emulator(limits={"*": "100 requests/min"}) as emulator:
        client = openai.AsyncOpenAI(base_url=f"{emulator.base_url}/v1", api_key="k", max_retries=0)
        paceline.Limiter({"*": "1 requests/hour"}, shadow=log).attach(client, provider="openai")
        stream = await client.responses.create(model="gpt-5", input="hello", max_output_tokens=30, stream=True)
        assert lines(log) == []
        events = [event async for event in stream]
        usage = events[-1].response.usage
        (line,) = lines(log)
        assert (line["input_tokens"], line["output_tokens"]) == (usage.input_tokens, usage.output_tokens)
        await client.close()


def test_a_connection_that_breaks_is_logged_and_raised(log):
    def handler(_):
        raise httpx2.ConnectError("refused")

    client = httpx2.Client(transport=httpx2.MockTransport(handler), base_url="https://api.openai.com")
    paceline.Limiter({"*": "1 requests/hour"}, shadow=log).attach(client)
    with pytest.raises(httpx2.ConnectError):
        client.post("/v1/chat/completions", json={"model": "gpt-5", "messages": PROMPT})
    assert lines(log)[0]["status"] == 0


def test_it_is_said_and_a_wrong_file_is_an_error(log, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "paceline"):
        paceline.Limiter({"*": "1 requests/s"}, shadow=log)
    assert f"each is logged to {log}" in caplog.text
    with pytest.raises(QuotaError, match="cannot be written"):
        paceline.Limiter({"*": "1 requests/s"}, shadow=tmp_path / "no" / "file")


def test_the_file_is_for_its_owner_alone(log):
    paceline.Limiter({"*": "1 requests/s"}, shadow=log)
    if os.name == "posix":
        assert log.stat().st_mode & 0o077 == 0


def test_a_setting_for_programs_and_gateways_and_not_for_runs(log):
    config = Config.load(environ={}, given={"shadow": str(log), "limits": {}})
    assert config.arguments(patient=False)["shadow"] == str(log)
    assert config.arguments()["shadow"] is None
