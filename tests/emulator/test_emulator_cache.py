"""The emulated prompt cache: in virtual time, and through the SDKs."""

import anthropic
import groq
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

import paceline
from paceline.emulator.dialects import ANTHROPIC, BY_PROVIDER, OPENAI_LIKE
from paceline.emulator.prompt_cache import Hit, PromptPart, ServerCache
from paceline.emulator.settings import Settings
from paceline.emulator.wire import dump
from paceline.emulator.world import Admitted, Counting, Refused, World

SYSTEM = PromptPart("system", "all", 18_000, "5m")


def conversation(turns, *, life="5m", system=SYSTEM, name="c"):
    """The prompt of a turn: a system text, and 1,000 tokens for each message; the last block is marked."""
    messages = [PromptPart("user", f"{name}/{at}", 1_000) for at in range(2 * turns - 1)]
    messages[-1] = messages[-1]._replace(life=life)
    return ANTHROPIC.prompt("m", [system, *messages])


def world(limits="450k input_tokens/min", **settings):
    return World(Settings(limits={"m": limits}, cache=True, **settings))


def send(world, at_s, prompt, **how):
    counting = Counting(**{"counts_cached": False, **how})
    return world.admit(at_s, "m", prompt.prefixes[-1].tokens, 100, counting=counting, prompt=prompt)


# --- the cache


def test_a_prefix_is_read_once_the_first_answer_has_begun():
    w = world()
    first = send(w, 0.0, conversation(1))
    assert first.cache == Hit(0, 19_000)
    assert send(w, 1.0, conversation(1)).cache == Hit(0, 19_000)  # both pay for the unwritten prefix
    w.begin(2.0, first)
    assert send(w, 2.0, conversation(2)).cache == Hit(19_000, 2_000)


def test_the_life_counts_from_the_start_of_the_request_and_a_read_starts_it_again():
    w = world("10M input_tokens/min")
    w.begin(250.0, send(w, 0.0, conversation(1)))
    assert send(w, 299.9, conversation(2)).cache.read == 19_000
    assert send(w, 599.8, conversation(2)).cache.read == 19_000  # the read at 299.9 s kept it
    assert send(w, 899.9, conversation(2)).cache.read == 0


def test_a_read_keeps_the_shorter_prefixes_too():
    w = world("10M input_tokens/min")
    w.begin(1.0, send(w, 0.0, conversation(1)))
    send(w, 200.0, conversation(2))
    assert send(w, 400.0, conversation(1, name="another")).cache == Hit(18_000, 1_000)


def test_an_hour_is_kept_for_an_hour():
    w = world("10M input_tokens/min")
    first = send(w, 0.0, conversation(1, life="1h"))
    assert first.cache == Hit(0, 19_000, 1_000)
    w.begin(1.0, first)
    assert send(w, 3_500.0, conversation(2, life="1h")).cache == Hit(19_000, 2_000, 2_000)


def test_anthropic_looks_back_over_twenty_blocks():
    cache = ServerCache(300, 1_024)
    blocks = [PromptPart("user", str(at), 2_000) for at in range(40)]

    def marked(at):
        return ANTHROPIC.prompt("m", [*blocks[:at], blocks[at]._replace(life="5m")])

    cache.write(0.0, marked(5))
    assert cache.find(1.0, marked(25)).read == 12_000
    assert cache.find(1.0, marked(26)).read == 0


def test_without_a_mark_anthropic_caches_nothing_and_openai_everything():
    parts = [PromptPart("user", str(at), 1_500) for at in range(3)]
    cache = ServerCache(300, 1_024)
    unmarked = ANTHROPIC.prompt("m", parts)
    cache.write(0.0, unmarked)
    assert cache.find(1.0, unmarked) == Hit()
    automatic = BY_PROVIDER["openai"].prompt
    cache.write(0.0, automatic("m", parts))
    assert cache.find(1.0, automatic("m", [*parts[:2], PromptPart("user", "new", 1_500)])).read == 2_944


def test_short_prefixes_are_not_cached():
    cache = ServerCache(300, 1_024)
    prompt = ANTHROPIC.prompt("m", [PromptPart("user", "a", 1_023, "5m")])
    cache.write(0.0, prompt)
    assert cache.find(1.0, prompt) == Hit()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8), st.floats(0, 400)), max_size=30))
