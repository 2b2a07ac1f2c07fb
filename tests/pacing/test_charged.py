"""What a permit was charged, what an estimate says beforehand, and what units cost that were left out."""

import warnings

import httpx2
import pytest

import paceline
from paceline.providers import parse
from paceline.testing import ManualClock

TOKENS, SIDES = ("tokens", "input_tokens"), {"input_tokens": 300, "output_tokens": 200}
POOLS = {
    "jobs": ["60 requests/min", "1000 tokens/min", "5 concurrency"],
    "starts": "7 starts/min",
    "openai/gpt-5": ["500 requests/min", "400k tokens/min"],
    "anthropic/claude-haiku-4-5": ["500 requests/min", "100k input_tokens/min", "20k output_tokens/min"],
    "gemini/gemini-2.5-flash": ["10 requests/min", "250k input_tokens/min"],
    "cohere/*": ["500 requests/min", "2000 inputs/min"],
    "bedrock/amazon.nova-pro-v1:0": "1M tokens/min",
    "own": "1M tokens/min",
}


@pytest.fixture
def limiter():
    return paceline.Limiter(POOLS, clock=ManualClock())


def spent(limiter, pool):
    return {quota["unit"]: quota["spent"] for quota in limiter.status()["pools"][pool]["quotas"]}


class TestCharged:
    @pytest.mark.parametrize(
        ("cost", "said", "charged"),
        [
            ({"tokens": 500}, {"tokens": 100}, {"tokens": 100}),
            ({"tokens": 500}, {}, {"tokens": 500}),
            ({"tokens": 500}, {"input_tokens": 30}, {"tokens": 30}),
            (SIDES, {}, SIDES | {"tokens": 500}),
            (SIDES, {"output_tokens": 20}, SIDES | {"tokens": 320, "output_tokens": 20}),
            ({"usd": 0.5, "tokens": 0}, {"usd": 0.25}, {"usd": 0.25, "tokens": 0}),
            ({"tokens": 0}, {"usd": 3}, {"tokens": 0}),
            ({}, {"tokens": 30}, {"tokens": 30, "input_tokens": 600, "output_tokens": 200}),
        ],
    )  # fmt: skip
    def test_units_of_the_quotas_and_of_the_cost(self, limiter, cost, said, charged):
        permit = limiter.try_acquire("jobs", **cost)
        permit.settle(**said)
        assert permit.charged == charged | {"requests": 1, "concurrency": 1}
        assert spent(limiter, "jobs")["tokens"] == charged["tokens"]

    @pytest.mark.parametrize("unit", ["input_token", "prompt_tokens", "total_tokens", "starts"])
    def test_a_unit_that_is_unknown_is_an_error(self, limiter, unit):
        permit = limiter.try_acquire("jobs", tokens=5)
        with pytest.raises(paceline.QuotaError, match=f"unknown unit '{unit}'"):
            permit.settle(**{unit: 5})
        permit.settle(tokens=3)
        assert permit.charged["tokens"] == 3

    @pytest.mark.parametrize(
        ("pool", "reserved", "charged"),
        [
            ("openai/gpt-5", {"input_tokens": 100, "output_tokens": 100}, {"input_tokens": 30, "output_tokens": 100}),
            ("openai/gpt-5", {"input_tokens": 100, "output_tokens": 10}, {"input_tokens": 30, "output_tokens": 20}),
            ("openai/gpt-5", {"tokens": 200}, {"tokens": 50}),  # no maximum is named
            ("jobs", {"input_tokens": 100, "output_tokens": 100}, {"input_tokens": 30, "output_tokens": 100}),
            ("groq/llama", {"input_tokens": 100, "output_tokens": 100}, {"input_tokens": 30, "output_tokens": 20}),
            ("anthropic/claude-haiku-4-5", {"input_tokens": 100, "output_tokens": 100}, {"input_tokens": 30, "output_tokens": 20}),
        ],
    )  # fmt: skip
    def test_an_answer_is_charged_as_its_provider_charges_it(self, limiter, pool, reserved, charged):
        permit = limiter.try_acquire(pool, **reserved)
        permit.settle({"usage": {"input_tokens": 30, "output_tokens": 20}})
        assert {unit: permit.charged[unit] for unit in charged} == charged
        assert permit.charged.get("tokens", 0) in (0, sum(charged.values()))

    @pytest.mark.parametrize("pool", ["openai/gpt-5", "anthropic/claude-haiku-4-5", "own"])
    @pytest.mark.parametrize("reported", [999_999_999_999, 10**15])
    def test_usage_that_no_request_can_cause_is_bounded_and_logged_once(
        self, limiter, caplog, monkeypatch, pool, reported
    ):
        monkeypatch.setattr(parse, "_logged", set())
        permits = [limiter.try_acquire(pool, input_tokens=100, output_tokens=100) for _ in range(2)]
        for permit in permits:
            permit.settle({"usage": {"input_tokens": reported, "output_tokens": 20}})
            assert permit.charged["input_tokens"] == 4_000_000
        said = f"{pool}: an answer reports {reported} tokens of input and 20 of output"
        assert [line.partition(",")[0] for line in caplog.messages] == [said]

    def test_a_large_request_may_report_more(self, limiter):
        permit = limiter.try_acquire("openai/gpt-5", input_tokens=100_000)
        permit.settle({"usage": {"input_tokens": 10**9, "output_tokens": 20}})
        assert permit.charged["input_tokens"] == 6_400_000

    def test_closed_in_another_way(self, limiter):
        cancelled, refused, blocked = (limiter.try_acquire("jobs", tokens=5) for _ in range(3))
        cancelled.cancel()
        refused.refused()
        with blocked as same:
            same.settle(tokens=4)
        for permit in (cancelled, refused, blocked):
            permit.settle(tokens=3)
        assert cancelled.charged == {"tokens": 0, "requests": 0, "concurrency": 0}
        assert [refused.charged["tokens"], blocked.charged["tokens"]] == [5, 4]

    @pytest.mark.parametrize("scope", list(paceline.RefusalScope))
    def test_a_refusal_that_is_not_about_the_pool_charges_the_request_alone(self, limiter, scope):
        permit = limiter.try_acquire("jobs", tokens=5)
        permit.refused(paceline.Refusal(paceline.RefusalKind.RATE, scope=scope))
        tokens = 5 if scope is paceline.RefusalScope.POOL else 0
        assert (permit.charged["requests"], permit.charged["tokens"]) == (1, tokens)
        assert (spent(limiter, "jobs")["requests"], spent(limiter, "jobs")["tokens"]) == (1, tokens)


