"""Limits and budgets of lanes, through an attached client against an emulated provider."""

import asyncio
import datetime as dt
import json
from contextlib import closing, suppress

import chats
import httpx2
import pytest
from chats import ANSWER, PATH, attached, pool_of
from http_ways import KEY

import paceline
from memory_store import MemoryStore
from paceline.core.budget import BudgetWaiter
from paceline.core.queue import DEFAULT_LANE
from paceline.core.quota import NS, Quota
from paceline.core.results import QuotaError, Reservation, SettingsError
from paceline.emulator import Emulator
from paceline.providers.base import Usage
from paceline.providers.prices import STARTS, Prices
from paceline.testing import ManualClock, run_virtual

BIG = {"*": "100k requests/min"}
PRICES = {"openai/gpt-5": {"input": 1_000.0, "output": 10_000.0}}  # 0.001 and 0.01 a token
CACHED = {"input": 1, "output": 2, "cached": 0.5}
FEES = {"input": 1, "output": 2, "cache_write": 3, "hour_write": 4, "request": 0.5}
MORNING_S = int(dt.datetime(2026, 11, 23, 8, tzinfo=dt.UTC).timestamp())


@pytest.fixture(scope="module")
def server():
    with Emulator(BIG, latency_s=0.0, output_share=1.0, output_spread=0.0) as emulator:
        yield emulator


def client_of(limiter, server):
    client = httpx2.Client(base_url=server.base_url, headers=KEY, trust_env=False, verify=False)
    return limiter.attach(client, provider="openai")


