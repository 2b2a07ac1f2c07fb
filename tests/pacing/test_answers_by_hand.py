"""``settle(response)``, ``settle(..., headers=...)`` and ``limiter.observe``: answers of any library, reported by hand."""

import io
import json
import pickle
from types import SimpleNamespace

import httpx
import httpx2
import pytest
import requests
from openai.types.realtime import ResponseDoneEvent

import paceline
from paceline.testing import ManualClock
from virtual_time import virtual

BODY = {"model": "gpt-5", "usage": {"prompt_tokens": 10, "completion_tokens": 3}}
HEADERS = {
    "x-ratelimit-limit-tokens": "20000",
    "x-ratelimit-remaining-tokens": "5000",
    "x-ratelimit-reset-tokens": "45s",
}
EVENTS = HEADERS | {"content-type": "text/event-stream; charset=utf-8"}
STREAM = "".join(f"data: {json.dumps(event)}\n\n" for event in ({"choices": []}, BODY)) + "data: [DONE]\n\n"


def of_requests(status=200):
    response = requests.Response()
    response.status_code, response.raw = status, io.BytesIO(json.dumps(BODY).encode())
    response.headers.update(HEADERS)
    return response


ANSWERS = {
    "httpx": lambda: httpx.Response(200, headers=HEADERS, json=BODY),
    "httpx2": lambda: httpx2.Response(200, headers=HEADERS, json=BODY),
    "requests": of_requests,
    "aiohttp": lambda: SimpleNamespace(status=200, headers=HEADERS, content=object(), _body=json.dumps(BODY).encode()),
    "urllib3": lambda: SimpleNamespace(status=200, headers=HEADERS, data=json.dumps(BODY).encode()),
    "a stream that was read": lambda: httpx.Response(200, headers=EVENTS, text=STREAM),
    "an SDK's raw response": lambda: SimpleNamespace(http_response=httpx.Response(200, headers=HEADERS, json=BODY)),
    "an object": lambda: SimpleNamespace(usage=SimpleNamespace(**BODY["usage"]), headers=HEADERS, content="an answer"),
    "an object with a sum": lambda: SimpleNamespace(tokens_used=13, usage=None, headers=HEADERS, content="an answer"),
    "as boto3 returns it": lambda: BODY | {"ResponseMetadata": {"HTTPStatusCode": 200, "HTTPHeaders": HEADERS}},
}


@pytest.fixture
def limiter(clock):
    return paceline.Limiter({"openai/m": ["600 requests/min", "30k tokens/min"]}, clock=clock, headroom_s=0)


def quota_of(limiter, unit, pool="openai/m"):
    [quota] = [quota for quota in limiter.status()["pools"][pool]["quotas"] if quota["unit"] == unit]
    return quota


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_with_usage_and_headers(limiter, answer):
    permit = limiter.try_acquire("openai/m", input_tokens=10, output_tokens=3)
    permit.settle(answer())
    assert permit.charged["tokens"] == 13
    tokens = quota_of(limiter, "tokens")
    assert (tokens["limit"], tokens["source"]) == (20_000, "learned")
    assert tokens["remaining"] == pytest.approx(5_000, abs=100)


def test_the_headers_apart(limiter):
    limiter.try_acquire("openai/m", input_tokens=10).settle({"input_tokens": 8}, headers=HEADERS)
    assert quota_of(limiter, "tokens")["limit"] == 20_000
    permit = limiter.try_acquire("openai/m", tokens=10)
    permit.settle(tokens=7, headers=[(b"X-RateLimit-Limit-Tokens", b"9000"), (b"x-ratelimit-remaining-tokens", b"10")])
    assert (permit.charged["tokens"], quota_of(limiter, "tokens")["limit"]) == (7, 9_000)
    limiter.try_acquire("openai/m", tokens=0).settle(headers={})
    assert limiter.status()["pools"]["openai/m"]["counts"]["settled"] == 3


