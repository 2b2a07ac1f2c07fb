"""What a caught exception says: real SDKs' over HTTP from the emulator, and others' made by hand."""

from __future__ import annotations

from itertools import islice

import anthropic
import groq
import httpx
import httpx2
import openai
import pytest
from google import genai

import paceline
from paceline.core.results import QuotaError, Refusal, RefusalKind
from paceline.testing import ManualClock

HELLO = [{"role": "user", "content": "Hello."}]
RATE = {"error": {"message": "Rate limit reached. Please try again in 4s.", "code": "rate_limit_exceeded"}}


@pytest.fixture
def world(paceline_emulator):
    one = "1 requests/min"
    models = ("gpt-5", "claude-haiku-4-5", "gemini-2.5-flash", "llama-3.3-70b-versatile")
    return paceline_emulator(limits=dict.fromkeys(models, one))


def refused_by(call, kind):
    """The exception at the second call."""
    call()
    with pytest.raises(kind) as caught:
        call()
    return caught.value


class TestRealSdks:
    def test_openai(self, world):
        with openai.OpenAI(api_key="k", base_url=f"{world.base_url}/v1", max_retries=0) as client:
            error = refused_by(
                lambda: client.chat.completions.create(model="gpt-5", messages=HELLO), openai.RateLimitError
            )
        refusal = paceline.refusal_of(error)
        assert (refusal.kind, refusal.unit, refusal.limit) == (RefusalKind.RATE, "requests", 1)
        assert 50 < refusal.retry_after_s <= 60

    async def test_openai_async_to_a_permit(self, world):
        clock = ManualClock()
        limiter = paceline.Limiter({"openai/gpt-5": "60 requests/min burst 2"}, clock=clock, events=(told := []).append)
        async with openai.AsyncOpenAI(api_key="k", base_url=f"{world.base_url}/v1", max_retries=0) as client:
            for _ in range(2):
                async with limiter.acquire("openai/gpt-5") as permit:
                    try:
                        await client.chat.completions.create(model="gpt-5", messages=HELLO)
                    except openai.RateLimitError as error:
                        permit.refused(error)
                clock.advance(1)
        assert [event.kind for event in told] == ["acquired", "settled", "acquired", "refused"]
        assert 50 < told[-1].retry_after_s <= 60
        assert 49 < limiter.status()["pools"]["openai/gpt-5"]["cool_down_s"] <= 60

    def test_anthropic(self, world):
        with anthropic.Anthropic(api_key="k", base_url=world.base_url, max_retries=0) as client:
            error = refused_by(
                lambda: client.messages.create(model="claude-haiku-4-5", messages=HELLO, max_tokens=5),
                anthropic.RateLimitError,
            )
        refusal = paceline.refusal_of(error)
        assert refusal.kind is RefusalKind.RATE
        assert 50 < refusal.retry_after_s <= 61

    def test_groq(self, world):
        with groq.Groq(api_key="k", base_url=world.base_url, max_retries=0) as client:
            error = refused_by(
                lambda: client.chat.completions.create(model="llama-3.3-70b-versatile", messages=HELLO),
                groq.RateLimitError,
            )
        assert paceline.refusal_of(error).retry_after_s > 50

    def test_google_genai(self, world):
        options = genai.types.HttpOptions(base_url=world.base_url)
        with genai.Client(api_key="k", http_options=options) as client:
            error = refused_by(
                lambda: client.models.generate_content(model="gemini-2.5-flash", contents="Hello."),
                genai.errors.ClientError,
            )
        refusal = paceline.refusal_of(error)
        assert refusal.kind is RefusalKind.RATE
        assert refusal.retry_after_s > 50

    @pytest.mark.parametrize("library", [httpx, httpx2])
    def test_an_http_library_s_own(self, library):
        request = library.Request("POST", "https://api.openai.com/v1/responses")
        response = library.Response(429, headers={"Retry-After": "9"}, json=RATE, request=request)
        with pytest.raises(library.HTTPStatusError) as caught:
            response.raise_for_status()
        assert paceline.refusal_of(caught.value).retry_after_s == 9
        assert paceline.refusal_of(response).retry_after_s == 9

    def test_a_body_that_was_not_read(self):
        async def body():
            yield b"never"

        request = httpx2.Request("POST", "https://api.openai.com/v1/responses")
        response = httpx2.Response(429, headers={"retry-after": "3"}, content=body(), request=request)
        assert paceline.refusal_of(httpx2.HTTPStatusError("", request=request, response=response)).retry_after_s == 3

    def test_money(self):
        said = {"error": {"code": "insufficient_quota", "message": "You exceeded your current quota."}}
        request = httpx2.Request("POST", "https://api.openai.com/v1/responses")
        error = openai.RateLimitError("", response=httpx2.Response(429, json=said, request=request), body=None)
        assert paceline.refusal_of(error).kind is RefusalKind.MONEY


