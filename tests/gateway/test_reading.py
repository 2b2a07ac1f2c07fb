"""Large bodies are read in a process of its own, as they would be in this one."""

import asyncio
import gzip
import json
import signal
import sys
from contextlib import suppress

import pytest
from test_gateway import Odd

from grids import some
from paceline.gateway import incoming, reading
from paceline.gateway.errors import RequestError
from paceline.gateway.keys import ClientKey, KeySecret
from paceline.gateway.reading import BodyReader, Seen, Task, is_large, look
from paceline.providers.generic import Generic
from paceline.providers.registry import provider_named

CHAT = "/v1/chat/completions"
KEY = ClientKey("alice", KeySecret("0" * 64), "", models=("good",))
LOOPS = [asyncio.new_event_loop]
with suppress(ImportError):
    import uvloop

    LOOPS.append(uvloop.new_event_loop)
BODY = {"model": "good", "max_tokens": 7, "messages": [{"role": "user", "content": "hi " * 500}], "stream": True}


@pytest.fixture
async def reader():
    reader = BodyReader()
    yield reader
    await reader.close()


def task(provider, path=CHAT, key=KEY):
    return Task(((provider, {}),), "", path, "", [], b"identity", key)


def at_host():
    return provider_named("azure").at_host("eastus.openai.azure.com")


async def test_another_process_reads_the_same(reader):
    asked = [
        (provider_named("openai"), CHAT),
        (at_host(), CHAT),
        (provider_named("cohere"), "/v2/embed"),
        (provider_named("openrouter"), "/api" + CHAT),
        (provider_named("my-own-server"), CHAT),
        (provider_named("openai"), "/v1/models"),
    ]

    body = json.dumps(BODY).encode()
    seen = await asyncio.gather(*(reader.read("", task(*one, None), body) for one in asked))
    described = [provider.describe(path, BODY) for provider, path in asked]
    assert [one.calls for one in seen] == [() if call is None else (call,) for call in described]
    assert [one.refusal for one in seen] == [None] * len(asked)


def test_a_request_is_described_once_for_all_accounts_of_an_api():
    members = [("openai", {}), ("openai@eu", {}), ("openai@us", {"good": "own"}), ("groq", {}), ("openai@asia", {})]
    servers = tuple((provider_named(name), models) for name, models in members)
    calls = look(Task(servers, "all", CHAT, "", [], b"identity", None), json.dumps(BODY).encode(), sent=True).calls
    assert [(call.provider, call.model) for call in calls[2:4]] == [("openai@us", "own"), ("groq", "good")]
    assert calls[0] is calls[1] is calls[4]


def test_without_another_process_a_large_body_is_read_here(serve, client, monkeypatch):
    for module in (reading, incoming):
        monkeypatch.setattr(module, "LARGE", 1_000)
    monkeypatch.setattr(sys, "executable", "")
    running = serve(Odd())
    body = gzip.compress(json.dumps({"max_tokens": 7, "messages": ["x" * 10_000], "model": "late"}).encode())
    client.post(f"{running.url}/openai{CHAT}", content=body, headers={"content-encoding": "gzip"})
    assert running.pool("openai/late")["counts"]["granted"] == 1


def test_a_provider_that_another_process_does_not_know():
    class Own(Generic):
        pass

    assert not task(Own("openai")).is_portable
    assert task(provider_named("groq")).is_portable


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="stops a process")
@pytest.mark.parametrize("loops", some(LOOPS, LOOPS[0], mark=pytest.mark.long("starts a process again")))
def test_a_body_that_takes_too_long_or_ends_the_process(monkeypatch, loops):
    async def read():
        reader, asked = BodyReader(), task(provider_named("openai"))
        try:
            with monkeypatch.context() as patch:
                patch.setattr(reading, "READ_S", 0.0)
                with pytest.raises(RequestError) as error:
                    await reader.read("", asked, b"{}")
                assert error.value.status == 413
            assert (await reader.read("", asked, b"{}")).calls
            reader._process.send_signal(signal.SIGSTOP)
            under_way = asyncio.create_task(reader.read("", asked, b"{}" * 2**20))
            while not reader._process.stdin.transport.get_write_buffer_size():
                await asyncio.sleep(0)  # until it has begun, and its pipe is full
            for _ in range(2):  # in the middle of a body, and without any
                reader._process.kill()
                await reader._process.wait()
                if under_way is not None:
                    with pytest.raises(RequestError, match="send it again"):
                        await under_way
                    under_way = None
                assert (await reader.read("", asked, b"{}")).calls
        finally:
            await reader.close()

    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(read())


async def test_the_bodies_of_one_key_wait_for_each_other_and_those_of_another_for_one(reader, monkeypatch):
    order = []

    async def exchange(_process, _task, body):
        order.append(body)
        await asyncio.sleep(0)
        return Seen(())

    monkeypatch.setattr(reading, "_exchange", exchange)
    asked = task(provider_named("openai"))
    sent = zip("aaaba", (b"1", b"2", b"3", b"other", b"4"), strict=True)
    await asyncio.gather(*(reader.read(owner, asked, body) for owner, body in sent))
    assert order == [b"1", b"other", b"2", b"3", b"4"]


def test_what_is_large():
    assert not is_large(b"x" * reading.LARGE)
    assert is_large(b"x" * (reading.LARGE + 1))
    assert not is_large(b"1," * 10_000)
    assert is_large(b"1," * 2**18)


def test_nothing_is_read_of_what_is_no_post(serve, client, monkeypatch):
    monkeypatch.setattr(incoming, "look", pytest.fail)
    running = serve(odd := Odd())
    assert client.put(f"{running.url}/openai/v1/files/x", json=["a"]).status_code == 200
    assert odd.seen[0][-1] == b'["a"]'
