"""A server of one's own that states no limit: its callers give up, and its queue is full."""

from __future__ import annotations

import asyncio
import threading

import aiohttp
import httpx2
import pytest
import requests
import urllib3
from chats import ANSWER, CHAT, pool_of
from http_ways import KEY, chat_at

import paceline
from odd_server import JSON, SSE, OddServer
from paceline.core.pool import Pool
from paceline.testing import run_virtual

URL = "http://own.example.com/v1/chat/completions"
OLLAMA = "server busy, please try again.  maximum pending requests exceeded"


class Server(httpx2.AsyncBaseTransport):
    """Eight slots; each answer takes a second. It does not notice that a caller has given up."""

    def __init__(self, queue: float, timeout_s: float) -> None:
        self.slots, self.queue, self.timeout_s = asyncio.Semaphore(8), queue, timeout_s
        self.inside = self.worked = self.full = self.timed_out = 0
        self.tasks: list[asyncio.Task[None]] = []

    async def work(self) -> None:
        self.inside += 1
        async with self.slots:
            await asyncio.sleep(1.0)
        self.inside -= 1
        self.worked += 1

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await asyncio.sleep(0.01)
        if self.inside >= 8 + self.queue:
            self.full += 1
            return httpx2.Response(503, json={"error": OLLAMA})
        self.tasks.append(asyncio.get_running_loop().create_task(self.work()))
        done, _ = await asyncio.wait(self.tasks[-1:], timeout=self.timeout_s)
        if not done:
            self.timed_out += 1
            raise httpx2.ReadTimeout("read", request=request)
        return httpx2.Response(200, json=ANSWER)


@pytest.mark.filterwarnings("ignore::paceline.PacelineWarning")
@pytest.mark.parametrize(("queue", "workers", "thrown", "most_s"), [(24, 160, 17, 24), (1_000, 40, 45, 30)])
def test_time_outs_and_full_queues_bound_the_number_in_flight(queue, workers, thrown, most_s):
    async def main(clock):
        server, limiter, gate = Server(queue, 2.5), paceline.Limiter(clock=clock), asyncio.Semaphore(workers)
        async with httpx2.AsyncClient(transport=server) as client:
            limiter.attach(client)

            async def one():
                async with gate:
                    for _ in range(9):
                        try:
                            return await client.post(URL, json=CHAT)
                        except httpx2.ReadTimeout:
                            await asyncio.sleep(0.5)
                return None

            began_ns = clock.now_ns()
            answers = await asyncio.gather(*(one() for _ in range(160)))
            took_s = (clock.now_ns() - began_ns) / 1e9
            await asyncio.gather(*server.tasks)
        assert [answer.status_code for answer in answers] == [200] * 160
        assert server.worked - 160 <= thrown
        assert took_s <= most_s
        assert server.full <= 2
        [pool] = limiter.status()["pools"].values()
        assert any("concurrency measured" in one["quota"] for one in pool["quotas"])

    run_virtual(main)


EVENT = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'
STREAM = CHAT | {"stream": True}


@pytest.fixture
def stalled():
    """The address of a server that answers with the beginning of a stream, and no more."""
    more = threading.Event()
    with OddServer(lambda *_: (200, SSE, [EVENT, more])) as server:
        yield chat_at(server)
        more.set()


def read_by_httpx(limiter, url):
    with limiter.attach(httpx2.Client(timeout=1.0)) as client, client.stream("POST", url, json=STREAM) as response:
        response.read()


def read_by_requests(limiter, url):
    with limiter.attach(requests.Session()) as client:
        client.post(url, json=STREAM, stream=True, timeout=1.0).content  # noqa: B018


def read_by_async_httpx(limiter, url):
    async def main():
        client = limiter.attach(httpx2.AsyncClient(timeout=1.0))
        async with client, client.stream("POST", url, json=STREAM) as response:
            await response.aread()

    asyncio.run(main())


def read_by_aiohttp(limiter, url):
    async def main():
        timeout = aiohttp.ClientTimeout(total=None, sock_read=1.0)
        client = limiter.attach(aiohttp.ClientSession(timeout=timeout))
        async with client, client.post(url, json=STREAM) as response:
            await response.read()

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore::paceline.PacelineWarning")
@pytest.mark.parametrize("read", [read_by_httpx, read_by_requests, read_by_async_httpx, read_by_aiohttp])
def test_a_time_out_in_a_stream_is_no_answer(read, stalled, monkeypatch):
    late = []
    monkeypatch.setattr(Pool, "timed_out", lambda _pool, _now_ns, reservation: late.append(reservation.open))
    with (
        paceline.Limiter() as limiter,
        pytest.raises((httpx2.ReadTimeout, requests.ConnectionError, aiohttp.SocketTimeoutError)),
    ):
        read(limiter, stalled)
    assert late == [True]


def test_a_time_out_that_urllib3_repeats_is_told_of_as_any_other(monkeypatch):
    late, ended = [], threading.Event()
    monkeypatch.setattr(Pool, "timed_out", lambda _pool, _now_ns, reservation: late.append(reservation.open) or True)

    def answer(number, _):
        if number == 0:
            ended.wait(10)
        return 200, JSON, ANSWER

    policy = urllib3.Retry(read=1, allowed_methods=None, backoff_factor=0)
    with OddServer(answer) as server, urllib3.PoolManager(retries=policy) as http, paceline.Limiter() as limiter:
        limiter.attach(http, provider="openai")
        response = http.request("POST", chat_at(server), json=CHAT, headers=KEY, timeout=1.0)
        ended.set()
    assert (response.status, late) == (200, [True])


@pytest.mark.parametrize(("explained", "waits"), [(True, False), (False, True)])
def test_a_time_out_by_hand_that_the_number_in_flight_explains_is_no_failure_of_the_host(explained, waits, monkeypatch):
    monkeypatch.setattr(Pool, "timed_out", lambda *_: explained)

    async def main(clock):
        limiter = paceline.Limiter({"openai/*": "600 requests/min"}, clock=clock)
        for _ in range(5):
            (await limiter.acquire("openai/m")).failed(TimeoutError())
        assert bool(pool_of(limiter, "openai/m")["cool_down_s"]) is waits

    run_virtual(main)


@pytest.mark.parametrize(
    "message", [OLLAMA, "Exceeds maximum queue size", "The request queue is full.", "pending request queue full"]
)
def test_a_full_queue_is_about_the_number_in_flight(message):
    response = httpx2.Response(503, json={"error": message}, request=httpx2.Request("POST", URL))
    refusal = paceline.refusal_of(response)
    assert (refusal.kind, refusal.unit) == ("capacity", "concurrency")
    busy = httpx2.Response(503, json={"error": "overloaded"}, request=httpx2.Request("POST", URL))
    assert paceline.refusal_of(busy).unit is None
