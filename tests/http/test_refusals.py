"""What happens when the provider says no: hold, retry at the front, give up once, stop for money."""

import asyncio
import itertools
import json
import time

import httpx2
import openai
import pytest
from chats import ANSWER, CHAT, PATH, pool_of, spent, wide_limiter

import paceline
from paceline.http import pace_transport


class Script(httpx2.AsyncBaseTransport):
    """Answers as told, in order; notes when each request came."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.times = []

    async def handle_async_request(self, request):
        self.times.append(time.monotonic())
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        status, headers, body = answer
        return httpx2.Response(status, headers=headers, stream=httpx2.ByteStream(json.dumps(body).encode()))


def rate_limited(retry_after="0.05", message="Rate limit reached", code="rate_limit_exceeded"):
    return 429, {"retry-after": retry_after}, {"error": {"message": message, "type": "tokens", "code": code}}


OK = 200, {}, ANSWER
BOOKED = rate_limited(
    message="Rate limit reached on tokens per min (TPM): Limit 60000000, Used 59999500, Requested 1020. Please try again in 5ms."
)
UNASKED = {name: value for name, value in CHAT.items() if name != "max_tokens"}


def client(script, limiter):
    return httpx2.AsyncClient(transport=pace_transport(limiter, script, "openai"), base_url="http://127.0.0.1")


async def test_a_refusal_is_held_and_retried_inside():
    limiter, script = wide_limiter(), Script(rate_limited("0.2"), OK)
    async with client(script, limiter) as http:
        response = await http.post(PATH, json=CHAT)
    assert response.status_code == 200
    assert script.times[1] - script.times[0] >= 0.2  # a minimum, obeyed
    done = response.extensions["paceline"]
    assert (done.attempts, len(done.refusals), done.usage.input_tokens) == (2, 1, 12)
    assert pool_of(limiter)["counts"] == {"granted": 2, "refused_rate": 1, "settled": 1}
    assert spent(limiter)["requests"] == 2  # the refused attempt stays charged


async def test_a_long_wait_is_handed_up():
    limiter = wide_limiter()
    refusal = paceline.Refusal(paceline.RefusalKind.RATE, retry_after_s=3_000)
    limiter.pacer.pools.scheduler("openai/gpt-5").pool.progress.refuse(1, 1, refusal)
    script = Script(rate_limited("3000"))  # and another one was refused before
    async with client(script, limiter) as http:
        response = await http.post(PATH, json=CHAT)
    assert (response.status_code, response.headers["retry-after"]) == (429, "3000")
    assert "asks to wait 3,000 s" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("retry", "refused", "error", "said"),
    [
        (
            paceline.RetryPolicy(max_elapsed_s=1.5), rate_limited("0.8", "Rate limit reached for gpt-5"),
            openai.RateLimitError, r"more than 1\.5 s after the first: Rate limit reached for gpt-5",
        ),
        (
            paceline.RetryPolicy(max_attempts=2, backoff_s=0.01), (503, {}, {"error": {"message": "overloaded"}}),
            openai.InternalServerError, "2 attempts made: overloaded",
        ),
    ],
    ids=["no time is left", "full servers stay a 503"],
)  # fmt: skip
async def test_no_attempt_follows_the_last_one_and_the_sdk_sees_one_error(retry, refused, error, said):
    script = Script(refused, refused)
    http_client = client(script, wide_limiter(retry=retry))
    async with openai.AsyncOpenAI(api_key="k", base_url="http://127.0.0.1/v1", http_client=http_client) as sdk:
        with pytest.raises(error, match=said) as caught:
            await sdk.chat.completions.create(**CHAT)
    assert script.answers == []  # the SDK's own two retries did not happen
    assert (caught.value.status_code, caught.value.response.headers["x-paceline"]) == (refused[0], "gave_up")


@pytest.mark.parametrize(("error", "charged"), [(httpx2.ConnectError("no"), 0), (httpx2.ReadError("gone"), 1)])
async def test_what_was_never_sent_is_given_back(error, charged):
    limiter = wide_limiter()
    async with client(Script(error), limiter) as http:
        with pytest.raises(type(error)):
            await http.post(PATH, json=CHAT)
    assert (spent(limiter)["requests"], pool_of(limiter)["in_flight"]) == (charged, 0)


async def test_a_refusal_states_what_is_charged_where_a_request_names_no_maximum():
    limiter, script = wide_limiter(), Script(BOOKED, OK, OK, OK)
    async with client(script, limiter) as http:
        await http.post(PATH, json=UNASKED)
        before = spent(limiter)["tokens"]
        await http.post(PATH, json=UNASKED)  # charged what the provider books, also in the end
        booked = spent(limiter)["tokens"] - before
        await http.post(PATH, json=CHAT)  # one with a maximum is charged as before
    assert booked == pytest.approx(1_020, abs=10)
    assert spent(limiter)["tokens"] - before - booked == 17


async def test_a_request_that_waits_meanwhile_is_estimated_again():
    limiter = paceline.Limiter({"openai/*": ["60k requests/min", "60M tokens/min", "1 concurrency"]})
    seen = []

    class Slow(Script):
        async def handle_async_request(self, request):
            seen.append(spent(limiter)["tokens"])
            await asyncio.sleep(0)  # the other request joins the queue meanwhile
            return await super().handle_async_request(request)

    script = Slow(BOOKED, OK, OK)
    async with client(script, limiter) as http:
        await asyncio.gather(*(http.post(PATH, json=UNASKED) for _ in range(2)))
    assert seen[0] < 600
    booked = [b - a for a, b in itertools.pairwise(seen)]  # also for the one that waited
    assert booked == pytest.approx([1_020, 1_020], abs=10)
    assert pool_of(limiter)["counts"]["settled"] == 2
