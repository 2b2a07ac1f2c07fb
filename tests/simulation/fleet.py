"""A fleet of workers before an emulated provider, in virtual time: the engine on one side, the emulator on the other.

No HTTP, no event loop: a heap of events. What an answer says is built from what the emulated server knows at
admission, with the rounding of the wire (whole seconds in ``retry-after``, milliseconds in resets), and arrives when the
answer ends, in whatever order answers end.
"""

import heapq
import math
import random
from dataclasses import dataclass, field

from paceline.core.capacity import LocalCapacity
from paceline.core.pool import Pool
from paceline.core.queue import Waiter
from paceline.core.quota import NS, parse_quotas
from paceline.core.results import Reading, Refusal, RefusalKind, Reservation, Source, SourceKind, WaitUntil
from paceline.emulator import Refused, Settings, World
from paceline.estimation.calibration import Correction
from paceline.pacing.retry import Again, RetryPolicy
from paceline.pacing.status import report

START_NS = 1_700_000_003 * NS
MODEL = "m"
KINDS = {"too_large": RefusalKind.NEVER_FITS}


@dataclass
class Job:
    input_tokens: int  # as the server counts them
    max_output_tokens: int
    waiter: Waiter | None = None
    attempts: int = 0
    started_ns: int = 0


@dataclass
class Report:
    seconds: float
    lost: int
    refused_at_s: list[float]
    tally: dict
    pool: Pool
    waits_s: list[float] = field(default_factory=list)

    @property
    def refused(self):
        return len(self.refused_at_s)

    @property
    def speed(self):
        return self.tally["speed_vs_ideal"]

    @property
    def steady(self):
        return self.tally["speed_vs_steady"]


