"""The world that the SDKs' suites run in: an emulated provider and a limiter that knows its limits."""

import pytest
from harness import LIMITS, MODELS

import paceline


@pytest.fixture
def world(paceline_emulator):
    return paceline_emulator(limits=MODELS)


@pytest.fixture
def limiter():
    return paceline.Limiter(LIMITS)
