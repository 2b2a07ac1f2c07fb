"""The pytest plugin: one fixture, and nothing imported before it is used."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paceline.emulator.server import Emulator


@pytest.fixture
def paceline_emulator() -> Iterator[Callable[..., Emulator]]:
    """Start emulated providers that stop when the test ends: ``paceline_emulator(limits=..., **settings)``."""
    try:
        from paceline.emulator import Emulator
    except ImportError as error:
        from paceline.core.hints import why_missing

        pytest.fail(why_missing(error, "the fixture paceline_emulator", "emulator"), pytrace=False)

    with ExitStack() as running:

        def start(*args: Any, **settings: Any) -> Emulator:
            return running.enter_context(Emulator(*args, **settings))

        yield start
