"""Random worlds, each drawn from a seed: the promises of docs/promises.md are checked at each grant and at the end.

    python -m tests.simulation.seeds --count 10000        # seeds 0 to 9,999
    python -m tests.simulation.seeds --seed 1234          # one of them, with its options; a broken one is minimised

A world has a safety phase, in which anything may happen, and a liveness phase: faults, stalls and outages of the store have
ended, and all work must be served within a bound. Other users, skewed clocks and a slow network stay.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
import time
from collections.abc import Coroutine
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from itertools import count

from tests.simulation.troubles import Freeze, Process, Simulation, Stall, silence

import paceline
from paceline.core.results import Reservation, SourceKind
from paceline.pacing.retry import RetryPolicy
from paceline.planner.simulation import Request
from paceline.shared.peers import LOOK_US
from paceline.testing import DeadlockError

SAFETY_S = 90.0
"""How long faults, stalls and outages of the store may last."""

RECOVER_S, RECOVER_TIMES, RECOVERED = 120.0, 10, 0.6
"""After changed limits the demand is full for so many seconds, so many times at most, until this share of the speed."""

TICK_S = 0.01
"""A deadline is kept to so many seconds, and those of the store."""


class BrokenPromiseError(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True)
class Options:
    """A world. The defaults are those of a world without any trouble."""

    seed: int = 0
    rule: str = "bucket"
    limits: tuple[tuple[str, float], ...] = (("requests", 300), ("tokens", 200_000))
    period_s: int = 60
    slots: int = 0
    told: float = 1.0  # what the limiter is told, as a part of the truth
    source_known: bool = True  # whether the told rule is the true one
    processes: int = 1
    shared: bool = False
    skews_s: tuple[float, ...] = ()
    late_s: tuple[float, ...] = ()
    crash_s: float = 0.0
    store_away: tuple[tuple[float, float], ...] = ()
    store_cut: tuple[tuple[float, float], ...] = ()  # of the first process only
    forget_s: float = 0.0
    workers: int = 20
    calls: int = 400
    words: tuple[int, int] = (100, 900)
    estimate: float = 1.0
    latency_s: float = 0.5
    lanes: tuple[tuple[str, float, int], ...] = ()
    timeouts: float = 0.0
    cancelled: float = 0.0
    invalid: float = 0.0
    headers: bool = True
    numbers: bool = True
    others: float = 0.0
    start_level: float = 1.0
    settle: str = "never"
    faults: tuple[tuple[str, float], ...] = ()
    stalls: tuple[tuple[float, float, str], ...] = ()
    changes: tuple[tuple[float, float], ...] = ()
    net_s: float = 0.02
    pulse_s: float = 0.0  # callers come all at once so often: some, estimated too high, and later the others
    source: str = "given"  # what the limiter takes its limits for
    retry_after: str = ""  # the wait that refusals state
    streams: float = 0.0
    freezes: tuple[tuple[float, float, bool], ...] = ()  # of the first process; whether its clock stops
    store_lost: float = 0.0
    store_steps: tuple[tuple[float, float], ...] = ()

    @property
    def model(self) -> str:
        """The model: Anthropic limits input apart, Groq gives unused output back, OpenAI does neither."""
        if dict(self.limits).get("input_tokens"):
            return "anthropic/m"
        return "groq/m" if self.settle == "actual" else "openai/m"

    @property
    def quiet(self) -> bool:
        """Whether the limits are known, and no trouble is the provider's or the network's: then nothing is refused."""
        return (
            self.told == 1.0 and self.source == "given" and self.source_known and self.estimate >= 1 and not self.others and self.start_level == 1
            and not self.stalls and not self.changes and not dict(self.faults).get("growth") and self.net_s <= 0.02
            and not self.forget_s and not (self.crash_s and self.shared)
            # After an outage the use of a process that is still cut off is not known.
            and not (self.store_away and self.store_cut) and not self.store_lost
            # A window restarts by the provider's clock: that of the store, or of a process alone, has to be right.
            and not (self.rule == "window" and (self.store_steps or any(stops for *_, stops in self.freezes)))
            and not (self.slots and self.cancelled)  # a cancelled caller has its slot again before the provider knows
        )  # fmt: skip

    def quotas(self, factor: float = 1.0) -> str:
        """The limits in text, for the limiter."""
        rule = "" if self.rule == "bucket" or not self.source_known else f" {self.rule}"
        rule += " utc" if rule == " window" else ""
        texts = [f"{amount * factor:f} {unit}/{self.period_s}s{rule}" for unit, amount in self.limits]
        return ", ".join([*texts, *([f"{self.slots} concurrency"] if self.slots else [])])

    def true(self, factor: float = 1.0) -> str:
        """The same for the provider."""
        texts = [f"{amount * factor:.6f} {unit}/{self.period_s}s {self.rule}" for unit, amount in self.limits]
        return ",".join([*texts, *([f"{self.slots} concurrency"] if self.slots else [])])


def drawn(seed: int) -> Options:
    """The world of ``seed``."""
    rnd = random.Random(seed)
    chance = lambda p: rnd.random() < p  # noqa: E731
    between = lambda a, b: round(rnd.uniform(a, b), 2)  # noqa: E731
    rate = rnd.choice([60, 120, 300, 600])
    tokens = ("tokens", rate * rnd.choice([400, 700, 1_500]))
    apart = (("input_tokens", rate * rnd.choice([400, 900])),)
    o = Options(
        seed=seed,
        rule=rnd.choice(["bucket", "bucket", "bucket", "window", "sliding"]),
        limits=(("requests", rate), *rnd.choice([(tokens,), (tokens,), apart, ()])),
        period_s=rnd.choice([60, 60, 10]),
        slots=rnd.choice([0, 0, 0, 5, 30]),
        workers=rnd.choice([3, 20, 60]),
        words=rnd.choice([(100, 900), (20, 60), (10, 3_000)]),
        latency_s=rnd.choice([0.02, 0.5, 3.0]),
        estimate=rnd.choice([1.0, 1.0, 1.3, 2.0, 0.8]),
        settle=rnd.choice(["never", "never", "actual"]),
        headers=chance(0.8),
        numbers=chance(0.8),
    )
    o = replace(o, period_s=o.period_s if o.model == "openai/m" else 60)  # the headers of the others are about minutes
    o = replace(o, calls=min(rate * 3 * (6 if o.period_s == 10 else 1), 400))
    if chance(0.45):
        processes = rnd.choice([2, 3, 5])
        o = replace(
            o,
            processes=processes,
            shared=True,
            skews_s=tuple(between(-3_600, 3_600) if chance(0.5) else 0.0 for _ in range(processes)),
            late_s=tuple(between(0, 60) if chance(0.3) else 0.0 for _ in range(processes)),
            crash_s=between(5, 60) if chance(0.2) else 0.0,
            store_away=((a := between(2, 50), a + between(1, 30)),) if chance(0.35) else (),
            store_cut=((a := between(2, 50), a + between(1, 30)),) if chance(0.2) else (),
            forget_s=between(5, 60) if chance(0.1) else 0.0,
            store_lost=between(0.01, 0.05) if chance(0.15) else 0.0,
            store_steps=((between(5, 60), -between(0.5, rnd.choice([5, 3_600]))),) if chance(0.15) else (),
        )
    if chance(0.3):
        o = replace(o, streams=between(0.1, 1.0))
    if chance(0.15):
        o = replace(o, freezes=((a := between(2, 50), a + between(0.5, 20), chance(0.5)),))
    if chance(0.3):
        lanes = [("bulk", 1.0, 0), ("paid", float(rnd.choice([1, 3])), 0), ("urgent", 1.0, rnd.choice([0, 5]))]
        o = replace(o, lanes=tuple(lanes[: rnd.choice([2, 3])]))
    if chance(0.2):
        o = replace(o, timeouts=between(0.05, 0.5))
    if chance(0.25):
        o = replace(o, cancelled=between(0.02, 0.3))
    if chance(0.2):
        o = replace(o, invalid=rnd.choice([0.1, 0.5, 0.9]))
    if chance(0.4):  # trouble of the provider
        o = replace(
            o,
            told=rnd.choice([1.0, 0.5, 2.0, 4.0]),
            retry_after=rnd.choice(["", "", "", "full", "long", "none"]),
            source=rnd.choice(["given", "given", "published", "assumed"]),
            source_known=chance(0.5),
            others=between(0, 0.4) if chance(0.4) else 0.0,
            start_level=rnd.choice([1.0, 0.5, 0.1]),
            faults=tuple(
                (kind, between(0.01, 0.2)) for kind in ("500", "503", "drop", "slow", "growth") if chance(0.25)
            ),
            stalls=((a := between(5, 50), a + between(1, 20), rnd.choice(["requests", "answers", "both"])),)
            if chance(0.3)
            else (),
            changes=((between(10, 40), rnd.choice([0.25, 0.5, 2.0])), (between(45, 80), 1.0)) if chance(0.3) else (),
            net_s=rnd.choice([0.02, 0.02, 0.8]),
        )
    if chance(0.25):
        limits, period_s = (("requests", 3_000), ("tokens", rnd.choice([24_000, 40_000]))), rnd.choice([10, 20])
        size = {"slots": 0, "words": (100, 900), "calls": min(o.calls, 240), "workers": 60, "latency_s": 10.0}
        o = replace(
            o, limits=limits, period_s=period_s, **size, settle="never", pulse_s=40.0, estimate=rnd.choice([1.3, 2.0])
        )
    return o


class Checked:
    """One world, with its checks."""

    def __init__(self, options: Options) -> None:
        self.o = o = options
        self.random = random.Random(o.seed + 1)
        ways = {"both": ("requests", "answers"), "requests": ("requests",), "answers": ("answers",)}
        self.sim = Simulation(
            {o.model: o.true()},
            seed=o.seed,
            net_s=(0.001, o.net_s),
            stalls=[Stall(a, b, ways[way]) for a, b, way in o.stalls],
            store={"away": o.store_away, "lost": o.store_lost, "steps": o.store_steps},
            retry_after=o.retry_after,
            latency_s=o.latency_s,
            jitter=0.3,
            headers=o.headers,
            body_numbers=o.numbers,
            other_users=o.others,
            start_level=o.start_level,
            settle=o.settle,
            faults=dict(o.faults),
            changes=[{"at_s": at_s, "limits": {o.model: o.true(factor)}} for at_s, factor in o.changes],
        )
        if o.store_cut:
            self.sim.store.cut["p0"] = o.store_cut
        if o.forget_s:
            self.after(o.forget_s, self.sim.store.forget)
        lanes = [paceline.LaneSpec(name, weight, priority) for name, weight, priority in o.lanes]
        self.processes = [
            self.sim.process(
                quotas={o.model: o.quotas(o.told)},
                shared=o.shared,
                skew_s=o.skews_s[n] if o.skews_s else 0.0,
                freezes=[Freeze(*freeze) for freeze in o.freezes] if n == 0 else (),
                source=SourceKind(o.source),
                lanes=lanes,
                learn="up" if o.told < 1 else True,
                retry=RetryPolicy(faults=True, max_attempts=50, max_elapsed_s=1e6),
            )
            for n in range(o.processes)
        ]
        for process in self.processes:
            self.watch(process)
        self.arrived = 0
        self.left = o.calls
        self.dead: set[int] = set()
        self.callers: list[list[asyncio.Task]] = [[] for _ in self.processes]

    def after(self, seconds: float, event) -> None:
        self.sim.time.after(seconds - self.sim.now_s, event)

    # Checks.

    def watch(self, process: Process) -> None:
        """Check each grant of the pool of ``process``: nothing overtakes inside a lane, and no lower priority goes first."""
        pool = process.limiter.pacer.pools.scheduler(self.o.model).pool
        pump, submit = pool.pump, pool.submit
        numbers = count()
        order = dict[str, int]()  # by name; a further attempt keeps its place, unless it is to go behind the others

        def ordered(now_ns: int, waiter):
            if not waiter.returned:
                order[waiter.name] = next(numbers)
            return submit(now_ns, waiter)

        def checked(now_ns: int):
            before = [(waiter.lane.name, waiter.lane.priority, order[waiter.name], waiter) for waiter in pool.queue]
            done = pump(now_ns)
            granted = {waiter for waiter in done if isinstance(waiter.outcome, Reservation)}
            if granted and pool.queue.length:
                first: dict[str, int] = {}
                ended = set(done)
                for lane, _, number, waiter in before:
                    if waiter not in ended:
                        first[lane] = min(number, first.get(lane, number))
                waits = max((p for _, p, _, waiter in before if waiter not in ended), default=-99)
                for waiter in granted:
                    if order[waiter.name] > first.get(waiter.lane.name, 1 << 60):
                        raise BrokenPromiseError(
                            f"request {waiter.name} overtook another one in lane {waiter.lane.name}"
                        )
                    if waiter.lane.priority < waits:
                        raise BrokenPromiseError(f"lane {waiter.lane.name} went before one of a higher priority")
            return done

        pool.pump, pool.submit = checked, ordered

    def check_end(self) -> None:
        o, sim = self.o, self.sim
        refused = sim.world.tally()["refused"]
        # What a process without the store spends is presumed, not known; after 15 s its slots are others', as if it had ended.
        few = (20 if o.slots else 3) if o.store_cut else 3 if o.store_away and o.freezes else 0
        if o.quiet and refused.get("rate", 0) > few:
            raise BrokenPromiseError(f"{refused['rate']} refusals of our own making under known limits")
        handful = 16 * o.processes + 2 * o.workers * (len(o.stalls) + len(o.changes)) + 25 * len(o.changes)
        handful += (o.calls // 8) if o.others or o.net_s > 0.02 or o.estimate < 1 else 0
        if o.slots and o.others:  # who finds a slot free is luck; a refusal that names no quota is blamed on the rate
            handful += o.calls
        if o.slots and o.cancelled:  # the next attempt has the slot of a cancelled one, which the provider still counts
            handful += round(2 * o.cancelled * o.calls)
        wrong_clock = o.rule == "window" and any(stops for *_, stops in o.freezes)  # its windows begin at other times
        if refused.get("rate", 0) > handful + o.workers and not wrong_clock:
            raise BrokenPromiseError(f"{refused['rate']} refusals are more than a handful ({handful + o.workers})")
        for one in sim.sent:
            if one.error is None or one.error.startswith("status 400"):
                continue
            if "no answer" in one.error and (o.store_away or o.store_cut or o.store_lost):
                continue  # a process that has never reached its store
            if "the provider asks to wait" in one.error and o.retry_after == "long":
                continue
            if one.request.timeout_s is not None and "no permit within the timeout" in one.error:
                continue
            raise BrokenPromiseError(f"a request that the provider would serve failed: {one.error}")
        for number, process in enumerate(self.processes):
            if number in self.dead:
                if not (o.store_away or o.store_cut or o.store_lost or o.store_steps or o.forget_s):
                    self.check_dead(process)
                continue
            pool = process.limiter.pacer.pools.scheduler(self.o.model).pool
            if pool.queue.length:
                raise BrokenPromiseError(f"{pool.queue.length} waiters are left in the queue of {process.name}")
            if pool.ledger.in_flight:
                raise BrokenPromiseError(f"{pool.ledger.in_flight} permits of {process.name} are open for ever")
            if not {"500", "503", "drop"} & dict(o.faults).keys() and any(
                breaker.open_until_ns for breaker in process.limiter.pacer.health._breakers.values()
            ):
                raise BrokenPromiseError(f"the breaker of {process.name} is open, and no server has failed")

    def check_dead(self, process: Process) -> None:
        """Nothing is kept for a process that has ended, once its report is overdue and the store has been asked since.

        A store that was quiet for long may have been away, so that it does not know who has ended meanwhile.
        """
        for ledger in self.sim.store._ledgers.values():
            peers = ledger._peers
            peer = peers._peers.get(process.name)
            known = peer is not None and peers.away_us <= peer.due_us
            if known and peer.gone and peers._last_us > peer.due_us + 2 * LOOK_US:
                raise BrokenPromiseError(f"a share is kept for {process.name}, which has ended")

    # The run.

    def run(self) -> None:
        try:
            self.sim.run(self.main)
        except DeadlockError as error:
            raise BrokenPromiseError(f"a lost wake-up: {error}") from None
        except BaseExceptionGroup as errors:
            while isinstance(errors, BaseExceptionGroup):
                errors = errors.exceptions[0]
            raise errors from None
        self.check_end()

    async def main(self) -> None:
        o = self.o
        async with asyncio.TaskGroup() as group:
            for number, late_s in enumerate(o.late_s or [0.0] * o.processes):
                for n in range(max(o.workers // o.processes, 1)):
                    self.begin(group, number, self.work(self.processes[number], late_s, early=n % 5 == 0))
            if o.crash_s and o.processes > 1:
                self.after(o.crash_s, self.crash)
            self.after(SAFETY_S, self.calm)
            bound_s = self.bound_s()
            over = group.create_task(asyncio.sleep(bound_s))
            done = {task for tasks in self.callers for task in tasks}
            await asyncio.wait([group.create_task(asyncio.wait(done)), over], return_when="FIRST_COMPLETED")
            if over.done():
                left = sum(not task.done() for task in done)
                states = [process.limiter.status() for process in self.processes]
                raise BrokenPromiseError(
                    f"{left} workers and {self.left} calls are not done after {bound_s:.0f} s: {states}"
                )
            over.cancel()
        each_s = 1.5 * o.latency_s + 2 * o.net_s
        # Forty callers demand the whole rate.
        saturated = not o.slots and 40 / each_s > 1.5 * o.limits[0][1] / o.period_s
        # A refusal that asks to wait twenty times too long is obeyed, and others cause one again and again.
        obeyed = o.retry_after == "long" and o.others
        if o.changes and not dict(o.faults).get("growth") and o.told >= 1 and saturated and not obeyed:
            await self.recover()

    async def recover(self) -> None:
        """After changed limits: full demand, until the speed is that of the true limits again."""
        o, world, times = self.o, self.sim.world, 0.0
        rate = o.limits[0][1] / o.period_s * (1 - o.others)
        for _ in range(RECOVER_TIMES):
            before, self.left = world.total.admitted, round(rate * RECOVER_S)
            began_s = self.sim.now_s
            alive = [number for number in range(o.processes) if number not in self.dead]
            async with asyncio.TaskGroup() as group:
                for number in alive:
                    for _ in range(max(40 // len(alive), 1)):
                        self.begin(group, number, self.small(self.processes[number]))
            times = (world.total.admitted - before) / rate / (self.sim.now_s - began_s)
            if times > RECOVERED:
                return
        raise BrokenPromiseError(f"{times:.2f} of the true speed, long after the limits have risen: a lesson stays")

    async def small(self, process: Process) -> None:
        while self.left > 0:
            self.left -= 1
            self.arrived += 1
            sent = await process.send(Request(self.o.model, 10, 5, 10, name=str(self.arrived)))
            if sent.error is not None:  # a pool that is stopped refuses at once, and its callers try later
                self.left += 1
                await asyncio.sleep(1.0)

    def bound_s(self) -> float:
        """When all work must be done: the time of the provider for it at half speed, and the ends of all troubles."""
        o = self.o
        each = {
            "requests": 1.0,
            "tokens": sum(o.words) / 2 * max(o.estimate, 1) + 200,
            "input_tokens": sum(o.words) / 2,
        }
        speed = min(amount / o.period_s / each[unit] for unit, amount in o.limits) * (1 - o.others)
        if o.slots:
            speed = min(speed, o.slots / (o.latency_s * 1.5 + 2 * o.net_s + 0.05))
        speed = min(speed, o.workers / (o.latency_s * 1.5 + 2 * o.net_s))
        if o.told < 1 and not o.headers:
            speed *= o.told
        if dict(o.faults).get("growth"):
            speed *= 0.15  # each "slow down" halves the speed for a quarter of an hour
        if o.pulse_s:
            speed = min(speed, o.workers / o.pulse_s / 2)
        return SAFETY_S + 2 * o.calls / speed + 8 * o.period_s + 300

    def calm(self) -> None:
        """End the faults and the losses of the store; stalls and outages have ended."""
        settings, self.sim.store.lost = self.sim.world.settings, 0.0
        self.sim.world.settings = replace(settings, faults={})

    def begin(self, group: asyncio.TaskGroup, number: int, calls: Coroutine) -> None:
        """Start a caller of a process: it ends with the process."""
        self.callers[number].append(group.create_task(calls))

    def crash(self) -> None:
        self.dead.add(1)
        self.processes[1].crash()
        for task in self.callers[1]:
            task.cancel()

    async def work(self, process: Process, late_s: float, *, early: bool) -> None:
        o = self.o
        if late_s:
            await asyncio.sleep(late_s)
        while self.left > 0:
            if o.pulse_s:
                offset_s = 0.0 if early else 0.6 * o.latency_s
                await asyncio.sleep(o.pulse_s - (self.sim.now_s - offset_s) % o.pulse_s)
            self.left -= 1
            size = self.random.randint(*o.words)
            lane = self.random.choice(o.lanes)[0] if o.lanes else None
            timeout_s = self.random.uniform(0.5, 30.0) if self.random.random() < o.timeouts else None
            number, self.arrived = self.arrived, self.arrived + 1
            request = Request(
                o.model, size, 100, 200, estimated=round(size * (o.estimate if early or not o.pulse_s else 1)), lane=lane, timeout_s=timeout_s, name=str(number),
                invalid=self.random.random() < o.invalid, stream=self.random.random() < o.streams,
            )  # fmt: skip
            task = asyncio.ensure_future(process.send(request))
            began_s = self.sim.now_s
            if self.random.random() < o.cancelled:
                await asyncio.wait([task], timeout=self.random.choice([0.0, 0.01, 0.5, 5.0, 20.0]))
                if not task.done():
                    task.cancel()
            try:
                sent = await task
            except asyncio.CancelledError:
                if asyncio.current_task().cancelling():
                    task.cancel()
                    raise
                continue
            if sent.error is not None and timeout_s is not None and sent.attempts == 0 and not o.freezes:
                passed_s, slack_s = self.sim.now_s - began_s, TICK_S + 2.1 * o.shared
                if passed_s > timeout_s + slack_s:
                    raise BrokenPromiseError(f"a deadline of {timeout_s:.2f} s was kept after {passed_s:.2f} s")
            if sent.error is not None and "no answer" in sent.error:
                self.left += 1
                await asyncio.sleep(1.0)


def check(options: Options) -> str | None:
    """What is broken in a world; ``None`` for nothing."""
    state = random.getstate()
    random.seed(options.seed)
    try:
        with silence():
            Checked(options).run()
    except BrokenPromiseError as error:
        return str(error)
    finally:
        random.setstate(state)
    return None


def minimised(options: Options) -> Options:
    """The same with as few troubles as still break a promise."""
    plain, kind = Options(seed=options.seed), _kind(check(options) or "")
    changed = True
    while changed:
        changed = False
        for one in fields(options):
            value = getattr(plain, one.name)
            if getattr(options, one.name) != value:
                less = replace(options, **{one.name: value})
                if less.processes > 1 and not less.shared:
                    continue
                try:
                    found = check(less)
                except Exception:  # noqa: BLE001  (it makes no sense)
                    continue
                if found is not None and _kind(found) == kind:
                    options, changed = less, True
    return options


def _kind(found: str) -> str:
    """What is broken, without its numbers."""
    return re.sub(r"[\d.]+", "", found)[:60]


def differing(options: Options) -> dict:
    """The options that are not the defaults."""
    plain = asdict(Options())
    return {name: value for name, value in asdict(options).items() if value != plain[name]}


def tried(seed: int) -> tuple[int, str | None]:
    """The result of a seed."""
    try:
        return seed, check(drawn(seed))
    except Exception as error:  # noqa: BLE001
        return seed, f"{type(error).__name__}: {error}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    began, seeds = time.monotonic(), range(given.start, given.start + given.count)
    if given.seed is not None:
        seeds = [given.seed]
    broken = 0
    with ProcessPoolExecutor(given.jobs) as pool:
        for number, (seed, found) in enumerate(pool.map(tried, seeds, chunksize=1 if given.seed is not None else 8), 1):
            if number % 1_000 == 0:
                print(f"  {number:,}/{len(seeds):,}", flush=True)
            if found is not None:
                broken += 1
                print(f"seed {seed}: {found[:600]}\n  options: {differing(drawn(seed))}", flush=True)
                if given.seed is not None:
                    print(f"  minimised: {differing(minimised(drawn(seed)))}")
    print(f"{len(seeds):,} seeds, {broken} broken, {time.monotonic() - began:.0f} s")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