def test_it_reads_at_most_what_was_written_before(steps):
    cache, now, written = ServerCache(300, 0), 0.0, set()
    for name, turns, later_s in steps:
        now += later_s
        prompt = conversation(turns, name=name)
        hit = cache.find(now, prompt)
        assert hit.read + hit.written == prompt.prefixes[-1].tokens
        assert hit.read in {0, *(p.tokens for p in prompt.prefixes if p.key in written)}
        cache.refresh(now, prompt, hit)
        cache.write(now, prompt)
        written |= {prefix.key for prefix in prompt.marked}


# --- quotas


def test_cached_input_counts_only_where_the_provider_counts_it():
    for counts, left in ((False, 450_000 - 21_000), (True, 450_000 - 40_000)):
        w = world()
        w.begin(0.0, send(w, 0.0, conversation(1), counts_cached=counts))
        send(w, 0.0, conversation(2), counts_cached=counts)
        assert w.levels(0.0, "m")[0].remaining == left


def test_a_prompt_that_is_held_whole_must_fit_and_is_returned_at_the_first_byte():
    w = world("40k input_tokens/min", cache_held=True)
    w.begin(0.0, send(w, 0.0, conversation(1)))
    assert isinstance(send(w, 0.0, conversation(2)), Admitted)  # 21,000 of 21,000
    assert isinstance(send(w, 1.0, conversation(2)), Refused)
    w = world("40k input_tokens/min", cache_held=True)
    w.begin(0.0, send(w, 0.0, conversation(1)))
    second = send(w, 0.0, conversation(2))
    w.begin(0.0, second)
    assert w.levels(0.0, "m")[0].remaining == 40_000 - 21_000
    w.finish(0.0, second)
    assert w.levels(0.0, "m")[0].remaining == 40_000 - 21_000
    assert w.tally()["charges"]["input_tokens"] == 21_000


def test_a_share_of_the_requests_misses():
    w = world("1b input_tokens/min", cache_misses=0.3)
    w.begin(0.0, send(w, 0.0, conversation(1)))
    hits = sum(send(w, 1.0, conversation(2)).cache.read > 0 for _ in range(1_000))
    assert 650 < hits < 750


def test_a_refused_request_keeps_nothing_alive():
    w = world("21k input_tokens/min")
    w.begin(0.0, send(w, 0.0, conversation(1)))
    assert isinstance(send(w, 1.0, conversation(1, name="b"), counts_cached=True), Refused)
    assert send(w, 300.5, conversation(2)).cache.read == 0


def test_without_the_setting_nothing_is_cached():
    w = World(Settings(limits={"m": "450k input_tokens/min"}))
    first = send(w, 0.0, conversation(1))
    w.begin(0.0, first)
    assert send(w, 0.0, conversation(2)).cache == Hit()
    assert "cache" not in w.tally()


# --- bodies

LONG = "The same long text stands in front of every question of this conversation. " * 120


def test_a_mark_that_moves_on_changes_no_prefix():
    def read(messages):
        body = dump({"model": "m", "max_tokens": 9, "system": LONG, "messages": messages})
        return ANTHROPIC.read("messages", body, caches=True)

    mark = {"cache_control": {"type": "ephemeral"}}
    first = read([{"role": "user", "content": [{"type": "text", "text": "a", **mark}]}])
    second = read(
        [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": [{"type": "text", "text": "c", **mark}]},
        ]
    )
    assert [p[:2] for p in second.prompt.prefixes[:2]] == [p[:2] for p in first.prompt.prefixes]
    assert [p.life for p in second.prompt.prefixes] == ["", "", "", "5m"]
    for ask in (first, second):
        assert ask.prompt.prefixes[-1].tokens == ask.input_tokens


@pytest.mark.parametrize(
    "body", [{"messages": 5}, {"messages": ["x"]}, {"messages": [{"content": None}], "system": 5, "tools": 7}]
)
@pytest.mark.parametrize("dialect", [ANTHROPIC, *OPENAI_LIKE.values()])
def test_odd_bodies_are_read(dialect, body):
    for kind in ("chat", "responses", "embeddings") if dialect is not ANTHROPIC else ("messages",):
        dialect.read(kind, dump({"model": "m", "max_tokens": 5, "input": [None, 3], **body}), caches=True)


