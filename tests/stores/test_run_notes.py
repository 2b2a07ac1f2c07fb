"""`paceline status --store`: one view of the shards of a run, from the notes that they leave beside their store."""

import json
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from redis_servers import RIGHTS
from tests.batch.batch_helpers import Said, chat, write_lines

import paceline
from paceline.batch import job, notes
from paceline.batch.job import Job, Output
from paceline.batch.notes import Reporter, read_note, read_runs, run_id
from paceline.batch.progress import ProgressLine, ProgressView
from paceline.batch.requests import WHOLE, Shard
from paceline.batch.summary import Calls, RunTally, Sent
from paceline.cli import standing
from paceline.cli.app import app
from paceline.config import Config
from paceline.core.quota import parse_quotas
from paceline.stores import open_store
from paceline.stores.notes import KEEP_S, SQLiteNotes, notes_beside
from waits import until

FAST = "60k requests/min, 60M tokens/min"
PROMPT, KEY = "what is the secret of the house?", "sk-the-key"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def emulator(paceline_emulator):
    return paceline_emulator(limits={"*": FAST}, latency_s=0.0)


@pytest.fixture
def source(tmp_path):
    return write_input(tmp_path / "in.jsonl", 30)


def write_input(path, count):
    return write_lines(path, [chat(f"r{n}", text=PROMPT, max_tokens=5) for n in range(count)])


def send(source, store, emulator, shard="1/1", view=None, output=None, **environ):
    given = {"base_url": emulator.base_url, "limits": {"*": parse_quotas(FAST)}, "store": store}
    config = Config.load(environ={}, given=given)
    environ = {"OPENAI_API_KEY": KEY, **environ}
    return Job(str(source), Output(output), config, shard=Shard.parse(shard), environ=environ).run(
        view or ProgressView()
    )


def command(source, emulator, store, setup=""):
    """A process that runs ``source`` with one worker, after ``setup``."""
    words = [sys.executable, "-c", f"{setup}\nfrom paceline.cli import main; main()", "run", str(source)]
    words += ["--base-url", emulator.base_url, "--limit", f"*={FAST}", "--store", store, "--workers", "1"]
    return words if setup else [*words, "--quiet"]


def use(store):
    """Make a pool there."""
    with closing(paceline.Limiter({"jobs": "5 requests/day"}, store=store)) as limiter:
        limiter.acquire("jobs").wait().settle()


def status(store, *words):
    done = CliRunner().invoke(app, ["status", "--store", store, *words])
    assert done.exit_code == 0, done.output
    return done


def run_rows(store):
    """The cells of the second table."""
    _, _, table = status(store).stdout.partition("\n\n")
    return [line.split("\t") for line in table.splitlines()[1:]]


def runs(store):
    return json.loads(status(store, "--json").stdout).get("runs", [])


def reported(store):
    """The numbers of the shards with a note."""
    return {each["shard"] for run in read_runs(beside(store))[0] for each in run["each"]}


def beside(store):
    return notes_beside(open_store(store))


def age(store, key, by_s):
    """Make a note older, for this moment."""
    if store.startswith("sqlite:"):
        with closing(sqlite3.connect(f"{store.removeprefix('sqlite:')}.runs", isolation_level=None)) as database:
            assert database.execute("UPDATE entries SET at = at - ? WHERE key = ?", (by_s, key)).rowcount == 1
    else:
        opened = open_store(store)
        opened.run_script(
            "redis.call('ZINCRBY', KEYS[1], -ARGV[1], ARGV[2])", ["paceline:runs:{/}:times"], str(by_s), key
        )
        opened.close()


def a_note(**changed):
    values = {"run": "a", "input": "in.jsonl", "shard": 1, "shards": 3, "state": "running", "about": False}
    values |= {"requests": 10, "done": 4, "failed": 1, "refused": 2, "per_min": 30.0, "left_s": 12.0}
    return json.dumps(values | changed)


def put(store, *entries):
    beside(store).write({f"a/{number}": entry for number, entry in enumerate(entries)})


