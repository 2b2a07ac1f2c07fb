"""Limits and budgets of lanes, through an attached client against an emulated provider."""

import datetime as dt

import httpx2
import pytest

import paceline
from paceline.core.quota import Quota
from paceline.core.results import QuotaError
from paceline.emulator import Emulator
from paceline.providers.base import Usage
from paceline.providers.prices import Prices
from paceline.testing import ManualClock

BIG = {"*": "100k requests/min"}
PRICES = {"openai/gpt-5": {"input": 1_000.0, "output": 10_000.0}}  # 0.001 and 0.01 a token
MORNING_S = int(dt.datetime(2026, 11, 23, 8, tzinfo=dt.UTC).timestamp())


@pytest.fixture(scope="module")
def server():
    with Emulator(BIG, latency_s=0.0, output_share=1.0, output_spread=0.0) as emulator:
        yield emulator


def client_of(limiter, server):
    client = httpx2.Client(base_url=server.base_url, headers={"authorization": "Bearer k"}, trust_env=False)
    return limiter.attach(client, provider="openai")


def ask(client, *, stream=False, tokens=10, path="/v1/chat/completions", model="gpt-5"):
    body = {"model": model, "max_tokens": tokens, "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    return client.post(path, json=body | ({"stream_options": {"include_usage": True}} if stream else {}))


def limiter_with(**options):
    return paceline.Limiter(BIG, prices=PRICES, clock=ManualClock(MORNING_S), **options)


def spent(limiter, pool="budget"):
    return limiter.status()["pools"][pool]["quotas"][0]["spent"]


class TestBudget:
    @pytest.mark.parametrize("stream", [False, True])
    def test_it_is_charged_with_what_the_answer_reports(self, server, stream):
        limiter = limiter_with(budget="10 usd/day")
        usage = 0.0
        with client_of(limiter, server) as client:
            for _ in range(3):
                answer = ask(client, stream=stream)
                used = answer.extensions["paceline"].usage
                usage += used.input_tokens * 0.001 + used.output_tokens * 0.01
        assert spent(limiter) == pytest.approx(usage, abs=0.001)
        assert 0 < usage < 1

    def test_a_spent_one_is_a_clear_error_and_nothing_is_sent(self, server):
        limiter = limiter_with(budget="0.25 usd/day")
        with client_of(limiter, server) as client:
            codes = [ask(client).status_code for _ in range(9)]
            sent = server.tally()["admitted"]
            answer = ask(client)
        assert codes.count(200) == 2
        assert codes[2:] == [429] * 7
        assert answer.status_code == 429
        assert answer.headers["x-should-retry"] == "false"
        assert answer.headers["x-paceline"] == "budget"
        assert int(answer.headers["retry-after"]) == 16 * 3_600
        message = answer.json()["error"]["message"]
        assert "not enough is left of the budget, 0.25 usd/day, for this request of about 0.1" in message
        assert server.tally()["admitted"] == sent
        assert spent(limiter) <= 0.25

    def test_it_restarts_with_the_day(self, server):
        limiter = limiter_with(budget="0.12 usd/day")
        with client_of(limiter, server) as client:
            assert [ask(client).status_code for _ in range(2)] == [200, 429]
            limiter.pacer.clock.advance(16 * 3_600)
            assert ask(client).status_code == 200

    def test_a_month(self, server):
        limiter = limiter_with(budget="0.12 usd/month")
        with client_of(limiter, server) as client:
            assert [ask(client).status_code for _ in range(2)] == [200, 429]
            limiter.pacer.clock.advance(7 * 86_400)
            answer = ask(client)
            assert int(answer.headers["retry-after"]) == 16 * 3_600  # it is 30 November
            limiter.pacer.clock.advance(86_400)
            assert ask(client).status_code == 200

    def test_a_request_above_the_whole_budget(self, server):
        limiter = limiter_with(budget="1 usd/day")
        with client_of(limiter, server) as client:
            answer = ask(client, tokens=200)
        assert answer.status_code == 429
        assert "is estimated at 2.0" in answer.json()["error"]["message"]
        assert "retry-after" not in answer.headers

    def test_what_failed_costs_nothing(self, server):
        limiter = limiter_with(budget="10 usd/day")
        with client_of(limiter, server) as client:
            server.reset(valid_key="other")
            assert ask(client).status_code == 401
            server.reset(valid_key=None)
            with pytest.raises(httpx2.ConnectError):
                ask(client, path="http://127.0.0.1:9/v1/chat/completions")
        assert spent(limiter) == 0

    def test_lanes_have_their_own(self, server):
        lanes = [paceline.LaneSpec("alice", limits=(Quota.parse("0.12 usd/day"),))]
        limiter = limiter_with(budget="10 usd/day", lanes=lanes)
        with client_of(limiter, server) as client:
            with paceline.lane("alice"):
                assert [ask(client).status_code for _ in range(2)] == [200, 429]
            assert ask(client).status_code == 200
        pools = limiter.status()["pools"]
        assert pools["budget/alice"]["quotas"][0]["remaining"] == pytest.approx(0.12 - spent(limiter, "budget/alice"))
        assert spent(limiter) > spent(limiter, "budget/alice")

    def test_most_of_it_is_a_warning_once(self, server, caplog):
        limiter = limiter_with(budget="0.25 usd/day")
        with client_of(limiter, server) as client:
            for _ in range(3):
                ask(client)
        assert [record.message for record in caplog.records if "is spent" in record.message] == [
            f"budget: {spent(limiter):.4g} of 0.25 usd/day is spent or reserved"
        ]

    @pytest.mark.long("waits twice as long as a request waits for a budget")
    def test_it_survives_a_restart_with_a_store(self, server, tmp_path):
        store = f"sqlite:{tmp_path / 'quotas.db'}"
        for expected in ([200, 429], [429, 429]):
            limiter = paceline.Limiter(BIG, prices=PRICES, budget="0.15 usd/day, 5 usd/month", store=store)
            with client_of(limiter, server) as client:
                assert [ask(client).status_code for _ in range(2)] == expected
            limiter.close()


class TestLimits:
    def test_requests_of_a_lane_wait(self, server):
        limiter = paceline.Limiter(
            BIG, lanes=[paceline.LaneSpec("alice", limits=(Quota.parse("1200 requests/min burst 2"),))]
        )
        with client_of(limiter, server) as client, paceline.lane("alice"):
            for _ in range(6):
                assert ask(client).status_code == 200
        pool = limiter.status()["pools"]["lane/alice"]
        assert pool["counts"] == {"granted": 6, "settled": 6}
        assert pool["wait_s"]["longest"] > 0

    def test_they_can_be_changed(self, server):
        limiter = limiter_with()
        with client_of(limiter, server) as client, paceline.lane("alice"):
            assert ask(client).status_code == 200
            limiter.limit_lane("alice", "0.01 usd/day")
            assert ask(client).status_code == 429
            limiter.limit_lane("alice", ())
            assert ask(client).status_code == 200

    @pytest.mark.parametrize("limits", ["5 starts/min", "usd", "5 requests/fortnight"])
    def test_invalid_ones_are_errors(self, limits):
        with pytest.raises(QuotaError):
            limiter_with().limit_lane("alice", limits)

    def test_a_budget_is_in_dollars(self):
        with pytest.raises(QuotaError, match="its unit must be usd"):
            limiter_with(budget="5 requests/min")


class TestPrices:
    def test_of_the_library(self):
        prices = Prices({})
        usage = Usage(input_tokens=1_000_000, output_tokens=100_000, cached_tokens=500_000)
        assert prices.usd("openai", "gpt-4o", usage) == pytest.approx(0.5 * 2.5 + 0.5 * 1.25 + 0.1 * 10)
        assert prices.usd("openai", "gpt-4o", Usage(input_tokens=1_000)) == pytest.approx(0.0025)
        assert prices.usd("gemini", "gemini-2.5-pro", Usage(input_tokens=300_000)) > 2 * prices.usd(
            "gemini", "gemini-2.5-pro", Usage(input_tokens=100_000)
        )  # a dearer tier

    def test_given_ones_take_precedence(self):
        prices = Prices({"gpt-4o": {"input": 1, "output": 2, "cached": 0.5}})
        usage = Usage(input_tokens=3_000_000, output_tokens=1_000_000, cached_tokens=1_000_000)
        assert prices.usd("openai", "gpt-4o", usage) == 2 * 1 + 0.5 + 2

    def test_an_unknown_model_is_never_free(self, caplog):
        prices = Prices({})
        dear = prices.usd("openai", "my-own-model", Usage(input_tokens=1_000_000))
        assert dear >= prices.usd("openai", "gpt-4o", Usage(input_tokens=1_000_000))
        assert "no price is known of the model my-own-model of openai" in caplog.text
        assert prices.usd("vllm", "local", Usage(input_tokens=1_000_000)) == 0
        assert "counts as free" in caplog.text

    @pytest.mark.parametrize("price", [{"input": 1}, {"input": -1, "output": 1}, {"input": 1, "output": 1, "x": 1}])
    def test_invalid_ones_are_errors(self, price):
        with pytest.raises(QuotaError, match=r"price of 'openai/gpt-5'"):
            Prices({"openai/gpt-5": price})
