"""`paceline.run` and `paceline.map` over pandas, polars and pyarrow; Parquet and zstd as input."""

import io
import os

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd

import paceline
from paceline.emulator import Emulator

COLUMNS = {"id": [1, 2, 3], "text": ["One?", "Two?", "Drei \u2013 \u201c3\u201d?"]}


@pytest.fixture(scope="module")
def ask():
    os.environ["OPENAI_API_KEY"] = "key"
    with Emulator(limits={"*": "60k requests/min,60M tokens/min"}) as emulator:
        options = {"base_url": emulator.base_url, "limits": {"*": "60k requests/min"}, "progress": False}
        yield lambda rows: paceline.run(rows, model="gpt-5", prompt="text", **options)


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


def test_polars(ask):
    answered = ask(pl.DataFrame(COLUMNS))
    assert isinstance(answered, pl.DataFrame)
    assert answered["answer"].null_count() == 0
    assert answered["id"].to_list() == [1, 2, 3]


def test_pyarrow(ask):
    answered = ask(pa.table(COLUMNS))
    assert answered.column_names == ["id", "text", "answer", "error"]
    assert all(answered["answer"].to_pylist())


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
    with pytest.raises(TypeError, match="items is a DataFrame: give its rows"):
        paceline.map(shout, table)


async def shout_number(number):
    return str(number)
