"""niquests: its fork of urllib3 takes urllib3's place, so that its sync sessions are paced; its async ones are announced."""

import asyncio
import socket

import niquests
import pytest
from harness import BUSY, KEY, MESSAGES, counts, crowd_row, spent

import paceline
from paceline.http import unpaced

ASK = {"model": "m", "messages": MESSAGES, "max_tokens": 40}


def test_a_crowd_is_never_refused(paceline_emulator):
    def calls(world):
        url = f"{world.base_url}/v1/chat/completions"
        return lambda: niquests.post(url, json=ASK, headers=KEY).raise_for_status(), None

    crowd_row(paceline_emulator, "niquests", "sync; async sessions are announced", "openai/m", calls)


def test_streams_and_sessions_that_multiplex(paceline_emulator):
    world = paceline_emulator(limits={"m": BUSY})
    limiter = paceline.Limiter({"openai/*": BUSY})
    url = f"{world.base_url}/v1/chat/completions"
    with paceline.instrument(limiter, provider="openai"), niquests.Session(multiplexed=True) as session:
        answers = [session.post(url, json=ASK, headers=KEY) for _ in range(3)]
        session.gather()
        assert [answer.status_code for answer in answers] == [200, 200, 200]
        ask = ASK | {"stream": True, "stream_options": {"include_usage": True}}
        with niquests.post(url, json=ask, headers=KEY, stream=True) as stream:
            assert b"[DONE]" in b"".join(stream.iter_content(1_000))
    assert counts(limiter, "openai/m") == {"granted": 4, "settled": 4}
    assert spent(limiter, "openai/m")["tokens"] == 400


def test_an_async_session_is_announced(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("127.0.0.1", 9))])
    monkeypatch.setattr(unpaced, "kinds", {})

    async def ask():
        async with niquests.AsyncSession(resolver="system://") as session:
            await session.post("https://api.openai.com/v1/chat/completions", json=ASK)

    with paceline.instrument(paceline.Limiter()), pytest.raises(niquests.ConnectionError):
        asyncio.run(ask())
    [found] = unpaced.rows()
    assert (found["host"], found["kind"]) == ("api.openai.com", "POST /v1/chat/completions by niquests")