@pytest.mark.long("starts several processes")
class TestShards:
    def test_they_are_one_run_as_they_come(self, source, store, emulator):
        seen = []
        for shard in ("1/3", "3/3", "2/3"):
            assert send(source, store, emulator, shard)[0] == 0
            seen += run_rows(store)
        assert seen == [
            ["in.jsonl", "10/10", "0", "0", "0", "-", "1 of 3 reported: 1 finished"],
            ["in.jsonl", "20/20", "0", "0", "0", "-", "2 of 3 reported: 2 finished"],
            ["in.jsonl", "30/30", "0", "0", "0", "-", "3 of 3 reported: 3 finished"],
        ]
        (run,) = runs(store)
        assert [(each["shard"], each["done"]) for each in run["each"]] == [(1, 10), (2, 10), (3, 10)]
        assert (run["input"], run["done"], run["states"]["finished"]) == ("in.jsonl", 30, 3)
        assert "openai/gpt-5\t60k requests/min\t" in status(store).stdout

    def test_a_run_without_shards_is_one_of_one(self, source, store, emulator):
        send(source, store, emulator)
        assert run_rows(store) == [["in.jsonl", "30/30", "0", "0", "0", "-", "1 of 1 reported: 1 finished"]]

    def test_a_note_has_no_key_and_nothing_of_a_request(self, source, store, emulator):
        send(source, store, emulator)
        ((_, entry),) = beside(store).read()
        assert json.loads(entry).keys() == {*json.loads(a_note()), "errors"}  # an earlier version's had none
        for secret in (PROMPT, KEY, "gpt-5", "r1", str(source.parent)):
            assert secret not in entry.decode()

    def test_a_killed_shard_is_silent_and_is_started_again(self, source, store, paceline_emulator):
        slow = paceline_emulator(limits={"*": FAST}, latency_s=0.1)
        processes = [subprocess.Popen([*command(source, slow, store), "--shard", f"{n}/3"]) for n in (1, 2, 3)]
        try:
            until(lambda: 2 in reported(store), "a note of the second shard")
            processes[1].kill()
            killed = 1 if sys.platform == "win32" else -signal.SIGKILL
            assert [process.wait(60) for process in processes] == [0, killed, 0]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        (run,) = runs(store)
        assert run["states"] == {"running": 1, "finished": 2, "stopped": 0, "failed": 0, "silent": 0}
        age(store, f"{run['run']}/2", 60)
        assert run_rows(store)[0][-2:] == ["-", "3 of 3 reported: 2 finished, 1 silent (2)"]
        assert send(source, store, slow, "2/3")[0] == 0
        assert run_rows(store)[0][1:] == ["30/30", "0", "0", "0", "-", "3 of 3 reported: 3 finished"]

    def test_an_interrupted_run_has_stopped(self, source, store, paceline_emulator):
        slow = paceline_emulator(limits={"*": FAST}, latency_s=0.2)
        with subprocess.Popen(command(source, slow, store), stderr=subprocess.DEVNULL) as process:
            output = source.with_name("in.results.jsonl")
            until(lambda: output.exists() and output.stat().st_size, "an answer")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        assert run_rows(store)[0][-1] == "1 of 1 reported: 1 stopped"

    def test_a_run_that_could_send_nothing_has_failed(self, source, store, paceline_emulator):
        strict = paceline_emulator(limits={"*": FAST}, latency_s=0.0, valid_key="another")
        assert send(source, store, strict, "2/3")[0] == 2
        assert run_rows(store)[0][-1] == "1 of 3 reported: 1 failed (2)"


