"""Variables of paceline that are no settings."""

import warnings

import pytest

from paceline.config import Config


@pytest.mark.parametrize("name", ["PACELINE_KEY", "PACELINE_KEYS", "PACELINE_EXEC"])
def test_other_variables_of_paceline_are_no_unknown_settings(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not Config.load(environ={name: "x"}).origins
