"""What a run takes for an answer: one that the model has finished, in the form that was asked for.

It is decided once, when an answer is recorded, so that the counts, the exit status, the page and the table say the same. A journal is
judged by the same rules when it is read. :func:`is_unpaid` says which results of a batch are no answer and no fault of their requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, Final, NamedTuple

from paceline.core.results import RefusalKind, SettingsError
from paceline.pacing.faults import PASSING
from paceline.providers.embeddings import is_vector, vector_of
from paceline.providers.forms import table
from paceline.providers.refusals import meaning
from paceline.responses.errors import blocks, is_result
from paceline.responses.finish import FINISHED, Finish, State, finish_of
from paceline.responses.values import at

UNREAD: Final = "result_unread"
"""The error's code of a request that the provider may have answered and charged: only ``--repair`` sends it again."""

INVALID: Final = "invalid"
"""The name of an answer that does not have the form of the schema."""

NAMES: Final = (*(state.value for state in State if state not in FINISHED), INVALID)
"""The codes of errors of answers that came with status 200."""

ANSWER: Final = 2
"""The rank of a record that is an answer: see :attr:`Recorded.rank`."""

UNSTABLE: Final = frozenset({State.EMPTY.value, INVALID})
"""The ones that are tried once more in their run, and by the next one. Another attempt at the others costs the same and ends the same."""

REPEATED: Final = "repeated"
"""The field of a record's error that says that a second run was given no better answer: it is no chance, and final. A run that goes on
with one that had not ended is no second run."""

KEEP, RAISE = "keep", "raise"

RAISED: Final = 4
"""By what ``raise`` multiplies the maximum of tokens: reasoning models often need several times what the answer needs."""

TEXT_MAX: Final = 2_000
"""Characters of an unfinished text in the error of a row; the journal has the whole of it."""

_KEYWORDS: Final = frozenset(
    {"type", "properties", "enum", "const", "anyOf", "oneOf", "allOf", "not", "items", "required", "if"}
)
"""Without any of them, a mapping allows every answer: it is the form of an answer, and no schema."""

_PASSES: Final = frozenset([RefusalKind.RATE, RefusalKind.GROWTH, RefusalKind.CAPACITY])

_STATUSES: Final = (PASSING | {429}) - {501, 505}
"""The statuses of requests that can be sent again as they are; not what a server says that it never does."""

_OF_SERVERS: Final = "server_error internal_error internal_server_error api_error timeout_error"  # OpenAI, Anthropic
_OF_CALLS: Final = "cancelled unknown deadline_exceeded aborted internal data_loss unavailable"  # google.rpc.Code
_CODES: Final = frozenset(f"{_OF_SERVERS} {_OF_CALLS}".split())
"""The codes of such errors that are not refusals, which :func:`~paceline.providers.refusals.meaning` knows."""

_UNDONE: Final = re.compile(
    r"cancel|expire|time[d]?[_ -]?out|deadline|abort|interrupt|stopped|shut[_ -]?down|unprocessed"
    r"|(?:not|never)[_ -](?:been[_ -])?(?:executed|processed|started|run|completed)",
    re.IGNORECASE,
)
"""What errors of requests say that the batch's end has left: ``batch_expired``, ``batch_cancelled`` and ``request_timeout`` are OpenAI's
(API reference, the request output object, 2026-11)."""


NAMELESS: Final = frozenset(["", "no_answer", "errored", "batch_error"])
"""The codes of errors that name none."""


class Told(NamedTuple):
    """A record for a table.

    Attributes:
        value: The answer; ``None`` if there is none.
        error: The code, what it means, and the text that the model has not finished; ``None`` for an answer.
        finish: How far the model has come; ``None`` without an answer of it.
        text: What the model has said in an answer that is none; ``None`` if it has said nothing.
    """

    value: Any
    error: str | None
    finish: str | None = None
    text: str | None = None


class Recorded(NamedTuple):
    """What a record of a journal says.

    Attributes:
        ok: Whether it is an answer; ``None`` if the request may be answered, and no result of it was read.
        name: What is wrong with it.
        again: Whether this run sends its request again.
        paid: Whether the model has answered, or may have.
    """

    ok: bool | None
    name: str = ""
    again: bool = False
    paid: bool = False

    @property
    def rank(self) -> int:
        """Which of several records of a request counts: an answer, or else one that is paid for."""
        return ANSWER if self.ok else int(self.paid)


