"""Emulated providers behind a gateway, and traffic that their limits hold back, so that the page has something to show."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from paceline.emulator import Emulator

LIMITS: Final = {
    "gpt-6.1-sol": "120 requests/min,90k tokens/min",
    "gpt-6-luna": "500 requests/min,200k tokens/min",
    "claude-sonnet-5-5": "50 requests/min,30k input_tokens/min,8k output_tokens/min",
}


@dataclass(frozen=True, slots=True)
class Stream:
    """Workers of one kind.

    Attributes:
        pause_s: The mean pause of a worker after an answer, in seconds.
        words: The mean length of a prompt.
    """

    model: str
    lane: str
    workers: int
    pause_s: float
    words: int


STREAMS: Final = (
    Stream("gpt-6.1-sol", "documents", 30, 2.0, 300),
    Stream("gpt-6.1-sol", "interactive", 2, 6.0, 80),
    Stream("gpt-6-luna", "titles", 6, 2.0, 60),
    Stream("claude-sonnet-5-5", "review", 12, 5.0, 500),
)


@contextmanager
def emulated() -> Iterator[dict[str, Any]]:
    """Run emulated providers in a process of their own; the value are settings of a gateway in front of them."""
    with Emulator(LIMITS, latency_s=0.4, latency_per_token_s=0.01, process=True) as emulator:
        upstreams = {name: {"base_url": emulator.base_url} for name in ("openai", "anthropic", "gemini")}
        limits = {
            f"{'anthropic' if name.startswith('claude') else 'openai'}/{name}": text for name, text in LIMITS.items()
        }
        yield {"upstreams": upstreams, "limits": limits, "provider": "openai"}


def start(address: str) -> None:
    """Send traffic to the gateway at ``address`` from a thread, as long as this process lives."""
    threading.Thread(target=lambda: asyncio.run(_send(address)), name="traffic", daemon=True).start()


async def _send(address: str) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        work = [_work(session, address, one, f"{one.lane}_{i:02}") for one in STREAMS for i in range(one.workers)]
        await asyncio.gather(*work)


async def _work(session: aiohttp.ClientSession, address: str, stream: Stream, name: str) -> None:
    chance = random.Random(name)
    headers = {"x-paceline-lane": stream.lane, "x-paceline-name": name, "authorization": "Bearer demo"}
    while True:
        await asyncio.sleep(chance.expovariate(1 / stream.pause_s))
        path, body = _request(stream, chance)
        try:
            async with session.post(address + path, json=body, headers=headers) as response:
                await response.read()
        except aiohttp.ClientError:
            await asyncio.sleep(1)


def _request(stream: Stream, chance: random.Random) -> tuple[str, Mapping[str, Any]]:
    prompt = "word " * chance.randint(stream.words // 2, stream.words * 2)
    body = {"model": stream.model, "max_tokens": 150, "messages": [{"role": "user", "content": prompt}]}
    return ("/anthropic/v1/messages" if stream.model.startswith("claude") else "/openai/v1/chat/completions"), body
