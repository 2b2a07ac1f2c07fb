"""Of many answers the headers of some are read: of each refusal, of twenty that come at once, and of twenty a second."""

import httpx2
import pytest
from chats import CHAT, URL, attached, pool_of

import paceline
from paceline.testing import ManualClock

AT_ONCE = 20


class Provider:
    """States a limit in each answer; refuses the next one when ``refuses`` is set."""

    def __init__(self):
        self.limit, self.refuses = 500, False

    def __call__(self, _):
        headers = {"x-ratelimit-limit-requests": str(self.limit), "x-ratelimit-remaining-requests": str(self.limit - 1)}
        if self.refuses:
            self.refuses = False
            error = {"error": {"code": "rate_limit_exceeded", "message": "Rate limit reached"}}
            return httpx2.Response(429, headers=headers | {"retry-after": "1"}, json=error)
        return httpx2.Response(200, headers=headers, json={"usage": {"prompt_tokens": 8, "completion_tokens": 5}})


@pytest.fixture
def world():
    provider, clock = Provider(), ManualClock(1_800_000_000)
    limiter = paceline.Limiter(
        {"openai/gpt-5": "1000 requests/min"}, clock=clock, retry=paceline.RetryPolicy(max_attempts=1)
    )
    with attached(limiter, provider) as client:

        def ask(limit):
            provider.limit = limit
            client.post(URL, json=CHAT)
            return pool_of(limiter)["quotas"][0]["limit"]

        yield ask, clock, provider


def test_twenty_at_once_and_then_twenty_a_second(world):
    ask, clock, _ = world
    assert [ask(500 + n) for n in range(AT_ONCE)] == [500 + n for n in range(AT_ONCE)]
    read = 500 + AT_ONCE - 1
    assert ask(400) == read
    clock.advance(0.049)
    assert ask(400) == read
    clock.advance(0.001)
    assert ask(400) == 400
    assert ask(450) == 400
    clock.advance(60)
    assert [ask(300 + n) for n in range(AT_ONCE)] == [300 + n for n in range(AT_ONCE)]
    assert ask(400) == 300 + AT_ONCE - 1


def test_a_refusal_is_always_read(world):
    ask, _, provider = world
    for _ in range(AT_ONCE):
        ask(500)
    provider.refuses = True
    assert ask(400) == 400
