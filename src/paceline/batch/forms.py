"""Inputs in other forms than lines of requests: tables, arrays, prompts and bodies, plain or compressed.

:func:`as_lines` makes lines of requests of them, in a temporary file. An input of such lines is read as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from shlex import quote
from string import Formatter
from typing import Any, BinaryIO, Final, NamedTuple, cast

from paceline.batch import reading
from paceline.batch.acceptance import require_schema
from paceline.batch.caller import Caller, Command
from paceline.batch.files import add, files_in
from paceline.batch.identity import Ids, is_blank
from paceline.batch.requests import INVALID, LINE_MAX, BadLineError, Source, decode, read_lines, request_of
from paceline.core.hints import did_you_mean, may_be_shown, shown_names
from paceline.core.results import SettingsError, explaining
from paceline.data.frames import is_missing, plain
from paceline.providers.embeddings import answers, embedder, embeds
from paceline.providers.registry import maker, method_path, output_limit, provider_named

Row = Mapping[str, Any]
"""A row of an input, or the fields of an object in it."""

TASKS: Final = "embed", "chat"
"""What can be asked of a model for each row."""

ANSWER_TOKENS: Final = 4_096
"""The maximum output of a request to Anthropic, which requires one, if none is given."""


@dataclass(frozen=True, slots=True)
class Form:
    """How rows become requests.

    Attributes:
        model: The model of rows that name none.
        column: The column of the prompts, texts or lists of messages; ``prompt`` or ``messages`` if none is given.
        template: The prompt, with the columns of a row in braces: ``Translate into French: {text}``.
        key: The column with the identity of a row; ``custom_id``, ``id`` or ``key`` if none is given, and else its number and content.
        max_tokens: The maximum output of an answer.
        provider: The provider whose API is used; by the model if none is given.
        schema: The JSON schema of the answers.
        files: The columns with the paths of images and PDF files.
        header: Whether the first line of a table has the names of its columns. Else they are ``column1``, ``column2`` and so on.
        task: What is asked of the model: ``embed`` for vectors, ``chat`` for answers; by the name of the model if it is not given.
        lines: Whether each line of the input is a prompt.
        caller: How the user has given all of this, for messages.
    """

    model: str | None = None
    column: str | None = None
    template: str | None = None
    key: str | None = None
    max_tokens: int | None = None
    provider: str | None = None
    schema: Mapping[str, Any] | None = None
    files: tuple[str, ...] = ()
    header: bool = True
    task: str | None = None
    lines: bool = False
    caller: Caller = field(default_factory=Command)

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        if self.task not in (None, *TASKS):
            raise SettingsError(f"task is {self.task!r}: it must be one of {', '.join(TASKS)}")
        if self.column is not None and self.template is not None:
            raise SettingsError("--column and --template exclude each other: both say what the prompt is")
        if self.lines and not (self.header and self.column is None):
            raise SettingsError(
                "--lines excludes --column and --no-header: each line is a prompt, and no row of a table"
            )

    @property
    def is_plain(self) -> bool:
        """Whether it says nothing about rows."""
        told = self.model, self.column, self.template, self.key, self.max_tokens, self.schema, self.files, self.task
        return self.header and not self.lines and not any(told)

    @property
    def fields(self) -> set[str]:
        """The fields of a row that it names."""
        named = {self.column, self.key, *self.files}
        if self.template is not None:
            named |= _Template(self.template).columns
        return {name for name in named if name is not None}

    @property
    def layout(self) -> reading.Layout:
        """What it says about the input."""
        return reading.Layout(frozenset(self.fields), self.header, self.lines)


def schema_at(path: str | None) -> Mapping[str, Any] | None:
    """The JSON schema in a file; ``None`` without one.

    Raises:
        SettingsError: It cannot be read, or has none, or jsonschema is missing.
    """
    if path is None:
        return None
    with explaining(f"schema {path}: it cannot be read"), explaining(f"schema {path}: it is not JSON", of=ValueError):
        found = json.loads(Path(path).read_bytes())
    if not isinstance(found, dict):
        raise SettingsError(f'schema {path}: it must be an object, e.g. {{"type": "object", "properties": {{...}}}}')
    require_schema(found, f"schema {path}")
    return found


class UnknownFormError(SettingsError):
    """The input is in no form that can be read. The message names its columns, and no value."""


def as_lines(file: BinaryIO, name: str, form: Form) -> Source:
    """The input as lines of requests. The line of a row that cannot be sent says why, in the field ``INVALID``.

    Args:
        file: The input, which can be read twice.
        name: Its path, for messages and for what its end tells.
        form: How rows become requests.

    Raises:
        UnknownFormError: The form is not known, or does not say what the prompt or the model is.
        SettingsError: A package is missing that reads this form, or the input is damaged.
    """
    if reading.is_utf8(reading.beginning(file)) and _is_of_requests(file, form):
        _require_plain(form, name)
        return Source(file, form.provider)
    with ExitStack() as made:
        spool = made.enter_context(reading.temporary())
        with reading.named_in_errors(name, _hint(name, form)), ExitStack() as opened:
            kind, maker = _write(spool, opened, file, name, form)
        spool.seek(0)
        made.pop_all()
    shown = f"{name}: {kind}, {maker.shown}{maker.ids.told()}"
    return Source(spool, form.provider, of_rows=True, strict=maker.ready, recognised=shown, is_of=maker.ids.is_of)


def _hint(name: str, form: Form) -> str:
    """What to do if the lines of a damaged input were meant to be prompts."""
    if form.lines or not isinstance(form.caller, Command) or name.lower().endswith(reading.OF_JSON):
        return ""
    return f"; if each line is a prompt, {form.caller.again(name, lines=True)}"


def _require_plain(form: Form, name: str) -> None:
    if not form.is_plain:
        names = "model", "column", "template", "key", "task", "max_tokens", "schema", "files"
        *others, last = map(form.caller.option, names)
        raise SettingsError(f"{name}: its lines are whole requests: leave out {', '.join(others)} and {last}")


def _write(spool: BinaryIO, opened: ExitStack, file: BinaryIO, name: str, form: Form) -> tuple[str, _Maker]:
    """Write the lines of requests; return what the rows are written in, and how they became requests."""
    packed, kind, rows = reading.rows_in(opened, file, name, form.layout)
    first = list(islice(rows, SAMPLE))
    if not first:
        header = ", or a header alone" if kind == "a table" and form.header else ""
        raise UnknownFormError(f"{name}: there is nothing in it{header}")
    maker = opened.enter_context(_maker(first, form, name, kind, Path(name).parent))
    spool.writelines(made.line for made in maker.lines(chain(first, rows)))
    return packed + kind, maker


@contextmanager
def identified(
    file: BinaryIO, name: str, form: Form, lines: Source
) -> Iterator[Iterator[tuple[str | int | None, Row]]]:
    """The rows of an input, each with the id of its request in ``lines``; of a request, the id alone.

    A row that was added meanwhile has no id.

    Raises:
        SettingsError: While they are read: a row has changed.
    """
    file.seek(0)
    lines.file.seek(0)
    if not lines.of_rows:
        yield ((custom_id, {"custom_id": custom_id}) for custom_id in (_id_in(raw) for _, raw in lines.lines()))
        return
    with ExitStack() as opened:
        _, _, rows = reading.rows_in(opened, file, name, form.layout)
        pairs = enumerate(zip(chain(read_lines(lines.file), repeat((0, None))), rows, strict=False), 1)
        yield (_paired(number, raw, row, lines) for number, ((_, raw), row) in pairs if lines.shard.has(number))


def _paired(number: int, raw: bytes | None, row: Row, lines: Source) -> tuple[str | int | None, Row]:
    custom_id = _id_in(raw)
    if raw is not None and not lines.is_of(custom_id, number, row):
        raise SettingsError(f"row {number} of the input has changed meanwhile")
    return custom_id, row


def _id_in(raw: bytes | None) -> str | int | None:
    try:
        return cast("str | int | None", decode(raw).get("custom_id"))
    except BadLineError:
        return None


def lines_of(rows: Sequence[Row], form: Form, name: str, folder: str = "") -> tuple[list[Made], str, bool]:
    """The lines of requests of rows in memory; see :func:`as_lines`. ``folder``: where relative paths may begin, too.

    Returns:
        The lines, a remark about their ids, and whether they were requests already.
    """
    if not rows:
        return [], "", False
    with _maker(rows, form, name, _IN_MEMORY, Path(folder)) as maker:
        made, told = list(maker.lines(rows)), maker.ids.told().strip(" ()")
    return made, told and f"{name}: {told}", maker.ready


def _is_of_requests(file: BinaryIO, form: Form) -> bool:
    """Whether the first line is a request, or looks like one: then its faults are reported as faults of a request.

    Where ``form`` tells something about rows, only a line with the body of a request is one: rows have an ``url``, too.
    """
    try:
        line = next((raw for _, raw in read_lines(file)), b"") or b""
        value = decode(line)
    except BadLineError:
        first = line.lstrip()[:1]
        # A line of JSON with a mistake in it
        return form.is_plain and first == b"{" and not line.rstrip().endswith((b"{", b"["))
    finally:
        file.seek(0)
    if value and _envelope(value) is not None:
        return False
    if value and not form.is_plain:
        return _is_whole(value)
    of_requests, of_rows = {"body", "params", "url", "custom_id"}, {"request", "prompt", "messages"}
    return not value or not (of_requests.isdisjoint(value) or of_rows & value.keys())


def _envelope(row: Row) -> Row | None:
    """The body of a request that has no URL."""
    bodies = (row.get(field) for field in reading.ENVELOPES)
    return next((body for body in bodies if isinstance(body, Mapping)), None) if "url" not in row else None


def _is_whole(row: Row) -> bool:
    """Whether a row has the body of a request with its other fields."""
    return any(isinstance(row.get(name), Mapping) for name in ("body", "params"))


_IN_MEMORY: Final = "a table in memory"

SAMPLE: Final = 1_000
"""The rows of a file by which its form is recognised, and its columns are known: in JSON lines not every row has each of them."""

_Make = Callable[[Row], dict[str, Any]]
"""Makes the line of a request of a row; without its id, if the row is no whole request.

