"""A provider in virtual time with none of paceline's code: it counts for itself, and answers in the forms of three APIs."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import deque

import httpx2


class Bucket:
    """An amount that refills continuously, full at the start."""

    def __init__(self, amount, period_s=60.0):
        self.amount, self.rate, self.level, self.at_s = amount, amount / period_s, amount, None

    def wait_s(self, now_s, cost):
        if self.at_s is not None:
            self.level = min(self.amount, self.level + (now_s - self.at_s) * self.rate)
        self.at_s = now_s
        return max(0.0, (cost - self.level) / self.rate)

    def take(self, now_s, cost):
        self.level -= cost

    def ideal_s(self, total):
        """How long ``total`` takes at best."""
        return max(0.0, total - self.amount) / self.rate


class Trailing:
    """An amount in any ``period_s`` back from now."""

    def __init__(self, amount, period_s=60.0):
        self.amount, self.period_s, self.taken, self.used = amount, period_s, deque(), 0

    def wait_s(self, now_s, cost):
        while self.taken and self.taken[0][0] <= now_s - self.period_s:
            self.used -= self.taken.popleft()[1]
        return 0.0 if self.used + cost <= self.amount else self.taken[0][0] + self.period_s - now_s

    def take(self, now_s, cost):
        self.taken.append((now_s, cost))
        self.used += cost

    def ideal_s(self, total):
        """How long ``total`` takes at best."""
        return (math.ceil(total / self.amount) - 1) * self.period_s


class Model:
    """What one model has counted, by unit."""

    def __init__(self, quotas):
        self.quotas, self.totals = quotas, dict.fromkeys(quotas, 0)
        self.arrivals, self.refused, self.in_flight, self.peak = [], 0, 0, 0

    def admit(self, now_s, cost):
        """0 for an admitted request, else the seconds until it would be."""
        wait_s = max(quota.wait_s(now_s, cost[unit]) for unit, quota in self.quotas.items())
        if wait_s > 0:
            self.refused += 1
            return wait_s
        for unit, quota in self.quotas.items():
            quota.take(now_s, cost[unit])
            self.totals[unit] += cost[unit]
        self.arrivals.append(now_s)
        return 0.0

    @property
    def share(self):
        """The shortest time that the limits allow, as a part of the time that it took."""
        took_s = self.arrivals[-1] - self.arrivals[0]
        return max(quota.ideal_s(self.totals[unit]) for unit, quota in self.quotas.items()) / took_s


class PlainProvider(httpx2.AsyncBaseTransport):
    """The transport of a client: a request is on its way, is counted where it arrives, and is answered later.

    Args:
        clock: The clock of the virtual time.
        quotas: By model and unit (``requests``, ``tokens``): what counts it.
        way_s: The longest way of a request, in seconds.
        answer_s: The shortest and the longest time to an answer.
        books_output: Whether the most output tokens are counted, as OpenAI does, or the output that there was.
    """

    def __init__(self, clock, quotas, *, way_s=0.1, answer_s=(0.5, 2.0), books_output=True, seed=1):
        self.clock, self.models = clock, {model: Model(own) for model, own in quotas.items()}
        self.way_s, self.answer_s, self.books_output = way_s, answer_s, books_output
        self.chance = random.Random(seed)

    @property
    def refused(self):
        return sum(model.refused for model in self.models.values())

    async def handle_async_request(self, request):
        body, path = json.loads(request.content), request.url.path
        gemini = ":generateContent" in path
        name = path.rpartition("/")[2].partition(":")[0] if gemini else body["model"]
        model = self.models[name]
        text = body["contents"][0]["parts"][0]["text"] if gemini else body["messages"][0]["content"]
        sent = 5 + 6 * len(text.split()) // 5
        most = body["generationConfig"]["maxOutputTokens"] if gemini else body["max_tokens"]
        got = self.chance.randint(most // 2, most)
        await asyncio.sleep(self.chance.uniform(0, self.way_s))
        cost = {"requests": 1, "tokens": sent if gemini else sent + (most if self.books_output else got)}
        wait_s = model.admit(self.clock.now_ns() / 1e9, cost)
        if wait_s:
            error = {"error": {"code": "rate_limit_exceeded", "message": "slow down"}}
            return httpx2.Response(429, headers={"retry-after": str(math.ceil(wait_s))}, json=error)
        model.in_flight += 1
        model.peak = max(model.peak, model.in_flight)
        await asyncio.sleep(self.chance.uniform(*self.answer_s))
        model.in_flight -= 1
        return httpx2.Response(200, json=_answer(path, sent, got))


def _answer(path, sent, got):
    if path.endswith("/messages"):
        usage = {"input_tokens": sent, "output_tokens": got}
        return {
            "type": "message",
            "content": [{"type": "text", "text": "so"}],
            "stop_reason": "end_turn",
            "usage": usage,
        }
    if ":generateContent" in path:
        usage = {"promptTokenCount": sent, "candidatesTokenCount": got, "totalTokenCount": sent + got}
        said = {"content": {"parts": [{"text": "so"}], "role": "model"}, "finishReason": "STOP"}
        return {"candidates": [said], "usageMetadata": usage}
    usage = {"prompt_tokens": sent, "completion_tokens": got, "total_tokens": sent + got}
    return {"choices": [{"message": {"role": "assistant", "content": "so"}, "finish_reason": "stop"}], "usage": usage}


async def ask(client, model, text, most):
    """One chat completion; the status of its answer."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": most}
    return (await client.post("/v1/chat/completions", json=body)).status_code
