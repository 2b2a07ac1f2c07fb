"""What the answers of a model show about the estimates of its tokens, input and output."""

from __future__ import annotations

import math
import re
from collections import OrderedDict, deque
from collections.abc import Iterable
from functools import lru_cache

OUTPUT_TOKENS_EXPECTED = 512
"""The expected output before any answer is known. The mean of OpenRouter's requests was about 400 at the end of 2025
(https://arxiv.org/abs/2601.10088, 2026-01); the rest is a margin."""

UNKNOWN_INPUT_TOKENS, UNKNOWN_OUTPUT_TOKENS = 600, 200
"""The size of an unknown call, as extropy's limiter assumes it (extropy-run 0.2.3, ``RateLimiter.acquire``)."""

MODELS_MAX = 4_096
"""Calibrations and families that are kept; the oldest is dropped first."""

_FACTOR_MIN, _FACTOR_MAX = 0.3, 5.0  # a ratio outside of these is not an error of the estimate
_PRIOR_WEIGHT, _MARGIN = 3.0, 0.10  # before the first answer: as after three, right on average, 10 % apart
_KEEP = 0.98  # the part of an answer's weight that is left after each later answer: the last 50 or so count
_ANSWERS_MAX, _ANSWERS_MIN = 64, 8  # recent answers whose output is kept, and how many are needed
_FAMILY = re.compile(r"(?:^|/)(?:[a-z]+\.)*([a-z]+(?:-[a-z]+)*)[^/]*$")  # us-east-1/us.anthropic.claude-opus-4-8


class Correction:
    """The ratio of actual to estimated tokens over the answers of a model, and its spread. Not thread-safe.

    An answer weighs as much as the square root of its estimate. The factor is the mean ratio plus one standard
    deviation: 1.10 before the first answer, and close to the mean once the answers agree.

    Args:
        fixed_factor: A factor on top of the mean ratio, in place of the standard deviation.

    Attributes:
        factor: The factor from an estimate to what admission should use.
    """

    __slots__ = ("_fixed_factor", "_ratios", "_squares", "_weight", "factor")

    def __init__(self, fixed_factor: float | None = None) -> None:
        self._fixed_factor = fixed_factor
        self._weight = self._ratios = self._squares = 0.0
        self.factor = 1 + _MARGIN if fixed_factor is None else fixed_factor

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
        mean = self._ratios / self._weight
        if self._fixed_factor is not None:
            self.factor = mean * self._fixed_factor
        else:
            variance = max(0.0, self._squares / self._weight - mean**2)
            self.factor = min(max(mean + math.sqrt(variance), _FACTOR_MIN), _FACTOR_MAX)

    @property
    def ratio(self) -> float:
        """The mean of actual ÷ estimated; 1 before the first answer."""
        return self._ratios / self._weight if self._weight else 1.0

    def apply(self, estimated: float) -> float:
        """The tokens that admission should use; 0 for NaN, infinity and numbers below 0."""
        return estimated * self.factor if 0 < estimated < math.inf else 0.0


class UsualOutput:
    """The output that nine of ten answers stay within, by the last 64 of them, in tokens.

    If several threads observe at once, an answer may be kept and not counted.

    Attributes:
        recent: The output of those answers, the oldest first.
        answers: How many answers there were.
    """

    __slots__ = ("answers", "recent")

    def __init__(self) -> None:
        self.recent: deque[float] = deque(maxlen=_ANSWERS_MAX)
        self.answers = 0

    def observe(self, tokens: float) -> None:
        """Learn from one answer. Negative numbers, NaN and infinity are ignored."""
        if 0 <= tokens < math.inf:
            self.recent.append(tokens)  # before it is counted: another thread may read meanwhile
            self.answers += 1

    def usual(self) -> float | None:
        """The output that nine of ten of them stay within; ``None`` before eight answers."""
        if self.answers < _ANSWERS_MIN:
            return None
        outputs = sorted(self.recent)  # a copy: another thread may add one meanwhile
        return outputs[math.ceil(0.9 * len(outputs)) - 1]


