"""What a caught exception says: real SDKs' over HTTP from the emulator, and others' made by hand."""

from __future__ import annotations

from itertools import islice

import anthropic
import groq
import httpx
import httpx2
import openai
import pytest
from chats import ANSWER, REFUSED, pool_of
from google import genai

import paceline
from paceline.core.results import QuotaError, Refusal, RefusalKind
from paceline.testing import ManualClock

HELLO = [{"role": "user", "content": "Hello."}]
RATE = {"error": {"message": "Rate limit reached. Please try again in 4s.", "code": "rate_limit_exceeded"}}
SDKS = {
    "openai": (
        lambda url: openai.OpenAI(api_key="k", base_url=f"{url}/v1", max_retries=0),
        lambda client: client.chat.completions.create(model="gpt-5", messages=HELLO),
        openai.RateLimitError,
    ),
    "anthropic": (
        lambda url: anthropic.Anthropic(api_key="k", base_url=url, max_retries=0),
        lambda client: client.messages.create(model="claude-haiku-4-5", messages=HELLO, max_tokens=5),
        anthropic.RateLimitError,
    ),
    "groq": (
        lambda url: groq.Groq(api_key="k", base_url=url, max_retries=0),
        lambda client: client.chat.completions.create(model="llama-3.3-70b-versatile", messages=HELLO),
        groq.RateLimitError,
    ),
    "google": (
        lambda url: genai.Client(api_key="k", http_options=genai.types.HttpOptions(base_url=url)),
        lambda client: client.models.generate_content(model="gemini-2.5-flash", contents="Hello."),
        genai.errors.ClientError,
    ),
}


@pytest.fixture
def world(paceline_emulator):
    return paceline_emulator(limits={"*": "1 requests/min"})


@pytest.mark.parametrize(("make", "call", "kind"), SDKS.values(), ids=SDKS)
def test_the_second_call_of_a_real_sdk(world, make, call, kind):
    with make(world.base_url) as client:
        call(client)
        with pytest.raises(kind) as caught:
            call(client)
    refusal = paceline.refusal_of(caught.value)
    assert refusal.kind is RefusalKind.RATE
    assert 50 < refusal.retry_after_s <= 61
    if kind is openai.RateLimitError:
        assert (refusal.unit, refusal.limit) == ("requests", 1)


async def test_an_async_sdk_to_a_permit(world):
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
    assert 49 < pool_of(limiter)["cool_down_s"] <= 60


class SDKError(Exception):
    """As others' look: fields beside the message."""

    def __init__(self, **fields):
        super().__init__("refused")
        vars(self).update(fields)


def named(name, module, kind=SDKError):
    return type(name, (kind,), {"__module__": module})


def answer(status=429, library=httpx2, **options):
    request = library.Request("POST", "https://api.openai.com/v1/responses")
    return library.Response(status, **{"json": RATE} | options, request=request)


def http_error(library):
    with pytest.raises(library.HTTPStatusError) as caught:
        answer(library=library, headers={"Retry-After": "9"}).raise_for_status()
    return caught.value


def not_read():
    async def body():
        yield b"never"

    request = httpx2.Request("POST", "https://api.openai.com/v1/responses")
    response = httpx2.Response(429, headers={"retry-after": "3"}, content=body(), request=request)
    return httpx2.HTTPStatusError("", request=request, response=response)


def sdk_refusal(after=None):
    headers = {} if after is None else {"retry-after": after}
    return openai.RateLimitError("", response=answer(headers=headers), body=None)


def bad_request():
    return openai.BadRequestError("rate limit", response=answer(400, json={}), body=None)


def by_botocore():
    error = named("ClientError", "botocore.exceptions", Exception)()
    error.response = {
        "Error": {"Code": "ThrottlingException", "Message": "Too many requests"},
        "ResponseMetadata": {"HTTPStatusCode": 429, "HTTPHeaders": {"retry-after": "3"}},
    }
    return error


def raised(error, cause=None, *, during=None, hidden=None):
    """``error`` as raised ``from cause``, or in the handler of ``during``."""
    error.__cause__, error.__context__ = cause, cause or during
    error.__suppress_context__ = cause is not None if hidden is None else hidden
    return error


def ring(context=None):
    one, other = RuntimeError("one"), RuntimeError("other")
    one.__cause__, other.__cause__ = other, one
    other.__context__ = context  # not reached: an explicit cause hides it
    return one