# --- SDKs


def test_anthropic_reports_reads_and_writes(paceline_emulator):
    emulator = paceline_emulator(limits="450k input_tokens/min", cache=True)
    with anthropic.Anthropic(base_url=emulator.base_url, api_key="any") as client:
        system = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
        messages = [{"role": "user", "content": "hello"}]
        automatic = {"cache_control": {"type": "ephemeral"}}

        def ask():
            return client.messages.create(
                model="m", max_tokens=20, system=system, messages=messages, extra_body=automatic
            )

        first = ask().usage
        assert (first.input_tokens, first.cache_read_input_tokens) == (0, 0)
        assert first.cache_creation.ephemeral_1h_input_tokens > 1_700
        hour, five = first.cache_creation.ephemeral_1h_input_tokens, first.cache_creation.ephemeral_5m_input_tokens
        assert first.cache_creation_input_tokens == hour + five
        messages += [{"role": "assistant", "content": "hi"}, {"role": "user", "content": "and now?"}]
        second = ask().usage
        assert second.cache_read_input_tokens == hour + five
        emulator.advance(301)
        assert ask().usage.cache_read_input_tokens == hour
        with client.messages.stream(
            model="m", max_tokens=20, system=system, messages=messages, extra_body=automatic
        ) as stream:
            streamed = stream.get_final_message().usage
    assert streamed.cache_read_input_tokens == hour + five + second.cache_creation_input_tokens
    tally = emulator.tally()
    assert tally["cache"]["read_tokens"] == 3 * hour + 2 * five + second.cache_creation_input_tokens
    assert tally["charges"]["input_tokens"] == tally["cache"]["input_tokens"] - tally["cache"]["read_tokens"]


def test_openai_reports_cached_tokens_which_count(paceline_emulator):
    emulator = paceline_emulator(limits="450k tokens/min", cache=True)
    messages = [{"role": "system", "content": LONG}, {"role": "user", "content": "hello"}]
    with openai.OpenAI(base_url=f"{emulator.base_url}/v1", api_key="any") as client:
        first = client.chat.completions.create(model="m", messages=messages, max_completion_tokens=10).usage
        second = client.chat.completions.create(model="m", messages=messages, max_completion_tokens=10).usage
        response = [client.responses.create(model="m", instructions=LONG, input="hello").usage for _ in range(2)]
    assert first.prompt_tokens_details.cached_tokens == 0
    assert second.prompt_tokens_details.cached_tokens == second.prompt_tokens // 128 * 128
    assert all(usage.input_tokens_details.cached_tokens > 1_700 for usage in response)  # its system text is cached
    tally = emulator.tally()
    assert tally["charges"]["tokens"] >= tally["cache"]["input_tokens"]


def test_groq_gives_cached_input_back(paceline_emulator):
    emulator = paceline_emulator(limits="450k tokens/min", cache=True)
    messages = [{"role": "system", "content": LONG}]
    with groq.Groq(base_url=emulator.base_url, api_key="any") as client:
        used = [client.chat.completions.create(model="m", messages=messages).usage for _ in range(2)]
    cached = used[1].prompt_tokens_details.cached_tokens
    assert cached > 1_700
    assert emulator.tally()["charges"]["tokens"] == sum(one.total_tokens for one in used) - cached


def test_an_attached_client_is_charged_what_the_emulator_charges(paceline_emulator):
    emulator = paceline_emulator(limits="450k input_tokens/min", cache=True)
    limiter = paceline.Limiter({"anthropic/*": "450k input_tokens/min"})
    with anthropic.Anthropic(base_url=emulator.base_url, api_key="any") as client:
        limiter.attach(client, provider="anthropic")
        messages = [{"role": "user", "content": LONG}]
        for _ in range(3):
            client.messages.create(
                model="m", max_tokens=20, messages=messages, extra_body={"cache_control": {"type": "ephemeral"}}
            )
            messages += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "and then?"}]
    (pool,) = limiter.status()["pools"].values()
    (quota,) = pool["quotas"]
    assert quota["spent"] == emulator.tally()["charges"]["input_tokens"] < 2_100
    assert pool["cache"]["read_tokens"] == emulator.tally()["cache"]["read_tokens"] > 3_600
