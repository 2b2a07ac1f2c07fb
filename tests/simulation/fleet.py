"""Workers of one or several processes before an emulated provider, in a simulation; what became of their requests."""

import asyncio
import random
from dataclasses import dataclass, field
from itertools import pairwise

from tests.simulation.troubles import Process, Simulation, Stall

from paceline.core.pool import Pool
from paceline.core.quota import parse_quotas
from paceline.core.results import SourceKind
from paceline.emulator.world import Refused
from paceline.pacing.retry import RetryPolicy
from paceline.planner.simulation import Request

MODEL = "openai/m"
BAD = 7_777
"""The input of a request that the provider never admits."""
BLIND = {"headers": False, "body_numbers": False}
"""A provider that states nothing."""
UNKNOWN = "8 concurrency"
"""What a table assumes of an unknown host."""
UNDERESTIMATE = 1.28
"""How many times as many tokens as estimated the provider counts."""


@dataclass
class Host:
    """One process.

    Attributes:
        todo: The input of each request that is left, in tokens; ``None``: endless requests.
        active: When it has work, in seconds since the start; always, if empty.
        sent_at_s: When its attempts were granted.
        waits_s: How long each of them had waited.
    """

    process: Process
    todo: list[int] | None
    active: tuple[tuple[float, float], ...] = ()
    sent_at_s: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    lost: int = 0
    tasks: list[asyncio.Task] = field(default_factory=list)
    dead: bool = False

    @property
    def pool(self) -> Pool:
        return self.process.limiter.pacer.pools.in_use[0].pool


