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


def expressions():
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target


def test_expressions(exported):
    seen = set()
    for title, target in expressions():
        names = re.findall(r"(paceline_\w+)(\{[^}]*\})?", target["expr"])
        assert names, title
        for name, braces in names:
            assert name in exported, title
            assert set(re.findall(r"(\w+)\s*=", braces)) <= exported[name], title
            seen.add(name)
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= exported[names[0][0]], title
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
        names = re.findall(r"(paceline_\w+)(\{[^}]*\})?", rule["expr"])
        assert names or rule["expr"].startswith("up{job="), rule["alert"]
        for name, braces in names:
            assert name in exported, rule["alert"]
            assert set(re.findall(r"(\w+)\s*=", braces)) <= exported[name], rule["alert"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus")
def test_the_alerts_fire_and_end_as_their_own_tests_say():
    done = subprocess.run(
        ["promtool", "test", "rules", "alerts_test.yml"], check=False, cwd=EXAMPLES, capture_output=True, text=True, timeout=60
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
