"""dspy 3.4 and later alone. ``paceline.instrument()`` paces it with everything else; this leaves the rest be.

What dspy sends through litellm (embeddings, ``engine="litellm"``) is reached by ``paceline.instrument()`` only.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from paceline.http import dspy
from paceline.integrations import package
from paceline.providers.registry import provider_named

if TYPE_CHECKING:
    from paceline.limiter.limiter import Limiter

_active: list[ExitStack] = []


def instrument(limiter: Limiter, *, provider: str | None = None) -> ExitStack:
    """Pace every ``dspy.LM`` of this process, sync, async and streamed, those made before and those made after.

    dspy has at most 100 connections for each LM; who has a permit may wait for one. Requests are paced, observed,
    retried and settled like any other's. Say ``num_retries=0`` to each ``dspy.LM``: it repeats a refusal of ours, too,
    though nothing is sent then. Instrumented again, the newest limiter holds; so does this one over that of
    ``paceline.instrument()`` if it came later, and nothing is charged twice.

    Args:
        limiter: Whose pools to charge.
        provider: Whose dialect is spoken, where the host does not tell.

    Returns:
        Its ``close()``, or ``with``, puts everything back.

    Raises:
        ImportError: dspy is missing or sends through something else, or neither httpx2 nor httpx is installed.
    """
    client = package(dspy.MODULE, "dspy>=3.4")
    named = provider_named(provider) if provider else None
    while _active:
        _active.pop().close()
    done = ExitStack()
    done.callback(dspy.pace(client, limiter, named))
    _active.append(done)
    return done
