"""Inputs in other forms than lines of requests: tables, arrays, prompts and bodies, plain or compressed.

:func:`as_lines` makes lines of requests of them, in a temporary file. An input of such lines is read as it is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain, tee
from pathlib import Path
from shlex import quote
from string import Formatter
from typing import Any, BinaryIO, Final

from paceline.batch.files import add, files_in
from paceline.batch.reading import (
    BODIES,
    ENVELOPES,
    IDS,
    NO_LINES,
    PROMPTS,
    Layout,
    lists_in,
    named_in_errors,
    rows_in,
    temporary,
    unpacked,
)
from paceline.batch.requests import BadLineError, Shard, decode, read_lines
from paceline.batch.tables import is_missing
from paceline.core.hints import shown_names
from paceline.core.results import QuotaError
from paceline.providers.embeddings import embedder, embeds
from paceline.providers.registry import generate_path, maker, output_limit, provider_named

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
        folder: Where relative paths may begin, too.
        header: Whether the first line of a table has the names of its columns. Else they are ``column1``, ``column2`` and so on.
        task: What is asked of the model: ``embed`` for vectors, ``chat`` for answers; by the name of the model if it is not given.
    """

    model: str | None = None
    column: str | None = None
    template: str | None = None
    key: str | None = None
    max_tokens: int | None = None
    provider: str | None = None
    schema: Mapping[str, Any] | None = None
    files: tuple[str, ...] = ()
    folder: str = ""
    header: bool = True
    task: str | None = None

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        if self.task not in (None, *TASKS):
            raise QuotaError(f"task is {self.task!r}: it must be one of {', '.join(TASKS)}")
        if self.column is not None and self.template is not None:
            raise QuotaError("--column and --template exclude each other: both say what the prompt is")

    @property
    def is_plain(self) -> bool:
        """Whether it says nothing about rows."""
        told = self.model, self.column, self.template, self.key, self.max_tokens, self.schema, self.files, self.task
        return self.header and not any(told)

    @property
    def fields(self) -> set[str]:
        """The fields of a row that it names."""
        named = {self.column, self.key, *self.files}
        with suppress(ValueError):  # a template that cannot be read is reported when it is used
            named |= {re.split(r"[.[]", field)[0] for _, field, _, _ in Formatter().parse(self.template or "") if field}
        return {name for name in named if name}

    @property
    def layout(self) -> Layout:
        """What it says about the input."""
        return Layout(frozenset(self.fields), self.header)


