"""A gateway as a user starts it, and a server for it to send to that records every request and answers with given bytes."""

import asyncio
import gzip
import http.client
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from loop_server import LoopServer, head_of

PROVIDERS = ("openai", "anthropic", "gemini", "cohere", "mistral")
WIDE = {f"{provider}/*": ["600k requests/min"] for provider in PROVIDERS}


class Gateway:
    """``paceline serve`` as a process.

    Args:
        folder: For its files.
        root: The server to which all providers' requests go.
        limits: By pool.
    """

    def __init__(self, folder, root, limits=None):
        lines = [f'[upstreams.{name}]\nbase_url = "{root}"' for name in PROVIDERS]
        rows = (f"{json.dumps(pool)} = {json.dumps(quotas)}" for pool, quotas in (limits or WIDE).items())
        lines += ["[limits]", *rows]
        folder = Path(folder)
        (folder / "gateway.toml").write_text("\n".join(lines) + "\n")
        command = [str(Path(sys.executable).with_name("paceline")), "serve", "--port", "0", "--keys", "keys.json"]
        clean = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_BASE_URL"))}
        self.process = subprocess.Popen(
            [*command, "--config", str(folder / "gateway.toml")],
            stdout=subprocess.PIPE, stderr=(folder / "errors").open("wb"), env=clean, cwd=folder, text=True,
        )  # fmt: skip
        self.errors = folder / "errors"
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the gateway did not start: {self.errors.read_text()}")
        self.url = line.split()[3]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(40)
        finally:
            self.process.kill()
            self.process.stdout.close()
        self.log = self.errors.read_text()

    def get(self, path):
        """A JSON document of the gateway's own."""
        return json.loads(fetch(self.url, "GET", path).body)

    def pool(self, name):
        """The status of a pool."""
        return self.get("/status")["pools"][name]

    def spent(self, name):
        """What a pool has spent, per unit."""
        return {quota["unit"]: quota["spent"] for quota in reversed(self.pool(name)["quotas"])}


@dataclass
class Answer:
    """An answer: the body as it was sent, and the headers that are not about the connection."""

    status: int
    headers: list
    body: bytes


def fetch(root, method, path, body=None, headers=()):
    """Send a request and read the answer, with no decoding but that of chunks."""
    parts = urlsplit(root)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        hops = ("connection", "transfer-encoding", "keep-alive", "trailer")
        pairs = [(name.lower(), value) for name, value in response.getheaders() if name.lower() not in hops]
        return Answer(response.status, pairs, response.read())
    finally:
        connection.close()


@dataclass
class Asked:
    """A request as it arrived."""

    method: str
    target: str
    headers: list
    body: bytes

    @property
    def path(self):
        return self.target.partition("?")[0]

    def header(self, name):
        return next((value for key, value in self.headers if key.lower() == name), None)

    @property
    def json(self):
        return json.loads(self.body)


class Recorder(LoopServer):
    """A server over plain sockets: records requests, and writes the pieces that ``answer`` returns for each.

    Args:
        answer: From a request to its answer: the pieces of the bytes on the connection. It is closed after an answer with
            ``Connection: close``. ``None``: :func:`provider`.
        early: Answer when the head of a request has arrived; then it ``"reads"`` the body, or ``"closes"`` the connection.
    """

    def __init__(self, answer=None, *, early=""):
        self.answer, self.early, self.asked = answer or provider, early, []

    async def one(self, reader, writer):
        asked = Asked(*await head_of(reader), b"")
        early = self.early  # the next test may set it before this request has ended
        if asked.header("expect"):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not early:
            asked.body = await _body(asked, reader)
        self.asked.append(asked)
        pieces, first = self.answer(asked), b""
        for piece in pieces:
            first = first or piece
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if early == "reads":
            asked.body = await _body(asked, reader)
        return not early and b"connection: close" not in first.lower() and not first.startswith(b"HTTP/1.0")


async def _body(asked, reader):
    if asked.header("transfer-encoding"):
        parts = []
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            parts.append(await reader.readexactly(size))
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
        return b"".join(parts)
    return await reader.readexactly(int(asked.header("content-length") or 0))


# Answers.