class SDKError(Exception):
    """As others' look: fields beside the message."""

    def __init__(self, **fields):
        super().__init__("refused")
        vars(self).update(fields)


class TestOthers:
    def test_mistral_s_raw_response(self):
        response = httpx.Response(429, headers={"retry-after": "5"}, json={"message": "Requests rate limit exceeded"})
        error = SDKError(raw_response=response, status_code=429, body=response.text)
        assert paceline.refusal_of(error, "mistral").retry_after_s == 5

    def test_cohere_s_fields(self):
        error = SDKError(
            status_code=429, headers={"Retry-After": "6"}, body={"message": "trial token rate limit exceeded"}
        )
        assert paceline.refusal_of(error, "cohere").retry_after_s == 6

    def test_nothing_but_a_status(self):
        assert paceline.refusal_of(SDKError(code=429)) == Refusal(RefusalKind.RATE)

    def test_the_sdk_s_package_says_whose_where_the_host_does_not(self):
        kind = type("RateLimitError", (SDKError,), {"__module__": "anthropic._exceptions"})
        body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
        assert paceline.refusal_of(kind(status_code=529, body=body)).kind is RefusalKind.CAPACITY

    @pytest.mark.parametrize("status", [200, 400, 401, 404, 500])
    def test_what_is_no_refusal(self, status):
        assert paceline.refusal_of(SDKError(status_code=status, headers={})) is None

    @pytest.mark.parametrize(
        "error",
        [ValueError("no"), None, object(), SDKError(code="429"), SDKError(status_code=7), SDKError(response=None)],
    )
    def test_what_carries_no_answer(self, error):
        assert paceline.refusal_of(error) is None

    @pytest.mark.parametrize(
        "junk", [{"headers": 5}, {"headers": [1]}, {"body": {1: object()}}, {"body": b"\xff" * 10**6}]
    )
    def test_nonsense_raises_nothing(self, junk):
        assert paceline.refusal_of(SDKError(status_code=429, **junk)).kind is RefusalKind.RATE


class TestPermitRefused:
    @pytest.fixture
    def permit(self):
        limiter = paceline.Limiter({"groq/llama": "60 requests/min"}, clock=ManualClock())
        return limiter.try_acquire("groq/llama")

    def test_no_http_answer(self, permit):
        with pytest.raises(TypeError, match="groq/llama: ValueError carries no HTTP answer"):
            permit.refused(ValueError("a prompt that nobody should see"))
        assert permit.open

    def test_no_refusal(self, permit):
        with pytest.raises(QuotaError, match="an answer with status 400 is no refusal"):
            permit.refused(SDKError(status_code=400))
        assert permit.open

    def test_our_own_pause_beats_what_was_said(self, permit):
        permit.refused(SDKError(status_code=429, headers={"retry-after": "5"}), retry_after_s=8)
        assert permit._scheduler.status()["cool_down_s"] == 8
        assert not permit.open

    def test_paceline_s_own_says_nothing_new(self, permit):
        permit.refused(SDKError(status_code=429, headers={"X-Paceline": "timeout", "retry-after": "50"}))
        assert permit._scheduler.status()["counts"] == {"granted": 1}


async def test_an_attached_client_that_gave_up_is_no_news():
    """The permit above is the one that the client below used and that was refused already."""
    limiter = paceline.Limiter({"openai/*": "600 requests/min"}, retry=paceline.RetryPolicy(max_attempts=1))
    refuse = httpx2.MockTransport(lambda _: httpx2.Response(429, headers={"retry-after": "5"}, json=RATE))
    async with openai.AsyncOpenAI(api_key="k", http_client=httpx2.AsyncClient(transport=refuse)) as client:
        limiter.attach(client)
        async with limiter.acquire("openai/gpt-5") as permit:
            with pytest.raises(openai.RateLimitError) as caught:
                await client.chat.completions.create(model="gpt-5", messages=HELLO, max_tokens=1)
            permit.refused(caught.value)
    assert paceline.refusal_of(caught.value) is None
    assert limiter.status()["pools"]["openai/gpt-5"]["counts"] == {"granted": 1, "refused_rate": 1}


