"""What an integration says when its package is not there."""

from importlib import import_module
from importlib.util import find_spec

import pytest

import paceline


@pytest.mark.skipif(find_spec("langchain_core") is not None, reason="langchain is installed here")
def test_langchain():
    with pytest.raises(ImportError, match="pip install 'langchain-core>=1'"):
        import_module("paceline.integrations.langchain")


@pytest.mark.skipif(find_spec("dspy") is not None, reason="dspy is installed here")
def test_dspy():
    door = import_module("paceline.integrations.dspy")
    with pytest.raises(ImportError, match=r"pip install 'dspy>=3\.4'"):
        door.instrument(paceline.Limiter({"*": "10 requests/min"}))


def test_another_dspy():
    from types import SimpleNamespace

    pace = import_module("paceline.http.dspy").pace
    with pytest.raises(ImportError, match="engine='litellm'"):
        pace(SimpleNamespace(StdlibTransport=object), paceline.Limiter())


@pytest.mark.skipif(find_spec("ray") is not None, reason="ray is installed here")
def test_ray():
    door = import_module("paceline.integrations.ray")
    with pytest.raises(ImportError, match=r"pip install 'ray\[data\]>=2\.60'"):
        door.paced_requests(None, limits={"openai/*": "10 requests/min"}, journal="job")


@pytest.mark.skipif(find_spec("apache_beam") is not None, reason="Beam is installed here")
def test_beam():
    with pytest.raises(ImportError, match=r"pip install 'apache-beam>=2\.77'"):
        import_module("paceline.integrations.beam")