Raises:
    KeyError: The row has no such column.
    TypeError: The row cannot be sent. The message says why, and quotes no value that may be a prompt.
"""


class Made(NamedTuple):
    """The line of a request, with its id."""

    custom_id: str | int
    line: bytes


@dataclass(frozen=True, slots=True)
class _Maker:
    """How each row becomes the line of a request, and that in words."""

    make: _Make
    shown: str
    ids: Ids
    ready: bool = False

    def lines(self, rows: Iterable[Row]) -> Iterator[Made]:
        """The lines of rows."""
        for number, row in enumerate(rows, 1):
            try:
                if isinstance(row, reading.Damaged):
                    raise TypeError(row.problem)  # noqa: TRY301
                made = self.make(row)
                if "custom_id" not in made:
                    made = {"custom_id": self.ids(number, row), **made}
                line = json.dumps(made).encode("ascii") + b"\n"
                if len(line) > LINE_MAX:
                    raise TypeError(f"its request is longer than {LINE_MAX // 2**20} MB")  # noqa: TRY301
                yield Made(made["custom_id"], line)
                continue
            except KeyError as error:
                problem = f"it has no {error.args[0]!r}: its fields are {shown_names(row)}"
            except (TypeError, BadLineError, RecursionError) as error:
                problem = str(error)
            custom_id = self.ids.of_refused(number, row)
            line = json.dumps({"custom_id": custom_id, INVALID: problem}).encode("ascii") + b"\n"
            yield Made(custom_id, line)


@contextmanager
def _maker(rows: Sequence[Row], form: Form, name: str, kind: str, folder: Path) -> Iterator[_Maker]:
    """How each row becomes a line, as the first ones show.

    Raises:
        UnknownFormError: They do not show it.
    """
    sound = [row for row in rows if not isinstance(row, reading.Damaged)]
    if not sound:
        raise UnknownFormError(f"{name}: row 1: {cast('reading.Damaged', rows[0]).problem}")
    shape: dict[str, Any] = {}
    for row in sound:
        shape |= {key: value for key, value in row.items() if key not in shape or is_missing(shape[key])}
    is_told = form.column is not None or form.template is not None
    prompt = None if is_told else _column(shape, form, kind)
    key = form.key or next((one for one in reading.IDS if one in shape and one != prompt), None)
    by = f"identified by {key!r}" if key else "identified by its number and content"
    found = None if is_told else _requests(shape, form, name, by)
    make, shown, ready = found or _asking(shape, form, name, kind, by)
    with closing(Ids(key, required=ready or form.key is not None, caller=form.caller)) as ids:
        yield _Maker(_with_files(make, form, folder), shown, ids, ready)


def _requests(row: Row, form: Form, name: str, by: str) -> tuple[_Make, str, bool] | None:
    """How rows that are requests already become lines; ``None`` if this one is none.

    Returns:
        What makes a line, that in words, and whether the rows are of a file for a Batch API.
    """
    if (envelope := _envelope(row)) is not None:
        _require_own(form, name)
        _require_model(envelope, form, name)
        return partial(_enveloped, form), f"bodies of requests, {by}", True
    if "custom_id" in row and _is_whole(row):
        _require_plain(form, name)
        return dict, "whole requests", True
    if "custom_id" in row and "url" in row and str(row.get("body")).startswith("{"):  # a table with the body as JSON
        return lambda row: {**row, "body": decode(str(row["body"]).encode())}, "whole requests", True
    if isinstance(row.get("request"), Mapping):
        _require_own(form, name)
        _require_model(row["request"], form, name)
        return partial(_gemini, form), f"requests of Gemini's Batch API, {by}", True
    field = next((field for field in reading.BODIES if field in row), None)
    if field is not None and (field == "contents" or "model" in row):
        _require_own(form, name)
        return partial(_bodies, form, field), f"bodies of requests, {by}", False
    return None


def _asking(row: Row, form: Form, name: str, kind: str, by: str) -> tuple[_Make, str, bool]:
    """How rows with prompts become lines, as this one shows; as for :func:`_requests`."""
    prompt, shown = _prompt(row, form, kind)
    model = form.model or ("{model}" if "model" in row else None)
    if prompt is None or model is None or form.fields - row.keys():
        raise UnknownFormError(_unknown(row, form, name, kind))

    def line(row: Row) -> dict[str, Any]:
        model, said = _model(form.model or row["model"]), prompt(row)
        if form.task is None and not answers(model):
            raise (SettingsError if form.model else TypeError)(_no_answers(model, form))
        if form.task == "embed" or (form.task is None and embeds(model)):
            return _embedded(model, said, form)
        return _asked(model, _asked_in(said, form), form)

    return line, f"{shown} is the prompt of {form.model or 'its model'}, each {by}", False


def _model(model: Any) -> str:
    """The model of a row."""
    if is_blank(model) or not isinstance(model, str):
        wrong = "has no value" if is_blank(model) else f"is a {type(model).__name__}"
        raise TypeError(f"'model' {wrong}: name a model")
    return model


def _require_model(body: Row, form: Form, name: str) -> None:
    if not (form.model or body.get("model")):
        again = form.caller.again(name, model="gpt-6-luna")
        raise UnknownFormError(f"{name}: its requests name no model: give one, e.g. {again}")


def _asked_in(said: Any, form: Form) -> list[Any]:
    """The messages of a prompt.

    Raises:
        TypeError: It is none.
    """
    if isinstance(said, str):
        return [{"role": "user", "content": said}]
    messages = plain(said)
    wrong = [messages] if not isinstance(messages, list) else [one for one in messages if not isinstance(one, Mapping)]
    if wrong:
        kind = ("" if wrong[0] is messages else "list of ") + type(wrong[0]).__name__
        of_list = form.column and wrong[0] is not messages
        hint = f"; one of the list is {form.caller.option('template')} '{{{form.column}[0]}}'" if of_list else ""
        raise TypeError(f"its prompt is a {kind}: it must be a text, or a list of messages{hint}")
    if not messages:
        raise TypeError("its prompt is a list without a message")
    strange = next((one for one in messages if "role" not in one), None)
    if strange is not None:
        raise TypeError(f"a message of its prompt has the fields {shown_names(strange)}: it must have role and content")
    return [_without_none(one) for one in messages]


def _without_none(message: Row) -> dict[str, Any]:
    """A message without the fields that have no value: in a table, all messages have the fields of any."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [_without_none(one) if isinstance(one, Mapping) else one for one in content]
        message = {**message, "content": parts}
    return {name: value for name, value in message.items() if value is not None or name == "content"}


