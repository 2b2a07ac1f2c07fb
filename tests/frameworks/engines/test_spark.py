"""Spark: three executors in processes of their own, of which one is killed; tasks that run twice on purpose."""

import os
import sys
import time

import openai
import pytest
from engine_world import Killer, check, children, command_of
from pyspark.sql import SparkSession

import paceline

SCHEMA = "id long, text string, answer string, error string"
ROWS = 600


@pytest.fixture
def spark(provider, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    before = set(children(os.getpid()))
    session = (
        SparkSession.builder.master("local-cluster[3,1,700]")
        .config("spark.ui.enabled", "false")
        .config("spark.executor.memory", "600m")
        .config("spark.driver.memory", "600m")
        .config("spark.speculation", "true")
        .config("spark.speculation.multiplier", "1.1")
        .config("spark.speculation.quantile", "0.1")
        .config("spark.speculation.minTaskRuntime", "1s")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    from pyspark import SparkContext

    SparkContext._gateway.shutdown()
    SparkContext._gateway.proc.stdin.close()
    SparkContext._gateway.proc.wait(30)
    SparkContext._gateway = SparkContext._jvm = None
    assert set(children(os.getpid())) == before


def executors():
    return [pid for pid in children(os.getpid()) if "CoarseGrainedExecutorBackend" in command_of(pid)]


def test_a_killed_executor_costs_what_was_in_flight(spark, provider, capsys):
    journal = os.environ["JOURNAL"]

    def answered(frames):
        async def ask(row, client):
            messages = [{"role": "user", "content": row["text"]}]
            answer = await client.chat.completions.create(model="gpt-5", messages=messages)
            return answer.choices[0].message.content

        for frame in frames:
            yield paceline.partition(frame, ask, client=openai.AsyncOpenAI, journal=journal, key="id")

    table = spark.range(0, ROWS, 1, 12).selectExpr("id", "concat('row ', id) text")
    killer, started_s = Killer(provider, executors), time.monotonic()
    killer.start()
    results = [row.asDict() for row in table.mapInPandas(answered, SCHEMA).collect()]
    check(provider, killer, ROWS, results, capsys, "Spark", started_s)
