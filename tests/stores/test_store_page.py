"""`paceline status --store ... --page`: the live page of all processes that share a store."""

import asyncio
import json
import os
import re
import socket
import sqlite3
import time
from contextlib import closing
from itertools import count
from types import SimpleNamespace

import httpx2
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from redis_servers import RIGHTS

import paceline
from paceline.cli import standing
from paceline.cli import status as command
from paceline.cli.app import app
from paceline.cli.standing import KEPT_S, LOOKS, PROCESSES_SHOWN, Reader, _processes
from paceline.core.budget import THE_SLOT
from paceline.core.quota import NS, Quota, Rule, parse_quotas
from paceline.shared.messages import Refused
from paceline.shared.meters import BOUNDLESS
from paceline.shared.peers import Seen
from paceline.stores import open_store
from shared_pools import message_of

QUOTAS = parse_quotas("5 requests/min, 1k tokens/day window utc")


def fill(store):
    """Three processes: one has sent a request that was refused, one waits, one has left."""
    with closing(open_store(store)) as opened:
        for who, fields in {
            "host:1:aa": {"wants": [[5.0, 10.0]]},
            "host:2:bb": {"wants": [[1.0, 10.0]], "place_ns": 100 * NS},
            "0123456789abcdef": {"leaving": True},
        }.items():
            opened.exchange("openai/gpt-5", message_of(who, 1, QUOTAS, [-1, -1], headroom_s=0.0, **fields))
        refused = [Refused([5.0, 10.0], 30 * NS)]
        opened.exchange("openai/gpt-5", message_of("host:1:aa", 2, QUOTAS, [-1, -1], news=refused))


def ask(view, path):
    """The status and the body of an answer of the page."""

    async def shutdown():
        return {"type": "lifespan.shutdown"}

    async def ignore(_):
        pass

    async def request():
        page = paceline.status_app(view)
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(page), base_url="http://page") as client:
            answer = await client.get(path)
        await page({"type": "lifespan"}, shutdown, ignore)  # its history ends
        return answer.status_code, answer.text

    return asyncio.run(request())


def test_all_processes_of_a_store(store):
    fill(store)
    with closing(Reader(store, 5.0)) as reader:
        code, text = ask(reader, "/status")
    pool = json.loads(text)["pools"]["openai/gpt-5"]
    assert (code, round(pool["cool_down_s"] / 10)) == (200, 3)
    assert pool["paused"] == "after a refusal or failures"
    requests, tokens = pool["quotas"]
    assert (requests["period_s"], requests["rule"], requests["spent"], requests["refused"]) == (60.0, "bucket", 5, 5)
    assert 30 < requests["reset_s"] <= 60
    assert (tokens["rule"], tokens["reset_s"], tokens["remaining"]) == ("window", None, 990)
    found = pool["processes"]
    rows = [(one["name"], one["state"], one["waits"]) for one in found["each"]]
    assert rows == [("host:2", "alive", True), ("host:1", "alive", False), ("01234567", "left", False)]
    assert all(0 <= one["seen_ago_s"] < 60 for one in found["each"])
    assert found["each"][1]["part"] > found["each"][0]["part"] > found["each"][2]["part"] == 0
    assert [found[name] for name in ("count", "alive", "silent", "idle", "left", "waiting")] == [3, 2, 0, 0, 1, 1]


def test_an_account_has_six_digits_and_a_limit_that_was_not_found_has_no_row(store):
    accounts = {"aa11": "7f3a91", "bb22": "7f3a91"}
    unbounded = (Quota("measured_requests", BOUNDLESS, 0.0, rule=Rule.SLOTS),)
    with closing(open_store(store)) as opened:
        for end, digits in accounts.items():
            opened.exchange(
                f"anthropic@{digits}{end:0>26}/m", message_of("host:1:aa", 1, unbounded, [-1], headroom_s=0.0)
            )
        opened.exchange("chatgpt@012345/m", message_of("host:1:aa", 1, QUOTAS, [-1, -1], headroom_s=0.0))
        budget = Quota.parse("0.0005 usd/day"), THE_SLOT
        opened.exchange("budget", message_of("host:1:aa", 1, budget, [-1, -1], headroom_s=0.0))
        with closing(Reader(store, 5.0)) as reader:
            pools = reader.read()[0]["pools"]
    assert {name: len(pool["quotas"]) for name, pool in pools.items()} == {
        f"anthropic@7f3a91{'0' * 22}{end[:1]}/m": 0 for end in accounts
    } | {"chatgpt@012345/m": 2, "budget": 1}
    assert pools["budget"]["quotas"][0]["remaining"] == 0.0005
    assert list(standing._shown({f"anthropic@7f3a91{'0' * 26}/m": 1})) == ["anthropic@7f3a91/m"]


def test_its_history_and_its_metrics(store):
    fill(store)
    with closing(Reader(store, 5.0)) as reader:
        pool = json.loads(ask(reader, "/history")[1])["pools"]["openai/gpt-5"]
        metrics = {family.name: family for family in text_string_to_metric_families(ask(reader, "/metrics")[1])}
    assert (pool["waiting"], pool["refused"]) == ([1], [5])
    left = {one.labels["unit"]: one.value for one in metrics["paceline_quota_remaining"].samples}
    assert left["tokens"] == 990
    assert [one.value for one in metrics["paceline_store_up"].samples] == [1]


