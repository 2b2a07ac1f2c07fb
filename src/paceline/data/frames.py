"""The rows of a table of any kind, and the same table with more columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from paceline.core.results import QuotaError

Made = Callable[[list[dict[str, Any]], dict[str, list[Any]]], Any]
"""Makes what is returned of the rows and the new columns."""


def rows_of(rows: Any) -> tuple[list[dict[str, Any]], Made]:
    """The rows of a frame of pandas or polars, a table of pyarrow or an iterable of mappings, and what makes a table of their kind.

    Raises:
        QuotaError: ``rows`` is nothing of this kind.
    """
    if hasattr(rows, "iterrows"):  # pandas
        return rows.to_dict("records"), lambda _, columns: rows.assign(**columns)
    if hasattr(rows, "iter_rows"):  # polars
        return list(rows.iter_rows(named=True)), lambda _, columns: rows.with_columns(
            *(type(rows)({name: values})[name] for name, values in columns.items())
        )
    if hasattr(rows, "to_pylist"):  # pyarrow
        return rows.to_pylist(), _appended(rows)
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise QuotaError(f"rows is a {type(rows).__name__}: give a table, a list of dicts, or the path of a file")
    found = list(rows)
    wrong = next((number for number, row in enumerate(found) if not isinstance(row, Mapping)), None)
    if wrong is not None:
        kind = type(found[wrong]).__name__
        raise QuotaError(f"row {wrong} is a {kind}: give dicts, e.g. [{{'prompt': text}} for text in texts]")
    return [dict(row) for row in found], dicts


def dicts(rows: list[dict[str, Any]], columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Rows that are dicts, with more columns."""
    return [{**row, **{name: values[number] for name, values in columns.items()}} for number, row in enumerate(rows)]


def _appended(rows: Any) -> Made:
    def appended(_: list[dict[str, Any]], columns: dict[str, list[Any]]) -> Any:
        made = rows
        for name, values in columns.items():
            made = made.append_column(name, [vectors(values) if isinstance(values, Vectors) else values])
        return made

    return appended


class Vectors(list[Any]):
    """A column of vectors, and of ``None`` where there is none."""


def vectors(values: list[Any]) -> Any:
    """A column of vectors as an array of Arrow, in single precision, of fixed length if they have one length."""
    arrow = import_module("pyarrow")
    sizes = {len(value) for value in values if value is not None}
    if not sizes:
        return arrow.nulls(len(values))
    kind = arrow.list_(arrow.float32(), *sizes) if len(sizes) == 1 else arrow.list_(arrow.float32())
    return arrow.array(values, kind)