def test_botocore_has_parsed_the_answer_already():
    class ClientError(Exception):
        pass

    error = ClientError()
    ClientError.__module__ = "botocore.exceptions"
    error.response = {
        "Error": {"Code": "ThrottlingException", "Message": "Too many requests"},
        "ResponseMetadata": {"HTTPStatusCode": 429, "HTTPHeaders": {"retry-after": "3"}},
    }
    refusal = paceline.refusal_of(error)
    assert refusal is not None
    assert (refusal.kind, refusal.retry_after_s) == (paceline.RefusalKind.RATE, 3)


def test_headers_in_bytes_and_bodies_that_are_no_utf8():
    class OddError(Exception):
        status_code, headers, text = 429, {b"Retry-After": b"7"}, "\ud800"

    refusal = paceline.refusal_of(OddError())
    assert refusal is not None
    assert refusal.retry_after_s == 7


def sdk_refusal(**headers):
    request = httpx2.Request("POST", "https://api.openai.com/v1/responses")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return openai.RateLimitError(
        "", response=httpx2.Response(429, headers=named, json=RATE, request=request), body=None
    )


def bad_request():
    request = httpx2.Request("POST", "https://api.openai.com/v1/responses")
    return openai.BadRequestError("rate limit", response=httpx2.Response(400, json={}, request=request), body=None)


def raised(error, cause=None, *, during=None):
    """``error`` as raised ``from cause``, or in the handler of ``during``."""
    error.__cause__, error.__context__ = cause, cause or during
    error.__suppress_context__ = cause is not None
    return error


class TestBehind:
    """The answer of an exception that a wrapper has replaced."""

    def test_a_cause(self):
        error = raised(RuntimeError("Rate limit exceeded for gpt-4o"), sdk_refusal(retry_after="7"))
        refusal = paceline.refusal_of(error)
        assert (refusal.kind, refusal.retry_after_s, refusal.code) == (RefusalKind.RATE, 7, "rate_limit_exceeded")

    def test_a_cause_of_a_cause_and_a_context(self):
        inner = raised(RuntimeError("no answer"), during=sdk_refusal(retry_after="9"))
        assert paceline.refusal_of(raised(ValueError("step 3 failed"), inner)).retry_after_s == 9

    def test_the_nearest_answer_decides(self):
        assert paceline.refusal_of(raised(bad_request(), sdk_refusal())) is None
        assert paceline.refusal_of(raised(RuntimeError("429"), raised(bad_request(), sdk_refusal()))) is None

    def test_a_hidden_context_is_none(self):
        error = raised(RuntimeError("no answer"), during=sdk_refusal())
        error.__suppress_context__ = True
        assert paceline.refusal_of(error) is None

    def test_a_bug_in_a_handler_goes_up(self):
        assert paceline.refusal_of(raised(AttributeError("no 'retry'"), during=sdk_refusal())) is None
        assert paceline.refusal_of(raised(KeyError("x"), sdk_refusal())).kind is RefusalKind.RATE

    def test_a_ring_ends(self):
        one, other = RuntimeError("one"), RuntimeError("other")
        one.__cause__, other.__cause__ = other, one
        assert paceline.refusal_of(one) is None
        other.__context__ = sdk_refusal(retry_after="3")  # not reached: an explicit cause hides it
        assert paceline.refusal_of(one) is None

    def test_a_long_chain_is_read_in_part(self):
        error = sdk_refusal()
        for _ in range(500):
            error = raised(RuntimeError("again"), error)
        assert paceline.refusal_of(error) is None

    def test_paceline_s_own_errors_are_none(self):
        gave_up = raised(
            paceline.GaveUpError("openai/gpt-5", 3, Refusal(RefusalKind.RATE, "Rate limit reached"), "3 attempts made"),
            sdk_refusal(),
        )
        assert paceline.refusal_of(gave_up) is None
        assert paceline.refusal_of(raised(RuntimeError("rate limit"), gave_up)) is None

    def test_a_server_fault_behind_counts_for_the_breaker(self):
        clock = ManualClock()
        limiter = paceline.Limiter(
            {"openai/gpt-5": "60 requests/min"}, clock=clock, breaker=paceline.BreakerPolicy(failures=1)
        )
        error = raised(RuntimeError("no answer"), SDKError(status_code=500))
        [attempt] = islice(limiter.attempts("openai/gpt-5"), 1)
        with pytest.raises(RuntimeError), attempt:
            raise error
        assert limiter.status()["pools"]["openai/gpt-5"]["cool_down_s"] > 0


