"""What is known of a provider's prompt cache: keys of prompts, what is expected of it, and when it is doubted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import Limiter
from paceline.core.quota import NS
from paceline.estimation import prefixes
from paceline.estimation.prefixes import NOTHING, Keys, Prefixes, Prompt, PromptCache, keys_of, named_keys
from paceline.estimation.prefixes import prompt_of as prompt_of_request
from paceline.http.describe import metered
from paceline.pacing.turns import answered
from paceline.providers.base import Call, Usage
from paceline.providers.registry import provider_named

LIFE_NS = 300 * NS
T0 = 1_000 * NS
TEXT = "a text of some length, so that it is sampled at three places and not kept as a whole: " * 4


def cache_of() -> PromptCache:
    return PromptCache(Prefixes(), "anthropic/m")


@pytest.fixture
def cache() -> PromptCache:
    return cache_of()


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def body(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **fields}


ASKED = body(user("a"))


def prompt_of(cache: PromptCache, asked: dict[str, Any]) -> Prompt:
    keys = keys_of(cache, "m", asked)
    assert keys is not None
    return Prompt(cache, keys)


def answer(cache: PromptCache, asked: dict[str, Any], read: int = 0, written: int = 0, at_ns: int = T0) -> Prompt:
    prompt = prompt_of(cache, asked)
    prompt.look(at_ns)
    prompt.answered(at_ns, LIFE_NS, read + written, read, written)
    return prompt


def expected(cache: PromptCache, asked: dict[str, Any], at_ns: int = T0 + NS) -> int:
    return prompt_of(cache, asked).look(at_ns).tokens


class TestKeysThatAreMadeLate:
    """Of a prompt that was described while nothing was known to be cached."""

    asked = body({"role": "system", "content": "be brief"}, {"role": "user", "content": TEXT})

    def test_an_answer_that_shows_nothing_cached_needs_none(self, cache):
        prompt = prompt_of_request(cache, "m", self.asked, again=pytest.fail)
        assert prompt.look(T0) == NOTHING
        prompt.answered(T0, LIFE_NS, 900, 0, 0)
        assert (cache.reported.input, not cache.known) == (900, True)

    def test_an_answer_that_shows_a_prefix_cached_makes_them(self, cache):
        prompt_of_request(cache, "m", self.asked, lambda: self.asked).answered(T0, LIFE_NS, 900, 0, 900)
        follow_up = body(*self.asked["messages"], assistant("done"), user("and now?"))
        assert expected(cache, self.asked) == expected(cache, follow_up) == 900

    def test_they_are_those_of_the_body(self):
        late = prompt_of_request(cache_of(), "m", self.asked, lambda: self.asked)
        assert late._keys == keys_of(cache_of(), "m", self.asked)
        assert (late.before, late.at(cache_of()).look(T0)) == (0, NOTHING)

    def test_a_prompt_that_comes_later_has_them_at_once(self, cache):
        answer(cache, self.asked, written=900)
        prompt = prompt_of_request(cache, "m", self.asked, again=pytest.fail)
        assert prompt.look(T0).tokens == 900

    def test_a_conversation_with_a_name_has_them_at_once(self, cache):
        named = {"model": "m", "input": "more", "previous_response_id": "resp_1"}
        prompt = prompt_of_request(cache, "m", named, again=pytest.fail)
        assert prompt.before is None

    def test_a_body_without_messages_has_no_prompt(self, cache):
        assert prompt_of_request(cache, "m", {"model": "m"}, again=pytest.fail) is None


class TestKeys:
    first = user(TEXT)
    turn = (
        assistant(
            [{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "t1", "name": "ls", "input": {"a": 1}}]
        ),
        user([{"type": "tool_result", "tool_use_id": "t1", "content": TEXT + "!"}]),
    )

    def test_a_follow_up_finds_the_earlier_prompt(self, cache):
        answer(cache, body(self.first), written=900)
        assert expected(cache, body(self.first, *self.turn)) == 900
        answer(cache, body(self.first, *self.turn), read=900, written=100)
        later = body(self.first, *self.turn, assistant("done"), user("and now?"))
        assert expected(cache, later) == 1_000

    def test_the_marks_of_the_cache_move_and_change_nothing(self, cache):
        mark = {"cache_control": {"type": "ephemeral"}}
        marked = user([{"type": "text", "text": TEXT, **mark}])
        answer(cache, body(marked, system=[{"type": "text", "text": "You are", **mark}]), written=900)
        assert expected(cache, body(self.first, *self.turn, system="You are")) == 900

    @pytest.mark.parametrize(
        "other",
        [
            body(user(TEXT + "another task"), *turn),
            body(user("another start: " + TEXT), *turn),
            body(first, *turn, system="another system prompt"),
            body(first, *turn, tools=[{"name": "other"}]),
            body(user("a summary of what was said"), *turn),  # compacted
            body(turn[0], first),
        ],
    )
    def test_another_prompt_finds_nothing(self, cache, other):
        answer(cache, body(self.first), written=900)
        assert expected(cache, other) == 0

    def test_another_model_or_pool_has_another_cache(self, cache):
        answer(cache, body(self.first), written=900)
        keys = keys_of(cache, "other", body(self.first))
        assert Prompt(cache, keys).look(T0) == NOTHING
        elsewhere = prompt_of(cache, body(self.first)).at(PromptCache(Prefixes(), "anthropic@b/m"))
        assert elsewhere.look(T0) == NOTHING

    def test_conversations_that_begin_alike_are_told_apart(self, cache):
        ends = [("yes", 500), ("no", 700)]
        answer(cache, body(self.first), written=300)
        for end, tokens in ends:
            answer(cache, body(self.first, assistant(end), user(end)), read=300, written=tokens - 300)
        answer(cache, body(self.first, assistant("no"), user("no"), assistant("so"), user("?")), read=700, written=50)
        for end, tokens in ends:
            assert expected(cache, body(self.first, assistant(end), user(end), assistant("so"), user("!"))) == tokens

    @pytest.mark.parametrize(("messages", "found"), [(20, 900), (21, 0)])
    def test_an_earlier_prompt_is_found_twenty_messages_back(self, cache, messages, found):
        answer(cache, body(self.first), written=900)
        assert expected(cache, body(self.first, *[user(str(k)) for k in range(messages)])) == found

    def test_a_system_message_begins_many_conversations(self, cache):
        system = {"role": "system", "content": TEXT}
        answer(cache, body(system, user("a task")), written=900)
        assert expected(cache, body(system, user("a task"), assistant("?"), user("!"))) == 900
        assert expected(cache, body(system, user("other"), assistant("?"), user("!"))) == 0

    @pytest.mark.parametrize(
        "asked",
        [
            {
                "contents": [{"role": "user", "parts": [{"text": TEXT}]}],
                "systemInstruction": {"parts": [{"text": "s"}]},
            },
            {"input": TEXT, "instructions": "You are"},
            {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": TEXT}]}]},
            {"messages": [{"role": "user", "content": [{"text": TEXT}]}], "system": [{"text": "You are"}]},
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": TEXT}}]}]},
            {"prompt": TEXT},
            {"previous_response_id": "resp_1", "input": "and?"},
            {"conversation": {"id": "conv_1"}, "input": "and?"},
        ],
    )
    def test_other_apis(self, cache, asked):
        answer(cache, asked, written=900)
        assert expected(cache, asked) == 900

    def test_a_conversation_with_a_name(self, cache):
        prompt = Prompt(cache, named_keys("m", "run-17"))
        prompt.answered(T0, LIFE_NS, 900, 0, 900)
        assert Prompt(cache, named_keys("m", "run-17")).look(T0).tokens == 900
        assert Prompt(cache, named_keys("m", "run-18")).look(T0) == NOTHING

    @pytest.mark.parametrize("asked", [{}, {"messages": []}, {"messages": {"a": 1}}, {"input": 7}])
    def test_no_prompt_has_no_keys(self, cache, asked):
        assert keys_of(cache, "m", asked) is None

    json = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["content", "text", "id", "role", "x"]), inner),
        max_leaves=20,
    )

    @given(messages=st.lists(json, max_size=8), system=json, tools=json)
    def test_any_json_has_keys(self, messages, system, tools):
        asked = {"messages": messages, "system": system, "tools": tools}
        assert isinstance(keys_of(cache_of(), "m", asked), Keys | None)
        assert keys_of(cache_of(), "m", asked) == keys_of(cache_of(), "m", asked)


class TestLife:
    @pytest.mark.parametrize(
        ("pool", "seconds"),
        [
            ("openai/gpt-5.5", 300),
            ("openai/gpt-5.6-sol", 1_800),
            ("openai/gpt-6-luna", 1_800),
            ("openai/gpt-4o", 300),
            ("groq/llama", 7_200),
            ("anthropic/claude-opus-5", 300),
        ],
    )
    def test_the_life_is_that_of_the_model(self, cache, pool, seconds):
        name, _, model = pool.partition("/")
        prompt = prompt_of(cache, ASKED)
        answered(prompt, Usage(900, 10, cached_tokens=100), T0, provider_named(name), pool)
        assert prompt.look(T0).lost_ns == T0 + (seconds - 1) * NS
        assert provider_named(name).keeps_s(model) == seconds

    def test_a_prompt_is_lost_a_second_before_its_life_ends(self, cache):
        answer(cache, ASKED, written=900)
        lost_ns = T0 + LIFE_NS - NS
        assert prompt_of(cache, ASKED).look(lost_ns - 1) == (900, lost_ns)
        assert prompt_of(cache, ASKED).look(lost_ns) == NOTHING

    def test_a_read_begins_its_life_anew(self, cache):
        answer(cache, ASKED, written=900)
        answer(cache, ASKED, read=900, at_ns=T0 + 200 * NS)
        assert expected(cache, ASKED, T0 + 400 * NS) == 900

    def test_what_is_lost_while_it_waits_and_what_before_it_comes(self, cache):
        answer(cache, ASKED, written=900)
        waits = prompt_of(cache, ASKED)
        waits.look(T0 + NS)
        waits.look(T0 + 400 * NS)
        away = prompt_of(cache, ASKED)
        away.look(T0 + 400 * NS)
        waits.answered(T0 + 400 * NS, LIFE_NS, 1_000, 0, 1_000)
        assert (cache.lost_waiting_tokens, cache.lost_away_tokens) == (900, 0)
        away.answered(T0 + 400 * NS, LIFE_NS, 1_000, 100, 900)
        assert (cache.lost_waiting_tokens, cache.lost_away_tokens) == (900, 800)
        answer(cache, ASKED, written=900, at_ns=T0 + 2 * 3_600 * NS)  # a new conversation
        assert (cache.lost_waiting_tokens, cache.lost_away_tokens) == (900, 800)


class TestRoot:
    system = "shared by all"

    def test_a_first_turn_that_reads_teaches_what_is_shared(self, cache):
        answer(cache, body(user("a"), system=self.system), written=800)
        assert expected(cache, body(user("b"), system=self.system)) == 0
        answer(cache, body(user("b"), system=self.system), read=500, written=300)
        assert expected(cache, body(user("c"), system=self.system)) == 500

    def test_a_follow_up_keeps_it_alive(self, cache):
        first = body(user("a"), system=self.system)
        answer(cache, first, read=500, written=300)
        answer(cache, body(user("a"), assistant("?"), user("!"), system=self.system), 800, 10, T0 + 200 * NS)
        assert expected(cache, body(user("c"), system=self.system), T0 + 400 * NS) == 500


def test_where_writes_are_not_named_the_whole_input_is_cached_once_some_was_read(cache):
    for read, found in [(0, 0), (256, 1_000)]:
        prompt = prompt_of(cache, ASKED)
        prompt.answered(T0, LIFE_NS, 1_000, read, 0)
        assert expected(cache, ASKED) == found


def test_a_provider_without_a_cache_is_expected_to_have_nothing(cache):
    for _ in range(20):
        prompt_of(cache, ASKED).answered(T0, LIFE_NS, 1_000, 0, 0)
    assert expected(cache, ASKED) == 0
    assert not cache.reported.is_cached


class TestDoubt:
    def test_the_reservation_follows_the_hits(self, cache):
        answer(cache, ASKED, written=900)
        for _ in range(22):
            answer(cache, ASKED, read=900)
        prompt = prompt_of(cache, ASKED)
        prompt.look(T0)
        assert 0.9 < prompt.discount(T0) < 0.92
        assert prompt.discounted

    def test_a_follow_up_reserves_what_follow_ups_add_also_if_its_estimate_is_low(self):
        limiter = Limiter({"anthropic/m": "450k input_tokens/min"})
        scheduler = limiter.pacer.pools.scheduler("anthropic/m")
        cache = scheduler.prompt_cache
        assert cache is not None
        answer(cache, ASKED, written=9_500)
        for _ in range(60):
            prompt = prompt_of(cache, ASKED)
            prompt.look(scheduler.now_ns())
            prompt.answered(scheduler.now_ns(), LIFE_NS, 10_000, 9_500, 0)
        answer(cache, body(user("new")), written=20_000)  # no follow-up
        assert cache.fresh_tokens == pytest.approx(500, rel=0.01)
        provider = provider_named("anthropic")
        for tokens, reserved in ((8_000, 500), (9_000, 500), (10_000, 1_500)):
            call = Call("anthropic", "messages", "m", tokens)
            found = metered(limiter.pacer, provider, call, ASKED)
            assert found.estimate().cost["input_tokens"] == pytest.approx(reserved, abs=30)

    def test_false_keys_end_the_order_within_twenty_answers(self, cache):
        answer(cache, ASKED, written=900)
        answers = 0
        while cache.orders:
            answer(cache, ASKED, written=900)
            answers += 1
        assert answers <= 20
        for other in range(20):
            answer(cache, body(user(f"other {other}")), written=900)
        assert cache.orders  # it is tried again

    def test_a_third_of_misses_does_not(self, cache):
        answer(cache, ASKED, written=900)
        for k in range(300):
            answer(cache, ASKED, written=900) if k % 3 == 0 else answer(cache, ASKED, read=900)
            assert cache.orders

    def test_a_refusal_of_a_lower_reservation_makes_them_whole(self, cache):
        for _ in range(9):
            answer(cache, ASKED, read=900)
        now_ns = T0
        for minutes in (5, 10, 20, 40, 60, 60):
            prompt = prompt_of(cache, ASKED)
            assert prompt.look(T0).tokens
            assert prompt.discount(now_ns) > 0
            prompt.refused(now_ns)
            assert cache.whole_until_ns == now_ns + minutes * 60 * NS
            assert prompt.discount(cache.whole_until_ns) == 0  # the request itself reserves all of it
            late = prompt_of(cache, ASKED)
            late.look(T0)
            assert late.discount(cache.whole_until_ns - 1) == 0
            late.refused(now_ns)  # it had reserved all
            now_ns = cache.whole_until_ns
        assert cache.status(now_ns - NS)["whole_until_s"] == 1

    def test_several_refusals_at_once_count_as_one(self, cache):
        for _ in range(9):
            answer(cache, ASKED, read=900)
        prompts = [prompt_of(cache, ASKED) for _ in range(5)]
        for prompt in prompts:
            prompt.look(T0)
            prompt.discount(T0)
        for prompt in prompts:
            prompt.refused(T0)
        assert cache.whole_until_ns == T0 + prefixes.WHOLE_NS


def test_memory_is_bounded_and_the_oldest_goes_first():
    table = Prefixes()
    for key in range(prefixes.KEYS_MAX):
        table.put(key, 1, 1)
    table.put(0, 2, 2)
    table.put(-1, 1, 1)
    assert len(table) == prefixes.KEYS_MAX
    assert (table.get(0), table.get(1), table.get(2)) == ((2, 2), None, (1, 1))


def test_no_text_of_a_prompt_is_kept(cache):
    secret = "the secret of the prompt"
    prompt = answer(cache, body(user(secret), assistant(secret), user(secret), system=secret), written=900)
    kept = repr((vars(cache), [getattr(prompt, name) for name in Prompt.__slots__]))
    assert "secret" not in kept
    assert cache.status(T0)["written_tokens"] == 900
