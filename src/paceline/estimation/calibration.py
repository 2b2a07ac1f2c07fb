"""What the answers of a model show about the estimates of its tokens, input and output."""

from __future__ import annotations

import math
from bisect import insort
from collections import OrderedDict, deque

OUTPUT_TOKENS_EXPECTED = 512
"""The expected output of a request that names no maximum, before the first answer."""

MODELS_MAX = 4_096
"""Calibrations that are kept; the oldest is dropped first."""

_FACTOR_MIN, _FACTOR_MAX = 0.3, 5.0  # a ratio outside of these is not an error of the estimate
_PRIOR_WEIGHT, _MARGIN = 3.0, 0.10  # before the first answer: as after three, right on average, 10 % apart
_KEEP = 0.98  # the part of an answer's weight that is left after each later answer: the last 50 or so count
_SHARES_MAX, _SHARES_MIN = 64, 8  # recent answers that are kept, and how many are needed


class Correction:
    """The ratio of actual to estimated tokens over the answers of a model, and its spread. Not thread-safe.

    An answer weighs as much as the square root of its estimate. The factor is the mean ratio plus one standard
    deviation: 1.10 before the first answer, and close to the mean once the answers agree.

    Args:
        fixed_factor: A factor on top of the mean ratio, in place of the standard deviation.
    """

    __slots__ = ("_fixed_factor", "_ratios", "_squares", "_weight")

    def __init__(self, fixed_factor: float | None = None) -> None:
        self._fixed_factor = fixed_factor
        self._weight = self._ratios = self._squares = 0.0

    def observe(self, estimated: float, actual: float) -> None:
        """Learn from one answer; both in tokens. Numbers below 1, NaN and infinity are ignored."""
        if not (1 <= estimated < math.inf and 1 <= actual < math.inf):
            return
        ratio = min(max(actual / estimated, _FACTOR_MIN), _FACTOR_MAX)
        weight = math.sqrt(estimated)
        if not self._weight:
            self._weight = self._ratios = _PRIOR_WEIGHT * weight
            self._squares = self._weight * (1 + _MARGIN**2)
        self._weight = _KEEP * self._weight + weight
        self._ratios = _KEEP * self._ratios + weight * ratio
        self._squares = _KEEP * self._squares + weight * ratio * ratio

    @property
    def ratio(self) -> float:
        """The mean of actual ÷ estimated; 1 before the first answer."""
        return self._ratios / self._weight if self._weight else 1.0

    @property
    def factor(self) -> float:
        """The factor from an estimate to what admission should use."""
        if self._fixed_factor is not None:
            return self.ratio * self._fixed_factor
        if not self._weight:
            return 1 + _MARGIN
        variance = max(0.0, self._squares / self._weight - self.ratio**2)
        return min(max(self.ratio + math.sqrt(variance), _FACTOR_MIN), _FACTOR_MAX)

    def apply(self, estimated: float) -> float:
        """The tokens that admission should use; 0 for NaN, infinity and numbers below 0."""
        return estimated * self.factor if 0 < estimated < math.inf else 0.0


class OutputShare:
    """The 90th percentile, over the last 64 answers, of the output ÷ the maximum that was asked for. Not thread-safe.

    Until eight answers are known, the share is 1.
    """

    __slots__ = ("_recent", "_sorted")

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def observe(self, asked: float, actual: float) -> None:
        """Learn from one answer; both in tokens. Negative numbers, NaN, infinity and ``asked`` of 0 are ignored."""
        if not (0 < asked < math.inf and 0 <= actual < math.inf):
            return
        share = min(1.0, actual / asked)
        self._recent.append(share)
        insort(self._sorted, share)
        if len(self._recent) > _SHARES_MAX:
            self._sorted.remove(self._recent.popleft())

    @property
    def share(self) -> float:
        """Output ÷ asked that nine of ten answers stay within, from 0 to 1."""
        known = len(self._sorted)
        return 1.0 if known < _SHARES_MIN else self._sorted[math.ceil(0.9 * known) - 1]

    def apply(self, asked: float) -> float:
        """The expected output, in tokens, of a request that asks for ``asked``; 0 for NaN and infinity."""
        return asked * self.share if 0 < asked < math.inf else 0.0


class TokenCalibration:
    """The corrections of the token estimates for one model and endpoint.

    Attributes:
        input: From the estimated to the actual input.
        output: From the maximum that a request names to the expected output.
        unasked: From :data:`OUTPUT_TOKENS_EXPECTED` to the expected output of a request that names no maximum.
        booked: The output tokens that the provider charges such a request at admission, as a refusal has stated; 0 for
            unknown.
    """

    __slots__ = ("booked", "input", "output", "unasked")

    def __init__(self, estimate_factor: float | None = None) -> None:
        self.input, self.output, self.unasked = Correction(estimate_factor), OutputShare(), Correction()
        self.booked = 0

    def expected_output(self, max_output_tokens: int | None) -> float:
        """Output tokens that nine of ten answers stay within; ``None`` for a request that names no maximum."""
        if max_output_tokens is None:
            return self.unasked.apply(OUTPUT_TOKENS_EXPECTED)
        return self.output.apply(max_output_tokens)

    def learn(
        self, *, input_estimate: int, input_tokens: int, max_output_tokens: int | None, output_tokens: int
    ) -> None:
        """Compare the estimate of a request with what its answer reports, all in tokens."""
        self.input.observe(input_estimate, input_tokens)
        if max_output_tokens is None:
            self.unasked.observe(OUTPUT_TOKENS_EXPECTED, output_tokens)
        else:
            self.output.observe(max_output_tokens, output_tokens)


class Calibrations:
    """The calibrations of all models of one limiter.

    Args:
        estimate_factor: A fixed factor for all estimates of input, in place of the margin that answers teach.
    """

    def __init__(self, estimate_factor: float | None = None) -> None:
        self._estimate_factor = estimate_factor
        self._calibrations: OrderedDict[tuple[str, str, str], TokenCalibration] = OrderedDict()

    def of(self, provider: str, model: str, endpoint: str) -> TokenCalibration:
        """The calibration for the requests to ``endpoint`` of a provider's model."""
        key = provider, model, endpoint
        calibration = self._calibrations.get(key)
        if calibration is None:
            calibration = self._calibrations[key] = TokenCalibration(self._estimate_factor)
            if len(self._calibrations) > MODELS_MAX:
                self._calibrations.popitem(last=False)
        return calibration
