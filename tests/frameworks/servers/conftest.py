"""The Redis servers of the project's own tests."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path += [str(TESTS / "stores"), str(TESTS)]
