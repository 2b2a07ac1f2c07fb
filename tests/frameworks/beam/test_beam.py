"""Apache Beam: a pipeline on several worker processes, one quota in a file that they share."""

import json
import os
import pickle
import urllib.request
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from paceline.core.results import SettingsError, StoreError
from paceline.integrations.beam import PacelineRateLimiter

RATE = ["10 requests/s"]


class Ask(beam.DoFn):
    def __init__(self, limiter, url):
        self.limiter, self.url = limiter, url

    def process(self, number):
        assert self.limiter.allow()
        body = {"model": "gpt-5", "messages": [{"role": "user", "content": f"number {number}?"}], "max_tokens": 9}
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json", "authorization": "Bearer k"},
        )
        with urllib.request.urlopen(request) as answer:
            yield number, answer.status, os.getpid()


def test_no_worker_is_refused(paceline_emulator, tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_STORE", f"sqlite:{tmp_path / 'quotas.db'}")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # the workers import this file
    world = paceline_emulator(limits={"gpt-5": RATE}, process=True)
    options = PipelineOptions(
        ["--runner=FnApiRunner", "--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    )
    with beam.Pipeline(options=options) as pipeline:
        (
            pipeline
            | beam.Create(range(100))
            | beam.Reshuffle()
            | beam.ParDo(Ask(PacelineRateLimiter("openai/gpt-5", RATE), world.base_url))
            | beam.Map(json.dumps)
            | beam.io.WriteToText(str(tmp_path / "out"), shard_name_template="")
        )
    answers = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert sorted(number for number, *_ in answers) == list(range(100))
    assert os.getpid() not in {pid for *_, pid in answers}
    assert (world.tally()["admitted"], world.tally()["refused_total"]) == (100, 0)


def test_it_is_pickled_without_its_limiter(tmp_path):
    limiter = PacelineRateLimiter("jobs", RATE, store=f"sqlite:{tmp_path / 'q.db'}", timeout_s=0.5)
    assert limiter.allow(hits_added=3)
    assert pickle.loads(pickle.dumps(limiter)).allow()
    assert not limiter.allow(hits_added=100)  # ten seconds


def test_wrong_arguments_are_errors_at_once(monkeypatch):
    monkeypatch.delenv("PACELINE_STORE", raising=False)
    with pytest.raises(SettingsError, match="unknown unit"):
        PacelineRateLimiter("jobs", ["10 requets/s"])
    with pytest.raises(StoreError, match="store has a password"):
        PacelineRateLimiter("jobs", RATE, store="redis://:hunter2@host")
    with pytest.raises(StoreError, match="set PACELINE_STORE"):
        PacelineRateLimiter("jobs", RATE).allow()