def _require_own(form: Form, name: str) -> None:
    """Refuse what would be part of bodies that the input has."""
    if form.max_tokens or form.schema is not None:
        options = f"{form.caller.option('max_tokens')} and {form.caller.option('schema')}"
        raise SettingsError(f"{name}: it has bodies of requests: leave out {options}, or write them in each body")


def _with_files(make: _Make, form: Form, folder: Path) -> _Make:
    """Add the files of a row to its request; ``folder``: where relative paths may begin, too."""
    if not form.files:
        return make

    def line(row: Row) -> dict[str, Any]:
        made = make(row)
        # A row that is no request gets no files: it is refused here.
        request_of(0, {"custom_id": 0, **made}, form.provider, anywhere=True)
        api = made["url"] if "body" in made else "/v1/messages"
        apis = {"/messages": "anthropic", ":generateContent": "gemini"}
        home = next((name for end, name in apis.items() if api.endswith(end)), "")
        add(made, files_in(row, form.files, home or _home(made["body"]["model"], form), folder))
        return made

    return line


def _column(row: Row, form: Form, kind: str) -> str | None:
    """The column of the prompts: the one that is named, or has such a name, or is the only one and no prompt itself."""
    names = [name for name in row if name.strip()]  # the index of a frame has none
    alone = len(names) == 1 and (kind != "a table" or reading.may_be_name(names[0].strip()))
    return form.column or next((one for one in reading.PROMPTS if one in row), names[0] if alone else None)


