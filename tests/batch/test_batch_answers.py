"""Answers as servers send them: with the key in them, compressed without end, and from a wrong address."""

import asyncio
import gzip
import json
import sys
import threading
import tracemalloc
import zlib
from base64 import b64encode
from contextlib import asynccontextmanager, closing, suppress
from errno import ECONNRESET
from functools import partial
from http.server import BaseHTTPRequestHandler
from urllib.parse import quote

import aiohttp
import pytest
from batch_helpers import FAST, GOOD, chat, chats, message, read_answers, run_job, send_lines, write_lines
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from odd_server import Loopback, OddServer
from paceline.batch import transport as transport_module
from paceline.batch.progress import LineView, ProgressView
from paceline.batch.reach import Reach
from paceline.batch.redact import PART_MIN, Secrets
from paceline.batch.results import ResultsFile
from paceline.batch.summary import Calls
from paceline.batch.transport import AnswerTooLargeError, NotDecodedError, RunTarget, Sender, session
from paceline.pacing.faults import Fault, fault_of

KEY = "sk-proj-Zq3+x/9TtLw0Vb7RfKs2Mn8Yh5Gd1Pc6Jo4Ea=="
OTHER = "sk-ant-api03-Wm5Kd8Ns1Bv4Xc7Zl0Qp3Rt6Yu9Io2Ha"


@pytest.fixture
def server():
    with OddServer(lambda *_: (200, {}, GOOD)) as one:
        yield one


def run(tmp_path, server, lines, **given):
    source = write_lines(tmp_path / "in.jsonl", lines)
    environ = {"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": OTHER}
    code, report = run_job(source, view=LineView(), environ=environ, **{"base_url": server.base_url} | given)
    return code, report, tmp_path / "in.results.jsonl"


FORMS = {
    "plain": KEY,
    "url": quote(KEY, safe=""),
    "beginning": KEY[:PART_MIN],
    "middle": KEY[11 : 11 + PART_MIN],
    "end": KEY[-PART_MIN:],
    "of another address": OTHER,
}


def echo(status, error):
    """An answer that quotes a key in its body, in nested places, and in a header."""
    detail = {"message": f"bad key {error}", "code": "bad", "details": [{error: f"Bearer {error}"}]}
    return status, {"x-request-id": f"req-{error}"}, GOOD | {"error": detail, "echo": json.dumps({"key": error})}


@pytest.mark.sample(8)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("status", [200, 400, 401, 402, 403, 404, 429, 500])
def test_no_key_in_results_or_messages(tmp_path, server, capsys, caplog, form, status):
    code = "insufficient_quota"
    no_money = {"error": {"message": f"no credit for {form}", "code": code, "type": code}}
    server.answer = lambda *_: (402, {}, no_money) if status == 402 else echo(status, form)
    _, report, output = run(tmp_path, server, [chat("a"), message("b")], max_attempts=1)
    said = capsys.readouterr().err + caplog.text + json.dumps(report) + output.read_text()
    assert "***" in said or status == 401  # of which only the code is shown
    assert ("paceline_gave_up" in said) == (status == 429)
    for key in (KEY, OTHER):
        for text in (key, quote(key, safe="")):
            for at in range(len(text) - PART_MIN + 1):
                assert text[at : at + PART_MIN] not in said


ESCAPED = json.dumps(KEY).replace("/", "\\/").replace("+", "\\u002B").replace("-", "\\u002d")


@pytest.mark.parametrize(
    ("body", "clean"),
    [
        (f'{{"key": {ESCAPED}, "text": "a\\"b\\\\n"}}', '{"key": "***", "text": "a\\"b\\\\n"}'),
        (json.dumps("".join(f"\\u{ord(c):04x}" for c in KEY)), '"***"'),  # JSON in a string of JSON
        (json.dumps(json.dumps(KEY).replace("/", "\\/")[1:-1]), '"***"'),
        (b64encode(KEY.encode()).decode().rstrip("="), "***"),
        (KEY.encode().hex(), "***"),
        (f"{KEY}{KEY}", "******"),
        (f"{KEY[:20]}, {KEY[5:]}", "***, ***"),
        (quote(KEY, safe="").replace("%2B", "%2b").replace("%2F", "%2f").replace("%3D", "%3d"), "***"),
    ],
)
def test_forms_of_a_key(body, clean):
    assert Secrets([KEY, OTHER])(body.encode()).decode() == clean


