"""Variables of paceline that are no settings."""

import os
import subprocess
import sys
import warnings

import pytest

from paceline.config import Config


@pytest.mark.parametrize("name", ["PACELINE_KEY", "PACELINE_KEYS", "PACELINE_EXEC"])
def test_other_variables_of_paceline_are_no_unknown_settings(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not Config.load(environ={name: "x"}).origins


def test_a_command_names_an_unknown_variable_and_no_line_of_code(tmp_path):
    command = [sys.executable, "-m", "paceline", "config"]
    environ = {**os.environ, "PACELINE_KEEP": "1", "HOME": str(tmp_path)}
    ran = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stderr == "paceline: PACELINE_KEEP is not a setting of paceline\n"