def whole(body, *headers, status="200 OK", kind="application/json"):
    """An answer with a length, in one piece."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", f"content-length: {len(body)}", *headers]
    return ["\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body]


SSE = "text/event-stream; charset=utf-8"


def chunked(pieces, *headers, kind=SSE, extension=b"", trailers=b""):
    """An answer in chunks, one for each piece."""
    head = "\r\n".join(["HTTP/1.1 200 OK", f"content-type: {kind}", "transfer-encoding: chunked", *headers])
    chunks = [b"%x%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in pieces if piece]
    return [head.encode("latin-1") + b"\r\n\r\n", *chunks, b"0\r\n" + trailers + b"\r\n"]


def events(values, *, named=False, done=True):
    """Events of a stream; named by their ``type`` as Anthropic's and Responses' are."""
    parts = [
        (f"event: {value['type']}\n" if named else "").encode() + b"data: " + json.dumps(value, ensure_ascii=False).encode()
        for value in values
    ]  # fmt: skip
    return [part + b"\n\n" for part in parts + ([b"data: [DONE]"] if done else [])]


TEXT = ["Es", " kostet", " 5 €", ", naïve 🙂."]
TOOL = {"name": "get_weather", "arguments": ['{"city"', ': "Köln"', "}"]}
WHOLE, ARGUMENTS = "".join(TEXT), json.loads("".join(TOOL["arguments"]))

MESSAGES = [{"role": "user", "content": "Was kostet das?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": TOOL["name"], "parameters": SCHEMA}}]


def provider(asked):
    """What a provider answers on all paths of the SDKs: texts, or a call of the first tool that a request names."""
    if asked.method == "HEAD":
        return [b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 12\r\n\r\n"]
    answer = answer_to(asked.path, asked.json if asked.body[:1] == b"{" else {})
    if answer is None:
        return whole({"error": {"message": f"no {asked.path}", "type": "not_found_error"}}, status="404 Not Found")
    if isinstance(answer, bytes):
        return chunked([answer[at : at + 1000] for at in range(0, len(answer), 1000)], kind="audio/mpeg")
    if isinstance(answer, dict):
        return whole(answer)
    return chunked(stream_of(answer), kind="text/event-stream" if "candidates" in answer[0] else SSE)  # Gemini's


def answer_to(path, body):
    """The JSON value of an answer, the events of a stream, or a sound; ``None``: there is no such path."""
    return next((answer(body) for ending, answer in ANSWERS.items() if path.endswith(ending)), None)


def stream_of(values):
    """The events of a stream as their API sends them: named, or in lines that end with CR LF, or with an end."""
    if "candidates" in values[0]:
        return [part.replace(b"\n", b"\r\n") for part in events(values, done=False)]
    named = "type" in values[0]
    return events(values, named=named, done=not named)


CHAT = {"id": "chatcmpl-1", "created": 1, "model": "gpt-5"}
CHAT_USAGE = {"prompt_tokens": 70, "completion_tokens": 10, "total_tokens": 80}


def _chat(body):
    call = {"id": "call_1", "type": "function"}
    if not body.get("stream"):
        message = {"role": "assistant", "content": "".join(TEXT)}
        if body.get("tools"):
            function = {"name": TOOL["name"], "arguments": "".join(TOOL["arguments"])}
            message = {"role": "assistant", "content": None, "tool_calls": [call | {"function": function}]}
        reason = "tool_calls" if body.get("tools") else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return CHAT | {"object": "chat.completion", "choices": [choice], "usage": CHAT_USAGE}
    deltas = [{"role": "assistant", "content": ""}, *({"content": text} for text in TEXT)]
    if body.get("tools"):
        start = call | {"index": 0, "function": {"name": TOOL["name"], "arguments": ""}}
        parts = [{"index": 0, "function": {"arguments": part}} for part in TOOL["arguments"]]
        deltas = [{"role": "assistant", "content": None, "tool_calls": [start]}, *({"tool_calls": [p]} for p in parts)]
    chunk = CHAT | {"object": "chat.completion.chunk"}
    chunks = [chunk | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    reason = "tool_calls" if body.get("tools") else "stop"
    chunks.append(chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    chunks.append(chunk | {"choices": [], "usage": CHAT_USAGE})
    return chunks


RESPONSE_USAGE = {
    "input_tokens": 70, "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 10, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 80,
}  # fmt: skip


def _response(body):
    response = {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-5", "parallel_tool_calls": True,
        "tool_choice": "auto", "tools": [], "error": None, "incomplete_details": None, "instructions": None,
        "metadata": {}, "temperature": 1.0, "top_p": 1.0, "store": body.get("store", True),
    }  # fmt: skip
    if body.get("tools"):
        item = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": TOOL["name"]}
        started, parts = item | {"arguments": "", "status": "in_progress"}, TOOL["arguments"]
        item |= {"arguments": "".join(parts), "status": "completed"}
        where, kind = {"item_id": "fc_1", "output_index": 0}, "response.function_call_arguments"
        middle = [
            *(where | {"type": f"{kind}.delta", "delta": part} for part in parts),
            where | {"type": f"{kind}.done", "name": TOOL["name"], "arguments": "".join(parts)},
        ]
    else:
        item = {"id": "msg_1", "type": "message", "role": "assistant"}
        started = item | {"content": [], "status": "in_progress"}
        where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        text = {"type": "output_text", "text": "".join(TEXT), "annotations": []}
        item |= {"content": [text], "status": "completed"}
        middle = [
            where | {"type": "response.content_part.added", "part": text | {"text": ""}},
            *(where | {"type": "response.output_text.delta", "delta": part, "logprobs": []} for part in TEXT),
            where | {"type": "response.output_text.done", "text": "".join(TEXT), "logprobs": []},
            where | {"type": "response.content_part.done", "part": text},
        ]
    ended = response | {"status": "completed", "output": [item], "usage": RESPONSE_USAGE}
    if not body.get("stream"):
        return ended
    started_response = response | {"status": "in_progress", "output": [], "usage": None}
    values = [
        {"type": "response.created", "response": started_response},
        {"type": "response.in_progress", "response": started_response},
        {"type": "response.output_item.added", "output_index": 0, "item": started},
        *middle,
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": ended},
    ]
    return [value | {"sequence_number": number} for number, value in enumerate(values)]


def _messages(body):
    usage = {"input_tokens": 70, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 1}
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-haiku-4-5", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    tools, blocks = bool(body.get("tools")), [{"type": "text", "text": "".join(TEXT)}]
    if tools:
        called = {"type": "tool_use", "id": "toolu_1", "name": TOOL["name"]}
        blocks.append(called | {"input": json.loads("".join(TOOL["arguments"]))})
    ended = {"stop_reason": "tool_use" if tools else "end_turn", "stop_sequence": None}
    if not body.get("stream"):
        return message | {"content": blocks} | ended | {"usage": usage | {"output_tokens": 10}}
    values = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}} for text in TEXT),
        {"type": "content_block_stop", "index": 0},
    ]
    if tools:
        values += [
            {"type": "content_block_start", "index": 1, "content_block": called | {"input": {}}},
            *(
                {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": part}}
                for part in TOOL["arguments"]
            ),
            {"type": "content_block_stop", "index": 1},
        ]
    return [
        *values,
        {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 10}},
        {"type": "message_stop"},
    ]


def _gemini(text, **more):
    content = {"role": "model", "parts": [{"text": text}]}
    usage = {"promptTokenCount": 70, "candidatesTokenCount": 10, "totalTokenCount": 80}
    return {
        "candidates": [{"index": 0, "content": content, **more}],
        "usageMetadata": usage,
        "modelVersion": "gemini-2.5-flash",
    }


def _gemini_stream(_):
    return [*map(_gemini, TEXT[:-1]), _gemini(TEXT[-1], finishReason="STOP")]


def _cohere(body):
    usage = {
        "billed_units": {"input_tokens": 70, "output_tokens": 10},
        "tokens": {"input_tokens": 70, "output_tokens": 10},
    }
    if not body.get("stream"):
        content = [{"type": "text", "text": "".join(TEXT)}]
        message = {"role": "assistant", "content": content}
        return {"id": "1", "finish_reason": "COMPLETE", "message": message, "usage": usage}
    return [
        {"type": "message-start", "id": "1", "delta": {"message": {"role": "assistant", "content": []}}},
        {"type": "content-start", "index": 0, "delta": {"message": {"content": {"type": "text", "text": ""}}}},
        *({"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": text}}}} for text in TEXT),
        {"type": "content-end", "index": 0},
        {"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": usage}},
    ]


FILE = {
    "id": "file-1",
    "object": "file",
    "bytes": 5,
    "created_at": 1,
    "filename": "a.jsonl",
    "purpose": "batch",
    "status": "processed",
}
MODEL = {"id": "gpt-5", "object": "model", "created": 1, "owned_by": "x"}
EMBEDDING = {"object": "embedding", "index": 0, "embedding": [0.25, -0.5]}
EMBEDDED = {"prompt_tokens": 70, "total_tokens": 70}
AUDIO = bytes(range(256)) * 40

ANSWERS = {
    "/chat/completions": _chat,
    "/responses": _response,
    "/messages": _messages,
    "/v2/chat": _cohere,
    ":generateContent": lambda _: _gemini("".join(TEXT), finishReason="STOP"),
    ":streamGenerateContent": _gemini_stream,
    ":countTokens": lambda _: {"totalTokens": 70},
    "/count_tokens": lambda _: {"input_tokens": 70},
    "/messages/batches": lambda _: {"data": [], "has_more": False, "first_id": None, "last_id": None},
    "/embeddings": lambda _: {"object": "list", "model": "m", "data": [EMBEDDING], "usage": EMBEDDED},
    "/models": lambda _: {"object": "list", "data": [MODEL]},
    "/files": lambda _: FILE,
    "/audio/transcriptions": lambda _: {"text": "".join(TEXT)},
    "/audio/speech": lambda _: AUDIO,
}
"""By the end of a path."""


def gzipped(pieces):
    """The same pieces, encoded and each flushed, as a server does that streams."""
    buffer = bytearray()

    class Sink:
        def write(self, data):
            buffer.extend(data)

        def flush(self):
            pass

    encoder = gzip.GzipFile(fileobj=Sink(), mode="wb", mtime=0)
    for piece in pieces:
        encoder.write(piece)
        encoder.flush()
        yield bytes(buffer)
        buffer.clear()
    encoder.close()
    yield bytes(buffer)