class TokenCalibration:
    """The corrections of the token estimates for one model and endpoint.

    Args:
        estimate_factor: As for :class:`Calibrations`.
        elders: What answers of the same family, and then of all models, have shown: they stand in for this one's own.

    Attributes:
        input: From the estimated to the actual input.
        output: The usual output.
        booked: The output tokens that the provider charges a request without a maximum at admission, as a refusal has
            stated; 0 for unknown.
        doubted: Whether a refusal has shown that the expected output may be too low, and no answer has come since.
    """

    __slots__ = ("_outputs", "booked", "doubted", "input", "output")

    def __init__(self, estimate_factor: float | None = None, elders: tuple[UsualOutput, ...] = ()) -> None:
        self.input, self.output = Correction(estimate_factor), UsualOutput()
        self._outputs = (self.output, *elders)
        self.booked, self.doubted = 0, False

    def expected_output(self, max_output_tokens: int | None) -> float:
        """The expected output tokens; ``None`` for a request that names no maximum."""
        if self.doubted and max_output_tokens is not None:
            return max_output_tokens
        for one in self._outputs:
            if (usual := one.usual()) is not None:
                break
        else:
            usual = OUTPUT_TOKENS_EXPECTED
        if self.output.answers < _ANSWERS_MIN:  # the largest of the few may be larger than what others have shown
            usual = max((usual, *self.output.recent))
        return usual if max_output_tokens is None or usual <= max_output_tokens else max_output_tokens

    def doubt(self) -> None:
        """A refusal for want of output: until the next answer, the maximum is expected where few answers are known."""
        self.doubted = self.output.answers < _ANSWERS_MIN

    def learn(
        self, *, input_estimate: int, input_tokens: int, max_output_tokens: int | None, output_tokens: int
    ) -> None:
        """Compare the estimate of a request with what its answer reports, all in tokens."""
        self.input.observe(input_estimate, input_tokens)
        self.doubted = False
        if max_output_tokens != 0:  # a request without output, as an embedding, says nothing about others
            self._observe(output_tokens)

    def restore(self, outputs: Iterable[float]) -> None:
        """Learn from the output of answers to an earlier process, unless those to this one are enough."""
        if self.output.answers < _ANSWERS_MIN:
            for tokens in outputs:
                self._observe(tokens)

    def _observe(self, output_tokens: float) -> None:
        for one in self._outputs:
            one.observe(output_tokens)


class Calibrations:
    """The calibrations of all models of one limiter.

    Args:
        estimate_factor: A fixed factor for all estimates of input, in place of the margin that answers teach.
    """

    def __init__(self, estimate_factor: float | None = None) -> None:
        self._estimate_factor = estimate_factor
        self._calibrations: OrderedDict[tuple[str, str, str], TokenCalibration] = OrderedDict()
        self._families = lru_cache(MODELS_MAX)(lambda _name: UsualOutput())
        self._all = UsualOutput()

    def of(self, provider: str, model: str, endpoint: str) -> TokenCalibration:
        """The calibration for the requests to ``endpoint`` of a provider's model."""
        key = provider, model, endpoint
        calibration = self._calibrations.get(key)
        if calibration is None:
            calibration = TokenCalibration(self._estimate_factor, (self._family(model), self._all))
            self._calibrations[key] = calibration
            if len(self._calibrations) > MODELS_MAX:
                self._calibrations.popitem(last=False)
        return calibration

    def outputs(self) -> list[tuple[tuple[str, str, str], UsualOutput]]:
        """The usual outputs that any answer has shown, by provider, model and endpoint; the latest first."""
        found = reversed(list(self._calibrations.items()))
        return [(key, calibration.output) for key, calibration in found if calibration.output.answers]

    def _family(self, model: str) -> UsualOutput:
        """The usual output of the models whose names begin with the same words: ``claude-opus``, ``gemini``."""
        match = _FAMILY.search(model.lower())
        return self._families(match[1] if match else model)