def chain(count):
    error = sdk_refusal()
    for _ in range(count):
        error = raised(RuntimeError("again"), error)
    return error


def gave_up():
    refusal = Refusal(RefusalKind.RATE, "Rate limit reached")
    return raised(paceline.GaveUpError("openai/gpt-5", 3, refusal, "3 attempts made"), sdk_refusal())


def group(*errors):
    return ExceptionGroup("some", list(errors))


def group_of_its_context():
    member = RuntimeError("429")
    member.__context__ = found = group(member)
    return found


CAUSE = sdk_refusal("5")
MISTRAL = httpx.Response(429, headers={"retry-after": "5"}, json={"message": "Requests rate limit exceeded"})
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
NO_MONEY = {"error": {"code": "insufficient_quota", "message": "You exceeded your current quota."}}
AFTER = {
    "httpx": (http_error(httpx), 9),
    "httpx2": (http_error(httpx2), 9),
    "a response": (answer(headers={"Retry-After": "9"}), 9),
    "a body that was not read": (not_read(), 3),
    "bytes and no UTF-8": (SDKError(status_code=429, headers={b"Retry-After": b"7"}, text="\ud800"), 7),
    "botocore's, which is parsed already": (by_botocore(), 3),
    "a cause": (raised(RuntimeError("Rate limit exceeded for gpt-4o"), sdk_refusal("7")), 7),
    "a cause of a cause and a context": (
        raised(ValueError("step 3 failed"), raised(RuntimeError("no answer"), during=sdk_refusal("9"))), 9
    ),
    "of a group the longest wait": (group(sdk_refusal("5"), sdk_refusal("8")), 8),
    "a group as a cause": (raised(RuntimeError("no answer"), group(sdk_refusal("5"), sdk_refusal("8"))), 8),
    "a group in a group": (group(group(sdk_refusal("5"), sdk_refusal("8")), sdk_refusal("9")), 9),
    "members with one cause": (group(*(raised(RuntimeError(name), CAUSE) for name in "ab")), 5),
    "the wait in a text": (RuntimeError("Rate limit reached. Please try again in 2.5s"), 2.5),
}  # fmt: skip


@pytest.mark.parametrize(("error", "after_s"), AFTER.values(), ids=AFTER)
def test_a_refusal_with_its_wait(error, after_s):
    refusal = paceline.refusal_of(error)
    assert (refusal.kind, refusal.retry_after_s) == (RefusalKind.RATE, after_s)


@pytest.mark.parametrize(
    ("error", "provider", "after_s"),
    [
        (SDKError(raw_response=MISTRAL, status_code=429, body=MISTRAL.text), "mistral", 5),
        (SDKError(status_code=429, headers={"Retry-After": "6"}, body={"message": "trial token rate limit exceeded"}), "cohere", 6),
    ],
)  # fmt: skip
def test_the_fields_of_sdks(error, provider, after_s):
    assert paceline.refusal_of(error, provider).retry_after_s == after_s


KINDS = {
    "money": (openai.RateLimitError("", response=answer(json=NO_MONEY), body=None), RefusalKind.MONEY),
    "the SDK's package says whose": (
        named("RateLimitError", "anthropic._exceptions")(status_code=529, body=OVERLOADED), RefusalKind.CAPACITY
    ),
    "a cause of a bug": (raised(KeyError("x"), sdk_refusal()), RefusalKind.RATE),
    "a member whose context the group is": (group_of_its_context(), RefusalKind.RATE),
    **{
        f"nonsense in {junk}": (SDKError(status_code=429, **junk), RefusalKind.RATE)
        for junk in ({"headers": 5}, {"headers": [1]}, {"body": {1: object}}, {"body": b"\xff" * 10**6})
    },
}  # fmt: skip


@pytest.mark.parametrize(("error", "kind"), KINDS.values(), ids=[name[:40] for name in KINDS])
def test_a_refusal_of_a_kind(error, kind):
    assert paceline.refusal_of(error).kind is kind


TEXTS = ["Rate limit exceeded for gpt-4o", "rate_limit_error", "HTTP 429", "Too Many Requests", "status=429, retry"]
TEXTS += ["Error code: 429 - {}", "TOO MANY REQUESTS"]


@pytest.mark.parametrize("error", [SDKError(code=429), *map(RuntimeError, TEXTS)])
def test_nothing_but_a_status_or_a_text(error):
    """The weakest sign: four phrases."""
    assert paceline.refusal_of(error) == Refusal(RefusalKind.RATE)


