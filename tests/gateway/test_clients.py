"""What real clients have shown; ``tests/frameworks/gateway`` has the clients themselves."""

import asyncio
import gzip
import json

import httpx2
import pytest
from gateway_helpers import CHAT, Stub, bearer, chat, stub
from test_gateway import ANSWER, Odd

from waits import started, until

NARROW = {"*": "60 requests/min burst 1"}


class Server(Stub):
    """Answers each request with the next of some answers."""

    def __init__(self, *answers):
        self.answers, self.seen = list(answers), []

    def answer(self, _path, headers, body):
        self.seen.append((headers, body))
        status, content = self.answers.pop(0) if self.answers else (200, b"{}")
        return content, status


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (CHAT, {"type", "error"}),
        ("/openai/v1/responses", {"type", "error", "sequence_number", "code", "message", "param"}),
    ],
)
async def test_an_error_that_is_no_json_becomes_an_event(serve, kept, path, expected):
    root = serve(Server((200, b"{}"), (502, b"<html>")), limits=NARROW).url
    reader, writer = await asyncio.open_connection(*root.removeprefix("http://").split(":"))
    for body in (chat(), chat(stream=True)):
        content = json.dumps(body).encode()
        lines = {"host": "127.0.0.1", "content-length": len(content), **kept}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + content)
    received = await reader.read()
    writer.close()
    assert not received.endswith(b"0\r\n\r\n")  # it breaks off
    event = json.loads(received.rpartition(b"data: ")[2].partition(b"\n")[0])
    assert set(event) == expected
    assert "the server answered with status 502" in event["error"]["message"]


@pytest.mark.parametrize(
    ("encoding", "content", "pool"),
    [
        ("gzip", gzip.compress(json.dumps(chat()).encode(), mtime=0), "openai/gpt-5"),
        ("gzip", b"\x1f\x8bno", "openai/unknown"),
        ("br", b"no", "openai/unknown"),
    ],
)
def test_an_encoded_request_passes_unchanged_and_is_read(serve, client, encoding, content, pool):
    running = serve(server := Server())
    client.post(running.url + CHAT, content=content, headers={"content-encoding": encoding})
    assert running.pool(pool)["counts"]["granted"] == 1
    headers, body = server.seen[0]
    assert (headers["content-encoding"], body) == (encoding, content)


def test_a_web_socket_is_refused(serve, client):
    """Codex sends requests after a 426; after other errors it tries again first."""
    headers = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    assert client.get(serve(server := Server()).url + "/openai/v1/responses", headers=headers).status_code == 426
    assert server.seen == []


@pytest.mark.parametrize(
    ("keyed", "lanes"), [(False, [("calm", 1), ("heavy", 0)]), (True, [("client", 0), ("other", 0)])]
)
def test_a_client_chooses_its_lane_and_priority_unless_its_key_is_its_lane(serve, keys, client, keyed, lanes):
    own = [keys.add(name) if keyed else "any" for name in ("client", "other")]
    running = serve(Odd([ANSWER]), limits={"*": "1 requests/day"})
    assert client.post(running.url + CHAT, json=chat(), headers=bearer(own[0])).status_code == 200
    for waiting, lane in enumerate(("heavy", "calm")):
        chosen = {"x-paceline-lane": lane, "x-paceline-priority": str(waiting)}
        started(httpx2.post, running.url + CHAT, json=chat(), headers=bearer(own[waiting], **chosen))
        until(lambda: running.pool()["waiting"] > waiting)  # noqa: B023
    queue = running.limiter.pacer.pools.scheduler("openai/gpt-5").pool.queue
    assert [(one.lane.name, one.lane.priority) for one in queue.peek(2)] == lanes
    running.gateway.drain()


NAMES = ("openai", "anthropic", "gemini", "cohere", "bedrock", "ollama")


def at_the_top(value):
    return value["error"]["code"], value["message"]


def of_google(value):
    assert isinstance(value["error"]["code"], int)
    return value["error"]["status"], value["error"]["message"]


def as_text(value):
    return None, value["error"]


@pytest.mark.parametrize(
    ("path", "read"),
    [
        (CHAT, lambda value: (value["error"]["code"], value["error"]["message"])),
        ("/anthropic/v1/messages", lambda value: (value["error"]["code"], value["error"]["message"])),
        ("/cohere/v2/chat", at_the_top),
        ("/bedrock/model/gpt-5/converse", at_the_top),
        ("/gemini/v1beta/models/gpt-5:generateContent", of_google),
        ("/ollama/api/chat", as_text),
    ],
)
def test_an_error_has_the_form_of_the_api(serve, keys, client, path, read):
    secret = keys.add("alice", models=("gpt-5",))
    with stub(Server()) as there:
        upstreams = {name: {"base_url": there, "key_env": ""} for name in NAMES}
        root = serve(there, upstreams=upstreams, limits={"*": "1 requests/min"}).url
        fits, unknown = bearer(secret) | {"x-paceline-timeout": "0"}, bearer("pk-unknown")
        body = {"model": "gpt-5", "messages": chat()["messages"], "contents": [{"parts": [{"text": "Hi"}]}]}
        first = client.post(root + path, json=body, headers=fits)  # "{}", which is no answer
        assert (first.status_code, first.headers["x-paceline"]) == (502, "unreadable")
        assert "paceline" in read(first.json())[1]
        refused = [
            (401, "key", client.post(root + path, json=body, headers=unknown)),
            (429, "timeout", client.post(root + path, json=body, headers=fits)),
            (403, "model", client.post(root + path.replace("gpt-5", "o"), json={**body, "model": "o"}, headers=fits)),
        ]
    for status, word, answer in refused:
        code, message = read(answer.json())
        assert (answer.status_code, answer.headers["x-paceline"]) == (status, word)
        assert code in (None, f"paceline_{word}")
        assert message.startswith("paceline: ")


@pytest.mark.parametrize(
    ("server", "path", "error"),
    [
        ("openai", CHAT, {"code": 400}),  # without a message
        ("gemini", "/gemini/v1beta/models/gpt-5:generateContent", {"code": 400, "message": "no", "status": "INVALID"}),
    ],
)
def test_a_server_s_error_in_a_200_keeps_its_fields(serve, client, server, path, error):
    with stub(Server((200, json.dumps({"error": error}).encode()))) as there:
        root = serve(there, upstreams={server: {"base_url": there, "key_env": ""}}).url
        answer = client.post(root + path, json=chat() | {"contents": [{"parts": [{"text": "Hi"}]}]})
    assert (answer.status_code, answer.json()["error"]) == (400, error)