class TestGroups:
    def test_of_refusals_the_longest_wait(self):
        group = ExceptionGroup("two", [sdk_refusal(retry_after="5"), sdk_refusal(retry_after="8")])
        assert paceline.refusal_of(group).retry_after_s == 8
        assert paceline.refusal_of(raised(RuntimeError("no answer"), group)).retry_after_s == 8
        assert paceline.refusal_of(ExceptionGroup("outer", [group, sdk_refusal(retry_after="9")])).retry_after_s == 9

    def test_another_error_in_it_goes_up(self):
        assert paceline.refusal_of(ExceptionGroup("two", [sdk_refusal(), ValueError("no")])) is None
        assert paceline.refusal_of(ExceptionGroup("two", [sdk_refusal(), TypeError("429")])) is None

    def test_members_with_one_cause(self):
        cause = sdk_refusal(retry_after="5")
        group = ExceptionGroup("two", [raised(RuntimeError(name), cause) for name in ("a", "b")])
        assert paceline.refusal_of(group).retry_after_s == 5

    def test_one_that_is_its_members_context(self):
        member = RuntimeError("429")
        group = ExceptionGroup("one", [member])
        member.__context__ = group
        assert paceline.refusal_of(group).kind is RefusalKind.RATE


class TestByItsText:
    """The weakest sign: four phrases."""

    @pytest.mark.parametrize(
        "text",
        [
            "Rate limit exceeded for gpt-4o", "rate_limit_error", "HTTP 429", "Too Many Requests", "status=429, retry",
            "Error code: 429 - {}", "TOO MANY REQUESTS",
        ],
    )  # fmt: skip
    def test_a_refusal(self, text):
        assert paceline.refusal_of(RuntimeError(text)) == Refusal(RefusalKind.RATE)

    @pytest.mark.parametrize(
        "text", ["14290 tokens", "loss 0.429", "429.5 ms", "4290", "model-x429", "rates limited", ""]
    )
    def test_no_refusal(self, text):
        assert paceline.refusal_of(RuntimeError(text)) is None

    def test_the_wait_in_it(self):
        refusal = paceline.refusal_of(RuntimeError("Rate limit reached. Please try again in 2.5s"))
        assert refusal == Refusal(RefusalKind.RATE, retry_after_s=2.5)

    @pytest.mark.parametrize(
        "error",
        [
            KeyError(429), TypeError("rate limit"), FileNotFoundError(2, "No such file", "rate_limit.yaml"),
            UnicodeDecodeError("utf-8", b"429", 0, 1, "429"), AssertionError("429 == 200"), KeyboardInterrupt("429"),
            paceline.QuotaError("rate limit"),
        ],
    )  # fmt: skip
    def test_an_error_about_something_else(self, error):
        assert paceline.refusal_of(error) is None

    def test_a_text_that_is_no_error(self):
        assert paceline.refusal_of("rate limit") is None

    def test_no_text_of_it_is_kept(self):
        refusal = paceline.refusal_of(RuntimeError('{"error": {"message": "rate limit: the prompt", "code": 1}}'))
        assert refusal.message == ""

    def test_it_is_retried(self):
        limiter = paceline.Limiter(
            {"jobs": "600 requests/min"}, retry=paceline.RetryPolicy(max_attempts=3, backoff_s=0.001)
        )
        errors = [RuntimeError("Rate limit exceeded for gpt-4o")]
        for attempt in limiter.attempts("jobs"):
            with attempt:
                if errors:
                    raise errors.pop()
        assert limiter.status()["pools"]["jobs"]["counts"]["refused_rate"] == 1

    def test_a_permit_takes_it(self):
        limiter = paceline.Limiter({"jobs": "60 requests/min"}, clock=ManualClock())
        limiter.try_acquire("jobs").refused(RuntimeError("429 Too Many Requests"), retry_after_s=4)
        assert limiter.status()["pools"]["jobs"]["cool_down_s"] == 4