def _prompt(row: Row, form: Form, kind: str) -> tuple[Callable[[Row], Any] | None, str]:
    """What makes the prompt of a row, and the words for it."""
    if form.template is not None:
        return _Template(form.template), "the template"
    column = _column(row, form, kind)
    if column is None or column not in row:
        return None, ""

    def prompt(row: Row) -> Any:
        if is_blank(value := row[column]):
            raise TypeError(f"{column!r}, which is the prompt, has no value")
        return _messages(value) if column == "messages" else value

    return prompt, f"{column!r}"


def _messages(value: Any) -> Any:
    """The messages in a cell; in a CSV file they are JSON."""
    if not isinstance(value, str):
        return value
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise TypeError(
            "'messages' is a text that is no JSON array of messages: write them as JSON, or name a column of prompts"
        )
    return found


class _Template(Formatter):
    """Makes the prompt of a row.

    Attributes:
        columns: The columns that it names.

    Raises:
        SettingsError: The template cannot be read.
        KeyError: The row has no such column.
        TypeError: A value that the template names is missing, because its prompt would have the word None or nan, and be paid; or all
            of them are empty.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        with explaining(f"the template {text[:60]!r} cannot be read", f"; {_BRACES}", of=ValueError):
            fields = [name for _, name, _, _ in self.parse(text) if name is not None]
        self.columns = {re.split(r"[.[]", name)[0] for name in fields}
        if "" in self.columns:
            raise SettingsError(f"the template {text[:60]!r} has braces without the name of a column; {_BRACES}")

    def __call__(self, row: Row) -> str:
        if self.columns and all(name in row and is_blank(row[name]) for name in self.columns):
            names = ", ".join(map(repr, sorted(self.columns)))
            raise TypeError(f"{names}, which the template names, {'have' if ', ' in names else 'has'} no value")
        try:
            return self.vformat(self._text, (), row)
        except (ValueError, AttributeError, IndexError) as error:
            raise TypeError(f"the template does not fit: {error}; {_BRACES}") from None

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:  # noqa: ARG002
        """The value of a column; a number is the name of one, too."""
        value = kwargs[str(key)]
        if is_missing(value):
            raise TypeError(f"{key!r}, which the template names, has no value")
        return value


_BRACES: Final = "columns are in braces, and a brace of the text is written twice: {{ or }}"


def _unknown(row: Row, form: Form, name: str, kind: str) -> str:
    """What was recognised, and a call that would work."""
    fields = f"{name}: it is {kind} with the fields {shown_names(row)}"
    has_prompt, has_model = form.template is not None or _column(row, form, kind) in row, form.model or "model" in row
    changed = {"model": form.model or "gpt-6-luna"} if form.model or not has_model else {}
    if kind == "JSON objects" and not has_prompt and (lists := reading.lists_in(row)):
        return f"{fields}: to send the rows of a list in it, e.g. {_piped(row, form, name, lists[-1], changed)}"
    if absent := sorted(form.fields - row.keys()):
        return f"{fields}, and {_naming(row, form, absent[0])}"
    needed = {"the column of the prompts": has_prompt, "the model": has_model}
    way = f"name {' and '.join(what for what, is_there in needed.items() if not is_there)}"
    example = _prompts_in(row)
    if has_prompt or example is not None:
        changed |= {} if has_prompt else {"column": cast("str", example)}
        way = f"{way}, e.g. {form.caller.again(name, **changed)}"
    else:  # it may be a prompt
        way = f"{way} with {form.caller.option('column')}"
    return f"{fields}: {'; or, '.join([way, *_other_ways(form, name, kind, changed)])}"


def _prompts_in(row: Row) -> str | None:
    """A column that may have the prompts."""
    return next((one for one in row if may_be_shown(one) and one not in reading.IDS), None)


def _naming(row: Row, form: Form, absent: str) -> str:
    """Which option names a column that is not there."""
    options = {form.column: "column", form.key: "key"} | dict.fromkeys(form.files, "files")
    by = options.get(absent, "template")
    hint = did_you_mean(absent, (one for one in row if may_be_shown(one.strip())))
    return f"{form.caller.option(by)} names {absent!r}{f'; {_BRACES}' if by == 'template' else ''}{hint}"


def _piped(row: Row, form: Form, name: str, field: str, changed: Mapping[str, Any]) -> str:
    """A command that sends the rows of a list in this one."""
    first = next(iter(row[field][0]))
    return f"jq '.[\"{field}\"]' {quote(name)} | {form.caller.again('-', **changed, column=first)}"


def _other_ways(form: Form, name: str, kind: str, changed: Mapping[str, Any]) -> Iterator[str]:
    """How to send a table whose first line may be no header."""
    if kind != "a table" or not form.header or form.fields:
        return
    yield f"if its first line is no header, {form.caller.again(name, **{**changed, 'column': 'column1', 'no_header': True})}"
    if reading.end_of(name) not in reading.OF_TABLES:
        yield f"if each line is a prompt, {form.caller.again(name, lines=True)}"


def _gemini(form: Form, row: Row) -> dict[str, Any]:
    if not isinstance(row["request"], Mapping):
        raise TypeError(f"'request' is a {type(row['request']).__name__}: it must be an object")
    body = dict(row["request"])
    return _generate(_model(body.pop("model", None) or form.model), body)


def _enveloped(form: Form, row: Row) -> dict[str, Any]:
    body = {field: value for field, value in (_envelope(row) or {}).items() if field != "anthropic_version"}
    field = next((field for field in reading.BODIES if field in body), None)
    if field is None:
        raise TypeError(f"its body has none of the fields {', '.join(reading.BODIES)}, so that its URL is not known")
    return _bodies(form, field, body)


def _bodies(form: Form, field: str, row: Row) -> dict[str, Any]:
    body = {name: value for name, value in row.items() if name not in (*reading.IDS, "metadata", *form.files)}
    model = _model(form.model or body["model"])
    if field == "contents":
        body.pop("model", None)
        return _generate(model, body)
    path = "/v1/embeddings" if field == "input" and embeds(model) else reading.BODIES[field]
    if field == "messages" and _home(model, form) == "anthropic":
        path = "/v1/messages"
    return {"method": "POST", "url": path, "body": body | {"model": model}}


def _asked(model: str, messages: list[Any], form: Form) -> dict[str, Any]:
    """The line of a request with these messages, in the form of its provider."""
    home = _home(model, form)
    if home == "anthropic":
        params = {"model": model, "max_tokens": form.max_tokens or ANSWER_TOKENS, "messages": messages}
        if form.schema is not None:  # anthropic's SDK 2.11 (2026-11)
            params["output_config"] = {"format": {"type": "json_schema", "schema": form.schema}}
        return {"params": params}
    if home == "gemini" and all(isinstance(one.get("content"), str) for one in messages):
        roles = {"assistant": "model"}
        contents = [
            {"role": roles.get(one["role"], one["role"]), "parts": [{"text": one["content"]}]} for one in messages
        ]
        settings: dict[str, Any] = {"maxOutputTokens": form.max_tokens} if form.max_tokens else {}
        if form.schema is not None:  # google-genai 3.4 (2026-11)
            settings |= {"responseMimeType": "application/json", "responseJsonSchema": form.schema}
        return _generate(model, {"contents": contents, **({"generationConfig": settings} if settings else {})})
    body = {"model": model, "messages": messages, **({output_limit(home): form.max_tokens} if form.max_tokens else {})}
    if form.schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.schema}}
    return {"method": "POST", "url": "/v1/chat/completions", "body": body}


def _no_answers(model: str, form: Form) -> str:
    """Why a model gets no prompts of a table."""
    return (
        f"by its name, {model} doesn't answer prompts: write whole requests, such as"
        f' {{"custom_id": "a", "url": "/v1/...", "body": {{...}}}}; if it does answer them, {form.caller.option("task")} is \'chat\''
    )


def _embedded(model: str, text: Any, form: Form) -> dict[str, Any]:
    """The line of a row whose text is embedded; it may share a request with others."""
    if form.max_tokens or form.schema is not None or form.files:
        option = form.caller.option
        raise SettingsError(
            f"{model} makes vectors: leave out {option('max_tokens')}, {option('schema')} and {option('files')};"
            f" if it gives answers, {option('task')} is 'chat'"
        )
    if not isinstance(text, str) or not text:
        what = "empty" if text == "" else f"a {type(text).__name__}"
        raise TypeError(f"{model} makes vectors of texts, and its text is {what}")
    how = embedder(_home(model, form), model)
    path, body = how.api.alone(model, text, how.more)
    return {"method": "POST", "url": path, "body": body, "shares": True}


def _generate(model: str, body: dict[str, Any]) -> dict[str, Any]:
    model = model.removeprefix("models/")
    if "embedding" in model:
        raise TypeError(f"its model is {model}, and embeddings of Gemini's own API are not supported")
    return {"method": "POST", "url": method_path(model), "body": body}


def _home(model: str, form: Form) -> str:
    """The provider of a model."""
    return provider_named(form.provider).name if form.provider else maker(model) or ""