@dataclass(frozen=True)
class Acceptance:
    """The answers that a run takes.

    Attributes:
        schema: The form of an answer: a JSON schema, or a model of pydantic.
        cut_off: What happens to an answer that has reached the maximum of tokens: ``keep`` takes it, ``raise`` asks once more with
            four times the maximum, a number with this one; by default it is an error.
        again: The names of errors that are sent again although they are final.

    Raises:
        SettingsError: The schema is none, or a name is unknown.
    """

    schema: Any = None
    cut_off: str | int | None = None
    again: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Refuse settings that are none."""
        if unknown := sorted(self.again - set(NAMES)):
            raise SettingsError(f"again: {unknown[0]!r} is no name of an error of this kind: {', '.join(NAMES)}")
        number = isinstance(self.cut_off, int) and not isinstance(self.cut_off, bool) and self.cut_off > 0
        if not (number or self.cut_off in (None, KEEP, RAISE)):
            raise SettingsError(f"cut_off is {self.cut_off!r}: write 'keep', 'raise', or the maximum of tokens")
        if isinstance(self.schema, Mapping):
            require_schema(self.schema)

    @classmethod
    def parse(cls, schema: Any, cut_off: str | int | None, again: str | Iterable[str] | None) -> Acceptance:
        """The acceptance in the words of a user: ``--cut-off 8000``, ``--again declined,blocked``, and so from Python."""
        number = int(cut_off) if isinstance(cut_off, str) and cut_off.isdigit() else cut_off
        given = [again] if isinstance(again, str) else again or ()
        names = [name.strip() for one in given for name in str(one).split(",")]
        return cls(schema, number, frozenset(filter(None, names)))

    @property
    def raises(self) -> bool:
        """Whether an answer that is cut off is asked for once more."""
        return self.cut_off is not None and self.cut_off != KEEP

    def error_of(self, response: dict[str, Any] | None, error: dict[str, Any] | None) -> dict[str, Any] | None:
        """The error to record beside an answer; ``None`` for one that this run takes.

        A message has what the model says of a refusal, and nothing else of an answer.

        Args:
            response: ``status_code`` and ``body``; ``None`` without an answer.
            error: The error of the transport.
        """
        if response is None or not isinstance(response.get("body"), dict | list | str):
            return error
        if error is None:
            return self._judged(response["body"])[1]
        if response["status_code"] in (400, 403, 422) and blocks(response["body"]):
            return {"code": State.BLOCKED.value, "message": "a filter of the provider blocked the prompt"}
        return error

    def _judged(self, body: Any) -> tuple[Finish, dict[str, Any] | None, Any]:
        """The finish, the error, and the value of an answer."""
        if (vector := vector_of(body)) is not None:
            return self._judged_vector(vector)
        finish = finish_of(body)
        is_kept = finish.state is State.CUT_OFF and self.cut_off == KEEP and finish.text
        if finish.problem and not is_kept:
            return finish, {"code": finish.state.value, "message": finish.problem}, None
        if self.schema is None or finish.state is State.TOOL_CALL:
            return finish, None, finish.answer
        value, wrong = self._formed(finish.text)
        if wrong and is_kept:
            return finish, {"code": State.CUT_OFF.value, "message": finish.problem}, None
        if wrong:
            return finish, {"code": INVALID, "message": f"the answer does not match the schema ({wrong})"}, None
        return finish, None, value

    @staticmethod
    def _judged_vector(vector: list[Any]) -> tuple[Finish, dict[str, Any] | None, Any]:
        if not vector:
            return Finish(State.EMPTY), {"code": State.EMPTY.value, "message": "the answer has no vector"}, None
        if is_vector(vector):
            return Finish(State.COMPLETE), None, vector
        return Finish(State.COMPLETE), {"code": INVALID, "message": "the vector has values that are no numbers"}, None

    def _formed(self, text: str) -> tuple[Any, str]:
        """The answer in the form of the schema, or what is wrong with it."""
        try:
            if not isinstance(self.schema, Mapping):
                return self.schema.model_validate_json(text).model_dump(mode="json"), ""
            value = json.loads(text)
            wrong = next(self._validator.iter_errors(value), None)
        except Exception as invalid:  # noqa: BLE001  (of a validator of the user, or a reference to nothing: the answer is paid)
            return None, type(invalid).__name__
        return value, "" if wrong is None else f"at {wrong.json_path}: {wrong.validator}"

    @cached_property
    def _validator(self) -> Any:
        return import_module("jsonschema").validators.validator_for(self.schema)(self.schema)

    def told(self, record: Mapping[str, Any]) -> Told:
        """What a table has of a record."""
        finish, error, value = self._read(record["response"], record["error"])
        if error is None:
            return Told(value, None, None if finish is None else finish.state.value)
        said = f"{error['code']}: {error['message']}"
        if finish is None:
            return Told(None, said)
        text = "" if finish.state in FINISHED else finish.text[:TEXT_MAX]
        return Told(None, said + (f"; its text: {text}" if text else ""), finish.state.value, finish.text or None)

    def _read(self, response: Any, error: Any) -> tuple[Finish | None, Any, Any]:
        """The finish, the error and the value of what is recorded: an answer of the model is judged anew."""
        if error is None and not is_served(response["status_code"]):
            error = {"code": f"http_{response['status_code']}", "message": "no answer"}
        if error is not None and not (response and _code(error) in NAMES and is_served(response["status_code"])):
            return None, error, None
        if not is_result(response["body"]):
            words = f"the answer has status {response['status_code']} and no result"
            return None, {"code": "no_result", "message": words}, None
        return self._judged(response["body"])

    def recorded(self, response: Any, error: Any) -> Recorded:
        """What a record says: its response and the error beside it, as read from a journal.

        Raises:
            LookupError, TypeError: It is no record.
        """
        if error is not None and _code(error) == UNREAD:
            return Recorded(None, paid=True)
        finish, found, _ = self._read(response, error)
        if found is None:
            return Recorded(True, paid=True)
        name = _code(found)
        if finish is None:
            doubtful = error is None and is_served(response["status_code"])
            final = self._is_final(name, response, found)
            paid = doubtful or is_paid(response, found)
            return Recorded(None if doubtful else False, name, not final or name in self.again, paid)
        if error is None:  # a run before this rule has taken it for an answer
            return Recorded(False, name, name in self.again, paid=True)
        unstable = name in UNSTABLE and not error.get(REPEATED)
        again = unstable or name in self.again or (name == State.CUT_OFF and self._raises_above(error))
        return Recorded(False, name, again, paid=True)

    @staticmethod
    def _is_final(name: str, response: Any, found: Mapping[str, Any]) -> bool:
        """Whether an error without a finish stays: the prompt is blocked, or it has happened twice."""
        if name == State.BLOCKED and response is not None and blocks(response["body"]):
            return True
        return name in UNSTABLE and bool(found.get(REPEATED))

    def _raises_above(self, error: Mapping[str, Any]) -> bool:
        """Whether a request whose answer was cut off gets a larger maximum in this run than it had."""
        had = error.get("max_tokens")
        if not self.raises or not isinstance(had, int):  # without one, the answer has reached the model's own
            return False
        return not error.get("raised") if self.cut_off == RAISE else had < int(self.cut_off or 0)

    def takes_again(self, name: str, before: str | None) -> bool:
        """Whether an answer with the error ``name`` is asked for once more in this run; ``before``: the name in an earlier run."""
        return name in UNSTABLE or (name == State.CUT_OFF and self.raises and before != name)

    def raised(self, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """The body of a request with larger maximums of tokens; ``None`` if it has none, or as large ones."""
        had = _maximums(body) if self.raises else {}
        most = {
            path: n * RAISED if self.cut_off == RAISE else max(n, int(self.cut_off or 0)) for path, n in had.items()
        }
        if most == had:
            return None
        found = deepcopy(dict(body))
        for path, value in most.items():
            holder, _, name = path.rpartition(".")
            (at(found, holder) if holder else found)[name] = value
        return found


class AsWritten(Acceptance):
    """Takes the word of the runs that have written the records, for a reader who does not know their settings."""

    def recorded(self, response: Any, error: Any) -> Recorded:
        """See :meth:`Acceptance.recorded`."""
        found = super().recorded(response, error)
        if error is None and is_served(response["status_code"]) and is_result(response["body"]):
            return Recorded(True)
        return found._replace(ok=False, name=_code(error)) if found.ok else found


def is_served(status: Any) -> bool:
    """Whether a status belongs to an answer. Some servers say 201 to each POST, and the SDKs take their answers.

    With 202 a server only promises one: its body names a job.
    """
    return isinstance(status, int) and 200 <= status < 300 and status != 202


def is_paid(response: Any, error: Any) -> bool:
    """Whether an error is one of an answer of the model, and so was paid for, or of one that may be there."""
    if (code := _code(error)) == UNREAD:
        return True
    return code in NAMES and (not response or is_served(response["status_code"]))


def _code(error: Any) -> str:
    return str(error.get("code")) if isinstance(error, Mapping) else ""


_MAXIMUMS: Final = dict.fromkeys(
    path for row in table("dialects").values() for paths in row.get("maximum", {}).values() for path in paths
) | {"parameters.max_new_tokens": None}
"""Where the bodies of requests have the maximum of their output, in the APIs of all providers and in text generation inference."""


def _maximums(body: Mapping[str, Any]) -> dict[str, int]:
    """The maximums of the output that a body has, by their paths."""
    found = {path: at(body, path) for path in _MAXIMUMS}
    return {path: value for path, value in found.items() if isinstance(value, int) and value > 0}


def maximum_of(body: Mapping[str, Any]) -> int:
    """The smallest maximum of its output that a body has, which :meth:`Acceptance.raised` raises first; 0 if it has none."""
    return min(_maximums(body).values(), default=0)


def require_schema(schema: Mapping[str, Any], where: str = "schema") -> None:
    """Refuse what is no JSON schema; ``where`` it comes from is named.

    Raises:
        SettingsError: It is none, or the package jsonschema is not installed, or too old.
    """
    if not (schema.keys() & _KEYWORDS or any(name.startswith("$") for name in schema)):
        raise SettingsError(
            f"{where}: it is no JSON schema: {', '.join(map(repr, list(schema)[:3])) or 'it is empty'}: write"
            ' {"type": "object", "properties": {...}}'
        )
    try:
        jsonschema, _ = import_module("jsonschema"), import_module("referencing")  # which older versions do without
    except ImportError:
        raise SettingsError(
            f"{where}: answers are checked by jsonschema, 4.18 or later: pip install -U jsonschema"
        ) from None
    if not isinstance(schema.get("$schema", ""), str):
        raise SettingsError(f"{where}: it is no JSON schema: at $.$schema: {schema['$schema']!r:.200} is no address")
    validator = jsonschema.validators.validator_for(schema)
    try:
        validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise SettingsError(f"{where}: it is no JSON schema: at {error.json_path}: {error.message[:200]}") from None
    for name in _lost_references(schema, validator.META_SCHEMA["$schema"]):
        raise SettingsError(
            f"{where}: it has nothing at {name!r}, which a $ref names, and nothing is fetched: put it under $defs"
        )


def _lost_references(schema: Mapping[str, Any], dialect: str) -> Iterator[str]:
    """The references to places that neither a schema of this dialect nor the schemas of all dialects have."""
    root = import_module("referencing.jsonschema").specification_with(dialect).create_resource(schema)
    known = import_module("jsonschema_specifications").REGISTRY
    parts = [(root, known.resolver_with_root(root))]
    while parts:
        part, resolver = parts.pop()
        name = part.contents.get("$ref") if isinstance(part.contents, Mapping) else None
        if isinstance(name, str):  # up to Draft 4, check_schema lets others pass
            try:
                resolver.lookup(name)
            except import_module("referencing.exceptions").Unresolvable:
                yield name
        parts += [(inner, resolver.in_subresource(inner)) for inner in part.subresources()]


def is_unpaid(status: int | None, code: str, words: str) -> bool:
    """Whether a request with this error was neither answered nor paid, so that it can be sent again as it is.

    Args:
        status: The HTTP status of its answer; ``None`` or 0 for no answer.
        code: The error's code; empty for none.
        words: Its message.
    """
    if not status and code.isdecimal() and int(code) >= 400:
        status = int(code)
    failed = status if status and status >= 400 else None  # an error in an answer with status 200 is known by its code
    refusal = meaning(failed, [code] if code else [], words)
    if refusal is not None:
        return refusal.kind in _PASSES
    if failed:
        return failed in _STATUSES
    if code.lower() in _CODES:
        return True
    return not status and _UNDONE.search(words if code in NAMELESS else code) is not None
