"""A month of an operator: 4 teams, 30 keys and 3 services on two gateways. The bill agrees with what the provider has counted by itself.

Budgets and new keys have tests of their own: here the sums are held against another count.
"""

import asyncio
import csv
import datetime as dt
import io
import itertools
import json
import sys
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner
from gateway_helpers import Stub, bearer, chat, stub

from odd_server import SSE, sse
from paceline.cli.app import app as cli
from paceline.limiter import tally
from waits import soon, until

sys.path.append(str(Path(__file__).parents[1] / "stores"))

from redis_servers import RedisServer

USER = "X-OpenWebUI-User-Id"
TEAMS = ("search", "billing", "apps", "interns")
SERVICES = ("crawler", "portal", "reports")
EPOCH = dt.date(1970, 1, 1)
DAYS = [(dt.date(2026, 10, 30) - EPOCH).days + n for n in range(4)]
PRICE = 1e-4  # of a token, in USD
OUTPUT_MAX = 20

LONG = pytest.mark.long("hundreds of calls of an operator's month; each part has its own test")


class Provider(Stub):
    """Counts what it answers, by the name in the request and the day: of the gateway it knows the provider's key alone."""

    def __init__(self):
        self.counted, self.day, self.number = {}, DAYS[0], itertools.count()

    def answer(self, _path, headers, body):
        number = next(self.number)
        assert USER.lower() not in headers
        if number % 97 == 96:
            return {"error": {"message": "a fault of the server"}}, 500
        asked = json.loads(body)
        usage = {"prompt_tokens": 1 + number % 5, "completion_tokens": 1 + number % OUTPUT_MAX}
        sums = self.counted.setdefault((self.day, asked["user"]), [0, 0, 0])
        for place, amount in enumerate((1, *usage.values())):
            sums[place] += amount
        if not asked.get("stream"):
            choice = {"index": 0, "message": {"content": "Hi."}, "finish_reason": "stop"}
            return {"choices": [choice], "usage": usage}, 200
        chunk = {"choices": [{"index": 0, "delta": {"content": "Hi."}}]}
        return b"".join([*sse(chunk, {"choices": [], "usage": usage}), b"data: [DONE]\n\n"]), 200, SSE

    def sums(self, group, days):
        """What it has counted on some days, by what ``group`` makes of the day and the name."""
        found = {}
        for (day, who), sums in self.counted.items():
            if day in days:
                name = group(day, who)
                found[name] = [a + b for a, b in zip(found.get(name, (0, 0, 0)), sums, strict=True)]
        return found


class Month:
    """The gateways, and those that use them."""

    def __init__(self, serve, keys, store, url):
        prices = {"openai/gpt-5": {"input": PRICE * 1e6, "output": PRICE * 1e6}}
        self.next = lambda: serve(url, limits={"*": "1_000_000 requests/min"}, prices=prices, store=store)
        self.secrets = {f"dev-{n}": keys.add(f"dev-{n}", team=TEAMS[n % 4]) for n in range(30)}
        self.secrets |= {name: keys.add(name, users=USER * (name == "portal")) for name in SERVICES}
        self.ops = keys.add("ops", may_read=True)
        self.gateways = [self.next() for _ in range(2)]

    def restart(self, which):
        """The next process serves before the one before ends."""
        before, self.gateways[which] = self.gateways[which], self.next()
        before.stop()

    async def ask(self, session, number):
        """One call, until it is answered; another gateway is asked where one has ended."""
        names = [*self.secrets]
        name = names[number % len(names)]
        body = chat(max_tokens=OUTPUT_MAX, user=name)
        headers = bearer(self.secrets[name])
        if name == "portal":
            headers[USER] = f"person-{number % 20}"
            body["user"] = f"portal/{headers[USER]}"
        if number % 5 == 0:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        for again in itertools.count(number):
            url = self.gateways[again % 2].url + "/openai/v1/chat/completions"
            try:
                async with session.post(url, json=body, headers=headers) as reply:
                    text = await reply.text()
            except aiohttp.ClientConnectionError:
                continue
            if reply.status == 200:
                return
            assert reply.status in (500, 502, 503), text

    async def phase(self, numbers, *events):
        """Calls, with what happens meanwhile, each after an equal part of them."""
        due, done, numbers = list(events), 0, list(numbers)
        each = len(numbers) // (len(due) + 1)
        queue = iter(numbers)

        async def work(session):
            nonlocal done
            for number in queue:
                await self.ask(session, number)
                done += 1
                if due and done >= each * (len(events) + 1 - len(due)):
                    await asyncio.to_thread(due.pop(0))

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*(work(session) for _ in range(32)))
        for one in self.gateways:
            await soon(lambda: not any(pool["in_flight"] for pool in one.limiter.status()["pools"].values()))  # noqa: B023

    def bill(self, by, month):
        """The bill of a month as the command prints it."""
        arguments = ["usage", self.gateways[0].url, "--by", by, "--month", month, "--csv"]
        done = CliRunner().invoke(cli, arguments, env={"PACELINE_KEY": self.ops})
        assert done.exit_code == 0, done.output
        rows = list(csv.DictReader(io.StringIO(done.stdout)))
        for row in rows:
            assert float(row["usd"]) == pytest.approx(PRICE * (int(row["input_tokens"]) + int(row["output_tokens"])))
        return {row[by]: [int(row[name]) for name in ("requests", "input_tokens", "output_tokens")] for row in rows}


@pytest.mark.parametrize("calls", [pytest.param(200, marks=LONG), pytest.param(50_000, marks=pytest.mark.soak)])
async def test_the_bill_agrees_with_the_providers_count(serve, keys, monkeypatch, calls):
    provider, part = Provider(), calls // 4
    monkeypatch.setattr(tally, "today", lambda: provider.day)
    monkeypatch.setattr("paceline.gateway.app.FLUSH_S", 0.05)

    def empty():
        """What gateways that have ended have told is known to those that run by then."""
        for one in month.gateways:
            kept, rows = one.gateway._tally._kept, one.gateway._tally._remembered._rows
            until(lambda: all(row in rows or row[1] == tally.WITNESS for row in kept.read(DAYS[0], DAYS[-1])))  # noqa: B023
        redis.ask("FLUSHALL")

    with RedisServer() as redis, stub(provider) as url:
        month = Month(serve, keys, redis.url, url)
        await month.phase(range(part), lambda: month.restart(1))
        provider.day = DAYS[1]
        await month.phase(range(part, 2 * part), empty)
        provider.day = DAYS[2]
        keys.change("dev-0", team="apps")
        for one in month.gateways:
            one.gateway._admission._keys._read()  # a request would look, and might be too soon after another one
        await month.phase(range(2 * part, 3 * part), lambda: month.restart(0), lambda: month.restart(1))
        provider.day = DAYS[3]
        await month.phase(range(3 * part, calls), empty)

        teams = {f"dev-{n}": TEAMS[n % 4] for n in range(30)}

        def team(day, who):
            return "apps" if who == "dev-0" and day >= DAYS[2] else teams.get(who, "-")

        for name, days in (("2026-10", DAYS[:2]), ("2026-11", DAYS[2:])):
            expected = {
                "team": provider.sums(team, days),
                "key": provider.sums(lambda _, who: who.partition("/")[0], days),
                "user": provider.sums(lambda _, who: who, days),
            }
            for one in month.gateways:
                one.gateway._tally.flush()
            for by, sums in expected.items():
                assert await asyncio.to_thread(month.bill, by, name) == sums
    assert sum(sums[0] for sums in provider.counted.values()) == calls
