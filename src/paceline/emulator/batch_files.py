"""The files of an emulated provider, and the lines of OpenAI's batch input as its validation reads them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from paceline.emulator.batches import BatchEntry, BatchProblem, EmulatedBatch
from paceline.emulator.wire import Dialect, dump, load

MOST_FILES = 10_000
MOST_BYTES = 2_000_000_000
"""What an emulator keeps of the files that clients have uploaded; the results of batches are written when they are read."""

MOST_PROBLEMS = 50
"""The most errors that a failed batch lists."""


@dataclass(eq=False)
class StoredFile:
    """A file.

    Attributes:
        id: Its id in OpenAI's form.
        name: The name that the client gave.
        purpose: ``batch``, ``batch_output``, or another of OpenAI's.
        created_s: The time of creation.
        content: The bytes of an uploaded file.
        lines: For results: their lines.
        batch: The batch that has been read with these results; ``None`` for its errors.
    """

    id: str
    name: str
    purpose: str
    created_s: float
    content: bytes = b""
    lines: Callable[[], Iterator[bytes]] | None = None
    batch: EmulatedBatch | None = None

    def pieces(self) -> Iterator[bytes]:
        """The content in pieces."""
        return iter((self.content,)) if self.lines is None else self.lines()

    @cached_property
    def size(self) -> int:
        """Bytes of the content; results are written once to know it."""
        return sum(map(len, self.pieces()))


class StoredFiles:
    """All files; a bounded number of bytes."""

    def __init__(self) -> None:
        self.by_id: dict[str, StoredFile] = {}
        self.uploaded = self._bytes = 0
        self._serials = itertools.count(1)
        self._results: dict[tuple[EmulatedBatch, str], StoredFile] = {}

    def upload(self, now: float, name: str, purpose: str, content: bytes) -> StoredFile | None:
        """Keep an uploaded file; ``None`` where there is no room."""
        if len(self.by_id) >= MOST_FILES or self._bytes + len(content) > MOST_BYTES:
            return None
        self.uploaded += 1
        self._bytes += len(content)
        return self._add(name, purpose, now, content)

    def result(self, batch: EmulatedBatch, what: str, lines: Callable[[], Iterator[bytes]]) -> StoredFile:
        """The file with the results of an ended batch, or with its errors, as ``what`` says."""
        if (batch, what) not in self._results:
            name, read = f"batch_{batch.serial}_{what}.jsonl", None if what == "error" else batch
            self._results[batch, what] = self._add(name, "batch_output", batch.ended_s or 0.0, lines=lines, batch=read)
        return self._results[batch, what]

    def delete(self, file: StoredFile) -> None:
        """Forget a file."""
        del self.by_id[file.id]
        self._bytes -= len(file.content)

    def _add(self, *fields: Any, **results: Any) -> StoredFile:
        file = StoredFile(f"file-{next(self._serials):022x}", *fields, **results)
        self.by_id[file.id] = file
        return file


def read_form(body: bytes, content_type: str) -> dict[str, tuple[str, bytes]]:
    """The fields of a multipart body: by name, the file name and the content. Empty if it is not one."""
    match = re.search(r'multipart/form-data;.*boundary="?([^";,]{1,200})"?', content_type, re.IGNORECASE)
    if match is None:
        return {}
    fields: dict[str, tuple[str, bytes]] = {}
    mark = b"--" + match[1].encode("latin-1")
    for part in (b"\r\n" + body).split(b"\r\n" + mark)[1:1_001]:
        head, _, content = part.partition(b"\r\n\r\n")
        text = head.decode("utf-8", "replace")
        name = re.search(r'[; ]name="([^"\r\n]{0,200})"', text)
        file = re.search(r'filename="([^"\r\n]{0,1000})"', text)
        if name is not None:
            fields[name[1]] = (file[1] if file else "", content)
    return fields


Lines = tuple[list[BatchEntry], list[BatchProblem]]
"""The requests of a batch input, and why it is invalid."""


def read_lines(content: bytes, endpoint: str, dialect: Dialect, most: int) -> Lines:
    """The requests of OpenAI's batch input, and why it is invalid.

    Args:
        content: The file.
        endpoint: The endpoint of the batch, e.g. ``/v1/chat/completions``.
        dialect: Reads the bodies.
        most: The most lines.
    """
    lines, kind = content.splitlines(), dialect.PATHS[below(endpoint)]
    entries, problems = dict[str, BatchEntry](), list[BatchProblem]()
    if len(lines) > most:
        return [], [BatchProblem("too_many_tasks", f"The batch has {len(lines)} requests; the limit is {most}.")]
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        value = load(line)
        if problem := _problem(value, endpoint, entries):
            problems.append(problem._replace(line=number))
        elif value is not None:
            entries[value["custom_id"]] = entry(value["custom_id"], value["body"], kind, dialect)
        if len(problems) >= MOST_PROBLEMS:
            break
    if not entries and not problems:
        problems.append(BatchProblem("empty_file", "The input file is empty. It must have at least one request."))
    return [*entries.values()], problems


def read_bodies(
    contents: Iterable[bytes],
    kind: str,
    model: str,
    dialect: Dialect,
    most: int,
    names: tuple[str, str] = ("custom_id", "body"),
) -> Lines:
    """The requests of a batch input whose lines have only an id and a body, and why it is invalid.

    Args:
        contents: The files.
        kind: The kind of all requests.
        model: The model of all requests; empty where each body names it.
        dialect: Reads the bodies.
        most: The most lines.
        names: What a line calls the id and the body.
    """
    entries, problems = dict[str, BatchEntry](), list[BatchProblem]()
    for number, line in enumerate((one for content in contents for one in content.splitlines() if one.strip()), 1):
        value = load(line) or {}
        custom_id, body = (value.get(name) for name in names)
        if not isinstance(custom_id, str) or not isinstance(body, dict) or custom_id in entries:
            problems.append(
                BatchProblem("invalid_line", f"Line {number} has no {names[1]}, or no {names[0]} of its own.")
            )
            break
        entries[custom_id] = entry(custom_id, body, kind, dialect, model)
    if not 0 < len(entries) <= most and not problems:
        problems.append(BatchProblem("invalid_file", f"A batch has 1 to {most} requests, not {len(entries)}."))
    return [*entries.values()], problems


def _problem(value: dict[str, Any] | None, endpoint: str, before: Mapping[str, BatchEntry]) -> BatchProblem | None:
    """What is wrong with a line, after the requests of the lines ``before`` it."""
    if value is None:
        return BatchProblem("invalid_json_line", "This line is not parseable as valid JSON.")
    for name, kind in (("custom_id", str), ("method", str), ("url", str), ("body", dict)):
        if not isinstance(value.get(name), kind):
            return BatchProblem("missing_required_parameter", f"Missing required parameter: '{name}'.", name)
    if value["method"] != "POST":
        return BatchProblem("invalid_method", f"Invalid method: '{value['method']}'. Only POST is supported.", "method")
    if below(value["url"]) != below(endpoint):
        text = f"The URL provided for this request does not match the batch endpoint {endpoint}."
        return BatchProblem("url_mismatch", text, "url")
    if value["custom_id"] in before:
        text = f"The custom_id '{value['custom_id']}' for this request is a duplicate of another request."
        return BatchProblem("duplicate_custom_id", f"{text} The custom_id parameter must be unique.", "custom_id")
    named = value["body"].get("model")
    if not isinstance(named, str) or not named:
        return BatchProblem("missing_required_parameter", "Missing required parameter: 'model'.", "body.model")
    model = next((one.ask.model for one in before.values()), named)
    if named != model:
        text = f"The provided model '{named}' does not match the model '{model}' of the first request."
        return BatchProblem("mismatched_model", f"{text} A batch has requests for one model.", "body.model")
    return None


def entry(custom_id: str, body: dict[str, Any], kind: str, dialect: Dialect, model: str = "") -> BatchEntry:
    """One request of a batch; ``model`` where the body does not name it."""
    content = sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
    return BatchEntry(custom_id, dialect.read(kind, dump(body), model), content)


def below(path: str) -> str:
    """A path of OpenAI's API below its version."""
    return path.removeprefix("/v1")
