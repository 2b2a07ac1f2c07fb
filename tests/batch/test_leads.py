"""All but the first request of an unwritten prefix wait for it, a few seconds at most."""

from __future__ import annotations

import asyncio

import pytest
from batch_helpers import FAST, message, read_answers, run_job, write_lines
from batch_times import KEYS

from paceline.batch.gates import LEAD_S, PREFIXES_MAX, Leads
from paceline.core.quota import NS
from paceline.emulator import Emulator
from paceline.estimation.prefixes import Prefixes, Prompt, PromptCache, keys_of
from paceline.testing import run_virtual
from virtual_time import virtual

SYSTEM = "You answer in one word. " * 200


def prompt_of(cache: PromptCache, question: str, system: object = SYSTEM, **fields: object) -> Prompt:
    keys = keys_of(cache, "m", {"system": system, "messages": [{"role": "user", "content": question}], **fields})
    assert keys is not None
    return Prompt(cache, keys)


def starts(seconds: float, *prompts: Prompt | None, fails: bool = False, queue_s: float = 0) -> list[float]:
    """When each of these requests is sent, if all come at once, and each takes so many ``seconds``; the first after ``queue_s``."""

    async def main(clock):
        leads, sent, began_ns = Leads(clock), {}, clock.now_ns()

        async def ask(number: int, prompt: Prompt | None) -> None:
            sent_ns: list[int] = []
            async with leads.behind(prompt, lambda: sent_ns[0] if sent_ns else None):
                await asyncio.sleep(0 if number else queue_s)
                sent_ns.append(clock.now_ns())
                sent[number] = round((sent_ns[0] - began_ns) / NS, 3)
                await asyncio.sleep(seconds)
                if fails and not number:
                    raise ConnectionError

        asked = [ask(number, prompt) for number, prompt in enumerate(prompts)]
        await asyncio.gather(*asked, return_exceptions=True)
        assert not leads._first
        return [sent[number] for number in range(len(prompts))]

    found: list[float] = run_virtual(main)
    return found


def cache_of() -> PromptCache:
    return PromptCache(Prefixes(), "anthropic/m")


@pytest.mark.parametrize(
    ("seconds", "fails", "at_s"), [(2, False, [0, 2, 2]), (60, False, [0, LEAD_S, LEAD_S]), (2, True, [0, 2, 2])]
)
def test_the_others_wait_until_the_first_has_ended_or_five_seconds(seconds, fails, at_s):
    cache = cache_of()
    assert starts(seconds, *[prompt_of(cache, str(k)) for k in range(3)], fails=fails) == at_s


@pytest.mark.parametrize(("seconds", "at_s"), [(2, 62), (60, 60 + LEAD_S)])
def test_they_wait_for_the_first_in_its_queue_as_well(seconds, at_s):
    cache = cache_of()
    assert starts(seconds, prompt_of(cache, "a"), prompt_of(cache, "b"), queue_s=60) == [60, at_s]


def test_blocks_and_tools_count_as_well():
    cache = cache_of()
    blocks = [{"type": "text", "text": SYSTEM}]
    assert starts(2, *[prompt_of(cache, str(k), blocks) for k in range(2)]) == [0, 2]
    tools = [{"name": f"tool {k}"} for k in range(20)]
    assert starts(2, *[prompt_of(cache, str(k), None, tools=tools) for k in range(2)]) == [0, 2]


@pytest.mark.parametrize("system", [None, "short", [{"type": "image"}]])
def test_a_short_prefix_is_no_reason_to_wait(system):
    cache = cache_of()
    assert starts(2, prompt_of(cache, "a", system), prompt_of(cache, "b", system)) == [0, 0]


def test_other_prefixes_do_not_wait():
    cache = cache_of()
    assert starts(2, prompt_of(cache, "a"), prompt_of(cache, "b", "Another. " * 900), None, None) == [0, 0, 0, 0]


@pytest.mark.parametrize("answer", [(0, 300 * NS, 2_000, 0, 0), (10**18 * 4, 300 * NS, 2_000, 1_500, 500)])
def test_where_nothing_is_cached_or_it_is_known_to_be_readable_nothing_waits(answer):
    cache = cache_of()
    prompt_of(cache, "a").answered(*answer)
    assert starts(2, prompt_of(cache, "b"), prompt_of(cache, "c")) == [0, 0]


@virtual
async def test_a_written_prefix_is_known_for_minutes_and_memory_is_bounded(clock):
    leads, cache = Leads(clock), cache_of()

    async def through(*asked):
        async with leads.behind(prompt_of(cache, *asked), clock.now_ns):
            pass

    await through("a")
    await asyncio.wait_for(through("b"), 0.1)
    for k in range(PREFIXES_MAX + 5):
        await through("a", f"{k}" + SYSTEM)
    assert len(leads._written) == PREFIXES_MAX


def test_a_run_writes_each_prefix_once(tmp_path):
    rows = [message(f"r{k}") for k in range(24)]
    for k, row in enumerate(rows):
        text = f"Part {k // 8}. {SYSTEM}"
        row["params"]["system"] = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
    source, output = write_lines(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    with Emulator(limits={"*": FAST}, cache=True, latency_s=0.2) as emulator:
        code, _ = run_job(source, emulator.base_url, environ=KEYS, output=str(output))
    usages = [answer["response"]["body"]["usage"] for answer in read_answers(output)]
    assert (code, sum(usage["cache_creation_input_tokens"] > 0 for usage in usages)) == (0, 3)
