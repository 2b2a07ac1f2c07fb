"""The usage of a chat stream, which the gateway asks for where a budget needs it, and its client does not get."""

import gzip
import json
import time

import pytest
from gateway_helpers import Stub, chat

from grids import some
from odd_server import SSE
from paceline.gateway import reading
from paceline.gateway.asked import Unasked, asking

PRICES = {"openai/gpt-5": {"input": 10.0, "output": 100.0}}
USAGE = {"prompt_tokens": 9, "completion_tokens": 4_000}
CHUNKS = (
    b'data: {"choices": [{"delta": {"content": "is \\",\\"usage\\":null\\""}, "finish_reason": null}], "usage": null}\n\n',
    b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}],"usage":null,"obfuscation":"x"}\n\n',
    b'data: {"choices": [], "usage": %s}\n\n' % json.dumps(USAGE).encode(),
    b"data: [DONE]\n\n",
)
PLAIN = (
    b'data: {"choices": [{"delta": {"content": "is \\",\\"usage\\":null\\""}, "finish_reason": null}]}\n\n'
    b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}],"obfuscation":"x"}\n\n'
    b"data: [DONE]\n\n"
)
REFUSED = b'{"error": {"message": "Extra inputs are not permitted", "type": "invalid_request_error"}}'


class Server(Stub):
    """Reports its usage if it is asked to, or refuses to be asked."""

    def __init__(self, refuses=200, wait_s=0.0):
        self.seen, self.refuses, self.wait_s = [], refuses, wait_s

    def answer(self, _path, _headers, body):
        self.seen.append(json.loads(body))
        time.sleep(self.wait_s)
        told = "stream_options" in self.seen[-1]
        if told and self.refuses != 200:
            return REFUSED, self.refuses
        return b"".join(CHUNKS) if told else PLAIN, 200, SSE


@pytest.fixture
def gateway(serve, keys):
    """Start a gateway before a server; returns a function that sends a chat with the key of alice, who has a budget, or of bob."""
    secrets = {"alice": keys.add("alice", limits=("1 usd/day",)), "bob": keys.add("bob")}

    def start(server, client):
        running = serve(server, limits={"*": "100k requests/min"}, prices=PRICES)

        def send(who, *, encoded=False, more=(), **fields):
            headers = {"authorization": f"Bearer {secrets[who]}", **dict(more)}
            body = json.dumps(chat(**fields)).encode()
            if encoded:
                headers["content-encoding"], body = "gzip", gzip.compress(body)
            return client.post(f"{running.url}/openai/v1/chat/completions", content=body, headers=headers)

        return send

    return start


def test_a_budget_asks_and_its_client_gets_what_it_has_asked_for(gateway, client):
    send = gateway(server := Server(), client)
    assert send("alice", stream=True).content == PLAIN
    assert send("alice", stream=True, stream_options={"include_usage": False}).content == PLAIN
    assert send("alice", stream=True, stream_options={"include_usage": True}).content == b"".join(CHUNKS)
    assert send("alice", stream=True).status_code == 429  # three times 0.40 USD
    assert send("bob", stream=True).content == PLAIN
    first, *_, last = server.seen
    assert first == chat(stream=True, stream_options={"include_usage": True})
    assert last == chat(stream=True)
    assert len(server.seen) == 4


def test_it_is_left_out_after_a_note_that_keeps_the_stream_alive(gateway, client, kept):
    send = gateway(Server(wait_s=0.1), client)
    notes, _, answer = send("alice", more=kept, stream=True).content.partition(b"data: ")
    assert notes.startswith(b":")
    assert b"data: " + answer == PLAIN


@pytest.mark.parametrize("status", [400, 422])
def test_a_server_that_refuses_the_field_gets_the_request_without_it(gateway, client, status):
    send = gateway(server := Server(status), client)
    got = [send("alice", stream=True, max_tokens=4_000) for _ in range(4)]
    assert [one.content for one in got[:3]] == [PLAIN] * 3
    assert got[3].status_code == 429  # the most is kept
    assert ["stream_options" in asked for asked in server.seen] == [True, False, False, False]


@pytest.mark.parametrize("encoded", some([False, True], True, mark=pytest.mark.long("starts a process")))
def test_a_body_that_another_process_reads_is_asked_for_too(gateway, client, monkeypatch, encoded):
    monkeypatch.setattr(reading, "LARGE", 10_000)
    send = gateway(server := Server(), client)
    text = {"messages": [{"role": "user", "content": "hi " * 5_000}]}
    for more in ({}, {"stream_options": {"include_usage": False}}):
        assert send("alice", encoded=encoded, stream=True, **text, **more).content == PLAIN
    assert [asked["stream_options"] for asked in server.seen] == [{"include_usage": True}] * 2


def test_any_cut_of_a_stream_gives_the_same():
    stream = b"".join(CHUNKS).replace(b"\n\n", b"\r\n\r\n")
    for at in range(len(stream)):
        unasked = Unasked()
        parts = [part for one in (stream[:at], stream[at:], b"") for part in unasked.feed(one)]
        assert b"".join(parts) == PLAIN.replace(b"\n\n", b"\r\n\r\n")


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b'{"stream": false}', b"[" * 100_000, b'{"stream": 1}'])
def test_what_is_no_stream_is_sent_as_it_is(body):
    assert asking(body) is None
