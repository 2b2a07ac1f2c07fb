"""Who has used what: the sums of each key, over restarts and processes."""

import asyncio
import json

import aiohttp
import pytest
from gateway_helpers import CHAT, bearer, chat, samples_in
from test_gateway import Odd

from paceline.core.results import SettingsError, StoreError
from paceline.gateway.errors import RequestError
from paceline.gateway.usage import report
from paceline.limiter import tally as module
from paceline.limiter.limiter import Limiter
from paceline.limiter.tally import FIELDS, Tally
from paceline.pacing.allowances import Allowances
from paceline.providers.base import Usage
from paceline.stores.tallies import OwnTallies
from paceline.telemetry import prometheus
from paceline.telemetry.merged import merged
from waits import join, soon, started, until

USAGE = "/api/v1/usage"
REFUSED = b'{"error": {"message": "The server is overloaded", "type": "server_error", "code": "server_overloaded"}}'
BROKEN = b'{"error": {"message": "The server had an error", "type": "server_error"}}'


def answer(cached=0):
    details = {"prompt_tokens_details": {"cached_tokens": cached}}
    usage = {"prompt_tokens": 1_000, "completion_tokens": 100, **(details if cached else {})}
    return json.dumps({"choices": [{"message": {"content": "Hi."}}], "usage": usage}).encode()


