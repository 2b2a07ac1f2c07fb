"""Explanations of outcomes: small models of a provider, and how likely each of them is.

A model says one word of each attempt: the provider had something left for it, had nothing, or may have had. If it had, only chance has
refused the attempt. If it had nothing, an admitted attempt contradicts the model. So any model is judged by a count of these words
and the outcomes, and the share that chance refuses is a part of each. The most likely model is believed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import inf, log
from typing import ClassVar, NamedTuple

from paceline.core.beliefs.evidence import Attempt
from paceline.core.quota import NS


class Word(IntEnum):
    """What a model says of an attempt."""

    HAD = 0
    NOTHING = 1
    MAYBE = 2


HAD, NOTHING, MAYBE = (int(word) for word in Word)  # a member costs more than its number

WRONG = 0.02
"""So often a true model is contradicted: one attempt in 50 overtakes another one, or has another cost than was estimated. With 1e-6 (one
contradiction ends a belief) 45 % more is refused in worlds without chance."""

SHARE_MAX = 0.75
"""No larger share is taken for chance. It would be an outage."""

CHANCE, SLOTS, COUNTER, CHANGE = 4.0, 3.0, 8.0, 12.0
"""How much less likely these are before any evidence, as logarithms: one provider in 50 refuses by chance, one in 20 for the number in
flight, one of 3,000 tried periods and restarts is the true one, and one refusal in 100,000 follows a change at the provider."""

NEAR = 3.0
"""Two rates are both possible if their likelihoods differ by a smaller logarithm: 20 to 1 is no proof."""


@dataclass(frozen=True, slots=True)
class Free:
    """No limit."""

    prior: ClassVar[float] = 0.0
    fitted: ClassVar[int] = 0

    def words(self, log: Sequence[Attempt], rough_ns: int) -> Iterator[int]:  # noqa: ARG002
        """A word for each attempt; attempts may come to the provider ``rough_ns`` earlier or later."""
        return iter((HAD,) * len(log))


@dataclass(frozen=True, slots=True)
class Rate:
    """A bucket that refills at ``rate`` per second, holds ``size``, and was empty at ``empty_ns``.

    Attributes:
        rate: The rate.
        high: The highest rate that its two refusals leave possible.
        size: What it holds.
        empty_ns: When it was empty.
        prior: How likely it is before any evidence.
    """

    rate: float
    high: float
    size: float
    empty_ns: int
    prior: float = 0.0
    fitted: ClassVar[int] = 1

    def words(self, log: Sequence[Attempt], rough_ns: int) -> Iterator[int]:
        """See :meth:`Free.words`."""
        rate, size, rough, at_ns = self.rate / NS, self.size, self.rate * rough_ns / NS, self.empty_ns
        low = high = 0.0  # the level is between these
        begun = False
        for one in log:
            amount = one.amount
            if one.sent_ns < at_ns:
                yield MAYBE
                continue
            refill, at_ns = (one.sent_ns - at_ns) * rate, one.sent_ns
            low, high = low + refill, min(high + refill, size) if begun else amount  # less than a cost was left
            begun = True
            yield HAD if low >= amount + rough else NOTHING if high < amount - rough else MAYBE
            low = min(low, size)
            if one.admitted:
                low, high = max(low - amount, 0.0), max(high - amount, 0.0)
            else:
                high = min(high, max(amount, low))


@dataclass(frozen=True, slots=True)
class InFlight:
    """At most ``number`` in flight."""

    number: int
    prior: ClassVar[float] = -SLOTS
    fitted: ClassVar[int] = 1

    def words(self, log: Sequence[Attempt], rough_ns: int) -> Iterator[int]:  # noqa: ARG002
        """See :meth:`Free.words`."""
        number = self.number
        for one in log:
            yield HAD if one.most < number else NOTHING if one.least >= number else MAYBE


@dataclass(frozen=True, slots=True)
class Window:
    """``number`` in a period, restarted at ``start_ns`` and each ``period_ns`` before and after that."""

    number: float
    period_ns: int
    start_ns: int
    prior: ClassVar[float] = -COUNTER
    fitted: ClassVar[int] = 3

    def words(self, log: Sequence[Attempt], rough_ns: int) -> Iterator[int]:
        """See :meth:`Free.words`."""
        number, period_ns, used, late, current = self.number, self.period_ns, 0.0, 0.0, None
        for one in log:
            period, at_ns = divmod(one.sent_ns - self.start_ns, period_ns)
            if period != current:
                current, used, late, before = period, 0.0, 0.0, late
            if used + before + one.amount <= number:
                yield HAD
            else:
                yield NOTHING if used + one.amount > number and rough_ns <= at_ns <= period_ns - rough_ns else MAYBE
            if one.admitted:
                used += one.amount
                if at_ns > period_ns - rough_ns:  # the next period may have counted it
                    late += one.amount


@dataclass(frozen=True, slots=True)
class Sliding:
    """``number`` in any ``period_ns``."""

    number: float
    period_ns: int
    prior: ClassVar[float] = -COUNTER
    fitted: ClassVar[int] = 2

    def words(self, log: Sequence[Attempt], rough_ns: int) -> Iterator[int]:
        """See :meth:`Free.words`."""
        number, period_ns, used, recent = self.number, self.period_ns, 0.0, deque[Attempt]()
        known_ns = 0 if log[0].number == 1 else log[0].sent_ns + period_ns  # what was used before the log is not known
        for one in log:
            since_ns, amount = one.sent_ns - period_ns, one.amount
            while recent and recent[0].sent_ns <= since_ns:
                used -= recent.popleft().amount
            if one.sent_ns < known_ns or (recent and recent[0].sent_ns - since_ns < rough_ns):
                yield MAYBE
            else:
                yield HAD if used + amount <= number else NOTHING
            if one.admitted:
                used += amount
                recent.append(one)

    def free_ns(self, log: Iterable[Attempt], amount: float, now_ns: int) -> int:
        """When ``amount`` fits, after the attempts of ``log``, those in flight among them."""
        recent = [one for one in log if one.admitted is not False and one.sent_ns > now_ns - self.period_ns]
        over = sum(one.amount for one in recent) + amount - self.number
        for one in recent:
            if over <= EPSILON:
                break
            over, now_ns = over - one.amount, one.sent_ns + self.period_ns
        return now_ns


EPSILON = 1e-6
"""Sums of amounts that differ by less are equal."""

Counter = Window | Sliding
Model = Free | Rate | InFlight | Window | Sliding


class Explanation(NamedTuple):
    """A model, and how well it explains the evidence.

    Attributes:
        model: The model.
        chance: The share of the attempts that chance refuses beside it; 0 for none.
        score: The logarithm of its likelihood, with how likely it is before any evidence.
        last: What it says of the refused attempt that asked for an explanation.
        counts: For each word, the admitted and the refused attempts.
    """

    model: Model
    chance: float
    score: float
    last: int
    counts: tuple[tuple[int, int], ...]


def explain(
    model: Model, log_: Sequence[Attempt], last: int, rough_ns: int, others: float, least: float
) -> Explanation | None:
    """How well ``model`` explains the evidence.

    Args:
        model: The model.
        log_: The attempts whose outcomes are known.
        last: The place of the refused attempt that asks for an explanation.
        rough_ns: How much earlier or later an attempt may come to the provider.
        others: How many processes use the quota: the refusals of others look like chance.
        least: The score that another model has.

    Returns:
        The explanation; ``None`` as soon as the model cannot have that score any more.
    """
    price = log(len(log_) + 1) / 2  # of each number that was fitted to the evidence (Schwarz)
    spare = (model.prior - price * model.fitted - least) / -log(WRONG)
    admitted, refused, said = [0, 0, 0], [0, 0, 0], MAYBE
    for i, (one, word) in enumerate(zip(log_, model.words(log_, rough_ns), strict=True)):
        if not one.admitted:
            refused[word] += 1
        else:
            admitted[word] += 1
            if word == NOTHING and admitted[NOTHING] > spare:
                return None
        if i == last:
            said = word
    score = model.prior - price * model.fitted
    score += refused[NOTHING] * log(1 - WRONG) + admitted[NOTHING] * log(WRONG)
    if refused[MAYBE]:  # any share of them: it is fitted, too
        share = (refused[MAYBE] + 0.5) / (admitted[MAYBE] + refused[MAYBE] + 1)
        score += admitted[MAYBE] * log(1 - share) + refused[MAYBE] * log(share) - price
    had, lost, chance = admitted[HAD], refused[HAD], 0.0
    beside = had * log(1 - WRONG) + lost * log(WRONG)
    if lost:
        share = min((lost + 0.5) / (had + lost + 1), SHARE_MAX)
        by_chance = had * log(1 - share) + lost * log(share) - CHANCE * others / (1 - share) - price
        if by_chance > beside:
            beside, chance = by_chance, share
    return Explanation(model, chance, score + beside, said, tuple(zip(admitted, refused, strict=True)))


def best(models: Iterable[Model], log_: Sequence[Attempt], last: int, rough_ns: int, others: float = 1) -> Explanation:
    """The model that explains the evidence best. Of rates it is the highest one that is possible: a refusal shows soon if it is too high."""
    found, most = [], -inf
    for model in models:
        one = explain(model, log_, last, rough_ns, others, most - NEAR)
        if one is not None:
            found.append(one)
            most = max(most, one.score)
    first = max(found, key=lambda one: one.score)
    if not isinstance(first.model, Rate):
        return first
    near = [one for one in found if one.score >= most - NEAR and one.last == first.last]
    return max(near, key=lambda one: one.model.high if isinstance(one.model, Rate) else 0.0)


PERIODS_S = 60, 1, 10, 30, 3_600, 86_400, 5, 15, 20, 300, 600
"""The periods that providers have, the most usual ones first."""

ROW = 3
"""Where so many attempts in a row were refused, nothing was left: one or two may only have been early. The next admitted one is a restart."""

GAPS = 8
"""Of a bucket that holds one attempt, the shortest of so many last gaps shows the rate: one of them alone may be a late attempt."""


def candidates(log_: Sequence[Attempt], last: int, rates: Iterable[float]) -> Iterator[Model]:
    """The models that the evidence suggests, the usual ones first: they rule out the others soon.

    Args:
        log_: The attempts whose outcomes are known.
        last: The place of the refused attempt that asks for an explanation.
        rates: Rates that were measured otherwise.
    """
    at, mean = log_[last], sum(one.amount for one in log_) / len(log_)
    refused = [one for one in log_[:last] if not one.admitted and one.sent_ns < at.sent_ns]
    first_ns = refused[0].sent_ns if refused else at.sent_ns
    yield Free()
    found = [Rate(rate, rate, inf, first_ns) for rate in rates]
    # What was admitted between two refusals was refilled in that time, and less than one cost was left at each of them.
    step = 1
    while refused and step < 2 * len(refused):
        then = refused[-min(step, len(refused))]
        since, span_s = max(at.before - then.before, 0.0), (at.sent_ns - then.sent_ns) / NS
        # If it is not the first refusal, the provider has changed, or those before came by chance.
        prior = 0.0 if then is refused[0] else -CHANGE - CHANCE
        found.append(Rate((since + mean / 2) / span_s, (since + mean) / span_s, inf, then.sent_ns, prior))
        step *= 2
    for one in found:
        yield one
        yield Rate(one.rate, one.high, mean, one.empty_ns, one.prior)
    yield from _of_one(log_[: last + 1], mean, first_ns)
    numbers = sorted({one.most for one in (*refused, at) if one.most})
    yield from map(InFlight, sorted({*numbers[:2], *numbers[len(numbers) // 2 :][:1]}))
    yield from _counters(log_, at)


def _of_one(log_: Sequence[Attempt], mean: float, first_ns: int) -> Iterator[Model]:
    """Buckets that hold one attempt: they refuse the next one for as long as it takes to refill."""
    gaps_ns, admitted_ns = [], None
    for one in log_:
        if one.admitted:
            admitted_ns = one.sent_ns
        elif admitted_ns is not None and one.sent_ns > admitted_ns:
            gaps_ns.append(one.sent_ns - admitted_ns)
    for gap_ns in {gaps_ns[-1], max(gaps_ns[-GAPS:])} if gaps_ns else ():
        rate = (1 - WRONG) * mean * NS / gap_ns
        yield Rate(rate, rate, mean, first_ns)


def _counters(log_: Sequence[Attempt], at: Attempt) -> Iterator[Model]:
    """Counters that are used up at the refusal ``at``, and restart where an attempt was admitted after several refused ones."""
    row, starts_ns = 0, []
    for one in log_:
        if one.admitted and row >= ROW:
            starts_ns = [one.sent_ns]
        row = 0 if one.admitted else row + 1
    if at.stated_ns:
        starts_ns.append(at.sent_ns + at.stated_ns)
    sent_ns = [one.sent_ns for one in log_]
    from_ns = -inf if log_[0].number == 1 else sent_ns[0]  # the log goes back to here

    def used(since_ns: int) -> float:
        return at.before - log_[bisect_left(sent_ns, since_ns)].before if since_ns > from_ns else 0.0

    for period_ns in (period_s * NS for period_s in PERIODS_S) if starts_ns else ():
        for start_ns in starts_ns:
            if (number := used(at.sent_ns - (at.sent_ns - start_ns) % period_ns)) > 0:
                yield Window(number, period_ns, start_ns)
        if (number := used(at.sent_ns - period_ns + 1)) > 0:
            yield Sliding(number, period_ns)
