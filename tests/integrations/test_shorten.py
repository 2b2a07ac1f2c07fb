import json

from hypothesis import given
from hypothesis import strategies as st

from paceline.integrations.history import shorten, shorten_content

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=300), inner, max_size=10),
    max_leaves=100,
)


@given(st.text(), st.integers(100, 200))
def test_text_never_gets_longer_than_allowed(text, most):
    short = shorten(text * 20, most)
    assert len(short) <= most
    assert short == text * 20 or "cut" in short


@given(JSON, st.integers(100, 2_000))
def test_json_stays_json(value, most):
    text = json.dumps(value)
    short = shorten(text, most)
    assert len(short) <= most
    if isinstance(value, dict | list):
        assert type(json.loads(short)) is type(value) or "too deep" in short
    if len(text) <= most:
        assert short is text


def test_text_keeps_its_beginning_and_says_how_long_it_was():
    short = shorten("x" * 50_000, 12_000)
    assert len(short) == 12_000
    assert short.endswith("\n[... 50,000 characters, cut here ...]")


def test_a_long_string_inside_is_cut_and_the_rest_stays():
    value = {"title": "A paper", "body": "word " * 10_000, "ids": [1, 2, 3]}
    short = json.loads(shorten(json.dumps(value), 12_000))
    assert short["title"] == "A paper"
    assert short["ids"] == [1, 2, 3]
    assert 5_000 < len(short["body"]) < 12_000
    assert "50,000 characters, cut here" in short["body"]


def test_a_long_list_ends_in_a_marker():
    rows = [{"id": row, "name": f"name {row}"} for row in range(5_000)]
    text = shorten(json.dumps(rows), 12_000)
    short = json.loads(text)
    assert len(text) > 5_000  # what fits is used
    assert short[:-1] == rows[: len(short) - 1]
    assert short[-1] == f"[... {5_000 - len(short) + 1:,} more items cut ...]"


def test_a_wide_object_ends_in_a_marker():
    short = json.loads(shorten(json.dumps({f"key {n}": n for n in range(5_000)}), 12_000))
    assert short["key 0"] == 0
    assert short["[... cut ...]"].endswith("more keys")


def test_what_only_begins_like_json_or_nests_without_end_is_text():
    assert "cut here" in shorten("[not json] " * 100, 200)
    assert "cut here" in shorten("[" * 100_000 + "]" * 100_000, 200)


def test_content():
    image = {"type": "image_url", "image_url": {"url": "data:" + "x" * 5_000}}
    assert shorten_content(image, 100) is image
    blocks = [{"type": "text", "text": "a" * 300}, image, {"type": "text", "text": "b" * 300}, "c" * 300]
    assert shorten_content(blocks, 1_000) is blocks
    short = shorten_content(blocks, 500)
    assert short[:2] == blocks[:2]
    assert len(short[2]["text"]) == 200
    assert short[3] == {"type": "text", "text": "[... 1 more parts cut ...]"}
    assert blocks[2]["text"] == "b" * 300  # the tool's own object is as it was