class TestWhoUsedWhat:
    def test_the_dollars_of_a_key_are_those_of_its_budget(self, serve, keys, client):
        alice = keys.add("alice", limits=("10 usd/day",))
        prices = {"openai/gpt-5": {"input": 1.0, "output": 1.0}, "openai/dear": {"input": 100.0, "output": 100.0}}
        running = serve(Odd([answer()]), limits={"*": "100k requests/min"}, prices=prices)
        asked = chat(max_tokens=100, fallbacks=[{"model": "dear"}])
        assert client.post(running.url + CHAT, json=asked, headers=bearer(alice)).status_code == 200
        used = client.get(running.url + USAGE, headers=bearer(alice)).json()["keys"]["alice"]["usd"]
        (budget,) = running.limiter.status()["pools"]["budget/alice"]["quotas"]
        assert used == pytest.approx(0.11)  # the price of the dearest model, which may have answered
        assert budget["remaining"] == pytest.approx(10 - used)

    def test_a_key_reads_its_own_and_an_operator_all(self, serve, keys, client):
        alice, bob, ops = keys.add("alice"), keys.add("bob", models=("gpt-5",)), keys.add("ops", may_read=True)
        running = serve(Odd([answer(cached=400)]), limits={"*": "100k requests/min"})
        for key in (alice, alice, bob):
            assert client.post(running.url + CHAT, json=chat(), headers=bearer(key)).status_code == 200
        refused = client.post(running.url + CHAT, json=chat(model="gpt-4o"), headers=bearer(bob))
        assert refused.status_code == 403
        client.get(running.url + "/openai/v1/models", headers=bearer(alice))  # costs nothing, and is refused

        def used(key, query=""):
            reply = client.get(running.url + USAGE + query, headers=bearer(key))
            return reply.json()["keys"] if reply.status_code == 200 else reply.status_code

        until(lambda: used(ops).keys() == {"alice", "bob"})
        own = used(alice)
        assert own.keys() == {"alice"}
        days = own["alice"].pop("days")
        usd = 2 * (600 * 1.25 + 400 * 0.125 + 100 * 10) / 1e6  # of gpt-5, 2026-11
        expected = dict(zip(FIELDS, (2, 2_000, 800, 200, pytest.approx(usd), 0), strict=True))
        assert (own["alice"], list(days.values())) == (expected, [expected])
        assert used(bob)["bob"]["requests"] == 1
        assert used(ops) == used(alice) | used(bob)
        assert used("pk-wrong") == 401
        assert used(bob, "?from=2999-01-01&to=2999-01-02")["bob"] == {**dict.fromkeys(FIELDS, 0), "days": {}}
        assert used(bob, "?to=yesterday") == 400
        assert client.get(running.url + "/status", headers=bearer(alice)).status_code == 403

        text = client.get(running.url + "/metrics", headers=bearer(ops)).text
        samples = samples_in(text)
        assert samples["paceline_key_requests_total", "alice"] == 2
        assert samples["paceline_key_tokens_total", "alice", "cached"] == 800
        assert samples["paceline_key_usd_total", "bob"] == pytest.approx(usd / 2)
        assert not any(secret in text for secret in (alice, bob, ops))

    @pytest.mark.parametrize(
        ("event", "times"),
        [(b"", 1), (answer(), 0), (REFUSED, 0), (BROKEN, 0)],
        ids=["no", "yes", "refused", "failed"],
    )
    def test_streams_that_report_none_are_told_once(self, serve, keys, client, caplog, event, times):
        alice = keys.add("alice")
        parts = [b'data: {"choices": [{"index": 0, "delta": {"content": "Hi."}}]}\n\n', b"data: [DONE]\n\n"]
        parts[1:1] = [b"data: " + event + b"\n\n"] if event else []
        running = serve(Odd(parts, {"content-type": "text/event-stream"}), limits={"*": "100k requests/min"})
        for stream in (True, True, False):
            client.post(running.url + CHAT, json=chat(stream=stream), headers=bearer(alice))
        assert caplog.text.count("openai/gpt-5, key alice: its streams report no usage") == times

    def test_a_stream_counts_what_it_reports_and_what_is_refused_counts_nothing(self, serve, emulator, client):
        emulator.reset(limits={"*": "100k requests/min"}, latency_s=0.0, valid_key=None, start_level=1.0)
        running = serve(emulator.base_url, limits={"*": "100k requests/min"}, max_attempts=1)
        body = chat(stream=True, stream_options={"include_usage": True})
        lines = client.post(running.url + CHAT, json=body).text.splitlines()
        usage = json.loads(next(line for line in lines if '"usage": {' in line or '"usage":{' in line)[6:])["usage"]
        emulator.set_limits({"*": "1 requests/day"})
        assert client.post(running.url + CHAT, json=chat()).status_code == 200
        assert client.post(running.url + CHAT, json=chat()).status_code == 429
        until(lambda: client.get(running.url + USAGE).json()["keys"]["-"]["requests"] == 2)
        assert client.get(running.url + USAGE).json()["keys"]["-"]["output_tokens"] >= usage["completion_tokens"]

    def test_it_survives_a_restart_and_is_summed_over_processes(self, serve, emulator, client, tmp_path):
        store = f"sqlite:{tmp_path / 'gateway.db'}"
        first = serve(emulator.base_url, store=store)
        client.post(first.url + CHAT, json=chat())
        first.stop()
        running = [serve(emulator.base_url, store=store) for _ in range(2)]
        for one in running:
            client.post(one.url + CHAT, json=chat())

        def requests(one):
            return client.get(one.url + USAGE).json()["keys"]["-"]["requests"]

        until(lambda: [requests(one) for one in running] == [3, 3])
        assert [one.gateway._tally.since_start()["-"]["requests"] for one in running] == [1, 1]

    async def test_a_client_that_leaves_the_queue_has_used_nothing(self, serve, keys, emulator, client):
        alice = keys.add("alice", limits=("1 usd/day",))
        running = serve(emulator.base_url, limits={"gpt-5": "1 requests/min"})
        assert client.post(running.url + CHAT, json=chat(), headers=bearer(alice)).status_code == 200
        until(lambda: running.pool("budget/alice")["in_flight"] == 0)
        (before,) = running.pool("budget/alice")["quotas"]

        async with aiohttp.ClientSession(headers=bearer(alice)) as session:
            task = asyncio.create_task(session.post(running.url + CHAT, json=chat())._coro)
            await soon(lambda: running.pool()["waiting"])
            task.cancel()
        until(lambda: len(running.dispatch.held.places) == 1)
        running.loop.call_soon_threadsafe(running.dispatch.held.places.clear)  # as after a minute
        until(lambda: running.pool("budget/alice")["in_flight"] == 0)
        (after,) = running.pool("budget/alice")["quotas"]
        assert after["spent"] == before["spent"]
        assert client.get(running.url + USAGE, headers=bearer(alice)).json()["keys"]["alice"]["requests"] == 1


class Lost(OwnTallies):
    """A place that fails when it is told to."""

    fails = False

    def tell(self, rows):
        if self.fails:
            raise StoreError("away")
        return super().tell(rows)


