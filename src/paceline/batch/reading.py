"""The rows of an input: of a table, an array, lines of JSON or of text, plain or compressed."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, cast
from unicodedata import normalize
from zipfile import BadZipFile, ZipFile

from paceline.batch.requests import BadLineError, decode
from paceline.core.results import SettingsError, explaining
from paceline.data.frames import is_missing, require_unique

PROMPTS: Final = ("prompt", "messages")
"""The columns that are taken for the prompt if none is named."""

IDS: Final = ("custom_id", "id", "key", "recordId")
"""The columns that are taken for the identity of a row if none is named."""

ENVELOPES: Final = ("body", "modelInput")
"""The field with the body of a request: of Mistral's and Together's batches, which name no URL, and of Bedrock's (2026-11)."""

BODIES: Final = {"messages": "/v1/chat/completions", "contents": "", "input": "/v1/responses"}
"""The field by which the body of a request is recognised, and its path."""

_GZIP, _ZSTD, _PARQUET, _ARROW, _ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1", b"ARRO", b"PK\x03\x04"
_XLS = b"\xd0\xcf\x11\xe0"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_NO_TEXT: Final = (_GZIP, _ZSTD, _PARQUET, _ZIP, _XLS)
_UTF8: Final = "utf-8-sig"

_SEPARATORS: Final = {".tsv": "\t", ".tab": "\t"}
OF_TABLES: Final = frozenset((".csv", *_SEPARATORS))

HEADERS: Final = frozenset((*PROMPTS, *IDS, "model", "text", "question", "query", "input", "instruction"))
"""Names of columns. A first line of one of them alone is the header of a table, and no prompt."""

LOOKED_AT: Final = 20
"""The lines by which a table is told from lines of prompts, where the name of the input does not tell."""

NAME_MAX, NAME_WORDS = 40, 4
"""The most characters and words of what may be the name of a column there; more are a sentence."""
_Rows = Iterator[Mapping[str, Any]]
_decoder, _SOLID = json.JSONDecoder(), re.compile(r"\S")
_FIELD: Final = 2**31 - 1
"""The longest field of a table that the module csv takes on every system. Its own limit is shorter than a long prompt."""
_ELSEWHERE: Final = "; set TMPDIR to a folder with room"
"""What to do if a temporary file cannot be written."""


OF_JSON: Final = (".jsonl", ".ndjson", ".json")
"""The ends of the names of inputs that are no tables."""

_GOES_ON: Final = re.compile(r'[\[\s]*("|\{\s*("|$)|$)')
"""The beginning of an array or an object whose first line is no whole value."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What is known of an input before it is read.

    Attributes:
        fields: The fields of a row that the user has named.
        header: Whether the first line of a table has the names of its columns.
        lines: Whether each line is a prompt, even if it looks like a row or like JSON.
        cut: How those lines of JSON begin that are left out if their end is missing: a full disk has cut them, or a kill. ``None``
            for an input that has no such lines.
    """

    fields: frozenset[str] = frozenset()
    header: bool = True
    lines: bool = False
    cut: str | None = None


