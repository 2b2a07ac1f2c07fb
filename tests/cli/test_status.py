"""`paceline status`, which reads a page or a store."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

import paceline
from odd_server import JSON, OddServer
from paceline.cli.app import app as cli
from paceline.cli.top import headline
from paceline.core.quota import NS
from paceline.core.results import NO_ANSWER
from paceline.testing import ManualClock

QUOTAS = {"jobs": "60 requests/min burst 2", "openai/gpt-5": ["500 requests/min", "400k tokens/min"]}


@pytest.fixture
def limiter():
    limiter = paceline.Limiter(QUOTAS, clock=ManualClock())
    limiter.try_acquire("jobs")
    limiter.try_acquire("openai/gpt-5", input_tokens=1_000).settle()
    return limiter


@pytest.fixture
def page(limiter):
    """The root of a server with the status of ``limiter``."""
    with closing(limiter.serve_status(port=0)) as server:
        yield server.url.rstrip("/")


def paceline_status(*words, env=None):
    return CliRunner().invoke(cli, ["status", *words], env=env)


class TestCommandReadsAPage:
    def test_one_line_for_each_quota(self, page):
        shown = paceline_status(page)
        assert shown.exit_code == 0
        assert [line.split("\t") for line in shown.output.splitlines()] == [
            ["pool", "quota", "left", "spent", "waiting", "in flight", "state"],
            ["jobs", "60 requests/min burst 2", "1", "1", "0", "1", "-"],
            ["openai/gpt-5", "500 requests/min", "499", "1", "0", "0", "-"],
            ["openai/gpt-5", "400k tokens/min", "399,000", "1,000", "0", "0", "-"],
        ]

    def test_a_small_budget_is_shown_as_exactly_as_in_json(self):
        limiter = paceline.Limiter({"jobs": "0.002 usd/day"}, clock=ManualClock())
        limiter.try_acquire("jobs", usd=0.0003).settle(usd=0.0003)
        with closing(limiter.serve_status(port=0)) as server:
            shown = paceline_status(server.url)
        assert shown.output.splitlines()[1].split("\t")[2:4] == ["0.0017", "0.0003"]

    def test_as_json(self, limiter, page):
        assert json.loads(paceline_status(page, "--json").output) == limiter.status()

    def test_one_pool(self, page):
        assert "\njobs\t60 requests/min burst 2\t" in paceline_status(f"{page}/status/jobs").output

    async def test_what_holds_a_pool_up(self, limiter, page):
        waiting = asyncio.ensure_future(limiter.acquire("jobs"))
        await asyncio.sleep(0)
        with limiter.acquire("openai/gpt-5") as permit:
            permit.refused(retry_after_s=7)
        jobs, gpt, *_ = (await asyncio.to_thread(paceline_status, page)).output.splitlines()[1:]
        waiting.cancel()
        assert jobs.split("\t")[4:] == ["1", "1", "limited by 60 requests/min burst 2"]
        assert gpt.split("\t")[-1] == "cool-down 7 s after a refusal or failures"
        pools = limiter.status()["pools"]
        assert headline([("openai/gpt-5", pools["openai/gpt-5"])]) == (
            "openai/gpt-5 is paused for 7.0 s after a refusal or failures: nothing waits"
        )

    async def test_a_silent_pool_is_not_paused_by_the_provider(self, limiter, page):
        """It pauses itself for 2 s after each request, as the fields of its status say, too."""
        scheduler = limiter.pacer.pools.scheduler("openai/gpt-5")
        scheduler.pause(scheduler.now_ns() + 2 * NS, NO_ANSWER)
        assert limiter.status()["pools"]["openai/gpt-5"]["paused"] == "because no answer comes"
        waiting = asyncio.ensure_future(limiter.acquire("openai/gpt-5"))
        await asyncio.sleep(0)
        pool = limiter.status()["pools"]["openai/gpt-5"]
        assert (pool["binds"], pool["cool_down_s"]) == ("no answer", 2)
        gpt = (await asyncio.to_thread(paceline_status, page)).output.splitlines()[2]
        waiting.cancel()
        assert gpt.split("\t")[-1] == "no answer"
        assert headline([("openai/gpt-5", pool)]) == (
            "openai/gpt-5 gets no answers, and sends one request at a time: 1 wait"
        )

    @pytest.mark.parametrize(("url", "code", "said"), [
        ("http://127.0.0.1:1", 1, "cannot be read (connection refused)"),
        ("127.0.0.1:1/status", 1, "cannot be read"),
        ("http://me:hunter2@127.0.0.1:1/", 1, "cannot be read"),
        *((url, 2, "http://127.0.0.1:8000/status") for url in ("ftp://host/", "http://", "http://host:port/", "http://[::1")),
    ])  # fmt: skip
    def test_nobody_is_there(self, url, code, said):
        shown = paceline_status(url)
        assert (shown.exit_code, said in shown.output, "hunter2" in shown.output) == (code, True, False)

    def test_no_such_pool(self, page):
        shown = paceline_status(f"{page}/status/nobody")
        assert shown.exit_code == 1
        assert "answers 404: there is no pool 'nobody'" in shown.output

    @pytest.mark.parametrize("body", [
        b"<html>hello</html>", b'{"pools": 3}', b"[]", b"\xff",
        b'{"pools": {}, "answers": {"most": 1}}',  # the tally of an emulator
    ])  # fmt: skip
    def test_another_page(self, body):
        with OddServer(lambda *_: (200, JSON, body)) as server:
            shown = paceline_status(server.base_url)
        assert shown.exit_code == 1
        assert "not as paceline.status_app does" in shown.output

    @pytest.mark.parametrize("begun", [None, [], [b"{"]], ids=["nothing", "a head", "a part"])
    def test_an_answer_that_does_not_come_or_does_not_end(self, begun):
        ended = threading.Event()

        def answer(*_):
            if begun is None:
                ended.wait(30)
            return 200, JSON, [*(begun or []), ended]

        with OddServer(answer) as server:
            shown = paceline_status(server.base_url, "--timeout", "0.2")
            ended.set()
        assert shown.exit_code == 1
        assert "did not answer within 0.2 s" in shown.output

    def test_nothing_that_came_from_elsewhere_steers_the_terminal(self):
        body = json.dumps({"pools": {"a\x1b[2J[red]": {"quotas": [{"quota": "\x07", "remaining": None}]}}}).encode()
        with OddServer(lambda *_: (200, JSON, body)) as server:
            line = paceline_status(server.base_url).output.splitlines()[1]
        assert line.split("\t")[:3] == ["a?[2J[red]", "?", "-"]


@contextmanager
def other_user(file, *, folder, rights):
    """Give ``file`` and its folder these rights. If the test runs as root, run the block as another user: root may read everything."""
    where, root = file.parent, os.geteuid() == 0
    files = list(where.iterdir())
    for path in files:
        path.chmod(rights)
    where.chmod(folder)
    if root:
        os.seteuid(65_534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        where.chmod(0o700)
        for path in files:
            path.chmod(0o600)


class TestCommandReadsAStore:
    @pytest.fixture
    def store(self):
        """In a folder that any user may enter."""
        quotas = {"openai/gpt-5": ["500 requests/day window utc", "400k tokens/day window utc", "9 concurrency"]}
        with tempfile.TemporaryDirectory() as folder:
            with paceline.Limiter(quotas, store=f"sqlite:{folder}/quotas.db") as limiter:
                limiter.acquire("openai/gpt-5", input_tokens=1_000).wait().settle()
            assert not Path(folder, "quotas.db-wal").exists()
            yield f"sqlite:{folder}/quotas.db"

    def test_what_is_left_and_who_shares_it(self, store):
        pools = json.loads(paceline_status("--store", store, "--json").output)["pools"]
        assert {name: pool["processes"]["count"] for name, pool in pools.items()} == {"openai/gpt-5": 1}
        shown = paceline_status("--store", store)  # which the first one has not joined
        assert shown.exit_code == 0
        requests, tokens, slots = (line.split("\t") for line in shown.output.splitlines()[1:])
        assert (requests[1], tokens[1]) == ("500 requests/day window utc", "400k tokens/day window utc")
        assert slots[1:3] == ["9 concurrency", "9"]
        assert 499 <= float(requests[2]) < 499.5
        assert tokens[3:] == ["1,000", "-", "-", "processes: 0"]

    def test_by_default_what_runs_keep(self, tmp_path):
        nothing = paceline_status(env={"XDG_STATE_HOME": str(tmp_path)})
        assert (nothing.exit_code, "has stored nothing" in nothing.output) == (2, True)
        limiter = paceline.Limiter({"jobs": "5 requests/day"}, store=f"sqlite:{tmp_path}/paceline/state.db")
        limiter.acquire("jobs").wait().settle()
        limiter.close()
        shown = paceline_status(env={"XDG_STATE_HOME": str(tmp_path)})
        assert shown.output.splitlines()[1].startswith("jobs\t5 requests/day window utc\t4")

    @pytest.mark.parametrize(("url", "code", "said"), [
        ("sqlite:{folder}/none.db", 1, "there is no such file"),
        ("sqlite:{folder}/text.db", 1, "is no database: give another path"),
        ("sqlite:{folder}", 1, "this is a folder"),
        ("redis://me:hunter2@host:port/0", 2, "invalid Redis URL"),
        ("redis+sentinel://me:hunter2@host/", 2, "invalid Redis URL"),
        ("memory:", 2, "serve paceline.status_app there"),
        ("quotas.db", 2, "did you mean 'sqlite:quotas.db'?"),
        ("sqllite:quotas.db", 2, "did you mean 'sqlite'?"),
        ("sqlite:", 2, "write 'sqlite:PATH'"),
        ("sqlite:quotas.db?lost=open", 2, "a SQLite URL has no options"),
    ])  # fmt: skip
    def test_a_store_that_cannot_be_read(self, tmp_path, url, code, said):
        (tmp_path / "text.db").write_text("hello, this is a text and no database at all; it is long enough to be read")
        shown = paceline_status("--store", url.format(folder=tmp_path))
        assert (shown.exit_code, "hunter2" in shown.output, "--store" in shown.output) == (code, False, code == 2)
        assert said in shown.output
        assert not (tmp_path / "none.db").exists()

    @pytest.mark.skipif(os.name == "nt", reason="another system's rights")
    def test_a_reader_needs_no_right_to_write(self, store):
        file = Path(store.removeprefix("sqlite:"))
        before = {path.name: path.read_bytes() for path in file.parent.iterdir()}
        with other_user(file, folder=0o555, rights=0o444):
            shown = paceline_status("--store", store)
        assert (shown.exit_code, shown.output.count("\n")) == (0, 4), shown.output
        assert {path.name: path.read_bytes() for path in file.parent.iterdir()} == before

    @pytest.mark.skipif(os.name == "nt", reason="another system's rights")
    def test_while_a_program_writes_there(self, store):
        limiter = paceline.Limiter({"jobs": "5 requests/day"}, store=store)
        limiter.acquire("jobs").wait().settle()
        file = Path(store.removeprefix("sqlite:"))
        assert file.with_name("quotas.db-wal").exists()
        with other_user(file, folder=0o555, rights=0o444):
            shown = paceline_status("--store", store)
        assert (shown.exit_code, "jobs\t5 requests/day window utc\t4" in shown.output) == (0, True), shown.output
        assert shown.output.splitlines()[1].endswith("processes: 1")
        limiter.close()

    @pytest.mark.skipif(os.name == "nt", reason="another system's rights")
    @pytest.mark.parametrize(("folder", "rights"), [(0o755, 0o000), (0o000, 0o644)])
    def test_without_the_right_to_read(self, store, folder, rights):
        with other_user(Path(store.removeprefix("sqlite:")), folder=folder, rights=rights):
            shown = paceline_status("--store", store)
        assert (shown.exit_code, "this user needs to read the file" in shown.output) == (1, True), shown.output

    def test_one_or_the_other(self, store):
        assert paceline_status("http://127.0.0.1:1", "--store", store).exit_code == 2


def test_a_page_that_was_mounted_is_found_without_its_slash():
    def answer(number, _):
        home = server.paths[number].endswith("/")
        return (200, JSON, {"pools": {}}) if home else (307, {"location": f"{server.paths[number]}/"}, b"")

    with OddServer(answer) as server:
        result = paceline_status(f"127.0.0.1:{server.server_port}/paceline")
    assert result.exit_code == 0, result.output
