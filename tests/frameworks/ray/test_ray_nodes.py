"""Ray Data on a cluster of three nodes, of which one goes; the rows of each block are a partition."""

import threading
import time

import pandas as pd
import pytest
import ray
from engine_work import answered, rows
from engine_world import KILL_AT, check, until
from ray.cluster_utils import Cluster

ROWS = 600


class Leaver(threading.Thread):
    """Takes a node away in the middle of the job, with all of its processes, by SIGKILL."""

    def __init__(self, provider, cluster, node):
        super().__init__(daemon=True)
        self.provider, self.cluster, self.node, self.in_flight = provider, cluster, node, None

    def run(self):
        until(lambda: self.provider.tally()["calls"] >= KILL_AT)
        self.in_flight = self.provider.tally()["in_flight"]
        self.cluster.remove_node(self.node, allow_graceful=False)


@pytest.fixture
def three_nodes(provider):
    arguments = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=arguments)
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield cluster, nodes
    ray.shutdown()
    cluster.shutdown()


def test_a_node_that_goes_costs_what_was_in_flight(three_nodes, provider, capsys):
    cluster, nodes = three_nodes
    table = ray.data.from_pandas(pd.DataFrame(rows(ROWS))).repartition(12)
    leaver, started_s = Leaver(provider, cluster, nodes[0]), time.monotonic()
    leaver.start()
    results = table.map_batches(answered, batch_format="pandas", batch_size=None).take_all()
    check(provider, leaver, ROWS, results, capsys, "Ray", started_s)
