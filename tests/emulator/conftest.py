from contextlib import ExitStack

import pytest

from paceline.testing.pytest_plugin import paceline_emulator  # noqa: F401  (also where the package is not installed)


@pytest.fixture
def kept():
    """``kept(client)``: the client, which is closed when the test ends."""
    with ExitStack() as stack:
        yield stack.enter_context