@pytest.mark.parametrize("length", range(8, 40))
def test_whole_keys_of_any_length_anywhere(length):
    secrets = Secrets([KEY[-length:]])
    for at in range(8):
        assert secrets.text("x" * at + KEY + "y" * 8) == f"{'x' * at}{KEY[:-length]}***{'y' * 8}"


@pytest.mark.parametrize(
    "text",
    [
        "sk-pro***4Ea==",
        "keys begin with sk-proj- or sk-ant-api03-",
        f"{KEY[:15]}...",
        'a "b" \\u0022 \\/ \\u002b',
        "",
        "none",
    ],
)
def test_other_text_stays(text):
    assert Secrets([KEY, OTHER, "", "none", "EMPTY"])(text.encode()) == text.encode()


@given(st.text(st.sampled_from(KEY[:14] + " ")), st.integers(0, len(KEY)), st.integers(0, len(KEY)))
def test_every_part_of_a_key(before, start, stop):
    part = KEY[start:stop]
    clean = Secrets([KEY]).text(f"{before}|{part}|")
    assert (part in clean) == (len(part) < PART_MIN or part in before)


def bomb(size):
    """Zeros as gzip, about a thousandth of their size."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([*(packer.compress(bytes(2**20)) for _ in range(size // 2**20)), packer.flush()])


@asynccontextmanager
async def saying(raw, asked=None):
    """A sender, with its target, at a server that writes these bytes on each connection; ``asked`` gets the requests."""

    async def answer(reader, writer):
        with suppress(ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            if asked is not None:
                asked.append(head)
            writer.write(raw)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server, session(60.0) as client:
        url = URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        sender = Sender(60.0, Reach(lambda _: None, again=False), Secrets([]), Calls(), lambda: False)
        sender.post = client.post
        yield sender, RunTarget(url, "http://host", ("host", "/v1"))


def answering(body, status=200, **headers):
    """The same at a server that answers with ``body``."""
    lines = [f"{name}: {value}" for name, value in {"content-length": len(body), **headers}.items()]
    return saying("\r\n".join([f"HTTP/1.1 {status} Said", *lines, "", ""]).encode() + body)


async def fetch(sender, target):
    return (await asyncio.create_task(sender.send(target, {}, b""))).body


@pytest.mark.long("decodes 200 MB")
async def test_a_bomb_is_stopped_while_it_is_decoded():
    async with answering(bomb(300 * 2**20), **{"content-encoding": "gzip"}) as (sender, target):
        tracemalloc.start()
        try:
            ends = await asyncio.gather(*(fetch(sender, target) for _ in range(6)), return_exceptions=True)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert [type(end) for end in ends] == [AnswerTooLargeError] * 6
    assert str(ends[0]) == "the answer is larger than 32 MB when decoded"
    assert peak < 260 * 2**20
    assert sender._reading == 0


async def test_many_large_answers_are_read_in_bounded_memory(monkeypatch):
    monkeypatch.setattr(transport_module, "ANSWERS_MAX", 1_000_000)
    async with answering(b"x" * 600_000) as (sender, target):
        most, tasks = [], [asyncio.create_task(fetch(sender, target)) for _ in range(20)]
        while not all(task.done() for task in tasks):
            most.append(sender._reading)
            await asyncio.sleep(0)
    assert [len(task.result()) for task in tasks] == [600_000] * 20
    assert max(most) <= 1_600_000
    assert sender._reading == 0


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", partial(zlib.compress, wbits=-15))],
    ids=["gzip", "deflate", "raw deflate"],
)
async def test_a_compressed_answer_is_read(encoding, packed):
    body = json.dumps(GOOD).encode() * 1_000
    async with answering(packed(body), **{"content-encoding": encoding}) as (sender, target):
        assert await fetch(sender, target) == body


@pytest.mark.parametrize("length", ["abc", "-4", "1\r\ncontent-length: 2"])
async def test_an_answer_that_is_not_http_is_a_broken_connection_without_a_url(length):
    async with answering(b"x", **{"content-length": length}) as (sender, target):
        with pytest.raises(aiohttp.ClientPayloadError, match="the answer is not valid HTTP: ") as raised:
            await fetch(sender, target)
    assert str(target.url) not in str(raised.value)
    assert fault_of(raised.value) is Fault.BROKEN


@pytest.mark.parametrize(("errno", "words"), [(None, ""), (ECONNRESET, ": Connection reset by peer")])
async def test_a_request_that_could_not_be_written_is_a_broken_connection_without_a_url(errno, words):
    async with answering(b"") as (sender, target):

        async def post(url, **_):
            raise aiohttp.ClientOSError(errno, f"Can not write request body for {url}")

        sender.post = post
        with pytest.raises(aiohttp.ClientOSError) as raised:
            await fetch(sender, target)
    assert str(raised.value) == f"the connection broke{words}"
    assert fault_of(raised.value) is Fault.BROKEN


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
async def test_an_answer_that_cannot_be_decoded_is_not_repeated(encoding):
    async with answering(b"not what it says", **{"content-encoding": encoding}) as (sender, target):
        with pytest.raises(NotDecodedError, match="Can not decode content-encoding: ") as raised:
            await fetch(sender, target)
    assert fault_of(raised.value) is None


async def test_of_an_error_the_beginning_is_kept():
    async with answering(b"x" * 5_000_000, status=500) as (sender, target):
        assert len(await fetch(sender, target)) == 2**20


def test_an_answer_that_is_too_large_is_an_error_that_is_not_retried(tmp_path, server):
    packed = bomb(40 * 2**20)
    server.answer = lambda *_: (200, {"content-encoding": "gzip"}, packed)
    code, report, output = run(tmp_path, server, [chat("a")])
    (answer,) = read_answers(output)
    assert answer["error"] == {"code": "answer_too_large", "message": "the answer is larger than 32 MB when decoded"}
    assert (code, report["attempts"]) == (1, 1)


LOST = (404, {"content-type": "application/json"}, {"error": {"message": "no such model", "code": "model_not_found"}})
WRONG = {
    "404": (LOST, "status 404 (model_not_found: no such model)"),
    "html": ((200, {}, b"<html>\n<title>Sign in</title>\x1b[2J"), "status 200 (<html> <title>Sign in</title> [2J)"),
    "redirect": ((302, {"location": "http://portal/"}, b""), "status 302 (no reason given)"),
    "list": ((200, {}, []), "status 200 ([])"),
}


@pytest.mark.parametrize(("answer", "reason"), WRONG.values(), ids=WRONG)
def test_a_wrong_address_gets_a_handful_of_requests(tmp_path, server, capsys, answer, reason):
    server.answer = lambda *_: answer
    lines = chats(30)
    code, report, output = run(tmp_path, server, lines, base_url=f"{server.base_url}/tenant-0123456789abcdef")
    err = capsys.readouterr().err
    assert (code, report["attempts"], len(server.asked)) == (2, 10, 10)
    assert len(read_answers(output)) == 10
    place = f"gpt-5 from {server.base_url}/***/v1/chat/completions"
    assert f"{place} were not from its API, the last one with {reason}" in err
    assert "check --base-url" in err
    assert "20 requests left: the same command again sends the rest" in err
    server.answer = lambda *_: (200, {}, GOOD)
    code, report, _ = run(tmp_path, server, lines)
    assert (code, report["ok"]) == (0, 30)


def test_a_wrong_model_does_not_stop_the_others(tmp_path, server, capsys):
    server.answer = lambda _, body: LOST if body["model"] == "gone" else (200, {}, GOOD)
    lines = [chat(f"g{i}", model="gone") for i in range(40)] + chats(40)
    code, report, _ = run(tmp_path, server, lines)
    assert (code, report["ok"], report["failed"]) == (1, 40, 10)
    err = capsys.readouterr().err
    assert "no more requests of gone to /v1/chat/completions are sent" in err
    assert "stopped: the first 10 answers for gone from" in err


@pytest.mark.parametrize("first", [(200, {}, GOOD), (400, {}, {"error": {"message": "bad"}})])
def test_an_address_that_has_answered_is_not_given_up(tmp_path, server, first):
    answers = [first]
    server.answer = lambda *_: answers.pop() if answers else LOST
    _, report, _ = run(tmp_path, server, chats(30), workers=1)
    assert report["attempts"] == 30


def test_slow_answers_hold_the_others_no_longer_than_a_second(tmp_path, server):
    all_sent = threading.Event()

    def answer(*_):
        if len(server.asked) == 40:
            all_sent.set()
        assert all_sent.wait(20)  # no request is answered before all are sent
        return 200, {}, GOOD

    server.answer = answer
    code, report, _ = run(tmp_path, server, chats(40))
    assert (code, report["ok"]) == (0, 40)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
FORMS = {
    "chunked": HEAD + b'transfer-encoding: chunked\r\n\r\n5\r\n{"a":\r\n3\r\n 1}\r\n0\r\n\r\n',
    "until close": HEAD + b'connection: close\r\n\r\n{"a": 1}',
    "of HTTP/1.0": b'HTTP/1.0 200 OK\r\n\r\n{"a": 1}',
    "after interim ones": b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + HEAD + b'content-length: 8\r\n\r\n{"a": 1}',
    "with many headers": HEAD + b"x-a: y\r\n" * 500 + b'content-length: 8\r\n\r\n{"a": 1}',
    "with other ones": HEAD
    + b"x: \xe9\r\nset-cookie: a=b\r\ny: %b\r\n" % (b"a" * 20_000)
    + b'content-length: 8\r\n\r\n{"a": 1}',
}


@pytest.mark.parametrize("form", FORMS)
async def test_every_form_of_an_answer_is_read(form):
    async with saying(FORMS[form], asked := []) as (sender, target):
        assert [await fetch(sender, target) for _ in range(2)] == [b'{"a": 1}'] * 2
    assert b"cookie" not in b"".join(asked).lower()
    assert b"accept-encoding" not in b"".join(asked).lower()


def test_what_is_not_http_is_an_error_without_the_address(tmp_path):
    class Other(BaseHTTPRequestHandler):
        def do_POST(self):
            self.wfile.write(b"\0 this is not HTTP\r\n\r\n")

        def log_message(self, *_):
            pass

    with Loopback(Other) as server:
        code, _, _ = run(tmp_path, server, [chat("a")], base_url=f"{server.base_url}/a-secret", max_attempts=1)
    (answer,) = read_answers(tmp_path / "in.results.jsonl")
    assert (code, answer["error"]["code"]) == (1, "connection_error")
    assert "Bad status line" in answer["error"]["message"]
    assert "a-secret" not in json.dumps(answer)


@pytest.mark.skipif(sys.platform == "win32", reason="its event loop learns later that a connection was closed")
async def test_a_connection_that_was_closed_after_its_answer_is_not_used_again(tmp_path):
    answer = json.dumps(GOOD).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(answer)}\r\n\r\n".encode()

    async def close(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + answer)
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0) as server:
        root = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with closing(ResultsFile(str(tmp_path / "out"))) as results:
            results.open()
            given = {"workers": 1, "limits": {"*": FAST}}
            _, tally = await send_lines(chats(20), results, root, ProgressView(), **given)
    assert (tally.ok, tally.sent.attempts.made) == (20, 20)
