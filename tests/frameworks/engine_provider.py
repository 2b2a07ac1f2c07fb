"""A provider of chat completions with one limit, for the engines: it shares no code with paceline, and counts each row.

``python engine_provider.py RATE LATENCY_S`` prints its port. It admits RATE requests a second by a bucket that holds those of one second, and answers
after LATENCY_S, plus up to a fifth of it. ``GET /tally`` has its books.
"""

import asyncio
import json
import random
import sys
import threading
import time

from loop_server import LoopServer, head_of


class Provider(LoopServer):
    def __init__(self, rate, latency_s):
        self.rate, self.latency_s = rate, latency_s
        self.level, self.at_s = float(rate), time.monotonic()
        self.calls, self.refused, self.in_flight = {}, 0, 0
        self.first_s = self.last_s = None

    def admits(self):
        now_s = time.monotonic()
        self.level = min(self.rate, self.level + (now_s - self.at_s) * self.rate)
        self.at_s = now_s
        if self.level < 1:
            self.refused += 1
            return False
        self.level -= 1
        self.first_s, self.last_s = self.first_s or now_s, now_s
        return True

    def tally(self):
        calls = sum(self.calls.values())
        span_s = (self.last_s or 0) - (self.first_s or 0)
        return {
            "rows": len(self.calls),
            "calls": calls,
            "twice": calls - len(self.calls),
            "refused": self.refused,
            "in_flight": self.in_flight,
            "seconds": round(span_s, 1),
            # What the limit admits in that time, with the bucket that was full at first.
            "used": round(calls / (self.rate * span_s + self.rate), 3),
        }

    async def answer(self, body):
        content = json.loads(body)["messages"][-1]["content"]
        if not self.admits():
            return "429 Too Many Requests", {
                "error": {"message": "Rate limit reached for requests", "code": "rate_limit_exceeded"}
            }
        self.calls[content] = self.calls.get(content, 0) + 1
        self.in_flight += 1
        await asyncio.sleep(self.latency_s * random.uniform(1, 1.2))
        self.in_flight -= 1
        message = {"role": "assistant", "content": f"answer to {content}"}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return "200 OK", {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "gpt-5",
            "choices": [choice],
            "usage": usage,
        }

    async def one(self, reader, writer):
        method, _, headers = await head_of(reader)
        sizes = [value for name, value in headers if name.lower() == "content-length"]
        body = await reader.readexactly(int(sizes[0])) if sizes else b""
        status, content = ("200 OK", self.tally()) if method == "GET" else await self.answer(body)
        text = json.dumps(content).encode()
        form = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
        writer.write(form.encode() + text)
        await writer.drain()
        return True


if __name__ == "__main__":
    with Provider(float(sys.argv[1]), float(sys.argv[2])) as provider:
        print(provider.url.rpartition(":")[2], flush=True)  # noqa: T201
        threading.Event().wait()