class TestTheSum:
    def test_without_a_run_all_is_as_before(self, store):
        use(store)
        shown = status(store)
        assert (shown.stdout.count("\n"), shown.stderr) == (2, "")
        assert json.loads(status(store, "--json").stdout).keys() == {"pools"}

    def test_speed_and_time_left_are_of_those_that_run(self, tmp_path, monkeypatch):
        now_s = time.time()
        monkeypatch.setattr("paceline.stores.notes.time", SimpleNamespace(time=lambda: now_s))
        place = SQLiteNotes(tmp_path / "quotas.db")
        left = (1, "running", 12.0), (2, "running", 90.0), (3, "running", None), (7, "stopped", 3.0)
        for number, state, left_s in left:
            place.write({f"a/{number}": a_note(shard=number, shards=8, state=state, left_s=left_s)})
        ((run,), unreadable) = read_runs(place)
        assert (run["done"], run["requests"], run["failed"], run["refused"]) == (16, 40, 4, 8)
        assert (run["per_min"], run["left_s"], run["reported"], unreadable) == (90, 90, 4, 0)
        now_s += 61
        ((run,), _) = read_runs(place)
        assert (run["per_min"], run["left_s"], run["done"]) == (0, None, 16)
        assert run["states"] == {"running": 0, "finished": 0, "stopped": 1, "failed": 0, "silent": 3}
        now_s += KEEP_S
        assert read_runs(place) == ([], 0)

    def test_the_run_that_reported_last_comes_first_and_few_are_shown(self, tmp_path):
        store = f"sqlite:{tmp_path / 'quotas.db'}"
        use(store)
        put(store, *(a_note(run=f"{n}", input=f"{n}.jsonl") for n in range(23)))
        for n in range(23):
            age(store, f"a/{n}", 10 * (23 - n))
        shown = status(store)
        names = [line.split("\t")[0] for line in shown.stdout.partition("\n\n")[2].splitlines()[1:]]
        assert names == [f"{n}.jsonl" for n in range(22, 2, -1)]
        assert "3 runs that reported earlier are listed with --json" in shown.stderr

    def test_many_silent_shards_are_not_all_named(self, store):
        use(store)
        put(store, *(a_note(shard=n, shards=9, state="stopped") for n in range(1, 8)))
        assert run_rows(store)[0][-1] == "7 of 9 reported: 7 stopped (1, 2, 3, 4, 5, ...)"

    @pytest.mark.parametrize(
        "entry",
        [
            *("", "x", "[]", "3", "{}", "[" * 100_000, '"\\ud800'),
            *(a_note(**{name: value}) for name, value in (("shard", 0), ("shard", 4), ("state", "new"), ("run", 3))),
            *(a_note(errors=value) for value in (["cut_off"], {"cut_off": None}, {"cut_off": -1}, 3)),
            *(a_note(done=value) for value in (None, -1, "4", float("nan"), float("inf"), 10**400)),
        ],
    )
    def test_what_is_no_note_is_counted(self, tmp_path, entry):
        store = f"sqlite:{tmp_path / 'quotas.db'}"
        use(store)
        put(store, a_note(), entry)
        shown = status(store)
        assert "notes of runs that cannot be read: 1" in shown.stderr
        assert "in.jsonl\t4/10\t1\t2\t30\t12 s\t1 of 3 reported: 1 running" in shown.stdout

    def test_a_newer_note_may_have_more(self):
        assert read_note(a_note(more=3).encode()) == json.loads(a_note(errors={}))

    def test_errors_are_added_by_name(self, tmp_path):
        place = notes_beside(open_store(f"sqlite:{tmp_path / 'quotas.db'}"))
        for number, errors in enumerate(({"cut_off": 1}, {"cut_off": 2, "invalid": 1}, None), 1):
            place.write({f"a/{number}": a_note(shard=number, errors=errors)})
        assert read_runs(place)[0][0]["errors"] == {"cut_off": 3, "invalid": 1}

    def test_a_name_does_not_steer_the_terminal(self, tmp_path):
        store = f"sqlite:{tmp_path / 'quotas.db'}"
        use(store)
        put(store, a_note(input="\x1b[2Jin"))
        assert run_rows(store)[0][0] == "?[2Jin"


def test_the_same_input_in_another_folder_is_the_same_run(tmp_path):
    def name(path, content, shards=3):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        with path.open("rb") as file:
            file.seek(2)
            found = run_id(str(path), file, shards)
            assert file.tell() == 2
        return found

    first = name(tmp_path / "a" / "in.jsonl", b"one\n")
    assert name(tmp_path / "b" / "in.jsonl", b"one\n") == first
    others = [
        name(tmp_path / "a" / "other.jsonl", b"one\n"),
        name(tmp_path / "a" / "in.jsonl", b"two\n"),
        name(tmp_path / "a" / "in.jsonl", b"one\n", 4),
    ]
    assert len({first, *others}) == 4


class Blocked:
    """A place that does not answer."""

    def __init__(self):
        self.answers, self.told = threading.Event(), threading.Event()

    def write(self, _):
        self.answers.wait()
        self.told.set()


