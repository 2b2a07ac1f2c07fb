"""`paceline.run` and `paceline.map` over tables of other packages; Parquet, Excel and zstd as input."""

import csv
import datetime as dt
import decimal
import io
import json
import os

import datasets
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd

import paceline
from paceline.batch.forms import Form, lines_of
from paceline.data.frames import rows_of
from paceline.emulator import Emulator

COLUMNS = {"id": [1, 2, 3], "text": ["One?", "Two?", "Drei \u2013 \u201c3\u201d?"]}


@pytest.fixture(scope="module")
def ask():
    os.environ["OPENAI_API_KEY"] = "key"
    with Emulator(limits={"*": "60k requests/min,60M tokens/min"}) as emulator:
        options = {"base_url": emulator.base_url, "limits": {"*": "60k requests/min"}, "progress": False}
        yield lambda rows, **more: paceline.run(rows, **{"model": "gpt-5", "prompt": "text"} | options | more)


def parquet():
    made = io.BytesIO()
    pq.write_table(pa.table(COLUMNS), made)
    return made.getvalue()


def test_pandas(ask):
    table = pd.DataFrame(COLUMNS, index=["a", "b", "c"])
    answered = ask(table)
    assert isinstance(answered, pd.DataFrame)
    assert (list(answered.columns), list(answered.index)) == (["id", "text", "answer", "error"], ["a", "b", "c"])
    assert answered["answer"].str.len().min() > 0
    assert list(table.columns) == ["id", "text"]


NULL = {"text": ["One?", "Two?", None]}
RELATION = "select * from (values ('One?'), ('Two?'), (null)) rows(text)"


def batches():
    return pa.table(NULL).to_reader()


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: pd.DataFrame(NULL), pd.DataFrame),
        (lambda: pd.DataFrame(NULL, dtype="category"), pd.DataFrame),
        (lambda: pl.DataFrame(NULL), pl.DataFrame),
        (lambda: pa.table(NULL), pa.Table),
        (batches, pa.Table),
        (lambda: duckdb.sql(RELATION), pa.Table),
        (lambda: duckdb.connect().execute(RELATION), pa.Table),
    ],
)
def test_a_row_without_a_prompt_in_each_kind_of_table(ask, make, kind):
    answered = ask(make())
    assert isinstance(answered, kind)
    rows = next((getattr(answered, name)() for name in ("to_pylist", "to_dicts") if hasattr(answered, name)), answered)
    rows = rows.to_dict("records") if isinstance(rows, pd.DataFrame) else rows
    assert [isinstance(row["answer"], str) for row in rows] == [True, True, False]
    assert rows[2]["error"] == "invalid_row: 'text', which is the prompt, has no value"


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_a_table_twice_and_an_empty_one(ask, make, tmp_path):
    first = ask(make(COLUMNS), journal=tmp_path / "answers.jsonl")
    assert ask(first, journal=tmp_path / "answers.jsonl").equals(first)
    empty = ask(make(COLUMNS)[:0])
    assert list(getattr(empty, "column_names", getattr(empty, "columns", None))) == ["id", "text", "answer", "error"]


def test_a_dataset(ask, monkeypatch):
    # With this pyarrow, dill cannot pickle a table for its fingerprint, which names the files of a cache.
    monkeypatch.setattr(datasets.fingerprint.Hasher, "hash", staticmethod(lambda value: f"{id(value)}"))
    answered = ask(datasets.Dataset.from_dict(COLUMNS).select([2, 0]))
    assert isinstance(answered, datasets.Dataset)
    assert (answered["id"][:], answered["error"][:]) == ([3, 1], [None, None])
    assert isinstance(ask(datasets.Dataset.from_dict(COLUMNS).to_iterable_dataset()), datasets.Dataset)
    with pytest.raises(paceline.SettingsError, match=r"one of its tables is rows\['train'\]"):
        ask(datasets.DatasetDict({"train": datasets.Dataset.from_dict(COLUMNS)}))


def test_columns_of_pandas(ask):
    values = {
        "day": [dt.date(2026, 1, 1)],
        "cost": [decimal.Decimal("1.5")],
        "n": pd.array([None], "Int64"),
        "of": [[{"a": 2}]],
        7: ["x"],
    }
    table = pd.DataFrame(values)
    assert ask(table, prompt="{day} {cost} {of[0][a]} {7}")["error"].isna().all()
    assert ask(table, prompt="{n}")["error"][0] == "invalid_row: 'n', which the template names, has no value"
    two = pd.DataFrame([["a", "b"]], columns=pd.MultiIndex.from_tuples([("q", "text"), ("q", "id")]))
    assert ask(two, prompt="{q_text}", key="q_id")["error"].isna().all()
    with pytest.raises(
        paceline.SettingsError, match=r"rows: two columns have the same name \(text\): rename one of them"
    ):
        ask(pd.DataFrame([["a", "b"]], columns=["text", "text"]))
    with pytest.raises(paceline.SettingsError, match="row 1 is a str: give dicts"):
        ask(pd.Series(["a"]))


