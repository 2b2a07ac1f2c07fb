"""A host that fails is left alone for a while; the caller's own errors pause nothing; retries are a share of the traffic."""

import asyncio
import gc
import warnings

import aiohttp
import httpx
import httpx2
import openai
import pytest
import requests
import urllib3

import paceline
from paceline.core.quota import NS
from paceline.http import pace_transport
from paceline.pacing.faults import Fault, fault_of
from virtual_time import virtual

BODY = {"model": "gpt-6-luna", "messages": [{"role": "user", "content": "Say something."}], "max_tokens": 5}
PATH = "/v1/chat/completions"


class Script(httpx2.AsyncBaseTransport):
    """Answers by host, with a status or an error; notes the virtual seconds at which each request came."""

    def __init__(self, clock, **by_host):
        self.clock, self.start_ns, self.by_host, self.times = clock, clock.now_ns(), by_host, []

    async def handle_async_request(self, request):
        self.times.append(round((self.clock.now_ns() - self.start_ns) / NS, 1))
        await asyncio.sleep(0.1)
        answers = self.by_host[request.url.host]
        answer = answers.pop(0) if isinstance(answers, list) and answers else answers or 200
        if isinstance(answer, Exception):
            raise answer
        return httpx2.Response(answer, stream=httpx2.ByteStream(b'{"choices": [{"message": {"content": "Hi."}}]}'))


def limiter_of(clock, **options):
    return paceline.Limiter({"openai/*": ["6000 requests/min"]}, clock=clock, **options)


def client(limiter, script, host):
    return httpx2.AsyncClient(transport=pace_transport(limiter, script, "openai"), base_url=f"http://{host}:8000")


def cool_down_s(limiter):
    return limiter.status()["pools"]["openai/gpt-6-luna"]["cool_down_s"]


async def post(http):
    """The status of an answer, or the error; the model's key and prompt are secrets."""
    try:
        return (await http.post(PATH, json=BODY, headers={"authorization": "Bearer secret"})).status_code
    except Exception as error:  # noqa: BLE001
        return type(error)


@virtual
async def test_over_http_all_wait_then_one_probe_at_a_time_then_all(clock):
    """Up again a second later, it is used a second later; then probes are rarer each time, and each is another request's."""
    script = Script(clock, host=[500] * 8)
    retry = paceline.RetryPolicy(faults=True, max_attempts=3, backoff_s=0.1, backoff_max_s=0.1, jitter=0)
    async with client(limiter_of(clock, retry=retry), script, "host") as http:
        found = await asyncio.gather(*[post(http) for _ in range(5)])
    assert found == [200] * 5
    first, probes, rest = script.times[:5], script.times[5:9], script.times[9:]
    assert max(first) < 1
    assert probes == pytest.approx([1.2, 3.3, 7.4, 15.5], abs=0.15)  # after 1, 2, 4 and 8 s
    assert len(rest) == 4
    assert all(15.5 <= at < 16 for at in rest)


@pytest.mark.parametrize(
    ("faults", "status", "found"),
    [*[(True, status, 200) for status in (408, 409, 425, 499, 500, 503)], (True, 404, 404), (False, 408, 408)],
)
@virtual
async def test_what_sdks_retry_is_retried_for_those_who_have_none(clock, faults, status, found):
    limiter = limiter_of(clock, retry=paceline.RetryPolicy(faults=faults))
    async with client(limiter, Script(clock, host=[status]), "host") as http:
        assert await post(http) == found


@virtual
async def test_an_error_that_a_transport_keeps_has_its_traceback_after_a_retry(clock):
    error = httpx2.ReadError("broke")
    limiter = limiter_of(clock, retry=paceline.RetryPolicy(faults=True))
    async with client(limiter, Script(clock, host=[error]), "host") as http:
        assert await post(http) == 200
    assert error.__traceback__ is not None


class OfflineError(ConnectionError):
    """As huggingface_hub's OfflineModeIsEnabled."""


@pytest.mark.parametrize(
    "error", [RuntimeError("Event loop is closed"), OfflineError("no"), httpx2.PoolTimeout("no"), httpx2.UnsupportedProtocol("no")]
)  # fmt: skip
@virtual
async def test_errors_of_the_caller_pause_nothing(clock, error):
    script = Script(clock, host=[200, *[error] * 20])
    limiter = limiter_of(clock)
    async with client(limiter, script, "host") as http:
        found = [await post(http) for _ in range(21)]
    assert found == [200, *[type(error)] * 20]
    assert script.times[-1] < 3
    assert cool_down_s(limiter) == 0


@pytest.mark.parametrize(("before", "paused"), [([], False), ([200] * 5, True), ([500], True)])
@virtual
async def test_a_host_that_was_never_reached_fails_at_once(clock, before, paused, caplog):
    count = 4 if before == [500] else 5
    script = Script(clock, host=[*before, *[httpx2.ConnectError("no")] * count])
    limiter = limiter_of(clock)
    async with client(limiter, script, "host") as http:
        found = [await post(http) for _ in range(count + len(before))]
    assert found == [*before, *[httpx2.ConnectError] * count]
    assert script.times[-1] < 2
    assert bool(cool_down_s(limiter)) is paused
    said = "host:8000: 5 failures in a row, the last one ConnectError; the next request waits up to 1 s"
    assert caplog.messages == [said] * paused


