"""What came of each attempt, as the gateway counts it: also of requests that cost nothing, and of answers that break off."""

import json
import socket
from contextlib import nullcontext

import httpx2
import pytest
from attack_helpers import raw_server
from gateway_helpers import Stub, chat, stub

from waits import until

CHUNK = b'data: {"object": "chat.completion.chunk", "choices": [{"delta": {"content": "hi"}}]}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
HEAD += b"%x\r\n%b" % (len(CHUNK), CHUNK)


def rows(running):
    return {(row["pool"], row["status"], row["cause"]): row["count"] for row in running.limiter.status()["answers"]}


@pytest.mark.parametrize("end", [b"", b"\r\n0\r\n\r\n"], ids=["connection", "stream"])
def test_an_answer_that_breaks_off_is_told_and_counted(serve, client, tmp_path, caplog, end):
    with raw_server(HEAD + end, then=socket.socket.close) as server:
        running = serve(server.url, access_log=tmp_path / "access")
        with pytest.raises(httpx2.HTTPError):
            client.post(f"{running.url}/v1/chat/completions", json=chat(stream=True))
        until(lambda: ("openai/gpt-5", 200, "broken") in rows(running))
    assert rows(running)["openai/gpt-5", 200, "answered"] == 1
    assert "openai: an answer broke off:" in caplog.text
    until((tmp_path / "access").read_text)
    assert json.loads((tmp_path / "access").read_text())["whole"] is False


@pytest.mark.parametrize(("length", "whole"), [(4, True), (9, False)])
def test_a_file_that_breaks_off_is_told(serve, client, tmp_path, length, whole):
    head = b"HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\ncontent-length: %d\r\n\r\nID3." % length
    with raw_server(head, then=socket.socket.close) as server:
        running = serve(server.url, access_log=tmp_path / "access")
        with nullcontext() if whole else pytest.raises(httpx2.HTTPError):
            client.get(f"{running.url}/v1/files/file-1/content")
        until((tmp_path / "access").read_text)
    assert json.loads((tmp_path / "access").read_text()).get("whole", True) is whole


def test_a_request_that_costs_nothing_is_counted_by_its_server(serve, emulator, client, nowhere):
    running = serve(nowhere)
    assert client.get(f"{running.url}/v1/models").status_code == 502
    assert rows(running) == {("openai", 0, "unreachable"): 1}
    running = serve(emulator.base_url)
    assert client.get(f"{running.url}/v1/models").status_code == 200
    assert rows(running) == {("openai", 200, "answered"): 1}


@pytest.mark.parametrize(
    ("status", "body", "kind", "cause"),
    [
        (429, b'{"error": {"code": "insufficient_quota", "message": "You exceeded your quota"}}', "application/json", "money"),
        (429, b'{"error": {"code": "rate_limit_exceeded", "message": "slow"}}', "application/json", "rate"),
        (401, b'{"error": {"code": "invalid_api_key"}}', "application/json", "key"),
        (500, b"", "text/plain", "server"),
        (200, b"<!doctype html><p>welcome", "text/html; charset=utf-8", "unreadable"),
        (200, b"<html>", "application/json", "unreadable"),
        (200, b"", "application/json", "unreadable"),
        (200, b' {"object": "list", "data": []}', "application/json", "answered"),
    ],
)  # fmt: skip
def test_an_answer_that_costs_nothing_has_its_cause(serve, client, status, body, kind, cause):
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    with raw_server(head.encode() + body, then=socket.socket.close) as server:
        running = serve(server.url)
        answered = client.get(f"{running.url}/v1/models")
        told = (401, "paceline_upstream_key") if cause == "key" else (status, body)  # of the gateway's own key
        assert (answered.status_code, answered.json()["error"]["code"] if cause == "key" else answered.content) == told
        assert rows(running) == {("openai", status, cause): 1}


@pytest.mark.parametrize(("method", "job"), [("GET", "resp_1"), ("GET", "resp%5F1"), ("POST", "resp_1/cancel")])
def test_an_answer_in_the_background_is_charged_when_it_is_asked_for(serve, client, method, job):
    """As held it would fill the budget, and nothing would go beside it."""
    whole = {"id": "resp_1", "object": "response", "status": "completed", "output": []}
    whole["usage"] = {"input_tokens": 9, "output_tokens": 900, "total_tokens": 909}
    server = Stub(lambda path, _headers, _body: (whole if "_1" in path else whole | {"status": "queued"},))
    prices = {"openai/gpt-5": {"input": 10.0, "output": 100.0}}
    body = {"model": "gpt-5", "input": "hi", "background": True, "max_output_tokens": 20_000}
    with stub(server) as url:
        running = serve(url, limits={"*": "100k requests/min"}, prices=prices, budget="1 usd/day")
        for _ in range(3):
            assert client.post(f"{running.url}/openai/v1/responses", json=body).json()["status"] == "queued"
            assert client.request(method, f"{running.url}/openai/v1/responses/{job}").json() == whole
        until(lambda: _spent(running) == pytest.approx(3 * (9 * 10 + 900 * 100) / 1e6))  # read behind its client


def _spent(running):
    return next(one["spent"] for one in running.pool("budget")["quotas"] if one["unit"] == "usd")
