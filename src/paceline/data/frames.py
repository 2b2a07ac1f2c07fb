"""The rows of a table of any kind, and the same table with more columns.

A table is known by its class, or by what it can be given as (a stream of Arrow, a table of pyarrow, a frame of pandas). The names of
methods that read rows tell nothing: DuckDB, polars and PySpark have some of the same name, which do other things.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from decimal import Decimal
from importlib import import_module
from itertools import repeat
from typing import Any, Final

from paceline.core.hints import shown_names
from paceline.core.results import SettingsError

Made = Callable[[list[dict[str, Any]], dict[str, list[Any]]], Any]
"""Makes what is returned of the rows and the new columns."""

STREAMED: Final = 1_000
"""The rows of a streamed dataset that are read at a time."""

_Read = tuple[list[dict[str, Any]], Made]


def rows_of(rows: Any) -> tuple[list[dict[str, Any]], Made]:
    """The rows of a table or of an iterable of mappings, and what makes a table of their kind.

    A table of pandas, polars or pyarrow, and a dataset of Hugging Face, comes back as it is. A relation of DuckDB, and anything else that can
    be given as an Arrow table, comes back as one; and what can only be given as a frame of pandas as that.

    Raises:
        SettingsError: ``rows`` is nothing of this kind, or two of its columns have one name.
    """
    for name, classes, read in _KINDS:
        if _is_of(rows, name, classes):
            return read(rows)
    if (table := _as_arrow(rows)) is not None:
        return _arrow(table)
    if (frame := _as_pandas(rows)) is not None:
        return _pandas(frame)
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise SettingsError(
            f"rows is a {type(rows).__name__}: give a table, a list of dicts, or the path of a file{_part(rows)}"
        )
    return _records(rows), dicts


def _records(rows: Iterable[Any]) -> list[dict[str, Any]]:
    """The rows as dicts."""
    found = list(rows)
    for number, row in enumerate(found, 1):
        if not (hasattr(row, "keys") and hasattr(row, "__getitem__")):  # rows of sqlite3 have both, and are no mappings
            kind = type(row).__name__
            raise SettingsError(f"row {number} is a {kind}: give dicts, e.g. [{{'prompt': text}} for text in texts]")
    return [_named(row) for row in found]


def is_table(rows: Any) -> bool:
    """Whether this is a table, which is not gone through row by row when it is iterated over."""
    if any(_is_of(rows, name, classes) for name, classes, _ in _KINDS if name != "datasets"):  # those are
        return True
    given = any(hasattr(rows, name) for name in (*_TO_ARROW, *_TO_PANDAS))
    return given and hasattr(rows, "columns")  # a column has none


def _is_of(rows: Any, package: str, classes: tuple[str, ...]) -> bool:
    """Whether this is of a class of a package; one that is not imported has made no table."""
    module = sys.modules.get(package)
    return isinstance(rows, tuple(getattr(module, name) for name in classes if hasattr(module, name)))


def require_unique(names: Iterable[object], where: str) -> None:
    """Refuse two columns of one name: a row would have the value of one of them. Columns without a name do not count.

    Raises:
        SettingsError: There are some.
    """
    counts = Counter(map(_name, names))
    twice = next((name for name, count in counts.items() if count > 1 and name.strip()), None)
    if twice is not None:
        raise SettingsError(f"{where}: two columns have the same name ({shown_names([twice])}): rename one of them")


def is_missing(value: Any) -> bool:
    """Whether a value of a table is none: ``None``, nan of any kind, or a missing value of pandas."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    is_number = isinstance(value, float | Decimal) or getattr(value, "ndim", None) == 0  # or of numpy
    return is_number and bool(value != value)  # noqa: PLR0124  (nan alone differs from itself)


