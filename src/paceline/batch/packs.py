"""Rows that share a request: their texts are embedded together, and each row has an answer and a record of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from paceline.batch.requests import RunRequest
from paceline.core.quota import INPUT_TOKENS
from paceline.http.describe import Metered
from paceline.providers.embeddings import Embedder, embedder, vector_of

Described = tuple[RunRequest, Metered]
"""A request, and what it costs."""

TOO_MUCH: Final = frozenset([400, 413, 422, 429])
"""Status of an answer that may be about one text, or about the number of texts. A 429 that is not waited for says that it never fits."""

OWN_TOO_MUCH: Final = frozenset(["answer_too_large", "paceline_never_fits", "paceline_too_large"])
"""The same of the run itself."""


class RowAnswer(NamedTuple):
    """A row, or a request of its own, with its response and its error as they are recorded."""

    row: RunRequest
    response: dict[str, Any] | None
    error: dict[str, Any] | None

    @property
    def code(self) -> str:
        """The code of the error; empty for none."""
        return "" if self.error is None else str(self.error["code"])


@dataclass(slots=True)
class _Pack:
    """Rows that will share a request."""

    bounds: Embedder
    rows: list[RunRequest] = field(default_factory=list)
    tokens: float = 0.0

    def takes(self, tokens: float) -> bool:
        return len(self.rows) < self.bounds.inputs and self.tokens + tokens <= self.bounds.tokens


class Packer:
    """Puts rows that may share a request into one, up to the bounds of the model and of its quotas.

    Args:
        describe: Says what a request costs.
    """

    def __init__(self, describe: Callable[[RunRequest], Metered]) -> None:
        self._describe = describe

    def packed(self, source: Iterator[Described]) -> Iterator[Described]:
        """The requests of ``source``, with rows that share one in the place of the last of them."""
        packs: dict[tuple[str, str, str], _Pack] = {}
        for request, metered in source:
            if not request.shares:
                yield request, metered
                continue
            key, tokens = (request.provider.name, request.path, request.model), metered.cost().get(INPUT_TOKENS, 0.0)
            pack = packs.get(key)
            if pack is not None and not pack.takes(tokens):
                yield from self._fitting(packs.pop(key).rows)
                pack = None
            if pack is None:
                pack = packs[key] = _Pack(bounds_of(request))
            pack.rows.append(request)
            pack.tokens += tokens
        for pack in packs.values():
            yield from self._fitting(pack.rows)

    def halves(self, request: RunRequest) -> list[Described]:
        """Two requests, each with half of its rows."""
        middle = len(request.rows) // 2
        return [self.together(request.rows[:middle]), self.together(request.rows[middle:])]

    def _fitting(self, rows: list[RunRequest] | tuple[RunRequest, ...]) -> Iterator[Described]:
        """As few requests as the quotas can hold, each at once."""
        request, metered = self.together(rows)
        ledger = metered.scheduler.pool.ledger
        amounts = ledger.amounts(metered.cost())
        if len(rows) == 1 or (ledger.never(amounts) is None and ledger.fitting(amounts) == amounts):
            yield request, metered
            return
        middle = len(rows) // 2
        yield from self._fitting(rows[:middle])
        yield from self._fitting(rows[middle:])

    def together(self, rows: list[RunRequest] | tuple[RunRequest, ...]) -> Described:
        """One request of these rows."""
        first, path, body = rows[0], rows[0].path, rows[0].body
        if len(rows) > 1:
            path, body = bounds_of(first).api.together(first.path, [row.body for row in rows])
        request = replace(first, path=path, body=body, rows=tuple(rows))
        return request, self._describe(request)


def bounds_of(request: RunRequest) -> Embedder:
    """How the texts of rows like ``request`` are embedded."""
    return embedder(request.provider.name, request.model)


def part_of(request: RunRequest, tokens: float) -> float:
    """The part of a request that a row fills; 1 for one that shares none."""
    if not request.shares:
        return 1.0
    bounds = bounds_of(request)
    return min(1.0, max(1 / bounds.inputs, tokens / bounds.tokens))


def answers_of(
    request: RunRequest, response: dict[str, Any] | None, error: dict[str, str] | None
) -> list[RowAnswer] | None:
    """What is recorded of ``request``, or of each of its rows; ``None`` if halves of it have to show which row the error is about."""
    rows = request.rows
    if not rows:
        return [RowAnswer(request, response, error)]
    if error is not None:
        status = response["status_code"] if response is not None else None
        if len(rows) > 1 and (status in TOO_MUCH or error["code"] in OWN_TOO_MUCH):
            return None
        return [RowAnswer(row, response, error) for row in rows]
    assert response is not None
    body, api = response["body"], bounds_of(rows[0]).api
    alone = len(rows) == 1 and vector_of(body) is not None
    parts = [body] if alone else api.apart(body, len(rows)) if isinstance(body, dict) else None
    if parts is None:
        text = f"the vectors of the answer are not as many as the texts ({len(rows):,})"
        return [RowAnswer(row, None, {"code": "invalid", "message": text}) for row in rows]
    missing = {"code": "empty", "message": "the answer has no vector for this text"}
    return [
        RowAnswer(row, None, missing) if vector_of(part) is None else RowAnswer(row, {**response, "body": part}, None)
        for row, part in zip(rows, parts, strict=True)
    ]
