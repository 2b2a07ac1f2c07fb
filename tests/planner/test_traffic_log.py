"""The traffic log, each line a request without a prompt or a key; in shadow clients are not held, see the provider's own answers."""

import contextlib
import json
import logging
import os
from functools import partial

import httpx2
import openai
import pytest
from tests.planner.logs import read

import paceline
from paceline.config import Config
from paceline.core.results import SettingsError
from paceline.planner.logs import work_of
from paceline.testing import Emulator
from waits import run_all

PROMPT = [{"role": "user", "content": "the secret of the prompt"}]


@pytest.fixture
def connect():
    """Attach a client of openai, closed at the end, to a limiter."""
    with contextlib.ExitStack() as stack:

        def connect(limiter, emulator, key):
            client = openai.OpenAI(base_url=f"{emulator.base_url}/v1", api_key=key, max_retries=0)
            return limiter.attach(stack.enter_context(client), provider="openai")

        yield connect


@pytest.fixture
def log(tmp_path):
    return tmp_path / "traffic.jsonl"


def lines(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_an_attached_client_is_not_held_and_sees_the_providers_refusals(log, connect):
    with Emulator(limits={"gpt-5": "3 requests/min"}) as emulator:
        client = connect(paceline.Limiter({"gpt-5": "1 requests/hour"}, shadow=log), emulator, "sk-the-key")
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
    assert f"logs every request to {log}" in caplog.text
    with pytest.raises(SettingsError, match="cannot be written"):
        paceline.Limiter({"*": "1 requests/s"}, shadow=tmp_path / "no" / "file")


def test_the_file_is_for_its_owner_alone(log):
    paceline.Limiter({"*": "1 requests/s"}, shadow=log)
    if os.name == "posix":
        assert log.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(("name", "of_runs"), [("shadow", False), ("traffic_log", True)])
def test_a_setting_for_programs_and_gateways_and_one_for_runs_too(log, name, of_runs):
    config = Config.load(environ={}, given={name: str(log), "limits": {}})
    assert config.arguments(patient=False)[name] == str(log)
    assert config.arguments()[name] == (str(log) if of_runs else None)


class TestHeld:
    """A log of requests that are held as usual."""

    def test_a_client_is_held_and_logged_from_its_arrival_on(self, log, connect):
        with Emulator(limits={"gpt-5": "600 requests/min"}) as emulator:
            limiter = paceline.Limiter({"gpt-5": "200 requests/min burst 1"}, traffic_log=log)
            client = connect(limiter, emulator, "sk-the-key")
            asked = {"model": "gpt-5", "messages": PROMPT, "max_tokens": 200}
            run_all([partial(client.chat.completions.create, **asked)] * 4)
            assert emulator.tally()["refused"] == {}
        found = lines(log)
        assert [line["status"] for line in found] == [200] * 4
        assert all(0 < line["output_tokens"] < line["max_output_tokens"] == 200 for line in found)  # used, and charged
        assert all(line["input_tokens"] > 0 for line in found)
        starts = [line["start"] for line in found]
        assert max(starts) - min(starts) < 0.6  # the last one is sent after 0.9 s
        assert "secret" not in log.read_text()
        assert "sk-the-key" not in log.read_text()

    def test_errors_have_their_status_and_are_left_out_of_a_replay(self, log, connect):
        with Emulator(limits={"*": "600 requests/min"}, valid_key="sk-right") as emulator:
            client = connect(paceline.Limiter({"*": "600 requests/min"}, traffic_log=log), emulator, "sk-wrong")
            with pytest.raises(openai.AuthenticationError):
                client.chat.completions.create(model="gpt-5", messages=PROMPT)
        (line,) = lines(log)
        assert (line["status"], line["model"], line["pool"]) == (401, "gpt-5", "openai/gpt-5")
        (one,) = read(log).requests
        assert (one.failed, one.refused, one.request.model) == (True, False, "openai/gpt-5")
        with pytest.raises(SettingsError, match="served none"):
            work_of([one])

    def test_a_line_that_a_full_disk_has_cut_is_left_out(self, log):
        for _ in range(2):
            limiter = paceline.Limiter({"jobs": "100 requests/s"}, traffic_log=log)
            limiter.acquire("jobs").wait().settle()
            limiter.close()
            log.write_text(log.read_text()[:-30])
        limiter = paceline.Limiter({"jobs": "100 requests/s, 1M tokens/min"}, traffic_log=log)
        limiter.acquire("jobs", tokens=7).wait().settle()
        assert len(log.read_text().splitlines()) == 3
        assert [one.request.input_tokens for one in read(log).requests] == [7]

    def test_with_shadow_it_is_an_error(self, log):
        with pytest.raises(SettingsError, match="both set"):
            paceline.Limiter({"*": "1 requests/s"}, shadow=log, traffic_log=log)
