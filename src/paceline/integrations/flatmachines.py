"""flatmachines: lanes by the names of states. The pacing itself is :func:`paceline.instrument`, and needs no hook."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from paceline.core.queue import LaneSpec
from paceline.integrations import package
from paceline.pacing.pacer import current_lane

_flatmachines = package("flatmachines", "flatmachines>=4.2")

LaneSettings = tuple[str, float | None, int | None]
"""A lane's name, weight and priority; ``None`` for the limiter's own settings of that lane."""

_outside: ContextVar[tuple[tuple[str, LaneSettings], ...]] = ContextVar("paceline_flatmachines_outside", default=())
"""For each enclosing machine in a named state: its execution's id, and the lane outside of that state."""


class PacelineHooks(_flatmachines.MachineHooks):  # type: ignore[misc,name-defined]
    """Hooks that put the calls of a state into a lane, also through parallel machines and ``foreach``.

    Register them, and name them at the states that call a model: ``registry.register("lanes", lambda: hooks)``, and
    ``hooks: lanes`` in the machine. One object serves every machine. A state that is not named, and a machine without
    hooks, stay in the lane outside: that of the parent state, or of :func:`paceline.lane`.

    Args:
        lanes: By the state's name: the lane's name, with the limiter's settings or the default ones, or a
            :class:`~paceline.LaneSpec` with weight and priority.

    Raises:
        ImportError: flatmachines is not installed.
    """

    def __init__(self, lanes: Mapping[str, str | LaneSpec]) -> None:
        self._lanes = {state: _settings(lane) for state, lane in lanes.items()}

    def on_state_enter(self, state_name: str, context: dict[str, Any]) -> dict[str, Any]:
        """Enter the state's lane."""
        _leave(context)  # a failed state has not left its own
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

    def on_error(self, state_name: str, error: Exception, context: dict[str, Any]) -> str | None:  # noqa: ARG002
        """Leave the state's lane: the error is not handled here, and the parent's next state may run in the same task."""
        _leave(context)
        return None


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