def test_the_token_counts_of_bedrock_s_headers():
    limiter = paceline.Limiter({"bedrock/titan": "100k tokens/min"}, clock=ManualClock())
    named = {"x-amzn-bedrock-input-token-count": "100", "x-amzn-bedrock-output-token-count": "20"}
    permit = limiter.try_acquire("bedrock/titan", input_tokens=100, output_tokens=50)
    permit.settle({"body": object(), "ResponseMetadata": {"HTTPStatusCode": 200, "HTTPHeaders": named}})
    assert permit.charged["tokens"] == 120


@pytest.mark.parametrize("status", [400, 429, 500])
def test_an_error_is_not_settled(limiter, status):
    permit = limiter.try_acquire("openai/m", tokens=500)
    with pytest.raises(paceline.QuotaError, match=f"openai/m: an answer with status {status} reports no usage"):
        permit.settle(of_requests(status))
    assert permit.open


FULL = {"type": "rate_limit_error", "code": "rate_limit_exceeded", "message": "Please try again in 4.5s."}
SAID = {
    "an error": {"type": "error", "error": FULL},
    "a failed turn of Realtime": {
        "type": "response.done", "event_id": "e",
        "response": {"status": "failed", "status_details": {"type": "failed", "error": FULL}, "output": []},
    },
}  # fmt: skip


@pytest.mark.parametrize("event", SAID.values(), ids=SAID)
def test_a_refusal_that_comes_as_an_event(limiter, event):
    permit = limiter.try_acquire("openai/m", tokens=500)
    with pytest.raises(paceline.QuotaError, match=r"openai/m: an error \(dict\) reports no usage"):
        permit.settle(event)
    permit.refused(ResponseDoneEvent.model_validate(event) if "response" in event else event)
    assert limiter.status()["pools"]["openai/m"]["cool_down_s"] == pytest.approx(4.5, abs=0.5)


class Speech:
    """As OpenAI's SDK returns it."""

    response = httpx.Response(200, headers=HEADERS | {"content-type": "audio/mpeg"}, content=b"ID3")


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, headers=HEADERS, json={"choices": []}),
        httpx.Response(200, headers=HEADERS, json={"created": 1, "data": [{"b64_json": "aGk="}]}),
        Speech(),
        {"created": 1, "data": [{"url": "https://pictures.example/1"}]},
        {"ResponseMetadata": {"HTTPStatusCode": 200}, "body": object()},
        SimpleNamespace(text="a transcript"),
        SimpleNamespace(created=1, data=[], usage=None),  # pictures of OpenAI's SDK
    ],
)
def test_an_answer_without_usage_stays_charged_as_reserved(limiter, answer):
    permit = limiter.try_acquire("openai/m", tokens=500)
    permit.settle(answer)
    assert (permit.open, permit.charged["tokens"]) == (False, 500)


def test_the_headers_of_an_answer_without_usage_teach(limiter):
    limiter.try_acquire("openai/m", tokens=500).settle(Speech())
    assert quota_of(limiter, "tokens")["limit"] == 20_000


@pytest.mark.parametrize("answer", ["hello", b"hello", 5, {}, {"tokns": 5}, SimpleNamespace(tokns=5)])
def test_what_is_no_answer_and_no_usage(limiter, answer):
    permit = limiter.try_acquire("openai/m", tokens=500)
    with pytest.raises(paceline.QuotaError, match=f"no usage in {type(answer).__name__}"):
        permit.settle(answer)
    assert permit.open
    with pytest.raises(TypeError, match="headers is a int"):
        permit.settle(tokens=5, headers=5)


def test_a_closed_permit_teaches_nothing(limiter):
    permit = limiter.try_acquire("openai/m", tokens=500)
    permit.settle()
    permit.settle(tokens=5, headers=HEADERS)
    assert quota_of(limiter, "tokens")["limit"] == 30_000


