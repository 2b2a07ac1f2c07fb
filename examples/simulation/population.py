"""The simulation: agents that reason in rounds, pass 1 with one model and pass 2 with another."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai

import paceline

PASS_1_TOKENS, PASS_2_TOKENS = 300, 80
"""The most output tokens of each pass, which are also its expected cost."""

Ask = Callable[[str, str, int], Awaitable[str]]
"""Called with a model, a prompt and the most output tokens; returns the answer."""

_TRAITS = [
    "a nurse",
    "a farmer",
    "a teacher of physics",
    "a driver",
    "a student",
    "a baker",
    "retired",
    "between two jobs",
    "a clerk",
]
_PLACES = [
    "the old harbour",
    "a village in the hills",
    "the new suburb",
    "the town by the lake",
    "the northern district",
]
_EVENTS = (
    "The council raises the price of the bus, and lowers it for those who ride every day.",
    "Half of the neighbours have signed a petition; some of them regret it by now.",
    "The paper prints a survey which says that nobody is of one mind.",
)
_MEMORIES = (
    "A friend told you that the change would cost you about as much as it saves.",
    "You read two articles about it, and believed the shorter one.",
    "Last year you changed your mind about a thing like this, and told nobody.",
    "Your sister would lose more by it than you would, as she lives further out.",
    "At the meeting you said little, and thought about it all the way home.",
)


class Agent:
    """A person with a place, a trade and memories; the number of memories varies widely."""

    def __init__(self, number: int) -> None:
        chance = random.Random(number)
        self.name = f"agent {number}"
        self.persona = f"You are {chance.choice(_TRAITS)}, {chance.randint(18, 90)}, from {chance.choice(_PLACES)}. "
        self._memories = chance.choices(_MEMORIES, k=6 + min(round(chance.expovariate(1 / 26)), 100))
        self.opinion = ""

    async def live(self, event: str, ask: Ask, pivotal: str, routine: str) -> None:
        """One round: reason about an event, then state an opinion in a sentence."""
        before = f"Before, you said: {self.opinion}\n" if self.opinion else ""
        remembered = "\n".join(self._memories)
        reasoning = await ask(
            pivotal, f"{self.persona}\n{remembered}\n{before}{event}\nThink about what it means to you.", PASS_1_TOKENS
        )
        rather = "\n".join(self._memories[:4])
        self.opinion = await ask(
            routine,
            f"{self.persona}\n{rather}\n{event}\nYou thought: {reasoning}\nSay it in a sentence.",
            PASS_2_TOKENS,
        )


class Model:
    """A provider's own SDK, paced.

    Args:
        limiter: Estimates each prompt, waits, sends, and learns from the answer.
        provider: ``openai`` or ``anthropic``.
        base_url: The address of an emulator; ``None`` for the real API, with the key from the environment.

    Attributes:
        records: The estimate and the usage of each answer.
    """

    def __init__(self, limiter: paceline.Limiter, provider: str, base_url: str | None) -> None:
        self.records: list[Any] = []
        key = {"api_key": "any"} if base_url else {}
        hooks: Any = {"response": [self._note]}
        self._client: Any
        if provider == "openai":
            self._client = openai.AsyncOpenAI(
                base_url=base_url and f"{base_url}/v1",
                max_retries=0,
                http_client=openai.DefaultAsyncHttpxClient(event_hooks=hooks),
                **key,
            )
            self.ask: Ask = self._respond
        else:
            self._client = anthropic.AsyncAnthropic(
                base_url=base_url,
                max_retries=0,
                http_client=anthropic.DefaultAsyncHttpxClient(event_hooks=hooks),
                **key,
            )
            self.ask = self._message
        limiter.attach(self._client, provider=provider)

    async def _respond(self, model: str, prompt: str, most: int) -> str:
        answer = await self._client.responses.create(
            model=model, input=prompt, max_output_tokens=most, reasoning={"effort": "minimal"}
        )
        return str(answer.output_text)

    async def _message(self, model: str, prompt: str, most: int) -> str:
        messages = [{"role": "user", "content": prompt}]
        answer = await self._client.messages.create(model=model, max_tokens=most, messages=messages)
        return str(answer.content[0].text)

    async def _note(self, response: Any) -> None:
        self.records.append(response.extensions["paceline"])

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


class Population:
    """Agents, at most ``most`` of them at once.

    Args:
        agents: The number of agents.
        ask: Calls a model.
        most: Returns the most agents in flight, by the limits at the start of a round.

    Attributes:
        failed: The errors, with the agent's name; a failed agent takes part in the next round.
        peak: The most agents that were in flight.
    """

    def __init__(self, agents: int, ask: Ask, most: Callable[[], int]) -> None:
        self.agents = [Agent(number) for number in range(agents)]
        self.failed: list[str] = []
        self.peak = self._in_flight = 0
        self._ask, self._most = ask, most

    async def run(self, rounds: int, pivotal: str, routine: str) -> None:
        """Run all rounds; a round starts when every agent has ended the one before."""
        for number in range(rounds):
            event, slots = _EVENTS[number % len(_EVENTS)], asyncio.Semaphore(self._most())
            await asyncio.gather(*(self._live(agent, slots, event, pivotal, routine) for agent in self.agents))

    async def _live(self, agent: Agent, slots: asyncio.Semaphore, event: str, pivotal: str, routine: str) -> None:
        async with slots:
            self._in_flight += 1
            self.peak = max(self.peak, self._in_flight)
            try:
                await agent.live(event, self._ask, pivotal, routine)
            except (openai.APIError, anthropic.APIError) as error:
                self.failed.append(f"{agent.name}: {str(error)[:200]}")
            finally:
                self._in_flight -= 1