class TestEstimate:
    TEXT = "Tell me about the weather in twenty words. " * 20
    MESSAGES = ({"role": "user", "content": TEXT},)

    def test_what_is_booked_of_the_output_is_the_provider_s_to_say(self, limiter):
        openai = limiter.estimate("openai/gpt-5", self.TEXT, output_tokens=900)
        claude = limiter.estimate("anthropic/claude-haiku-4-5", self.TEXT, output_tokens=900)
        assert (openai["output_tokens"], claude["output_tokens"]) == (900, 512)
        assert openai["tokens"] == openai["input_tokens"] + 900
        assert set(claude) == {"input_tokens", "output_tokens"}
        assert 150 < openai["input_tokens"] < 260

    @pytest.mark.parametrize("pool", [pool for pool in POOLS if "*" not in pool] + ["cohere/command-a"])
    def test_text_messages_and_a_body_are_one(self, limiter, pool):
        text = limiter.estimate(pool, self.TEXT, output_tokens=50)
        assert limiter.estimate(pool, list(self.MESSAGES), output_tokens=50) == text
        assert text["input_tokens"] > 150
        assert text["output_tokens"] == 50
        limiter.try_acquire(pool, **text, **({"starts": 1} if pool == "starts" else {}))

    @pytest.mark.parametrize(
        ("pool", "path", "body"),
        [
            ("openai/gpt-5", "https://api.openai.com/v1/chat/completions", {"messages": list(MESSAGES), "max_tokens": 40}),
            ("openai/gpt-5", "https://api.openai.com/v1/responses", {"input": TEXT, "instructions": "Be brief."}),
            (
                "anthropic/claude-haiku-4-5",
                "https://api.anthropic.com/v1/messages",
                {"messages": list(MESSAGES), "system": "Be brief.", "max_tokens": 300, "model": "claude-haiku-4-5"},
            ),
            (
                "gemini/gemini-2.5-flash",
                "https://generativelanguage.googleapis.com/v1beta/models/gemini-2.5-flash:generateContent",
                {"contents": [{"parts": [{"text": TEXT}]}], "generationConfig": {"maxOutputTokens": 70}},
            ),
            (
                "gemini/gemini-embedding-001",  # each of its texts is a request
                "https://generativelanguage.googleapis.com/v1beta/models/gemini-embedding-001:batchEmbedContents",
                {"requests": [{"content": {"parts": [{"text": text}]}} for text in (TEXT, "Hi.")]},
            ),
            ("cohere/embed-v4.0", "https://api.cohere.com/v2/embed", {"texts": [TEXT, "Hi."], "input_type": "search_query"}),
            ("openai/text-embedding-3-small", "https://api.openai.com/v1/embeddings", {"input": [TEXT, "Hi."]}),
        ],
    )  # fmt: skip
    async def test_the_same_as_when_it_passes_by_and_learned_the_same(self, limiter, pool, path, body):
        def answer(request):
            used = {"prompt_tokens": 900, "completion_tokens": 30, "input_tokens": 900, "output_tokens": 30}
            google = {"promptTokenCount": 900, "candidatesTokenCount": 30}
            return httpx2.Response(200, json={"usage": used, "usageMetadata": google})

        told = []
        limiter = paceline.Limiter(POOLS | {"gemini/gemini-embedding-001": "60k requests/min"}, events=told.append)
        whole = {"model": pool.partition("/")[2], **body}
        untaught = limiter.estimate(pool, body)
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
            limiter.attach(client)
            await client.post(path, json=whole)
            estimated = limiter.estimate(pool, body)
            await client.post(path, json=whole)
        first, second = (event.reserved for event in told if event.kind == "acquired")
        assert untaught == pytest.approx({unit: first[unit] for unit in untaught}, abs=0.0005)  # it is rounded
        assert estimated == pytest.approx({unit: second[unit] for unit in estimated}, abs=0.0005)
        assert estimated["input_tokens"] > 2 * untaught["input_tokens"]  # 900 were reported

    @pytest.mark.parametrize(
        ("pool", "body", "counted"),
        [
            (
                "gemini/gemini-embedding-001",
                {"requests": [{"content": {"parts": [{"text": TEXT}]}}] * 3},
                {"requests": 3},
            ),
            ("gemini/gemini-embedding-001", {"input": [TEXT] * 3}, {"requests": 3}),
            ("cohere/embed-v4.0", {"texts": [TEXT] * 3}, {"inputs": 3}),
            ("cohere/embed-v4.0", TEXT, {"inputs": 1}),
            ("cohere/embed-v4.0", [TEXT] * 3, {"inputs": 3}),
            ("cohere/embed-v4.0", {"input": [TEXT] * 3}, {"inputs": 3}),
            ("openai/text-embedding-3-small", TEXT, {}),
            ("cohere/embed-v3", {"texts": [TEXT] * 3}, {}),  # without a limit on inputs
            ("cohere/embed-v3", {"input": [TEXT] * 3}, {}),  # in OpenAI's form
        ],
    )
    def test_embeddings_are_counted_by_text_and_write_nothing(self, pool, body, counted):
        quotas = ["60k requests/min", "60k inputs/min" if "v4" in pool else "10M tokens/min"]
        limiter = paceline.Limiter({pool: quotas}, clock=ManualClock())
        cost = limiter.estimate(pool, body)
        assert cost == {"output_tokens": 0} | counted | {unit: cost[unit] for unit in cost if unit in TOKENS}
        assert cost["input_tokens"] > 150
        permit = limiter.try_acquire(pool, **cost)
        permit.settle({"usage": {"prompt_tokens": 900}, "usageMetadata": {"promptTokenCount": 900}})
        assert permit.charged["requests"] == counted.get("requests", 1)

    @pytest.mark.parametrize("provider", ["openai", "gemini", "cohere"])
    def test_a_conversation_is_one_whatever_the_name_of_its_model(self, provider):
        limiter = paceline.Limiter({"*": "10M tokens/min"}, clock=ManualClock())
        said = [{"role": "user", "content": self.TEXT}]
        for asked in (said, {"messages": said}):
            plain, named = (limiter.estimate(f"{provider}/{model}", asked) for model in ("chatty", "embed-chatty"))
            assert named == plain
            assert named["output_tokens"] > 0

    @pytest.mark.parametrize("asked", [5, b"text"])
    def test_what_is_no_request(self, limiter, asked):
        with pytest.raises(paceline.QuotaError, match="cannot be estimated: give a text, a list of messages"):
            limiter.estimate("own", asked)

    def test_what_is_no_amount(self, limiter):
        with pytest.raises(paceline.QuotaError, match="output_tokens is -1"):
            limiter.estimate("own", "Hello.", output_tokens=-1)


