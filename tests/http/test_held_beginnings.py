"""The beginning of a stream without content is held for a bounded time, by each HTTP library; nothing is lost then."""

import asyncio
import gc
import json
import threading

import httpx2
import pytest
from chats import EVENTS, POOL, REFUSED, ROLE, STREAM, WHOLE, counts, pool_of
from http_ways import IN_PARTS, chat_at

import paceline
from odd_server import HTML, JSON, SSE, Gate, OddServer, sse
from paceline.http.ahead import ReadAhead, held_parts
from paceline.pacing.sync import run_sync
from paceline.providers import verdict
from paceline.providers.base import Call
from paceline.providers.registry import provider_named
from paceline.testing import run_virtual
from waits import soon, until

pytestmark = pytest.mark.usefixtures("short_probes")


each = pytest.mark.parametrize("send", IN_PARTS.values(), ids=IN_PARTS)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(verdict, "HELD_S", 0.05)


@pytest.fixture
def limiter():
    retry = paceline.RetryPolicy(backoff_s=0.01, jitter=0.0)
    limiter = paceline.Limiter({"openai/*": "60k requests/min"}, retry=retry, headroom_s=0)
    with paceline.instrument(limiter, provider="openai"):
        yield limiter


def serving(*parts):
    return OddServer(lambda *_: (200, SSE, [*parts]))


def lines(data):
    return [line for line in data.splitlines() if line]


@each
@pytest.mark.parametrize("come", [1, 2])
def test_what_has_come_is_the_caller_s_before_the_content_and_after_it(send, come, limiter, short):
    gate = Gate()
    with serving(*EVENTS[:come], gate, *EVENTS[come:]) as server:
        assert lines(send(chat_at(server), STREAM, begun=gate.set)[1]) == lines(WHOLE)
    assert gate.waited == [True]
    assert counts(limiter) == {"granted": 1, "settled": 1}
    assert not pool_of(limiter)["in_flight"]


@pytest.mark.sample(8)
@each
@pytest.mark.parametrize("size", [9, 1_000])
def test_a_refusal_after_the_first_event_is_a_refused_attempt(send, size, limiter):
    wrong = [part[at : at + size] for part in sse(ROLE, REFUSED) for at in range(0, len(part), size)]
    answers = [wrong, wrong, EVENTS]
    with OddServer(lambda number, _: (200, SSE | {"retry-after-ms": "5"}, answers[number])) as server:
        assert lines(send(chat_at(server), STREAM)[1]) == lines(WHOLE)
    assert counts(limiter) == {"granted": 3, "refused_rate": 2, "settled": 1}


@each
def test_an_error_after_the_hold_is_the_stream_s_and_the_pool_learns_from_it(send, limiter, short):
    gate, events = Gate(), sse(ROLE, REFUSED)
    with serving(events[0], gate, events[1]) as server:
        assert lines(send(chat_at(server), STREAM, begun=gate.set)[1]) == lines(b"".join(events))
        assert len(server.asked) == 1
    assert counts(limiter) == {"granted": 1, "refused_rate": 1}


def test_streams_are_held_for_less_the_more_were_held_in_vain_and_no_refusal_came(limiter, short):
    def seconds_after(*parts):
        gate = Gate()
        with serving(*(gate if part is ... else part for part in parts)) as server:
            IN_PARTS["httpx"](chat_at(server), STREAM, begun=gate.set)
        return limiter.pacer.pools.scheduler(POOL).patience.seconds

    silent, refused = (EVENTS[0], ..., *EVENTS[1:]), (*sse(ROLE), ..., *sse(REFUSED))
    assert [seconds_after(*silent) for _ in range(3)] == [verdict.HELD_S / n for n in (2, 3, 4)]
    assert seconds_after(*EVENTS) == verdict.HELD_S / 4
    assert seconds_after(*refused) == verdict.HELD_S
    assert seconds_after(*silent) == verdict.HELD_S / 2


@each
def test_a_connection_that_breaks_after_the_hold_is_an_error_of_the_library(send, limiter, short):
    gate, head = Gate(), SSE | {"content-length": "9999", "connection": "close"}
    with (
        OddServer(lambda *_: (200, head, [EVENTS[0], gate])) as server,
        pytest.raises(Exception, match=r"(?i)incomplete|without sending|payload"),
    ):
        send(chat_at(server), STREAM, opened=gate.set)  # a body of a stated length comes in large parts from urllib3
    assert not pool_of(limiter)["in_flight"]


class LeaveError(Exception):
    pass