def body(*, stream=False, tokens=10, model="gpt-5"):
    asked = {"model": model, "max_tokens": tokens, "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    return asked | ({"stream_options": {"include_usage": True}} if stream else {})


def ask(client, *, path=PATH, **fields):
    return client.post(path, json=body(**fields))


def limiter_with(*, prices=PRICES, **options):
    return paceline.Limiter(BIG, prices=prices, clock=ManualClock(MORNING_S), **options)


def spent(limiter, pool="budget"):
    return chats.spent(limiter, pool)["usd"]


def taken(limiter):
    """What is spent or reserved."""
    [quota] = pool_of(limiter, "budget")["quotas"]
    return round(quota["limit"] - quota["remaining"], 6)


class TestBudget:
    def test_a_spent_one_is_a_clear_error_and_nothing_is_sent(self, server):
        limiter = limiter_with(budget="0.25 usd/day")
        with client_of(limiter, server) as client:
            codes = [ask(client).status_code for _ in range(9)]
            sent = server.tally()["admitted"]
            answer = ask(client)
        assert codes == [200] * 3 + [429] * 6  # the third one goes alone: something was left
        said = "paceline: budget: nothing is left of the budget, 0.25 usd/day; it is allowed in 57,600 s (16.0 hours)"
        assert (answer.status_code, answer.json()["error"]["message"]) == (429, said)
        assert answer.headers["x-should-retry"] == "false"
        assert answer.headers["x-paceline"] == "budget"
        assert int(answer.headers["retry-after"]) == 16 * 3_600
        assert server.tally()["admitted"] == sent
        assert 0.25 < spent(limiter) <= 0.25 + 0.11

    def test_what_failed_costs_nothing(self, server):
        limiter = limiter_with(budget="10 usd/day")
        with client_of(limiter, server) as client:
            server.reset(valid_key="other")
            assert ask(client).status_code == 401
            server.reset(valid_key=None)
            with pytest.raises(httpx2.ConnectError):
                ask(client, path="http://127.0.0.1:9/v1/chat/completions")
        assert spent(limiter) == 0

    def test_most_of_it_is_a_warning_once(self, server, caplog):
        limiter = limiter_with(budget="0.25 usd/day")
        with client_of(limiter, server) as client:
            for _ in range(3):
                ask(client)
            limiter.pacer.clock.advance(86_400)
            for _ in range(3):
                ask(client)
        said = [record.message for record in caplog.records if "is spent" in record.message]
        assert said == ["budget: 0.216 of 0.25 usd/day is spent"] * 2  # once a day

    @pytest.mark.parametrize(("used", "said"), [(1, []), (10, ["budget: 0.202 of 0.25 usd/day is spent"])])
    def test_what_was_reserved_is_not_spent(self, used, said, caplog):
        """A store gives back what was not used with its next reply."""
        answer = ANSWER | {"usage": {"prompt_tokens": 1, "completion_tokens": used}}
        with closing(paceline.Limiter(BIG, prices=PRICES, budget="0.25 usd/day", store=MemoryStore())) as limiter:
            client = attached(limiter, lambda _: httpx2.Response(200, json=answer), "openai")
            assert [ask(client, tokens=23).status_code for _ in range(3)] == [200] * 3
        assert [record.message for record in caplog.records if "is spent" in record.message] == said

    @pytest.mark.parametrize("store", [None, MemoryStore()])
    def test_the_status_shows_nothing_as_spent_that_is_reserved(self, store):
        in_flight = []

        def answer(_):
            in_flight.append((spent(limiter), taken(limiter) > spent(limiter)))
            return httpx2.Response(200, json=ANSWER | {"usage": {"prompt_tokens": 1, "completion_tokens": 1}})

        with closing(paceline.Limiter(BIG, prices=PRICES, budget="5 usd/day", store=store)) as limiter:
            client = attached(limiter, answer, "openai")
            assert [ask(client).status_code for _ in range(2)] == [200] * 2
        assert in_flight == [(0, True), (0.011, True)]

    def test_what_is_spent_is_read_while_nothing_changes(self, server, monkeypatch):
        """Other threads end their requests meanwhile."""
        limiter, inside = limiter_with(budget="0.25 usd/day"), []
        with client_of(limiter, server) as client:
            ask(client)
            [budget] = limiter.pacer.allowances.schedulers
            in_use = type(budget.pool.ledger).in_use

            def watched(ledger, index):
                inside.append(budget.section._lock._is_owned())
                return in_use(ledger, index)

            monkeypatch.setattr(type(budget.pool.ledger), "in_use", watched)
            ask(client)
        assert inside
        assert all(inside)

    @pytest.mark.parametrize("store", [None, MemoryStore()])
    @pytest.mark.parametrize(("first", "then", "served"), [
        ("0.15 usd/day", "5 usd/month", [200] * 3), ("0.15 usd/day, 5 usd/month", "5 usd/month", [200] * 3),
        ("0.15 usd/day, 0.15 usd/month", "0.15 usd/month", [429] * 3), ("0.15 usd/day", "0.25 usd/day", [200, 429, 429]),
    ])  # fmt: skip
    def test_one_that_is_taken_back_holds_no_more(self, server, store, first, then, served):
        lane = f"alice {first} {then}"
        with (
            closing(paceline.Limiter(BIG, prices=PRICES, store=store)) as limiter,
            client_of(limiter, server) as client,
        ):
            limiter.limit_lane(lane, first)
            with paceline.lane(lane):
                assert [ask(client).status_code for _ in range(3)] == [200, 200, 429]
                limiter.limit_lane(lane, then)
                assert [ask(client).status_code for _ in range(3)] == served
                limiter.limit_lane(lane, ())
                assert ask(client).status_code == 200

    def test_it_survives_a_restart_with_a_store(self, server, tmp_path):
        def limiter():
            return paceline.Limiter(BIG, prices=PRICES, budget="0.15 usd/day, 5 usd/month", store=store)

        store = f"sqlite:{tmp_path / 'quotas.db'}"
        with closing(limiter()) as first, client_of(first, server) as client:
            assert [ask(client).status_code for _ in range(3)] == [200, 200, 429]
        with closing(limiter()) as second, client_of(second, server) as client:
            assert [ask(client).status_code for _ in range(2)] == [429] * 2


class TestLimits:
    def test_requests_of_a_lane_wait(self, server):
        alice = paceline.LaneSpec("alice", limits=(Quota.parse("90 requests/min burst 1"),))
        limiter = paceline.Limiter(BIG, lanes=[alice])
        with client_of(limiter, server) as client, paceline.lane("alice"):
            for _ in range(2):  # the second one comes well before its time, on a busy machine too
                assert ask(client).status_code == 200
        pool = pool_of(limiter, "lane/alice")
        assert pool["counts"] == {"granted": 2, "settled": 2}
        assert pool["wait_s"]["longest"] > 0
        assert list(pool["waits"]) == ["alice"]

    def test_the_timeout_of_the_settings_bounds_their_wait(self, server):
        alice = paceline.LaneSpec("alice", limits="30 requests/min burst 1")
        limiter = paceline.Limiter(BIG, lanes=[alice], acquire_timeout_s=0.1)
        with client_of(limiter, server) as client, paceline.lane("alice"):
            answers = [ask(client) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 429]
        assert answers[1].headers["x-paceline"] == "timeout"

    @pytest.mark.parametrize("own", [{}, {"lanes": [paceline.LaneSpec("default", limits="1 requests/2min burst 1")]}])
    @pytest.mark.parametrize(("timeout_s", "sent"), [(50, 1), (70, 2)])
    def test_the_timeout_counts_waits_and_no_attempts(self, own, timeout_s, sent):
        """After an attempt of a minute, the next one may still wait a minute for its limits."""
        limiter = {"openai/gpt-5": "1k requests/min"} if own else {"openai/gpt-5": "1 requests/2min burst 1"}
        asked = []

        async def answer(_):
            asked.append(None)
            if len(asked) > 1:
                return httpx2.Response(200, json=ANSWER)
            await asyncio.sleep(60)
            raise httpx2.ReadError("broken")

        async def main(clock):
            retry = paceline.RetryPolicy(faults=True, backoff_s=0.0)
            pacer = paceline.Limiter(limiter, clock=clock, acquire_timeout_s=timeout_s, retry=retry, **own)
            async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
                pacer.attach(client)
                with suppress(httpx2.ReadError):
                    await client.post(chats.URL, json=chats.CHAT)

        run_virtual(main)
        assert len(asked) == sent

    def test_their_wait_is_told_in_the_event_and_beside_the_answer(self):
        told = []

        async def main(clock):
            own = [paceline.LaneSpec("default", limits="1 requests/2min burst 1")]
            limiter = paceline.Limiter({"*": "1 requests/min burst 1"}, lanes=own, clock=clock, events=told.append)
            async with httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _: answer)) as client:
                limiter.attach(client)
                return [(await client.post(chats.URL, json=chats.CHAT)).extensions["paceline"] for _ in range(2)]

        answer = httpx2.Response(200, json=ANSWER)
        records = run_virtual(main)
        waits = [event.waited_s for event in told if event.kind == "acquired"]
        assert waits == [record.waited_s for record in records]
        assert waits == pytest.approx([0, 120])

    def test_they_are_no_server_that_could_be_silent(self):
        """Requests of a lane that get no answer, or are left by their clients, say nothing of the next ones."""
        limiter = limiter_with(lanes=[paceline.LaneSpec("alice", limits=["6000 requests/min", "9 usd/day"])])
        pools = [scheduler.pool for scheduler in limiter.pacer.allowances.schedulers]
        assert [pool.name for pool in pools] == ["lane/alice", "budget/alice"]
        now_ns, cost = limiter.pacer.clock.now_ns(), {"requests": 1.0, "usd": 0.01}
        for pool in pools:
            pool.settle(now_ns, pool.try_grant(now_ns, BudgetWaiter(0.01, DEFAULT_LANE, None)), cost)
            for later_ns in (0, 10 * NS):
                granted = [pool.try_grant(now_ns + later_ns, BudgetWaiter(0.01, DEFAULT_LANE, None)) for _ in range(9)]
                assert all(isinstance(one, Reservation) for one in granted)

    @pytest.mark.parametrize("limits", ["5 starts/min", "usd", "5 requests/fortnight"])
    def test_invalid_ones_are_errors(self, limits):
        with pytest.raises(SettingsError):
            limiter_with().limit_lane("alice", limits)

    def test_a_budget_is_in_dollars(self):
        with pytest.raises(QuotaError, match="its unit must be usd"):
            limiter_with(budget="5 requests/min")


