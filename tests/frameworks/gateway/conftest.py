"""A gateway in front of a server that records."""

import pytest
from gateway_world import Gateway, Recorder, provider


@pytest.fixture(scope="module")
def recorder():
    with Recorder() as recorder:
        yield recorder


@pytest.fixture(scope="module")
def gateway(tmp_path_factory, recorder):
    with Gateway(tmp_path_factory.mktemp("gateway"), recorder.url) as gateway:
        yield gateway
    assert "Traceback" not in gateway.log


@pytest.fixture(autouse=True)
def forget(recorder):
    recorder.asked.clear()
    yield
    recorder.answer, recorder.early = provider, ""