def test_a_pool_of_the_user_s_own_learns_nothing():
    limiter = paceline.Limiter({"jobs": "30k tokens/min"}, clock=ManualClock())
    limiter.try_acquire("jobs", tokens=5).settle(tokens=5, headers=HEADERS)
    limiter.observe("jobs", HEADERS)
    assert quota_of(limiter, "tokens", "jobs")["limit"] == 30_000


def of_plan(used, status=200, reject=""):
    """An answer that states how much of the five hours of a plan is used."""
    window = "anthropic-ratelimit-unified"
    told = {f"{window}-5h-utilization": str(used), f"{window}-5h-status": reject or "allowed"}
    told |= {f"{window}-status": reject, f"{window}-representative-claim": "five_hour"} if reject else {}
    usage = {"input_tokens": 1_000, "output_tokens": 10}
    return httpx2.Response(status, headers=told, json={"type": "message", "content": [], "usage": usage})


@pytest.mark.parametrize("door", ["settle", "apart", "observe", "refused"])
def test_each_door_reads_the_windows_of_a_plan(clock, door):
    limiter = paceline.Limiter({"anthropic/*": "600 requests/min", "jobs": "9 requests/min"}, clock=clock)
    for used in (0.5, 0.6, 0.7):
        clock.advance(60)
        permit, answer = limiter.try_acquire("anthropic/claude-opus-5", input_tokens=1_000), of_plan(used)
        if door == "settle":
            permit.settle(answer)
        elif door == "apart":
            permit.settle(answer.json()["usage"], headers=answer.headers)
        elif door == "observe":
            limiter.observe("anthropic/claude-opus-5", answer.headers)
            permit.settle()
        elif used == 0.7:
            permit.refused(of_plan(1.0, 429, "rejected"))
        permit.settle(answer)  # it is closed: what it says is not counted again
    limiter.try_acquire("jobs").settle(headers=of_plan(0.1).headers)
    [row] = limiter.status()["plans"]
    assert (row["account"], row["window"]) == ("anthropic", "5h")
    assert (row["used"], row["state"]) == ((1.0, "shut") if door == "refused" else (0.7, "open"))
    if door in ("settle", "apart"):
        assert row["own"] == pytest.approx(0.2)


def test_the_headers_of_a_refusal(limiter):
    permit = limiter.try_acquire("openai/m", tokens=500)
    permit.refused(httpx.Response(429, headers=HEADERS | {"retry-after": "4"}, json={}))
    assert quota_of(limiter, "tokens")["limit"] == 20_000
    assert limiter.status()["pools"]["openai/m"]["cool_down_s"] == 4


class TestObserve:
    def test_it_takes_no_higher_level(self, limiter):
        limiter.try_acquire("openai/m", tokens=29_000).settle()
        limiter.observe("openai/m", {"x-ratelimit-limit-tokens": "30000", "x-ratelimit-remaining-tokens": "29999"})
        assert quota_of(limiter, "tokens")["remaining"] == 1_000

    def test_a_pool_before_its_first_use(self):
        limiter = paceline.Limiter(provider="anthropic", tier=1, clock=ManualClock())
        limiter.observe("claude-haiku-4.5", {"anthropic-ratelimit-input-tokens-limit": "25000"})
        assert quota_of(limiter, "input_tokens", "anthropic/claude-haiku-4-5")["limit"] == 25_000

    @virtual
    async def test_a_waiter_waits_for_the_level_that_was_observed(self, clock, limiter):
        limiter.observe("openai/m", {"x-ratelimit-limit-tokens": "30000", "x-ratelimit-remaining-tokens": "0"})
        assert (await limiter.acquire("openai/m", tokens=5_000)).waited_s == pytest.approx(10, abs=1)

    def test_of_a_shared_pool(self, world):
        limiter = paceline.Limiter({"openai/m": "30k tokens/min"}, store=world.store, clock=world.clock)
        world.limiters.append(limiter)
        limiter.try_acquire("openai/m", tokens=10).settle()
        limiter.observe("openai/m", HEADERS)
        world.move(1)
        assert quota_of(limiter, "tokens")["limit"] == 20_000

    def test_nonsense(self, limiter):
        with pytest.raises(TypeError, match="headers is a NoneType"):
            limiter.observe("openai/m", None)
        with pytest.raises(paceline.QuotaError, match="no quota for 'other'"):
            limiter.observe("other", HEADERS)


