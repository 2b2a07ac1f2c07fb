"""OpenAI's paths, bodies and errors with another provider's limits: what most model hosts speak.

What such a host holds at admission is seldom documented. Unless its page says otherwise we assume that it counts the
input at the start and the output as it is produced, and that nothing stays charged that was not used.
"""

from __future__ import annotations

from paceline.core.quota import INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, TOKENS, Cost
from paceline.core.results import Reading
from paceline.estimation.estimate import SAFE_ENCODING
from paceline.providers.base import Call, Headers, Usage
from paceline.providers.openai import OpenAI


class Compatible(OpenAI):
    """A host of many models; a page of its own says the rest."""

    encoding = SAFE_ENCODING  # tokenizers of many makers: the weights that count highest

    def pool(self, model: str) -> str:
        """The model itself: limits are per model, and nothing is said of shared ones."""
        return model

    def held(self, call: Call, input_tokens: float, output_tokens: float) -> Cost:
        """The input, and the output to expect: what was asked is only its bound."""
        return token_cost(input_tokens, expected_output(call, output_tokens))

    def charged(self, call: Call, usage: Usage) -> Cost:  # noqa: ARG002
        """What was used, cached reads included."""
        return token_cost(usage.input_tokens, usage.output_tokens)

    def readings(self, headers: Headers, now_s: float) -> list[Reading]:  # noqa: ARG002
        """None: no header is documented."""
        return []


def expected_output(call: Call, output_tokens: float) -> float:
    """``output_tokens``, bounded by what ``call`` asks for."""
    most = call.max_output_tokens
    return output_tokens if most is None else min(output_tokens, most)


def token_cost(input_tokens: float, output_tokens: float) -> Cost:
    """One request in the units that every provider's users may have set a quota for."""
    return {
        REQUESTS: 1.0,
        TOKENS: float(input_tokens + output_tokens),
        INPUT_TOKENS: float(input_tokens),
        OUTPUT_TOKENS: float(output_tokens),
    }
