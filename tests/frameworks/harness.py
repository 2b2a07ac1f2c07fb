"""What the suites of SDKs share: the limits, and what to read from the books of either side."""

import asyncio
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

import paceline

LIMITS = {
    "anthropic/*": ["6000 requests/min", "4M input_tokens/min", "800k output_tokens/min"],
    "gemini/*": ["6000 requests/min", "4M input_tokens/min"],
    "cohere/*": ["6000 requests/min"],
    **{f"{provider}/*": ["6000 requests/min", "4M tokens/min"] for provider in ("openai", "groq", "mistral")},
}
"""By provider. Every quota is wide, so that nothing waits where a test is about something else."""

MODELS = {
    "gpt-5": LIMITS["openai/*"],
    "claude-haiku-4-5": LIMITS["anthropic/*"],
    "gemini-2.5-flash": LIMITS["gemini/*"],
    "command-a-03-2025": LIMITS["cohere/*"],
    "llama-3.3-70b-versatile": LIMITS["groq/*"],
    "mistral-small-latest": LIMITS["mistral/*"],
}

PROMPT = "Say something about the weather in twenty words. " * 5
KEY = {"authorization": "Bearer k"}
MESSAGES = [{"role": "user", "content": PROMPT}]

CROWD = 150
"""How many call at once."""

SLOTS = ["100k requests/min", "8 concurrency"]
"""Limits under which an unpaced crowd is refused nearly to a man, on a machine of any speed."""

BUSY = ["100k requests/min", "10M tokens/min", "8 concurrency"]
"""The same, with tokens that are counted."""

BUSY_OF = {
    "anthropic": [BUSY[0], "10M input_tokens/min", "10M output_tokens/min", BUSY[2]],
    "gemini": [BUSY[0], "10M input_tokens/min", BUSY[2]],
    "cohere": [BUSY[0], BUSY[2]],
}
"""The same, of providers that count other units."""

AT_ONCE = 30
"""How many of the calls for a row are made at once from threads, and how many from one event loop."""

NARROW = {"rule": "quantised", "quantum_s": 5}
"""A world that holds no more than five seconds of its rate; of :data:`RATE` 50 of an unpaced crowd are refused."""

RATE = "1200 requests/min"


def counts(limiter, pool):
    """What has happened in a pool."""
    return limiter.status()["pools"][pool]["counts"]


def spent(limiter, pool):
    """What our books say that a pool has spent, per unit: of several quotas of a unit the first, the others were learned later."""
    return {quota["unit"]: quota["spent"] for quota in reversed(limiter.status()["pools"][pool]["quotas"])}


def charged(world, model):
    """What the server's books say."""
    return world.tally()["pools"][model]["charges"]


def row(package, over, limiter, world, model, pool):
    """One row of the table of packages: check that nothing was refused and that both books agree; return the figures.

    With the environment variable PACELINE_FIGURES, the row is also added to the file of that name, as a line of Markdown.
    """
    tally = world.tally()
    ours, theirs = spent(limiter, pool), charged(world, model)
    figures = {"attempts": tally["admitted"] + tally["refused_total"], "refused": tally["refused_total"]}
    if path := os.environ.get("PACELINE_FIGURES"):
        units = [unit for unit in theirs if unit in ours and unit not in ("concurrency", "requests")] or ["requests"]
        books = ", ".join(f"{theirs[unit]:,.0f} {unit}" for unit in units)
        line = f"| {package} {version(package)} | {over} | {figures['attempts']} | {books} |\n"
        with Path(path).open("a") as file:
            file.write(line)
    assert figures["refused"] == 0
    assert ours == theirs
    return figures


def crowd(call, acall=None):
    """Make :data:`AT_ONCE` calls at once from threads, and from an event loop as many of the async one; their results."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        results = list(threads.map(lambda _: call(), range(AT_ONCE))) if call else []

    async def loop():
        return await asyncio.gather(*[acall() for _ in range(AT_ONCE)])

    return results + (asyncio.run(loop()) if acall else [])


def crowd_row(start, package, over, pool, calls, *, dialect=""):
    """A crowd under ``paceline.instrument()`` in a world of 8 slots, and its row.

    Args:
        start: The fixture ``paceline_emulator``.
        package: The distribution.
        over: What it sends through.
        pool: ``<provider>/<model>``.
        calls: From the world to a call and an async call; ``None`` for one that the package does not have.
        dialect: That of the emulator. Groq's gives back the output that was asked for and not used.
    """
    provider, _, model = pool.partition("/")
    quotas = BUSY_OF.get(provider, BUSY)
    world, limiter = (
        start(limits={model: quotas}, latency_s=0.05, dialect=dialect),
        paceline.Limiter({f"{provider}/*": quotas}),
    )
    with paceline.instrument(limiter, provider=provider):
        crowd(*calls(world))
    return row(package, over, limiter, world, model, pool)


async def cancel_in_a_stream(limiter, pool, consume):
    """Cancel ``consume(begun)``, which sets ``begun`` within its stream: its place is free at once."""
    begun = asyncio.Event()
    task = asyncio.create_task(consume(begun))
    await begun.wait()
    assert limiter.status()["pools"][pool]["in_flight"] == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert limiter.status()["pools"][pool]["in_flight"] == 0


class Service:
    """A provider whose dialect the emulator does not have: counts, and refuses what exceeds 8 requests in flight.

    Args:
        model: The model, as the limiter's pool calls it.
        answer: From the path and the body of a request to the answer, and the input and output tokens in it; ``None``
            for a path that is not metered, which answers 404.
        refusal: The body of a refusal.
        units: What is counted.
    """

    def __init__(self, model, answer, refusal, units=("requests", "tokens", "concurrency")):
        self.model, self.units, self.lock = model, units, threading.Lock()
        self.in_flight = self.refused = 0
        self.charges = {"requests": 0, "tokens": 0, "concurrency": 0}
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                with service.lock:
                    fits = service.in_flight < 8
                    service.in_flight += fits
                    service.refused += not fits
                if not fits:
                    return self.send(429, refusal)
                time.sleep(0.05)
                content, input_tokens, output_tokens = answer(self.path, json.loads(body))
                with service.lock:
                    service.in_flight -= 1
                    service.charges["requests"] += 1
                    service.charges["concurrency"] += 1
                    service.charges["tokens"] += input_tokens + output_tokens
                return self.send(200, content)

            def send(self, status, content):
                content = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 256

        self.server = Server(("127.0.0.1", 0), Handler)
        self.base_url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def tally(self):
        """Its books, as those of the emulator."""
        charges = {unit: self.charges[unit] for unit in self.units}
        return {
            "admitted": self.charges["requests"],
            "refused_total": self.refused,
            "pools": {self.model: {"charges": charges}},
        }
