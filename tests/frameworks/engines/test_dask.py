"""Dask: three workers in processes of their own, of which one is killed."""

import os
import time

import dask
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from engine_work import answered, rows
from engine_world import Killer, check

ROWS = 600


@pytest.fixture
def dask_client(provider):
    dask.config.set({"distributed.scheduler.allowed-failures": 10})
    with LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        yield client


def test_a_killed_worker_costs_what_was_in_flight(dask_client, provider, capsys):
    import dask.dataframe as dd

    table = dd.from_pandas(pd.DataFrame(rows(ROWS)), npartitions=12)
    workers = list(dask_client.run(os.getpid).values())
    killer, started_s = Killer(provider, lambda: workers), time.monotonic()
    killer.start()
    meta = {"id": "int64", "text": "string", "answer": "string", "error": "string"}
    results = table.map_partitions(answered, meta=meta).compute().to_dict("records")
    check(provider, killer, ROWS, results, capsys, "Dask", started_s)
