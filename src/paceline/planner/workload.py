"""Work for a plan: a file of phases, or a list of calls. Each item of work is a sequence of stages of parallel calls."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final, TypeVar

from paceline.config.sources import Problems, read_file
from paceline.core.queue import LaneSpec
from paceline.emulator.prompt_cache import PromptPart
from paceline.planner.wire import Request

CALLS_MAX = 200_000
"""The most calls of one plan: 40 s of computing on two shared CPUs."""

TURNS_MAX = 1_000
"""The most calls of each model in a phase."""

LIFE: Final = "5m"
"""How long the provider is asked to cache each prompt."""

T = TypeVar("T", int, float)

Stages = Iterable[Sequence[Request]]
"""The calls of one item, taken once: the stages follow each other, and the calls of a stage are made at the same time."""

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*(s|min|h)", re.ASCII)
_PERIODS = {"s": 1.0, "min": 60.0, "h": 3_600.0}


@dataclass(frozen=True, slots=True)
class Item:
    """One item of work.

    Attributes:
        stages: Its calls.
        arrives_s: The earliest start, in seconds since the start of the plan.
    """

    stages: Stages
    arrives_s: float = 0.0


def _check_arrivals(arrivals: str | list[float] | None) -> None:
    """Refuse arrivals that are no rate and no instants."""
    if isinstance(arrivals, str) and not _RATE.fullmatch(arrivals):
        raise ValueError(f"arrivals is {arrivals!r}: write it like '20/min', or as a list of seconds")
    if isinstance(arrivals, str) and not float(arrivals.partition("/")[0]):
        raise ValueError(f"arrivals is {arrivals!r}: no item ever arrives")
    if arrivals == []:
        raise ValueError("arrivals is empty: no item ever arrives")
    if isinstance(arrivals, list) and not all(0 <= at_s < 1e9 for at_s in arrivals):
        raise ValueError("arrivals has a number that is no time: seconds since the start, of 0 or more")


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a plan.

    Attributes:
        items: The items, in the order of their arrival; they are taken once.
        models: The models that they call.
        workers: How many items are in work at the same time; ``None``: as many as arrive.
        duration_s: When the plan ends although there are items left; ``None``: with the last item.
        lanes: The lanes of its calls.
        provider: Settings of the simulated provider (:class:`~paceline.emulator.Settings`).
        limits: By model the limits that its file states.
        left_out: How many calls there are beyond ``items``, because a plan is bounded.
    """

    items: Iterable[Item]
    models: Collection[str]
    workers: int | None = None
    duration_s: float | None = None
    lanes: Sequence[LaneSpec] = ()
    provider: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, str | list[str]] = field(default_factory=dict)
    left_out: int = 0