def test_a_store_that_does_not_answer_is_an_answer(tmp_path, monkeypatch):
    file = tmp_path / "q.db"
    fill(f"sqlite:{file}")
    seconds = count()
    monkeypatch.setattr(standing, "time", SimpleNamespace(monotonic=lambda: next(seconds), time_ns=time.time_ns))
    with closing(Reader(f"sqlite:{file}", 5.0)) as reader:
        assert ask(reader, "/status")[0] == 200
        kept = file.read_bytes()
        file.write_bytes(b"something else " * 100)
        code, text = ask(reader, "/status")
        assert (code, json.loads(text)["error"][:6]) == (503, "sqlite")
        assert ask(reader, "/history")[0] == 200
        file.write_bytes(kept)
        assert ask(reader, "/status")[0] == 200


def test_pages_that_ask_at_once_are_one_reading(tmp_path):
    with closing(Reader(f"sqlite:{tmp_path}/q.db", 5.0)) as reader:
        readings = iter([({"pools": {}}, ["a problem"])])  # a second one would raise
        reader.read = lambda: next(readings)
        assert [reader.status() for _ in range(3)] == [{"pools": {}, "problems": ["a problem"]}] * 3
    assert KEPT_S < 1  # a page asks each second


def test_many_processes_are_counted_and_a_few_are_shown():
    many = [Seen(f"h:{n}:x", "alive", n / 10, 0.001, waits=n == 70) for n in range(80)]
    found = _processes(
        [*many, Seen("h:s:x", "silent", 50.0, 0.1, waits=True), Seen(LOOKS, "left", 0.0, 0.0, waits=False)]
    )
    assert (found["count"], found["alive"], found["silent"], found["waiting"]) == (81, 80, 1, 1)
    assert [one["name"] for one in found["each"]][:4] == ["h:s", "h:70", "h:0", "h:1"]
    assert len(found["each"]) == PROCESSES_SHOWN


def test_the_command_serves_the_page_until_it_is_interrupted(store, monkeypatch):
    fill(store)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    shown = []

    def look(_seconds):
        shown.append(httpx2.get(f"http://127.0.0.1:{port}/status", trust_env=False, timeout=30).json())
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "time", SimpleNamespace(sleep=look))
    done = CliRunner().invoke(app, ["status", "--store", store, "--page", str(port)])
    assert (done.exit_code, list(shown[0]["pools"])) == (0, ["openai/gpt-5"])
    assert f"page at http://127.0.0.1:{port}/ (Ctrl-C ends it)" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--store", "sqlite:{folder}/none.db"], 1, "none.db: there is no such file"),
        (["--store", "sqlite:{folder}"], 1, "this is a folder"),
        (["--store", "sqlite:{folder}/other.db"], 1, "this is another program's database"),
        (["--store", "sqlite:{folder}/newer.db"], 1, "written by a newer paceline: update this one"),
        (["--store", "redis://127.0.0.1:1"], 1, "check the address, and that the server runs"),
        (["--store", "memory:"], 2, "is no store"),
        (["--store", "sqlite:{folder}/q.db", "--json"], 2, "--page shows a store"),
        (["http://127.0.0.1:8000"], 2, "--page shows a store: give no URL"),
    ],
)
def test_what_cannot_be_shown_is_an_error_at_once(tmp_path, words, code, said):
    fill(f"sqlite:{tmp_path}/newer.db")
    with closing(sqlite3.connect(tmp_path / "newer.db", isolation_level=None)) as database:
        database.execute("UPDATE pools SET format = format + 1")
    with closing(sqlite3.connect(tmp_path / "other.db")) as database:
        database.execute("CREATE TABLE t (a)")
    done = CliRunner().invoke(app, ["status", *(word.format(folder=tmp_path) for word in words), "--page", "0"])
    assert done.exit_code == code, done.output
    assert said in done.stderr


def test_a_taken_port_is_an_error(tmp_path):
    fill(f"sqlite:{tmp_path}/q.db")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = CliRunner().invoke(app, ["status", "--store", f"sqlite:{tmp_path}/q.db", "--page", port])
    assert (done.exit_code, f"--page {port}: the port cannot be used" in done.stderr) == (2, True)


def test_the_rights_of_any_process_and_scan_are_enough(redis_server):
    fill(redis_server.url)
    with redis_server.user(f"{RIGHTS} +scan") as url, closing(Reader(url, 5.0)) as reader:
        status, problems = reader.read()
    assert (problems, status["pools"]["openai/gpt-5"]["processes"]["count"]) == ([], 3)


def test_a_process_has_its_machine_and_its_number_as_its_name(store, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "h\N{LATIN SMALL LETTER O WITH DIAERESIS}st:1/" + "x" * 100)
    with closing(paceline.Limiter({"jobs": "5 requests/day"}, store=store)) as limiter:
        limiter.acquire("jobs").wait().settle()
        with closing(Reader(store, 5.0)) as reader:
            (one,) = reader.read()[0]["pools"]["jobs"]["processes"]["each"]
    assert re.fullmatch(rf"hst1x{{36}}:{os.getpid()}", one["name"])
