"""One limiter against one server: reads a job from stdin, and writes the result to stdout. Runs in the peer's environment.

Each peer is used as its own documentation advises; ``about`` of each says how, for the page. ``job`` is one line of JSON: ``peer``,
``url``, ``jobs`` (prompts with input tokens), ``workers``, ``told`` (limits per minute), ``cut_s`` and ``period_s`` (of a window that
restarts, or 0). The process ends when its standard input closes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from benchmarks.traffic import MAX_OUTPUT_TOKENS, MODEL, client_of, free, send

Job = dict[str, Any]
RETRIES = 8
ERRORS: Counter[str] = Counter()
"""The calls that a peer has given up, by the type of the error."""


def _totals(job: Job) -> list[tuple[str, int]]:
    return [(prompt, given + MAX_OUTPUT_TOKENS) for prompt, given in job["jobs"]]


async def _gated(job: Job, admit: Any) -> None:
    async with client_of(job["url"]) as client:
        await send(client, _totals(job), admit, job["workers"], job["cut_s"])


async def _calls(job: Job, call: Callable[[str], Awaitable[Any]]) -> None:
    """``workers`` workers, each with one call at a time; a call that fails is lost, and its error is counted."""
    queue = iter(job["jobs"])

    async def work() -> None:
        for prompt, _ in queue:
            try:
                await call(prompt)
            except Exception as error:
                ERRORS[type(error).__name__] += 1

    await asyncio.gather(*(work() for _ in range(job["workers"])))


async def paceline(job: Job) -> None:
    import paceline as library

    limits = [f"{amount} {unit}/min" for unit, amount in job["told"].items()]
    limiter = library.Limiter({f"openai/{MODEL}": limits})
    async with client_of(job["url"]) as client:
        limiter.attach(client, provider="openai")
        await send(client, _totals(job), free, job["workers"], job["cut_s"])


async def aiolimiter(job: Job) -> None:
    from benchmarks.peers import aiolimiter as make

    await _gated(job, make(job["told"]["requests"], job["told"]["tokens"]))


async def token_throttle(job: Job) -> None:
    from token_throttle import MemoryBackendBuilder, PerModelConfig, Quota, RateLimiter, UsageQuotas

    quotas = [Quota(metric=unit, limit=amount, per_seconds=60) for unit, amount in job["told"].items()]
    limiter = RateLimiter(PerModelConfig(quotas=UsageQuotas(quotas)), backend=MemoryBackendBuilder())

    @asynccontextmanager
    async def admit(tokens: int) -> AsyncIterator[None]:
        usage = {"requests": 1, "tokens": tokens}
        async with limiter.reserve(usage, model=MODEL) as handle:
            yield
            handle.set_actual_usage(usage)

    await _gated(job, admit)


async def langchain(job: Job) -> None:
    from langchain_core.rate_limiters import InMemoryRateLimiter

    requests = job["told"]["requests"]
    limiter = InMemoryRateLimiter(requests_per_second=requests / 60, max_bucket_size=requests)

    @asynccontextmanager
    async def admit(_: int) -> AsyncIterator[None]:
        await limiter.aacquire()
        yield

    await _gated(job, admit)


async def async_batch_llm(job: Job) -> None:
    from async_batch_llm import ProcessorConfig, RateLimitConfig, RetryConfig, TokenEstimate, llm, process_prompts

    costs = dict(job["jobs"])

    def estimate(prompt: str, **_: Any) -> TokenEstimate:
        return TokenEstimate(costs[prompt], MAX_OUTPUT_TOKENS)

    config = ProcessorConfig(
        concurrency=job["workers"], max_requests_per_minute=job["told"]["requests"],
        max_tokens_per_minute=job["told"]["tokens"], token_estimator=estimate,
        rate_limit=RateLimitConfig(cooldown_seconds=30.0, max_cooldown_seconds=300.0),
        retry=RetryConfig(max_attempts=1 + RETRIES),
    )  # fmt: skip
    strategy = llm(
        f"openai-compatible:{MODEL}", base_url=job["url"] + "/v1", api_key="none",
        generation_config={"max_tokens": MAX_OUTPUT_TOKENS},
    )  # fmt: skip
    await process_prompts(strategy, [prompt for prompt, _ in job["jobs"]], config=config)


async def litellm_router(job: Job) -> None:
    import litellm

    params = {
        "model": f"openai/{MODEL}", "api_base": job["url"] + "/v1", "api_key": "none", "max_tokens": MAX_OUTPUT_TOKENS,
        "rpm": job["told"]["requests"], "tpm": job["told"]["tokens"],
    }  # fmt: skip
    router = litellm.Router(
        model_list=[{"model_name": "m", "litellm_params": params}], routing_strategy="usage-based-routing-v2",
        num_retries=RETRIES,
    )  # fmt: skip
    await _calls(job, lambda prompt: router.acompletion("m", messages=[{"role": "user", "content": prompt}]))


async def infermesh(job: Job) -> None:
    from infermesh import LMClient

    async with LMClient(
        model=f"openai/{MODEL}", api_base=job["url"] + "/v1", api_key="none", rpm=job["told"]["requests"],
        tpm=job["told"]["tokens"], max_parallel_requests=job["workers"], max_retries=RETRIES,
    ) as client:  # fmt: skip
        await client.agenerate_batch([prompt for prompt, _ in job["jobs"]], max_tokens=MAX_OUTPUT_TOKENS)


async def lm_deluge(job: Job) -> None:
    from lm_deluge import LLMClient, SamplingParams
    from lm_deluge.models import register_model

    register_model(id="local", name=MODEL, api_base=job["url"] + "/v1", api_key_env_var="OPENAI_API_KEY")
    client = LLMClient(
        "local", max_requests_per_minute=job["told"]["requests"], max_tokens_per_minute=job["told"]["tokens"],
        max_concurrent_requests=job["workers"], max_attempts=1 + RETRIES,
        sampling_params=[SamplingParams(max_new_tokens=MAX_OUTPUT_TOKENS)],
    )  # fmt: skip
    await client.process_prompts_async([prompt for prompt, _ in job["jobs"]], show_progress=False)


async def inspect(job: Job) -> None:
    from inspect_ai.model import GenerateConfig, get_model

    config = GenerateConfig(adaptive_connections=True, max_tokens=MAX_OUTPUT_TOKENS)
    model = get_model(
        f"openai/{MODEL}", base_url=job["url"] + "/v1", api_key="none", config=config, responses_api=False
    )
    await _calls(job, model.generate)


async def openai_sdk(job: Job) -> None:
    import openai

    client = openai.AsyncOpenAI(base_url=job["url"] + "/v1", api_key="none", max_retries=RETRIES)
    create = client.chat.completions.create
    await _calls(
        job,
        lambda prompt: create(
            model=MODEL, max_tokens=MAX_OUTPUT_TOKENS, messages=[{"role": "user", "content": prompt}]
        ),
    )


async def tokenjuggler(job: Job) -> None:
    from tokenjuggler import TokenJuggler
    from tokenjuggler.settings import Config

    limits = {"rpm": job["told"]["requests"], "tpm": job["told"]["tokens"]}
    config = {
        "namespace": "bench",
        "defaults": {
            "limits": limits, "max_output_tokens": MAX_OUTPUT_TOKENS, "max_wait_seconds": job["cut_s"],
            "retry": {"enabled": True, "max_attempts": 1 + RETRIES},
        },
        "accounts": {"a": {"provider": "openai", "api_key_env": "OPENAI_API_KEY", "base_url": job["url"] + "/v1"}},
        "models": {MODEL: {"family": "gpt", "deployments": [{"account": "a", "model_id": MODEL}]}},
    }  # fmt: skip
    juggler = TokenJuggler(Config.model_validate(config))
    await _calls(job, lambda prompt: juggler.generate(MODEL, prompt, max_output_tokens=MAX_OUTPUT_TOKENS))


@dataclass(frozen=True, slots=True)
class Peer:
    """A contestant.

    Attributes:
        package: Its package; none for this project.
        modules: What is imported before the clock starts.
        run: Its driver.
        about: How it is used, for the page.
    """

    package: str
    modules: tuple[str, ...]
    run: Callable[[Job], Awaitable[None]]
    about: str


PEERS: dict[str, Peer] = {
    "paceline": Peer(
        "", ("paceline", "httpx2"), paceline,
        "`limiter.attach(client)` on an httpx2 client, with the limits, and everything else at its default. It estimates tokens and makes its own"
        " retries after a 429.",
    ),
    "aiolimiter": Peer(
        "aiolimiter", ("aiolimiter", "httpx2"), aiolimiter,
        "Two `AsyncLimiter`s, of requests and of tokens, one after the other, with the true cost. It only admits. Answers have no effect on it.",
    ),
    "async-batch-llm": Peer(
        "async-batch-llm", ("async_batch_llm", "openai"), async_batch_llm,
        '`process_prompts` with `llm("openai-compatible:...")`, both quotas, the true cost as the estimator, `cooldown_seconds=30` as its'
        " [guide](https://geoff-davis.github.io/async-batch-llm/choosing-your-limits/) advises for short quota windows (the default is 300). After a 429 all"
        " workers pause. The guide's example with a margin of a tenth and a burst of 5 s (`quota_burst_seconds`) is refused less and slower: where requests"
        " bind, 0 refused and 70 % done (2026-11-24).",
    ),
    "infermesh": Peer(
        "infermesh", ("infermesh", "litellm"), infermesh,
        "`agenerate_batch` with `rpm`, `tpm`, `max_parallel_requests`. It estimates tokens, takes its level from the headers of each answer, returns the"
        " slot of a refused request, and lets the smallest request go first.",
    ),
    "Inspect, adaptive": Peer(
        "inspect-ai", ("inspect_ai.model", "openai"), inspect,
        "`get_model(...).generate` with `adaptive_connections=True`: 10 to 100 requests at a time, fewer after a 429. It takes no limits, and retries"
        " without bound.",
    ),
    "LangChain's rate limiter": Peer(
        "langchain-core", ("langchain_core.rate_limiters", "httpx2"), langchain,
        "`InMemoryRateLimiter` with the requests a second and a bucket of a minute's worth. It only admits. Tokens are not counted, and its bucket starts empty.",
    ),
    "litellm Router": Peer(
        "litellm", ("litellm",), litellm_router,
        'One deployment with `rpm` and `tpm`, `routing_strategy="usage-based-routing-v2"`, the strategy that refuses above them. It counts by the minute of the'
        " clock, tokens after the answer, and waits 60 s when a count is full. Its docs recommend `simple-shuffle` for production, which holds nothing back:"
        " where requests bind, 1,326 refused (2026-11-24).",
    ),
    "lm-deluge": Peer(
        "lm-deluge", ("lm_deluge",), lm_deluge,
        "`process_prompts_async` with `max_requests_per_minute`, `max_tokens_per_minute`, `max_concurrent_requests`. It estimates tokens. After a 429 all requests pause.",
    ),
    "openai SDK, 8 retries": Peer(
        "openai", ("openai",), openai_sdk, "`AsyncOpenAI(max_retries=8)` and no limiter: the retries that the SDKs make by themselves.",
    ),
    "token-throttle": Peer(
        "token-throttle", ("token_throttle", "httpx2"), token_throttle,
        "`limiter.reserve` with both quotas and the true cost, in memory. It only admits.",
    ),
    "tokenjuggler": Peer(
        "tokenjuggler", ("tokenjuggler", "openai"), tokenjuggler,
        "`generate` with `rpm` and `tpm`, in memory, on `/v1/responses`, the only path of OpenAI that it calls. Retries on the same deployment are on (off by"
        " default: here there is no other one), and `max_wait_seconds` is the length of the run (60 by default). It uses 95 % of each quota (`headroom`).",
    ),
}  # fmt: skip


async def _bounded(job: Job) -> dict[str, Any]:
    if job["period_s"]:  # every run enters the window in the same phase
        await asyncio.sleep(-(time.time() - job["phase_s"]) % job["period_s"])
    before, began, stopped = resource.getrusage(resource.RUSAGE_SELF), time.monotonic(), False
    try:
        async with asyncio.timeout(job["cut_s"]):
            await PEERS[job["peer"]].run(job)
    except TimeoutError:
        stopped = True
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "stopped": stopped,
        "seconds": round(time.monotonic() - began, 3),
        "cpu_s": round(cpu_s, 3),
        "errors": ERRORS,
    }


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    """Do the job on stdin; ``stopped`` says that time ran out, ``why`` that it cannot be done."""
    job = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["OPENAI_API_KEY"] = "none"
    logging.disable(logging.CRITICAL)  # a line for each refusal costs some of them much
    result: dict[str, Any] = {}
    try:
        for name in PEERS[job["peer"]].modules:
            import_module(name)
        result = asyncio.run(_bounded(job))
    except Exception as error:
        result["why"] = f"{type(error).__name__}: {str(error)[:150]}"
    print("\n" + json.dumps(result), flush=True)
    os._exit(0)  # to close what was cut off can take seconds


if __name__ == "__main__":
    main()
