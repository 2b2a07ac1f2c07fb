"""One limiter against one server: reads a job from stdin, and writes the result to stdout. Runs in the peer's environment.

Each peer is used as its own documentation advises. ``job`` has ``url``, ``jobs`` (prompt, input tokens, output tokens),
``workers``, ``told`` (limits per minute) and ``cut_s``.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from benchmarks.traffic import MAX_OUTPUT_TOKENS, client_of, free, send

Job = dict[str, Any]
MODEL = "gpt-4.1-mini"


def _totals(job: Job) -> list[tuple[str, int]]:
    return [(prompt, given + made) for prompt, given, made in job["jobs"]]


def _tokens_a_minute(job: Job) -> int:
    """For peers with one quota of tokens: the sum of input and output tokens, where the provider limits these apart."""
    told = job["told"]
    return int(told.get("tokens") or told["input_tokens"] + told["output_tokens"])


async def _gated(job: Job, admit: Any) -> None:
    async with client_of(job["url"]) as client:
        await send(client, _totals(job), admit, job["workers"], job["cut_s"])


async def _calls(job: Job, call: Callable[[str], Awaitable[Any]]) -> None:
    """``workers`` workers, each with one call at a time; a call that fails is lost."""
    queue = iter(job["jobs"])

    async def work() -> None:
        for prompt, *_ in queue:
            with suppress(Exception):
                await call(prompt)

    await asyncio.gather(*(work() for _ in range(job["workers"])))


async def paceline(job: Job) -> None:
    import paceline as library

    limiter = library.Limiter({"openai/gpt-5": [f"{amount} {unit}/min" for unit, amount in job["told"].items()]})
    async with client_of(job["url"]) as client:
        limiter.attach(client, provider="openai")
        await send(client, _totals(job), free, job["workers"], job["cut_s"])


async def aiolimiter(job: Job) -> None:
    from benchmarks.peers import aiolimiter as make

    await _gated(job, make(job["told"]["requests"], _tokens_a_minute(job)))


async def token_throttle(job: Job) -> None:
    from token_throttle import MemoryBackendBuilder, PerModelConfig, Quota, RateLimiter, UsageQuotas

    quotas = [Quota(metric=unit, limit=amount, per_seconds=60) for unit, amount in job["told"].items()]
    limiter = RateLimiter(PerModelConfig(quotas=UsageQuotas(quotas)), backend=MemoryBackendBuilder())
    apart = "tokens" not in job["told"]

    @asynccontextmanager
    async def admit(tokens: int) -> AsyncIterator[None]:
        usage = {"requests": 1} | (
            {"input_tokens": tokens - MAX_OUTPUT_TOKENS, "output_tokens": MAX_OUTPUT_TOKENS}
            if apart
            else {"tokens": tokens}
        )
        async with limiter.reserve(usage, model="gpt-5") as handle:
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
    from benchmarks.peers import async_batch_llm as run

    async with client_of(job["url"]) as client:
        await run(
            client, _totals(job), requests=job["told"]["requests"], tokens=_tokens_a_minute(job),
            workers=job["workers"], cut_s=job["cut_s"],
        )  # fmt: skip


async def litellm_router(job: Job) -> None:
    import litellm

    params = {
        "model": f"openai/{MODEL}",
        "api_base": job["url"] + "/v1",
        "api_key": "none",
        "max_tokens": MAX_OUTPUT_TOKENS,
    }
    limits = {"rpm": job["told"]["requests"], "tpm": _tokens_a_minute(job)}
    router = litellm.Router(
        model_list=[{"model_name": "m", "litellm_params": params | limits}],
        routing_strategy="usage-based-routing-v2", num_retries=8,
    )  # fmt: skip
    await _calls(job, lambda prompt: router.acompletion("m", messages=[{"role": "user", "content": prompt}]))


async def infermesh(job: Job) -> None:
    from infermesh import LMClient

    async with LMClient(
        model=f"openai/{MODEL}", api_base=job["url"] + "/v1", api_key="none", rpm=job["told"]["requests"],
        tpm=_tokens_a_minute(job), max_parallel_requests=job["workers"], default_output_tokens=MAX_OUTPUT_TOKENS,
    ) as client:  # fmt: skip
        await client.agenerate_batch([prompt for prompt, *_ in job["jobs"]], max_tokens=MAX_OUTPUT_TOKENS)


async def lm_deluge(job: Job) -> None:
    from lm_deluge import LLMClient, SamplingParams
    from lm_deluge.models import register_model

    register_model(id="local", name=MODEL, api_base=job["url"] + "/v1", api_key_env_var="OPENAI_API_KEY")
    client = LLMClient(
        "local", max_requests_per_minute=job["told"]["requests"], max_tokens_per_minute=_tokens_a_minute(job),
        max_concurrent_requests=job["workers"], sampling_params=[SamplingParams(max_new_tokens=MAX_OUTPUT_TOKENS)],
    )  # fmt: skip
    await client.process_prompts_async([prompt for prompt, *_ in job["jobs"]], show_progress=False)


async def inspect(job: Job) -> None:
    from inspect_ai.model import GenerateConfig, get_model

    config = GenerateConfig(adaptive_connections=True, max_tokens=MAX_OUTPUT_TOKENS)
    model = get_model(
        f"openai/{MODEL}", base_url=job["url"] + "/v1", api_key="none", config=config, responses_api=False
    )
    await _calls(job, model.generate)


async def openai_sdk(job: Job) -> None:
    import openai

    client = openai.AsyncOpenAI(base_url=job["url"] + "/v1", api_key="none", max_retries=8)
    create = client.chat.completions.create
    await _calls(
        job,
        lambda prompt: create(
            model=MODEL, messages=[{"role": "user", "content": prompt}], max_tokens=MAX_OUTPUT_TOKENS
        ),
    )


async def tokenjuggler(job: Job) -> None:
    raise NotImplementedError(
        "no driver yet: it speaks OpenAI's Responses API only, and the workloads are chat requests"
    )


PEERS: dict[str, tuple[str, Callable[[Job], Awaitable[None]]]] = {
    "paceline": ("", paceline),
    "aiolimiter": ("aiolimiter", aiolimiter),
    "async-batch-llm": ("async-batch-llm", async_batch_llm),
    "infermesh": ("infermesh", infermesh),
    "Inspect, adaptive": ("inspect-ai", inspect),
    "LangChain's rate limiter": ("langchain-core", langchain),
    "litellm Router": ("litellm", litellm_router),
    "lm-deluge": ("lm-deluge", lm_deluge),
    "openai SDK, 8 retries": ("openai", openai_sdk),
    "token-throttle": ("token-throttle", token_throttle),
    "tokenjuggler": ("tokenjuggler", tokenjuggler),
}
"""Package to install (none for this project), and the function that runs the job."""


async def _bounded(job: Job) -> bool:
    try:
        async with asyncio.timeout(job["cut_s"]):
            await PEERS[job["peer"]][1](job)
    except TimeoutError:
        return True
    return False


def main() -> None:
    """Do the job on stdin; ``stopped`` says that time ran out, ``why`` that it cannot be done."""
    job = json.load(sys.stdin)
    os.environ["OPENAI_API_KEY"] = "none"
    began = time.monotonic()
    result: dict[str, Any] = {}
    try:
        result["stopped"] = asyncio.run(_bounded(job))
    except Exception as error:
        result["why"] = f"{type(error).__name__}: {str(error)[:150]}"
    usage = resource.getrusage(resource.RUSAGE_SELF)
    result |= {"cpu_s": usage.ru_utime + usage.ru_stime, "seconds": time.monotonic() - began}
    print("\n" + json.dumps(result), flush=True)
    os._exit(0)  # to close what was cut off can take seconds


if __name__ == "__main__":
    main()
