"""Worlds of a provider that states no limit: fifty that were chosen, and others that are drawn; the engine in virtual time.

    python -m tests.simulation.unstated                # all of them, in one table
    python -m tests.simulation.unstated --only slots   # those that have the word in their name
    python -m tests.simulation.unstated --seeds 2 3 4  # means of the runs of each with these seeds
    python -m tests.simulation.unstated --most 500     # the worlds of at most 500 requests: some minutes
    python -m tests.simulation.unstated --drawn 200:290 --only chance

A world is an emulated provider whose refusals name nothing, and the workers of an attached client that has never heard of it,
unless the world says otherwise. The time is compared with a client that asks the provider when the next request fits.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import count, groupby
from math import exp, log, pi, sin
from operator import attrgetter
from statistics import fmean
from typing import Any

from tests.simulation.fleet import UNKNOWN, Fleet
from tests.simulation.troubles import silence

from paceline.emulator.settings import Settings
from paceline.emulator.world import Admitted
from paceline.emulator.world import World as Provider
from paceline.pacing.breaker import BreakerPolicy
from paceline.pacing.retry import RetryPolicy
from paceline.testing.clock import START_S

MODEL = "llm.example.com/m"
NET_S = 0.04, 0.06
"""The way to the provider or back: a refusal takes a tenth of a second."""

LOOK_S = 0.5
"""A clairvoyant looks again after this time: the capacity may have changed."""

LIMIT_S = 7_200.0
"""A run ends after two hours."""

SHEDDING = "shedding"
"""The group of the worlds that refuse by chance. Their time is a matter of chance, too."""


@dataclass(frozen=True)
class World:
    """A provider and its client.

    Attributes:
        name: Its name.
        group: The kind of its limit.
        limits: What is true.
        requests: How many there are, all at the beginning.
        workers: How many are in flight at most, in all processes together.
        latency_s: The mean time of an answer.
        told: The limit that the user has stated; ``None``: the host is unknown.
        source: The source of that limit.
        words: The bounds of the size of a request.
        processes: How many share the key, and nothing else.
        settings: Further settings of the emulator.
    """

    name: str
    group: str
    limits: str
    requests: int = 300
    workers: int = 100
    latency_s: float = 3.0
    told: str | None = None
    source: str = "given"
    words: tuple[int, int] = (1, 1)
    processes: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def provider(self) -> dict[str, Any]:
        """The settings of the emulator."""
        plain = {"headers": False, "dialect": "plain", "latency_s": self.latency_s, "jitter": 0.2}
        return {**plain, "limits": {MODEL: self.limits}, **self.settings}


def rated(per_s: float) -> str:
    """A bucket of so many requests per second; its burst is a setting, as a time."""
    return f"{60 * per_s:.6f} requests/min quantised"


def holding(per_s: float, burst: float) -> dict[str, float]:
    """The setting with which a bucket of this rate holds ``burst``."""
    return {"quantum_s": burst / per_s}


def becoming(*steps: tuple[float, str]) -> list[dict[str, Any]]:
    """Limits in mid-run: from so many seconds, this."""
    return [{"at_s": at_s, "limits": {MODEL: limits}} for at_s, limits in steps]


def refusing(from_s: float, to_s: float) -> list[dict[str, Any]]:
    """A time in which nothing is admitted."""
    return [{"at_s": from_s, "faults": {"429": 1.0}}, {"at_s": to_s, "faults": {}}]


def course(per_s: Any, until_s: float) -> list[dict[str, Any]]:
    """A rate that moves all the time, in steps of two seconds."""
    return becoming(*((2.0 * n, rated(per_s(2.0 * n))) for n in range(1, round(until_s / 2))))


LOGNORMAL = {"latency_spread": 3.6, "jitter": 0.0}
"""The time of answers is lognormal, with a sigma of 1."""

_MINUTE, _TEN, _DAY_S = "60.0 requests/min quantised", {"quantum_s": 10.0}, 86_400.0

CHOSEN = [
    World("60/min, burst 1", "rate", rated(1), workers=20, settings=holding(1, 1)),
    World("60/min, burst 10", "rate", rated(1), workers=20, settings=holding(1, 10)),
    World("60/min, burst 60", "rate", rated(1), 400, settings=holding(1, 60)),
    World("6/min, burst 1", "rate", rated(0.1), 60, 20, settings=holding(0.1, 1)),
    World("6/min, burst 6", "rate", rated(0.1), 60, 20, settings=holding(0.1, 6)),
    World("600/min, burst 10", "rate", rated(10), 3_000, settings=holding(10, 10)),
    World("6000/min, burst 100", "rate", rated(100), 20_000, 500, settings=holding(100, 100)),
    World("600/min, answers of 30 s", "rate", rated(10), 3_000, 500, 30.0, settings=holding(10, 10)),
    World("600/min, answers of any length", "rate", rated(10), 3_000, 100, 2.0, settings=holding(10, 10) | LOGNORMAL),
    World("60/min, burst 1, one worker", "rate", rated(1), 200, 1, 0.3, settings=holding(1, 1)),
    World("60/min, burst 1, 50 requests", "rate", rated(1), 50, 50, settings=holding(1, 1)),
    World("2/s, burst 10, 20 workers", "rate", rated(2), 120, 20, 2.0, settings=holding(2, 10)),
    World("an hour at 60/min, burst 10", "rate", rated(1), 3_600, 20, settings=holding(1, 10)),
    World("an hour at 300/min, burst 1", "rate", rated(5), 18_000, 60, settings=holding(5, 1)),
    World("four processes, 600/min", "rate", rated(10), 6_000, processes=4, settings=holding(10, 10)),
    World("no limit, 5 000 requests", "none", "1m requests/s", 5_000, 500),
    World("no limit, 50 requests", "none", "1m requests/s", 50, 50),
    World("told twice the limit", "told", rated(1), workers=20, told="120 requests/min", settings=holding(1, 10)),
    World("told 10 times the limit", "told", rated(1), workers=20, told="600 requests/min", settings=holding(1, 10)),
    World("told 100 times the limit", "told", rated(1), 60, 20, told="6000 requests/min", settings=holding(1, 1)),
    World("told the limit", "told", rated(1), workers=20, told="60 requests/min burst 1", settings=holding(1, 1.05)),
    World(
        "requests and tokens", "units", "100 requests/10s,50k tokens/10s", 2_000, words=(20, 1_700)
    ),
    World(
        "requests and tokens, named", "units", "100 requests/10s,50k tokens/10s", 2_000, words=(20, 1_700),
        settings={"dialect": "openai", "body_numbers": False},
    ),
    World(
        "10, then 4, then 10/s", "moving", rated(10), 500, 100, 2.0,
        settings={"quantum_s": 0.5, "changes": becoming((12, rated(4)), (24, rated(10)))},
    ),
    World(
        "from 4 to 10/s and back each 120 s", "moving", rated(7), 3_000,
        settings={"quantum_s": 0.7, "changes": course(lambda s: 7 + 3 * sin(s / 60 * pi), 1_200)},
    ),
    World("halves at 120 s", "moving", rated(10), 2_400, settings={"quantum_s": 1.0, "changes": becoming((120, rated(5)))}),
    World("doubles at 120 s", "moving", rated(5), 2_400, settings={"quantum_s": 1.0, "changes": becoming((120, rated(10)))}),
    World(
        "from 2/s, a fifth more each minute", "moving", rated(2), 2_000,
        settings={"quantum_s": 1.0, "changes": course(lambda s: 2 * 1.2 ** (s / 60), 1_200)},
    ),
    World(
        "others take up to two thirds of 10/s", "moving", rated(6.7), 2_000,
        settings={"quantum_s": 1.0, "changes": course(lambda s: 10 - 3.3 * (1 + sin(s / 17)), 1_200)},
    ),
    World("10/s, nothing from 60 to 80 s", "moving", rated(10), 1_500, settings={"quantum_s": 1.0, "changes": refusing(60, 80)}),
    World("1 in flight", "slots", "1 concurrency", 60, 20),
    World("5 in flight", "slots", "5 concurrency", workers=100),
    World("5 in flight, answers of any length", "slots", "5 concurrency", 300, 20, 2.0, settings=LOGNORMAL),
    World("50 in flight", "slots", "50 concurrency", 3_000),
    World("50, then 20 in flight", "slots", "50 concurrency", 2_000, settings={"changes": becoming((60, "20 concurrency"))}),
    World("30 in a minute", "window", "30 requests/min window", 150, 20, settings={"offset_s": 47.0}),
    World("15 in a minute", "window", "15 requests/min window", 75, 20, settings={"offset_s": 47.0}),
    World("100 in 15 s", "window", "100 requests/15s window", 2_000, settings={"offset_s": 11.0}),
    World("60 in any minute", "window", "60 requests/min sliding", 400, 50),
    World("refusals count, 60/min, burst 10", "window", _MINUTE, 200, 20, settings=_TEN | {"failed_count": True}),
    World("refusals count, 60 in a minute", "window", "60 requests/min window", 240, 20, settings={"offset_s": 47.0, "failed_count": True}),
    World("states the wait, 60/min, burst 10", "waits", _MINUTE, workers=20, settings=_TEN | {"retry_after": "true"}),
    World("states the wait, 30 in a minute", "waits", "30 requests/min window", 150, 20, settings={"offset_s": 47.0, "retry_after": "true"}),
    World("states 1 s, 6/min, burst 3", "waits", rated(0.1), 60, 20, settings=holding(0.1, 3) | {"retry_after": 1.0}),
    World("states a minute, 60/min, burst 10", "waits", _MINUTE, workers=20, settings=_TEN | {"retry_after": 60.0}),
    World("states a day, 30 in 15 s", "waits", "30 requests/15s window", 150, 20, settings={"offset_s": 11.0, "retry_after": _DAY_S}),
    World("5 % by chance", SHEDDING, "1m requests/s", 3_000, settings={"faults": {"429": 0.05}}),
    World("30 % by chance", SHEDDING, "1m requests/s", 1_500, settings={"faults": {"429": 0.3}}),
    World("50 % by chance", SHEDDING, "1m requests/s", 1_500, settings={"faults": {"429": 0.5}}),
    World("30 % by chance, 10/s", SHEDDING, rated(10), 1_500, settings={"quantum_s": 1.0, "faults": {"429": 0.3}}),
]  # fmt: skip

KINDS = ["bucket"] * 4 + ["slots"] * 2 + ["window", "sliding", "moving", "chance", "chance and bucket", "outage"]


def drawn(seed: int) -> World:
    """A random world: its kind, its rate from 6 a minute to 50 a second, its workers and the time of its answers."""
    dice = random.Random(f"unstated {seed}")
    kind, per_s = dice.choice(KINDS), 10 ** dice.uniform(-1, 1.7)
    latency_s, workers, burst = dice.choice([0.3, 1, 3, 10, 30]), dice.choice([1, 20, 100, 300]), 1.0
    most, settings, group = workers / latency_s, {}, kind
    waits = dice.choice(["", "", "", "true"])
    limits = rated(per_s)
    if kind in ("bucket", "outage"):
        burst = max(1.0, per_s * dice.choice([0, 1, 10, 60]))
        if kind == "outage":
            from_s = dice.uniform(20, 120)
            settings["changes"] = refusing(from_s, from_s + 20)
    elif kind in ("window", "sliding"):
        period_s = dice.choice([5, 15, 60])
        limits = f"{max(int(per_s * period_s), 1)} requests/{period_s}s {kind}"
        settings["offset_s"] = 3.0
    elif kind == "slots":
        slots = dice.choice([2, 5, 20, 80])
        limits, per_s = f"{slots} concurrency", slots / latency_s
    elif kind == "moving":
        times, at_s = dice.uniform(0.3, 3), dice.uniform(20, 120)
        burst = max(1.0, 3 * per_s, 1 / times)  # it holds one when it is slow, too
        settings["changes"] = becoming((at_s, rated(times * per_s)))
    else:
        settings["faults"], group, waits = {"429": dice.choice([0.02, 0.1, 0.3, 0.5])}, SHEDDING, ""
        if kind == "chance":
            limits, per_s = "1m requests/s", most
        else:
            burst = max(1.0, 5 * per_s)
    requests = max(30, min(int(min(per_s, most) * dice.choice([120, 400, 1_000])), 6_000))
    if limits.endswith("quantised"):
        settings |= holding(per_s, burst)
    name = f"{seed}: {kind}, {per_s:.2g}/s, burst {burst:.3g}, {workers} workers, {latency_s} s, {requests} requests"
    return World(name, group, limits, requests, workers, latency_s, settings=settings | {"retry_after": waits})


@dataclass(frozen=True)
class Outcome:
    """What became of a world.

    Attributes:
        world: The world.
        ideal_s: The time of a client that knows the limits.
        took_s: The time until the last answer.
        refused: How many attempts were refused.
        unserved: How many requests were given up, or not served within the time.
    """

    world: World
    ideal_s: float
    took_s: float
    refused: float
    unserved: float

    @property
    def times(self) -> float:
        """The time as a multiple of the ideal."""
        return self.took_s / self.ideal_s

    def __str__(self) -> str:
        return (
            f"{self.world.name:72} {self.world.requests:8,} {self.ideal_s:8.1f} {self.times:6.2f} {self.refused:8,.0f}"
            f" {self.unserved:8,.0f}"
        )


def started(world: World, seed: int) -> Fleet:
    """The client of a world, before its first request."""
    return Fleet(
        world.told or UNKNOWN, world.provider, source=world.source if world.told else "assumed", jobs=world.requests,
        hosts=world.processes, workers=max(world.workers // world.processes, 1), seed=seed, words=world.words, output=0,
        model=MODEL, net_s=NET_S, retry=RetryPolicy(), breaker=BreakerPolicy(),
    )  # fmt: skip


def run(world: World, seed: int = 1) -> Outcome:
    """Let the client do its work."""
    fleet = started(world, seed)
    ideal = ideal_s(world, seed, [tokens for host in fleet.hosts for tokens in host.todo or ()])
    fleet.run(LIMIT_S, whole=False)
    unserved = world.requests - len(fleet.sim.sent) + fleet.lost
    took_s = fleet.sim.sent[-1].ended_s if unserved == fleet.lost else LIMIT_S
    return Outcome(world, ideal, took_s, fleet.sim.world.total.refused.total(), unserved)


def ideal_s(world: World, seed: int, sizes: Sequence[int]) -> float:
    """The time of a client that asks the provider itself when the next request fits, in the order of their arrival.

    Only a refusal by chance costs it an attempt.
    """
    honest = {"retry_after": "", "failed_count": False, "seed": seed}
    provider = Provider(Settings.of({**world.provider, **honest}), START_S)
    way_s, now_s, free, todo = sum(NET_S) / 2, 0.0, world.workers, list(sizes)
    events: list[tuple[float, int, Admitted | None]] = []
    order = count()
    while todo or events:
        wait_s = 0.0
        while todo and free and not wait_s:
            found = provider.admit(START_S + now_s, MODEL, todo[-1], 0)
            if isinstance(found, Admitted):
                todo.pop()
                heapq.heappush(events, (now_s + found.duration_s, next(order), found))
            elif found.kind == "capacity":
                heapq.heappush(events, (now_s + way_s, next(order), None))
            else:
                wait_s = min(max(found.wait_s, 1e-6), LOOK_S)
            free -= not wait_s
        if wait_s and (not events or now_s + wait_s < events[0][0]):
            now_s += wait_s
            continue
        now_s, _, ended = heapq.heappop(events)
        if ended is None or ended.stage == "finished":
            free += 1
        else:  # its worker sends the next request when it has the answer
            provider.finish(START_S + now_s, ended)
            heapq.heappush(events, (now_s + 2 * way_s, next(order), ended))
    return now_s


def mean(world: World, seeds: Sequence[int]) -> Outcome:
    """The means of the runs with these seeds."""
    with silence():
        runs = [run(world, seed) for seed in seeds]
    names = "ideal_s", "took_s", "refused", "unserved"
    return Outcome(world, *(fmean(getattr(one, name) for one in runs) for name in names))


def geometric(outcomes: Sequence[Outcome]) -> float:
    """The geometric mean of the times."""
    return exp(fmean(log(one.times) for one in outcomes))


def summary(name: str, outcomes: Sequence[Outcome]) -> str:
    """The geometric mean of the times of some worlds, and the sum of their refusals."""
    refused, unserved = (sum(getattr(one, name) for one in outcomes) for name in ("refused", "unserved"))
    share = refused / (refused + sum(one.world.requests for one in outcomes))
    return (
        f"{name:16} {len(outcomes):3} worlds: {geometric(outcomes):.2f} times the ideal, at most {max(one.times for one in outcomes):.2f};"
        f" {refused:,.0f} refused ({share:.1%}), {unserved:,.0f} not served"
    )


def table(title: str, outcomes: Iterable[Outcome]) -> Iterator[str]:
    """A row for each world, and the sums of each group and of all."""
    yield f"{title:72} requests  ideal s  times  refused unserved"
    found = []
    for one in outcomes:
        yield str(one)
        found.append(one)
    by_group = attrgetter("world.group")
    yield ""
    for group, some in groupby(sorted(found, key=by_group), key=by_group):
        yield summary(group, [*some])
    if others := [one for one in found if one.world.group != SHEDDING]:
        yield summary("all but shedding", others)
    yield ""


def span(text: str) -> range:
    """``80`` is the first 80 random worlds, and ``200:290`` those from 200 to 289."""
    first, _, end = text.rpartition(":")
    return range(int(first or 0), int(end))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="a part of the name or the group")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="the seeds of the runs of each chosen world")
    parser.add_argument(
        "--drawn", type=span, default=range(80), help="random worlds: so many, or FIRST:END", metavar="N"
    )
    parser.add_argument("--most", type=int, default=10**6, help="leave out the worlds of more requests", metavar="N")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    with ProcessPoolExecutor(given.jobs) as pool:
        for title, worlds, seeds in (("chosen", CHOSEN, given.seeds), ("drawn", [*map(drawn, given.drawn)], [1])):
            named = [world for world in worlds if given.only in f"{world.name} {world.group}"]
            asked = [world for world in named if world.requests <= given.most]
            for line in table(title, pool.map(partial(mean, seeds=seeds), asked)) if asked else ():
                print(line, flush=True)


if __name__ == "__main__":
    main()
