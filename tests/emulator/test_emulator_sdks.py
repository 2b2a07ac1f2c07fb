"""Every dialect through its provider's own SDK, with the engine between: what answers teach, and what they cost."""

import time
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import anthropic
import groq
import openai
import pytest
from google import genai
from google.genai import errors, types

import paceline

HELLO = [{"role": "user", "content": "hello there, how are you today?"}]
NO_WAIT = {"latency_s": 0.0}
WIDE = "6000 requests/min, 864k requests/day, 600k tokens/min, 864M tokens/day"  # so that nobody waits in line


@pytest.fixture
def attached(kept):
    """``attached(limiter, client, provider)``: a paced client that closes when the test ends."""
    return lambda limiter, client, provider=None: limiter.attach(kept(client), provider=provider)


def gemini_client(emulator, **options):
    return genai.Client(api_key="any", http_options=types.HttpOptions(base_url=emulator.base_url, **options))


def pool_of(limiter):
    (pool,) = limiter.status()["pools"].values()
    return pool


def limits_of(limiter):
    return {(quota["unit"], quota["period_s"]): quota["limit"] for quota in pool_of(limiter)["quotas"]}


def spent(limiter, unit):
    return next(quota["spent"] for quota in pool_of(limiter)["quotas"] if quota["unit"] == unit)


def test_groq_gives_back_what_was_not_used_and_streams_say_what_was(paceline_emulator, attached):
    emulator = paceline_emulator(scenario="groq", limits=WIDE, **NO_WAIT)
    limiter = paceline.Limiter({"groq/*": WIDE})
    client = attached(limiter, groq.Groq(base_url=emulator.base_url, api_key="any"), "groq")
    client.chat.completions.create(model="llama", messages=HELLO, max_completion_tokens=200)
    with client.chat.completions.create(
        model="llama", messages=HELLO, max_completion_tokens=200, stream=True
    ) as stream:
        last = list(stream)[-1]
    assert last.usage is None
    assert last.x_groq.usage.completion_tokens
    charges = emulator.tally()["charges"]
    assert spent(limiter, "tokens") == charges["tokens"]
    assert pool_of(limiter)["counts"] == {"granted": 2, "settled": 2}


def test_groq_says_413_when_a_request_can_never_fit(paceline_emulator, attached):
    emulator = paceline_emulator(scenario="groq", **NO_WAIT)
    limiter = paceline.Limiter({"groq/*": "30 requests/min, 80k tokens/min"})
    client = attached(limiter, groq.Groq(base_url=emulator.base_url, api_key="any"), "groq")
    with pytest.raises(groq.RateLimitError, match=r"never_fits.*Limit 8000, Requested 90"):
        client.chat.completions.create(model="llama", messages=HELLO, max_completion_tokens=9_000)
    assert emulator.tally()["refused"] == {"too_large": 1}


def test_gemini_has_no_headers_and_charges_input_only(paceline_emulator, attached):
    emulator = paceline_emulator(limits="600 requests/min,250k input_tokens/min")
    limiter = paceline.Limiter({"gemini/*": "600 requests/min, 250k input_tokens/min"})
    client = attached(limiter, gemini_client(emulator), "gemini")
    answer = client.models.generate_content(
        model="gemini-2.5-flash", contents="hello", config={"max_output_tokens": 500}
    )
    assert not [name for name in answer.sdk_http_response.headers if "limit" in name.lower()]
    chunks = list(client.models.generate_content_stream(model="gemini-2.5-flash", contents="hello there"))
    assert chunks[-1].candidates[0].finish_reason == types.FinishReason.STOP
    counted = answer.usage_metadata.prompt_token_count + chunks[-1].usage_metadata.prompt_token_count
    assert emulator.tally()["charges"] == {"requests": 2, "input_tokens": counted}
    assert spent(limiter, "input_tokens") == counted


def test_gemini_says_38_seconds_about_a_day_and_the_engine_knows_better(paceline_emulator, attached):
    far = (time.time() + 43_200) % 86_400  # the emulator's day does not end during the test
    emulator = paceline_emulator(limits="50 requests/min,1 requests/day window", offset_s=far)
    limiter = paceline.Limiter({"gemini/*": "50 requests/min"})
    limiter.pacer.retry = paceline.pacing.retry.RetryPolicy(max_attempts=1)
    client = attached(limiter, gemini_client(emulator), "gemini")
    client.models.generate_content(model="m", contents="hello")
    with pytest.raises(errors.ClientError, match=r"refused \(rate\)") as error:
        client.models.generate_content(model="m", contents="hello")
    now = datetime.now(ZoneInfo("America/Los_Angeles"))
    midnight = datetime(now.year, now.month, now.day, tzinfo=now.tzinfo) + timedelta(days=1)
    early_s = (midnight - now).total_seconds() - int(error.value.response.headers["retry-after"])
    assert (early_s + 43_200) % 86_400 - 43_200 == pytest.approx(0, abs=120)  # midnight may have passed since
    assert limits_of(limiter)["requests", 86_400] == 1


