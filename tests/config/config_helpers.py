"""What the tests of settings share."""

import paceline
from paceline.config import load_arguments


def load_limiter(*place, **given):
    return paceline.Limiter(**load_arguments(*place, **given))