@virtual
async def test_another_host_of_the_same_pool_goes_on(clock, caplog):
    """A staging server that is down, and the provider itself: one pool, two hosts."""
    script = Script(clock, staging=[502] * 20, api=[200] * 20)
    limiter = limiter_of(clock)
    async with client(limiter, script, "staging") as staging, client(limiter, script, "api") as api:
        found = [await post(one) for _ in range(10) for one in (api, staging)]
        at_s = script.times[-1]
        script.by_host["api"] = [502] * 5
        found += [await post(api) for _ in range(6)]
    assert found == [200, 502] * 10 + [502] * 5 + [200]
    assert at_s < 3
    said = {record.getMessage().split("; ")[1] for record in caplog.records if record.args[0] == "staging:8000"}
    assert said == {"its pools continue with their other hosts"}  # no pause is announced where none begins
    assert script.times[-1] - script.times[-2] >= 1  # both are down: the pool waits


@pytest.mark.sample(4)
@pytest.mark.parametrize("answer", [httpx2.ConnectError("no"), httpx2.ReadTimeout("no"), 500, 503])
@pytest.mark.parametrize(("outage_s", "back_s"), [(1, 1), (300, 60)])
@virtual
async def test_a_run_survives_an_outage(clock, answer, outage_s, back_s):
    """20 workers with the policy of `paceline run`: no request is lost, and the provider is used again soon."""
    script = Script(clock, host=[])
    limiter = limiter_of(clock, retry=paceline.RetryPolicy(faults=True, max_elapsed_s=1e6))

    async def work(http):
        return [await post(http) for _ in range(5)]

    async with client(limiter, script, "host") as http:
        first = asyncio.gather(*[work(http) for _ in range(20)])
        await asyncio.sleep(0.05)
        script.by_host["host"] = answer
        await asyncio.sleep(outage_s)
        script.by_host["host"] = 200
        found = await first
    assert found == [[200] * 5] * 20
    assert next(at_s for at_s in script.times if at_s > outage_s) < outage_s + back_s


class WrappedError(Exception):
    """As an SDK raises it, with the HTTP library's error as its cause."""

    def __init__(self, cause):
        self.__cause__ = cause


FAULTS = {
    "PoolTimeout": Fault.UNSENT, "UnsupportedProtocol": Fault.UNSENT, "LocalProtocolError": Fault.UNSENT,
    "ConnectError": Fault.UNREACHED, "ConnectTimeout": Fault.UNREACHED, "ProxyError": Fault.UNREACHED,
    "ReadError": Fault.BROKEN, "WriteError": Fault.BROKEN, "CloseError": Fault.BROKEN,
    "ReadTimeout": Fault.BROKEN, "WriteTimeout": Fault.BROKEN, "RemoteProtocolError": Fault.BROKEN,
    "DecodingError": None, "TooManyRedirects": None,
}  # fmt: skip
"""Of httpx and httpx2."""

UNREACHED = urllib3.exceptions.NewConnectionError(None, "no")


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        *[(getattr(library, name)("no"), fault) for library in (httpx, httpx2) for name, fault in FAULTS.items()],
        (aiohttp.ClientConnectorDNSError(None, OSError()), Fault.UNREACHED),
        (aiohttp.ConnectionTimeoutError(), Fault.UNREACHED),
        (aiohttp.ServerDisconnectedError(), Fault.BROKEN),
        (aiohttp.SocketTimeoutError(), Fault.BROKEN),
        (aiohttp.ClientPayloadError(), Fault.BROKEN),
        (aiohttp.InvalidURL("x"), Fault.UNSENT),
        (UNREACHED, Fault.UNREACHED),
        (urllib3.exceptions.ConnectTimeoutError(None, "no"), Fault.UNREACHED),
        (urllib3.exceptions.ReadTimeoutError(None, "/", "no"), Fault.BROKEN),
        (urllib3.exceptions.ProtocolError("no"), Fault.BROKEN),
        (urllib3.exceptions.EmptyPoolError(None, "no"), Fault.UNSENT),
        (urllib3.exceptions.MaxRetryError(None, "/", UNREACHED), Fault.UNREACHED),
        (requests.exceptions.InvalidJSONError(), None),
        (ValueError("no"), None),
    ],
    ids=lambda value: f"{type(value).__module__}.{type(value).__name__}",
)
def test_what_an_error_is(error, fault):
    assert fault_of(error) is fault_of(WrappedError(error)) is fault
    assert fault_of(WrappedError(WrappedError(error))) is fault


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_one_client_in_three_event_loops(paceline_emulator, library):
    """A notebook: the connections of a closed loop fail, which is no outage of the provider."""
    world = paceline_emulator(limits={"gpt-6-luna": "6000 requests/min,4M tokens/min"})
    long = paceline.BreakerPolicy(first_pause_s=60)  # a pause would be seen at the end
    limiter = paceline.Limiter({"openai/*": ["6000 requests/min", "4M tokens/min"]}, acquire_timeout_s=20, breaker=long)
    sdk = openai.AsyncOpenAI(api_key="k", base_url=f"{world.base_url}/v1", http_client=library.AsyncClient())
    limiter.attach(sdk, provider="openai")

    async def cell(last):
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        found = await asyncio.gather(*[sdk.chat.completions.create(**BODY) for _ in range(10)], return_exceptions=True)
        if last:
            await sdk.close()
        return [type(one) for one in found if isinstance(one, Exception)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # sockets of the closed loops
        errors = [asyncio.run(cell(last)) for last in (False, False, True)]
        gc.collect()
    assert errors[0] == errors[2] == []
    assert set(errors[1]) <= {RuntimeError, openai.APIConnectionError}
    assert cool_down_s(limiter) == 0
