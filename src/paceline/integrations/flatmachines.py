"""flatmachines: the lane from the state's name. The limiting itself is :func:`paceline.instrument`, and needs no hook."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from paceline.core.queue import LaneSpec
from paceline.integrations import package
from paceline.pacing.pacer import current_lane

_flatmachines = package("flatmachines", "flatmachines>=4.2")

Said = tuple[str, float | None, int | None]
"""A lane's name, and a weight and a priority where they are not left to the limiter."""

_outside: ContextVar[tuple[tuple[str, Said], ...]] = ContextVar("paceline_flatmachines_outside", default=())
"""For each machine around this point that is in a named state: its execution's id, and the lane in force outside."""


class PacelineHooks(_flatmachines.MachineHooks):  # type: ignore[misc,name-defined]
    """Hooks that put what a state calls into a lane, through parallel machines and ``foreach`` as well.

    Register them, and name them at the states that call a model: ``registry.register("lanes", lambda: hooks)``, and
    ``hooks: lanes`` in the machine. One object serves every machine. A state that is not named, like a machine
    without hooks, stays in the lane that is in force outside: its parent state's, or that of :func:`paceline.lane`.

    Args:
        lanes: By the state's name: the lane's name, for one that the limiter knows or needs to know nothing about, or a
            :class:`~paceline.LaneSpec` with weight and priority.

    Raises:
        ImportError: flatmachines is not installed.
    """

    def __init__(self, lanes: Mapping[str, str | LaneSpec]) -> None:
        self._lanes = {state: _said(lane) for state, lane in lanes.items()}

    def on_state_enter(self, state_name: str, context: dict[str, Any]) -> dict[str, Any]:
        """Enter the state's lane."""
        _leave(context)  # a state that failed did not
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
        """Leave it."""
        _leave(context)
        return output

    def on_error(self, state_name: str, error: Exception, context: dict[str, Any]) -> str | None:  # noqa: ARG002
        """Leave it: nobody catches the error here, and the parent's next state may run in the same task."""
        _leave(context)
        return None


def _said(lane: str | LaneSpec) -> Said:
    return (lane.name, lane.weight, lane.priority) if isinstance(lane, LaneSpec) else (lane, None, None)


def _execution(context: Mapping[str, Any]) -> str:
    return str(context["machine"]["execution_id"])


def _leave(context: Mapping[str, Any]) -> None:
    """Back to the lane that is in force outside of this machine, if it is in one of its own."""
    entered, execution = _outside.get(), _execution(context)
    for depth, (machine, lane) in enumerate(entered):
        if machine == execution:
            _outside.set(entered[:depth])  # those deeper inside have ended
            current_lane.set(lane)