class TestLeftOut:
    """A unit of the user's own that a request does not name."""

    @pytest.mark.parametrize(
        ("quotas", "pool", "named", "more"),
        [
            ("7 starts/min", "starts", {}, {"starts": 1}),
            ("7 gpus slots", "own", {}, {"gpus": 1}),
            (["5 images/min", "5 pages/min"], "own", {"pages": 3}, {"images": 1}),
            (["500 requests/min", "5 images/min"], "openai/gpt-image-1", {}, {"images": 1}),
            (["500 requests/min", "5 images/min"], "openai/gpt-5", {"tokens": 5}, {}),
            ("7200 audio_seconds/hour", "groq/whisper-1", {"requests": 1}, {"audio_seconds": 1}),
            ("1M uncached_input_tokens/min", "fireworks/m", {}, {"uncached_input_tokens": 600}),
            ("1M uncached_input_tokens/min", "fireworks/m", {"uncached_input_tokens": 9}, {}),
            ("9k own_tokens/min", "own", {}, {"own_tokens": 800}),
            (["9k tokens/min", "9k own_tokens/min"], "own", {"tokens": 70}, {"own_tokens": 70}),
            (["9k tokens/min", "9k own_tokens/min"], "own", {"own_tokens": 7}, {"tokens": 800}),
            ("5 images/min", "own", {"requests": 3}, {"images": 3}),
            (["5 images/min", "5 usd/day"], "own", {"usd": 0.02}, {"images": 1}),
            (["5 images/min", "5 usd/day"], "own", {"requests": 0}, {}),
        ],
    )
    def test_costs_one(self, quotas, pool, named, more):
        cost = paceline.Limiter({pool: quotas}, clock=ManualClock()).acquire(pool, **named).wait().cost
        unsized = any("tokens" in unit for unit in more) and "tokens" not in named
        sides = {"input_tokens": 600, "output_tokens": 200} if unsized else {}
        assert cost == {"requests": 1} | named | sides | more

    @pytest.mark.parametrize("pool", ["own", "openai/gpt-5"])
    @pytest.mark.parametrize("way", ["acquire", "try_acquire", "attempts"])
    def test_dollars_are_asked_for_once(self, pool, way):
        limiter = paceline.Limiter({pool: ["60 requests/min", "5 usd/day"]})
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for _ in range(3):
                getattr(limiter, way)(pool)
        [text] = [str(one.message) for one in warned]
        assert text.startswith(f"{pool}: the quota in usd holds nothing back, because")
        assert f"acquire({pool!r}, usd=0.02), or usd=0" in text
        assert warned[0].filename == __file__

    def test_dollars_that_the_answer_tells_hold_back_whoever_names_some(self):
        limiter = paceline.Limiter({"own": "1 usd/hour"}, clock=ManualClock())
        with pytest.warns(paceline.PacelineWarning, match="usd"):
            limiter.acquire("own").wait().settle(usd=3)
        assert not limiter.try_acquire("own", usd=0.001)

    def test_of_a_table_s_limits_it_costs_nothing(self):
        limiter = paceline.Limiter.for_provider("cohere")
        assert "images" not in limiter.acquire("embed-v4.0").wait().cost  # texts have none

    def test_all_at_once_are_not_sent(self):
        limiter = paceline.Limiter({"starts": "7 starts/min exact"}, clock=ManualClock())
        assert [bool(limiter.try_acquire("starts")) for _ in range(9)] == [True] * 7 + [False] * 2