class Conversation:
    """An agent's requests: each prompt is the one before, the answer to it, and what came after that.

    Args:
        model: The pool, as for :meth:`Limiter.acquire <paceline.Limiter.acquire>`.
        name: What tells its messages from other conversations'.
        prompt: The size of the first prompt, in tokens.
        shared: The part of it that all conversations of the model begin with: tools and a system text.
        among: What tells the shared part from other groups of conversations'.

    Attributes:
        tokens: The size of the next prompt.
    """

    __slots__ = ("_model", "_name", "_parts", "tokens")

    def __init__(self, model: str, name: str, prompt: int, *, shared: int = 0, among: str = "") -> None:
        self._model, self._name, self.tokens = model, name, prompt
        self._parts = [PromptPart("system", f"shared {among}", shared, LIFE)] if shared else []
        self._append(prompt - shared)

    def request(self, output_tokens: int, **fields: Any) -> Request:
        """The next turn, with further ``fields`` of :class:`~paceline.planner.wire.Request`."""
        *before, last = self._parts
        parts = (*before, last._replace(life=LIFE))
        return Request(self._model, self.tokens, output_tokens, parts=parts, **fields)

    def grow(self, tokens: int) -> None:
        """The answer has come, and a message after it: the prompt is ``tokens`` longer."""
        self.tokens += tokens
        self._append(tokens)

    def _append(self, tokens: int) -> None:
        self._parts.append(PromptPart("user", f"{self._name}/{len(self._parts)}", tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSizes:
    """How large the calls of a phase are.

    Attributes:
        input_tokens: The input of a call; of two numbers, evenly between them.
        output_tokens: The output of a call, in the same way.
        max_output_tokens: The most output that a request allows; the output itself when not given.
    """

    input_tokens: int | list[int] = 500
    output_tokens: int | list[int] = 200
    max_output_tokens: int | None = None

    def asked(self, random: Random) -> int:
        """The input of one call."""
        return random.randint(*_bounds(self.input_tokens))

    def written(self, random: Random) -> int:
        """The output of one call."""
        return random.randint(*_bounds(self.output_tokens))

    def most(self, output: int) -> int:
        """The most output that the request for this output allows."""
        return output if self.max_output_tokens is None else self.max_output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkPhase(CallSizes):
    """A table ``[[phases]]`` of a workload file.

    Attributes:
        name: Its name, which its lane has, too.
        models: The model, or several: each of them is called.
        in_turn: Of several models, each item calls one.
        calls: How many times each model is called.
        parallel: Whether the calls are made at the same time; otherwise one after the other.
        grows: The calls of an item are the turns of a conversation, whose prompts the provider caches: ``input_tokens`` is
            the first prompt, and each further one is longer by this, the answer included.
        shared_tokens: The part of the prompts that all conversations begin with.
        think_s: Seconds from an answer to the next call; of two numbers, evenly between them.
        weight: The weight of the lane.
        priority: The priority of the lane.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    name: str
    models: str | list[str]
    in_turn: bool = False
    calls: int = 1
    parallel: bool = False
    grows: int | None = None
    shared_tokens: int = 0
    think_s: float | list[float] = 0.0
    weight: float = 1.0
    priority: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        if not 1 <= self.calls <= TURNS_MAX:
            raise ValueError(f"calls is {self.calls}: it must be from 1 to {TURNS_MAX:,}")
        for name, most in (("input_tokens", 10_000_000), ("output_tokens", 10_000_000), ("think_s", 1_000_000)):
            bounds = _bounds(getattr(self, name))
            if len(bounds) != 2 or not 0 <= bounds[0] <= bounds[1] <= most:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be a number, or two in ascending order")
        if self.max_output_tokens is not None and self.max_output_tokens < _bounds(self.output_tokens)[1]:
            raise ValueError(f"max_output_tokens is {self.max_output_tokens}: it must be at least output_tokens")
        if not self.names:
            raise ValueError("models is empty: name at least one")
        if self.grows is None:
            return
        if self.parallel or not (self.in_turn or len(self.names) == 1):
            raise ValueError("grows makes the calls the turns of a conversation: give one model, and not parallel")
        if not 0 <= self.grows <= 1_000_000:
            raise ValueError(f"grows is {self.grows}: it must be from 0 to 1,000,000")
        if not 0 <= self.shared_tokens < _bounds(self.input_tokens)[0]:
            raise ValueError(f"shared_tokens is {self.shared_tokens}: it must be less than input_tokens")

    @property
    def names(self) -> list[str]:
        """The models."""
        return [self.models] if isinstance(self.models, str) else self.models

    def stages(self, number: int, random: Random) -> Stages:
        """The calls of the item ``number``."""
        names = [self.names[number % len(self.names)]] if self.in_turn else self.names
        if self.grows is not None:
            prompt = self.asked(random)
            turns = [(self.written(random), self._pause_s(random)) for _ in range(self.calls)]
            talk = Conversation(names[0], f"{self.name}-{number}", prompt, shared=self.shared_tokens)
            return self._turns(talk, turns, self.grows)
        calls = [[self._call(name, random) for name in names] for _ in range(self.calls)]
        if self.parallel:
            calls = [[call for stage in calls for call in stage]]
        return calls

    def _turns(self, talk: Conversation, turns: Iterable[tuple[int, float]], grows: int) -> Iterator[list[Request]]:
        """The turns of a conversation, each made when it is needed: together their prompts are long."""
        for turn, (output, pause_s) in enumerate(turns):
            after_s = pause_s if turn else 0.0
            yield [talk.request(output, max_output_tokens=self.most(output), lane=self.name, after_s=after_s)]
            talk.grow(grows)

    def _pause_s(self, random: Random) -> float:
        least, most = _bounds(self.think_s)
        return random.uniform(least, most) if most > least else least

    def _call(self, model: str, random: Random) -> Request:
        asked, output = self.asked(random), self.written(random)
        return Request(model, asked, output, self.most(output), lane=self.name, after_s=self._pause_s(random))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The content of a workload file; see docs/plan.md.

    Attributes:
        phases: The phases of every item, in order.
        items: How many items there are.
        workers: How many are in work at the same time; all when not given.
        duration: When the plan ends, e.g. ``1h``, although there are items left.
        arrivals: When the items arrive: all at the start when not given; ``20/min``: evenly; or a list of seconds.
        limits: The limits by model, as in a configuration.
        provider: Settings of the simulated provider, e.g. ``latency_s`` and ``latency_per_token_s``.
        seed: Another seed gives other sizes.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    phases: list[WorkPhase]
    items: int | None = None
    workers: int | None = None
    duration: str | None = None
    arrivals: str | list[float] | None = None
    limits: dict[str, str | list[str]] = field(default_factory=dict)
    provider: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if not self.phases:
            raise ValueError("phases is empty: write at least one [[phases]]")
        if len({phase.name for phase in self.phases}) < len(self.phases):
            raise ValueError("two phases have the same name: give each its own")
        if self.items is None and self.duration is None and not isinstance(self.arrivals, list):
            raise ValueError("the number of items is missing: write items = 1000, or duration = '1h'")
        for name in ("items", "workers"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= 1_000_000:
                raise ValueError(f"{name} is {value}: it must be from 1 to 1,000,000")
        _check_arrivals(self.arrivals)
        if self.duration is not None:
            seconds_of(self.duration)

    def work(self) -> Work:
        """The work that it describes."""
        each = sum(phase.calls * (1 if phase.in_turn else len(phase.names)) for phase in self.phases)
        arrivals, most = self._arrivals(), CALLS_MAX // each
        left_out = 0 if self.duration is not None else max(len(arrivals) - most, 0) * each
        return Work(
            self._items(arrivals[:most]),
            models=list(dict.fromkeys(name for phase in self.phases for name in phase.names)),
            workers=self.workers,
            duration_s=None if self.duration is None else seconds_of(self.duration),
            lanes=[LaneSpec(phase.name, phase.weight, phase.priority) for phase in self.phases],
            provider={"cache": any(phase.grows is not None for phase in self.phases), **self.provider},
            limits=self.limits,
            left_out=left_out,
        )

    def _items(self, arrivals: Iterable[float]) -> Iterator[Item]:
        random = Random(self.seed)
        for number, at_s in enumerate(arrivals):
            yield Item(chain.from_iterable([phase.stages(number, random) for phase in self.phases]), at_s)

    def _arrivals(self) -> list[float]:
        """When items arrive, in seconds since the start."""
        most = CALLS_MAX if self.items is None else self.items
        if isinstance(self.arrivals, list):
            return sorted(self.arrivals)[:most]
        match = _RATE.fullmatch(self.arrivals or "")
        every_s = 0.0 if match is None else _PERIODS[match[2]] / float(match[1])
        return [number * every_s for number in range(most)]


def _bounds(given: T | list[T]) -> list[T]:
    """The least and the most of a value that is one number, or two."""
    return given if isinstance(given, list) else [given, given]


_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*(s|min|h|d)", re.ASCII)


def seconds_of(text: str) -> float:
    """The seconds of a duration like ``6h``, ``90min``, ``45s`` or ``1d``.

    Raises:
        ValueError: It has another form, or is 0.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise ValueError(f"{text!r}: write it like '6h', '90min', '45s' or '1d'")
    return float(match[1]) * (_PERIODS | {"d": 86_400.0})[match[2]]


def read_workload(path: str | PathLike[str]) -> Work:
    """Read a workload file, TOML or YAML.

    Raises:
        SettingsError: The file cannot be read, or a field is invalid; the message names all of them.
    """
    from pydantic import TypeAdapter, ValidationError

    problems = Problems()
    source = read_file(Path(path), problems)
    problems.check()
    try:
        return TypeAdapter(Workload).validate_python(source.values, strict=False).work()
    except ValidationError as error:
        found: dict[tuple[str, ...], str] = {}
        for one in error.errors():  # of a field with several forms, a problem for each
            place = tuple(
                str(part) for part in one["loc"] if not str(part).startswith(("str", "list[", "int", "float"))
            )
            found[place] = _plain(one) if place not in found else f"{FORMS.get(place[-1], 'it has another form')}"
        for place, words in found.items():
            problems.add(source.place(place) if place else source.where, words)
    problems.check()
    raise AssertionError("a workload that is invalid has problems")


FORMS = {
    "models": "write the name of a model, or a list of names",
    "arrivals": "write it like '20/min', or as a list of seconds",
    "input_tokens": "write a number, or two for sizes between them",
    "output_tokens": "write a number, or two for sizes between them",
    "think_s": "write seconds, or two numbers for times between them",
}
"""What is right in fields of several forms."""


def _plain(problem: Any) -> str:
    """A problem that pydantic found, as a sentence that says what would be right."""
    if problem["type"] == "unexpected_keyword_argument":
        return "there is no such field"
    if problem["type"] == "missing":
        return "this field is missing"
    return str(problem["msg"]).removeprefix("Value error, ")


def of_calls(calls: Iterable[Request], *, workers: int | None, most: int = CALLS_MAX) -> Work:
    """Work of single calls, in their order; those beyond ``most`` are counted only. Its items can be taken again."""
    calls = iter(calls)
    made = list(islice(calls, most))
    models = list(dict.fromkeys(call.model for call in made))
    return Work([Item([[call]]) for call in made], models, workers, left_out=sum(1 for _ in calls))
