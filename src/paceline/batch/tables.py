"""The rows of an input with their answers, as a CSV or Parquet file.

It is made at the end of a run, whole, from the JSON lines that the run has written. Those are its journal: the same command goes on from them.
"""
# ruff: noqa: PTH110, PTH112, PTH123  (paths are strings, as in results.py)

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import Any, BinaryIO, Final

from paceline.batch.acceptance import KEEP, Acceptance, Told
from paceline.batch.results import OutputError, output_errors
from paceline.core.results import SettingsError
from paceline.data.frames import Vectors, arrow_column, as_text, is_missing
from paceline.pacing.durable import replacing

ENDS: Final = (".csv", ".tsv", ".parquet")
"""The ends of the names of tables."""

ERROR, FINISH = "error", "finish"
"""Columns beside the answers; the second one where an answer may be cut off. With a schema there is a column of texts, too."""

CHUNK: Final = 10_000
"""Rows that are made columns at a time: Python's objects take several times the memory of a column."""

UNWRITABLE: Final = OSError, EOFError, ValueError, TypeError, NotImplementedError, csv.Error
"""The errors for which a table cannot be written: errors of the system, of a row, and of the libraries of a format."""

UNSENT: Final = Told(None, "it was not sent: the run has ended before")

Rows = Callable[[], AbstractContextManager[Iterator[tuple[str | int | None, Mapping[str, Any]]]]]
"""Opens the rows, each with the id of its request."""


@dataclass(frozen=True, slots=True)
class Table:
    """A file of rows and answers.

    Attributes:
        path: Its path.
        into: Its column with the texts of the answers.
        journal: The answers as they come.
    """

    path: str
    into: str
    journal: str

    @classmethod
    def at(cls, path: str | None, into: str, journal: str | None = None) -> Table | None:
        """The table with this path; ``None`` if its name is none of a table.

        Raises:
            SettingsError: The package is missing that writes it.
        """
        if path is None or not path.lower().endswith(ENDS):
            return None
        if path.lower().endswith(".parquet"):
            try:
                import_module("pyarrow.parquet")
            except ImportError:
                raise SettingsError(f"{path}: a Parquet file needs pyarrow: pip install pyarrow") from None
        return cls(path, into, journal or f"{path}.results.jsonl")

    def require_own(self) -> None:
        """Refuse to replace a file of something else.

        Raises:
            OutputError: There is a file, and no journal that it may be from; or a folder.
        """
        if os.path.isdir(self.path):
            raise OutputError(f"{self.path}: it is a folder; name a file with -o")
        if os.path.exists(self.path) and not os.path.exists(self.journal):
            raise OutputError(
                f"{self.path}: no run can continue with this file (there is no {self.journal}): move it away, or choose "
                "another output with -o"
            )

    def require_column(self, rows: Rows, acceptance: Acceptance) -> None:
        """Refuse to replace a column of the input, or one of the new columns by another.

        Raises:
            SettingsError: The rows have the column of the answers, or another new column has its name.
        """
        new_columns(self.into, acceptance)
        with rows() as found:
            first = next(found, (None, {}))[1]
        if self.into in first:
            raise SettingsError(
                f"the rows have a column {self.into!r} already: name the one of the answers, e.g. --into reply"
            )

    def write(self, rows: Rows, acceptance: Acceptance) -> int:
        """Write all rows, in place of an earlier file; return how many.

        Args:
            rows: The rows.
            acceptance: Says which records of the journal are answers.

        Raises:
            OutputError: It cannot be written; an earlier file is unchanged.
        """

        def whole(given: Iterator[tuple[str | int | None, Mapping[str, Any]]]) -> Iterator[dict[str, Any]]:
            for custom_id, row in given:
                new = columns(answers.of(custom_id), self.into, acceptance)
                clear = (self.into, *(name for name, _ in new if name not in row))
                yield {**row, **{name if name in clear else f"{self.into}_{name}": value for name, value in new}}

        then = f"; the answers are in {self.journal}, and the same command writes it"
        with output_errors(f"{self.path} cannot be written", then, of=UNWRITABLE):
            like = self.journal if os.path.exists(self.journal) else ""
            with closing(RecordedAnswers(self.journal, acceptance)) as answers, replacing(self.path, like=like) as file:
                if self.path.lower().endswith(".parquet"):
                    with rows() as given:
                        return _parquet(file, whole(given), lambda name: name == self.into and answers.vectors)
                with rows() as given:
                    names = list(dict.fromkeys(name for row in whole(given) for name in row))
                with rows() as given:
                    return _csv(file, names, whole(given), "\t" if self.path.lower().endswith(".tsv") else ",")


