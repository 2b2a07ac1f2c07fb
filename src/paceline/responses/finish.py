"""What the model has finished: the text of an answer, its thoughts and calls, and why it ended, in the form of every API.

A status of 200 says that the provider has answered. It doesn't say that the model has: an answer may be cut off, declined, blocked
or empty. :func:`finish_of` reads a whole body by the first row of :data:`FORMS` that fits.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from paceline.core.results import UnfinishedError, public
from paceline.responses.errors import blocks, error_in, has_content, message_of
from paceline.responses.values import LISTS, MAPPING, as_mapping, as_text, at, table_beside


class State(StrEnum):
    """How far the model has come with an answer."""

    COMPLETE = "complete"
    TOOL_CALL = "tool_call"
    """It asks for a tool, which is an answer."""
    CUT_OFF = "cut_off"
    """It has reached the maximum of tokens."""
    DECLINED = "declined"
    """The model does not want to answer."""
    BLOCKED = "blocked"
    """A filter of the provider has removed the prompt or the answer."""
    EMPTY = "empty"
    """There is no text, or the provider has broken off."""
    PAUSED = "paused"
    """It has not ended: the model would go on if it were sent its answer so far, or is at work in the background."""


FINISHED: Final = frozenset({State.COMPLETE, State.TOOL_CALL})
"""The states of an answer that is one."""


@public
@dataclass(frozen=True, slots=True)
class Finish:
    """What the model has finished.

    Attributes:
        state: How far it has come.
        reason: Why it has ended, in the provider's word; empty if it gives none.
        text: The model's text, without its thoughts.
        thoughts: Its thoughts, where the provider shows them.
        calls: The tools that it calls, each with ``name`` and ``arguments``.
        words: What it, or the filter, says of a refusal.
    """

    state: State
    reason: str = ""
    text: str = ""
    thoughts: str = ""
    calls: tuple[dict[str, Any], ...] = ()
    words: str = ""

    @property
    def answer(self) -> str:
        """The text; of a call of tools, their JSON."""
        return json.dumps(self.calls, ensure_ascii=False) if self.state is State.TOOL_CALL else self.text

    @property
    def problem(self) -> str:
        """Why there is no finished answer, as a sentence without the text; empty if there is one."""
        if self.state in FINISHED:
            return ""
        said = " ".join(self.words.split())[:WORDS_MAX]
        is_broken = self.state is State.EMPTY and self.text.strip()
        problem: str = _ANSWERS["problems"]["broken" if is_broken else self.state]
        return problem + (f" ({self.reason})" if self.reason else "") + (f": {said}" if said else "")

    def whole(self) -> str:
        """The text; of a call of tools, their JSON.

        Raises:
            UnfinishedError: The model has not finished it.
        """
        if self.state not in FINISHED:
            raise UnfinishedError(self.state.value, self.problem, self.text)
        return self.answer


_ANSWERS: Final = table_beside(__file__, "answers")

STATES: Final = {reason: State(state) for state, reasons in _ANSWERS["reasons"].items() for reason in reasons}
"""The reasons of an answer that is not finished, in lower case. Any other one ends an answer if there is a text."""


_KINDS: Final = ("said", "thought", "words", "call", "data")
"""What parts of answers are: text, or parts of kinds of their own; thoughts; words of a refusal; calls; an image or a sound."""


def _kinds(names: Mapping[str, list[str]]) -> dict[str, str]:
    return {name: kind for kind in _KINDS for name in names.get(kind, ())}


_FIELDS, _TYPES = _kinds(_ANSWERS["fields"]), _kinds(_ANSWERS["types"])


class AnswerForm(NamedTuple):
    """Where the answer of an API is, as ``answers.toml`` has it."""

    has: tuple[str, ...]
    reads: Mapping[str, str]
    why: tuple[str, ...] = ()
    generates: bool = True


_BLOCKS: Final = ("promptFeedback.blockReason", "prompt_feedback.block_reason")

FORMS: Final = tuple(
    AnswerForm(tuple(row["has"]), _kinds(row), tuple(row.get("why", ())), row.get("generates", True))
    for row in _ANSWERS["forms"]
)
"""The forms of answers; the first one whose path is there holds."""

WORDS_MAX: Final = 1_000
"""Characters of what a model or a filter says in a message: an excuse, and not an answer."""

_FIRST: Final = frozenset(path.partition(".")[0] for form in FORMS for path in form.has)
"""The fields by which forms are recognised."""


class _Read:
    """What was found in an answer by its kind, in the order of its fields."""

    def __init__(self, body: Any, form: AnswerForm) -> None:
        self.of: dict[str, list[Any]] = defaultdict(list)
        self._calls: dict[str, Any] = {}
        for path, kind in form.reads.items():
            if (value := at(body, path)) is not None:
                self.take(value, kind)
        self.text, self.thoughts = self._texts()

    def take(self, value: Any, kind: str) -> None:
        """Sort what ``value`` contains."""
        if isinstance(value, LISTS):
            # A call whose output is there was made by the provider: of a hosted shell, of a search among tools.
            made = {_call_of(one) for one in value if as_text(at(one, "type")).endswith("_output")}
            for one in value:
                if not (made and _call_of(one) in made and _TYPES.get(as_text(at(one, "type"))) == "call"):
                    self.take(one, kind)
        elif kind == "call":
            self._call(value)
        elif kind == "data" or isinstance(value, str):
            self.of[kind].append(value)
        elif isinstance(value, MAPPING):
            self._part(value, kind)

    def _part(self, part: Mapping[str, Any], kind: str) -> None:
        named = part.get("type") or part.get("part_kind")
        own = _TYPES.get(named) if isinstance(named, str) else "said"
        if own is None:
            return
        if own in ("call", "data"):
            self.take(part, own)
            return
        if own == "thought" or part.get("thought") is True or part.get("phase") == "commentary":
            kind = "thought"
        for name, value in part.items():
            if value and (inner := _FIELDS.get(name)) is not None:
                self.take(value, kind if inner == "said" else inner)

    def _call(self, value: Any) -> None:
        call = as_mapping(value)
        id_of = as_text(call.get("id"))
        call = as_mapping(call.get("function")) or as_mapping(call.get("custom")) or call
        names = ("arguments", "input", "args", "parameters", "action", "actions", "operation")
        arguments: Any = next((call[name] for name in names if call.get(name) is not None), {})
        if isinstance(arguments, str):
            with suppress(ValueError, RecursionError):  # of a tool that takes a text, or cut off
                arguments = json.loads(arguments)
        own = as_text(call.get("name")) or as_text(call.get("tool_name"))
        name = own or as_text(call.get("type"))
        found = {"name": name, "arguments": arguments}
        if id_of and self._calls.get(id_of) == found:  # LangChain has Anthropic's blocks, and its own calls beside them
            return
        if own or name in _ANSWERS["unnamed_calls"]:
            self._calls[id_of] = found
            self.of["call"].append(found)

    def _texts(self) -> tuple[str, str]:
        """The text and the thoughts. Some hosts of open models leave the thoughts in front of the text, in the model's own tags.

        The first tag is missing where it ends the prompt (the templates of Qwen3 Thinking and DeepSeek R1; their model cards, 2026).
        """
        text, thoughts = "".join(self.of["said"]), "".join(self.of["thought"])
        start = text.lstrip()
        inside, end, rest = start.removeprefix("<think>").partition("</think>")
        if start.startswith("<think>") or (end and rest.startswith("\n") and "<think>" not in inside):
            thoughts, text = thoughts + inside.strip(), rest.lstrip()
        return text, thoughts


def _call_of(item: Any) -> tuple[str, str]:
    """What a call and its output have in common: the tool, and the call's id, which some have not."""
    return as_text(at(item, "type")).removesuffix("_output").removesuffix("_call"), as_text(at(item, "call_id"))


