"""dspy 3.4 and later, without the other HTTP clients of the process, which ``paceline.instrument()`` paces too.

Requests that dspy sends through litellm (embeddings, ``engine="litellm"``) are paced by ``paceline.instrument()`` only.
"""

from __future__ import annotations

from paceline.http import dspy
from paceline.http.instrument import Instrumented, newest
from paceline.integrations import package
from paceline.limiter.limiter import Limiter
from paceline.providers.registry import provider_named


def instrument(limiter: Limiter, *, provider: str | None = None) -> Instrumented:
    """Pace every ``dspy.LM`` of this process, sync, async and streamed, whether made before this call or after it.

    dspy has at most 100 connections for each LM, so a request with a permit can still wait for a connection. Set
    ``num_retries=0`` for each ``dspy.LM``, because it also repeats requests that paceline refused. The latest call,
    of this function or of ``paceline.instrument()``, determines the limiter. Nothing is charged twice.

    Args:
        limiter: The limiter whose pools are charged.
        provider: The provider behind an unknown host.

    Returns:
        Its ``close()``, or ``with``, restores dspy.

    Raises:
        ImportError: dspy is missing or has another HTTP client, or neither httpx2 nor httpx is installed.
    """
    client = package(dspy.MODULE, "dspy>=3.4")
    named = provider_named(provider) if provider else None
    done = newest("dspy")
    done.callback(dspy.pace(client, limiter.pacer, named))
    return done
