"""A chat and its answer, a client that gets it, and what a pool says afterwards."""

import httpx2

import paceline
from odd_server import sse

CHAT = {"model": "gpt-5", "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 5}
PATH = "/v1/chat/completions"
URL = f"https://api.openai.com{PATH}"
POOL = "openai/gpt-5"
ANSWER = {
    "id": "a", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hi."}}],
    "usage": {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17},
}  # fmt: skip
STREAM = CHAT | {"stream": True}
ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
WORD = {"choices": [{"index": 0, "delta": {"content": "Hello."}}]}
EVENTS = sse(ROLE, WORD, {"choices": [], "usage": ANSWER["usage"]})
"""A stream: an event that only opens it, its content, and its usage."""
WHOLE = b"".join(EVENTS)
LIMITS = {
    "openai/*": ["6000 requests/min", "4M tokens/min"],
    "anthropic/*": ["6000 requests/min", "4M input_tokens/min", "800k output_tokens/min"],
    "gemini/*": ["6000 requests/min", "4M input_tokens/min"],
}
"""Wide ones, so that nothing waits."""
REFUSED = {"error": {"code": 429, "message": "Rate limit exceeded"}}


def attached(limiter, answer, provider=None, library=httpx2, **options):
    """A client of ``limiter``: ``answer`` is the response to each request, or makes it."""
    transport = library.MockTransport(answer if callable(answer) else lambda _: answer)
    client = library.Client(transport=transport, **{"base_url": "http://a.test"} | options)
    return limiter.attach(client, provider=provider)


def wide_limiter(**options):
    return paceline.Limiter({"openai/*": ["60k requests/min", "60M tokens/min"]}, **options)


def pool_of(limiter, name=POOL):
    return limiter.status()["pools"][name]


def counts(limiter, name=POOL):
    return pool_of(limiter, name)["counts"]


def spent(limiter, name=POOL):
    """What is spent of each quota, by its unit."""
    return {quota["unit"]: quota["spent"] for quota in pool_of(limiter, name)["quotas"]}
