import threading

import pytest
from shared_world import SharedWorld, earlier, store_threads

from waits import until


@pytest.fixture(autouse=True)
def own_threads():
    """The failure of a test that left a thread is no other one's."""
    earlier.update(threading.enumerate())
    yield
    earlier.clear()


@pytest.fixture
def world():
    """Limiters on one store, in a time of their own; all threads must end with it."""
    world = SharedWorld()
    yield world
    world.close()
    until(lambda: not store_threads(), "the end of all threads")
