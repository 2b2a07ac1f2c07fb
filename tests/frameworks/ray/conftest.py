"""A Ray on this machine, with a Redis for its actors: what they need is in the environment that they inherit."""

import logging
import os
import shutil
import tempfile

import pytest

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}

import ray

KEY = "sk-the-key-of-the-actors"


@pytest.fixture(scope="module")
def cluster(redis_server):
    os.environ |= {"PACELINE_STORE": redis_server.url, "OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY}
    folder = tempfile.mkdtemp(prefix="ray-")  # short: there are sockets in it
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=200 * 2**20,
        _temp_dir=folder,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)