class TestUnpriced:
    """At a host without known prices."""

    @pytest.fixture
    def seen(self, server, monkeypatch):
        """What had been logged when each request was sent."""
        logged, sent = [], []
        monkeypatch.setattr("paceline.providers.prices.log.warning", lambda text, *args: logged.append(text % args))

        def answer(_request):
            sent.append(list(logged))
            return httpx2.Response(200, json=ANSWER)

        return sent, answer

    def ask(self, limiter, answer):
        with attached(limiter, answer, base_url="http://llm.example") as client:
            return ask(client)

    def test_a_budget_says_so_before_the_first_request(self, seen):
        sent, given = seen
        limiter = limiter_with(budget="10 usd/day")
        assert [self.ask(limiter, given).status_code for _ in range(2)] == [200, 200]
        [warned], again = sent
        assert "no price is known of gpt-5 at llm.example, so it counts as free" in warned
        assert (again, spent(limiter)) == ([warned], 0)

    def test_it_can_refuse_what_it_cannot_count(self, seen):
        sent, given = seen
        limiter = limiter_with(budget="10 usd/day", unpriced="refuse")
        answer = self.ask(limiter, given)
        assert (answer.status_code, answer.headers["x-paceline"]) == (429, "budget")
        assert "no price is known of gpt-5 at llm.example" in answer.json()["error"]["message"]
        assert "retry-after" not in answer.headers
        assert not sent
        assert spent(limiter) == 0

    @pytest.mark.parametrize("unpriced", ["count", "refuse"])
    def test_no_model_has_the_price_of_a_count_of_tokens(self, unpriced):
        limiter = limiter_with(budget="1 usd/day", unpriced=unpriced)
        ask(attached(limiter, httpx2.Response(200, json=ANSWER), "openai"), model="count_tokens")
        assert (spent(limiter) > 0) is (unpriced == "count")
        assert "openai/count_tokens" not in limiter.status()["pools"]

    def test_a_price_that_is_given_is_known(self, seen):
        sent, given = seen
        prices = {"llm.example/gpt-5": {"input": 1_000.0, "output": 1_000.0, "request": 0.5}}
        limiter = limiter_with(prices=prices, budget="10 usd/day", unpriced="refuse")
        assert self.ask(limiter, given).status_code == 200
        assert (sent, spent(limiter)) == ([[]], pytest.approx(0.517))

    def test_without_a_budget_no_price_is_needed(self, seen):
        _, given = seen
        assert self.ask(limiter_with(unpriced="refuse"), given).status_code == 200

    def test_it_is_one_of_two_words(self):
        with pytest.raises(SettingsError, match="unpriced is 'free': it must be 'count' or 'refuse'"):
            limiter_with(unpriced="free")