def form_of(body: Any) -> AnswerForm | None:
    """The form of an answer; ``None`` if no API that generates text has it."""
    if isinstance(body, dict) and _FIRST.isdisjoint(body):
        return None
    for form in FORMS:
        for path in form.has:
            if at(body, path) is not None:
                return form
    return None


def finish_of(body: Any) -> Finish:
    """What the model has finished in an answer, of any API.

    Args:
        body: The JSON value of the whole answer; or its text, where it is not JSON.

    Returns:
        The finish. Of an API that generates no text, such as embeddings, the text is the JSON of its result. An error
        is no result: some gateways put it into an answer with status 200.
    """
    if isinstance(body, str):
        return Finish(State.COMPLETE, text=body)
    form = form_of(body)
    if form is None:
        return _of_data(body)
    found = _Read(body, form)
    state, reason = _state(body, form, found)
    if state is State.EMPTY and (failed := _of_error(body)) is not None:
        return failed
    explained = (as_text(at(body, path)) for path in _ANSWERS["said_of_it"])
    words = "".join(found.of["words"]) or next(filter(None, explained), "")
    text = found.text or (_as_json(found.of["data"]) if found.of["data"] else "")
    return Finish(state, reason, text, found.thoughts, tuple(found.of["call"]), words)


def _as_json(value: Any) -> str:
    """The JSON of a value, with an SDK's images and sounds as its API sends them."""
    on_the_wire = lambda one: base64.b64encode(one).decode() if isinstance(one, bytes) else str(one)  # noqa: E731
    return json.dumps(value, ensure_ascii=False, default=on_the_wire)