# --- estimates


def sized(limiter, pool="openai/m"):
    return limiter.estimate(pool, "Say something about the weather. " * 40, output_tokens=100)["input_tokens"]


@pytest.mark.parametrize("by", ["permit", "attempts", "paced"])
def test_an_answer_corrects_the_estimates_of_its_model(limiter, by):
    prompt, answer = "Say something about the weather. " * 40, {"prompt_tokens": 500, "completion_tokens": 100}

    def cost(_=None):
        return limiter.estimate("openai/m", prompt, output_tokens=100)

    before, other = sized(limiter), sized(limiter, "openai/n")
    for _ in range(40):
        if by == "permit":
            limiter.try_acquire("openai/m", **cost()).settle(answer)
        elif by == "paced":
            limiter.paced("openai/m", cost=cost)(lambda _: answer)(None)
        else:
            for attempt in limiter.attempts("openai/m", **cost()):
                with attempt as permit:
                    permit.settle(answer)
        limiter.pacer.clock.advance(10)
    assert before < 400
    assert (sized(limiter), sized(limiter, "openai/n")) == (pytest.approx(500, rel=0.1), other)


def test_an_amount_of_the_caller_s_own_corrects_nothing(limiter):
    before = sized(limiter)
    for amount in (before, 300):
        permit = limiter.try_acquire("openai/m", input_tokens=float(amount))
        permit.settle({"prompt_tokens": 500, "completion_tokens": 1})
    limiter.try_acquire("openai/m", **limiter.estimate("openai/m", "Hello.")).settle(input_tokens=900, output_tokens=2)
    assert sized(limiter) == before


def test_an_estimate_in_another_process_is_a_number(limiter):
    cost = limiter.estimate("openai/m", "Hello.")
    copy = pickle.loads(pickle.dumps(cost))
    assert (copy, json.loads(json.dumps(cost))) == (cost, cost)
    assert {type(amount) for amount in copy.values()} == {float}


SIDES = {"input_tokens": 600, "output_tokens": 200}


@pytest.mark.parametrize(("pool", "cost"), [("openai/m", SIDES | {"tokens": 800}), ("anthropic/m", SIDES)])
def test_a_call_of_which_nothing_is_known(pool, cost):
    limiter = paceline.Limiter({"openai/m": "30k tokens/min", "anthropic/m": "30k input_tokens/min"})
    assert limiter.estimate(pool) == cost
    assert limiter.estimate(pool, output_tokens=50)["output_tokens"] == 50
    assert limiter.try_acquire(pool, **limiter.estimate(pool))


@pytest.mark.parametrize(
    ("quotas", "most"),
    [
        (["500 requests/min", "30k tokens/min"], 250),
        (["10 requests/s", "400 requests/min", "1000 requests/day"], 200),
        (["1 requests/min"], 1),
        (["30k tokens/min"], 3_000),
    ],
)
def test_how_many_are_needed_in_flight(quotas, most):
    assert paceline.Limiter({"openai/m": quotas}).max_safe_concurrent("openai/m") == most


def test_how_many_are_needed_in_flight_follows_the_answers(limiter):
    limiter.observe("openai/m", {"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "59"})
    assert limiter.max_safe_concurrent("openai/m") == 30


def test_an_estimate_has_no_noise_of_floats(limiter):
    assert limiter.estimate("openai/m", "hello there my", output_tokens=30)["input_tokens"] == 7.7