def leave():
    raise LeaveError


@each
def test_a_caller_that_leaves_does_not_wait_for_the_server(send, limiter, short):
    gate = Gate()
    with serving(EVENTS[0], gate, *EVENTS[1:]) as server:
        with pytest.raises(LeaveError):
            send(chat_at(server), STREAM, begun=leave)
        gate.set()
        until(lambda: gate.waited)
    assert gate.waited == [True]
    until(lambda: not any(thread.name == "paceline-read" for thread in threading.enumerate()))
    assert not pool_of(limiter)["in_flight"]
    gc.collect()


async def test_a_task_that_is_cancelled_within_the_stream_leaves_no_connection(limiter, short):
    gate = Gate()
    with serving(EVENTS[0], gate, EVENTS[1]) as server:
        async with httpx2.AsyncClient() as client:
            beginning = asyncio.Event()

            async def read():
                async with client.stream("POST", chat_at(server), json=STREAM) as response:
                    async for _ in response.aiter_raw():
                        beginning.set()

            task = asyncio.create_task(read())
            await soon(beginning.is_set)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert client._transport._pool.connections == []
        gate.set()
    assert not pool_of(limiter)["in_flight"]


def beginning_of():
    provider = provider_named("openai")
    return verdict.Beginning(provider, Call("openai", "chat", "m", 3, stream=True), 200, SSE)


def test_a_source_that_cannot_be_woken_is_closed_when_its_read_ends(short):
    go, closed = threading.Event(), threading.Event()

    def read(parts=iter([EVENTS[0]])):  # noqa: B008
        part = next(parts, None)
        return part if part is not None else go.wait(20) and None

    ahead = ReadAhead(read, beginning_of(), None, is_async=False)
    run_sync(ahead.run())
    assert (ahead.parts, ahead.is_late, ahead.ended) == ([EVENTS[0]], True, False)
    run_sync(ahead.close(closed.set))
    assert not closed.is_set()
    go.set()
    until(closed.is_set)


def test_without_a_thread_the_caller_reads(limiter, monkeypatch):
    start = threading.Thread.start

    def started(thread):
        if thread.name == "paceline-read":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)
    with serving(*EVENTS) as server, httpx2.Client() as client:
        assert client.post(chat_at(server), json=STREAM).content == WHOLE


def test_the_hold_begins_with_the_first_bytes_and_is_one_second():
    async def main():
        loop, parts = asyncio.get_running_loop(), asyncio.Queue()
        beginning = beginning_of()
        loop.call_later(30, parts.put_nowait, EVENTS[0])
        loop.call_later(30.5, parts.put_nowait, EVENTS[0])
        loop.call_later(32, parts.put_nowait, EVENTS[1])
        start_s = loop.time()
        async for part in held_parts(beginning, parts.get):
            assert not beginning.feed(part)
        assert loop.time() - start_s == pytest.approx(30 + verdict.HELD_S)
        assert beginning.judged().verdict is verdict.Verdict.RESULT
        assert await parts.get() == EVENTS[1]

    run_virtual(main())


def test_a_timeout_of_the_reader_is_its_own():
    async def read():
        raise TimeoutError("nothing came")

    async def main():
        with pytest.raises(TimeoutError, match="nothing came"):
            await anext(held_parts(beginning_of(), read))

    run_virtual(main())


def test_an_answer_that_is_here_holds_no_connection(limiter):
    answer = {"choices": [{"message": {"content": "a"}}]}
    given = {"limits": httpx2.Limits(max_connections=1), "timeout": httpx2.Timeout(20, pool=0.1)}
    with OddServer(lambda *_: (200, JSON, answer)) as server, httpx2.Client(**given) as client:
        asked = {"url": chat_at(server), "json": {"model": "gpt-5", "messages": [{"role": "user", "content": "a"}]}}
        with client.stream("POST", **asked) as unread:
            assert client.post(**asked).content == unread.read() == json.dumps(answer).encode()


@each
def test_a_long_answer_after_a_long_error(send, limiter):
    """Of the error the beginning alone is read, and all of the answer."""
    answer = json.dumps({"choices": [{"message": {"content": "a" * verdict.HELD_MAX}}]}).encode()
    page = b"<html>" + b" " * 4 * verdict.HELD_MAX
    with OddServer(lambda number, _: [(503, HTML, page), (200, JSON, answer)][number]) as server:
        assert send(chat_at(server), STREAM | {"stream": False}) == (200, answer)
    assert counts(limiter)["granted"] == 2