def new_columns(into: str, acceptance: Acceptance) -> list[str]:
    """The names of the new columns.

    Raises:
        SettingsError: Two of them have one name.
    """
    names = [name for name, _ in columns(UNSENT, into, acceptance)]
    if into in names[1:]:
        raise SettingsError(
            f"{into!r} is the name of another new column: name the one of the answers, e.g. --into reply (in Python: into=)"
        )
    return names


def columns(told: Told, into: str, acceptance: Acceptance) -> list[tuple[str, Any]]:
    """The new columns of a row and their values."""
    found = [(into, told.value), (ERROR, told.error)]
    if acceptance.schema is not None:
        found.append((f"{into}_text", told.text))
    if acceptance.cut_off == KEEP:
        found.append((FINISH, told.finish))
    return found


def _csv(file: BinaryIO, names: list[str], rows: Iterator[dict[str, Any]], separator: str) -> int:
    count, text = 0, io.TextIOWrapper(file, "utf-8", "replace", newline="")
    writer = csv.writer(text, delimiter=separator, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in names])
        count += 1
    text.detach()
    return count


def _cell(value: Any) -> Any:
    """A value in a CSV file: lists and objects as JSON, nothing for a missing value."""
    if is_missing(value):
        return ""
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else value


def _parquet(file: BinaryIO, rows: Iterator[dict[str, Any]], is_vectors: Callable[[str], bool]) -> int:
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    tables = []
    while chunk := list(islice(rows, CHUNK)):
        names = dict.fromkeys(name for row in chunk for name in row)
        columns = {name: (Vectors if is_vectors(name) else list)(row.get(name) for row in chunk) for name in names}
        tables.append(arrow.table({name: arrow_column(values) for name, values in columns.items()}))
    for name in dict.fromkeys(name for table in tables for name in table.column_names):
        kinds = [arrow.schema([table.schema.field(name)]) for table in tables if name in table.column_names]
        try:
            parquet.ParquetWriter(io.BytesIO(), arrow.unify_schemas(kinds, promote_options="permissive")).close()
        except arrow.ArrowException:  # no common type, or one that Parquet does not have: objects without fields
            tables = [_as_text(arrow, table, name) for table in tables]
    whole = arrow.concat_tables(tables, promote_options="permissive")
    parquet.write_table(whole, file)
    return int(whole.num_rows)


def _as_text(arrow: Any, table: Any, name: str) -> Any:
    """The table with the JSON of a column."""
    if name not in table.column_names:
        return table
    texts = list(map(as_text, table[name].to_pylist()))
    return table.set_column(table.column_names.index(name), name, arrow.array(texts, arrow.string()))


class RecordedAnswers:
    """The answers in the output of a run, by the id of the request; the last record of an id holds.

    Attributes:
        vectors: Whether any that was read is a vector.
    """

    def __init__(self, path: str | os.PathLike[str], acceptance: Acceptance) -> None:
        self.vectors = False
        self._acceptance = acceptance
        self._file = open(path, "rb") if os.path.exists(path) else io.BytesIO()  # noqa: SIM115
        self._at: dict[str, int] = {}  # memory has the places alone
        at = 0
        for raw in self._file:
            self._at[str(json.loads(raw)["custom_id"])] = at
            at += len(raw)

    def of(self, custom_id: str | int | None) -> Told:
        """The answer, or the error."""
        at = self._at.get(str(custom_id))
        if at is None:
            return UNSENT
        self._file.seek(at)
        told = self._acceptance.told(json.loads(self._file.readline()))
        self.vectors |= isinstance(told.value, list) and self._acceptance.schema is None
        return told

    def close(self) -> None:
        """Close the output."""
        self._file.close()
