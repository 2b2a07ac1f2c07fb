"""``paceline.run``: the requests of a table, from Python, by the engine of the command."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from paceline.batch.forms import Form, lines_of, read_rows
from paceline.core.results import QuotaError
from paceline.data.tables import Table, dicts, rows_of
from paceline.pacing.owners import in_a_loop, in_a_thread


def run(
    rows: Any,
    *,
    model: str | None = None,
    prompt: str | Callable[[Mapping[str, Any]], Any] | None = None,
    key: str | None = None,
    journal: str | os.PathLike[str] | None = None,
    into: str = "answer",
    max_tokens: int | None = None,
    schema: Any = None,
    progress: bool = True,
    **settings: Any,
) -> Any:
    """Ask ``model`` about each row, as fast as the limits allow, and return the rows with the answers.

        answered = paceline.run(table, model="gpt-5", prompt="Translate into French: {text}", journal="french.jsonl")

    Args:
        rows: A frame of pandas or polars, a table of pyarrow, an iterable of mappings, or the path of a file that ``paceline run`` reads.
        model: The model of rows that have no column ``model``.
        prompt: The column of the prompts (texts or lists of messages), a template with columns in braces, or a function of a row
            that returns either; the column ``prompt`` or ``messages`` by default.
        key: The column with the identity of a row; as for ``paceline run --key``.
        journal: A file of answers, as ``paceline run`` writes it. The same call after a crash goes on there. Without it, what was
            answered until a crash is lost.
        into: The new column with the texts of the answers. ``error`` is the other one.
        max_tokens: The most tokens of an answer.
        schema: A model of pydantic, or a JSON schema: each answer is asked for in this form, and is a dict. One of another form is an
            error. A JSON schema is checked if the package jsonschema is installed.
        progress: Whether to show the progress on standard error.
        **settings: Settings of the command by name: ``tier=2``, ``limits={"gpt-5": "500 requests/min"}``, ``base_url=...``,
            ``workers``, ``store``, ``budget``.

    Returns:
        What ``rows`` was, a frame or a list of dicts, with both columns. An answer is ``None`` where there is an error, and an
        error is ``None`` elsewhere.

    Raises:
        PacelineError: Nothing could be sent: a setting, a row or a key is missing or invalid.
        KeyboardInterrupt: It was interrupted; the journal has what was answered.
        ImportError: The extra ``cli`` is missing.
    """
    try:
        from paceline.batch.job import Job
        from paceline.batch.progress import logged, view
        from paceline.batch.runner import INTERRUPTED, interrupts
        from paceline.config import Config
    except ModuleNotFoundError as error:
        raise ImportError(f"paceline.run needs the package {error.name}: pip install 'paceline[cli]'") from error
    found, table = _read_rows(rows)
    form = Form(model, key=key, max_tokens=max_tokens, schema=_schema_of(schema))
    # Rows that have their answers already, as a cell of a notebook that runs again gives them, are the same rows.
    named = f"{{{prompt}}}" if isinstance(prompt, str) else ""
    new = {name for name in (into, "error") if f"{{{name}" not in named and name != key}
    asked = [{name: value for name, value in row.items() if name not in new} for row in found]
    if callable(prompt):
        prompts = [{"prompt": prompt(row)} for row in found]
        asked, form = [row | one for row, one in zip(asked, prompts, strict=True)], replace(form, column="prompt")
    elif prompt is not None:
        form = replace(form, template=prompt) if "{" in prompt else replace(form, column=prompt)
    config = Config.load(given=settings, where="arguments")
    lines = lines_of(asked, form, "rows")
    if not lines:
        return table(found, {into: [], "error": []})
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "rows.jsonl"
        source.write_text("".join(json.dumps(line) + "\n" for line in lines), "ascii")
        output = Path(journal) if journal is not None else Path(folder) / "answers.jsonl"
        shown = view(quiet=not progress)
        with logged(shown):
            job = partial(Job(str(source), str(output), config).run, shown)
            # The loop of a notebook runs here. An interrupt stops the job as Ctrl-C stops the command.
            code, _ = in_a_thread(job, lambda thread: interrupts.get(thread, int)()) if in_a_loop() else job()
        answers = _answers(output)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    unsent = None, "it was not sent: the run has ended before"
    columns = [_read(schema, *answers.get(str(line["custom_id"]), unsent)) for line in lines]
    return table(found, {into: [text for text, _ in columns], "error": [error for _, error in columns]})


def _schema_of(schema: Any) -> Mapping[str, Any] | None:
    if schema is None or isinstance(schema, Mapping):
        return schema
    if not hasattr(schema, "model_json_schema"):
        raise QuotaError(f"schema is a {type(schema).__name__}: give a model of pydantic, or a JSON schema as a dict")
    return cast("Mapping[str, Any]", schema.model_json_schema())


def _read(schema: Any, text: str | None, error: str | None) -> tuple[Any, str | None]:
    """An answer in the form of ``schema``; no message quotes it."""
    if schema is None or text is None:
        return text, error
    try:
        if not isinstance(schema, Mapping):
            return schema.model_validate_json(text).model_dump(mode="json"), None
        value = json.loads(text)
    except ValueError as invalid:
        return None, f"invalid_answer: the answer does not match the schema ({type(invalid).__name__})"
    try:
        jsonschema = import_module("jsonschema")
    except ImportError:
        return value, None
    wrong = next(jsonschema.validators.validator_for(schema)(schema).iter_errors(value), None)
    if wrong is None:
        return value, None
    return None, f"invalid_answer: the answer does not match the schema (at {wrong.json_path}: {wrong.validator})"


def _read_rows(rows: Any) -> tuple[list[dict[str, Any]], Table]:
    """The rows, and what makes a table of their kind."""
    if not isinstance(rows, str | os.PathLike):
        return rows_of(rows)
    with read_rows(os.fspath(rows)) as read:
        return [dict(row) for row in read], dicts


def _answers(path: Path) -> dict[str, tuple[str | None, str | None]]:
    """The text or the error of each request by its id; the last record of an id holds."""
    found: dict[str, tuple[str | None, str | None]] = {}
    if not path.exists():
        return found
    with path.open("rb") as records:
        for record in map(json.loads, records):
            error = record["error"]
            text = None if error else text_of(record["response"]["body"])
            found[str(record["custom_id"])] = text, error and f"{error['code']}: {error['message']}"
    return found


def text_of(body: Mapping[str, Any]) -> str:
    """The text of an answer of OpenAI's chat or Responses API, Anthropic or Gemini; of others, its JSON."""
    parts: list[Any]
    match body:
        case {"choices": [{"message": {"content": str(text)}}, *_]}:
            return text
        case {"content": list(parts)}:
            pass
        case {"candidates": [{"content": {"parts": list(parts)}}, *_]}:
            pass
        case {"output": list(items)}:
            parts = [part for item in items for part in item.get("content") or ()]
        case _:
            return json.dumps(body)
    return "".join(part["text"] for part in parts if isinstance(part.get("text"), str))
