"""What answers have taught about the cost of requests, per model."""

from __future__ import annotations

from collections import OrderedDict

from paceline.estimation.estimate import Correction, OutputShare
from paceline.providers.base import Call, Usage

OUTPUT_TOKENS_EXPECTED = 512
"""The output that is expected of a request which names no maximum, before any answer has taught better."""

MODELS_MAX = 4_096
"""How many models' lessons are kept; the one not used for longest goes."""


class TokenCalibration:
    """What a model's answers have taught about its costs."""

    __slots__ = ("input", "output", "unasked")

    def __init__(self, factor: float | None = None) -> None:
        self.input = Correction(factor)
        self.output = OutputShare()
        self.unasked = Correction()  # output of requests that name no maximum, against the expected constant

    def expected_output(self, call: Call) -> float:
        """Output tokens that nine of ten answers stay within."""
        if call.max_output_tokens is None:
            return self.unasked.apply(OUTPUT_TOKENS_EXPECTED)
        return self.output.apply(call.max_output_tokens)

    def learn(self, call: Call, usage: Usage) -> None:
        """Compare what was expected with what was used."""
        self.input.observe(call.input_tokens, usage.input_tokens)
        if call.max_output_tokens is None:
            self.unasked.observe(OUTPUT_TOKENS_EXPECTED, usage.output_tokens)
        else:
            self.output.observe(call.max_output_tokens, usage.output_tokens)


class Calibrations:
    """The lessons of all models of one limiter."""

    def __init__(self, factor: float | None = None) -> None:
        self._factor = factor
        self._calibration: OrderedDict[tuple[str, str], TokenCalibration] = OrderedDict()

    def of(self, call: Call) -> TokenCalibration:
        """The lessons for the model and endpoint of ``call``."""
        key = (f"{call.provider}/{call.model}", call.endpoint)
        lessons = self._calibration.get(key)
        if lessons is None:
            lessons = self._calibration[key] = TokenCalibration(self._factor)
            if len(self._calibration) > MODELS_MAX:
                self._calibration.popitem(last=False)
        return lessons
