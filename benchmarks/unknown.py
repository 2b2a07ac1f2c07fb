"""A host whose limit nobody states, and a capacity that moves: the real limiter beside the retries of an SDK, in virtual time."""

from __future__ import annotations

import heapq
import random
import sys
from itertools import count
from typing import Any

from benchmarks.environments import ROOT
from benchmarks.table import Row

WORLDS = (
    "60/min, burst 10", "600/min, burst 10", "6000/min, burst 100", "told 10 times the limit", "5 in flight", "100 in 15 s",
    "10, then 4, then 10/s", "from 4 to 10/s and back each 120 s", "halves at 120 s", "doubles at 120 s",
    "others take up to two thirds of 10/s",
)  # fmt: skip
"""Of the worlds of ``tests/simulation/unstated.py``: no answer has a header, no refusal a number."""

RETRIES, FIRST_S, MOST_S = 8, 0.5, 8.0
"""OpenAI's SDK 3.57 with ``max_retries=8``: pauses of 0.5 s, doubled each time, to 8 s, and up to a quarter less by chance."""


def measure(quick: bool) -> list[Row]:
    """A row for each world: the time as a multiple of the shortest one, refusals, requests that were given up."""
    sys.path.insert(0, str(ROOT))
    from tests.simulation import unstated

    rows = []
    for world in [one for one in unstated.CHOSEN if one.name in WORLDS][: 3 if quick else None]:
        ours = unstated.mean(world, [1])
        took_s, refused, given_up = blind(world)
        rows.append(
            Row(
                world.name,
                _shown(ours.times, ours.refused, ours.unserved),
                peers=f"SDK: {_shown(took_s / ours.ideal_s, refused, given_up)}",
            )
        )
    return rows


def _shown(times: float, refused: float, given_up: float) -> str:
    lost = f", {given_up:,.0f} given up" if given_up else ""
    return f"{times:.2f} of the shortest time, {refused:,.0f} refused{lost}"


def blind(world: Any, seed: int = 1) -> tuple[float, int, int]:
    """The workers of an SDK without a limiter: the seconds, the refusals, and the requests that were given up."""
    from tests.simulation.unstated import MODEL, NET_S, started

    from paceline.emulator.settings import Settings
    from paceline.emulator.world import Admitted
    from paceline.emulator.world import World as Provider
    from paceline.testing.clock import START_S

    sizes = [tokens for host in started(world, seed).hosts for tokens in host.todo or ()]
    provider, dice = Provider(Settings.of({**world.provider, "seed": seed}), START_S), random.Random(seed)
    way_s, order = sum(NET_S) / 2, count()
    events: list[tuple[float, int, int, int, Admitted | None]] = []  # when, tokens and tries of a request, its answer

    def begin(at_s: float) -> None:
        if sizes:
            heapq.heappush(events, (at_s + way_s, next(order), sizes.pop(), 0, None))

    for _ in range(world.workers):
        begin(0.0)
    now_s, refused, given_up = 0.0, 0, 0
    while events:
        now_s, _, tokens, tries, admitted = heapq.heappop(events)
        if admitted is not None:
            provider.finish(START_S + now_s, admitted)
            begin(now_s + way_s)
            continue
        found = provider.admit(START_S + now_s, MODEL, tokens, 0)
        if isinstance(found, Admitted):
            heapq.heappush(events, (now_s + found.duration_s, next(order), tokens, tries, found))
            continue
        refused += 1
        if tries == RETRIES:
            given_up += 1
            begin(now_s + way_s)
        else:
            pause_s = min(FIRST_S * 2**tries, MOST_S) * dice.uniform(0.75, 1.0)
            heapq.heappush(events, (now_s + 2 * way_s + pause_s, next(order), tokens, tries + 1, None))
    return now_s, refused, given_up