USED = [
    ("openai/gpt-5", {"prompt_tokens": 1_000, "completion_tokens": 200}, 5_096),
    ("anthropic/claude-haiku-4-5", {"input_tokens": 1_000, "output_tokens": 200}, 1_200),
    ("gemini/gemini-2.5-flash", {"promptTokenCount": 1_000, "candidatesTokenCount": 200}, 1_000),  # charges input alone
    ("bedrock/anthropic.claude-sonnet-4-5", {"inputTokens": 1_000, "outputTokens": 200}, 2_000),  # output five times
]


class TestUsed:
    """What is compared with an estimate is what the answer reports, and not what the provider charges for it."""

    @pytest.mark.parametrize(("pool", "usage", "charged"), USED, ids=[row[0] for row in USED])
    def test_by_hand(self, pool, usage, charged):
        told = []
        limiter = paceline.Limiter({pool: "1M tokens/min"}, events=told.append, clock=ManualClock())
        limiter.try_acquire(pool, input_tokens=1_000, output_tokens=4_096).settle(usage)
        estimates = limiter.status()["pools"][pool]["estimates"]
        assert (told[-1].used["tokens"], estimates["output_tokens"]["actual"]) == (charged, 200)
        assert estimates["tokens"]["actual"] == min(charged, 1_200)
        assert (told[-1].reported or told[-1].used)["tokens"] == min(charged, 1_200)

    @pytest.mark.parametrize("joint", [False, True], ids=["own", "joint"])
    async def test_of_an_attached_client(self, joint):
        def answer(request):
            return httpx2.Response(200, json={"usage": {"prompt_tokens": 10, "completion_tokens": 30}})

        quota = {"openai/*": "1M tokens/min"}
        limiter = paceline.Limiter(quota, joint_limits=quota if joint else None)
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
            limiter.attach(client)
            body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 400}
            await client.post("https://api.openai.com/v1/chat/completions", json=body)
        pools = limiter.status()["pools"]
        assert pools["openai/m"]["quotas"][0]["spent"] >= 400
        assert {pool["estimates"]["tokens"]["actual"] for name, pool in pools.items() if pool["quotas"]} == {40}

    def test_amounts_are_the_usage(self):
        limiter = paceline.Limiter({"openai/m": "1M tokens/min"}, clock=ManualClock())
        limiter.try_acquire("openai/m", input_tokens=10, output_tokens=40).settle(input_tokens=10, output_tokens=20)
        limiter.try_acquire("openai/m").settle(input_tokens=1_000, output_tokens=1_000)  # has no estimate
        assert limiter.status()["pools"]["openai/m"]["metrics"]["estimate_ratio"] == 0.6


