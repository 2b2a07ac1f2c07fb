"""``paceline.run``: the requests of a table, from Python, by the engine of the command."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

from paceline.batch.acceptance import Acceptance
from paceline.batch.caller import Call
from paceline.batch.forms import Form, lines_of
from paceline.batch.reading import Damaged, read_rows, writing_temporary
from paceline.batch.tables import RecordedAnswers, Table, columns, new_columns
from paceline.core.hints import needs
from paceline.core.results import SettingsError, explaining
from paceline.data.frames import Made, Vectors, dicts, rows_of
from paceline.pacing.owners import LOOK_S, in_a_loop, in_a_thread

if TYPE_CHECKING:
    from paceline.batch.job import Job

_P = ParamSpec("_P")
_R = TypeVar("_R")


def run(
    rows: Any,
    *,
    model: str | None = None,
    prompt: str | Callable[[Mapping[str, Any]], Any] | None = None,
    files: str | Sequence[str] = (),
    key: str | None = None,
    journal: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    into: str = "answer",
    max_tokens: int | None = None,
    schema: Any = None,
    cut_off: str | int | None = None,
    again: str | Sequence[str] = (),
    task: str | None = None,
    mode: str = "sync",
    deadline: float | str | None = None,
    restart: bool = False,
    repair: bool = False,
    progress: bool = True,
    strict: bool = False,
    **settings: Any,
) -> Any:
    """Ask ``model`` about each row, as fast as the limits allow, and return the rows with the answers.

    Args:
        rows: A table of pandas, polars, pyarrow, DuckDB or Hugging Face's datasets, or what can be given as an Arrow table; an iterable of
            mappings; or the path of a file that ``paceline run`` reads.
        model: The model of rows that have no column ``model``.
        prompt: The column of the prompts (texts or lists of messages), a template with columns in braces, or a function of a row
            that returns either; the column ``prompt`` or ``messages``, or the only one, by default. With ``files`` it may be a text for all rows.
        files: The column, or the columns, with images and PDF files: paths, URLs, contents, or lists of them. They come before
            the prompt.
        key: The column with the identity of a row; as for ``paceline run --key``.
        journal: A file of answers, as ``paceline run`` writes it. After a crash, the same call continues from it.
            Without a journal, a crash loses all answers.
        output: A CSV, TSV or Parquet file for the rows with their answers, written at the end. Without ``journal``, that is the
            file with ``.results.jsonl`` after its name.
        into: The new column with the texts of the answers. ``error`` is the other one.
        max_tokens: The most tokens of an answer.
        schema: A model of pydantic, or a JSON schema: each answer is asked for in this form, and is a dict. Another
            form is an error, and the column ``answer_text`` contains the model's text. A JSON schema needs the package
            jsonschema.
        cut_off: What happens to an answer that has reached the maximum of tokens, which is an error by default: ``"keep"`` makes it
            an answer, and adds a column ``finish``; ``"raise"`` asks once more with four times ``max_tokens``; a number, with this
            maximum.
        again: Names of errors that the same call doesn't send again by itself: ``"declined"``, ``"blocked"``, ``"cut_off"``,
            ``"paused"``, after two calls also ``"empty"`` and ``"invalid"``; as a list, or with commas. Their rows are sent once more.
        task: ``"embed"`` for a vector of each row, ``"chat"`` for an answer; by the name of the model if it is not given. The texts of
            several rows are embedded by one request, up to the model's bounds. A vector is a list of floats, in a table of pyarrow and
            in a Parquet file a list of fixed size.
        mode: ``"batch"``: by the provider's Batch API, at its price for batches and within a day. ``"auto"``: in
            batches, until the unanswered rows must be sent one by one to meet ``deadline``. Both need ``journal`` or
            ``output``.
        deadline: For ``"auto"``: ``"6h"``, ``"90min"``, or seconds, from the start of the first call on.
        restart: Whether to send everything again; the old journal gets another name.
        repair: Whether to move corrupt lines of the journal to another file, and send their rows again, also rows
            whose result could not be read.
        progress: Whether to show the progress on standard error.
        strict: Whether a row that cannot be sent (its prompt is missing, its file cannot be read, ...) stops all, before anything is sent.
            Otherwise it is an error of that row, ``invalid_row``.
        **settings: Settings of the command by name: ``tier=2``, ``limits={"gpt-6-luna": "500 requests/min"}``, ``base_url=...``,
            ``workers``, ``store``, ``budget``.

    Returns:
        A frame or a list of dicts, as ``rows`` is, with the new columns; for DuckDB an Arrow table. An answer is the
        text of the model, or the JSON of its tool calls. If there is an error, the answer is ``None``; otherwise the
        error is ``None``. The error of an unfinished answer begins with its name: ``declined``, ``blocked``,
        ``cut_off``, ``empty``,
        ``paused`` or ``invalid``; of a row that cannot be sent it is ``invalid_row``.

    Raises:
        PacelineError: Nothing could be sent: a setting, a column or a key is missing or invalid, or a row with ``strict``. Or
            ``output`` cannot be written at the end; the journal has the answers.
        KeyboardInterrupt: It was interrupted; the journal contains the answers so far.
        ImportError: The extra ``cli`` is missing.

    Example:
        rows = [{"text": "Good morning"}, {"text": "Good night"}]
        answered = await paceline.arun(rows, model="gpt-6-luna", prompt="Translate into French: {text}", journal="french.jsonl")
        print([row["answer"] for row in answered])
    """
    try:
        from paceline.batch.job import Job, Output
        from paceline.batch.offline import Batching
        from paceline.config import Config
        from paceline.config.servers import provider_of
    except (ModuleNotFoundError, SettingsError) as error:  # the second: settings lack their packages
        raise ImportError(f"paceline.run {needs('cli')}") from error
    _require_names(prompt=prompt, key=key, into=into)
    config = Config.load(given=settings, where="arguments")
    json_schema = _schema_of(schema)
    acceptance = Acceptance.parse(schema, cut_off, again)
    found, table, folder, shown = _read_rows(rows)
    form = Form(
        model,
        key=key,
        max_tokens=max_tokens,
        provider=provider_of(config),
        schema=json_schema,
        task=task,
        files=(files,) if isinstance(files, str) else tuple(files),
        caller=Call(),
    )
    names = new_columns(into, acceptance)
    asked, form = _asked(found, prompt, form, names, strict=strict)
    kept, written = _places(journal, output, into)
    batching = Batching(mode, _deadline(mode, deadline, kept))
    lines, remark, ready = lines_of(asked, form, shown, folder)
    if not lines:
        return table(found, {name: [] for name in names})
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "rows.jsonl"
        with writing_temporary():
            source.write_bytes(b"".join(line.line for line in lines))
        path = kept or str(Path(folder) / "answers.jsonl")
        to = Output(path, restart, repair, acceptance=acceptance, keeps=kept is not None)
        job = Job(str(source), to, config, batching=batching, form=form, strict=strict or ready, of_rows=True)
        path = _sent(job, path, remark, progress=progress)
        ids = [line.custom_id for line in lines]
        with closing(RecordedAnswers(path, acceptance)) as answers:
            told = [dict(columns(answers.of(one), into, acceptance)) for one in ids]
            made = {into: Vectors} if answers.vectors else {}
    if written is not None:
        pairs = list(zip(ids, (_without(row, told[0]) for row in found), strict=True))
        replace(written, journal=path).write(lambda: nullcontext(iter(pairs)), acceptance)
    return table(found, {name: made.get(name, list)(row[name] for row in told) for name in told[0]})


def _asked(
    found: list[dict[str, Any]], prompt: Any, form: Form, answers: Sequence[str], *, strict: bool
) -> tuple[list[dict[str, Any]], Form]:
    """The rows as they are asked about, and where their prompts are.

    Rows that have their ``answers`` already, as a cell of a notebook that runs again gives them, are the same rows.
    """
    named = f"{{{prompt}}}" if isinstance(prompt, str) else ""
    new = {name for name in answers if f"{{{name}" not in named and name != form.key}
    asked = [_without(row, new) for row in found]
    if callable(prompt):
        return _prompted(asked, prompt, strict=strict), replace(form, column="prompt")
    if prompt is None:
        return asked, form
    is_text = "{" in prompt or (form.files and found and prompt not in found[0])
    return asked, replace(form, template=prompt) if is_text else replace(form, column=prompt)


def _sent(job: Job, path: str, remark: str, *, progress: bool) -> str:
    """Run the job; the file of the answers, which is another one if the name belongs to another file by now."""
    from paceline.batch.progress import view
    from paceline.batch.runner import INTERRUPTED, interrupts

    shown = view(quiet=not progress)
    if remark:
        shown.say(remark)
    start = partial(job.run, shown)
    # The loop of a notebook runs here. An interrupt stops the job as Ctrl-C stops the command.
    code, report = in_a_thread(start, lambda thread: interrupts.get(thread, int)()) if in_a_loop() else start()
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return report["output"] or path


def _awaited(function: Callable[_P, _R]) -> Callable[_P, Coroutine[Any, Any, _R]]:
    """The function in a thread, for a program with an event loop."""

    @wraps(function)
    async def awaited(*args: _P.args, **options: _P.kwargs) -> _R:
        inside: list[int] = []
        returned: list[_R] = []

        def work() -> None:
            inside.append(threading.get_ident())
            with suppress(KeyboardInterrupt):  # no future may hold it
                returned.append(function(*args, **options))

        ran = asyncio.get_running_loop().run_in_executor(None, copy_context().run, work)
        cancelled = pending = False
        while not ran.done():
            try:
                await asyncio.wait([ran], timeout=LOOK_S if pending else None)
            except asyncio.CancelledError:
                cancelled = pending = True
            if pending:
                from paceline.batch.runner import interrupts

                if (stop := interrupts.get(inside[0]) if inside else None) is not None:
                    stop()
                    pending = False
        if cancelled:
            ran.exception()
            raise asyncio.CancelledError
        ran.result()
        return returned[0]

    awaited.__name__ = awaited.__qualname__ = "arun"
    awaited.__doc__ = """Do the same as :func:`run`, as a coroutine: the event loop continues meanwhile.

    A cancellation stops the run as an interrupt does: requests in flight can finish, and the journal contains all
    answers.
    """
    return awaited


arun = _awaited(run)


def _without(row: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """A row without these columns."""
    bare = {name: value for name, value in row.items() if name not in names}
    return Damaged(row.problem, bare) if isinstance(row, Damaged) else bare


def _prompted(
    rows: list[dict[str, Any]], prompt: Callable[[Mapping[str, Any]], Any], *, strict: bool
) -> list[dict[str, Any]]:
    """The rows with their prompts. One for which the function raises cannot be sent; if it does for all, it is wrong itself."""
    made, first = list[dict[str, Any]](), cast("Exception | None", None)
    for row in rows:
        try:
            made.append(row if isinstance(row, Damaged) else row | {"prompt": prompt(row)})
        except Exception as error:
            if strict:
                raise
            first = first or error
            made.append(Damaged(f"the function of the prompt raised {type(error).__name__}", row))
    if first is not None and all(isinstance(row, Damaged) for row in made):
        raise first
    return made


def _places(
    journal: str | os.PathLike[str] | None, output: str | os.PathLike[str] | None, into: str
) -> tuple[str | None, Table | None]:
    """The path of the journal, and the table that is written at the end.

    Raises:
        PacelineError: A file of something else is in the way, or it is no table.
    """
    kept = None if journal is None else os.fspath(journal)
    if output is None:
        return kept, None
    table = Table.at(os.fspath(output), into, kept)
    if table is None:
        raise SettingsError(f"output is {os.fspath(output)!r}: its name must end with .csv, .tsv or .parquet")
    table.require_own()
    return table.journal, table


MODES: Final = "sync", "batch", "auto"


def _deadline(mode: str, deadline: float | str | None, kept: str | None) -> float | None:
    """The seconds of a deadline.

    Raises:
        SettingsError: The mode and what it needs do not go together.
    """
    if mode not in MODES:
        raise SettingsError(f"mode is {mode!r}: it must be one of {', '.join(MODES)}")
    if mode != "sync" and kept is None:
        raise SettingsError(
            f'mode="{mode}" needs journal="FILE" or output="FILE": batches continue at the provider when this program ends, and you pay for'
            " them; the same call finds them by a journal next to that file"
        )
    if (mode == "auto") != (deadline is not None):
        raise SettingsError('mode="auto" and deadline need each other: mode="auto", deadline="6h"')
    if not isinstance(deadline, str):
        if deadline is not None and not deadline > 0:
            raise SettingsError(f"deadline is {deadline!r}: give seconds, or a text like '6h'")
        return deadline
    from paceline.planner.workload import seconds_of

    with explaining("deadline", of=ValueError):
        return seconds_of(deadline)


def _require_names(**columns: Any) -> None:
    """Refuse a number as the name of a column: a frame without a header has such names.

    Raises:
        SettingsError: There is one.
    """
    for argument, name in columns.items():
        if not (name is None or isinstance(name, str) or (argument == "prompt" and callable(name))):
            raise SettingsError(f"{argument} is {name!r}: give the name of a column as a text, e.g. {str(name)!r}")


def _schema_of(schema: Any) -> Mapping[str, Any] | None:
    if schema is None or isinstance(schema, Mapping):
        return schema
    if not hasattr(schema, "model_json_schema"):
        raise SettingsError(
            f"schema is a {type(schema).__name__}: give a model of pydantic, or a JSON schema as a dict"
        )
    return cast("Mapping[str, Any]", schema.model_json_schema())


def _read_rows(rows: Any) -> tuple[list[dict[str, Any]], Made, str, str]:
    """The rows, what makes a table of their kind, the folder of the file that is named, and what messages call the rows."""
    if not isinstance(rows, str | os.PathLike):
        return *rows_of(rows), "", "rows"
    with read_rows(os.fspath(rows)) as read:
        found = [row if isinstance(row, Damaged) else dict(row) for row in read]
    return found, dicts, os.path.dirname(rows), repr(os.fspath(rows))  # noqa: PTH120
