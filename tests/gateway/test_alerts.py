"""The alerts in a real Prometheus: each of five faults of a provider fires its own, and ends it when it is over."""

import json
import re
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from gateway_helpers import Stub, chat, stub

ALERTS = Path(__file__).parents[2] / "examples/gateway/alerts.yml"
WINDOW_S = 8  # in place of minutes

ANSWER = '{"choices": [{"message": {"content": "Hi."}}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}'
OK = (200, "application/json", ANSWER)
FAULTS = {
    "key": (401, "application/json", '{"error": {"code": "invalid_api_key", "message": "Incorrect API key provided"}}'),
    "capacity": (503, "application/json", '{"error": {"message": "The server is overloaded", "type": "server_error"}}'),
    "money": (
        429,
        "application/json",
        '{"error": {"code": "insufficient_quota", "message": "You exceeded your quota"}}',
    ),
    "unread": (200, "text/html", "<!doctype html><p>welcome"),
}
FIRED = {
    ("PacelineUnreachable", None), ("PacelineKeyRefused", "openai/key"), ("PacelineCapacity", "openai/capacity"),
    ("PacelineNoMoney", "openai/money"), ("PacelineUnreadAnswers", "openai/unread"),
}  # fmt: skip


class Ill(Stub):
    """A server with a fault for each model, until it is well."""

    well = False

    def answer(self, _path, _headers, body):
        status, kind, text = OK if self.well else FAULTS.get(json.loads(body)["model"], OK)
        return text.encode(), status, {"content-type": kind}


@contextmanager
def prometheus(folder, target):
    """A Prometheus that reads ``target`` five times a second, with the project's rules and shorter windows."""
    rules = re.sub(r"\b1[05]m\b(?=[\])\s])", f"{WINDOW_S}s", ALERTS.read_text())
    assert rules.count(f"{WINDOW_S}s") > 10
    (folder / "alerts.yml").write_text(rules)
    (folder / "prometheus.yml").write_text(
        json.dumps({
            "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"},
            "rule_files": ["alerts.yml"],
            "scrape_configs": [{"job_name": "paceline", "static_configs": [{"targets": [target]}]}],
        })
    )  # fmt: skip
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = {"config.file": "prometheus.yml", "storage.tsdb.path": "data", "web.listen-address": address}
    command = ["prometheus", *(f"--{name}={value}" for name, value in options.items())]
    with (folder / "log").open("w") as log, subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) as process:
        try:
            yield f"http://{address}/api/v1/alerts"
        finally:
            process.terminate()


@pytest.mark.long("waits for the windows of a real Prometheus")
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's package prometheus")
def test_five_faults_fire_and_end(serve, client, tmp_path, nowhere):
    with stub(ill := Ill()) as url:
        servers = {"openai": {"base_url": url}, "away": {"provider": "openai", "base_url": nowhere}}
        given = {"limits": {"*": "100k requests/min"}, "retry": {"max_attempts": 1}, "breaker": False}
        running = serve(url, upstreams=servers, **given)
        with prometheus(tmp_path, running.url.removeprefix("http://")) as alerts:

            def firing():
                try:
                    reply = client.get(alerts)
                except httpx2.TransportError:  # it starts
                    return None
                if reply.status_code != 200:
                    return None
                found = reply.json()["data"]["alerts"]
                labels = [one["labels"] for one in found if one["state"] == "firing"]
                return {(one["alertname"], one.get("pool")) for one in labels}

            def soon(condition, what):
                end_s = time.monotonic() + 60
                while not condition():
                    assert time.monotonic() < end_s, (what, firing())
                    time.sleep(0.2)

            def ask():
                headers = {"x-paceline-timeout": "0"}
                for path, model in (*(("openai", one) for one in FAULTS), ("away", "any")):
                    client.post(f"{running.url}/{path}/v1/chat/completions", json=chat(model=model), headers=headers)

            soon(lambda: firing() is not None, "start")
            assert firing() == set()
            ask()
            soon(lambda: ask() or firing() >= FIRED, "fire")
            ill.well = True
            soon(lambda: not firing() & FIRED, "end")
