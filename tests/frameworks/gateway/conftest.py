"""A server that records, as it was before each test."""

import pytest
from gateway_world import provider


@pytest.fixture(autouse=True)
def forget(recorder):
    recorder.asked.clear()
    yield
    recorder.answer, recorder.early = provider, ""
