"""Celery, a pool of processes, and jobs that stand for those of a Slurm array and of Kubernetes; one process of each is killed."""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

import pytest
from engine_work import answered, rows
from engine_world import Killer, check, children, until

HERE = Path(__file__).parent
ROWS, PARTS = 400, 8


def parts():
    return [rows(ROWS)[part::PARTS] for part in range(PARTS)]


def flat(results):
    return [row for part in results for row in part]


def test_celery(provider, capsys):
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-c", "3", "-l", "ERROR"]
    with subprocess.Popen(command, cwd=HERE) as worker:
        try:
            from tasks import work

            killer, started_s = Killer(provider, lambda: children(worker.pid)), time.monotonic()
            killer.start()
            waiting = [work.delay(part) for part in parts()]
            check(provider, killer, ROWS, flat(one.get(timeout=120) for one in waiting), capsys, "Celery", started_s)
        finally:
            worker.terminate()


def test_a_pool_of_processes(provider, capsys):
    """A killed process breaks the pool; the same call again pays for what was in flight until all had ended."""
    pools, started_s = [], time.monotonic()
    killer = Killer(provider, lambda: list(pools[-1]._processes))
    killer.start()
    while True:
        with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
            pools.append(pool)
            try:
                results = list(pool.map(answered, parts()))
                break
            except BrokenProcessPool:
                pass
        # All of its processes have ended. Until then the others have sent more.
        killer.in_flight += provider.tally()["calls"] - killer.calls
    assert len(pools) == 2
    check(provider, killer, ROWS, flat(results), capsys, "Pool", started_s)


@pytest.mark.parametrize(
    "variables", [("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"), ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS")]
)
def test_jobs_of_an_array(provider, capsys, tmp_path, variables):
    """The killed job is started again, as both schedulers do."""
    running, starts, started_s = {}, 0, time.monotonic()
    killer = Killer(provider, lambda: [running[0].pid])
    killer.start()
    while missing := [index for index in range(3) if not (tmp_path / f"{index}.json").exists()]:
        for index in missing:
            if index not in running or running[index].poll() is not None:
                own = dict(zip(variables, (str(index), "3"), strict=True))
                command = [sys.executable, str(HERE / "job.py"), str(tmp_path), str(ROWS)]
                running[index] = subprocess.Popen(command, env=os.environ | own)
                starts += 1
        time.sleep(0.1)
    until(lambda: all(job.poll() is not None for job in running.values()))
    results = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert starts == 4
    check(provider, killer, ROWS, flat(results), capsys, variables[0], started_s)
