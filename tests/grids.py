"""Grids of parameters of which `make test` runs a few points, `make test-all` a sample, and `make soak` the rest."""

from collections.abc import Collection, Sequence
from itertools import product
from typing import Any

import pytest

WORLD = pytest.mark.long("a world of thousands of requests")


def sampled(*axes: Sequence[Any], quick: Collection[int]) -> list[Any]:
    """All combinations of the axes' values, for ``pytest.mark.parametrize``; those off the diagonal are marked ``soak``.

    The diagonal has as many combinations as the longest axis has values: its n-th value with the n-th of every other
    axis, which begin again at their ends. So each value of each axis is in the sample. The points of the diagonal
    that ``quick`` does not number are marked ``long``.
    """
    diagonal = {tuple(n % len(axis) for axis in axes): n for n in range(max(map(len, axes)))}
    assert set(quick) <= set(diagonal.values()), "a point that make test runs is not on the diagonal"

    def mark(at: tuple[int, ...]) -> Any:
        if at not in diagonal:
            return pytest.mark.soak
        return () if diagonal[at] in quick else WORLD

    return [
        pytest.param(*(axis[i] for axis, i in zip(axes, at, strict=True)), marks=mark(at))
        for at in product(*(range(len(axis)) for axis in axes))
    ]


def some(values: Sequence[Any], *quick: Any, mark: Any = WORLD) -> list[Any]:
    """``values``, for ``pytest.mark.parametrize``; those that ``quick`` does not name are marked ``long``."""
    return [
        value if value in quick else pytest.param(*(value if isinstance(value, tuple) else [value]), marks=mark)
        for value in values
    ]