def state_of(body: Any) -> State:
    """The state alone, of an answer that is JSON: for what passes every answer on, in a fraction of the time."""
    form = form_of(body)
    return State.COMPLETE if form is None else _state(body, form, _Read(body, form))[0]


def _state(body: Any, form: AnswerForm, found: _Read) -> tuple[State, str]:
    """The state of an answer, and the provider's reason."""
    reason = _reason(body, form.why)
    blocked = _BLOCKS[0] in form.why and _reason(body, _BLOCKS)
    state = State.BLOCKED if blocked else _of_reason(reason)
    if state is not None:
        return state, reason
    if goes_on(body):
        return State.EMPTY, reason
    if found.of["words"]:
        return State.DECLINED, reason
    if found.of["call"]:
        return State.TOOL_CALL, reason
    if found.text.strip() or found.of["data"] or not form.generates:
        return State.COMPLETE, reason
    return State.EMPTY, reason


def _of_reason(reason: str) -> State | None:
    """The state that a reason tells of; ``None`` if it ends an answer."""
    return STATES.get(reason) or STATES.get(reason.lower())


def _of_data(body: Any) -> Finish:
    """The finish of an answer without a generated text: its result as JSON."""
    if not isinstance(body, MAPPING):
        return _of_error(body) or Finish(State.COMPLETE if body else State.EMPTY, text=_as_json(body))
    job = as_text(body.get("status")) if "id" in body else ""
    if STATES.get(job.lower()) is State.EMPTY:
        return Finish(State.EMPTY, job, words=as_text(body.get("error")))
    if (failed := _of_error(body)) is not None:
        return failed
    rest = {name: value for name, value in body.items() if name not in _ANSWERS["envelope"] and value is not None}
    if not rest:  # it is made later
        return Finish(State.COMPLETE, text=_as_json(dict(body))) if job else Finish(State.EMPTY)
    name, value = next(iter(rest.items())) if len(rest) == 1 else ("", rest)
    if name in _ANSWERS["made"] and (lacks := _lack_of(value)) is not None:
        return lacks
    return Finish(State.COMPLETE, text=value if isinstance(value, str) else _as_json(value))


