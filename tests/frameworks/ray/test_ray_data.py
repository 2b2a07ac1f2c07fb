"""Ray Data: actors that are killed, a job that is started again, rows that fail; over HTTP, with one quota in Redis."""

import gc
import json
import os
import random
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray

from conftest import KEY
from paceline.integrations.ray import paced_requests, read_line

pytestmark = pytest.mark.usefixtures("cluster")

RATE = 30
LIMITS = [f"{RATE} requests/s", "60M tokens/min"]
WIDE = ["100k requests/min", "100M tokens/min"]
KILLS = 3


def rows(count, model="gpt-5"):
    for number in range(count):
        body = {"model": model, "max_tokens": 20, "messages": [{"role": "user", "content": f"number {number}?"}]}
        yield {"custom_id": f"r{number}", "url": "/v1/chat/completions", "body": json.dumps(body), "n": number}


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def actors():
    """The processes of the actors: children of this process's raylet."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if b"ray::MapWorker" in (folder / "cmdline").read_bytes() and parent(parent(folder.name)) == os.getpid():
                found.append(int(folder.name))
        except (OSError, ValueError):  # it has ended, or is no process
            continue
    return found


def kill(rng, how):
    """Kill one of the actors, by the system or by Ray; both start it again."""
    if how % 2:
        handles = [
            one for one in gc.get_objects() if isinstance(one, ray.actor.ActorHandle) and "MapWorker" in repr(one)
        ]
        ray.kill(rng.choice(handles), no_restart=False)
    else:
        os.kill(rng.choice(actors()), signal.SIGKILL)


@contextmanager
def killer(world):
    """Kill at random instants, while two actors work; yields what was in flight at each kill, in both."""
    rng, over, in_flight = random.Random(5), threading.Event(), []

    def run():
        due = 0
        while len(in_flight) < KILLS and not over.wait(0.05):
            counts = world.tally()["pools"].get("gpt-5", {"admitted": 0})
            due = due or counts["admitted"] + rng.randint(6 * RATE, 12 * RATE)
            if counts["admitted"] > due and len(actors()) == 2:
                in_flight.append(world.tally()["pools"]["gpt-5"]["in_flight"])
                kill(rng, len(in_flight))
                due = 0

    thread = threading.Thread(target=run)
    thread.start()
    yield in_flight
    over.set()
    thread.join()


def test_killed_actors_cost_what_was_in_flight(paceline_emulator, capsys):
    world = paceline_emulator(limits={"gpt-5": LIMITS}, latency_s=1.0, process=True)
    count = 1_500
    asked = paced_requests(
        ray.data.from_items(list(rows(count))),
        limits={"openai/gpt-5": LIMITS},
        journal="killed",
        base_url=world.base_url,
        provider="openai",
        actors=2,
        in_flight=200,
        rows_per_block=20,
    )
    started = time.monotonic()
    with killer(world) as in_flight:
        answers = asked.take_all()
    tally = world.tally()["pools"]["gpt-5"]
    extra, speed = tally["admitted"] - count, tally["speed_vs_ideal"]
    with capsys.disabled():
        print(  # noqa: T201
            f"{count} rows in {time.monotonic() - started:.0f} s; {len(in_flight)} kills with {in_flight} in flight: {extra}"
            f" paid twice; {tally['refused_total']} refused; speed {speed:.3f} of the ideal"
        )
    assert sorted(answer["custom_id"] for answer in answers) == sorted(f"r{number}" for number in range(count))
    assert {answer["error_code"] for answer in answers} == {None}
    assert len(in_flight) == KILLS
    assert extra <= sum(in_flight)
    assert tally["refused_total"] == 0
    assert speed > 0.7  # 0.98; 0.91 beside a busy test suite; each killed process that kept its share would halve it


def test_a_job_that_is_started_again_pays_nothing_twice(paceline_emulator, tmp_path):
    world = paceline_emulator(limits={"gpt-5": WIDE})
    lines = tmp_path / "requests.jsonl"
    lines.write_text("".join(json.dumps(row | {"body": json.loads(row["body"])}) + "\n" for row in rows(200)))

    def job():
        asked = paced_requests(
            ray.data.read_text(str(lines)).map(read_line),
            limits={"openai/gpt-5": WIDE},
            journal="again",
            base_url=world.base_url,
            provider="openai",
        )
        return sorted(asked.take_all(), key=lambda row: row["custom_id"])

    first = job()
    assert len(first) == 200
    assert world.tally()["admitted"] == 200
    assert job() == first
    assert world.tally()["admitted"] == 200


def test_rows_that_fail_are_rows_in_their_order(paceline_emulator, tmp_path):
    world = paceline_emulator(limits={"gpt-5": WIDE})
    good = {"model": "gpt-5", "messages": [{"role": "user", "content": "hello"}]}
    given = [
        {"id": 1, "url": "/v1/chat/completions", "body": good | {"temperature": 0.5}},
        {"id": 2, "url": "/v1/chat/completions", "body": good | {"stream": True}},
        {"id": 3, "url": "/v1/images/generations", "body": good},
        {"id": 4, "url": "/v1/chat/completions", "body": {"model": "gpt-5", "messages": []}},
        {"id": 5, "url": "/v1/chat/completions", "body": good},
    ]
    answers = paced_requests(
        ray.data.from_items(given, override_num_blocks=1),
        limits={"openai/gpt-5": WIDE},
        store=f"sqlite:{tmp_path / 'quotas.db'}",
        journal=f"sqlite:{tmp_path / 'job.db'}",
        id_column="id",
        base_url=world.base_url,
        provider="openai",
    ).take_all()
    assert [(answer["id"], answer["status_code"], answer["error_code"]) for answer in answers] == [
        (1, 200, None),
        (2, None, "bad_line"),
        (3, 404, "invalid_request_error"),
        (4, None, "bad_line"),
        (5, 200, None),
    ]
    assert json.loads(answers[0]["response"])["choices"]
    assert "streamed answers are not supported" in answers[1]["error_message"]
    assert KEY not in json.dumps(answers)
    assert world.tally()["admitted"] == 2