def schema_at(path: str | None) -> Mapping[str, Any] | None:
    """The JSON schema in a file; ``None`` without one.

    Raises:
        QuotaError: It cannot be read, or is none.
    """
    if path is None:
        return None
    try:
        found = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise QuotaError(f"schema {path}: it cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise QuotaError(f"schema {path}: it is not JSON: {error}") from None
    if not isinstance(found, dict) or not found.keys() & {
        "type",
        "properties",
        "$ref",
        "anyOf",
        "oneOf",
        "allOf",
        "enum",
    }:
        raise QuotaError(f'schema {path}: it must be a JSON schema, e.g. {{"type": "object", "properties": {{...}}}}')
    return found


class UnknownFormError(QuotaError):
    """The input is in no form that can be read. The message names its columns, and no value."""


def as_lines(file: BinaryIO, name: str, form: Form) -> tuple[BinaryIO, str]:
    """The input as lines of requests, from its beginning, and what was recognised; ``""`` for lines of requests.

    Args:
        file: The input, which can be read twice.
        name: Its path, for messages and for what its end tells.
        form: How rows become requests.

    Raises:
        UnknownFormError: The form is not known, or does not say what the prompt or the model is.
        QuotaError: A package is missing that reads this form, or the input is damaged.
    """
    head = file.read(4)
    file.seek(0)
    if _is_lines(file, head, form):
        _require_plain(form, name)
        return file, ""
    with ExitStack() as made:
        spool = made.enter_context(temporary())
        with named_in_errors(name), ExitStack() as opened:
            kind, shown = _write(spool, opened, file, head, name, form)
        spool.seek(0)
        made.pop_all()
    return spool, f"{name}: {kind}, {shown}"


def _require_plain(form: Form, name: str) -> None:
    if not form.is_plain:
        raise QuotaError(
            f"{name}: its lines are whole requests: leave out --model, --column, --template, --key, --task, --max-tokens, "
            "--schema, --files and --no-header"
        )


def _write(spool: BinaryIO, opened: ExitStack, file: BinaryIO, head: bytes, name: str, form: Form) -> tuple[str, str]:
    """Write the lines of requests; return what the rows are written in, and how they became requests."""
    content, packed = unpacked(opened, file, head)
    kind, rows = rows_in(opened, content, name, form.layout)
    first = next(rows, None)
    if first is None:
        raise UnknownFormError(f"{name}: there is nothing in it")
    make, shown = _made(first, replace(form, folder=str(Path(name).parent)), name, kind)
    spool.writelines(json.dumps(line).encode("ascii") + b"\n" for line in _lines(make, chain([first], rows), name))
    return packed + kind, shown


@contextmanager
def identified(
    file: BinaryIO, name: str, form: Form, shard: Shard
) -> Iterator[Iterator[tuple[str | int | None, Mapping[str, Any]]]]:
    """The rows of an input that :func:`as_lines` has read, each with the id of its request; of a request, the id alone."""
    file.seek(0)
    head = file.read(4)
    file.seek(0)
    if _is_lines(file, head, form):
        yield (_id_alone(raw) for _, raw in read_lines(file, shard))
        return
    with ExitStack() as opened:
        kind, rows = rows_in(opened, unpacked(opened, file, head)[0], name, form.layout)
        first = next(rows, {})
        make, _ = _made(first, replace(form, files=()), name, kind)  # no file is looked at again
        rows, copies = tee(chain([first], rows))
        lines = enumerate(zip(_lines(make, rows, name), copies, strict=True), 1)
        yield ((line["custom_id"], row) for number, (line, row) in lines if shard.has(number))


def _id_alone(raw: bytes | None) -> tuple[str | int | None, Mapping[str, Any]]:
    try:
        custom_id = decode(raw or b"").get("custom_id")
    except BadLineError:
        custom_id = None
    return custom_id, {"custom_id": custom_id}


def _lines(make: _Make, rows: Iterable[Mapping[str, Any]], name: str) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(rows, 1):
        try:
            yield make(number, row)
        except KeyError as error:
            raise QuotaError(
                f"{name}: row {number} has no {error.args[0]!r}: its fields are {shown_names(row)}"
            ) from None
        except TypeError as error:
            raise QuotaError(f"{name}: row {number}: {error}") from None


def lines_of(rows: Sequence[Mapping[str, Any]], form: Form, name: str) -> list[dict[str, Any]]:
    """The lines of requests of rows in memory; see :func:`as_lines`."""
    return list(_lines(_made(rows[0], form, name, _IN_MEMORY)[0], rows, name)) if rows else []


def _is_lines(file: BinaryIO, head: bytes, form: Form) -> bool:
    """Whether the input is lines of requests, which are read as they are."""
    return not head.startswith(NO_LINES) and _is_of_requests(file, form)


def _is_of_requests(file: BinaryIO, form: Form) -> bool:
    """Whether the first line is a request, or looks like one: then its faults are reported as faults of a request.

    Where ``form`` tells something about rows, only a line with the body of a request is one: rows have an ``url``, too.
    """
    try:
        line = next((raw for _, raw in read_lines(file)), b"") or b""
        value = decode(line)
    except BadLineError:
        first = line.lstrip()[:1]
        return first == b"{" and not line.rstrip().endswith((b"{", b"["))  # a line of JSON with a mistake in it
    finally:
        file.seek(0)
    if value and _envelope(value) is not None:
        return False
    if value and not form.is_plain:
        return _is_whole(value)
    return not value or (
        ("body" in value or "params" in value or "url" in value or "custom_id" in value)
        and not ("request" in value or "prompt" in value or "messages" in value)
    )


def _envelope(row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The body of a request that has no URL."""
    bodies = (row.get(field) for field in ENVELOPES)
    return next((body for body in bodies if isinstance(body, Mapping)), None) if "url" not in row else None


def _is_whole(row: Mapping[str, Any]) -> bool:
    """Whether a row has the body of a request with its other fields."""
    return any(isinstance(row.get(name), Mapping) for name in ("body", "params"))


_IN_MEMORY: Final = "a table in memory"

_Make = Callable[[int, Mapping[str, Any]], dict[str, Any]]
"""Makes the line of a request of a row and its number, from 1."""


def _made(row: Mapping[str, Any], form: Form, name: str, kind: str) -> tuple[_Make, str]:
    """How each row becomes a line, as the first one shows, and that in words."""
    key = form.key or next((column for column in IDS if column in row), None)
    by = f"identified by {key!r}" if key else "identified by its number and content"

    def identity(number: int, row: Mapping[str, Any]) -> str | int:
        if key:
            value = row[key]
            if is_missing(value):
                raise TypeError(f"{key!r}, which identifies the rows, has no value ({value})")
            if isinstance(value, float) and value.is_integer():
                return int(value)  # pandas makes floats of the integers of a column with a missing one
            return value if isinstance(value, str | int) else str(value)
        content = json.dumps(row, sort_keys=True, default=str)  # another row at the same place is another request
        return f"row-{number}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"

    is_told = form.column is not None or form.template is not None
    if _envelope(row) is not None and not is_told:
        _require_own(form, name)
        return _with_files(_enveloped(form, identity, name), form), f"bodies of requests, {by}"
    if "custom_id" in row and not is_told:
        if _is_whole(row):
            _require_plain(form, name)
            return lambda _, row: dict(row), "whole requests"
        if "url" in row and str(row.get("body")).startswith("{"):  # a table with the body as JSON
            return lambda _, row: {**row, "body": decode(row["body"].encode())}, "whole requests"
    if isinstance(row.get("request"), Mapping) and not is_told:
        _require_own(form, name)
        return _with_files(_gemini(form, identity, name), form), f"requests of Gemini's Batch API, {by}"
    field = None if is_told else next((field for field in BODIES if field in row), None)
    if field is not None and (field == "contents" or "model" in row):
        _require_own(form, name)
        return _with_files(_bodies(form, identity, field), form), f"bodies of requests, {by}"
    prompt, shown, column = *_prompt(row, form), form.column
    model = form.model or ("{model}" if "model" in row else None)
    if prompt is None or model is None:
        raise UnknownFormError(_unknown(row, form, name, kind))

    def line(number: int, row: Mapping[str, Any]) -> dict[str, Any]:
        said = prompt(row)
        said = said.tolist() if hasattr(said, "tolist") else said  # pandas has the lists of a Parquet file as arrays
        asked = form.model or str(row["model"])
        if form.task == "embed" or (form.task is None and embeds(asked)):
            return _embedded(identity(number, row), asked, said, form)
        messages = [{"role": "user", "content": said}] if isinstance(said, str) else said
        wrong = (
            [messages] if not isinstance(messages, list) else [one for one in messages if not isinstance(one, Mapping)]
        )
        if wrong:
            kind = ("" if wrong[0] is messages else "list of ") + type(wrong[0]).__name__
            hint = f"; one of the list is --template '{{{column}[0]}}'" if column and wrong[0] is not messages else ""
            raise TypeError(f"its prompt is a {kind}: it must be a text, or a list of messages{hint}")
        strange = next((one for one in messages if "role" not in one), None)
        if strange is not None:
            raise TypeError(
                f"a message of its prompt has the fields {', '.join(map(str, strange))}: it must have role and content"
            )
        return _asked(identity(number, row), form.model or row["model"], messages, form)

    return _with_files(line, form), f"{shown} is the prompt of {form.model or 'its model'}, each {by}"


def _require_own(form: Form, name: str) -> None:
    """Refuse what would be part of bodies that the input has."""
    if form.max_tokens or form.schema is not None:
        raise QuotaError(
            f"{name}: it has bodies of requests: leave out --max-tokens and --schema, or write them in each body"
        )


def _with_files(make: _Make, form: Form) -> _Make:
    """Add the files of a row to its request."""
    if not form.files:
        return make

    def line(number: int, row: Mapping[str, Any]) -> dict[str, Any]:
        made = make(number, row)
        api = "/v1/messages" if "params" in made else made["url"]
        apis = {"/messages": "anthropic", ":generateContent": "gemini"}
        home = next((name for end, name in apis.items() if api.endswith(end)), "")
        add(made, files_in(row, form.files, home or _home(made["body"]["model"], form), Path(form.folder)))
        return made

    return line


def _prompt(row: Mapping[str, Any], form: Form) -> tuple[Callable[[Mapping[str, Any]], Any] | None, str]:
    """What makes the prompt of a row, and the words for it."""
    if form.template is not None:
        return _Template(form.template), "the template"
    column = form.column or next((column for column in PROMPTS if column in row), None)
    if column is None or column not in row:
        return None, ""
    if column == "messages":
        return lambda row: _messages(row[column]), f"{column!r}"
    return lambda row: row[column], f"{column!r}"


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


class _Template:
    """Makes the prompt of a row.

    Raises:
        QuotaError: The template cannot be read.
        KeyError: The row has no such column.
        TypeError: A value that the template names is missing: its prompt would have the word None or nan, and be paid.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def __call__(self, row: Mapping[str, Any]) -> str:
        try:
            return self._text.format_map(_Given(row))
        except (ValueError, AttributeError, IndexError) as error:
            raise QuotaError(
                f"the template {self._text[:60]!r} cannot be read: {error}; columns are in braces, and a brace of the text is "
                "written twice: {{ or }}"
            ) from None


class _Given(dict[str, Any]):
    """A row. To read a missing value is an error."""

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if is_missing(value):
            raise TypeError(f"{name!r}, which the template names, has no value ({value})")
        return value


def _unknown(row: Mapping[str, Any], form: Form, name: str, kind: str) -> str:
    """What was recognised, and a command that would work."""
    known = form.column or form.template or next((column for column in PROMPTS if column in row), None)
    missing = "the column of the prompts" if not known else ""
    if form.column and form.column not in row:
        missing = f"a column that it has (it has no {form.column!r})"
    if not form.model and "model" not in row:
        missing += " and the model" if missing else "the model"
    model = form.model or "gpt-5"
    if lists := lists_in(row) if kind == "JSON objects" and "column" in missing else []:
        first = quote(next(iter(row[lists[-1]][0])))
        told = f"jq '.[\"{lists[-1]}\"]' {quote(name)} | paceline run - --model {model} --column {first}"
        return f"{name}: it is {kind} with the fields {shown_names(row)}: to send the rows of a list in it, e.g. {told}"
    column = next((column for column in row if column not in IDS), "text")
    if kind == _IN_MEMORY:
        example = f'paceline.run({name}, model="{model}", prompt={column!r})'
    else:
        shown = "" if column in PROMPTS else f" --column {quote(column)}"
        example = f"paceline run {quote(name)} --model {model}{shown}"
    no_header = "; or, if its first line is no header, --no-header" if kind == "a table" and form.header else ""
    return f"{name}: it is {kind} with the fields {shown_names(row)}: name {missing}, e.g. {example}{no_header}"


def _gemini(form: Form, identity: Callable[[int, Mapping[str, Any]], str | int], name: str) -> _Make:
    def line(number: int, row: Mapping[str, Any]) -> dict[str, Any]:
        body = dict(row["request"])
        model = str(body.pop("model", None) or form.model or "").removeprefix("models/")
        if not model:
            raise UnknownFormError(f"{name}: its requests name no model: give one, e.g. --model gemini-2.5-flash")
        return _generate(identity(number, row), model, body)

    return line


def _enveloped(form: Form, identity: Callable[[int, Mapping[str, Any]], str | int], name: str) -> _Make:
    def line(number: int, row: Mapping[str, Any]) -> dict[str, Any]:
        body = {field: value for field, value in (_envelope(row) or {}).items() if field != "anthropic_version"}
        field = next((field for field in BODIES if field in body), None)
        if field is None:
            raise TypeError(f"its body has none of the fields {', '.join(BODIES)}, so that its URL is not known")
        if not (form.model or body.get("model")):
            raise UnknownFormError(f"{name}: its requests name no model: give one, e.g. --model gpt-5")
        return _bodies(form, lambda *_: identity(number, row), field)(number, body)

    return line


def _bodies(form: Form, identity: Callable[[int, Mapping[str, Any]], str | int], field: str) -> _Make:
    def line(number: int, row: Mapping[str, Any]) -> dict[str, Any]:
        body = {name: value for name, value in row.items() if name not in (*IDS, "metadata", *form.files)}
        model = str(form.model or body["model"])
        if field == "contents":
            body.pop("model", None)
            return _generate(identity(number, row), model.removeprefix("models/"), body)
        path = "/v1/embeddings" if field == "input" and embeds(model) else BODIES[field]
        if field == "messages" and _home(model, form) == "anthropic":
            path = "/v1/messages"
        return {"custom_id": identity(number, row), "method": "POST", "url": path, "body": body | {"model": model}}

    return line


def _asked(custom_id: str | int, model: str, messages: list[Any], form: Form) -> dict[str, Any]:
    """The line of a request with these messages, in the form of its provider."""
    home = _home(model, form)
    if home == "anthropic":
        params = {"model": model, "max_tokens": form.max_tokens or ANSWER_TOKENS, "messages": messages}
        if form.schema is not None:  # anthropic's SDK 2.11 (2026-11)
            params["output_config"] = {"format": {"type": "json_schema", "schema": form.schema}}
        return {"custom_id": custom_id, "params": params}
    if home == "gemini" and all(isinstance(one.get("content"), str) for one in messages):
        roles = {"assistant": "model"}
        contents = [
            {"role": roles.get(one["role"], one["role"]), "parts": [{"text": one["content"]}]} for one in messages
        ]
        settings: dict[str, Any] = {"maxOutputTokens": form.max_tokens} if form.max_tokens else {}
        if form.schema is not None:  # google-genai 3.4 (2026-11)
            settings |= {"responseMimeType": "application/json", "responseJsonSchema": form.schema}
        return _generate(
            custom_id, model, {"contents": contents, **({"generationConfig": settings} if settings else {})}
        )
    body = {"model": model, "messages": messages, **({output_limit(home): form.max_tokens} if form.max_tokens else {})}
    if form.schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.schema}}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def _embedded(custom_id: str | int, model: str, text: Any, form: Form) -> dict[str, Any]:
    """The line of a row whose text is embedded; it may share a request with others."""
    if form.max_tokens or form.schema is not None or form.files:
        raise QuotaError(
            f"{model} makes vectors: leave out the most tokens, the schema and the files; if it gives answers, say so: --task chat, in"
            " Python task='chat'"
        )
    if not isinstance(text, str) or not text:
        what = "empty" if text == "" else f"a {type(text).__name__}"
        raise TypeError(f"{model} makes vectors of texts, and its text is {what}")
    how = embedder(_home(model, form), model)
    path, body = how.api.alone(model, text, how.more)
    return {"custom_id": custom_id, "method": "POST", "url": path, "body": body, "shares": True}


def _generate(custom_id: str | int, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
    if "embedding" in model:
        raise TypeError(f"its model is {model}, and embeddings of Gemini's own API are not supported")
    return {"custom_id": custom_id, "method": "POST", "url": generate_path(model), "body": dict(body)}


def _home(model: str, form: Form) -> str:
    """The provider of a model."""
    return provider_named(form.provider).name if form.provider else maker(model) or ""
