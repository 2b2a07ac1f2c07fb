"""Requests to a provider that are not paced, because their path is not read: each kind is logged once."""

from __future__ import annotations

import logging
import re
from typing import Final

log = logging.getLogger("paceline.http")

MANAGEMENT: Final = re.compile(
    r"[/:](?:files?|uploads?|\w*batch(?:es|\w*Content)?|fine[-_]?tun\w*|vector_stores|assistants|threads|conversations"
    r"|containers|evals?|evaluations?|organizations?|admin|traces|realtime|chatkit|skills|agents|sessions"
    r"|environments|client_secrets|oauth|keys|auth_tokens|credits|webhooks|cancel|input_tokens|chatcmpl-\w+"
    r"|(?:count|compute)_?tokens|(?:de)?tokeni[sz]e(?:rs?)?(?:-text)?|cachedContents|tunedModels|corpora|fileSearchStores"
    r"|operations|fetchPredictOperation|tasks|datasets|connectors|embed-jobs|libraries|collections|documents"
    r"|deployment-jobs|pull|push|create|show|copy)(?=[/:]|$)|/(?:models|endpoints|deployments)$",
    re.IGNORECASE,
)
"""The paths of providers at which nothing is generated: their POSTs are not announced."""

MODELS: Final = {
    "anthropic": "/v1/",
    "azure": "/openai/",
    "bedrock": "/model/",
    "cloudflare": "/ai/",
    "databricks": "/serving-endpoints/",
    "fireworks": "/inference/",
    "vertex": "/models/",
}
"""Part of the paths of models, at hosts that serve much else."""

_WORD = re.compile(r"[a-z]{1,24}(?:[-_][a-z]{1,24}){0,2}|v\d[a-z\d]{0,7}|", re.IGNORECASE)


def announce(provider: str, host: str, path: str) -> None:
    """Log that the POST to ``path`` at a host of ``provider`` is not paced, once for each host and kind of path.

    Nothing is logged for a path of :data:`MANAGEMENT`. The kind of a path has ``*`` for its names and numbers, which may
    be a user's.
    """
    if MODELS.get(provider, "/") in path and not MANAGEMENT.search(path[:2_000]):
        parts = re.split("([/:])", path[:200])
        _log_unpaced(provider, host, "".join(part if part in "/:" or _WORD.fullmatch(part) else "*" for part in parts))


KINDS_MAX: Final = 1_000
"""How many kinds of unpaced requests are kept."""

kinds: dict[tuple[str, str, str], int] = {}
"""The requests of this process that were not paced: provider, host and kind of path, and their number."""


def _log_unpaced(provider: str, host: str, kind: str) -> None:
    key = provider, host, kind
    if key in kinds:
        kinds[key] += 1
    if key in kinds or len(kinds) >= KINDS_MAX:
        return
    kinds[key] = 1
    log.warning(
        "POST %s%s is not paced, because paceline does not read this path; to pace it, acquire a permit around each call:"
        " `with limiter.acquire('%s/<model>') as permit`",
        *(host, kind, provider),
    )
