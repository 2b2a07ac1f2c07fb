"""anthropic, whichever version is installed: 0.125 sends through httpx, 2 through httpx2. Attached, or with our middleware."""

import asyncio

import anthropic
import pytest
from harness import LIMITS, MESSAGES, cancel_in_a_stream, charged, counts, crowd_row, spent

import paceline
from paceline.integrations.anthropic import middleware

POOL = "anthropic/claude-haiku-4-5"
ASK = {"model": "claude-haiku-4-5", "messages": MESSAGES, "max_tokens": 50}


def attached(limiter, make, world, **options):
    return limiter.attach(make(api_key="k", base_url=world.base_url, **options))


def with_middleware(limiter, make, world, **options):
    return make(api_key="k", base_url=world.base_url, middleware=[middleware(limiter)], **options)


def with_both(limiter, make, world, **options):
    return limiter.attach(with_middleware(limiter, make, world, **options))


DOORS = pytest.mark.parametrize("door", [attached, with_middleware, with_both])


def used(limiter, usages):
    assert spent(limiter, POOL) == {
        "requests": len(usages),
        "input_tokens": sum(usage.input_tokens for usage in usages),
        "output_tokens": sum(usage.output_tokens for usage in usages),
    }


@DOORS
def test_sync_messages_and_streams(world, limiter, door):
    with door(limiter, anthropic.Anthropic, world) as client:
        first = client.messages.create(**ASK)
        raw = client.messages.with_raw_response.create(**ASK)
        with client.messages.stream(**ASK) as stream:
            last = stream.get_final_message()
        with client.messages.with_streaming_response.create(**ASK) as response:
            streamed = response.parse()
    assert raw.headers["request-id"]
    used(limiter, [first.usage, raw.parse().usage, last.usage, streamed.usage])
    assert counts(limiter, POOL) == {"granted": 4, "settled": 4}
    assert charged(world, "claude-haiku-4-5")["requests"] == 4


@DOORS
async def test_async_messages_and_streams(world, limiter, door):
    async with door(limiter, anthropic.AsyncAnthropic, world) as client:
        first = await client.messages.create(**ASK)
        async with client.messages.stream(**ASK) as stream:
            last = await stream.get_final_message()
        async for event in await client.messages.create(**ASK, stream=True):
            if event.type == "message_start":
                raw = event.message.usage
            elif event.type == "message_delta":
                raw.output_tokens = event.usage.output_tokens
    used(limiter, [first.usage, last.usage, raw])
    assert counts(limiter, POOL) == {"granted": 3, "settled": 3}


@DOORS
async def test_streams_settle_at_their_last_event_or_when_they_are_closed(world, limiter, door):
    async with door(limiter, anthropic.AsyncAnthropic, world) as client:
        read = await client.messages.create(**ASK, stream=True)
        async for event in read:
            if event.type == "message_stop":
                break
        assert counts(limiter, POOL) == {"granted": 1, "settled": 1}
        left = await client.messages.create(**ASK, stream=True)
        async for _ in left:
            break
        await left.close()
    assert counts(limiter, POOL) == {"granted": 2, "settled": 2}
    assert limiter.status()["pools"][POOL]["in_flight"] == 0


@DOORS
async def test_a_cancelled_stream_gives_its_place_back(paceline_emulator, limiter, door):
    world = paceline_emulator(limits={"claude-haiku-4-5": LIMITS["anthropic/*"]}, latency_per_token_s=0.002)
    async with door(limiter, anthropic.AsyncAnthropic, world) as client:

        async def consume(begun):
            async for _ in await client.messages.create(**ASK | {"max_tokens": 5_000}, stream=True):
                begun.set()

        await cancel_in_a_stream(limiter, POOL, consume)
    assert counts(limiter, POOL) == {"granted": 1, "settled": 1}


@DOORS
async def test_our_own_refusal_is_their_rate_limit_error_in_one_attempt(world, door):
    """With a middleware above ours that counts: what we refuse is not tried again."""
    limiter, tries = paceline.Limiter({"anthropic/*": "100 input_tokens/min"}), []
    ask = ASK | {"messages": [{"role": "user", "content": "word " * 1_000}]}

    def count(request, call_next):
        tries.append(request.retries_taken)
        return call_next(request)

    async def count_async(request, call_next):
        tries.append(request.retries_taken)
        return await call_next(request)

    client = door(limiter, anthropic.Anthropic, world)
    counted = client.with_options(middleware=[count, *client.middleware])
    with pytest.raises(anthropic.RateLimitError, match="the quota holds 100") as raised:
        counted.messages.create(**ask)
    assert raised.value.response.headers["x-paceline"] == "never_fits"
    client.close()
    async with door(limiter, anthropic.AsyncAnthropic, world) as client:
        counted = client.with_options(middleware=[count_async, *client.middleware])
        with pytest.raises(anthropic.RateLimitError, match="the quota holds 100"):
            await counted.messages.create(**ask, stream=True)
    assert tries == [0, 0]
    assert world.tally()["admitted"] == 0


@DOORS
async def test_a_refusal_is_waited_out_here_and_not_by_the_sdk(paceline_emulator, door):
    """Told twice what is allowed, in a world without headers: refusals are seen by us alone."""
    world = paceline_emulator(
        limits={"claude-haiku-4-5": "600 requests/min"}, rule="quantised", quantum_s=0.5, headers=False
    )
    limiter = paceline.Limiter({"anthropic/*": "1200 requests/min"}, retry=paceline.RetryPolicy(backoff_s=0.05))
    async with door(limiter, anthropic.AsyncAnthropic, world, max_retries=0) as client:
        await asyncio.gather(*[client.messages.create(**ASK) for _ in range(12)])
    tally = world.tally()
    assert tally["admitted"] == 12
    assert tally["refused_total"] == sum(n for name, n in counts(limiter, POOL).items() if name.startswith("refused"))
    assert tally["refused_total"] > 0


@DOORS
def test_a_connection_that_was_never_made_costs_nothing(world, limiter, door):
    with door(limiter, anthropic.Anthropic, world, max_retries=0) as client:
        world.stop()
        with pytest.raises(anthropic.APIConnectionError):
            client.messages.create(**ASK)
    assert counts(limiter, POOL) == {"granted": 1, "cancelled": 1}


def test_a_second_request_below_the_middleware_is_paced_by_the_door_below(world, limiter):
    """What was paced above is one request: a middleware between the doors that sends two pays for two."""

    def twice(request, call_next):
        call_next(request).parse()
        return call_next(request)

    with anthropic.Anthropic(api_key="k", base_url=world.base_url, middleware=[middleware(limiter), twice]) as client:
        limiter.attach(client)
        client.messages.create(**ASK)
    assert counts(limiter, POOL) == {"granted": 2, "settled": 2}


def test_a_crowd_in_threads_and_tasks(paceline_emulator):
    def calls(world):
        where = {"api_key": "k", "base_url": world.base_url, "max_retries": 0}
        client, async_client = anthropic.Anthropic(**where), anthropic.AsyncAnthropic(**where)
        return lambda: client.messages.create(**ASK), lambda: async_client.messages.create(**ASK)

    over = "over httpx" if anthropic.__version__.startswith("0.") else "over httpx2"
    crowd_row(paceline_emulator, "anthropic", over, POOL, calls)
