"""The dashboard and the alerts use exported names and labels only."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import paceline
from paceline.telemetry.prometheus import exposition
from paceline.testing import ManualClock

EXAMPLES = Path(__file__).parents[2] / "examples/gateway"
DASHBOARD = json.loads((EXAMPLES / "grafana.json").read_text())
[ALERTS] = yaml.safe_load((EXAMPLES / "alerts.yml").read_text())["groups"]


@pytest.fixture(scope="module")
def exported():
    """The labels of every exported sample, by name."""
    limiter = paceline.Limiter({"openai/gpt-5": "500 requests/min"}, clock=ManualClock())
    limiter.acquire("openai/gpt-5").wait().refused(retry_after_s=3.0)
    status = limiter.status()
    status["pools"]["openai/gpt-5"]["store"] = {"state": "joined"}
    status["ready"] = True
    status["answers"] = [{"upstream": "h", "pool": "openai/gpt-5", "status": 0, "cause": "unreachable", "count": 1}]
    status["unpaced"] = [{"provider": "openai", "host": "h", "kind": "k", "count": 1}]
    status["pools"]["openai/gpt-5"]["lanes"] = {"a": 1}
    families = text_string_to_metric_families(exposition(status).decode())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def names_in(expression, exported):
    """The metrics of an expression, which are exported with the labels that it names."""
    found = re.findall(r"(paceline_\w+)(\{[^}]*\})?", expression)
    for name, braces in found:
        assert name in exported, expression
        assert set(re.findall(r"(\w+)\s*=", braces)) <= exported[name], expression
    return [name for name, _ in found]


def test_expressions(exported):
    seen = set()
    for target in (target for panel in DASHBOARD["panels"] for target in panel.get("targets", ())):
        first, *others = names_in(target["expr"], exported)
        seen |= {first, *others}
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= exported[first], target["expr"]
        assert target["expr"].count("(") == target["expr"].count(")")
    assert len(seen) > 8


def test_its_parts():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    assert {variable["name"] for variable in DASHBOARD["templating"]["list"]} == {"datasource", "pool"}
    for panel in DASHBOARD["panels"]:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}"


def test_each_alert_is_on_something_that_is_exported(exported):
    assert {"PacelineRefused", "PacelineStoreAway"} <= {rule["alert"] for rule in ALERTS["rules"]}
    for rule in ALERTS["rules"]:
        assert names_in(rule["expr"], exported) or rule["expr"].startswith("up{job="), rule["alert"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus")
def test_the_alerts_fire_and_end_as_their_own_tests_say():
    done = subprocess.run(
        ["promtool", "test", "rules", "alerts_test.yml"], check=False, cwd=EXAMPLES, capture_output=True, text=True, timeout=60
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
