"""Answers in the form of a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def answers_in(path: Path) -> dict[str, tuple[str | None, str | None]]:
    """The text or the error of each request by its id; the last record of an id holds."""
    found: dict[str, tuple[str | None, str | None]] = {}
    if not path.exists():
        return found
    with path.open("rb") as records:
        for record in map(json.loads, records):
            error = record["error"]
            text = None if error else text_of(record["response"]["body"])
            found[str(record["custom_id"])] = text, error and f"{error['code']}: {error['message']}"
    return found


def text_of(body: Mapping[str, Any]) -> str:
    """The text of an answer of OpenAI's chat or Responses API, Anthropic or Gemini; of others, its JSON."""
    parts: list[Any]
    match body:
        case {"choices": [{"message": {"content": str(text)}}, *_]}:
            return text
        case {"content": list(parts)}:
            pass
        case {"candidates": [{"content": {"parts": list(parts)}}, *_]}:
            pass
        case {"output": list(items)}:
            parts = [part for item in items for part in item.get("content") or ()]
        case _:
            return json.dumps(body)
    return "".join(part["text"] for part in parts if isinstance(part.get("text"), str))