class Damaged(dict[str, Any]):
    """What there is of a row that cannot be read.

    Attributes:
        problem: Why. It quotes no value.
    """

    def __init__(self, problem: str, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(fields or {})
        self.problem = problem


@contextmanager
def read_rows(path: str, *, cut: str | None = None) -> Iterator[_Rows]:
    """The rows of a file in any of these forms.

    Args:
        path: The file.
        cut: How those lines of JSON begin that are left out if their end is missing: a full disk has cut them, or a kill. Given for a log,
            in which a damaged row is an error.

    Raises:
        SettingsError: The file cannot be read, or is damaged.
    """
    with named_in_errors(path), Path(path).open("rb") as file, ExitStack() as opened:
        _, _, rows = rows_in(opened, file, path, Layout(cut=cut))
        yield rows if cut is None else map(_require_sound, rows)


def _require_sound(row: Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(row, Damaged):
        raise ValueError(row.problem)  # noqa: TRY004  (it is explained as what the input is)
    return row


@contextmanager
def named_in_errors(name: str, hint: str = "") -> Iterator[None]:
    """Name the input in what its readers raise; ``hint``: what to do if it was meant to be no JSON, after a semicolon."""
    try:
        yield
    except SettingsError:
        raise
    except (EOFError, OSError, csv.Error, UnicodeError, ValueError, BadZipFile) as error:
        reason = str(error) or type(error).__name__
        if isinstance(error, UnicodeError):
            reason = f"not UTF-8: convert it, e.g. iconv -f WINDOWS-1252 -t UTF-8 {name}"
        reason += hint if isinstance(error, json.JSONDecodeError) else ""
        raise SettingsError(f"{name}: it cannot be read: {reason}") from None
    except RecursionError:
        raise SettingsError(f"{name}: it cannot be read: nested too deeply") from None


def beginning(file: BinaryIO) -> bytes:
    """The first bytes of a file, which is read from its first on afterwards."""
    head = file.read(4)
    file.seek(0)
    return head


def is_utf8(head: bytes) -> bool:
    """Whether an input with these first bytes is text in UTF-8, and not packed."""
    return not head.startswith(_NO_TEXT) and _encoding(head) == _UTF8


def _encoding(head: bytes) -> str:
    """The encoding of a text with these first bytes. UTF-16 may have no mark: then its first characters have a NUL each, as no text has."""
    if head.startswith(_UTF16):
        return "utf-16"
    match [byte == 0 for byte in head]:
        case [False, True, False, True]:
            return "utf-16-le"
        case [True, False, True, False]:
            return "utf-16-be"
    return _UTF8


def _unpacked(opened: ExitStack, file: BinaryIO) -> tuple[BinaryIO, str]:
    """The content of a file, and the word for its compression."""
    head = beginning(file)
    if not head.startswith((_GZIP, _ZSTD)):
        return file, ""
    is_gzip, content = head.startswith(_GZIP), opened.enter_context(temporary())
    with cast("BinaryIO", gzip.GzipFile(fileobj=file)) if is_gzip else _zstd(file) as packed:
        shutil.copyfileobj(packed, content, 2**20)
    content.seek(0)
    return content, "gzip, " if is_gzip else "zstd, "


class _Temporary(io.FileIO):
    """A temporary file. If its folder has no room, that is no error of the input that is copied to it."""

    def write(self, data: Any, /) -> int:
        with writing_temporary():
            return super().write(data)


def writing_temporary() -> AbstractContextManager[None]:
    """Explain that a temporary file cannot be written in the block: by its folder, not by the input."""
    return explaining(f"a temporary file in {tempfile.gettempdir()} cannot be written", _ELSEWHERE)


def temporary() -> BinaryIO:
    """A temporary file, which can be read twice.

    Raises:
        SettingsError: It cannot be made. Each later write that does not succeed raises one, too.
    """
    with explaining("no temporary file can be made", _ELSEWHERE), tempfile.TemporaryFile() as file:
        raw = _Temporary(os.dup(file.fileno()), "r+b")  # which stays open when the block closes its own
    return cast("BinaryIO", io.BufferedRandom(raw))


def _zstd(file: BinaryIO) -> BinaryIO:
    for module in ("compression.zstd", "backports.zstd"):
        try:
            return cast("BinaryIO", import_module(module).ZstdFile(file))
        except ImportError:
            continue
    raise SettingsError("it is compressed by zstd, which this Python does not read: pip install backports.zstd")


def rows_in(opened: ExitStack, file: BinaryIO, name: str, layout: Layout) -> tuple[str, str, _Rows]:
    """The word for the compression of a file, what its rows are written in, and the rows."""
    content, packed = _unpacked(opened, file)
    head = beginning(content)
    for begin, kind, read in _BINARY:
        if head.startswith(begin):
            return packed, kind, read(content, name, layout)
    text = io.TextIOWrapper(content, _encoding(head), newline="")
    opened.callback(text.detach)  # the file is read again for a table of answers
    if layout.lines:
        return packed, "lines of text", _prompts(text)
    return packed, *(_json_in(text, name, layout) or _table_in(text, name, layout))


def _json_in(text: io.TextIOWrapper, name: str, layout: Layout) -> tuple[str, _Rows] | None:
    """The rows of a text that is JSON; ``None`` for another one."""
    first, end = "".join(_first_lines(text, 1)).lstrip()[:1], end_of(name)
    is_json = first in ("[", "{") and (end in OF_JSON or layout.cut is not None or _begins_json(text))
    if is_json and first == "[":
        return "a JSON array", map(_row, _array(text))
    if is_json:
        return _objects(text, layout)
    if first == '"' and end in OF_JSON:
        return "JSON lines", _one_a_line(text, layout.cut)
    return None


def _table_in(text: io.TextIOWrapper, name: str, layout: Layout) -> tuple[str, _Rows]:
    """The rows of a table, or the lines of a text that is none."""
    end, begin = end_of(name), text.readline()
    text.seek(0)
    separator = _SEPARATORS.get(end) or max(",\t;", key=begin.count)
    csv.field_size_limit(_FIELD)  # of the process; it stays, because another thread may read a table, too
    # With tabs it is what Excel calls Unicode text.
    is_named = end in OF_TABLES or end in OF_JSON
    if "\t" not in begin if end == ".txt" else not (is_named or _is_table(text, separator, layout)):
        if end != ".txt" and all(_is_json(line, str) for line in _first_lines(text)):  # as jq writes texts
            return "JSON lines", _one_a_line(text, layout.cut)
        return "lines of text", _prompts(text)
    names = None
    if not layout.header:
        names = [f"column{number}" for number, _ in enumerate(next(csv.reader(text, delimiter=separator), ()), 1)]
        text.seek(0)
    return "a table", _table(csv.DictReader(text, names, delimiter=separator, strict=True), name)


def end_of(name: str) -> str:
    """The end of the name of an input, ``.csv`` of ``rows.csv.gz``."""
    return Path(name.removesuffix(".gz").removesuffix(".zst")).suffix.lower()


def _begins_json(text: io.TextIOWrapper) -> bool:
    """Whether an input that begins with a bracket is JSON, damaged or not, and no text such as ``[INST] Why?``."""
    line = "".join(_first_lines(text, 1)).strip()
    try:
        _, at = _decoder.raw_decode(line)
    except (ValueError, RecursionError):
        return _GOES_ON.match(line) is not None
    return line[at:].lstrip()[:1] in ("", "{", "[", ",")


def _first_lines(text: io.TextIOWrapper, most: int = LOOKED_AT) -> list[str]:
    """The first lines that are not blank."""
    begin = list(islice((line for line in text if line.strip()), most))
    text.seek(0)
    return begin


def _prompts(text: io.TextIOWrapper) -> _Rows:
    return ({"prompt": line.strip()} for line in text if line.strip())


def _is_table(text: io.TextIOWrapper, separator: str, layout: Layout) -> bool:
    """Whether text is a table, and no lines of prompts, where it has no name that ends with what it is: on standard input, for example.

    In doubt it is one: then nothing is sent before the user has named a column. A table taken for prompts would be paid.
    """
    if not layout.header:
        return True
    begin = _first_lines(text)
    try:
        header, *rows = csv.reader(begin, delimiter=separator)
    except (csv.Error, ValueError):  # there is no line
        return False
    names = [name.strip() for name in header]
    if layout.fields:
        return not layout.fields <= {"prompt"} or "prompt" in names
    if len(names) == 1:
        return names[0].casefold() in HEADERS
    rows = rows[:-1] if len(begin) == LOOKED_AT else rows  # the last one may go on
    return all(map(may_be_name, names)) and bool(rows) and {len(row) for row in rows} == {len(names)}


def may_be_name(text: str) -> bool:
    """Whether a text may be the name of a column, and no prompt."""
    return 0 < len(text) <= NAME_MAX and len(text.split()) <= NAME_WORDS and normalize("NFKC", text)[-1] not in ".?!:。"


def _are_lines(begin: list[str], layout: Layout) -> bool:
    """Whether each line is an object, by the first two."""
    cut = layout.cut
    try:
        are_lines = cut is not None or len(begin) == 2 or not _is_of_rows(_decoder.decode(begin[0]), layout.fields)
        if cut is None or not begin[0].startswith(cut):
            _decoder.decode(begin[0])
    except ValueError:
        return cut is None and len(begin) == 2 and _is_broken(begin[0]) and _is_json(begin[1], dict)
    return are_lines


def _objects(text: io.TextIOWrapper, layout: Layout) -> tuple[str, _Rows]:
    """Objects, one in a line or over several; or one that holds them all.

    It has a list of them, as ``{"requests": [...]}`` of Anthropic's batches, or rows by their identity, ``{"1": {"question": ...}, "2": ...}``. An
    object with a field that was named is a row. A log, for which ``cut`` is given, has an object of its own form that holds lists.
    """
    cut, told = layout.cut, layout.fields
    if _are_lines(_first_lines(text, 2), layout):
        return "JSON lines", _one_a_line(text, cut)
    values = _in_turn(text.read())
    if cut is None and len(values) == 1 and _is_of_rows(values[0], told):
        if _is_keyed(values[0]):
            return "an object of rows", ({"id": key, **row} for key, row in values[0].items())
        return "a JSON array", map(_row, next(one for one in values[0].values() if isinstance(one, list)))
    return "JSON objects", map(_row, values)


def _one_a_line(text: io.TextIOWrapper, cut: str | None) -> _Rows:
    """The JSON object of each line, without those that begin with ``cut`` and do not end."""
    for number, line in enumerate(text, 1):
        if line.strip():
            try:
                yield _row(_decoder.decode(line.strip()) if cut is None else decode(line.encode()))
            except (ValueError, RecursionError) as error:
                why = "nested too deeply" if isinstance(error, RecursionError) else getattr(error, "msg", error)
                yield Damaged(f"it is not JSON: {why}")
            except BadLineError as error:
                if cut is not None and not line.startswith(cut):
                    raise ValueError(f"line {number} is {error}") from None


def _is_broken(line: str) -> bool:
    """Whether a line that is no JSON may be an object of one line, and not the beginning of one of several."""
    return not line.rstrip().endswith(("{", "[", ","))


def _is_json(line: str, kind: type) -> bool:
    try:
        return isinstance(_decoder.decode(line.strip()), kind)
    except ValueError:
        return False


def _is_of_rows(value: Any, told: frozenset[str]) -> bool:
    """Whether a value is an object that is no row, but has rows."""
    return isinstance(value, dict) and not told & value.keys() and (_is_holder(value) or _is_keyed(value))


def _is_holder(value: Mapping[str, Any]) -> bool:
    """Whether an object has a list of rows, and no field of a row."""
    if any(field in value for field in (*BODIES, *PROMPTS, *ENVELOPES, *IDS, "model", "request")):
        return False
    return len(lists_in(value)) == 1 == sum(isinstance(one, list) for one in value.values())


def lists_in(row: Mapping[str, Any]) -> list[str]:
    """The fields with lists of objects."""
    return [
        name
        for name, value in row.items()
        if isinstance(value, list) and value and all(isinstance(one, dict) for one in value)
    ]


def _is_keyed(value: Mapping[str, Any]) -> bool:
    """Whether all values of an object are rows: objects with the same fields."""
    rows = list(value.values())
    return len(rows) > 1 and all(isinstance(row, dict) and row.keys() == rows[0].keys() != set() for row in rows)


def _in_turn(text: str) -> list[Any]:
    """Values of JSON one after the other, over any number of lines."""
    values, at = [], 0
    while (found := _SOLID.search(text, at)) is not None:
        value, at = _decoder.raw_decode(text, found.start())
        values.append(value)
    return values


def _array(text: io.TextIOWrapper) -> list[Any]:
    whole = text.read().rstrip()
    items = whole.removesuffix("]").rstrip()
    if items.endswith(",") and whole.endswith("]"):  # after the last one, as in Helicone's export
        whole = f"{items[:-1]}]"
    values = json.loads(whole)
    if not isinstance(values, list):
        raise ValueError("it must be an array")  # noqa: TRY004  (it is explained as what the input is)
    return values


def _row(value: Any) -> Mapping[str, Any]:
    """A row; a text is a prompt."""
    if isinstance(value, str):
        return {"prompt": value}
    if not isinstance(value, dict):
        return Damaged(f"it is a {type(value).__name__}: it must be an object, or a text")
    return value


def _table(reader: csv.DictReader[str], name: str) -> _Rows:
    require_unique(reader.fieldnames or (), name)
    try:
        for row in reader:
            if None in row or None in row.values():
                more: Any = row.pop(None, ())
                found = sum(value is not None for value in row.values()) + len(more)
                remedy = f": put a value with {reader.reader.dialect.delimiter!r} in it into quotes" if more else ""
                yield Damaged(f"it has {found} fields, and the table has {len(row)} columns{remedy}", row)
            else:
                yield row
    except csv.Error as error:
        number = reader.reader.line_num  # the reader's own number is the last row's
        raise csv.Error(f"line {number}: {error}") from None


def _excel(file: BinaryIO, name: str, layout: Layout) -> _Rows:
    """The rows of the first sheet, without those that are empty."""
    old = beginning(file) == _XLS
    if not old and not any(part.startswith("xl/") for part in ZipFile(file).namelist()):
        raise SettingsError(f"{name}: it is a zip file, which is not read: extract it first")
    file.seek(0)
    reader = "xlrd" if old else "openpyxl"
    try:
        frame = import_module("pandas").read_excel(file, header=0 if layout.header else None, dtype=object)
    except ImportError as error:
        text = f"{name}: an Excel file needs pandas and {reader}: pip install pandas {reader}"
        raise SettingsError(f"{text} ({error})") from None
    if not layout.header:
        frame.columns = [f"column{number}" for number in range(1, len(frame.columns) + 1)]
    for row in frame.to_dict("records"):
        if not all(map(is_missing, row.values())):
            yield {str(field): None if is_missing(value) else value for field, value in row.items()}


def _pyarrow(module: str, kind: str) -> Any:
    try:
        return import_module(f"pyarrow.{module}")
    except ImportError:
        raise SettingsError(f"it is {kind} file: pip install pyarrow") from None


def _arrow(file: BinaryIO, name: str, _: Layout) -> _Rows:
    reader = _pyarrow("ipc", "an Arrow").open_file(file)
    require_unique(reader.schema.names, name)
    for number in range(reader.num_record_batches):
        yield from reader.get_batch(number).to_pylist()


def _parquet(file: BinaryIO, name: str, _: Layout) -> _Rows:
    content = _pyarrow("parquet", "a Parquet").ParquetFile(file)
    require_unique(content.schema_arrow.names, name)
    for batch in content.iter_batches(1_000):
        yield from batch.to_pylist()


_BINARY: Final[tuple[tuple[tuple[bytes, ...], str, Callable[[BinaryIO, str, Layout], _Rows]], ...]] = (
    ((_PARQUET,), "Parquet", _parquet),
    ((_ARROW,), "Arrow", _arrow),
    ((_ZIP, _XLS), "Excel, its first sheet", _excel),
)
"""Files that are no text: how they begin, what they are, and what reads their rows."""