def plain(value: Any) -> Any:
    """A value with Python's lists and numbers in place of numpy's, which pandas has of the lists of a Parquet file.

    The text of a long array has an ellipsis in place of most of its values.
    """
    if hasattr(value, "tolist"):
        kind = getattr(getattr(value, "dtype", None), "kind", "O")
        value = (value.astype(str) if kind in "Mm" else value).tolist()  # a time's list may be nanoseconds
        if kind not in "OV":  # no array is in numbers, texts or times, which may be many
            return value
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def dicts(rows: list[dict[str, Any]], columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Rows that are dicts, with more columns."""
    return [{**row, **{name: values[number] for name, values in columns.items()}} for number, row in enumerate(rows)]


def _name(name: object) -> str:
    """The name of a column in a row: pandas has numbers and tuples of names, too."""
    return "_".join(str(part) for part in name if part != "") if isinstance(name, tuple) else str(name)


def _named(row: Any) -> dict[str, Any]:
    return {_name(name): row[name] for name in row.keys()}  # noqa: SIM118  (records have keys, and are no mappings)


def _part(rows: Any) -> str:
    """What to give instead of several tables."""
    name = next(iter(rows), None) if isinstance(rows, Mapping) else None
    first = None if name is None else rows[name]
    is_many = not isinstance(first, str) and (is_table(first) or hasattr(first, "features"))
    return f"; one of its tables is rows[{name!r}]" if is_many else ""


def _pandas(rows: Any) -> _Read:
    require_unique(rows.columns, "rows")
    names = list(map(_name, rows.columns))
    columns = [list(map(plain, column.tolist())) for _, column in rows.items()]  # Python's numbers, dates and lists
    cells = zip(*columns, strict=True) if names else repeat((), len(rows))
    found = [dict(zip(names, values, strict=True)) for values in cells]
    depth = rows.columns.nlevels

    def joined(_: list[dict[str, Any]], columns: dict[str, list[Any]]) -> Any:
        if depth == 1:
            return rows.assign(**columns)
        whole = rows.copy()
        for name, values in columns.items():  # pandas has deprecated a name that is not of all levels
            whole[name, *[""] * (depth - 1)] = values
        return whole

    return found, joined


def _polars(rows: Any) -> _Read:
    def joined(_: list[dict[str, Any]], columns: dict[str, list[Any]]) -> Any:
        polars = import_module("polars")
        series, numbers = polars.Series, polars.List(polars.Float64)

        def kind(values: list[Any]) -> Any:
            return numbers if isinstance(values, Vectors) else polars.String if _is_text(values) else None

        made = [series(name, values, kind(values), strict=False) for name, values in columns.items()]
        whole = [
            series(one.name, list(map(as_text, columns[one.name]))) if str(one.dtype) == "Object" else one
            for one in made
        ]
        return rows.with_columns(whole)

    return list(rows.iter_rows(named=True)), joined


def _streamed(rows: Any) -> _Read:
    """A dataset that is read row by row comes back as one that is there."""
    arrow = import_module("pyarrow")
    return _dataset(import_module("datasets").Dataset(arrow.concat_tables(rows.with_format("arrow").iter(STREAMED))))


def _arrow(rows: Any) -> _Read:
    arrow = import_module("pyarrow")
    if isinstance(rows, arrow.RecordBatchReader):
        rows = rows.read_all()
    elif isinstance(rows, arrow.RecordBatch):
        rows = arrow.Table.from_batches([rows])
    require_unique(rows.column_names, "rows")

    def joined(_: list[dict[str, Any]], columns: dict[str, list[Any]]) -> Any:
        made = rows
        for name, values in columns.items():
            column = arrow_column(values)
            column = column.cast(arrow.string()) if column.type == arrow.null() else column
            at = made.schema.get_field_index(name)
            made = made.append_column(name, column) if at < 0 else made.set_column(at, name, column)
        return made

    return rows.to_pylist(), joined


def _dataset(rows: Any) -> _Read:
    """Of Hugging Face. Its images stay files: they are read as Arrow has them, and not decoded."""
    found, joined = _arrow(rows.with_format("arrow")[:] if len(rows) else rows.data.table.slice(0, 0))

    def made(_: list[dict[str, Any]], columns: dict[str, list[Any]]) -> Any:
        datasets = import_module("datasets")
        others = rows.remove_columns([name for name in columns if name in rows.column_names])
        new = datasets.Dataset(joined([], columns).select(list(columns)))
        return datasets.concatenate_datasets([others, new], axis=1) if others.column_names else new

    return found, made


class Vectors(list[Any]):
    """A column of vectors, and of ``None`` where there is none."""


def _vectors(values: list[Any]) -> Any:
    """A column of vectors as an array of Arrow, in single precision, of fixed length if they have one length."""
    arrow = import_module("pyarrow")
    sizes = {len(value) for value in values if value is not None}
    if not sizes:
        return arrow.nulls(len(values))
    kind = arrow.list_(arrow.float32(), *sizes) if len(sizes) == 1 else arrow.list_(arrow.float32())
    return arrow.array(values, kind)


def arrow_column(values: list[Any]) -> Any:
    """A column of Arrow; of values of several kinds, their JSON."""
    if isinstance(values, Vectors):
        return _vectors(values)
    arrow = import_module("pyarrow")
    try:
        return arrow.array(values, from_pandas=True)
    except (arrow.ArrowException, OverflowError, UnicodeError):  # integers above 64 bits; half a surrogate pair
        return arrow.array(list(map(as_text, values)), arrow.string())


def as_text(value: Any) -> str | None:
    """A value of a column of several kinds: a text as it is, and anything else as JSON."""
    if is_missing(value):
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text.encode("utf-8", "replace").decode()


def _is_text(values: list[Any]) -> bool:
    """Whether a column has texts alone. One without any value would have no type."""
    return all(value is None or isinstance(value, str) for value in values)


_KINDS: Final[tuple[tuple[str, tuple[str, ...], Callable[[Any], _Read]], ...]] = (
    ("pandas", ("DataFrame",), _pandas),
    ("polars", ("DataFrame",), _polars),
    ("datasets", ("Dataset",), _dataset),
    ("datasets", ("IterableDataset",), _streamed),
    ("pyarrow", ("Table", "RecordBatch", "RecordBatchReader"), _arrow),
)
"""The packages whose tables come back as they are, and their classes."""

_TO_ARROW: Final = ("to_arrow_table", "fetch_arrow_table", "to_arrow", "toArrow")
_TO_PANDAS: Final = ("to_pandas", "toPandas", "_to_pandas")
"""How tables of other packages are given as those: of DuckDB, PySpark, Ibis, cuDF, Modin and others."""


def _as_arrow(rows: Any) -> Any:
    """The rows as an Arrow table, if they can be given as one and pyarrow is installed."""
    is_stream, names = hasattr(rows, "__arrow_c_stream__"), [name for name in _TO_ARROW if hasattr(rows, name)]
    if not is_stream and not names:
        return None
    with suppress(ImportError, TypeError, ValueError):  # a stream may be of a single column
        arrow = import_module("pyarrow")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # DuckDB warns that a result of its cursor is copied
            found = getattr(rows, names[0])() if names else arrow.RecordBatchReader.from_stream(rows)
        return found if isinstance(found, arrow.Table | arrow.RecordBatchReader) else None
    return None


def _as_pandas(rows: Any) -> Any:
    """The rows as a frame of pandas, if they can be given as one and pandas is installed."""
    with suppress(ImportError):
        found = next((getattr(rows, name)() for name in _TO_PANDAS if callable(getattr(rows, name, None))), None)
        return found if hasattr(found, "columns") else None
    return None
