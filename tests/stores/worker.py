"""What the processes of the tests do; ``crew.py`` starts them."""

from __future__ import annotations

import asyncio
import os
import time

import httpx2

import paceline
from paceline.core.quota import NS, Quota
from paceline.shared import exchange, ledger
from paceline.shared.messages import Known, Message
from paceline.stores import open_store
from paceline.stores import redis as redis_store
from paceline.stores.sqlite import SQLiteStore

AMPLE = Quota("requests", 1e9, 86_400.0)
"""More than all processes of a test can take, however long it lasts."""

POOL = "openai/gpt-5"
BODY = {
    "model": "gpt-5",
    "messages": [{"role": "user", "content": "Say something about the weather."}],
    "max_tokens": 40,
}


def forget_sooner(lease_s):
    """Let a process that is silent be gone after ``lease_s``, and say more often that it is not."""
    script = redis_store.script()
    shorter = script.replace(" WANE, LOOK = 15e6,", f" WANE, LOOK = {lease_s}e6,")
    assert shorter != script
    redis_store.script = lambda: shorter
    ledger.LEASE_US, exchange.RENEW_NS = lease_s * 1_000_000, lease_s * NS // 3


class Worker:
    def __init__(self, config, connection):
        self.config, self.connection = config, connection
        self.limiter = paceline.Limiter(
            {"openai/*": config["quotas"]},
            store=open_store(config["store"], timeout_s=config.get("timeout_s", 1.0)),
            **config.get("options", {}),
        )
        self.todo = iter(range(config["requests"]))
        self.states, self.waits_s, self.failed = [], [], []

    async def work(self, client):
        for number in self.todo:
            headers = {"authorization": "Bearer any", "x-custom-id": f"{self.config['name']}-{number}"}
            started_s = time.monotonic()
            try:
                answer = await client.post("/v1/chat/completions", json=BODY, headers=headers)
            except (paceline.PacelineError, httpx2.HTTPError) as error:
                self.failed.append(repr(error))
                continue
            if answer.status_code == 200:
                self.waits_s.append(round(time.monotonic() - started_s - self.config["latency_s"], 4))
            else:
                self.failed.append(answer.text)

    async def tracker(self):
        """Remember how it stood with the store, one after the other."""
        while True:
            pool = self.limiter.status()["pools"].get(POOL)
            if pool is not None and self.states[-1:] != [pool["store"]["state"]]:
                self.states.append(pool["store"]["state"])
                if self.states[-1] == self.config.get("tells"):
                    self.connection.send(self.states[-1])
            await asyncio.sleep(0.02)

    async def run(self):
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(
            base_url=self.config["emulator"], timeout=30, limits=limits, verify=False
        ) as client:
            self.limiter.attach(client, provider="openai")
            self.connection.send("ready")
            await asyncio.to_thread(self.connection.recv)
            tracker = asyncio.create_task(self.tracker())
            await asyncio.gather(*(self.work(client) for _ in range(self.config["workers"])))
            tracker.cancel()
        status = self.limiter.status()["pools"][POOL]
        self.limiter.close()
        return {"states": self.states, "waits_s": self.waits_s, "failed": self.failed, "status": status}


def main(config, connection):
    """Send "ready", wait for "go", send all requests to the provider, and then send the results."""
    if "slots_back_s" in config:
        forget_sooner(config["slots_back_s"])
    connection.send(asyncio.run(Worker(config, connection).run()))


def take_until_killed(path, log, name):
    """Take one request after the other from a SQLite store; each grant is a byte in the log."""
    store, number = SQLiteStore(path, timeout_s=10.0), 0
    log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        number += 1
        reply = store.exchange("pool", Message(name, number, Known((AMPLE,), [0], headroom_s=0.0), wants=[[1.0]]))
        assert len(reply.grants) == 1
        os.write(log, b".")
