"""MassGen: its agents start at the speed that a limiter allows, each in its own time (tested with massgen 0.1.97).

MassGen starts its agents in one loop, and its own ``--rate-limit`` waits inside it, for Gemini alone: while one agent
waits, nobody else starts, and those who run are not listened to. Here every agent waits in the task that it will run in.

    limiter = paceline.Limiter({"starts/gemini": "7 requests/min"}, headroom_s=0)
    pace_starts(limiter)
    massgen.cli.cli_main()

That is about starts. What the agents then send is paced by ``paceline.instrument(limiter)``, as for any other program.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from paceline.integrations import package

if TYPE_CHECKING:
    from paceline.limiter.limiter import Limiter

log = logging.getLogger("paceline")

REQUIREMENT = "massgen>=0.1.97"

Wait = Callable[[str, str, str], Awaitable[object]]
"""Given an agent's name, its backend (``gemini``, ``openai``, ...) and its model: returns when it may start."""

_SEAMS = (
    "_stream_agent_execution",
    "_apply_agent_startup_rate_limit",
    "_get_current_answers_snapshot",
    "_sync_decomposition_answer_visibility",
    "_has_unseen_answer_updates",
)


class PacedStarts:
    """What :func:`pace_starts` has done; :meth:`undo` it, or use it with ``with``."""

    def __init__(self, orchestrator: Any) -> None:
        self._orchestrator = orchestrator
        self._originals = {name: orchestrator.__dict__[name] for name in _SEAMS[:2]}

    def undo(self) -> None:
        """Put MassGen's own way back; a second call does nothing."""
        global _active  # noqa: PLW0603
        if _active is self:
            _active = None
            for name, method in self._originals.items():
                setattr(self._orchestrator, name, method)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.undo()


_active: PacedStarts | None = None


def pace_starts(starts: Limiter | Wait) -> PacedStarts:
    """Let every agent of this process wait for its start, a restart too; MassGen's own waits for it are off.

    Called again, the newest ``starts`` hold. An agent's backend is what MassGen calls it, in lower case: ``gemini``,
    ``claude``, ``openai``, ``chatcompletion``, or what ``provider:`` in its settings says.

    Args:
        starts: A limiter: an agent takes one of everything that the pool ``starts/BACKEND/MODEL`` or else
            ``starts/BACKEND`` counts, and starts at once where there is neither. Or a function of your own.

    Raises:
        ImportError: MassGen is not installed, or is one that starts its agents in another way.
    """
    global _active  # noqa: PLW0603
    orchestrator = package("massgen.orchestrator", REQUIREMENT).Orchestrator
    missing = [name for name in _SEAMS if not hasattr(orchestrator, name)]
    if missing:
        raise ImportError(f"this massgen has no {missing[0]!r}: the integration needs {REQUIREMENT!r}")
    wait: Wait = starts if callable(starts) else functools.partial(_take, starts)
    if _active is not None:
        _active.undo()
    _active = PacedStarts(orchestrator)
    original = orchestrator._stream_agent_execution  # noqa: SLF001

    @functools.wraps(original)
    async def stream(
        self: Any, agent_id: str, task: str, answers: dict[str, str], *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        backend = self.agents[agent_id].backend
        await wait(agent_id, backend.get_provider_name().lower(), str(backend.config.get("model", "")))
        answers = _caught_up(self, agent_id, answers)
        async with aclosing(original(self, agent_id, task, answers, *args, **kwargs)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def start_at_once(self: Any, agent_id: str) -> None:
        """The loop waits for nobody."""

    orchestrator._stream_agent_execution = stream  # noqa: SLF001
    orchestrator._apply_agent_startup_rate_limit = start_at_once  # noqa: SLF001
    return _active


async def _take(limiter: Limiter, agent: str, backend: str, model: str) -> None:
    for pool in (f"starts/{backend}/{model}", f"starts/{backend}"):
        if pool in limiter.limits.given:
            cost: dict[str, Any] = dict.fromkeys(limiter.scheduler(pool).pool.ledger.units, 1)
            permit = await limiter.acquire(pool, **cost)
            permit.settle()
            log.info("%s (%s) starts after %.1f s", agent, pool, permit.waited_s)
            return
    log.info("%s (%s) starts at once: there is no pool starts/%s", agent, backend, backend)


def _caught_up(orchestrator: Any, agent_id: str, answers: dict[str, str]) -> dict[str, str]:
    """The others' answers as they are now: while the agent waited, they went on. As MassGen's own loop does it."""
    latest: dict[str, str] = orchestrator._get_current_answers_snapshot()  # noqa: SLF001
    if latest == answers:
        return answers
    state = orchestrator.agent_states[agent_id]
    state.known_answer_ids = set(latest)
    orchestrator._sync_decomposition_answer_visibility(agent_id)  # noqa: SLF001
    state.restart_pending = orchestrator._has_unseen_answer_updates(agent_id)  # noqa: SLF001
    return dict(latest)
