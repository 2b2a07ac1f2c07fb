"""Agents whose prompts grow, before a server that caches prompts as Anthropic does: the real engine, in virtual time.

All amounts are a twentieth of those of the worlds, so that the texts are short.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

import paceline
from paceline.core.quota import NS
from paceline.pacing.clock import Clock
from paceline.testing import run_virtual

SCALE = 20
TOKENS_MIN = 450_000 // SCALE


@dataclass
class Server:
    """A bucket of input tokens, and a cache: a prompt is readable from its answer on, and its life begins with its request.

    Attributes:
        misses: The part of the cached prompts that are not read.
        holds_cached: Whether a whole prompt must fit, and what was read from the cache is given back with the answer.
        caches: Whether it caches anything.
        life_s: How long a prompt is cached.
        served: The agent and the turn of each request, in the order in which they came.
        counts: Requests that were ``served``, ``refused``, and those whose prompt had to be read ``again``.
    """

    clock: Clock
    misses: float = 0.0
    holds_cached: bool = False
    caches: bool = True
    life_s: float = 300.0
    served: list[tuple[int, int]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    _level: float = TOKENS_MIN
    _at_s: float = 0.0
    _cache: dict[int, tuple[float, float, int]] = field(default_factory=dict)
    _chance: random.Random = field(default_factory=lambda: random.Random(9))

    def _now_s(self) -> float:
        now_s = self.clock.now_ns() / NS
        self._level = min(TOKENS_MIN, self._level + (now_s - (self._at_s or now_s)) * TOKENS_MIN / 60)
        self._at_s = now_s
        return now_s

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        agent, turn, total = (body["metadata"][name] for name in ("agent", "turn", "tokens"))
        came_s = self._now_s()
        begins_s, ends_s, tokens = self._cache.get(agent, (0.0, 0.0, 0))
        cached = tokens if begins_s <= came_s < ends_s and self._chance.random() >= self.misses else 0
        fresh = total - cached
        need = total if self.holds_cached else fresh
        if self._level < need:
            self.counts["refused"] += 1
            error = {"type": "rate_limit_error", "message": "This request would exceed the rate limit."}
            wait = {"retry-after": str(max(1, round((need - self._level) * 60 / TOKENS_MIN)))}
            return httpx.Response(429, json={"type": "error", "error": error}, headers=wait)
        self._level -= need
        self.served.append((agent, turn))
        self.counts["served"] += 1
        self.counts["again"] += bool(turn and not cached)
        if cached:
            self._cache[agent] = begins_s, came_s + self.life_s, tokens
        usage = {"input_tokens": 0, "cache_read_input_tokens": cached, "cache_creation_input_tokens": fresh}
        return await self._answer(agent, came_s, total, cached, usage, stream=body.get("stream", False))

    async def _answer(
        self, agent: int, came_s: float, total: int, cached: int, usage: dict[str, int], *, stream: bool
    ) -> httpx.Response:
        seconds = self._chance.uniform(2, 6)
        if not self.caches:
            usage = {"input_tokens": total}
        usage["output_tokens"] = 5

        def begin() -> None:
            now_s = self._now_s()
            if self.holds_cached:
                self._level = min(TOKENS_MIN, self._level + cached)
            if self.caches:
                self._cache[agent] = now_s, came_s + self.life_s, total

        if not stream:
            await asyncio.sleep(seconds)
            begin()
            text = [{"type": "text", "text": "ok"}]
            answer = {"id": "m", "type": "message", "role": "assistant", "content": text, "usage": usage}
            return httpx.Response(200, json=answer)
        await asyncio.sleep(0.6)
        begin()

        async def events() -> Any:
            start = {
                "type": "message_start",
                "message": {"id": "m", "role": "assistant", "content": [], "usage": usage},
            }
            yield _event(start)
            delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "ok"}}
            yield _event(delta)
            await asyncio.sleep(seconds)
            yield _event({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 5}})
            yield _event({"type": "message_stop"})

        return httpx.Response(200, content=events(), headers={"content-type": "text/event-stream"})


def _event(data: dict[str, Any]) -> bytes:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


@dataclass
class Result:
    """What a world came to."""

    server: Server
    seconds: float
    pool: dict[str, Any]
    limiter: paceline.Limiter

    @property
    def turns_an_hour(self) -> float:
        return self.server.counts["served"] / self.seconds * 3600


def run_agents(
    agents: int = 150,
    turns: int = 10,
    *,
    prefix: int = 20_000,
    step: int = 500,
    think_s: tuple[float, float] = (2, 12),
    lanes: bool = False,
    stream: bool = False,
    limiter: dict[str, Any] | None = None,
    first: Callable[[int], str] = "agent {}".format,
    **server: Any,
) -> Result:
    """World A of the design, by default: 150 agents with ten turns, at 450 000 input tokens a minute."""

    async def main(clock: Clock) -> Result:
        there = Server(clock, **server)
        limits = {"anthropic/*": [f"{TOKENS_MIN} input_tokens/min", "100k requests/min"]}
        paced = paceline.Limiter(limits, clock=clock, **(limiter or {}))
        client = paced.attach(
            httpx.AsyncClient(transport=httpx.MockTransport(there), base_url="https://api.anthropic.com", timeout=None)
        )

        async def send(body: dict[str, Any]) -> None:
            answer = await client.post("/v1/messages", json=body)
            assert answer.status_code == 200, answer.text

        async def agent(number: int) -> None:
            chance, total = random.Random(number), prefix // SCALE
            messages: list[dict[str, Any]] = [{"role": "user", "content": first(number) + " word" * total}]
            await asyncio.sleep(number / 100)
            for turn in range(turns):
                about = {"agent": number, "turn": turn, "tokens": total}
                body = {"model": "claude-sonnet-4-5", "max_tokens": 16, "messages": messages, "metadata": about}
                if stream:
                    body["stream"] = True
                with paceline.lane(f"key {number}" if lanes else "default"):
                    await send(body)
                result = [
                    {"type": "tool_result", "tool_use_id": f"{number}.{turn}", "content": " word" * (step // SCALE)}
                ]
                call = [{"type": "tool_use", "id": f"{number}.{turn}", "name": "run", "input": {}}]
                messages = [*messages, {"role": "assistant", "content": call}, {"role": "user", "content": result}]
                total += step // SCALE
                await asyncio.sleep(chance.uniform(*think_s))

        began_ns = clock.now_ns()
        await asyncio.gather(*map(agent, range(agents)))
        [pool] = paced.status()["pools"].values()
        return Result(there, (clock.now_ns() - began_ns) / NS, pool, paced)

    result: Result = run_virtual(main)
    return result