def test_azure_refuses_a_streamed_response_with_status_200(paceline_emulator):
    emulator = paceline_emulator(scenario="azure", limits="1 requests/min bucket", **NO_WAIT)
    with openai.OpenAI(base_url=f"{emulator.base_url}/openai/v1", api_key="any", max_retries=0) as client:
        client.responses.create(model="mine", input="hello")
        with client.responses.create(model="mine", input="hello", stream=True) as stream:
            (event,) = stream
        with pytest.raises(openai.RateLimitError, match="exceeded call rate limit"):
            client.responses.create(model="mine", input="hello")
    assert stream.response.status_code == 200
    assert 50_000 < int(stream.response.headers["retry-after-ms"]) <= 60_000
    assert (event.type, event.code) == ("error", "rate_limit_exceeded")


def test_openai_day_quota_and_project_limit_are_adopted(paceline_emulator, attached):
    emulator = paceline_emulator(scenario="openai-day", **NO_WAIT)
    limiter = paceline.Limiter({"openai/*": "3 requests/min, 500 requests/day, 40k tokens/min"})
    client = attached(limiter, openai.OpenAI(base_url=f"{emulator.base_url}/v1", api_key="any"), "openai")
    raw = client.chat.completions.with_raw_response.create(model="gpt-5", messages=HELLO, max_tokens=50)
    assert raw.headers["x-ratelimit-limit-project-tokens"] == "20000"
    assert raw.headers["x-ratelimit-reset-requests"] == "7m12s"
    assert limits_of(limiter)["tokens", 60] == 20_000
    assert limits_of(limiter)["requests", 60] == 3
    assert limits_of(limiter)["requests", 86_400] == 200
    with pytest.raises(openai.RateLimitError, match="Limit 20000, Requested"):
        client.chat.completions.create(model="gpt-5", messages=HELLO, max_tokens=30_000)  # the provider's own refusal
    with pytest.raises(openai.RateLimitError, match="holds 40,000 at most"):
        client.chat.completions.create(model="gpt-5", messages=HELLO, max_tokens=50_000)


def test_errors_inside_streams_reach_sdk_and_engine(paceline_emulator, attached):
    emulator = paceline_emulator(faults={"stream": 1.0})
    limiter = paceline.Limiter({"openai/*": "500 requests/min", "anthropic/*": "500 requests/min"})
    ours = attached(limiter, openai.OpenAI(base_url=f"{emulator.base_url}/v1", api_key="any", max_retries=0), "openai")
    with ours.responses.create(model="gpt-5", input="hello", stream=True) as stream:
        last = list(stream)[-1]
    assert (last.type, last.response.error.code) == ("response.failed", "server_is_overloaded")
    with pytest.raises(openai.APIError, match="overloaded"):
        list(ours.chat.completions.create(model="gpt-5", messages=HELLO, stream=True))
    theirs = attached(limiter, anthropic.Anthropic(base_url=emulator.base_url, api_key="any", max_retries=0))
    with pytest.raises(anthropic.APIStatusError, match="overloaded_error"):
        list(theirs.messages.create(model="claude", messages=HELLO, max_tokens=50, stream=True))
    assert limiter.status()["pools"]["openai/gpt-5"]["counts"] == {"granted": 2, "refused_capacity": 2}
    assert limiter.status()["pools"]["anthropic/claude"]["counts"] == {"granted": 1, "refused_capacity": 1}
    google = attached(limiter, gemini_client(emulator), "gemini")
    with pytest.raises(errors.ServerError, match="overloaded"):
        list(google.models.generate_content_stream(model="gemini", contents="hello"))
    with pytest.raises(openai.InternalServerError):
        ours.chat.completions.create(model="gpt-5", messages=HELLO)
    tally = emulator.tally()
    assert (tally["faults"], tally["answered"], tally["in_flight"]) == ({"stream": 5}, 0, 0)


def test_a_refusal_inside_a_stream_of_responses(paceline_emulator, attached):
    emulator = paceline_emulator(limits="1 requests/min", refuse_in_stream=True, headers=False)
    limiter = paceline.Limiter({"openai/*": "500 requests/min"}, retry=paceline.RetryPolicy(max_attempts=1))
    client = attached(
        limiter, openai.OpenAI(base_url=f"{emulator.base_url}/v1", api_key="any", max_retries=0), "openai"
    )
    client.responses.create(model="gpt-5", input="hello")
    with pytest.raises(openai.RateLimitError, match="paceline: openai/gpt-5: refused"):
        client.responses.create(model="gpt-5", input="hello", stream=True)
    assert limits_of(limiter)["requests", 60] == 1
