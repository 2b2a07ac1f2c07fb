from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.integrations.history import trim


def messages(types):
    return [SimpleNamespace(type=kind) for kind in types]


TURNS = ["human", "ai", "tool", "tool", "ai", "human", "ai", "tool", "ai"]


@pytest.mark.parametrize(
    ("types", "sizes", "most", "kept"),
    [
        (TURNS, [1] * 9, 9, [*range(9)]),
        ([], [], 5, []),
        (TURNS, [1] * 9, 4, [0, 6, 7, 8]),  # the first question, and the newest turns
        (TURNS, [1] * 9, 3, [0, 8]),  # half a turn is none
        (TURNS, [1] * 9, 7, [0, 4, 5, 6, 7, 8]),
        (["system", *TURNS], [1] * 10, 5, [0, 1, 7, 8, 9]),
        (TURNS, [50, *[1] * 8], 6, [5, 6, 7, 8]),  # the first question is too long, and another begins
        (TURNS, [1] * 8 + [100], 10, [8]),  # the newest turn, even if it is too long
        (["human", "ai", "tool"], [5, 5, 500], 10, [1, 2]),
    ],
)
def test_what_stays(types, sizes, most, kept):
    assert trim(messages(types), sizes, most) == kept


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