def _lack_of(made: Any) -> Finish | None:
    """The finish of a list of no pictures, or of those that a filter has all kept back; ``None`` if there is one."""
    if not isinstance(made, LISTS):
        return None
    why = [as_text(at(one, field)) for one in made for field in _ANSWERS["filtered"]]
    if made and sum(map(bool, why)) < len(made):
        return None
    return Finish(State.BLOCKED if made else State.EMPTY, words="".join(why[:2]))


def _of_error(body: Any) -> Finish | None:
    """The finish of an error in place of an answer; ``None`` if there is no error, or a content beside it."""
    error = error_in(body)
    if error is None or has_content(body):
        return None
    state = State.BLOCKED if blocks(body) else State.EMPTY
    return Finish(state, as_text(error.get("code") or error.get("type"))[:100], words=message_of(error))


def _reason(body: Any, paths: tuple[str, ...]) -> str:
    """The first reason at ``paths``, as the wire or an SDK's enumeration has it."""
    for path in paths:
        reason = at(body, path)
        if isinstance(reason, str) and reason not in ("", "null"):  # DashScope has the second one until the end
            word = str(reason)
            return (word if "." not in word else word.rpartition(".")[2])[:100]
    return ""


_IN_EVENTS: Final = (
    *dict.fromkeys(path for form in FORMS for path in form.why if path != "status"),
    *_ANSWERS["why_in_events"],
)
"""Where the events of streams have the reason."""


def goes_on(line: Any) -> bool:
    """Whether an object of a stream with one in each line says that others follow."""
    return isinstance(line, MAPPING) and False in map(line.get, _ANSWERS["over"])


SIGNS: Final = (b'eason":"', b'eason": "', b'"refusal":"', b'"refusal": "')
"""An event of a stream that ends an answer contains one of these."""

_CALLS: Final = frozenset({"tool_calls", "tool_call", "tool_use", "function_call"})


def state_in(event: Any) -> State | None:
    """The state of an answer, from an event of its stream; ``None`` for an event that does not end it.

    An answer without a text cannot be told from one with a text here.
    """
    whole = at(event, "response")
    if is_last(event) and isinstance(whole, MAPPING):
        return finish_of(whole).state
    if at(event, "choices.0.delta.refusal"):
        return State.DECLINED
    reason = _reason(event, _IN_EVENTS)
    if not reason:
        return None
    if _reason(event, _BLOCKS):
        return State.BLOCKED
    return _of_reason(reason) or (State.TOOL_CALL if reason.lower() in _CALLS else State.COMPLETE)


def _kind_of(event: Any) -> str:
    return as_text(at(event, "type")) or as_text(at(event, "event_type"))


def promises_end(event: Any) -> bool | None:
    """Whether a stream with this first event is of an API that always says where the answer ends; ``None`` for a ping.

    A stream of an unknown form may just stop. So may one with ``choices`` that have nothing else of OpenAI's chunks (Snowflake's
    inference:complete, the schema of 2026).
    """
    kind = _kind_of(event)
    if kind in _ANSWERS["pings"]:
        return None
    if at(event, "choices") is not None:
        return "object" in event or "finish_reason" in as_mapping(at(event, "choices.0"))
    return kind in _ANSWERS["starts"] or any(at(event, path) is not None for path in _ANSWERS["promises"])


def is_last(event: Any) -> bool:
    """Whether an event of a stream is by its type the last one."""
    return _kind_of(event) in _ANSWERS["ends"]


PENDING: Final = ("queued", "in_progress", "CREATED", "IN_PROGRESS")
"""The states of an answer before it is whole (https://developers.openai.com/api/docs/guides/background, 2026), and of Perplexity's
asynchronous ones (its API reference, 2026)."""


def job_of(payload: Any) -> str | None:
    """The id of an answer that is not made yet; ``None`` for any other answer."""
    if not isinstance(payload, MAPPING) or payload.get("status") not in PENDING:
        return None
    job = payload.get("id")
    return job if isinstance(job, str) and job else None
