"""Grids of parameters of which the suite runs a sample, and `make soak` the rest."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest


def sampled(*axes: Sequence[Any]) -> list[Any]:
    """All combinations of the axes' values, for ``pytest.mark.parametrize``; those off the diagonal are marked ``soak``.

    The diagonal has as many combinations as the longest axis has values: its n-th value with the n-th of every other
    axis, which begin again at their ends. So each value of each axis is in the sample.
    """
    diagonal = {tuple(n % len(axis) for axis in axes) for n in range(max(map(len, axes)))}
    return [
        pytest.param(
            *(axis[i] for axis, i in zip(axes, at, strict=True)), marks=() if at in diagonal else pytest.mark.soak
        )
        for at in product(*(range(len(axis)) for axis in axes))
    ]
