"""A server of Bedrock's API, which the emulator does not have, for boto3 and aiobotocore."""

import json
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ANSWER = {
    "output": {"message": {"role": "assistant", "content": [{"text": "hi"}]}},
    "stopReason": "end_turn",
    "usage": {"inputTokens": 12, "outputTokens": 30, "totalTokens": 42},
    "metrics": {"latencyMs": 5},
}
CALL = {
    "modelId": "amazon.nova-lite-v1:0",
    "messages": [{"role": "user", "content": [{"text": "hello"}]}],
    "inferenceConfig": {"maxTokens": 100},
}
KEYS = {"aws_access_key_id": "k", "aws_secret_access_key": "k", "region_name": "us-east-1"}


def event(kind, payload):
    """A frame of an event stream."""
    headers = b""
    for name, value in ((":message-type", "event"), (":event-type", kind), (":content-type", "application/json")):
        headers += bytes([len(name)]) + name.encode() + b"\x07" + len(value).to_bytes(2, "big") + value.encode()
    body = json.dumps(payload).encode()
    prelude = (16 + len(headers) + len(body)).to_bytes(4, "big") + len(headers).to_bytes(4, "big")
    message = prelude + zlib.crc32(prelude).to_bytes(4, "big") + headers + body
    return message + zlib.crc32(message).to_bytes(4, "big")


START = event("messageStart", {"role": "assistant"})
STREAM = START + event("metadata", {name: ANSWER[name] for name in ("usage", "metrics")})


class Handler(BaseHTTPRequestHandler):
    """Refuses the first request; keeps the time of each signature. After the first event, a stream waits for ``go``."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.server.signed.append(self.headers["x-amz-date"])
        self.rfile.read(int(self.headers["content-length"]))
        refused, kind = len(self.server.signed) == 1, "application/json"
        answer = json.dumps({"message": "Too many requests"} if refused else ANSWER).encode()
        if not refused and self.path.endswith("-stream"):
            answer, kind = STREAM, "application/vnd.amazon.eventstream"
        self.send_response(429 if refused else 200)
        if refused:
            self.send_header("x-amzn-errortype", "ThrottlingException")
        self.send_header("content-type", kind)
        if answer is STREAM:
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(START), START))
            self.server.waited.append(self.server.go.wait(20))
            rest = STREAM.removeprefix(START)
            self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(rest), rest))
            return
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def serve():
    """A generator for a fixture: the running server, with the times of the signatures in ``signed``; clear ``go`` to stop streams at their first event."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.signed, server.waited, server.go = [], [], threading.Event()
    server.go.set()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()