class TestALostPlace:
    @pytest.mark.long("starts several processes")
    def test_a_redis_that_is_lost_costs_one_line(self, tmp_path, paceline_emulator, redis_server):
        slow = paceline_emulator(limits={"*": FAST}, latency_s=0.05)
        source = write_input(tmp_path / "in.jsonl", 120)
        often = command(source, slow, redis_server.url, "import paceline.batch.notes as notes; notes.EVERY_S = 0.05")
        with subprocess.Popen([*often, "--workers", "5"], stderr=subprocess.PIPE, text=True) as process:
            until(lambda: runs(redis_server.url), "a note")
            redis_server.kill()
            _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
        assert said.count("warning: the progress is not reported to the store: redis://127.0.0.1") == 1
        assert "120 answered, 0 failed" in said

    def test_a_file_that_cannot_be_made_costs_one_line(self, source, tmp_path, emulator, monkeypatch):
        monkeypatch.setattr(notes, "EVERY_S", 0.001)
        (tmp_path / "quotas.db.runs").mkdir()
        view, store = Said(), f"sqlite:{tmp_path / 'quotas.db'}"
        assert send(source, store, emulator, view=view)[0] == 0
        assert len([line for line in view.lines if "the progress is not reported" in line]) == 1
        shown = status(store)
        assert "the runs are not shown: sqlite:" in shown.stderr
        assert shown.stdout.count("openai/gpt-5") == 2

    def test_a_place_that_does_not_answer_delays_nothing(self, source, store, emulator, monkeypatch):
        place = Blocked()
        monkeypatch.setattr(job, "notes_beside", lambda _: place)
        monkeypatch.setattr(notes, "END_S", 0.01)
        code, report = send(source, store, emulator)
        assert (code, report["ok"], place.told.is_set()) == (0, 30, False)
        place.answers.set()
        assert place.told.wait(60)

    def test_a_broken_block_is_a_failed_run(self, source, tmp_path):
        place = SQLiteNotes(tmp_path / "quotas.db")
        tally = RunTally(10, sent=Sent(attempts=Calls(made=3, refused=1), calls=Calls(made=5, refused=2)))
        with source.open("rb") as file:
            reporter = Reporter(place, file, "in.jsonl", WHOLE, tally, ProgressLine(None, tally, 1), ProgressView())
            with pytest.raises(RuntimeError), reporter:
                raise RuntimeError
        ((run,), _) = read_runs(place)
        assert (run["states"]["failed"], run["refused"]) == (1, 3)

    @pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be deleted there")
    def test_a_file_that_was_deleted_is_made_again(self, tmp_path):
        place = SQLiteNotes(tmp_path / "quotas.db")
        place.write({"a/1": a_note()})
        for path in tmp_path.glob("quotas.db.runs*"):
            path.unlink()
        assert place.read() == []
        place.write({"a/1": a_note()})
        assert len(place.read()) == 1

    def test_a_file_of_something_else_leaves_the_pools(self, tmp_path):
        store = f"sqlite:{tmp_path / 'quotas.db'}"
        use(store)
        (tmp_path / "quotas.db.runs").write_text("this is a text and no database, long enough to be looked at" * 20)
        shown = status(store)
        assert "the runs are not shown: sqlite:" in shown.stderr
        assert shown.stdout.count("\n") == 2

    def test_a_redis_that_is_not_there(self, redis_server):
        url = redis_server.url
        redis_server.kill()
        done = CliRunner().invoke(app, ["status", "--store", url])
        assert (done.exit_code, "check the address" in done.stderr) == (1, True)


class TestWhere:
    def shown(self, url):
        """A pool and a note are written and shown."""
        use(url)
        put(url, a_note(shard=1), a_note(shard=2))
        assert run_rows(url)[0][1] == "8/20"
        return status(url).stdout

    @pytest.mark.parametrize("servers", ["redis_server", "redis_sentinel", "redis_cluster"])
    def test_with_a_prefix_accounts_are_apart(self, request, servers):
        for prefix in ("a", "b*", "[b]", ""):  # of a cluster on several nodes
            shown = self.shown(f"{request.getfixturevalue(servers).url}?prefix={prefix}")
            assert shown.count("jobs") == 1
            assert "jobs\t5 requests/day window utc\t4\t1\t-\t-\tprocesses: 0" in shown

    def test_old_notes_are_forgotten(self, redis_server):
        put(redis_server.url, a_note(), a_note(shard=2))
        age(redis_server.url, "a/0", KEEP_S)
        assert [each["shard"] for each in runs(redis_server.url)[0]["each"]] == [2]
        put(redis_server.url, a_note(run="b"))
        with redis_server.client() as client:
            assert client.hlen("paceline:runs:{/}") == client.zcard("paceline:runs:{/}:times")
            assert all(0 < client.ttl(key) <= KEEP_S for key in client.keys("paceline:runs:*"))

    def test_no_pool_and_no_note_is_written_by_a_look(self, redis_server):
        assert "runs" not in json.loads(status(redis_server.url, "--json").stdout)
        assert redis_server.ask("KEYS", "*") == []

    def test_when_there_is_no_time_for_all_pools(self, redis_server, monkeypatch):
        use(redis_server.url)
        seconds = iter([0.0, 0.0, 0.0, 6.0])
        monkeypatch.setattr(standing, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
        shown = status(redis_server.url)
        assert (shown.stdout.count("\n"), "took longer than 5 s" in shown.stderr) == (1, True)

    def test_a_user_who_may_not_look_at_all_keys_sees_the_runs(self, redis_server):
        with redis_server.user(RIGHTS) as url:
            put(url, a_note())
            shown = status(url)
        assert "in.jsonl\t4/10" in shown.stdout
        assert "the pools are not shown: " in shown.stderr
        assert "+scan" in shown.stderr