class Fleet:
    """Run ``jobs`` through the workers of each host; believe ``told`` about the limits.

    ``capacity``: arguments of the shared capacities; ``None``: each process has quotas of its own. ``stalls``: when the network
    stalls, for how many seconds, and what it holds. ``bad``: the places of requests that the provider refuses for their own sake, with the
    429 of a rate. Other arguments are those of the simulation and of its processes.
    """

    def __init__(
        self, told, settings, *, jobs=1_000, hosts=1, workers=500, seed=1, underestimate=UNDERESTIMATE, words=(20, 3_000),
        output=200, model=MODEL, source="given", stalls=(), changes=(), net_s=(0.001, 0.02),
        capacity=None, skew_s=(), store=None, headroom_s=None, retry=None, breaker=None, bad=(),
    ):  # fmt: skip
        self.model, self.workers, self.output, self.under = model, workers, output, underestimate
        true = settings["limits"]
        settings = {**settings, "limits": {model: true.get("m", true.get(model))}}
        if changes:
            settings["changes"] = [{"at_s": at_s, "limits": {model: limits["m"]}} for at_s, limits in changes]
        self.sim = Simulation(
            settings.pop("limits"), seed=seed, net_s=net_s, store=store or {},
            stalls=[Stall(at_s, at_s + s, [way for way in ("requests", "answers") if way in held]) for at_s, s, held in stalls],
            **settings,
        )  # fmt: skip
        self.refused = []  # when, for rate
        refuse = self.sim.world.refuse

        def refused(now, why, pool=None):
            if why.kind == "rate":
                self.refused.append(self.sim.now_s)
            return refuse(now, why, pool)

        self.sim.world.refuse = refused
        self.bad_refused, admit = [], self.sim.world.admit  # when

        def admitted(now, model, input_tokens, *args, **options):
            if input_tokens != BAD:
                return admit(now, model, input_tokens, *args, **options)
            self.bad_refused.append(self.sim.now_s)
            return self.sim.world.refuse(now, Refused("rate", model, model, "requests", 60.0, 1.0, 1.0, 1.0, 0.0))

        self.sim.world.admit = admitted
        self.admitted = []  # when, and the cost that the provider held
        self.sim.network.on_admit = lambda _, held: self.admitted.append((self.sim.now_s, held))
        self.hosts = []
        for n in range(hosts):
            process = self.sim.process(
                quotas={f"{model.partition('/')[0]}/*": told}, source=SourceKind(source), shared=capacity is not None, **capacity or {},
                skew_s=skew_s[n] if skew_s else 0.0, retry=retry or RetryPolicy(faults=True, max_attempts=12),
                breaker=breaker, headroom_s=headroom_s if capacity is None else headroom_s or 1.0,
                events=lambda event, n=n: self._on_event(n, event),
            )  # fmt: skip
            dice = random.Random(seed * 100 + n)
            todo = None if jobs is None else [round(dice.randint(*words) * UNDERESTIMATE) for _ in range(jobs // hosts)]
            for place in bad:
                todo.insert(len(todo) - place, BAD)
            self.hosts.append(Host(process, todo))

    def _on_event(self, n, event):
        if event.kind == "acquired":
            host = self.hosts[n]
            host.sent_at_s.append(self.sim.now_s)
            host.waits_s.append(event.waited_s)

    def kill_at(self, at_s, victim):
        def kill():
            host = self.hosts[victim]
            host.dead = True
            host.process.crash()
            for task in host.tasks:
                task.cancel()

        self.sim.time.after(at_s, kill)

    async def _work(self, host):
        while host.todo is None or host.todo:
            if host.active:
                now_s = self.sim.now_s
                from_s = next((a for a, b in host.active if now_s < b), None)
                if from_s is None:
                    return
                if from_s > now_s:
                    await self.sim.time.sleep(from_s - now_s + 1e-6)
                    continue
            tokens = 128 if host.todo is None else host.todo.pop()
            while True:
                sent = await host.process.send(
                    Request(self.model, tokens, self.output, self.output, estimated=tokens / self.under)
                )
                if sent.error is None or "no answer" not in sent.error:
                    break
                await self.sim.time.sleep(1.0)  # its first message to the store: the caller tries again
            host.lost += sent.error is not None

    def run(self, limit_s=7_200, *, whole=True):
        """Until all work is done, or for ``limit_s`` seconds where it is endless; ``whole``: it has to be done by then."""
        endless = any(host.todo is None for host in self.hosts)

        async def main():
            for host in self.hosts:
                start = asyncio.get_running_loop()
                host.tasks = [start.create_task(self._work(host)) for _ in range(self.workers)]
                if endless:
                    await self.sim.time.sleep(0.001)
            tasks = [task for host in self.hosts for task in host.tasks]
            done, left = await asyncio.wait(tasks, timeout=limit_s)
            for task in left:
                task.cancel()
            for task in done:
                if not task.cancelled():
                    task.result()
            states = [] if endless or not left or not whole else [host.process.limiter.status() for host in self.hosts]
            assert not states, f"not done after {limit_s} s: {states}"

        self.sim.run(main)
        return self

    # What became of it.

    @property
    def tally(self):
        return self.sim.world.tally()

    @property
    def speed(self):
        return self.tally["speed_vs_ideal"]

    @property
    def steady(self):
        return self.tally["speed_vs_steady"]

    @property
    def lost(self):
        return sum(host.lost for host in self.hosts)

    @property
    def pool(self):
        return self.hosts[0].pool

    @property
    def waits_s(self):
        return self.hosts[0].waits_s

    def sent(self, from_s=0.0, to_s=1e9):
        """How many attempts were granted in this time."""
        return sum(from_s <= at_s < to_s for host in self.hosts for at_s in host.sent_at_s)

    def speed_after(self, start_s, limits):
        """The share of the true rate, of the quota that binds, from ``start_s`` to the last admission."""
        to_s, held = self.admitted[-1][0], [held for at_s, held in self.admitted if at_s > start_s]
        quotas = [quota for quota in parse_quotas(limits) if quota.period_s <= 3_600]
        return max(sum(one[q.unit] for one in held) / (q.rate * (to_s - start_s)) for q in quotas)

    def silence_s(self, since_s=0.0):
        """The longest time without a request, from ``since_s`` on."""
        sent = sorted(at_s for host in self.hosts for at_s in host.sent_at_s)
        return max((b - a for a, b in pairwise(sent) if b > since_s), default=0.0)

    def said(self):
        """For the message of a failed assertion."""
        return f"{len(self.refused)} refused at {sorted(self.refused)}, {self.speed}, {self.steady}, {self.lost} lost"
