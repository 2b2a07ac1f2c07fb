"""The program: documents are generated, reports about them written, and a judge rates the reports."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from clients import FAILURES

Ask = Callable[[str, str, str, int], Awaitable[str]]
"""Called with a provider, a model, a prompt and the most output tokens; returns the answer."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a model: provider, model, prompt and the most output tokens."""

    provider: str
    model: str
    task: str
    most: int

    @property
    def name(self) -> str:
        """The model with its provider, as in the names of the limiter's pools."""
        return f"{self.provider}/{self.model}"


_DOCUMENT = "Write a short document about case {number}: who took part, what happened, and what it did cost."
_REPORT = "Write a report about the document below: its claims, what supports them, and what is missing.\n\n{text}"
_VERDICT = "Rate the report below from 1 to 5 for accuracy, completeness and style, with a reason.\n\n{text}"

TASK_TOKENS = 25
"""The approximate size of each of these prompts alone."""

GENERATORS = [
    Call("openai", "gpt-6-luna", _DOCUMENT, 400),
    Call("groq", "openai/gpt-oss-120b", _DOCUMENT, 400),
]
"""The generators, used in turn."""

REPORTERS = [
    Call("openai", "gpt-6.1-sol", _REPORT, 400),
    Call("anthropic", "claude-haiku-5-5", _REPORT, 400),
    Call("google", "gemini-3.8-flash", _REPORT, 400),
]
"""Each reporter writes a report about every document."""

JUDGES = [Call("azure", "gpt-6-astra", _VERDICT, 80), Call("google", "gemini-3.8-flash", _VERDICT, 80)]
"""Each judge rates every report."""


class Evaluation:
    """One run of the three components; no component has any code for limits.

    Args:
        documents: The number of documents.
        ask: Calls a model.

    Attributes:
        asked: The number of calls to each model.
        answered: The number of answers.
        failed: The errors; calls that depend on a failed one are not made.
    """

    def __init__(self, documents: int, ask: Ask) -> None:
        self.documents = documents
        self.asked: dict[str, int] = {}
        self.answered = 0
        self.failed: list[str] = []
        self._ask = ask

    async def run(self) -> None:
        """Run until every report is judged."""
        await asyncio.gather(*(self._document(number) for number in range(self.documents)))

    async def _document(self, number: int) -> None:
        """The document generator."""
        call = GENERATORS[number % len(GENERATORS)]
        text = await self._call(call, call.task.format(number=number))
        if text is not None:
            await asyncio.gather(*(self._report(reporter, text) for reporter in REPORTERS))

    async def _report(self, call: Call, document: str) -> None:
        """The report generator."""
        text = await self._call(call, call.task.format(text=document))
        if text is not None:
            await asyncio.gather(*(self._call(judge, judge.task.format(text=text)) for judge in JUDGES))

    async def _call(self, call: Call, prompt: str) -> str | None:
        self.asked[call.name] = self.asked.get(call.name, 0) + 1
        try:
            text = await self._ask(call.provider, call.model, prompt, call.most)
        except FAILURES as error:
            self.failed.append(f"{call.name}: {str(error)[:200]}")
            return None
        self.answered += 1
        return text


def planned(documents: int, share: float) -> Iterator[tuple[Call, int, int]]:
    """Every call of a run, with its expected input and output in tokens.

    Args:
        documents: The number of documents.
        share: The average length of an answer, as a part of the most output tokens.
    """
    for number in range(documents):
        generator = GENERATORS[number % len(GENERATORS)]
        document = round(generator.most * share)
        yield generator, TASK_TOKENS, document
        for reporter in REPORTERS:
            report = round(reporter.most * share)
            yield reporter, TASK_TOKENS + document, report
            for judge in JUDGES:
                yield judge, TASK_TOKENS + report, round(judge.most * share)
