"""The form of paceline's own errors at the paths of each API: some clients tell their users nothing of an error in another one."""

from __future__ import annotations

import re
from typing import Any, Final

_OLLAMAS: Final = re.compile(r"/api/(?:chat|generate|embed|embeddings|tags|show|ps)/?$")
_GOOGLES: Final = re.compile(r"/models/[^/:]+(?::|%3A)(?!rawPredict|streamRawPredict)\w+$", re.IGNORECASE)
"""Google's calls of models, but not those that pass another provider's API on."""


def as_asked(path: str, status: int, value: dict[str, Any]) -> dict[str, Any]:
    """An error as the clients of an API read it.

    Args:
        path: The path that the client asked for.
        status: The status of the answer.
        value: The error in the form of OpenAI and Anthropic, whose ``error`` has a ``code`` and a ``message``.
    """
    error = value["error"]
    if _OLLAMAS.search(path):  # its SDK for JavaScript shows "[object Object]" for anything but a text (ollama 0.6.4)
        return {"error": error["message"]}
    if _GOOGLES.search(path):  # Vercel's SDK shows the status alone if the code is no number (@ai-sdk/google 3.0.141)
        return {"error": {"code": status, "message": error["message"], "status": error["code"]}}
    # Cohere and Amazon have the message at the top: boto3 shows none that is elsewhere (1.44.8, @ai-sdk/cohere 3.0.63).
    return value | {"message": error["message"]}
