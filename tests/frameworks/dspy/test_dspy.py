"""dspy against the emulator: its own HTTP client, which goes past httpx, and litellm below it."""

import asyncio
import os
import tempfile

os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DSPY_CACHEDIR": tempfile.mkdtemp()}

import dspy
import pytest
from harness import LIMITS, PROMPT, charged, counts, crowd_row, spent

import paceline
from paceline.integrations.dspy import instrument

PROVIDER = "openai"
GPT, CLAUDE = "openai/gpt-5", "anthropic/claude-haiku-4-5"


def lm(world, model=GPT, path="/v1", **options):
    options = {"max_tokens": 16_000, "temperature": 1.0, "cache": False, "num_retries": 0, **options}
    return dspy.LM(model, api_key="k", api_base=world.base_url + path, **options)


async def test_sync_and_async(world, limiter):
    before = lm(world)
    with instrument(limiter):
        assert before(PROMPT)
        assert await lm(world).acall(PROMPT)
        await asyncio.gather(*[lm(world).acall(PROMPT) for _ in range(20)])
    before(PROMPT)  # undone: not paced
    assert world.tally()["admitted"] == 23
    assert counts(limiter, GPT) == {"granted": 22, "settled": 22}
    assert spent(limiter, GPT)["requests"] == 22


def test_usage_is_settled(world, limiter):
    with instrument(limiter):
        lm(world)(PROMPT)
        lm(world, model_type="responses")(PROMPT)
    assert spent(limiter, GPT) == charged(world, "gpt-5")


async def test_a_streamed_predictor(world, limiter):
    with instrument(limiter), dspy.context(lm=lm(world), adapter=dspy.JSONAdapter()):
        predict = dspy.streamify(dspy.Predict("question -> answer"))
        with pytest.raises(Exception, match=r"[Aa]dapter"):  # the emulator's prose is no JSON
            async for _ in predict(question=PROMPT):
                pass
    calls = world.tally()["admitted"]
    assert calls
    assert counts(limiter, GPT) == {"granted": calls, "settled": calls}


async def test_the_one_line_for_the_whole_process_reaches_it(world, limiter):
    """No warning (which would be an error here), sync, async, and what goes through litellm."""
    before = lm(world)
    with paceline.instrument(limiter):
        assert before(PROMPT)
        assert await lm(world).acall(PROMPT)
        assert lm(world, engine="litellm")(PROMPT)
    before(PROMPT)  # undone
    assert world.tally()["admitted"] == 4
    assert counts(limiter, GPT) == {"granted": 3, "settled": 3}


def test_with_a_provider_for_an_address_that_nobody_knows(world):
    limiter = paceline.Limiter(LIMITS)  # of many providers
    with paceline.instrument(limiter, provider="openai"):
        lm(world)(PROMPT)
        lm(world, CLAUDE, "")(PROMPT)
    for pool, model in ((GPT, "gpt-5"), (CLAUDE, "claude-haiku-4-5")):
        assert spent(limiter, pool) == charged(world, model)


@pytest.mark.parametrize("outer", ["process", "dspy"])
def test_both_doors_charge_once_and_either_may_end_first(world, limiter, outer):
    other = paceline.Limiter({"openai/*": LIMITS["openai/*"]})
    doors = {"process": lambda: paceline.instrument(limiter), "dspy": lambda: instrument(other)}
    first = doors[outer]()
    second = doors["dspy" if outer == "process" else "process"]()
    lm(world)(PROMPT)
    first.close() if outer == "dspy" else first.undo()
    lm(world)(PROMPT)
    second.undo() if outer == "dspy" else second.close()
    lm(world)(PROMPT)
    newest, oldest = (limiter, other) if outer == "dspy" else (other, limiter)
    assert counts(newest, GPT) == {"granted": 2, "settled": 2}
    assert oldest.status()["pools"] == {}
    assert world.tally()["admitted"] == 3


def test_our_refusal_never_reaches_the_provider(world, limiter):
    with instrument(limiter), pytest.raises(dspy.LMRateLimitError, match="the quota holds 4,000,000"):
        lm(world, max_tokens=5_000_000)(PROMPT)
    assert world.tally()["admitted"] == 0


def test_instrumented_again_the_newest_holds(world, limiter):
    other = paceline.Limiter({"openai/*": LIMITS["openai/*"]})
    with instrument(limiter), instrument(other):
        lm(world)(PROMPT)
    assert limiter.status()["pools"] == {}
    assert counts(other, GPT) == {"granted": 1, "settled": 1}


def test_a_crowd_in_threads_and_tasks(paceline_emulator):
    def calls(world):
        model = lm(world)
        return lambda: model(PROMPT), lambda: model.acall(PROMPT)

    crowd_row(paceline_emulator, "dspy", "its own HTTP client", GPT, calls)