def test_lists_of_pandas(ask, tmp_path):
    """They are arrays in its cells, and the text of a long one has an ellipsis in place of its values."""
    values = list(range(2_000))
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    columns = {"text": ["One?"], "vector": [values], "of": [{"vector": values}], "at": [[at]]}
    table = pa.table(columns).to_pandas()
    answered = ask(table, output=tmp_path / "rows.csv")
    assert len(answered["vector"][0]) == 2_000
    (row,) = csv.DictReader((tmp_path / "rows.csv").read_text("utf-8").splitlines())
    assert (json.loads(row["vector"]), json.loads(row["of"])["vector"]) == (values, values)
    assert json.loads(row["at"])[0].startswith("2026-01-01")
    (line,) = lines_of(rows_of(table)[0], Form("gpt-5", template="{vector}"), "rows")[0]
    assert json.loads(line.line)["body"]["messages"][0]["content"] == str(values)


def test_ids_of_pandas(ask, tmp_path):
    """Integers are floats beside a missing one."""
    table = pd.DataFrame({"id": [1, None, 1], "text": ["a", "b", "c"]})
    assert ask(table)["answer"].notna().all()
    assert ask(table, key="id")["error"].notna().tolist() == [False, True, True]


def test_messages_of_arrow(ask):
    """All messages have the fields of any."""
    said = [{"role": "system", "content": "a", "name": None}, {"role": "user", "content": "b", "name": "c"}]
    table = pa.table({"messages": [said]})
    for rows in (table, table.to_pandas(), pl.from_arrow(table)):
        assert list(ask(rows, prompt=None)["error"]) in ([None], [pa.scalar(None, pa.string())])


def test_excel(ask, tmp_path):
    pd.DataFrame({"id": [1, 2, None], "text": ["One?", None, "Three?"]}).to_excel(tmp_path / "rows.xlsx", index=False)
    answered = ask(tmp_path / "rows.xlsx")
    assert [bool(row["answer"]) for row in answered] == [True, False, True]
    assert [row["id"] for row in answered] == [1, 2, None]


@pytest.mark.parametrize(
    ("name", "content"), [("rows.parquet", parquet()), ("rows.parquet.zst", zstd.compress(parquet()))]
)
def test_parquet_and_zstd(ask, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert [row["id"] for row in ask(tmp_path / name) if row["answer"]] == [1, 2, 3]


async def test_a_column_is_mapped(tmp_path):
    async def shout(text):
        return text.upper()

    table = pd.DataFrame(COLUMNS)
    table["loud"] = await paceline.map(shout, table["text"], journal=tmp_path / "loud.db", progress=False)
    assert list(table["loud"]) == [text.upper() for text in COLUMNS["text"]]
    assert await paceline.map(shout, table["text"], journal=tmp_path / "loud.db", progress=False) == list(table["loud"])
    numbers = await paceline.map(shout_number, table["id"], journal=tmp_path / "numbers.db", progress=False)
    assert numbers == ["1", "2", "3"]
    for kind in (table, pl.DataFrame(COLUMNS), pa.table(COLUMNS), duckdb.sql(RELATION)):
        with pytest.raises(TypeError, match="give its rows"):
            paceline.map(shout, kind)
    for column in (pl.Series(COLUMNS["text"]), pa.array(COLUMNS["text"]).to_pylist()):
        assert len(await paceline.map(shout, column, progress=False)) == 3


async def shout_number(number):
    return str(number)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_answers_of_several_kinds_come_back(make):
    """They are paid: a column that has no type for all of them has their JSON."""
    found, table = rows_of(make({"text": ["a", "b"]}))
    answers = table(found, {"answer": [{"n": [1]}, {"n": {"a": 1}}], "error": [None, None]})["answer"]
    values = answers.to_pylist() if hasattr(answers, "to_pylist") else answers.to_list()
    assert [json.loads(one) if isinstance(one, str) else one for one in values] == [{"n": [1]}, {"n": {"a": 1}}]