def test_a_tier_is_reserved_as_asked_and_charged_as_served(monkeypatch):
    """A request for priority that was served at the standard tier costs the standard price."""
    prices = {"openai/gpt-5": {"input": 0, "output": 0, "request": 1}}
    prices["openai/gpt-5@priority"] = {"input": 0, "output": 0, "request": 2}
    limiter = limiter_with(prices=prices, budget="10 usd/day")
    reserved = []

    served = [
        ({"service_tier": "default"}, {}),
        ({"service_tier": "priority"}, {}),
        ({}, {}),  # not reported: as asked
        ({}, {"x-gemini-service-tier": "standard"}),
    ]

    def answer(_request):
        reserved.append(taken(limiter))
        tier, headers = served.pop(0)
        return httpx2.Response(200, json=ANSWER | tier, headers=headers)

    client = attached(limiter, answer, "openai")
    charged = []
    while served:
        client.post(PATH, json={"model": "gpt-5", "messages": [], "service_tier": "priority"})
        charged.append(spent(limiter))
    assert (charged, reserved) == ([1, 3, 5, 6], [2, 3, 5, 7])


class TestPrices:
    @pytest.mark.parametrize(
        ("given", "provider", "model", "usage", "usd"),
        [
            ({"gpt-4o": CACHED}, "openai", "gpt-4o", Usage(3_000_000, 1_000_000, 1_000_000), 2 * 1 + 0.5 + 2),
            ({"m": FEES}, "x", "m", Usage(2_000_000, 0, 0, 2_000_000, 1_000_000), 3 + 4 + 0.5),
            ({}, "openrouter", "anything", Usage(1_000, 1_000, usd=0.25), 0.25),  # as it states
            ({}, "openrouter", "google/gemini-3-pro-image", Usage(0, 1_000), 0.001 * 120),  # pictures
            ({}, "vercel", "google/gemini-3-pro-image", Usage(0, 1_000), 0.001 * 120),
        ],
    )  # fmt: skip
    def test_given_ones_those_that_are_stated_and_those_of_resellers(self, given, provider, model, usage, usd):
        assert Prices(given).usd(provider, model, usage) == pytest.approx(usd)

    @pytest.mark.parametrize(
        ("provider", "name", "model"),
        [
            ("azure", "acme.openai.azure.com/gpt-4o", "gpt-4o"),
            ("vertex", "google/gemini-2.5-flash", "gemini-2.5-flash"),
            ("gemini", "models/gemini-2.5-flash", "gemini-2.5-flash"),
        ],
    )
    def test_of_a_longer_name(self, provider, name, model):
        prices = Prices({})
        assert prices.find(provider, name) == prices.find(provider, model) is not None

    def test_an_unknown_model_is_never_free(self, caplog):
        prices = Prices({})
        dear = prices.usd("openai", "my-own-model", Usage(input_tokens=1_000_000))
        assert dear >= prices.usd("openai", "gpt-4o", Usage(input_tokens=1_000_000))
        assert "no price is known of the model my-own-model of openai" in caplog.text
        assert prices.usd("vllm", "local", Usage(input_tokens=1_000_000)) == 0
        assert "counts as free" in caplog.text

    @pytest.mark.parametrize("price", [{"input": 1}, {"input": -1, "output": 1}, {"input": 1, "output": 1, "x": 1}])
    def test_invalid_ones_are_errors(self, price):
        with pytest.raises(SettingsError, match=r"price of 'openai/gpt-5'"):
            Prices({"openai/gpt-5": price})

    @pytest.mark.parametrize(
        ("model", "usage", "usd"),
        [
            ("gpt-5.5", Usage(1_000_000 // 4, 10_000), 0.25 * 5 + 0.01 * 30),
            ("gpt-5.5", Usage(1_000_000 // 4, 10_000, tier="default"), 0.25 * 5 + 0.01 * 30),
            ("gpt-5.5", Usage(1_000_000 // 4, 10_000, tier="flex"), 0.5 * (0.25 * 5 + 0.01 * 30)),
            ("gpt-5.5", Usage(1_000_000 // 4, 10_000, tier="priority"), 2.5 * (0.25 * 5 + 0.01 * 30)),
            ("gpt-5.5", Usage(272_000, 0), 0.272 * 5),
            ("gpt-5.5", Usage(272_001, 1_000, cached_tokens=72_001), 0.2 * 10 + 0.072001 * 1 + 0.001 * 45),
            ("claude-opus-5", Usage(10_000, 1_000), 0.01 * 5 + 0.001 * 25),
            ("claude-opus-5", Usage(10_000, 1_000, tier="fast"), 2 * (0.01 * 5 + 0.001 * 25)),
            ("claude-opus-5", Usage(10_000, 0, 0, 10_000), 0.01 * 6.25),
            ("claude-opus-5", Usage(10_000, 0, 0, 10_000, 4_000), 0.006 * 6.25 + 0.004 * 10),
            ("claude-opus-5", Usage(10_000, 0, 0, 10_000, 10_000, tier="fast"), 0.01 * 20),
            ("claude-haiku-5-5", Usage(100_001, 0), None),
            ("gemini-2.5-flash", Usage(0, 1_000), 0.001 * 2.5),
            ("gemini-nano-banana-2.1", Usage(0, 1_000), 0.001 * 30),  # as pictures
            ("gemini-3-pro-image", Usage(0, 1_000), 0.001 * 120),
            ("gemini-omni-1.1-flash", Usage(0, 1_000), 0.001 * 17.5),  # as a video
            ("sonar", Usage(1_000, 1_000), 0.002 + 0.012),
            ("search-api", Usage(), 0.005),
        ],
    )
    def test_tiers_lengths_writes_and_fees(self, model, usage, usd):
        makers = {"gpt": "openai", "claude": "anthropic", "gemini": "gemini"}
        provider, prices = makers.get(model.partition("-")[0], "perplexity"), Prices({})
        found = prices.usd(provider, model, usage)
        if usd is None:  # the price of the library, whatever it is
            import genai_prices

            asked = genai_prices.Usage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)
            usd = float(genai_prices.calc_price(asked, model_ref=model, provider_id=provider).total_price)
        assert found == pytest.approx(usd)

    def test_the_fee_of_a_request_is_no_part_of_the_price_of_a_token(self):
        price = Prices({}).find("perplexity", "sonar")
        assert (price.input, price.output, price.request) == pytest.approx((1, 1, 0.012))

    def test_a_tier_without_a_price_is_counted_as_standard_and_told_once(self, caplog):
        prices = Prices({"openai/mine": {"input": 1, "output": 2}, "openai/mine@flex": {"input": 0.5, "output": 1}})
        tier = Usage(1_000_000, 0, tier="ultrafast")
        assert [prices.usd("openai", "gpt-4o", tier) for _ in range(2)] == pytest.approx([2.5, 2.5])
        assert caplog.text.count("no price is known of the service tier ultrafast of gpt-4o at openai") == 1
        assert "'openai/gpt-4o@ultrafast'" in caplog.text
        assert prices.usd("openai", "mine", tier) == 1
        assert "no price is known of the service tier ultrafast of mine" in caplog.text
        caplog.clear()
        assert prices.usd("openai", "mine", Usage(1_000_000, 0, tier="flex")) == 0.5
        assert prices.usd("openai", "mine", Usage(1_000_000, 0, tier="default")) == 1
        assert not caplog.text

    def test_accounts_have_the_prices_of_their_provider_which_are_looked_up_and_missed_once(self, caplog):
        prices = Prices({"openai@eu/gpt-4o": {"input": 9, "output": 9}})
        accounts = [f"openai@{n:06x}" for n in range(3)]
        assert len({id(prices.find(account, "gpt-4o")) for account in accounts}) == 1
        assert prices.find("openai@eu", "gpt-4o").input == 9
        for account in accounts:
            prices.usd(account, "my-own-model", Usage(1_000, 0))
        assert caplog.text.count("no price is known") == 1

    def test_a_price_by_the_time_of_day_is_looked_up_again(self, monkeypatch):
        at = dt.datetime(2026, 11, 24, 12, tzinfo=dt.UTC)
        prices = Prices({})
        _, model = prices._model("deepseek", "deepseek-chat")
        asked = []
        monkeypatch.setattr(
            type(model), "calc_price", lambda *_, **__: asked.append(1) or type("Of", (), {"total_price": 1})
        )
        for minute in (0, 0, 1):
            monkeypatch.setattr("paceline.providers.prices.time.time", lambda m=minute: at.timestamp() + 60 * m)
            prices.usd("deepseek", "deepseek-chat", Usage(10))
        assert len(asked) == 2 * 10

    def test_every_length_at_which_a_known_price_changes_is_known(self):
        from genai_prices.data_snapshot import get_snapshot

        found = set()
        for each in get_snapshot().providers:
            for model in each.models:
                listed = model.prices if isinstance(model.prices, list) else [model]
                for price in [one.prices for one in listed] + [one.prices for one in model.price_variants or ()]:
                    tiers = [tier for value in vars(price).values() for tier in getattr(value, "tiers", ())]
                    found |= {tier.start for tier in tiers}
        assert found <= set(STARTS)


class TestMost:
    """What is reserved, and kept where the answer does not tell."""

    @staticmethod
    def client(answer, *, provider="openai", prices=PRICES, **options):
        limiter = limiter_with(prices=prices, budget="100 usd/day", **options)
        return limiter, attached(limiter, answer, provider)

    @pytest.mark.parametrize(
        ("then", "usd"),
        [
            (httpx2.Response(200, json=ANSWER | {"usage": {"prompt_tokens": 10, "completion_tokens": 1}}), 0.02),
            (httpx2.Response(400, json={"error": {"message": "no", "type": "invalid_request_error"}}), 0.0),
            (httpx2.ConnectError("refused"), 0.0),
        ],
        ids=["an answer", "an error", "no connection"],
    )
    def test_an_attempt_that_broke_is_counted_when_another_one_follows(self, then, usd):
        broken = [httpx2.ReadError("broken")]

        def answer(_request):
            outcome = broken.pop() if broken else then
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        limiter, client = self.client(answer, retry=paceline.RetryPolicy(faults=True, backoff_s=0.001, max_attempts=2))
        reserved = 10 * 0.01
        with suppress(httpx2.ConnectError):
            assert ask(client).status_code == then.status_code
        assert spent(limiter) == pytest.approx(reserved + usd, abs=0.02)

    @pytest.mark.parametrize(
        ("body", "usd"),
        [
            ({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5}}, 0.06),
            ({"error": {"message": "no"}, "usage": {"prompt_tokens": 10, "completion_tokens": 5}}, 0.06),
            ({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 0}}, 0.0),
            ({"choices": []}, 0.0),
        ],
        ids=["no choice", "an error", "no output", "no usage"],
    )
    def test_what_is_no_answer_costs_what_it_says_that_it_has_generated(self, body, usd):
        bodies = [ANSWER | {"usage": {"prompt_tokens": 10, "completion_tokens": 1}}, body]
        limiter, client = self.client(
            lambda _: httpx2.Response(200, json=bodies.pop()),
            retry=paceline.RetryPolicy(faults=True, backoff_s=0.001, max_attempts=2),
        )
        assert ask(client).status_code == 200
        assert spent(limiter) == pytest.approx(usd + 0.02, abs=0.005)

    def test_an_error_has_no_usage_and_no_charge_of_an_answer(self):
        usage = {"prompt_tokens": 10, "completion_tokens": 5}
        limiter, client = self.client(lambda _: httpx2.Response(200, json={"error": {"message": "no"}, "usage": usage}))
        record = ask(client).extensions["paceline"]
        assert (record.usage, record.charged) == (None, None)
        assert spent(limiter) == pytest.approx(0.06, abs=0.005)

    def test_what_the_beginning_of_a_stream_tells_is_not_reserved_any_more(self):
        seen = []
        usage = {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 1}
        start = {"type": "message_start", "message": {"role": "assistant", "usage": usage}}
        text = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hi."}}

        class Stream(httpx2.SyncByteStream):
            def __iter__(self):
                seen.append(taken(limiter))
                for event in (start, text):
                    yield f"data: {json.dumps(event)}\n\n".encode()
                seen.append(taken(limiter))

        def answer(_request):
            return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Stream())

        price = {"input": 1_000.0, "cached": 0.0, "cache_write": 2_000.0, "output": 10_000.0}
        limiter, client = self.client(answer, provider="anthropic", prices={"anthropic/claude-opus-5": price})
        asked = body(model="claude-opus-5") | {"stream": True, "messages": [{"role": "user", "content": "hi " * 100}]}
        client.post("/v1/messages", json=asked)
        before, after = seen
        assert before > 0.2 + 0.1  # a hundred tokens, written to the cache, and ten of output
        assert after == spent(limiter) == pytest.approx(0.01 + 0.1)

    def test_usage_that_headers_state(self):
        """Bedrock has it there alone if the body is a model's own."""
        headers = {"x-amzn-bedrock-input-token-count": "5", "x-amzn-bedrock-output-token-count": "10"}
        answer = httpx2.Response(200, json={"choices": [{"text": "Hi.", "stop_reason": "stop"}]}, headers=headers)
        prices = {"bedrock/deepseek.r1-v1:0": {"input": 0, "output": 1_000}}
        limiter, client = self.client(answer, provider="bedrock", prices=prices)
        client.post("/model/deepseek.r1-v1:0/invoke", json={"prompt": "hi", "max_tokens": 5_000})
        assert spent(limiter) == pytest.approx(0.01)

    @pytest.mark.parametrize(
        ("output", "usd"), [({"cheap": 10}, 0.01), ({"dear": 0, "cheap": 10}, 0.01), ({"dear": 90, "cheap": 10}, 1)]
    )
    def test_models_that_an_answer_names_are_charged(self, output, usd):
        steps = [{"type": "message", "model": model, "output_tokens": tokens} for model, tokens in output.items()]
        steps[-1]["type"] = "fallback_message"
        answer = {"type": "message", "content": [], "usage": {"output_tokens": output["cheap"], "iterations": steps}}
        prices = {f"anthropic/{name}": {"input": 0, "output": price} for name, price in (("cheap", 1e3), ("dear", 1e4))}
        limiter, client = self.client(httpx2.Response(200, json=answer), provider="anthropic", prices=prices)
        client.post("/v1/messages", json=body(model="dear") | {"fallbacks": [{"model": "cheap"}]})
        assert spent(limiter) == pytest.approx(usd)

    @pytest.mark.parametrize(
        ("model", "fields", "usd"),
        [
            ("gpt-5", {}, 1_280),
            ("gpt-5", {"n": 2}, 2_560),
            ("gpt-4", {}, 81.92),  # its context window
            ("my-own", {}, 10_000),  # a million tokens, alone
            ("gpt-5", {"max_tokens": 7}, 0.07),
            ("gpt-5", {"max_tokens": 7, "models": ["gpt-5", "dear"]}, 0.7),  # any of them may answer
            ("gpt-5", {"max_tokens": 7, "fallbacks": [{"model": "dear"}, 1, None]}, 0.7),
        ],
    )
    def test_an_answer_without_usage(self, model, fields, usd):
        outputs = {model: 1e4, "dear": 1e5, "1": 0}
        prices = {f"openai/{name}": {"input": 0, "output": price} for name, price in outputs.items()}
        limiter, client = self.client(httpx2.Response(200, json=ANSWER | {"usage": None}), prices=prices)
        client.post(PATH, json={"model": model, "messages": [], **fields})
        assert spent(limiter) == pytest.approx(usd)