def test_no_text_of_it_is_kept():
    error = RuntimeError('{"error": {"message": "rate limit: the prompt", "code": 1}}')
    assert (paceline.refusal_of(error).kind, paceline.refusal_of(error).message) == (RefusalKind.RATE, "")


NONE = [
    *(SDKError(status_code=status, headers={}) for status in (200, 400, 401, 404, 500)),
    *(ValueError("no"), None, object(), "rate limit", SDKError(code="429"), SDKError(status_code=7), SDKError(response=None)),
    # The nearest answer decides.
    raised(bad_request(), sdk_refusal()), raised(RuntimeError("429"), raised(bad_request(), sdk_refusal())),
    raised(RuntimeError("no answer"), during=sdk_refusal(), hidden=True),
    raised(AttributeError("no 'retry'"), during=sdk_refusal()),  # a bug in a handler
    ring(), ring(sdk_refusal("3")), chain(500),
    gave_up(), raised(RuntimeError("rate limit"), gave_up()),
    group(sdk_refusal(), ValueError("no")), group(sdk_refusal(), TypeError("429")),
    *map(RuntimeError, ["14290 tokens", "loss 0.429", "429.5 ms", "4290", "model-x429", "rates limited", ""]),
    KeyError(429), TypeError("rate limit"), FileNotFoundError(2, "No such file", "rate_limit.yaml"),
    UnicodeDecodeError("utf-8", b"429", 0, 1, "429"), AssertionError("429 == 200"), KeyboardInterrupt("429"),
    paceline.QuotaError("rate limit"),
]  # fmt: skip


@pytest.mark.parametrize("error", NONE)
def test_what_is_no_refusal(error):
    assert paceline.refusal_of(error) is None


class TestPermitRefused:
    @pytest.fixture
    def permit(self):
        limiter = paceline.Limiter({"groq/llama": "60 requests/min"}, clock=ManualClock())
        return limiter.try_acquire("groq/llama")

    @pytest.mark.parametrize(
        ("error", "kind", "said"),
        [
            (ValueError("a prompt that nobody should see"), TypeError, "groq/llama: ValueError carries no HTTP answer"),
            (SDKError(status_code=400), QuotaError, "an answer with status 400 is no refusal"),
        ],
    )
    def test_no_refusal(self, permit, error, kind, said):
        with pytest.raises(kind, match=said):
            permit.refused(error)
        assert permit.open

    @pytest.mark.parametrize(
        "error", [SDKError(status_code=429, headers={"retry-after": "5"}), RuntimeError("429 Too Many Requests")]
    )
    def test_our_own_pause_beats_what_was_said(self, permit, error):
        permit.refused(error, retry_after_s=8)
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
    assert pool_of(limiter)["counts"] == {"granted": 1, "refused_rate": 1}


async def test_an_attached_client_that_goes_on_after_a_refusal_leaves_nothing_to_the_attempts_around_it():
    """It has its answer by a permit that follows the one of the block."""
    limiter = paceline.Limiter({"openai/*": "600 requests/min"}, retry=paceline.RetryPolicy(backoff_s=0.01))
    answers = iter([httpx2.Response(429, json=REFUSED), httpx2.Response(200, json=ANSWER)])
    transport = httpx2.MockTransport(lambda _: next(answers))
    async with openai.AsyncOpenAI(api_key="k", http_client=httpx2.AsyncClient(transport=transport)) as client:
        limiter.attach(client)
        for attempt in limiter.attempts("openai/gpt-5", tokens=20):
            async with attempt as permit:
                answer = await client.chat.completions.create(model="gpt-5", messages=HELLO, max_tokens=1)
                permit.settle(answer)
    assert answer.usage.total_tokens == 17
    assert pool_of(limiter)["counts"] == {"granted": 2, "refused_rate": 1, "settled": 1}


def test_a_server_fault_behind_counts_for_the_breaker():
    breaker = paceline.BreakerPolicy(failures=1)
    limiter = paceline.Limiter({"openai/gpt-5": "60 requests/min"}, clock=ManualClock(), breaker=breaker)
    error = raised(RuntimeError("no answer"), SDKError(status_code=500))
    [attempt] = islice(limiter.attempts("openai/gpt-5"), 1)
    with pytest.raises(RuntimeError), attempt:
        raise error
    assert pool_of(limiter)["cool_down_s"] > 0
