"""MassGen: agents start at the speed that a limiter allows (tested with massgen 0.1.97).

MassGen starts its agents in one loop, and its own ``--rate-limit`` waits inside that loop, for Gemini alone: while one
agent waits, no other agent starts, and the answers of running agents are not read. Here every agent waits in its own task.

    limiter = paceline.Limiter({"starts/gemini": "7 starts/min exact"})
    pace_starts(limiter)
    massgen.cli.cli_main()

This paces starts. The agents' requests are paced by ``paceline.instrument(limiter)``, as in any other program.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from paceline.http.instrument import Instrumented, newest
from paceline.integrations import package
from paceline.limiter.limiter import Limiter

log = logging.getLogger("paceline.rate_limit")

REQUIREMENT = "massgen>=0.1.97"

Wait = Callable[[str, str, str], Awaitable[object]]
"""Called with an agent's name, its backend (``gemini``, ``openai``, ...) and its model; returns when it may start."""

_SEAMS = (
    "_stream_agent_execution",
    "_apply_agent_startup_rate_limit",
    "_get_current_answers_snapshot",
    "_sync_decomposition_answer_visibility",
    "_has_unseen_answer_updates",
)


class _SessionLog(logging.Handler):
    """Writes the lines of a limiter to MassGen's log of the session."""

    def emit(self, record: logging.LogRecord) -> None:
        write = package("massgen.logger_config", REQUIREMENT).logger
        write.log(record.levelname, "{}", self.format(record))


def pace_starts(starts: Limiter | Wait) -> Instrumented:
    """Make every agent of this process wait for its starts and restarts; MassGen's own waits are off.

    The waits and the starts are lines with "Rate limit" in MassGen's log of the session, the starts with "Agent startup
    allowed", too.

    A second call replaces the first. An agent's backend has MassGen's name in lower case: ``gemini``, ``claude``,
    ``openai``, ``chatcompletion``, or the value of ``provider:`` in its settings.

    Args:
        starts: A limiter, or a function of your own. With a limiter, a start costs 1 of every unit of the pool
            ``starts/BACKEND/MODEL`` or else ``starts/BACKEND``; without such a pool an agent starts at once.

    Returns:
        Its ``undo()``, or the end of its ``with`` block, restores MassGen's own starts.

    Raises:
        ImportError: MassGen is not installed, or this version starts its agents in another way.
    """
    orchestrator = package("massgen.orchestrator", REQUIREMENT).Orchestrator
    missing = [name for name in _SEAMS if not hasattr(orchestrator, name)]
    if missing:
        raise ImportError(f"this massgen has no {missing[0]!r}: the integration needs {REQUIREMENT!r}")
    wait: Wait = starts if callable(starts) else functools.partial(_take, starts)
    done = newest("massgen")
    handler = _SessionLog()
    done.callback(log.setLevel, log.level)
    done.callback(log.removeHandler, handler)
    log.addHandler(handler)
    if not log.isEnabledFor(logging.INFO):
        log.setLevel(logging.INFO)
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
        """Replaces the wait in MassGen's loop."""

    done.replace(orchestrator, "_stream_agent_execution", stream)
    done.replace(orchestrator, "_apply_agent_startup_rate_limit", start_at_once)
    return done


async def _take(limiter: Limiter, agent: str, backend: str, model: str) -> None:
    for pool in (f"starts/{backend}/{model}", f"starts/{backend}"):
        if pool in limiter.limits.given:
            cost: dict[str, Any] = dict.fromkeys(limiter.pacer.pools.scheduler(pool).pool.ledger.entries.units, 1)
            permit = await limiter.acquire(pool, name=agent, **cost)
            permit.settle()
            (quota, *_) = limiter.status()["pools"][pool]["quotas"]
            used = quota["burst"] - quota["remaining"]
            log.info(
                "Rate limit: Agent startup allowed: %s (%s, %.0f/%.0f starts) after %.1f s, %s of %s",
                *(agent, backend, used, quota["burst"], permit.waited_s, quota["quota"], pool),
            )
            return
    log.info("Rate limit: Agent startup allowed: %s (%s) at once, there is no limit starts/%s", agent, backend, backend)


def _caught_up(orchestrator: Any, agent_id: str, answers: dict[str, str]) -> dict[str, str]:
    """The other agents' current answers, which may be newer than the wait. Follows MassGen's own loop."""
    latest: dict[str, str] = orchestrator._get_current_answers_snapshot()  # noqa: SLF001
    if latest == answers:
        return answers
    state = orchestrator.agent_states[agent_id]
    state.known_answer_ids = set(latest)
    orchestrator._sync_decomposition_answer_visibility(agent_id)  # noqa: SLF001
    state.restart_pending = orchestrator._has_unseen_answer_updates(agent_id)  # noqa: SLF001
    return dict(latest)
