import pytest
from shared_world import SharedWorld, store_threads, until


@pytest.fixture
def world():
    """Limiters on one store, in a time of their own; all threads must end with it."""
    world = SharedWorld()
    yield world
    world.close()
    until(lambda: not store_threads(), "the end of all threads")
