"""Grids of parameters of which `make test` runs a few points, `make test-all` a sample, and `make soak` the rest."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import product
from typing import Any

import pytest

from cost import EXEMPT

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


def sample(items: Iterable[pytest.Item]) -> None:
    """Mark as ``long`` what ``pytest.mark.sample(count)`` leaves out of a test's combinations of parameters.

    ``count`` of them stay, at equal distances on each axis: the first of all axes, the last of all, and some between.
    What is marked already has no part in it.
    """
    grids = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sample") and not any(map(item.get_closest_marker, EXEMPT)):
            grids[item.nodeid.partition("[")[0]].append((item, item.callspec.indices))
    for grid in grids.values():
        axes = {name: sorted({at[name] for _, at in grid}) for name in grid[0][1]}
        (count,) = grid[0][0].get_closest_marker("sample").args
        parts = [n / (count - 1) for n in range(count)]
        kept = [{name: axis[round(part * (len(axis) - 1))] for name, axis in axes.items()} for part in parts]
        for item, at in grid:
            if at not in kept:
                item.add_marker(pytest.mark.long("more of the same kind"))
