"""flatmachines: lanes and buffers by the names of states, and errors under their own names.

The pacing itself is :func:`paceline.instrument`, and needs no hook.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from paceline.core.queue import LaneName, LaneSpec
from paceline.integrations import package
from paceline.pacing.pacer import current_lane

if TYPE_CHECKING:
    from paceline.pacing.buffer import Buffer, Place

_flatmachines = package("flatmachines", "flatmachines>=4.2")

LaneSettings = LaneName | LaneSpec
"""A lane's name, weight and priority; ``None`` for the limiter's own settings of that lane."""

_outside: ContextVar[tuple[tuple[str, LaneSettings], ...]] = ContextVar("paceline_flatmachines_outside", default=())
"""For each enclosing machine in a named state: its execution's id, and the lane outside of that state."""


class PacelineHooks(_flatmachines.MachineHooks):  # type: ignore[misc,name-defined]
    """Hooks that set the lane of a state's calls, also in parallel machines and ``foreach``.

    Register them, and name them at the states that call a model: ``registry.register("lanes", lambda: hooks)``, and
    ``hooks: lanes`` in the machine. One object serves every machine. A state that is not named, and a machine without
    hooks, stay in the lane outside: the lane of the parent state, or of :func:`paceline.lane`.

    Args:
        lanes: By the state's name: the lane's name, with the limiter's settings or the default ones, or a
            :class:`~paceline.LaneSpec` with weight and priority.
        buffers: By the state's name: a :class:`~paceline.Buffer`. A machine takes a place when it enters the first of
            the buffer's states, and gives it back at the transition to a state without that buffer. If the machine
            fails or is cancelled, the end of the task gives the place back; with ``lifecycle_hooks``, the end of the
            machine does. Machines that another machine starts take no place.

    Raises:
        ImportError: flatmachines is not installed.
    """

    def __init__(self, lanes: Mapping[str, str | LaneSpec], buffers: Mapping[str, Buffer] | None = None) -> None:
        self._lanes = {state: _settings(lane) for state, lane in lanes.items()}
        self._buffers = dict(buffers or {})
        self._places: dict[asyncio.Task[Any], tuple[Buffer, Place]] = {}  # of the outermost machine in each task

    async def on_state_enter(self, state_name: str, context: dict[str, Any]) -> dict[str, Any]:
        """Enter the state's lane, after a wait for a place in its buffer."""
        _leave(context)  # a failed state has not left its own
        await self._enter_buffer(self._buffers.get(state_name), context)
        lane = self._lanes.get(state_name)
        if lane is not None:
            _outside.set((*_outside.get(), (_execution(context), current_lane.get())))
            current_lane.set(lane)
        return context

    def on_state_exit(
        self,
        state_name: str,  # noqa: ARG002
        context: dict[str, Any],
        output: dict[str, Any] | None,
    ) -> dict[str, Any] | None:
        """Leave the state's lane."""
        _leave(context)
        return output

    def on_transition(self, from_state: str, to_state: str, context: dict[str, Any]) -> str:  # noqa: ARG002
        """Give back the machine's place, if the next state is without its buffer."""
        self._leave_buffer(context, unless=self._buffers.get(to_state))
        return to_state

    def on_error(self, state_name: str, error: Exception, context: dict[str, Any]) -> str | None:  # noqa: ARG002
        """Leave the state's lane and buffer: the error is not handled here, and the machine ends."""
        _leave(context)
        self._leave_buffer(context)
        return None

    def on_machine_end(self, context: dict[str, Any], final_output: dict[str, Any]) -> dict[str, Any]:
        """Leave the state's lane and buffer, where these hooks are ``lifecycle_hooks``, too."""
        _leave(context)
        self._leave_buffer(context)
        return final_output

    async def _enter_buffer(self, buffer: Buffer | None, context: Mapping[str, Any]) -> None:
        """Wait for a place in ``buffer``, unless the task has one; a place in another buffer is given back."""
        self._leave_buffer(context, unless=buffer)
        task = asyncio.current_task()
        if buffer is None or task is None or task in self._places or context["machine"]["parent_execution_id"]:
            return
        place = buffer.place()
        await place.__aenter__()
        self._places[task] = buffer, place
        task.add_done_callback(self._give_back)

    def _leave_buffer(self, context: Mapping[str, Any], unless: Buffer | None = None) -> None:
        """Give back the place of this task, except one in the buffer ``unless``."""
        task = asyncio.current_task()
        if task is None or task not in self._places or context["machine"]["parent_execution_id"]:
            return
        if self._places[task][0] is not unless:
            task.remove_done_callback(self._give_back)
            self._give_back(task)

    def _give_back(self, task: asyncio.Task[Any]) -> None:
        _, place = self._places.pop(task)
        place.release()


def _settings(lane: str | LaneSpec) -> LaneSettings:
    return (lane.name, lane.weight, lane.priority) if isinstance(lane, LaneSpec) else (lane, None, None)


def _execution(context: Mapping[str, Any]) -> str:
    return str(context["machine"]["execution_id"])


def _leave(context: Mapping[str, Any]) -> None:
    """Return to the lane outside of this machine's state, if the machine is in a named state."""
    entered, execution = _outside.get(), _execution(context)
    for depth, (machine, lane) in enumerate(entered):
        if machine == execution:
            _outside.set(entered[:depth])  # the machines inside have ended
            current_lane.set(lane)
            return


@lru_cache(64)
def _named(name: str, base: type[Exception]) -> type[Exception]:
    """The class of errors with this name."""
    return type(name, (base,), {})


@_flatmachines.execution.register_execution_type("typed")
class TypedExecution(_flatmachines.ExecutionType):  # type: ignore[misc,name-defined]
    """One call, whose error keeps its name: ``execution: {type: typed}`` in a state.

    A state then names the errors of the HTTP library or SDK below, as the agent reports them:
    ``on_error: {RateLimitError: ..., ServiceUnavailableError: ..., Timeout: ..., default: ...}``. Each is a subclass of
    flatmachines' ``RetryableError`` if the agent calls it retryable, else of ``RuntimeError``.
    """

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> TypedExecution:  # noqa: ARG003
        """It has no settings."""
        return cls()

    async def execute(
        self, executor: Any, input_data: dict[str, Any], context: Any = None, session_id: str | None = None
    ) -> Any:
        """Call the agent once.

        Raises:
            RetryableError: A subclass with the name of the agent's error.
            RuntimeError: The same for an error that another attempt cannot cure.
        """
        result = await _flatmachines.DefaultExecution().execute(
            executor, input_data, context=context, session_id=session_id
        )
        error = result.error
        if not error:
            return result
        retryable, name = error.get("retryable", False), str(error.get("type") or "AgentError")
        raise _named(name, _flatmachines.RetryableError if retryable else RuntimeError)(
            error if retryable else f"{name}: {error.get('message', 'unknown')}"
        )
