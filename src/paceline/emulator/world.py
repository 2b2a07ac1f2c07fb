"""An emulated provider without its wire: models, quotas, faults and what they were used for. No clock, no IO.

    world = World(Settings(limits={"gpt-5": "500 requests/min,400k tokens/min"}), now=0.0)
    answer = world.admit(now, "gpt-5", input_tokens=1_200, max_output_tokens=300)   # Admitted | Refused
    world.finish(now + answer.duration_s, answer)

Time is an argument (float seconds), so a test can run an hour in a blink. Not thread-safe.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from operator import itemgetter
from random import Random
from typing import Any

from paceline.emulator.outcome import Admitted, Level, Refused
from paceline.emulator.rules import Bucket, Rule, Sliding, Slots, Window
from paceline.emulator.settings import Limit, LimitsLike, Settings, parse_limits
from paceline.emulator.tally import Account, Answers, Count, Timeline, slowest

HELD = ("tokens", "project_tokens")
"""Units that are charged with what a request may produce, before it has."""

MOST_MODELS = 1_000
"""Models beyond the named ones that ``*`` gives accounts of their own."""


@dataclass(slots=True)
class _Pool:
    name: str
    accounts: list[Account]
    default: bool = False  # made for "*"
    count: Count = field(default_factory=Count)


class World:
    """Every model's accounts, and the tally.

    Args:
        settings: What the provider is like.
        now: When it starts, in seconds; all later times are on the same clock. Windows restart at multiples of
            their period on it.
    """

    def __init__(self, settings: Settings, now: float = 0.0) -> None:
        self.settings = settings
        self.start_s = now
        self.total, self.timeline, self.answers = Count(), Timeline(now), Answers()
        self._random = Random(settings.seed)
        self._pools: dict[str, _Pool] = {}  # by model: several models may share one
        self._others = 0.0
        self._due = _schedule(settings, now)
        self._limits = parse_limits(settings.limits)
        for name, limits in self._limits.items():
            if name != "*":
                self._add_pool(now, name, limits)
        self._catch_up(now)

    # --- admission ---------------------------------------------------------------------------------------------

    def admit(
        self,
        now: float,
        model: str,
        input_tokens: int,
        max_output_tokens: int | None = None,
        *,
        holds_output: bool = True,
        settles: bool = False,
    ) -> Admitted | Refused:
        """Let a request in and charge all of its model's quotas, or none.

        Args:
            now: The time in seconds.
            model: The model that is asked for.
            input_tokens: The input, as the server counts it.
            max_output_tokens: The most output (times the number of answers), if the request says so. A ``tokens``
                quota is charged input plus this; ``output_tokens`` only what is produced.
            holds_output: Whether this provider's ``tokens`` quotas count output at all.
            settles: Whether this provider gives back what was held and not used.
        """
        self._catch_up(now)
        pool = self._pools.get(model) or self._new_pool(now, model)
        if pool is None:
            return self.refuse(now, Refused("unknown_model", model))
        if self.settings.money_after is not None and self.total.admitted >= self.settings.money_after:
            return self.refuse(now, Refused("money", model, pool.name), pool)
        fault = self._fault()
        if fault in ("503", "529"):
            pool.count.faults[fault] += 1
            self.total.faults[fault] += 1
            return self._refuse_and_count(now, Refused("capacity", model, pool.name, status=int(fault)), pool)
        if fault == "growth":
            return self._refuse_and_count(now, Refused("growth", model, pool.name, wait_s=1.0), pool)
        held = input_tokens + (max_output_tokens or 0 if holds_output else 0)
        costs = [_cost(account.unit, input_tokens, held) for account in pool.accounts]
        refused = self._first_refusal(now, pool, model, costs)
        if refused is not None:
            return self._refuse_and_count(now, refused, pool)
        for account, cost in zip(pool.accounts, costs, strict=True):
            if account.opening is None:
                account.opening = account.rule.remaining(now)
            account.rule.charge(now, cost)
            account.charged += cost
            account.at_last_admission = account.charged
        pool.count.admit(now)
        self.total.admit(now)
        self.timeline.add(now, 0)
        admitted = Admitted(model, pool.name, input_tokens, 0, held, now)
        admitted.settles = self.settings.settle == "actual" or (self.settings.settle == "provider" and settles)
        self._destine(admitted, max_output_tokens, fault)
        if fault is not None:
            pool.count.faults[fault] += 1
            self.total.faults[fault] += 1
        return admitted

    def _first_refusal(self, now: float, pool: _Pool, model: str, costs: list[float]) -> Refused | None:
        refusing: Account | None = None
        longest, asked = -1.0, 0.0
        for account, cost in zip(pool.accounts, costs, strict=True):
            rule = account.rule
            fits = rule.remaining(now) > 0 if account.unit == "output_tokens" else rule.fits(now, cost)
            if not fits and (wait := rule.wait(now, cost or 1.0)) > longest:
                refusing, longest, asked = account, wait, cost
        if refusing is None:
            return None
        rule = refusing.rule
        used = rule.limit - rule.remaining(now)
        kind = "too_large" if math.isinf(longest) else "rate"
        return Refused(
            kind, model, pool.name, refusing.unit, refusing.period_s, rule.limit, used, asked, max(longest, 0.0)
        )

    def _refuse_and_count(self, now: float, refused: Refused, pool: _Pool) -> Refused:
        if self.settings.failed_count:
            for account in pool.accounts:
                if account.unit == "requests":  # what is left, at most one: hammering empties it but makes no debt
                    account.rule.charge(now, min(1.0, max(0.0, account.rule.remaining(now))))
        return self.refuse(now, refused, pool)

    def refuse(self, now: float, refused: Refused, pool: _Pool | None = None) -> Refused:
        """Count a refusal, also one that was decided before admission (a wrong key, an invalid body)."""
        self.total.refused[refused.kind] += 1
        self.timeline.add(now, 1)
        if pool is not None:
            pool.count.refused[refused.kind] += 1
        return refused

    def _destine(self, admitted: Admitted, most: int | None, fault: str | None) -> None:
        """Decide how the request will go: how long its output is, how long it takes, whether it fails."""
        settings, random = self.settings, self._random
        if fault in ("500", "drop"):
            admitted.fault = fault
        elif most != 0:
            admitted.fault = "stream" if fault == "stream" else None
            most = most or settings.default_output_tokens
            spread = settings.output_spread and random.uniform(-settings.output_spread, settings.output_spread)
            admitted.output_tokens = min(most, max(1, round(most * settings.output_share * (1 + spread))))
        factor = settings.slow_factor if fault == "slow" else 1.0
        if settings.jitter:
            factor *= random.uniform(1 - settings.jitter, 1 + settings.jitter)
        admitted.first_s = settings.latency_s * factor
        admitted.duration_s = admitted.first_s + settings.latency_per_token_s * factor * admitted.output_tokens

    # --- after admission ---------------------------------------------------------------------------------------

    def produce(self, now: float, admitted: Admitted, tokens: int) -> None:
        """Charge output that goes out, to quotas that count it as it appears."""
        self._catch_up(now)
        tokens = min(tokens, admitted.output_tokens - admitted.produced)
        admitted.produced += tokens
        for account in self._pools[admitted.model].accounts:
            if account.unit == "output_tokens" and tokens > 0:
                account.rule.charge(now, tokens)
                account.charged += tokens

    def finish(self, now: float, admitted: Admitted, output_tokens: int | None = None, *, gone: bool = False) -> None:
        """End a request: charge the rest of its output, settle, free its slot. The second time does nothing.

        Args:
            now: The time in seconds.
            admitted: What :meth:`admit` returned.
            output_tokens: The output if it differs from ``admitted.output_tokens``.
            gone: The client left before the end: what was not produced yet never is, and nobody was answered.
        """
        if admitted.finished:
            return
        admitted.finished = True
        if gone:
            admitted.fault, output_tokens = "gone", admitted.produced
        if output_tokens is not None:
            admitted.output_tokens = output_tokens
        self.produce(now, admitted, admitted.output_tokens - admitted.produced)
        pool = self._pools[admitted.model]
        unused = admitted.held_tokens - admitted.input_tokens - admitted.output_tokens
        for account in pool.accounts:
            if account.unit == "concurrency":
                account.rule.give_back(now, 1, admitted.at_s)
            elif account.unit in HELD and admitted.settles:
                account.rule.give_back(now, unused, admitted.at_s)
                account.charged -= unused
        for count in (pool.count, self.total):
            count.in_flight -= 1
            count.answered += admitted.fault is None
            count.faults.update(["gone"] if gone else ())

    # --- what can be asked and changed ---------------------------------------------------------------------------

    def levels(self, now: float, model: str) -> list[Level]:
        """The quotas of a model as headers show them; empty for an unknown model."""
        self._catch_up(now)
        pool = self._pools.get(model)
        return [
            Level(a.unit, a.period_s, a.rule.limit, a.rule.remaining(now), a.rule.reset(now))
            for a in (pool.accounts if pool else ())
        ]

    def models(self) -> list[str]:
        """The models that have accounts."""
        return list(self._pools)

    def set_limits(self, now: float, limits: LimitsLike) -> None:
        """Change limits in mid-run. Quotas that stay keep what is used; new ones start full.

        Raises:
            SettingsError: A limit is none.
        """
        for name, new in parse_limits(limits).items():
            self._limits[name] = new
            models = [model.strip() for model in name.split("|")]
            pools = [p for m, p in self._pools.items() if (p.default if name == "*" else m in models)]
            for pool in pools:
                pool.accounts = self._changed(now, pool.accounts, new)
                pool.default = name == "*"
            if not pools and name != "*":
                self._add_pool(now, name, new)

    def tally(self) -> dict[str, Any]:
        """Everything that was seen, as plain values: totals, ``pools``, ``timeline`` and ``answers`` by custom id.

        ``ideal_s`` is the shortest possible time from first to last admission: for the quota that binds, all charges
        less what was there at first (one full burst), over the true rate. ``steady_s`` is the same with nothing there
        at first. The speeds are those divided by ``elapsed_s``; ``None`` where nothing had to wait. A lucky start
        shortly before a window's end can beat the ideal.
        """
        pools = {pool.name: pool for pool in self._pools.values()}
        reports, charges = {}, dict[str, float]()
        ideals, steadies = [], []
        for name, pool in pools.items():
            own = {account.unit: account.charged for account in pool.accounts}
            for unit, amount in own.items():
                charges[unit] = charges.get(unit, 0.0) + amount
            start = pool.count.first_s
            rated = [a for a in pool.accounts if a.period_s] if start is not None else []
            ideal = slowest(account.ideal_s(start or 0.0) for account in rated)
            steady = slowest(account.steady_s(start or 0.0) for account in rated)
            ideals.append(ideal)
            steadies.append(steady)
            reports[name] = pool.count.report(own, ideal, steady)
        ideal = slowest(i for i in ideals if i is not None)
        total = self.total.report(charges, ideal, slowest(s for s in steadies if s is not None))
        return total | {"pools": reports, "timeline": self.timeline.rows(), "answers": self.answers.report()}

    # --- accounts ----------------------------------------------------------------------------------------------

    def _new_pool(self, now: float, model: str) -> _Pool | None:
        if "*" not in self._limits or len(self._pools) >= MOST_MODELS + len(self._limits):
            return None
        pool = self._pools[model] = _Pool(model, self._changed(now, [], self._limits["*"]), default=True)
        return pool

    def _add_pool(self, now: float, names: str, limits: tuple[Limit, ...]) -> None:
        models = [name.strip() for name in names.split("|")]
        pool = _Pool(models[0], self._changed(now, [], limits))
        self._pools.update(dict.fromkeys(models, pool))

    def _changed(self, now: float, old: list[Account], limits: tuple[Limit, ...]) -> list[Account]:
        by_quota = {(account.unit, account.period_s): account for account in old}
        accounts = []
        for limit in limits:
            account = by_quota.get((limit.unit, limit.period_s))
            if account is None:
                account = Account(limit.unit, limit.period_s, self._rule(now, limit), now)
                account.rule.share_with(now, self._others)
            account.rule.set_limit(now, limit.amount)
            account.note_rate(now)
            accounts.append(account)
        return accounts

    def _rule(self, now: float, limit: Limit) -> Rule:
        settings, name = self.settings, limit.rule or self.settings.rule
        if limit.unit == "concurrency":
            return Slots(limit.amount)
        if name == "window":
            return Window(limit.amount, limit.period_s, now, offset_s=settings.offset_s, full=settings.start_level)
        if name == "sliding":
            return Sliding(limit.amount, limit.period_s, now, full=settings.start_level)
        quantum_s = settings.quantum_s if name == "quantised" and limit.period_s <= 60 else 0.0
        return Bucket(limit.amount, limit.period_s, now, quantum_s=quantum_s, full=settings.start_level)

    def _catch_up(self, now: float) -> None:
        """Let happen what was to happen by now: other users come, limits change."""
        while self._due and self._due[0][0] <= now:
            at, limits = self._due.popleft()
            if limits is not None:
                self.set_limits(at, limits)
                continue
            self._others = self.settings.other_users
            for account in {id(a): a for pool in self._pools.values() for a in pool.accounts}.values():
                account.rule.share_with(at, self._others)
                account.note_rate(at)

    def _fault(self) -> str | None:
        if not self.settings.faults:
            return None
        drawn = self._random.random()
        for kind, probability in self.settings.faults.items():
            drawn -= probability
            if drawn < 0:
                return kind
        return None


def _schedule(settings: Settings, start: float) -> deque[tuple[float, LimitsLike | None]]:
    """What is to happen, by time: new limits, and ``None`` where other users come."""
    events: list[tuple[float, LimitsLike | None]] = [
        (start + change["at_s"], change["limits"]) for change in settings.changes
    ]
    if settings.other_users:
        events.append((start + settings.other_users_from_s, None))
    return deque(sorted(events, key=itemgetter(0)))


def _cost(unit: str, input_tokens: int, held: int) -> float:
    """What a quota is charged at admission; output is charged when it is there."""
    if unit in HELD:
        return held
    if unit == "input_tokens":
        return input_tokens
    return 0 if unit == "output_tokens" else 1
