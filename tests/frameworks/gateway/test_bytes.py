"""Odd and valid answers arrive through the gateway as they arrive without it, byte for byte."""

import gzip
import json
import zlib
from dataclasses import replace

import pytest
from backports import zstd
from gateway_world import Gateway, chunked, events, fetch, gzipped, provider, whole

from waits import until

CHAT = "/v1/chat/completions"
STREAM = b"".join(events([{"choices": [{"text": text}]} for text in ("5 \u20ac", "\U0001f642", "na\u00efve")]))
NAMED = b": hello\n\nevent: message_start\ndata: {}\n\n:\n\nretry: 10\nid: 7\ndata: a\ndata: b\n\n: bye\n\n"
DONE = b'{"result": 1}'
LARGE = bytes(range(256)) * 4 * 20 * 1024  # 20 MB


def at(body, size):
    return [body[start : start + size] for start in range(0, len(body), size)]


ODD = {
    "an event stream in single bytes": chunked(at(STREAM, 1)),
    "events split inside characters": chunked(at(STREAM, 7)),
    "CRLF": chunked(at(STREAM.replace(b"\n", b"\r\n"), 5)),
    "CR": chunked(at(STREAM.replace(b"\n", b"\r"), 5)),
    "a byte order mark": chunked([b"\xef\xbb\xbf" + STREAM]),
    "comments, ids and retries": chunked(at(NAMED, 3)),
    "a stream without an empty line at its end": chunked([STREAM.rstrip()]),
    "an encoded stream": chunked(list(gzipped(events([{"n": n} for n in range(50)]))), "content-encoding: gzip"),
    "two members of gzip": whole(gzip.compress(b'{"result": ', mtime=0) + gzip.compress(b"1}", mtime=0), "content-encoding: gzip"),
    "an unknown encoding": whole(b"\x0b\x02\x80hi\x03", "content-encoding: br"),
    "a wrong encoding": whole(b"not gzip", "content-encoding: gzip"),
    "extensions of chunks": chunked(at(STREAM, 9), extension=b';a=1;b="c"'),
    "trailers": chunked(at(STREAM, 9), "trailer: x-sum", trailers=b"x-sum: 1\r\n"),
    "HTTP/1.0 without a length": [b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n", b'{"result"', b": 1}"],
    "HTTP/1.1 that ends with the connection": [b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\r\n", STREAM],
    "a long answer": whole(LARGE, kind="application/octet-stream"),
    "a long answer in chunks": chunked(at(LARGE, 70_000), kind="application/octet-stream"),
    "nothing": whole(b""),
    "204": [b"HTTP/1.1 204 No Content\r\nx-a: 1\r\n\r\n"],
    "304": [b'HTTP/1.1 304 Not Modified\r\netag: "1"\r\n\r\n'],
    "304 with the length of what it leaves out": [b'HTTP/1.1 304 Not Modified\r\netag: "1"\r\ncontent-length: 9\r\n\r\n'],
    "headers of one name": whole(DONE, "link: <a>", "x-a: 1", "link: <b>; rel=next", "x-a: 2", "x-a: "),
    "a header in Latin-1": whole(DONE, "x-name: na\u00efve", "x-empty:"),
    "a long header": whole(DONE, f"x-long: {'a' * 20_000}"),
    "a status of its own": whole(b'{"error": {"message": "no"}}', status="499 Gone"),
    "a redirect": whole(b"", "location: /v1/other", status="307 Temporary Redirect"),
    "an error": whole({"error": {"message": "\u20ac", "type": "invalid_request_error"}}, status="400 Bad Request"),
}  # fmt: skip
ACCEPTED = {"accept-encoding": "gzip, deflate", "content-type": "application/json", "authorization": "Bearer k"}


def same(recorder, gateway, method, path, body=None):
    """Read an answer directly and through the gateway."""
    direct = fetch(recorder.url, method, path, body, ACCEPTED)
    through = fetch(gateway.url, method, f"/openai{path}", body, ACCEPTED)
    through.headers = [pair for pair in through.headers if not pair[0].startswith("x-paceline-")]
    assert through.status == direct.status
    left_out = ("content-length",) if direct.status == 304 else ()  # of an answer that is not sent
    assert through.headers == [pair for pair in direct.headers if pair[0] not in left_out]
    assert through.body == direct.body


@pytest.mark.parametrize("stream", [None, False, True], ids=["GET", "POST", "POST that asks for a stream"])
@pytest.mark.parametrize("name", ODD)
def test_answers_are_identical(gateway, recorder, name, stream):
    recorder.answer = lambda _: ODD[name]
    if stream is None:
        same(recorder, gateway, "GET", "/v1/models")
    elif name in ("nothing", "204"):  # no answer of a chat
        assert fetch(gateway.url, "POST", f"/openai{CHAT}", b'{"model": "gpt-5"}', ACCEPTED).status == 502
    else:
        same(recorder, gateway, "POST", CHAT, json.dumps({"model": "gpt-5", "stream": stream}))


@pytest.mark.parametrize(
    "name", ["nothing", "204", "304", "a long answer", "a long answer in chunks", "headers of one name"]
)
def test_answers_to_head_are_identical(gateway, recorder, name):
    recorder.answer = lambda _: [ODD[name][0].partition(b"\r\n\r\n")[0] + b"\r\n\r\n"]
    same(recorder, gateway, "HEAD", "/v1/models")


@pytest.mark.parametrize("early", ["reads", "closes"])
def test_an_answer_before_the_body_has_ended(gateway, recorder, early):
    """A server that refuses a body does not wait for its end; if it closes at once, its answer may be lost with the rest."""
    refusal = whole(b'{"error": {"message": "too long"}}', "connection: close", status="400 Bad Request")
    recorder.early = early
    recorder.answer = lambda _: refusal
    body = json.dumps({"model": "gpt-5", "messages": [{"role": "user", "content": "x" * 20_000_000}]})
    answer = fetch(gateway.url, "POST", f"/openai{CHAT}", body, ACCEPTED)
    if answer.status == 502 and early == "closes":
        assert b"the connection to " in answer.body
    else:
        assert (answer.status, answer.body) == (400, b'{"error": {"message": "too long"}}')
    recorder.answer, recorder.early = provider, ""
    assert fetch(gateway.url, "POST", f"/openai{CHAT}", b'{"model": "gpt-5"}', ACCEPTED).status == 200


REQUESTS = {
    "a body with spaces": b'{ "model":"gpt-5",\r\n "messages": [] }\n',
    "a body in UTF-8": '{"model": "gpt-5", "messages": [{"role": "user", "content": "naïve 🙂"}]}'.encode(),
    "an encoded body": gzip.compress(b'{"model": "gpt-5", "messages": []}', mtime=0),
    "no JSON": b"\x00\xff",
    "no body": b"",
    "a large body": json.dumps({"model": "gpt-5", "messages": [{"role": "user", "content": "x" * 5_000_000}]}).encode(),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_arrive_unchanged(gateway, recorder, name):
    encoded = {"content-encoding": "gzip"} if name == "an encoded body" else {}
    headers = {
        **ACCEPTED, **encoded, "x-own": "a, b", "anthropic-beta": "a-1,b-2", "x-stainless-retry-count": "0", "cookie": "a=b",
        "user-agent": "codex_cli_rs/0.155.0", "session_id": "0199", "te": "trailers", "x-paceline-name": "n", "x-request-id": "r",
    }  # fmt: skip
    query = f"{CHAT}?beta=true&empty=&a=%2F%20+&a=2"
    for root, prefix in ((recorder.url, ""), (gateway.url, "/openai")):
        fetch(root, "POST", prefix + query, REQUESTS[name], headers)
    direct, through = recorder.asked
    assert (through.method, through.target, through.body) == (direct.method, direct.target, direct.body)
    own = ("te", "x-paceline-name", "connection")
    expected = sorted((key.lower(), value) for key, value in direct.headers if key.lower() not in own)
    assert sorted((key.lower(), value) for key, value in through.headers) == expected


@pytest.mark.parametrize("encode", [gzip.compress, zlib.compress, zstd.compress], ids=["gzip", "deflate", "zstd"])
def test_an_encoded_request_is_charged_to_its_model(tmp_path, recorder, request, encode):
    """It passes unchanged, and its model and its tokens are read."""
    body = b'{"model": "gpt-5", "input": "Fix the bug.", "stream": true}'
    recorder.answer = lambda asked: provider(replace(asked, body=body))
    headers = ACCEPTED | {"content-encoding": request.node.callspec.id}
    limits = {"openai/*": ["100 requests/min", "10M tokens/min"]}
    encoded = encode(body)
    with Gateway(tmp_path, recorder.url, limits=limits) as gateway:
        assert fetch(gateway.url, "POST", "/openai/v1/responses", encoded, headers).status == 200
        assert recorder.asked[0].body == encoded
        until(lambda: gateway.pool("openai/gpt-5")["counts"] == {"granted": 1, "settled": 1})
        assert gateway.spent("openai/gpt-5") == {"requests": 1, "tokens": 80}
