"""What an integration says when its package is not there."""

from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

import paceline

LIMITS = {"openai/*": "10 requests/min"}
USES = {  # by its package: the module, the requirement, and what needs the package if the module alone does not
    "langchain_core": ("langchain", "langchain-core>=1", None),
    "dspy": ("dspy", "dspy>=3.4", lambda door: door.instrument(paceline.Limiter(LIMITS))),
    "ray": ("ray", "ray[data]>=2.60", lambda door: door.paced_requests(None, limits=LIMITS, journal="job")),
    "apache_beam": ("beam", "apache-beam>=2.77", None),
}


@pytest.mark.parametrize("package", USES)
def test_what_to_install_is_said(package):
    if find_spec(package) is not None:
        pytest.skip(f"{package} is installed here")
    module, requirement, use = USES[package]
    with pytest.raises(ImportError) as raised:
        use(import_module(f"paceline.integrations.{module}"))
    assert f"pip install {requirement!r}" in str(raised.value)


def test_another_dspy():
    pace = import_module("paceline.http.dspy").pace
    with pytest.raises(ImportError, match="engine='litellm'"):
        pace(SimpleNamespace(StdlibTransport=object), paceline.Limiter())