class TestTally:
    @pytest.fixture
    def limiter(self):
        with Limiter({"*": "1 requests/s"}) as limiter:
            yield limiter

    @pytest.fixture
    def tally_in(self, limiter):
        """Make a tally whose sums are in a place."""

        def begun(kept):
            tally = Tally(limiter, lambda lane: lane, kept)
            tally.begin()
            return tally

        return begun

    def test_what_cannot_be_written_is_written_later(self, tally_in):
        tally = tally_in(kept := Lost())
        kept.fails = True
        tally.count("a", "openai", "gpt-5", Usage(input_tokens=10))
        for _ in range(2):
            with pytest.raises(StoreError):
                tally.flush()
            tally.count("a", "openai", "gpt-5", Usage(input_tokens=10))
        with pytest.raises(RequestError, match="cannot be read now: away"):
            report(tally, None, "")
        kept.fails = False
        tally.end()
        assert report(tally, "a", "")["keys"]["a"]["input_tokens"] == 30

    def test_a_finalizer_may_count_anywhere(self, limiter, monkeypatch):
        """Garbage may be collected while the lock is held, and a request that is garbage is then closed and counted."""
        kept, inner = OwnTallies(), module.added
        tally = Tally(limiter, lambda lane: lane, kept)

        def collecting(*given):
            tally.count("a", "openai", "gpt-5", Usage(input_tokens=1))
            return inner(*given)

        tally.count("a", "openai", "gpt-5", Usage(input_tokens=1))
        monkeypatch.setattr(module, "added", collecting)
        for use in (tally.since_start, tally.flush):
            join(started(use))
        monkeypatch.undo()
        counted = tally.since_start()["a"]["input_tokens"]
        assert counted > 2
        tally.flush()
        assert kept.read(0, 10**6).popitem()[1][0] == counted

    def test_unknown_prices_are_counted_apart(self, tally_in, monkeypatch):
        tally = tally_in(OwnTallies())
        tally.count("a", "vllm", "my-own", Usage(input_tokens=10))
        tally.count("a", "vllm", "my-own", Usage(input_tokens=10, usd=0.25))
        found = tally.since_start()["a"]
        assert (found["requests"], found["usd"], found["unpriced_requests"]) == (2, 0.25, 1)

        def missing(*_):
            raise SettingsError("pip install")

        monkeypatch.setattr(Allowances, "price", missing)
        tally = tally_in(OwnTallies())
        tally.count("a", "openai", "gpt-5", Usage(input_tokens=10))
        assert (report(tally, None, "")["priced"], tally.since_start()["a"]["unpriced_requests"]) == (False, 1)

    def test_days_are_kept_apart(self, tally_in, monkeypatch):
        tally = tally_in(OwnTallies())
        for day in (20_000, 20_001, 20_001):
            monkeypatch.setattr(module, "today", lambda day=day: day)
            tally.count("a", "openai", "gpt-5", Usage(input_tokens=10))
        found = report(tally, "a", "from=2024-10-04&to=2024-10-05")
        assert {day: row["requests"] for day, row in found["keys"]["a"]["days"].items()} == {
            "2024-10-04": 1, "2024-10-05": 2
        }  # fmt: skip
        assert report(tally, "a", "to=2024-10-04")["keys"]["a"]["requests"] == 1

    def test_a_request_that_ends_within_a_count_is_counted(self, limiter):
        """The same, within a count."""
        orphans = [Usage(input_tokens=1)]

        class Collecting(dict):
            def setdefault(self, where, sums):
                if orphans:
                    tally.count("a", "openai", "gpt-5", orphans.pop())
                return super().setdefault(where, sums)

        tally = Tally(limiter, lambda lane: lane, OwnTallies())
        tally._news = Collecting()
        join(started(tally.count, "a", "openai", "gpt-5", Usage(input_tokens=10)))
        found = tally.since_start()["a"]
        assert (found["requests"], found["input_tokens"]) == (2, 11)

    def test_labels_are_bounded(self, monkeypatch):
        monkeypatch.setattr(prometheus, "KEYS_MAX", 1)
        row = dict.fromkeys(FIELDS, 2)
        status = {"pools": {}, "keys": {"b": row, "a": row}}
        found = merged([status, status])
        assert found["keys"]["b"]["requests"] == 4
        text = prometheus.exposition(found).decode()
        assert 'paceline_key_requests_total{key="b"} 4.0' in text
        assert 'paceline_key_requests_total{key="other"} 4.0' in text
        assert 'key="a"' not in text
        text = prometheus.exposition({"pools": {}, "keys": {"other": row, "a": row}}).decode()
        assert 'paceline_key_requests_total{key="other"} 4.0' in text
