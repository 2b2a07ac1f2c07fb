"""Invalid stores and numbers are errors of the constructor."""

from pathlib import Path

import pytest

import paceline
from paceline.pacing.settings import PacingSettings, declared


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"store": object()}, "object"),
        ({"store": Path("quotas.db")}, "sqlite:quotas.db"),
        ({"store": "sqlite:quotas.db?lost=open"}, "on_store_failure and lease_s are arguments of Limiter"),
    ],
)
def test_what_is_no_store(options, said):
    with pytest.raises(paceline.StoreError, match=said):
        paceline.Limiter({"jobs": "1 requests/min"}, **options)


BOUNDS = {name: its.within for name, its in declared(PacingSettings).items() if its.within}


@pytest.mark.parametrize("name", BOUNDS)
def test_a_number_outside_of_its_bounds(name):
    what, least, most = BOUNDS[name]
    for value in ("1", True, least - 1, most + 1, float("nan")):
        with pytest.raises(paceline.SettingsError, match=rf"{name} is {value!r}: it must be {what} from .* to "):
            paceline.Limiter({"jobs": "1 requests/min"}, store="memory:", **{name: value})
