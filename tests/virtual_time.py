"""Tests that are coroutines and run in virtual time."""

import functools

from paceline.testing import run_virtual


def virtual(test):
    """Run a test in the time of its fixture ``clock``."""

    @functools.wraps(test)
    def run(*args, clock, **fixtures):
        return run_virtual(lambda _: test(*args, clock=clock, **fixtures), clock)

    return run
