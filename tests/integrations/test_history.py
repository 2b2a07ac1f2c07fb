from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from paceline.integrations.history import trim


def messages(types):
    return [SimpleNamespace(type=kind) for kind in types]


def kept(types, sizes, most):
    return "".join(types[index][0] for index in trim(messages(types), sizes, most))


TURNS = ["human", "ai", "tool", "tool", "ai", "human", "ai", "tool", "ai"]


def test_all_of_it_stays_when_it_fits():
    assert trim(messages(TURNS), [1] * 9, 9) == list(range(9))
    assert trim([], [], 5) == []


def test_the_first_question_and_the_newest_turns_stay():
    assert trim(messages(TURNS), [1] * 9, 4) == [0, 6, 7, 8]
    assert trim(messages(TURNS), [1] * 9, 3) == [0, 8]  # half a turn is none
    assert trim(messages(TURNS), [1] * 9, 7) == [0, 4, 5, 6, 7, 8]


def test_system_messages_stay():
    assert kept(["system", *TURNS], [1] * 10, 5) == "shata"


def test_a_first_question_that_is_too_long_goes_and_another_begins():
    assert trim(messages(TURNS), [50, *[1] * 8], 6) == [5, 6, 7, 8]


def test_the_newest_turn_stays_even_if_it_is_too_long():
    assert trim(messages(TURNS), [1] * 8 + [100], 10) == [8]
    assert trim(messages(["human", "ai", "tool"]), [5, 5, 500], 10) == [1, 2]


@given(
    st.lists(st.tuples(st.sampled_from(["human", "ai", "tool", "system"]), st.integers(1, 50))), st.integers(-5, 400)
)
def test_no_tool_result_without_its_call(pairs, most):
    history, sizes = messages([kind for kind, _ in pairs]), [size for _, size in pairs]
    stay = trim(history, sizes, most)
    assert stay == sorted(set(stay))
    for index in range(1, len(history)):
        if history[index].type == "tool":
            assert (index in stay) == (index - 1 in stay)
    if pairs:
        newest = next(n for n in range(len(pairs) - 1, -1, -1) if pairs[n][0] != "tool" or n == 0)
        assert stay[-1] == len(pairs) - 1
        assert sum(sizes[index] for index in stay) <= max(most, sum(sizes[newest:]))
