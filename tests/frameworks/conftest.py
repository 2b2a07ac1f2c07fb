"""The world that the SDKs' suites run in: an emulated provider and a limiter that knows its limits."""

import pytest
from harness import LIMITS, MODELS

import paceline


@pytest.fixture
def world(paceline_emulator):
    return paceline_emulator(limits=MODELS)


@pytest.fixture
def limiter(request):
    """Knows the limits of every provider, or of the module's ``PROVIDER`` alone, whose requests those to loopback then are."""
    provider = getattr(request.module, "PROVIDER", None)
    return paceline.Limiter({f"{provider}/*": LIMITS[f"{provider}/*"]} if provider else LIMITS)
