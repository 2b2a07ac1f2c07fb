"""Log records as JSON."""

import json
import logging
import warnings

from paceline.cli.serve import _log
from paceline.core.results import PacelineWarning
from paceline.telemetry.logs import JsonFormatter


def record(text, *args, exc_info=None):
    return logging.LogRecord("paceline.http", logging.WARNING, "", 1, text, args, exc_info)


def test_a_line_is_an_object():
    line = JsonFormatter().format(record('it is \n "%s"', "odd"))
    assert "\n" not in line
    value = json.loads(line)
    assert value.pop("time").endswith("+00:00")
    assert value == {"level": "warning", "logger": "paceline.http", "message": 'it is \n "odd"'}


def test_an_exception_is_in_it():
    try:
        int("broken")
    except ValueError as error:
        line = JsonFormatter().format(record("failed", exc_info=(ValueError, error, error.__traceback__)))
    assert "ValueError: invalid literal" in json.loads(line)["exception"]


def test_a_warning_is_a_line_of_the_gateways_log_without_a_place_in_the_source(caplog):
    with warnings.catch_warnings():  # restores what is shown, too
        warnings.simplefilter("always")
        _log(log_format="text", log_level="warning")
        warnings.warn("no published limits: 500 % are used", PacelineWarning, stacklevel=1)
    (line,) = caplog.records
    assert (line.name, line.levelname, line.getMessage()) == (
        "paceline", "WARNING", "no published limits: 500 % are used"
    )  # fmt: skip
