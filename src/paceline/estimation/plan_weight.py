"""How much of a plan's window the requests of this process use: a fit of the shares that answers state.

No provider states what weighs. The share for one unit of the process's own amount, and the share that others add in a second, are fitted to
what both have done in each ``BIN_S``: least squares, without negative values. The result is good enough to be shown, and no more:
``tests/estimation/test_plan_weight.py`` has the bounds within which it finds the true weight, alone and beside others.
"""

from __future__ import annotations

from typing import Final

BIN_S: Final = 600.0
"""The time that is one observation: a share is stated in whole percents, and an answer does not state its own."""

ROUNDING: Final = 0.01
"""What stated shares are rounded to (1 %: Claude's and Codex's, 2026)."""

NOISE: Final = 2 * ROUNDING**2 / 12
"""The variance of a difference of two shares that are rounded."""

KNOWN: Final = 5 * ROUNDING
"""The weight is known when so much of the windows was seen to be used: within a fifth, by the rounding."""

OLDER: Final = 0.5
"""What the observations of a window count in the next one."""


class PlanWeight:
    """The weight of one window's requests.

    Attributes:
        weight: The share for one unit of the own amount.
    """

    __slots__ = ("_amount", "_at_s", "_sums", "_total", "_used", "weight")

    def __init__(self) -> None:
        self.weight = self._total = 0.0
        self._sums = [0.0] * 5  # of amount², amount x time, time², amount x rise, time x rise
        self._used, self._at_s, self._amount = 0.0, 0.0, 0.0  # the first reading of the bin, and the own amount since

    @property
    def is_known(self) -> bool:
        """Whether enough of the windows was seen to be used by this process."""
        return self.weight * self._total >= KNOWN

    def begin(self, used: float, at_s: float) -> None:
        """Begin a window; its first reading states ``used``."""
        self._sums, self._total = [OLDER * one for one in self._sums], OLDER * self._total
        self._used, self._at_s, self._amount = used, at_s, 0.0

    def use(self, amount: float) -> None:
        """An own request is charged."""
        self._amount += amount
        self._total += amount

    def read(self, used: float, at_s: float) -> None:
        """An answer states that ``used`` is used."""
        sums = self._with_bin(used, at_s)
        self._fit(sums)
        if at_s - self._at_s >= BIN_S:
            self._sums = sums
            self._used, self._at_s, self._amount = used, at_s, 0.0

    def _with_bin(self, used: float, at_s: float) -> list[float]:
        """The sums, with the bin that is open."""
        amount, seconds, rise = self._amount, max(at_s - self._at_s, 0.0), max(used - self._used, 0.0)
        more = (amount * amount, amount * seconds, seconds * seconds, amount * rise, seconds * rise)
        return [before + one for before, one in zip(self._sums, more, strict=True)]

    def _fit(self, sums: list[float]) -> None:
        """Fit the weight. Others are believed in only where they explain more than rounding does (two standard deviations)."""
        amounts, both, times, own, rises = sums
        if not amounts:
            self.weight = 0.0
            return
        self.weight = own / amounts
        apart, unexplained = times - both * both / amounts, rises - own * both / amounts
        if apart > 0 and unexplained > 0 and unexplained * unexplained / apart > 4 * NOISE:
            self.weight = max((own - both * unexplained / apart) / amounts, 0.0)
