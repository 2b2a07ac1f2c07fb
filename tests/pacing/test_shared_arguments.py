"""Invalid stores and leases are errors of the constructor."""

from pathlib import Path

import pytest

import paceline


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


@pytest.mark.parametrize("lease_s", ["1", True, -1, 61, float("nan")])
def test_what_is_no_lease(lease_s):
    with pytest.raises(paceline.SettingsError, match=r"lease_s is .*: it must be seconds from 0 to 60"):
        paceline.Limiter({"jobs": "1 requests/min"}, store="memory:", lease_s=lease_s)