class TestWithoutAmounts:
    """A forgotten keyword does not send everything at once."""

    @pytest.mark.parametrize("pool", ["own", "openai/gpt-5", "anthropic/claude-haiku-4-5", "gemini/gemini-2.5-flash"])
    @pytest.mark.parametrize("cost", [{}, {"requests": 1}, {"usd": 0}], ids=["nothing", "requests", "usd"])
    def test_the_estimate_is_reserved(self, limiter, pool, cost):
        estimate = limiter.estimate(pool)
        permit = limiter.acquire(pool, **cost).wait()
        assert permit.cost == estimate | {"requests": 1} | cost
        assert permit.charged["input_tokens"] == 600
        permit.cancel()

    def test_by_each_door(self, limiter):
        group = paceline.Group({"one": (limiter, "own")})

        @limiter.paced("own")
        def call():
            return {"input_tokens": 600, "output_tokens": 200}

        call()
        for attempt in limiter.attempts("own"):
            with attempt as permit:
                permit.settle()
        with group.acquire() as (_, permit):
            permit.settle()
        limiter.try_acquire("own").settle()
        assert spent(limiter, "own") == {"tokens": 4 * 800}

    @pytest.mark.parametrize("cost", [{"tokens": 0}, {"input_tokens": 0}, {"requests": 0}], ids=str)
    def test_a_request_that_uses_none_says_so(self, limiter, cost):
        with limiter.acquire("own", **cost):
            pass  # and there is nothing to settle
        assert spent(limiter, "own") == {"tokens": 0}

    def test_no_tokens_where_none_are_counted(self, limiter):
        assert limiter.try_acquire("cohere/rerank-v3.5").cost == {"requests": 1, "inputs": 1}

    @pytest.mark.parametrize("reserved", [{"tokens": 800}, {"input_tokens": 600, "output_tokens": 200}], ids=str)
    def test_tokens_that_a_joint_limit_alone_counts(self, reserved):
        quotas = [f"100k {unit}/min" for unit in reserved]
        limiter = paceline.Limiter({"own": "600 requests/min"}, joint_limits={"own": quotas})
        limiter.try_acquire("own").settle()
        assert spent(limiter, "joint/own") == reserved
