"""`paceline run` without a limit that binds, and a bare loop of the same client over the same input, in turn."""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.table import Row, spread

WORKERS = 500
PROMPT = "The limit of a minute is shared by all workers, so each request waits until its turn has come. " * 16
GOAL_PER_S, GOAL_SHARE = 2_500, 0.6

SERVER = """
import asyncio, json
BODY = json.dumps({
    "id": "x", "object": "chat.completion", "model": "gpt-5",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "word " * 20}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 380, "completion_tokens": 20, "total_tokens": 400},
}).encode()
ANSWER = b"\\\\r\\\\n".join([
    b"HTTP/1.1 200 OK", b"content-type: application/json", b"content-length: %d" % len(BODY), b"x-request-id: req_1",
    b"x-ratelimit-limit-requests: 100000000", b"x-ratelimit-remaining-requests: 99999999", b"x-ratelimit-reset-requests: 1ms",
    b"", BODY,
])

class Answers(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.got = transport, bytearray()

    def data_received(self, data):
        self.got += data
        while (end := self.got.find(b"\\\\r\\\\n\\\\r\\\\n")) >= 0:
            head = bytes(self.got[:end]).lower()
            size = int(head.partition(b"content-length:")[2].partition(b"\\\\r")[0])
            if len(self.got) < end + 4 + size:
                return
            del self.got[:end + 4 + size]
            self.transport.write(ANSWER)

async def main():
    server = await asyncio.get_running_loop().create_server(Answers, "127.0.0.1", 0, backlog=1_000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
""".replace("\\\\", "\\")
"""Answers each request as soon as it has come, without reading it."""


def measure(quick: bool) -> list[Row]:
    """Requests a second and CPU for each, of one process on one core."""
    count, times = (10_000, 2) if quick else (40_000, 5)
    ours, bare = [], []
    with tempfile.TemporaryDirectory() as folder, _server() as port:
        source = Path(folder, "in.jsonl")
        source.write_text("".join(_line(i) for i in range(count)))
        for _ in range(times):
            bare.append(_bare(source, port))
            ours.append(_paceline(source, port))
    share = statistics.median(theirs[1] / mine[1] for mine, theirs in zip(ours, bare, strict=True))
    rate = [rate for rate, _ in ours]
    return [
        Row(
            f"paceline run, {WORKERS} workers, no limit that binds: requests a second of one process",
            spread(rate, "/s", 0),
            f">= {GOAL_PER_S}/s",
            statistics.median(rate) >= GOAL_PER_S,
            f"bare loop of aiohttp: {spread([rate for rate, _ in bare], '/s', 0)}",
        ),
        Row(
            "the same: CPU for each request",
            spread([cpu for _, cpu in ours], "us", 0),
            f"bare / paceline >= {GOAL_SHARE}",
            share >= GOAL_SHARE,
            f"bare loop of aiohttp: {spread([cpu for _, cpu in bare], 'us', 0)}, {share:.2f} of paceline's",
        ),
    ]


def _line(number: int) -> str:
    body = {"model": "gpt-5", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 50}
    line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(line) + "\n"


@contextmanager
def _server() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.kill()


def _paceline(source: Path, port: int) -> tuple[float, float]:
    """Requests a second, and microseconds of CPU for each, by its own summary."""
    command = [sys.executable, "-c", "from paceline.cli import main; main()", "run", str(source), "--json", "--quiet"]
    options = ["--base-url", f"http://127.0.0.1:{port}", "--workers", str(WORKERS), "--limit", "*=100M requests/min"]
    output = source.with_suffix(".results.jsonl")
    environ = {"PATH": os.environ["PATH"], "HOME": str(source.parent)}
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True, env=environ)
    output.unlink()
    report = json.loads(done.stdout)
    return report["ok"] / report["seconds"], report["cpu_us_per_request"]


def _bare(source: Path, port: int) -> tuple[float, float]:
    """The same for a loop that reads a line, sends its body, and writes the answer as a line."""
    code = f"import asyncio; from benchmarks.batch import loop; asyncio.run(loop({str(source)!r}, {port}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rate, cpu = map(float, re.findall(r"[\d.]+", done.stdout))
    return rate, cpu


async def loop(path: str, port: int) -> None:
    """Send all lines and print the figures."""
    import aiohttp

    sent = 0
    headers = {"content-type": "application/json", "authorization": "Bearer k"}

    async def work() -> None:
        nonlocal sent
        for line in lines:
            value = json.loads(line)
            async with client.post(
                f"http://127.0.0.1:{port}{value['url']}", data=json.dumps(value["body"]).encode(), headers=headers
            ) as answer:
                kept = {"custom_id": value["custom_id"], "response": await answer.json()}
            output.write(json.dumps(kept).encode() + b"\n")
            sent += 1

    with open(path, "rb") as lines, open(os.devnull, "wb", buffering=0) as output:  # noqa: ASYNC230, PTH123
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
            began, cpu_s = time.perf_counter(), time.process_time()
            await asyncio.gather(*[work() for _ in range(WORKERS)])
            took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
    print(sent / took_s, cpu_s / sent * 1e6)
