"""The world that the SDKs' suites run in: an emulated provider and a limiter that knows its limits."""

import pytest
from gateway_world import Gateway, Recorder
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


@pytest.fixture(scope="module")
def recorder():
    """A server that records."""
    with Recorder() as recorder:
        yield recorder


@pytest.fixture(scope="module")
def gateway(tmp_path_factory, recorder):
    """A gateway in front of it."""
    with Gateway(tmp_path_factory.mktemp("gateway"), recorder.url) as gateway:
        yield gateway
    assert "Traceback" not in gateway.log