class Fleet:
    """Run ``jobs`` through ``workers`` against a world; believe ``told`` about its limits.

    ``stalls``: when the network stalls, for how many seconds, and what it holds: ``requests``, ``answers``, or both.
    """

    def __init__(
        self, told, settings, *, jobs=1_000, workers=500, seed=1, underestimate=1.28, net_s=(0.001, 0.02),
        words=(20, 3_000), max_output_tokens=200, changes=(), retry=None, source="given",
        stalls=(),
    ):  # fmt: skip
        self.stalls = [(START_NS + round(at_s * NS), START_NS + round((at_s + s) * NS), way) for at_s, s, way in stalls]
        self.source = Source(SourceKind(source))
        self.random = random.Random(seed)
        self.world = World(Settings(**settings), START_NS / NS)
        self.pool = self.make_pool(told)
        self.retry = retry or RetryPolicy(faults=True, max_attempts=12)
        self.lesson = Correction()
        self.under, self.net_s = underestimate, net_s
        self.todo = [Job(round(self.random.randint(*words) * 1.28), max_output_tokens) for _ in range(jobs)]
        self.todo.reverse()
        self.workers = workers
        self.now_ns = START_NS
        self.events, self.number = [], 0
        self.lost, self.refused_at_s, self.waits_s = 0, [], []
        self.pump_ns = None
        for at_s, limits in changes:
            self.at(START_NS + round(at_s * NS), lambda limits=limits: self.world.set_limits(self.now_ns / NS, limits))

    def make_pool(self, told):
        quotas = parse_quotas(told)
        return Pool(
            "sim", LocalCapacity.of(quotas, START_NS, learns=True, adapts=True, sources=[self.source] * len(quotas))
        )

    def busy(self):
        """Whether there is work left, waiting or on its way."""
        return bool(self.todo or self.pool.queue.length or self.pool.ledger.in_flight)

    def at(self, at_ns, event):
        self.number += 1
        heapq.heappush(self.events, (max(at_ns, self.now_ns), self.number, event))

    def after(self, seconds, event):
        self.at(self.now_ns + round(seconds * NS), event)

    def over_net(self, seconds, event, way):
        """Do ``event`` when a message of ``seconds`` is through: a stalled network delivers at once what it has held."""
        at_ns = self.now_ns + round(seconds * NS)
        for begins_ns, ends_ns, held in self.stalls:
            if way in held and begins_ns <= at_ns < ends_ns:
                at_ns = ends_ns
        self.at(at_ns, event)

    @property
    def world_s(self):
        return self.now_ns / NS

    def server_after(self, seconds, event):
        self.after(seconds, event)

    def run(self, limit_s=7_200):
        for _ in range(self.workers):
            self.next_job()
        while self.events:
            self.now_ns, _, event = heapq.heappop(self.events)
            assert self.now_ns < START_NS + limit_s * NS, (
                f"not done after {limit_s} s: {report(self.pool, self.now_ns)}"
            )
            event()
        assert not self.pool.queue.length
        return Report(
            (self.now_ns - START_NS) / NS, self.lost, self.refused_at_s, self.world.tally(), self.pool, self.waits_s
        )

    def next_job(self):
        if self.todo:
            job = self.todo.pop()
            job.started_ns = self.now_ns
            self.submit(job)

    def submit(self, job):
        guess = job.input_tokens / self.under
        asked = self.lesson.apply(guess)
        cost = {"requests": 1, "tokens": asked + job.max_output_tokens, "input_tokens": asked}
        cost["output_tokens"] = job.max_output_tokens
        waiter = Waiter(cost)
        if job.waiter is not None:
            waiter.number, waiter.returned = job.waiter.number, True
        job.waiter, waiter.owner = waiter, job
        outcome = self.pool.submit(self.now_ns, waiter)
        if isinstance(outcome, Reservation):
            self.send(job, outcome)
        elif not isinstance(outcome, WaitUntil):
            self.lost += 1  # stopped: nothing more is sent
        self.arm()

    def wake(self, at_ns):
        if at_ns == self.pump_ns:  # else an earlier timer has taken this one's place
            self.pump()

    def pump(self):
        self.pump_ns = None
        for waiter in self.pool.pump(self.now_ns):
            if isinstance(waiter.outcome, Reservation):
                self.send(waiter.owner, waiter.outcome)
            else:
                self.lost += 1
                self.next_job()
        self.arm()

    def arm(self):
        wake_ns = self.pool.wake_ns
        if wake_ns is not None and (self.pump_ns is None or wake_ns < self.pump_ns):
            self.pump_ns = wake_ns
            self.at(wake_ns, lambda: self.wake(wake_ns))

    def changed(self):
        if self.pool.queue.length:
            self.pump()

    def send(self, job, reservation):
        job.attempts += 1
        self.waits_s.append((self.now_ns - job.waiter.arrived_ns) / NS)
        self.over_net(self.random.uniform(*self.net_s), lambda: self.arrive(job, reservation), "requests")

    def arrive(self, job, reservation):
        answer = self.world.admit(self.world_s, MODEL, job.input_tokens, job.max_output_tokens)
        readings = self.readings()
        back_s = self.random.uniform(*self.net_s)
        if isinstance(answer, Refused):
            self.over_net(back_s, lambda: self.refused(job, reservation, answer, readings), "answers")
        else:
            self.server_after(answer.duration_s, lambda: self.world.finish(self.world_s, answer))
            back_s += answer.duration_s
            self.over_net(back_s, lambda: self.answered(job, reservation, answer, readings), "answers")

    def readings(self):
        if not self.world.settings.headers:
            return []
        return [
            Reading(unit, limit, math.floor(remaining), round(reset_s, 3))
            for unit, _, limit, remaining, reset_s in self.world.levels(self.world_s, MODEL)
        ]

    def answered(self, job, reservation, answer, readings):
        self.pool.observe(self.now_ns, readings, reservation)
        if answer.fault is not None:
            self.pool.settle(self.now_ns, reservation, None)
            self.again(job, None)
        else:
            self.lesson.observe(job.input_tokens / self.under, job.input_tokens)
            used = {"input_tokens": job.input_tokens, "output_tokens": job.max_output_tokens}
            if any(m.quota.unit == "output_tokens" for m in self.pool.ledger.meters):
                used["output_tokens"] = answer.output_tokens
            used["tokens"] = job.input_tokens + job.max_output_tokens
            self.pool.settle(self.now_ns, reservation, used)
            self.next_job()
        self.changed()

    def refused(self, job, reservation, answer, readings):
        kind = KINDS.get(answer.kind) or RefusalKind(answer.kind)
        if kind is RefusalKind.RATE:
            self.refused_at_s.append((self.now_ns - START_NS) / NS)
        settings = self.world.settings
        refusal = Refusal(
            kind,
            retry_after_s=float(math.ceil(answer.wait_s))
            if settings.headers and 0 < answer.wait_s < math.inf
            else None,
            unit=answer.unit or None,
            period_s=answer.period_s or None,
        )
        if settings.body_numbers and kind is RefusalKind.RATE:
            refusal = Refusal(
                kind, retry_after_s=refusal.retry_after_s, unit=answer.unit, period_s=answer.period_s,
                limit=answer.limit, used=answer.used, requested=answer.requested,
            )  # fmt: skip
        self.pool.observe(self.now_ns, readings, reservation)
        self.again(job, refusal, reservation)
        self.changed()

    def again(self, job, refusal, reservation=None):
        elapsed_s = (self.now_ns - job.started_ns) / NS
        decision = self.retry.after(
            job.attempts, elapsed_s, refusal, self.random.random(), in_row=self.pool.refused_in_row
        )
        if refusal is not None:
            pause_s = decision.delay_s if isinstance(decision, Again) and decision.pool_wide else 0.0
            self.pool.refuse(self.now_ns, reservation, refusal, pause_s)
        if not isinstance(decision, Again):
            self.lost += 1
            self.next_job()
        elif decision.pool_wide:
            self.submit(job)
        else:
            self.after(decision.delay_s, lambda: self.submit(job))
